//! Builds the programs, runs one plan, watches it, and judges the result.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::asks::Asks;
use super::group::Group;
use super::plan::{Inject, Plan};
use super::pool::Pool;
use crate::place::root;

/// Flags of the programs. Without `-fno-builtin` the compiler may drop malloc and free in pairs.
const FLAGS: &[&str] =
    &["-O1", "-g", "-pthread", "-fno-builtin", "-Wall", "-Wextra", "-Wno-unused-result", "-D_GNU_SOURCE"];
const SOURCES: &[&str] = &[
    "main.c",
    "blocks.c",
    "threads.c",
    "processes.c",
    "system.c",
    "memory.c",
    "changes.c",
    "attributes.c",
    "children.c",
];
/// The file that tests/torture/main.c maps: counters and names of actors.
const BEATS: usize = 64;
const NAME: usize = 24;
/// How often the watcher checks, and for how many checks in a row an actor may stand still, because a machine under
/// load delays both.
const LOOK: Duration = Duration::from_millis(100);
const STILL: u32 = 150;
/// Limit on what strace, the rest at the end and a busy machine may add to the time of a run.
const PATIENCE: Duration = Duration::from_secs(120);
/// Exit status of a program that cannot run here.
const CANNOT: i32 = 77;

/// The result of a run.
pub enum Verdict {
    Passed,
    /// It cannot run here, and why.
    Skipped(String),
    Found(Finding),
}

/// A run that failed.
pub struct Finding {
    /// What was found, in one line.
    pub what: String,
    /// The program's output, and after it the stacks of one that hangs.
    pub output: String,
    /// The file that keeps all of it.
    pub kept: PathBuf,
}

/// Built programs and the library to torture.
pub struct Tools {
    dir: PathBuf,
    library: PathBuf,
    /// The command, if it was built with the library.
    neap: Option<PathBuf>,
    strace: bool,
    runs: AtomicUsize,
}

impl Tools {
    /// Compiles the programs; builds the library if none is given.
    pub fn build(library: Option<&Path>) -> Result<Self> {
        let dir = root().join("target/torture");
        fs::create_dir_all(dir.join("bin"))?;
        let bin = |name: &str| dir.join("bin").join(name);
        compile(SOURCES, &["-ldl"], &bin("torture"))?;
        let wrapped: Vec<&str> = SOURCES.iter().copied().chain(["wrap.c"]).collect();
        compile(&wrapped, &["-ldl"], &bin("wrapped"))?;
        compile(&["plugin.c"], &["-shared", "-fPIC"], &bin("plugin.so"))?;
        compile(&["inject.c"], &[], &bin("inject"))?;
        let (library, neap) = match library {
            Some(path) => (fs::canonicalize(path).with_context(|| format!("no library {}", path.display()))?, None),
            None => {
                build("neap-archive", true)?;
                (build("neap-preload", true)?.join("libneap.so"), Some(build("neap-cli", false)?.join("neap")))
            }
        };
        // A plugin that contains the library's other form, where that was built beside it.
        let archive = library.with_extension("a");
        let _ = fs::remove_file(bin("allocator.so"));
        if archive.exists() {
            let archive = archive.to_string_lossy();
            let flags = ["-shared", "-fPIC", &archive, "-Wl,--exclude-libs,ALL", "-Wl,-Bsymbolic"];
            compile(&["allocator.c"], &flags, &bin("allocator.so"))?;
        }
        let tried = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
        let strace = tried.is_ok_and(|status| status.success());
        Ok(Tools { dir, library, neap, strace, runs: AtomicUsize::new(0) })
    }

