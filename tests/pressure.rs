//! Memory pressure by systemd's protocol (`crates/sys/src/helper/pressure.rs`): free memory goes back when the system
//! reports a shortage, even if the program is idle, and the watching thread does not disturb the program.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use neap_tests::sys::{self, TempDir};
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, judge_case, library, suite};

const PROGRAM: Source = Source::new("pressure/pressure.c");

/// "some 200000 2000000" and a zero byte, as systemd writes it.
const WRITE: &str = "c29tZSAyMDAwMDAgMjAwMDAwMAA=";

/// Case, `NEAP_PURGE_DELAY`, and what it would catch.
const CASES: &[(&str, &str, &str)] = &[
    ("fifo", "1h", "waiting memory that stays after a report, or goes back late"),
    ("idle", "500ms", "an idle program that keeps free memory after a report, or that wakes all the time"),
    ("all_files_closed", "1h", "a program that closes what neap watches"),
    ("no_files", "1h", "a file of neap's that the program sees, or its children inherit"),
    ("storm", "1h", "a file that reports all the time, so that the helper takes a whole processor"),
    ("signals", "100ms", "a signal of the program's that the helper takes, or that wakes it all the time"),
    ("socket_", "1h", "a socket that is not connected, or gets bytes other than the variable's"),
    ("socket_closes", "100ms", "a connection that ended and is polled for ever, or is never made again"),
    ("child", "1h", "a child of fork that does not watch, or takes the parent's connection"),
    ("other_user", "100ms", "a watching thread that keeps the old user"),
    ("unshare_", "100ms", "calls that wait for a helper that only watches"),
];

fn main() -> ExitCode {
    let mut cases: Vec<Case> = CASES
        .iter()
        .map(|&(case, delay, catches)| {
            Case::new(format!("pressure::{case}"), catches, move || {
                let dir = TempDir::new("neap-pressure-")?;
                run(case, delay, &dir.join("watched")).map(drop)
            })
        })
        .collect();
    cases.extend([
        Case::new("not_watched::missing", "a missing file that changes what the helper does", || {
            run("not_watched", "100ms", Path::new("/neap-no-such-file")).map(drop)
        }),
        Case::new("not_watched::off", "/dev/null that is watched although it means off", || {
            run("not_watched", "100ms", Path::new("/dev/null")).map(drop)
        }),
        Case::new("not_watched::other_kind", "a file without events that is polled for ever", other_kind),
        Case::new("not_watched::invalid", "values that are no path or no Base64, without a message", invalid),
        // Ignored: for ten seconds afterwards the machine is short of memory for other tests.
        Case::new("pressure::kernel", "reports of the kernel that do nothing", kernel).ignored(),
    ]);
    suite::main(cases)
}

/// Runs a case that watches `file`.
fn run(case: &str, delay: &str, file: &Path) -> Result<Finished, Stop> {
    judge_case(prepared(case, delay)?.env("MEMORY_PRESSURE_WATCH", file).env("MEMORY_PRESSURE_WRITE", WRITE))?
        .no_complaint()
}

/// Without huge pages: otherwise a program that has just grown keeps its helper at work for some seconds. Without a
/// limit: otherwise memory goes back early on a machine that is short of memory.
fn prepared(case: &str, delay: &str) -> Result<Run, Stop> {
    library::require_neap()?;
    Ok(Run::new(PROGRAM.build()?)
        .arg(case)
        .env("NEAP_PURGE_DELAY", delay)
        .env("NEAP_HUGE", "off")
        .env("NEAP_LIMIT", "off"))
}

/// A device, and a file of the kernel that reports an error all the time because nothing was written to it.
fn other_kind() -> Outcome {
    run("not_watched", "100ms", Path::new("/dev/zero"))?;
    let file = "/proc/pressure/memory";
    if fs::read(file).is_ok() {
        judge_case(prepared("not_watched", "100ms")?.env("MEMORY_PRESSURE_WATCH", file))?.no_complaint()?;
    }
    Ok(())
}

fn invalid() -> Outcome {
    for (watch, write) in [("relative", ""), ("/dev/zero", "no Base64")] {
        let run = prepared("not_watched", "100ms")?;
        let done = run.env("MEMORY_PRESSURE_WATCH", watch).env("MEMORY_PRESSURE_WRITE", write).run()?;
        let said = done.stderr.matches("neap: MEMORY_PRESSURE_WATCH or MEMORY_PRESSURE_WRITE is invalid; use ").count();
        if said != 1 || !done.stdout.contains("ok") {
            return Err(done.fail("one line was expected, and a program that goes on"));
        }
    }
    Ok(())
}

/// Tasks in a cgroup whose limit is smaller than the file that they write wait for memory.
fn kernel() -> Outcome {
    let file = Path::new("/proc/pressure/memory");
    if !sys::is_root() || fs::read(file).is_err() {
        return Err(Stop::Skip("needs root, and a kernel with pressure stall information".into()));
    }
    let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    let made = roots.iter().find_map(|(root, limit)| {
        let group = Path::new(root).join(format!("neap-pressure-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let limited = fs::write(group.join(limit), (16 << 20).to_string()).is_ok();
        limited.then_some(group.clone()).or_else(|| fs::remove_dir(&group).ok().and(None))
    });
    let Some(group) = made else { return Err(Stop::Skip("cannot make a cgroup with a memory limit".into())) };
    let dir = TempDir::new("neap-pressure-")?;
    let large = dir.join("large");
    let stalls =
        "echo $$ > \"$1\"/cgroup.procs; while :; do dd if=/dev/zero of=\"$2\" bs=1M count=64 2> /dev/null; done";
    let child = Command::new("/bin/sh").args(["-c", stalls, "sh"]).arg(&group).arg(&large).stdin(Stdio::null()).spawn();
    // "some 1000 2000000": tasks that waited for 1 ms in 2 s.
    let result = prepared("kernel", "1h").and_then(|run| {
        let run = run.env("MEMORY_PRESSURE_WATCH", file).env("MEMORY_PRESSURE_WRITE", "c29tZSAxMDAwIDIwMDAwMDAA");
        judge_case(run)?.no_complaint()
    });
    if let Ok(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
    for _ in 0..100 {
        // The shell's last program may still be in it, for a moment.
        if fs::remove_dir(&group).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let done = result?;
    print!("{}", done.stdout);
    Ok(())
}
