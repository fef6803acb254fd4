//! Ten million faults. Run only with `NEAP_SOAK` or `-- --ignored`, because they take minutes.

use std::io::Read;
use std::process::{Command, Stdio};

use neap_tests::command::{neap_release, need_events};
use neap_tests::{Case, Outcome, Stop};

use crate::trace::ODD;

/// Limit on neap's own memory.
const PEAK_MIB: i64 = 500;

/// The tests.
pub fn cases() -> Vec<Case> {
    let soak = |name: &'static str, catches, case: &'static str, rounds, options: &'static [&'static str]| {
        Case::new(format!("soak::{name}"), catches, move || bounded(case, rounds, options)).soak().exclusive()
    };
    const FOLDED: &[&str] = &["--format", "folded"];
    const FULL: &[&str] = &["--format", "csv"];
    vec![
        soak("begin", "memory that grows with the faults, or faults that are lost", "many", 10_000, FOLDED),
        soak("full", "the same with the ends of faults", "many", 10_000, FULL),
        soak("maps", "memory that grows with each mmap and munmap", "churn", 3_000_000, FULL),
    ]
}

/// Runs a case of `odd.c` with at least 3 million faults, and checks neap's own peak.
fn bounded(case: &str, rounds: u64, options: &[&str]) -> Outcome {
    need_events()?;
    let mut child = Command::new(neap_release()?)
        .args(["pagein", "-o", "/dev/null"])
        .args(options)
        .arg("--")
        .arg(ODD.build()?)
        .args([case, &rounds.to_string()])
        .stderr(Stdio::piped())
        .spawn()?;
    let mut footer = String::new();
    if let Some(mut errors) = child.stderr.take() {
        errors.read_to_string(&mut footer)?;
    }
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both are writable, and the child was not waited for.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    // SAFETY: zeros are a value of it, and wait4 wrote it.
    let peak = unsafe { usage.assume_init() }.ru_maxrss / 1024;
    let first = footer.lines().find(|line| line.starts_with("# neap "));
    let faults = first.and_then(|line| line.split(' ').find_map(|word| word.parse::<u64>().ok())).unwrap_or(0);
    neap_tests::suite::note(format!("soak, {case}, {options:?}: {faults} faults, neap {peak} MiB at most"));
    let enough = faults >= if case == "many" { rounds * 1000 } else { rounds };
    if waited < 0 || status != 0 || !enough || peak > PEAK_MIB || !footer.contains("# lost: 0") {
        return Err(Stop::Fail(format!("status {status}, {faults} faults, {peak} MiB at most\n{footer}")));
    }
    Ok(())
}
