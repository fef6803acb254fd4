//! Faults that neap cannot see, or that the kernel does not count, and how the footer explains them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use neap_tests::command::{neap, need_events};
use neap_tests::sys::TempDir;
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, expect, program};

use crate::started::{HARD, Started};
use crate::trace::{ODD, Trace, words};

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("user::second", "a second trace of the same user without events", second),
        Case::new("user::many", "a wrong cause or remedy where a user has many traces", many),
        Case::new("user::setuid_child", "a program whose trace the kernel ended, without a message", setuid_child),
        Case::new("user::unreadable", "an unreadable program that runs without a trace", unreadable),
        Case::new("life::reaped", "children that are not waited for, blamed on refused faults", reaped),
        Case::new("exact::sandbox", "a child whose own filter kills it for a call of neap's", sandbox),
        Case::new("scan::differences", "a difference that scans cause, without a reason", scans),
        Case::new(
            "scan::short",
            "a program without a last scan, or pages that did not fault shown as faults",
            scan_short,
        ),
        Case::new(
            "scan::leaves",
            "neap that waits for processes that the program leaves, or leaves them stopped",
            scan_leaves,
        ),
        Case::new(
            "scan::leaves_forks",
            "a process that stays stopped because it was forked when the program ended",
            || (0..2).try_for_each(|_| scan_leaves_forks()),
        ),
        Case::new("scan::signals", "a program that is stopped for ever by a signal at its start", scan_signals),
        Case::new("scan::running", "pages that a process had before shown as faults", scan_running),
    ]
}

/// An ordinary user, and a folder with what that user runs. A new user for each test: the traces of one user together
/// are limited.
struct Nobody {
    user: u32,
    dir: TempDir,
    setpriv: PathBuf,
}

