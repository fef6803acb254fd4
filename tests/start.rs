//! What neap adds to the start of a program, compared with the C library's malloc: system calls and page faults. The
//! cost of loading any library is measured with one that does nothing.

use std::path::Path;
use std::process::ExitCode;

use neap_tests::{Case, Outcome, Run, Source, Stop, library, suite};

const ONE: Source = Source::new("start/one.c");
const NOTHING: Source = Source::with_flags("start/nothing.c", &["-shared", "-fPIC"]);

/// Number of runs of which the fewest faults count: the number depends on where the kernel puts the mappings.
const RUNS: usize = 40;

/// Rounds of [`RUNS`] before a start counts as having too many faults: the minimum is rare, one run in 50 to 200.
const ROUNDS: usize = 8;

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("system_calls::without_a_block", CALLS, || calls("nothing", 2)),
        // Six of them keep what neap reserves out of core dumps, and put into them what comes into use.
        Case::new("system_calls::of_one_block", CALLS, || calls("block", 15)),
        Case::new("system_calls::of_pressure", CALLS, || {
            // Nothing is watched before there is a helper.
            calls_with("block", 15, &["-E", "MEMORY_PRESSURE_WATCH=/proc/pressure/memory"])
        }),
        Case::new("faults::without_a_block", FAULTS, || faults("nothing", 7)),
        Case::new("faults::of_one_block", FAULTS, || faults("block", 16)),
    ])
}

const CALLS: &str = "Catches a start that makes more system calls.";
const FAULTS: &str = "Catches a start that touches more OS pages.";

/// Checks that a start makes at most `most` system calls more than one with a library that does nothing.
fn calls(case: &str, most: usize) -> Outcome {
    calls_with(case, most, &[])
}

/// The same with more options of strace.
fn calls_with(case: &str, most: usize, options: &[&str]) -> Outcome {
    let program = ONE.build()?;
    let strace = neap_tests::strace()?;
    let count = |library: &Path| -> Result<(usize, String), Stop> {
        let preload = format!("LD_PRELOAD={}", library.display());
        let run = Run::new(&strace)
            .args(["-qq", "-e", "signal=none", "-o", "/dev/stderr", "-E", &preload])
            .args(options)
            .plain();
        let text = run.arg(&program).arg(case).run()?.success()?.stderr;
        Ok((text.lines().filter(|line| !line.contains("exit_group(")).count(), text))
    };
    let ((neap, text), (least, _)) = (count(library::require_neap()?)?, count(&NOTHING.build()?)?);
    if neap <= least + most { Ok(()) } else { Err(Stop::Fail(format!("{neap} calls, {least} without neap:\n{text}"))) }
}

/// Checks that a start has at most `most` page faults more than one with a library that does nothing.
fn faults(case: &str, most: u64) -> Outcome {
    let program = ONE.build()?;
    let least = |library: &Path| -> Result<u64, Stop> {
        let mut least = u64::MAX;
        for _ in 0..RUNS {
            let done = Run::new(&program).preload(Some(library.to_owned())).arg(case).run()?.success()?;
            least = least.min(done.stdout.trim().parse().map_err(|_| done.fail("no number"))?);
        }
        Ok(least)
    };
    let (own, nothing) = (library::require_neap()?, NOTHING.build()?);
    let (mut neap, mut other) = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        neap = neap.min(least(own)?);
        other = other.min(least(&nothing)?);
        if neap <= other + most {
            break;
        }
    }
    println!("{case}: {neap} page faults with neap, {other} with a library that does nothing");
    if neap <= other + most { Ok(()) } else { Err(Stop::Fail(format!("{neap} page faults, {other} without neap"))) }
}
