//! A table of shapes of processes and commands: each command reads each shape, with names and figures. Shapes: a first
//! thread that has ended, chroot after the start, libraries opened by a relative path, a deleted program, a fork,
//! namespaces, another user, threads in other namespaces; and those without memory: zombies, threads of the kernel.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, compile, copy_program, is_root, skip, stderr, stdout};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SOURCE: &str = include_str!("shapes/shape.c");
/// What the program holds, without what is free or shared.
const HELD: u64 = 28 * MIB;

/// A shape, and whether only root can make it.
const SHAPES: [(&str, bool); 9] = [
    ("plain", false),
    ("first", false),
    ("relative", false),
    ("deleted", false),
    ("forked", false),
    ("chroot", true),
    ("setuid", true),
    ("namespaces", true),
    ("threads", true),
];

/// A process of a shape, on neap.
struct Shaped {
    child: Child,
    pid: u32,
}

impl Shaped {
    /// Each has a copy of its own of the program and the library, because some delete them.
    fn start(neap: &Neap, program: &Path, library: &Path, shape: &str) -> Shaped {
        let folder = neap.path(shape);
        std::fs::create_dir(&folder).expect("a folder");
        let (own, rows) = (folder.join("shape"), folder.join("librows.so"));
        copy_program(program, &own);
        copy_program(library, &rows);
        let mut command = neap.command(["run", "--"]);
        command.arg(&own).arg(shape).arg(&folder).arg(&rows);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it says its process");
        let pid = line.trim().parse().unwrap_or_else(|_| panic!("{shape}: no process: {line:?}"));
        let shaped = Shaped { child, pid };
        // A forked process gets its own when it has taken more.
        let until = Instant::now() + Duration::from_secs(60);
        while !neap.output(["stats", &pid.to_string()]).status.success() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        shaped
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn programs(neap: &Neap) -> Option<(PathBuf, PathBuf)> {
    let library =
        compile(neap.dir.path(), "librows.so", SOURCE, &["-g", "-O1", "-w", "-shared", "-fPIC", "-DLIBRARY"])?;
    let program = compile(neap.dir.path(), "shape", SOURCE, &["-g", "-O1", "-w", "-pthread", "-ldl"])?;
    Some((program, library))
}

/// Runs a command on a process, which has to succeed; the failure otherwise.
fn said(neap: &Neap, arguments: &[&str], pid: u32) -> Result<String, String> {
    let pid = pid.to_string();
    let arguments = arguments.iter().map(|word| if *word == "PID" { pid.as_str() } else { word });
    let output = neap.output(arguments);
    match output.status.success() {
        // Profiles as text go to standard error.
        true => Ok(stdout(&output) + &stderr(&output)),
        false => Err(stderr(&output)),
    }
}

fn has(text: Result<String, String>, words: &[&str]) -> Result<(), String> {
    let text = text?;
    match words.iter().find(|word| !text.contains(**word)) {
        Some(word) => Err(format!("no {word:?} in {text}")),
        None => Ok(()),
    }
}

fn at_least(bytes: Option<u64>, of: &dyn Fn() -> String) -> Result<(), String> {
    match bytes {
        Some(bytes) if bytes >= HELD => Ok(()),
        other => Err(format!("{other:?} bytes: {}", of())),
    }
}

fn json(text: Result<String, String>) -> Result<Value, String> {
    serde_json::from_str(&text?).map_err(|error| error.to_string())
}

/// What each command has to say about a process of any shape.
type Check = fn(&Neap, u32) -> Result<(), String>;
const COMMANDS: [(&str, Check); 7] = [
    ("why", |neap, pid| {
        let report = json(said(neap, &["why", "--json", "PID"], pid))?;
        let live = report["heaps"].as_array().and_then(|heaps| {
            heaps.iter().find(|heap| heap["allocator"] == "neap").and_then(|heap| heap["live_bytes"].as_u64())
        });
        at_least(live, &|| report.to_string())
    }),
    ("stats", |neap, pid| {
        let report = json(said(neap, &["stats", "--json", "PID"], pid))?;
        at_least(report["gauges"]["live_bytes"].as_u64(), &|| report.to_string())
    }),
    ("huge show", |neap, pid| {
        let report = json(said(neap, &["huge", "show", "--json", "PID"], pid))?;
        at_least(report["total"]["resident"].as_u64(), &|| report.to_string())
    }),
    ("top", |neap, pid| {
        let text = said(neap, &["top", "--json"], pid)?;
        let report: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let mut all = report.as_array().into_iter().flatten();
        let own = all.find(|of| of["pid"].as_u64() == Some(pid.into())).cloned().unwrap_or_default();
        at_least(own["rss_bytes"].as_u64(), &|| own.to_string())
    }),
    ("profile --heap", |neap, pid| {
        let arguments = ["profile", "--heap", "--pid", "PID", "--interval", "4K", "--duration", "2s"];
        has(said(neap, &arguments, pid), &["hold_rows (librows.so.c", "← work"])
    }),
    ("profile --time", |neap, pid| {
        let arguments = ["profile", "--time", "--pid", "PID", "--duration", "2s"];
        has(said(neap, &arguments, pid), &["hold_rows"])
    }),
    ("pagein", |neap, pid| {
        let arguments = ["pagein", "--pid", "PID", "--duration", "1s", "--format", "table", "-o", "-"];
        has(said(neap, &arguments, pid), &["touch_fresh"])
    }),
];

/// Catches a shape that a command cannot read, or reads without names: all shapes with all commands.
#[test]
fn every_command_reads_every_shape() {
    let neap = Neap::new();
    let Some((program, library)) = programs(&neap) else { return skip("every_command", "needs a C compiler") };
    let look_at = |(shape, needs_root): (&str, bool)| {
        if needs_root && !is_root() {
            skip("every_command", &format!("{shape}: needs root"));
            return Vec::new();
        }
        let shaped = Shaped::start(&neap, &program, &library, shape);
        let failed =
            |(command, check): (&str, Check)| Some(format!("{shape}, {command}: {}", check(&neap, shaped.pid).err()?));
        COMMANDS.into_iter().filter_map(failed).collect::<Vec<String>>()
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let all = SHAPES.map(|shape| scope.spawn(move || look_at(shape)));
        all.into_iter().flat_map(|one| one.join().expect("a look")).collect()
    });
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Catches code that the program compiled itself and that has names in its perf map, but none in a profile.
#[test]
fn compiled_code_has_names() {
    let neap = Neap::new();
    let Some((program, library)) = programs(&neap).filter(|_| cfg!(target_arch = "x86_64")) else {
        return skip("compiled_code_has_names", "needs a C compiler, and x86-64");
    };
    let shaped = Shaped::start(&neap, &program, &library, "compiled");
    let heap = ["profile", "--heap", "--pid", "PID", "--interval", "4K", "--duration", "2s"];
    let named = has(said(&neap, &heap, shaped.pid), &["hold_rows (librows.so.c", "← compiled_code ← work"]);
    let map = PathBuf::from(format!("/tmp/perf-{}.map", shaped.pid));
    let distrusted = is_root().then(|| {
        std::os::unix::fs::chown(&map, Some(12_345), None).expect("it is the program's");
        said(&neap, &heap, shaped.pid)
    });
    let _ = std::fs::remove_file(&map);
    named.expect("names");
    match distrusted {
        Some(text) => {
            let text = text.expect("a profile");
            assert!(!text.contains("compiled_code") && text.contains("Names of compiled code are missing"), "{text}");
        }
        None => skip("compiled_code_has_names", "a map of another user: needs root"),
    }
}

/// Catches a command that says something wrong about a process without memory, or waits for it.
#[test]
fn processes_without_memory_are_named() {
    let neap = Neap::new();
    // It has ended when its output ends.
    let mut zombie = Command::new("true").stdout(Stdio::piped()).spawn().expect("it starts");
    BufReader::new(zombie.stdout.take().expect("a pipe")).read_line(&mut String::new()).expect("its end");
    let status = || std::fs::read_to_string(format!("/proc/{}/status", zombie.id())).unwrap_or_default();
    while !status().contains("State:\tZ") {
        std::thread::yield_now();
    }
    let kernel = std::fs::read_to_string("/proc/2/status").is_ok_and(|text| text.contains("kthreadd")).then_some(2);
    let commands: [&[&str]; 6] = [
        &["why", "PID"],
        &["stats", "PID"],
        &["huge", "show", "PID"],
        &["profile", "--heap", "--pid", "PID", "--duration", "100ms"],
        &["profile", "--time", "--pid", "PID", "--duration", "100ms"],
        &["pagein", "--pid", "PID", "--duration", "100ms"],
    ];
    for (pid, of) in [(Some(zombie.id()), "a zombie"), (kernel, "a thread of the kernel")] {
        let Some(pid) = pid else {
            skip("processes_without_memory", "the threads of the kernel are not in /proc");
            continue;
        };
        for arguments in commands {
            let text = said(&neap, arguments, pid).expect_err(of);
            assert!(text.starts_with("neap: ") && text.lines().count() <= 3, "{of}, {arguments:?}: {text}");
            assert!(text.contains(&pid.to_string()), "{of}, {arguments:?}: {text}");
        }
    }
    let _ = zombie.wait();
}
