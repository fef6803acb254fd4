//! Lives of threads: where a thread's first call comes, and how the thread ends.

use std::process::ExitCode;
use std::time::Duration;

use neap_tests::{Case, Outcome, Run, Source, judge_case, suite};

const LIVES: Source = Source::new("lives/lives.c");
/// The library that is loaded and unloaded meanwhile.
const DSO: Source = Source::with_flags("life/dso.c", &["-shared"]);

/// Where the first call comes: in the start routine, in each round of key destructors, in a destructor of a thread_local
/// object, behind all of them.
const WHERES: [&str; 7] = ["start", "key1", "key2", "key3", "key4", "cxx", "after"];

/// How the threads end, and what a test with it would catch.
const ENDS: [(&str, &str); 6] = [
    ("joined", "a heap that a thread gets when no destructor of its own will run any more, and that stays for ever"),
    ("reused", "the same on stacks of the program's that are used again"),
    ("unmapped", "a visitor that writes to the storage of a thread that is gone"),
    ("cancelled", "a cancelled thread that keeps its heap"),
    ("detached", "frees of other threads' storage, by a thread that ends, that give it a heap for ever"),
    ("gone", "a visitor that writes to the storage of a detached thread, unmapped as soon as it is gone"),
];

fn lives(place: &str, end: &str, env: &[(&str, &str)]) -> Outcome {
    let mut run = Run::new(LIVES.build()?).arg(place).arg(end).timeout(Duration::from_secs(240));
    // Memory goes back while threads come and go.
    for (name, value) in [("NEAP_PURGE_DELAY", "1ms")].iter().chain(env) {
        run = run.env(name, value);
    }
    judge_case(run)?.no_complaint()?;
    Ok(())
}

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for (end, catches) in ENDS {
        cases.push(Case::new(format!("thread::{end}"), catches, move || {
            WHERES.iter().try_for_each(|place| lives(place, end, &[]))
        }));
    }
    cases.push(Case::new("thread::forks", "a fork at one of these places whose child cannot allocate", || {
        WHERES.iter().try_for_each(|place| lives(place, "gone", &[("LIVES_FORK", "1")]))
    }));
    cases.push(Case::new("thread::loads", "the same while libraries with thread storage come and go", || {
        let dso = DSO.build()?;
        let dso = dso.to_string_lossy();
        WHERES.iter().try_for_each(|place| lives(place, "detached", &[("LIVES_DSO", &dso)]))
    }));
    suite::main(cases)
}
