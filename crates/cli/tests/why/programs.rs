//! Real programs: each with what its account must name. The table is `list.rs`.

#[path = "list.rs"]
mod list;

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::list::{PROGRAMS, Program};
use super::{MIB, check_sum, of, rss};
use crate::common::{Neap, skip};

/// How long a program may take until it is at rest.
const LONGEST: Duration = Duration::from_secs(90);

/// A program at rest, with what it has started.
struct AtRest {
    child: Child,
    folder: PathBuf,
    /// Kept open: many programs end with their input.
    _input: ChildStdin,
}

impl AtRest {
    fn start(neap: &Neap, program: &Program) -> Result<AtRest, String> {
        // A library whose path has a space cannot be preloaded.
        let folder = neap.path(&program.name.replace(' ', "-"));
        fs::create_dir(&folder).expect("a folder");
        for (name, text) in program.files {
            fs::write(folder.join(name), text).expect("writable");
        }
        // Servers that refuse to run as root have a folder of another user's in it.
        fs::set_permissions(neap.dir.path(), fs::Permissions::from_mode(0o711)).expect("chmod");
        let log = fs::File::create(folder.join("log")).expect("a file");
        let mut command = Command::new("sh");
        command.args(["-e", "-c", program.script]).current_dir(&folder).env("NEAP", env!("CARGO_BIN_EXE_neap"));
        command.env_remove("LD_PRELOAD").env("HOME", &folder).env("GOPATH", folder.join("go")).env("LC_ALL", "C");
        command.env("GOCACHE", std::env::temp_dir().join("neap-tests-go-cache"));
        command.stdin(Stdio::piped()).stdout(log.try_clone().expect("a file")).stderr(log).process_group(0);
        let mut child = command.spawn().expect("sh starts");
        let mut input = child.stdin.take().expect("it is a pipe");
        let text = program.input.repeat(program.times);
        // One that does not read it all has ended: that is seen next.
        let _ = input.write_all(text.as_bytes()).and_then(|()| input.flush());
        let mut started = AtRest { child, folder: folder.clone(), _input: input };
        match started.wait(program, &folder) {
            Ok(()) => Ok(started),
            Err(why) => Err(format!("{why}: {}", fs::read_to_string(folder.join("log")).unwrap_or_default())),
        }
    }

    /// Waits until it is the program, has been fed, and its memory stays as it is for a second.
    fn wait(&mut self, program: &Program, folder: &Path) -> Result<(), String> {
        let (began, mut sizes, mut fed) = (Instant::now(), Vec::new(), program.socket.is_empty());
        while began.elapsed() < LONGEST {
            std::thread::sleep(Duration::from_millis(200));
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("it ended: {status}"));
            }
            let comm = fs::read_to_string(format!("/proc/{}/comm", self.child.id())).unwrap_or_default();
            if !comm.starts_with(program.comm) {
                continue;
            }
            if !fed {
                fed = feed(&folder.join(program.socket), program.request);
                continue;
            }
            sizes.push(self.all().into_iter().map(resident).sum::<u64>());
            if let [.., a, b, c, d, e] = sizes[..]
                && [a, b, c, d].iter().all(|size| size.abs_diff(e) * 200 <= e)
            {
                return Ok(());
            }
        }
        Err("it comes to no rest".to_owned())
    }

    /// The process and all below it.
    fn all(&self) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // Behind the name, which may have anything in it: state, parent.
            let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect::<Vec<_>>();
            if let [state, parent, ..] = fields[..]
                && state != "Z"
            {
                children.entry(parent.parse().unwrap_or(0)).or_default().push(pid);
            }
        }
        let (mut all, mut at) = (vec![self.child.id()], 0);
        while at < all.len() {
            all.extend(children.remove(&all[at]).unwrap_or_default());
            at += 1;
        }
        all
    }
}

impl Drop for AtRest {
    fn drop(&mut self) {
        let mut all = self.all();
        let end = |pid: u32, number: i32| {
            // SAFETY: kill takes two numbers. The processes are this test's own, or have just ended.
            unsafe { libc::kill(pid as i32, number) };
        };
        end(all[0], libc::SIGTERM);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) && !matches!(self.child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let is_child = |pid: &u32| Path::new(&format!("/proc/{pid}/fd")).exists();
        all.retain(is_child);
        all.into_iter().for_each(|pid| end(pid, libc::SIGKILL));
        let _ = self.child.wait();
    }
}

fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Sends a server many requests; false if it does not listen yet.
fn feed(socket: &Path, request: &str) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut reader = stream.try_clone().expect("a socket");
    let answers = std::thread::spawn(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).map(|_| all.len())
    });
    for number in 0..50_000 {
        let text = request.replace("NUMBER", &number.to_string());
        stream.write_all(text.as_bytes()).expect("it reads requests");
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    answers.join().is_ok()
}

/// The account of one process of a program, and a line for the table.
fn account(neap: &Neap, name: &str, pid: u32) -> Option<Value> {
    let before = rss(pid);
    let output = neap.output(["why", "--json", &pid.to_string()]);
    if !output.status.success() {
        return None;
    }
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check_sum(&report);
    let after = rss(pid);
    let accounts = report["accounts"].as_array().expect("accounts");
    let sum: u64 = accounts.iter().map(|account| account["bytes"].as_u64().expect("bytes")).sum();
    let off = if (before.min(after)..=before.max(after)).contains(&sum) { 0 } else { sum.abs_diff(after) };
    assert!(off * 50 <= after, "{name} ({pid}): {sum}, the kernel has {before} and {after}: {report:#}");
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let names = report["allocators"].as_array().expect("names").iter().filter_map(Value::as_str);
    eprintln!(
        "| {name} | {:.1} | {:.1} | {:.2} % | {} | {:.1} | {:.1} | {:.1} |",
        mib(after),
        mib(sum),
        100.0 * sum.abs_diff(after) as f64 / after as f64,
        names.collect::<Vec<_>>().join(", "),
        mib(of(&report, "runtime-heap")),
        mib(of(&report, "heap-live")),
        mib(of(&report, "heap-free")),
    );
    Some(report)
}

/// What Redis says that jemalloc has handed out: live bytes must be that within 2 %.
fn check_redis(socket: &Path, report: &Value) {
    let (mut stream, mut text) = (UnixStream::connect(socket).expect("it listens"), String::new());
    stream.write_all(b"INFO memory\r\nQUIT\r\n").expect("it reads requests");
    stream.read_to_string(&mut text).expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix("allocator_allocated:")).expect("a figure");
    let (said, live) = (line.trim().parse::<u64>().expect("a number"), super::live_of(report, "jemalloc"));
    eprintln!("jemalloc in redis-server: {said} allocated, {live} live");
    assert!(live.abs_diff(said) * 50 <= said, "{live}, not {said}");
}

/// Looks at a program and all that it starts; why it was left out.
fn look(neap: &Neap, program: &Program) -> Result<(), String> {
    let has = |name: &&&str| {
        let script = format!("command -v {name} || ls {name}");
        !Command::new("sh").args(["-c", &script]).output().is_ok_and(|output| output.status.success())
    };
    if let Some(missing) = program.needs.iter().find(has) {
        return Err(format!("{missing} is not installed"));
    }
    let started = AtRest::start(neap, program)?;
    let all = started.all();
    let report = account(neap, program.name, all[0]).expect("it still runs");
    let names = report["allocators"].as_array().expect("names").iter();
    let known = names.filter_map(Value::as_str).any(|name| name.starts_with(program.allocator));
    assert!(known || program.allocator.is_empty(), "{}: no {}: {report:#}", program.name, program.allocator);
    let (kind, least) = program.most;
    let found = of(&report, kind) / MIB;
    assert!(found >= least, "{}: {found} MiB of {kind}, not {least}: {report:#}", program.name);
    if program.name == "redis-server" {
        check_redis(&started.folder.join(program.socket), &report);
    }
    for pid in &all[1..] {
        // A child may have ended.
        let _ = account(neap, &format!("{}, child", program.name), *pid);
    }
    Ok(())
}

/// Looks at all of them, so that one does not hide what others have; how many there are.
fn look_at(programs: impl Iterator<Item = &'static Program>) -> usize {
    let (neap, mut looked, mut failed) = (Neap::new(), 0, Vec::new());
    for program in programs {
        match std::panic::catch_unwind(AssertUnwindSafe(|| look(&neap, program))) {
            Ok(Ok(())) => looked += 1,
            Ok(Err(why)) => skip("real programs", &format!("{}: {why}", program.name)),
            Err(_) => failed.push(program.name),
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    looked
}

/// Catches programs of which the accounts do not add up, or whose runtime is not named.
#[test]
fn a_few_add_up() {
    look_at(PROGRAMS.iter().filter(|program| program.quick));
}

/// Catches the same in all programs of the list.
#[test]
#[ignore = "starts databases, browsers, virtual machines: minutes"]
fn all_add_up() {
    let looked = look_at(PROGRAMS.iter());
    assert!(looked >= 25, "{looked} of {} programs: tests/setup.sh installs them", PROGRAMS.len());
}
