//! Signal handlers that allocate, resize and free, whatever they interrupt; and fork beside them.

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, judge_case, library, suite};

const STORM: Source = Source::new("signals/storm.c");
const STEP: Source = Source::new("signals/step.c");
const CRASH: Source = Source::new("signals/crash.c");
const FORK_LATENCY: Source = Source::new("signals/fork_latency.c");
/// The library that a storm loads and unloads, by the variable DSO.
const DSO: Source = Source::with_flags("life/dso.c", &["-shared"]);

/// Storms: name, threads, the letters of `storm.c`, and what the case would catch.
const STORMS: &[(&str, u32, &str, &str)] = &[
    ("one_thread", 1, "", "a handler that waits for its own thread, or sees its heap half changed"),
    ("two_threads", 2, "", "the same, where blocks also go between threads"),
    ("four_threads", 4, "", "the same with more threads than processors"),
    ("eight_threads", 8, "", "the same with eight"),
    ("fast_paths", 2, "k", "a fast path that breaks when a handler interrupts it"),
    ("alternate_stacks", 4, "a", "a handler's call that needs much stack, or identifies its thread by the stack"),
    ("two_signals", 2, "n", "a nested call that breaks when another interrupts it"),
    ("purges", 4, "p", "a purge, or a handshake of one, that breaks when a handler interrupts it"),
    ("forks", 4, "f", "a child that waits for a lock, or sees the heap half changed"),
    ("forks_alternate_stacks", 2, "af", "the same on alternate stacks"),
    ("forks_in_handlers", 2, "H", "a fork in a handler that waits for the call that it interrupted"),
    ("children_return", 1, "R", "a child that does not return from a handler, of a process with one busy thread"),
    ("children_of_threads_return", 4, "R", "the same, where other threads were in the middle of calls"),
    ("thread_ends", 4, "tn", "a handler in a thread's first use, or at its end"),
    ("dlopen", 2, "dn", "a handler in the dynamic linker"),
    ("all_at_once", 4, "tnaf", "a fault that needs several of these at once"),
];
/// Seconds of a storm; soak tests run for `NEAP_SOAK` seconds.
const SHORT: u64 = 2;
const LONG: u64 = 60;

/// Cases of `step.c` and `crash.c`: name, text that the output must contain, and what the case would catch.
const STEPS: &[(&str, &str, &str)] = &[
    ("small", "", "an instruction in malloc or free of small blocks at which a handler breaks the call"),
    ("large", "", "the same for large blocks"),
    ("hand_over", "", "a block of a handler that main code cannot free, or the other way round"),
    ("remote", "", "the same for remote frees"),
    ("purge", "", "the same for a purge"),
    ("thread_start", "", "the same for a thread's first call"),
    ("thread_end", "", "the same for a thread's end"),
    ("forks", "", "the same for fork, in the parent or in the child"),
    ("stranded", "", "an interrupted call that gets no memory, or loses some, in the child that its handler forked"),
];
const CRASHES: &[(&str, &str, &str)] = &[
    ("abort_handler", "reported", "a crash reporter that waits for ever in malloc"),
    ("abort_handler_in_flush", "reported", "the same, in the middle of a flush of a cache"),
    ("jump_out", "", "a handler that jumps out of malloc and leaves the thread without a heap"),
];

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for &(name, threads, letters, catches) in STORMS {
        cases.push(Case::new(format!("storm::{name}"), catches, move || storm(threads, letters, SHORT)));
        cases.push(Case::new(format!("soak::{name}"), catches, move || storm(threads, letters, soak_seconds())).soak());
    }
    for (source, table) in [(STEP, STEPS), (CRASH, CRASHES)] {
        for &(case, text, catches) in table {
            cases.push(Case::new(format!("{}::{case}", source.stem()), catches, move || {
                let run = Run::new(source.build()?).arg(case).timeout(Duration::from_secs(240));
                // The helper is started with all signals blocked, and then the trap flag would end the process.
                let run = if source.stem() == "step" { run.env("NEAP_PURGE", "never") } else { run };
                judge_neap(run)?.contains(text)?;
                Ok(())
            }));
        }
    }
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        let steps = STEPS.iter().map(|(case, ..)| ("step", *case));
        let named: Vec<_> = steps.chain(CRASHES.iter().map(|(case, ..)| ("crash", *case))).collect();
        neap_tests::all_cases_named(&[STEP, CRASH], &named)
    }));
    for (name, sizes) in [("large", 64 << 20..=64 << 20), ("small", 64..=512)] {
        let catches = "a fork that takes longer than with the C library's malloc";
        let (short, long) = (sizes.clone(), sizes);
        let body = move || latency(512, &short);
        cases.push(Case::new(format!("fork::latency_{name}"), catches, body).exclusive());
        let body = move || latency(4096, &long);
        cases.push(Case::new(format!("soak::fork_latency_{name}"), catches, body).exclusive().soak());
    }
    suite::main(cases)
}

