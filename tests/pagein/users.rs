//! Users and systems that do not permit everything.

use std::path::{Path, PathBuf};

use neap_tests::command::neap;
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, expect, install, program};

use crate::trace::ODD;

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("user::nobody", "an ordinary user who gets no faults", nobody),
        Case::new(
            "user::denied",
            "a program that does not run, or a trace without a message, where events are denied",
            denied,
        ),
        Case::new("user::setuid", "a set-user-id program that is run without a trace", setuid),
    ]
}

/// Copies a program to where every user may run it.
fn for_everybody(from: &Path, name: &str) -> Result<PathBuf, Stop> {
    let copy = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    install(from, &copy)?;
    Ok(copy)
}

/// Runs `neap pagein` as an ordinary user on a copy of `odd.c` with this mode; returns the path of the copy too.
fn by_nobody(name: &str, mode: &str) -> Result<(Finished, PathBuf), Stop> {
    let setpriv = as_root("setpriv")?;
    let tool = for_everybody(neap()?, &format!("neap-{name}"))?;
    let odd = for_everybody(&ODD.build()?, &format!("odd-{name}"))?;
    Run::new("chmod").arg(mode).arg(&odd).plain().run()?.success()?;
    let done = Run::new(setpriv)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&tool)
        .args(["pagein", "-o", "-", "--"])
        .arg(&odd)
        .arg("touch")
        .plain()
        .run();
    let _ = (std::fs::remove_file(&tool), std::fs::remove_file(&odd));
    Ok((done?, odd))
}

fn nobody() -> Outcome {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if level.trim().parse::<i32>().is_ok_and(|level| level > 2) {
        return Err(Stop::Skip("ordinary users are denied perf events here".into()));
    }
    let done = by_nobody("nobody", "755")?.0.success()?;
    expect(done.stdout.lines().count() > 1000 && done.stdout.contains("by perf events"), &done, "too few faults")
}

fn as_root(name: &str) -> Result<PathBuf, Stop> {
    if neap_tests::is_root() { program(name) } else { Err(Stop::Skip("only root may become another user".into())) }
}

/// A filter that refuses `perf_event_open`, then the command.
const DENY: &str = "pagein/deny.c";

fn denied() -> Outcome {
    let deny = Source::new(DENY).build()?;
    let done = Run::new(deny)
        .arg(neap()?)
        .args(["pagein", "-o", "-", "--format", "table", "--"])
        .arg(ODD.build()?)
        .arg("works")
        .plain()
        .run()?
        .success()?;
    for words in ["by page table scans", "perf events are denied here", "for the full view: ", "odd-"] {
        expect(done.stdout.contains(words), &done, &format!("no {words:?}"))?;
    }
    expect(done.stdout.lines().filter(|line| line.contains(" anon?")).count() > 5000, &done, "too few pages")
}

fn setuid() -> Outcome {
    let (done, odd) = by_nobody("setuid", "4755")?;
    if done.status.success() {
        return Err(Stop::Skip(format!("set-user-id has no effect at {}", odd.display())));
    }
    expect(done.status.code() == Some(126) && done.stderr.contains("set-user-id"), &done, "the wrong refusal")
}