    /// Runs a plan for about `seconds`.
    pub fn run(&self, plan: &Plan, seconds: u64) -> Result<Verdict> {
        if matches!(plan.inject, Inject::Strace(_)) && !self.strace {
            return Ok(Verdict::Skipped("strace is not installed or may not trace".into()));
        }
        let asker = match (&self.neap, plan.asked) {
            (_, false) => None,
            (Some(neap), true) => Some(neap),
            (None, true) => return Ok(Verdict::Skipped("no command of the library's build".into())),
        };
        let pool = match plan.pool.then(|| Pool::start(plan.seed)).transpose() {
            Ok(pool) => pool,
            Err(why) => return Ok(Verdict::Skipped(why)),
        };
        // Two runs of one seed may run at the same time.
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let scratch = self.dir.join(format!("run-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch)?;
        let beats = scratch.join("beats");
        fs::write(&beats, vec![0u8; BEATS * (8 + NAME)])?;
        let output = scratch.join("output");
        let file = File::create(&output)?;
        let group = match plan
            .memory
            .map(|limit| Group::new(&format!("neap-torture-{}-{number}", std::process::id()), limit))
        {
            None => None,
            Some(Ok(group)) => Some(group),
            Some(Err(why)) => {
                fs::remove_dir_all(&scratch)?;
                return Ok(Verdict::Skipped(why));
            }
        };
        let mut command = self.command(plan, seconds, &scratch, group.as_ref());
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let prompt = plan.inject == Inject::None;
        let asks = asker.map(|neap| Asks::start(neap, child.id(), &scratch, plan.seed, prompt));
        let end = watch(&mut child, &beats, Duration::from_secs(seconds));
        kill_group(child.id());
        let wrong = asks.and_then(Asks::end);
        drop(pool);
        let text = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
        fs::remove_dir_all(&scratch)?;
        let judgement = match (judge(&end, &text), wrong) {
            (Judgement::Passed, Some(wrong)) => Judgement::Found(wrong),
            (judgement, _) => judgement,
        };
        Ok(match judgement {
            Judgement::Passed => Verdict::Passed,
            Judgement::Cannot => Verdict::Skipped("no notifications of seccomp here".into()),
            Judgement::Found(what) => {
                let kept = self.dir.join(format!("finding-{:x}.txt", plan.seed));
                let output = if let End::Hang(_, stacks) = end { text + &stacks } else { text };
                fs::write(&kept, format!("{}\n{command:?}\n{what}\n{output}", plan.describe()))?;
                Verdict::Found(Finding { what, output, kept })
            }
        })
    }

    /// The command of a plan. The library is preloaded only into the program, not into the injector.
    fn command(&self, plan: &Plan, seconds: u64, scratch: &Path, group: Option<&Group>) -> Command {
        let bin = |name: &str| self.dir.join("bin").join(name);
        let program = bin(if plan.wrapped { "wrapped" } else { "torture" });
        let preload = format!("LD_PRELOAD={}", self.library.display());
        let mut command = match &plan.inject {
            Inject::None => {
                let mut command = group.map_or_else(|| Command::new("env"), |group| group.enter("env"));
                command.arg(preload);
                command
            }
            Inject::Strace(rules) => {
                let mut command = Command::new("strace");
                command.args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none"]);
                for rule in rules {
                    command.arg("-e").arg(format!("inject={rule}"));
                }
                command.arg("-E").arg(preload);
                command
            }
            Inject::Filter(rules) => {
                let mut command = Command::new(bin("inject"));
                command.arg(plan.seed.to_string()).args(rules).arg("--").env("TORTURE_LIBRARY", &self.library);
                command
            }
        };
        command.arg(program).arg(plan.seed.to_string()).arg(seconds.to_string()).arg(scratch.join("beats"));
        command.args(&plan.actors).env_remove("LD_PRELOAD").env("TORTURE_PLUGIN", bin("plugin.so"));
        let allocator = bin("allocator.so");
        if allocator.exists() {
            command.env("TORTURE_ALLOCATOR", allocator);
        }
        if let Some(bytes) = plan.memory {
            command.env("TORTURE_MEMORY", bytes.to_string());
        }
        for (name, value) in &plan.env {
            if value == "@" {
                command.env(name, scratch)
            } else {
                command.env(name, value)
            };
        }
        command
    }
}

fn compile(sources: &[&str], flags: &[&str], to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let done = Command::new(&compiler)
        .current_dir(root().join("tests/torture"))
        .args(FLAGS)
        .args(sources)
        .args(flags)
        .arg("-o")
        .arg(&partial)
        .output()
        .with_context(|| format!("cannot start {}", compiler.to_string_lossy()))?;
    ensure!(done.status.success(), "tests/torture does not compile:\n{}", String::from_utf8_lossy(&done.stderr));
    fs::rename(partial, to)?;
    Ok(())
}

/// Builds a package, for release or for development, which takes less time; returns the folder of what was built.
fn build(package: &str, release: bool) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "-q", "-p", package])
        .args(release.then_some("--release"))
        .current_dir(root())
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "{package} does not build");
    Ok(root().join(if release { "target/release" } else { "target/debug" }))
}

