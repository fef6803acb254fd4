//! Users and systems that do not permit everything.

use std::path::{Path, PathBuf};
use std::time::Duration;

use neap_tests::command::neap;
use neap_tests::{Case, Outcome, Run, Source, Stop, program};

use crate::expect;
use crate::trace::ODD;

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("user::nobody", "an ordinary user who sees nothing", nobody),
        Case::new(
            "user::denied",
            "a program that is not run, or a trace without a word, where events are denied",
            denied,
        ),
        Case::new("user::setuid", "a set-user-id program that is run without a trace", setuid),
    ]
}

/// Copies a program to where everybody may run it.
fn for_everybody(from: &Path, name: &str) -> Result<PathBuf, Stop> {
    let copy = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    std::fs::copy(from, &copy)?;
    Run::new("chmod").arg("755").arg(&copy).plain().run()?.success()?;
    Ok(copy)
}

fn nobody() -> Outcome {
    let setpriv = as_root("setpriv")?;
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if level.trim().parse::<i32>().is_ok_and(|level| level > 2) {
        return Err(Stop::Skip("ordinary users are denied perf events here".into()));
    }
    let (tool, odd) = (for_everybody(neap()?, "neap-nobody")?, for_everybody(&ODD.build()?, "odd-nobody")?);
    let done = Run::new(setpriv)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&tool)
        .args(["pagein", "-o", "-", "--"])
        .arg(&odd)
        .arg("touch")
        .plain()
        .run();
    let _ = (std::fs::remove_file(&tool), std::fs::remove_file(&odd));
    let done = done?.success()?;
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
        .timeout(Duration::from_secs(30))
        .plain()
        .run()?
        .success()?;
    for words in ["by page table scans", "perf events are denied here", "for the full view: ", "odd-"] {
        expect(done.stdout.contains(words), &done, &format!("no {words:?}"))?;
    }
    expect(done.stdout.lines().filter(|line| line.contains(" anon?")).count() > 5000, &done, "too few pages")
}

fn setuid() -> Outcome {
    let setpriv = as_root("setpriv")?;
    let (tool, odd) = (for_everybody(neap()?, "neap-setuid")?, for_everybody(&ODD.build()?, "odd-setuid")?);
    Run::new("chmod").arg("4755").arg(&odd).plain().run()?.success()?;
    let done = Run::new(setpriv)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&tool)
        .args(["pagein", "-o", "-", "--"])
        .arg(&odd)
        .arg("touch")
        .plain()
        .run();
    let nosuid = odd.clone();
    let _ = (std::fs::remove_file(&tool), std::fs::remove_file(&odd));
    let done = done?;
    if done.status.success() {
        return Err(Stop::Skip(format!("set-user-id has no effect at {}", nosuid.display())));
    }
    expect(done.status.code() == Some(126) && done.stderr.contains("set-user-id"), &done, "the wrong refusal")
}