impl Nobody {
    fn new() -> Result<Self, Stop> {
        if !neap_tests::is_root() {
            return Err(Stop::Skip("only root may become another user".into()));
        }
        let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
        if level.trim().parse::<i32>().is_ok_and(|level| level > 2) {
            return Err(Stop::Skip("ordinary users are denied perf events here".into()));
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Other tests on this machine get other users, as far as a container's range of numbers allows.
        let user = 40_000 + (std::process::id() * 8 + NUMBER.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let made = Self { user, dir: TempDir::new("neap-nobody-")?, setpriv: program("setpriv")? };
        Run::new("chmod").arg("755").arg(made.dir.path()).plain().run()?.success()?;
        made.has(neap()?, "neap", "755")?;
        made.has(&ODD.build()?, "odd", "755")?;
        Ok(made)
    }

    fn has(&self, from: &Path, name: &str, mode: &str) -> Outcome {
        Run::new("install").args(["-m", mode]).arg(from).arg(self.dir.join(name)).plain().run()?.success()?;
        Ok(())
    }

    /// The command line that runs `neap pagein -o -` as this user, who may lock no memory beyond what traces get.
    fn words(&self) -> Vec<PathBuf> {
        let (user, group) = (format!("--reuid={}", self.user), format!("--regid={}", self.user));
        let who = [&user, &group, "--clear-groups", "prlimit", "--memlock=0"].map(PathBuf::from);
        let what = ["pagein", "-o", "-", "--"].map(PathBuf::from);
        who.into_iter().chain([self.dir.join("neap")]).chain(what).collect()
    }

    fn trace(&self, command: &[&str]) -> Result<Finished, Stop> {
        Run::new(&self.setpriv).args(self.words()).args(command).dir(self.dir.path()).plain().run()
    }

    /// A trace that goes on until it is dropped.
    fn trace_on(&self) -> Result<Started, Stop> {
        let mut command = Command::new(&self.setpriv);
        let mut neap =
            Started::new(command.args(self.words()).args(["./odd", "interrupt"]).current_dir(self.dir.path()))?;
        neap.line()?;
        Ok(neap)
    }
}

fn second() -> Outcome {
    let nobody = Nobody::new()?;
    let _first = nobody.trace_on()?;
    let done = nobody.trace(&["./odd", "touch"])?.success()?;
    expect(
        done.stdout.contains("by perf events, user mode only") && done.stdout.lines().count() > 1000,
        &done,
        "no events",
    )
}

fn many() -> Outcome {
    let nobody = Nobody::new()?;
    let mut others = Vec::new();
    // The first trace takes half of what the user may have, the next half of the rest: a ring has at least 64 KiB.
    for _ in 0..12 {
        let done = nobody.trace(&["./odd", "touch"])?.success()?;
        if done.stdout.contains("by page table scans") {
            let cause = done.stdout.contains("this user's other traces have it");
            let remedy = done.stdout.contains("for the full view: sudo sysctl kernel.perf_event_mlock_kb=");
            return expect(cause && remedy, &done, "the wrong cause or remedy");
        }
        others.push(nobody.trace_on()?);
    }
    Err(Stop::Skip("a user may have more memory for traces here than a dozen take".into()))
}

fn setuid_child() -> Outcome {
    let nobody = Nobody::new()?;
    nobody.has(&ODD.build()?, "raised", "4755")?;
    let done = nobody.trace(&["sh", "-c", "./raised touch; true"])?.success()?;
    let seen = done.stdout.lines().filter(|line| line.contains("/raised)")).count();
    if seen > 900 {
        return Err(Stop::Skip("set-user-id has no effect here".into()));
    }
    let named = done.stdout.contains("# missing: the faults of raised (process ");
    expect(named && done.stdout.contains(" of processes that could not be traced"), &done, "no word of it")
}

fn unreadable() -> Outcome {
    let nobody = Nobody::new()?;
    nobody.has(&ODD.build()?, "secret", "711")?;
    let done = nobody.trace(&["./secret", "touch"])?;
    let said = done.stderr.contains("it may be executed, but not read");
    expect(done.status.code() == Some(126) && said, &done, "it should not have run")
}

fn reaped() -> Outcome {
    need_events()?;
    for detail in ["begin", "full"] {
        let trace = Trace::of(&["--detail", detail], &words(&HARD.build()?, &["reaped"]))?;
        let (unwaited, refused) = ("of processes that were not waited for", "refused or not completed");
        // Without kernel mode, the difference also contains faults in kernel mode.
        let right = trace.difference(unwaited) <= -900 && trace.difference(refused).abs() < 100;
        if !right || trace.says("not explained") {
            return Err(trace.fail("children are blamed on something else"));
        }
    }
    Ok(())
}

fn sandbox() -> Outcome {
    need_events()?;
    let trace = Trace::of(&["--exact"], &words(&HARD.build()?, &["sandbox"]))?;
    if trace.done.status.code() != Some(5) || !trace.says("stayed on in 1 processes") {
        return Err(trace.fail("the child did not end as it wanted to"));
    }
    Ok(())
}

/// Programs that end before a second scan, one whose pages are nearly all files', and children.
fn scan_short() -> Outcome {
    let odd = ODD.build()?;
    let odd = odd.to_string_lossy();
    for command in [&["true"][..], &["sleep", "0.1"], &[&odd, "touch"], &[&odd, "forks"], &[&odd, "signal"]] {
        let done = scanned(&["-o", "-", "--format", "json", "--"], command)?;
        let trace: serde_json::Value = serde_json::from_str(&done.stdout).map_err(std::io::Error::from)?;
        let number = |value: &serde_json::Value| value.as_i64().unwrap_or(0);
        let summary = &trace["summary"];
        let seen = number(&summary["faults"]);
        let differences = summary["differences"].as_array().into_iter().flatten();
        let before = differences
            .filter(|difference| ["before-exec", "arguments"].contains(&difference["cause"].as_str().unwrap_or("")))
            .map(|difference| number(&difference["count"]));
        let counted = number(&summary["usage"]["minor"]) + number(&summary["usage"]["major"]) - before.sum::<i64>();
        // A page that is read first and then written faults twice; children of a fork copy pages that they had.
        let most = if command.contains(&"forks") { counted / 4 } else { counted / 6 };
        let near = counted > 20 && (counted - seen).abs() <= most;
        expect(near, &done, &format!("{command:?}: {seen} faults of {counted}"))?;
    }
    Ok(())
}

fn scan_running() -> Outcome {
    let mut sleep = Command::new("sleep").arg("60").spawn()?;
    // Its own pages are resident when it sleeps.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pid = sleep.id().to_string();
    let done = scanned(&["-o", "-", "--pid", &pid, "--duration", "200ms"], &[]);
    sleep.kill()?;
    sleep.wait()?;
    let done = done?.success()?;
    expect(done.stdout.contains("pagein: 0 faults, by page table scans"), &done, "it touched nothing")
}

fn scan_leaves() -> Outcome {
    let program = HARD.build()?;
    let mut command = denied()?;
    let mut neap = Started::new(command.args(["-o", "/dev/null", "--"]).arg(program).arg("leaves"))?;
    let begun = Instant::now();
    let status = neap.end()?;
    let waited = begun.elapsed();
    // All of them hold the pipe until they end.
    neap.line()?;
    if !status.success() || waited > Duration::from_millis(1700) {
        return Err(Stop::Fail(format!("{status:?} after {waited:?}")));
    }
    if begun.elapsed() > Duration::from_secs(10) {
        return Err(Stop::Fail(format!("what it left went on after {:?}", begun.elapsed())));
    }
    Ok(())
}

/// While nothing reads its output, neap does not end, and the processes it still follows stay stopped. The fault shows
/// in few runs: the process must fork at that moment.
fn scan_leaves_forks() -> Outcome {
    let program = HARD.build()?;
    let dir = TempDir::new("neap-leaves-")?;
    let fifo = dir.join("trace");
    Run::new("mkfifo").arg(&fifo).plain().run()?.success()?;
    let reader = std::fs::File::options().read(true).write(true).open(&fifo)?;
    let mut command = denied()?;
    command.arg("-o").arg(&fifo).args(["--format", "json", "--"]).arg(program).arg("leaves_forks");
    let mut neap = Started::new(&mut command)?;
    let said = neap.line()?;
    let is_writing = neap.ended()?.is_none();
    drop(reader);
    if said != "goes on" || !is_writing {
        return Err(Stop::Fail(format!("{said:?}, neap still writes: {is_writing}")));
    }
    Ok(())
}

/// The program gets signals from its first moment on, also before neap's child has executed the program.
fn scan_signals() -> Outcome {
    for run in 0..10 {
        let mut command = denied()?;
        let mut neap = Started::new(command.args(["-o", "/dev/null", "--", "true"]).process_group(0))?;
        let begun = Instant::now();
        let status = loop {
            neap.signal_group(libc::SIGWINCH);
            match neap.ended()? {
                Some(status) => break status,
                None if begun.elapsed() > Duration::from_secs(20) => {
                    neap.signal_group(libc::SIGKILL);
                    return Err(Stop::Fail(format!("run {run} does not end")));
                }
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        };
        if !status.success() {
            return Err(Stop::Fail(format!("run {run}: {status:?}")));
        }
    }
    Ok(())
}

/// `neap pagein` where events are denied, without its arguments.
fn denied() -> Result<Command, Stop> {
    let mut command = Command::new(Source::new("pagein/deny.c").build()?);
    command.arg(neap()?).arg("pagein");
    Ok(command)
}

/// `neap pagein` where events are denied.
fn scanned(options: &[&str], command: &[&str]) -> Result<Finished, Stop> {
    let deny = Source::new("pagein/deny.c").build()?;
    Run::new(&deny).arg(neap()?).arg("pagein").args(options).args(command).plain().run()
}

/// Pages that come and go fault often.
fn scans() -> Outcome {
    let odd = ODD.build()?;
    let done = scanned(&["-o", "-", "--"], &[&odd.to_string_lossy(), "many"])?.success()?;
    let counts = done.stdout.lines().find(|line| line.contains("the kernel counts")).unwrap_or_default();
    expect(counts.contains("between scans"), &done, &format!("{counts:?} has no reason"))?;
    // Children that end one after the other and are reaped; then one that is left running.
    for (script, left) in
        [("sleep 0.2; sleep 0.2; true", None), ("sleep 5 > /dev/null 2>&1 & sleep 1", Some("missing: 1 of its"))]
    {
        let done = scanned(&["-o", "-", "--"], &["sh", "-c", script])?.success()?;
        let said = done.stdout.lines().find(|line| line.contains("still running when the program ended"));
        let fits =
            said.is_some_and(|line| left.is_some_and(|words| line.contains(words))) || said.is_none() && left.is_none();
        let waited = left.is_some() || !done.stdout.contains("were not waited for");
        expect(fits && waited, &done, "children that have ended are said to run, or one that runs is not")?;
    }
    Ok(())
}