/// How a program ended: its status, or why it was stopped and the stacks of its threads.
enum End {
    Status(std::process::ExitStatus),
    Hang(String, String),
}

/// Waits for the end. A hang is an actor that stands still, or a program that does not end.
fn watch(child: &mut Child, beats: &Path, time: Duration) -> End {
    let start = Instant::now();
    let (mut seen, mut still) = ([0u64; BEATS], [0u32; BEATS]);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return End::Status(status);
        }
        let page = fs::read(beats).unwrap_or_default();
        for (i, bytes) in page.chunks_exact(8).take(BEATS).enumerate() {
            let now = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            still[i] = if now != 0 && now == seen[i] { still[i] + 1 } else { 0 };
            seen[i] = now;
            if still[i] >= STILL {
                let name = page.get(BEATS * 8 + i * NAME..).map_or(&[][..], |rest| &rest[..NAME.min(rest.len())]);
                let name = String::from_utf8_lossy(name);
                let why = format!("HANG: the actor {} stands still", name.trim_end_matches('\0'));
                return End::Hang(why, stacks(child.id()));
            }
        }
        if start.elapsed() > time + PATIENCE {
            return End::Hang("HANG: the program does not end".to_owned(), stacks(child.id()));
        }
        std::thread::sleep(LOOK);
    }
}

/// The threads of all processes of the group: their stacks by gdb, or what the kernel shows if gdb fails.
fn stacks(group: u32) -> String {
    let mut text = String::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        if fields.get(2).and_then(|s| s.parse().ok()) != Some(group) {
            continue;
        }
        text.push_str(&format!("\n-- process {pid}: {}", stat.trim()));
        let tasks = fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten();
        for task in tasks {
            let call = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
            text.push_str(&format!("\n   thread {}: {}", task.file_name().to_string_lossy(), call.trim()));
        }
        let gdb = Command::new("timeout")
            .args(["30", "gdb", "-q", "-batch", "-p", &pid, "-ex", "thread apply all bt 16"])
            .stdin(Stdio::null())
            .output();
        if let Ok(done) = gdb {
            text.push('\n');
            text.push_str(&String::from_utf8_lossy(&done.stdout));
        }
    }
    text
}

fn kill_group(group: u32) {
    // It fails if the group has ended.
    let _ = Command::new("kill").args(["-9", "--", &format!("-{group}")]).stderr(Stdio::null()).status();
}

/// The meaning of a run's end and output.
enum Judgement {
    Passed,
    /// The program cannot run here.
    Cannot,
    /// What was found, in one line.
    Found(String),
}

fn judge(end: &End, output: &str) -> Judgement {
    // If the system refuses memory, the options `prefault` and `guards` cannot get any, and report that; so do
    // `huge=hugetlb` if the pool is empty, and `stats` if its file cannot be opened.
    let expected = |line: &str| {
        line.starts_with("neap: NEAP_PREFAULT=") && line.ends_with("nothing is prefaulted")
            || line.starts_with("neap: huge=hugetlb: the pool has no free page")
            || line.starts_with("neap: NEAP_STATS=/dev/null does not work: ")
            || line == "neap: guards are off: the system refuses their memory"
    };
    let is_complaint = |line: &&str| (line.starts_with("neap: ") && !expected(line)) || line.starts_with("torture: ");
    let complaint = output.lines().find(is_complaint);
    match end {
        End::Hang(why, _) => Judgement::Found(why.clone()),
        End::Status(status) if status.code() == Some(CANNOT) => Judgement::Cannot,
        End::Status(status) => match (complaint, status.success()) {
            (Some(line), _) => Judgement::Found(line.to_owned()),
            (None, false) => Judgement::Found(match status.signal() {
                Some(signal) => format!("CRASH: signal {signal}"),
                None => format!("the program ended with {status}"),
            }),
            (None, true) if output.lines().any(|line| line == "ok") => Judgement::Passed,
            (None, true) => Judgement::Found("the program ended early, with status 0".into()),
        },
    }
}