/// [`judge_case`] where neap is under test: other allocators deadlock.
fn judge_neap(run: Run) -> Result<Finished, Stop> {
    if !library::under_test()?.is_neap() {
        return Err(Stop::Skip("only neap promises this".into()));
    }
    judge_case(run)
}

fn soak_seconds() -> u64 {
    std::env::var("NEAP_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(LONG)
}

/// Minimum of completed forks in a second. They come 10 ms apart where all threads have processors.
const LEAST_FORKS: u64 = 3;

/// Runs handlers 50 us apart in each thread.
fn storm(threads: u32, letters: &str, seconds: u64) -> Outcome {
    let run = Run::new(STORM.build()?)
        .args([threads.to_string(), seconds.to_string(), letters.to_string()])
        .env("DSO", DSO.build()?)
        .timeout(Duration::from_secs(seconds + 180));
    let done = judge_neap(run)?.no_complaint()?;
    let forks = done.stdout.split("forks ").nth(1).and_then(|text| text.split(',').next()?.parse::<u64>().ok());
    if letters.contains('f') && forks.is_none_or(|forks| forks < seconds * LEAST_FORKS) {
        return Err(done.fail(&format!("{forks:?} forks, {LEAST_FORKS} a second at least")));
    }
    suite::note(format!(
        "storm of {threads} threads {letters:?}, {seconds} s: {}",
        done.stdout.lines().next().unwrap_or_default()
    ));
    Ok(())
}

/// Limit on the processor time of a fork relative to the C library's malloc: forks of one kind differ by as much where
/// others share the processor's caches.
const SLOWER: f64 = 1.5;
/// Limit on the tries.
const TRIES: usize = 3;

/// Compares fork under both allocators, in turn, with `mib` of memory in blocks of these sizes.
fn latency(mib: usize, sizes: &RangeInclusive<usize>) -> Outcome {
    let mut text = String::new();
    for _ in 0..TRIES {
        let theirs = medians(Run::new(FORK_LATENCY.build()?).plain(), mib, sizes)?;
        let ours = medians(Run::new(FORK_LATENCY.build()?), mib, sizes)?;
        text = format!(
            "fork with {mib} MiB in blocks of {sizes:?}, us [until it returns, of a processor, until the child's first block]: \
             {ours:?}, with the C library's malloc {theirs:?}"
        );
        if ours[1] <= theirs[1] * SLOWER {
            suite::note(&text);
            return Ok(());
        }
    }
    Err(Stop::Fail(text))
}

fn medians(run: Run, mib: usize, sizes: &RangeInclusive<usize>) -> Result<[f64; 3], Stop> {
    let run = run.args([mib, *sizes.start(), *sizes.end()].map(|n| n.to_string())).timeout(Duration::from_secs(120));
    let done = run.run()?;
    if done.status.code() == Some(neap_tests::SKIP_STATUS) {
        return Err(Stop::Skip("there is no memory for it".into()));
    }
    let done = done.success()?;
    let number = |name: &str| done.stdout.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
    match ["fork ", "spent ", "first block "].map(number) {
        [Some(took), Some(spent), Some(first)] => Ok([took, spent, first]),
        _ => Err(done.fail("a median is missing in the output")),
    }
}
