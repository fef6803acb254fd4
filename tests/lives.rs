//! Lives of threads: where a thread makes its first call, and how the thread ends.

use std::process::ExitCode;
use std::time::Duration;

use neap_tests::{Case, Outcome, Run, Source, judge_case, suite};

const LIVES: Source = Source::new("lives/lives.c");
/// The library that is loaded and unloaded meanwhile.
const DSO: Source = Source::with_flags("life/dso.c", &["-shared"]);

const FILES: Source = Source::new("lives/files.c");

/// Cases of FILES, and what each would catch.
const FILE_CASES: [(&str, &str); 4] = [
    ("forks", "a file of the allocator's that remains open in each generation of forks"),
    ("bare_forks", "the same where the C library's handlers do not run"),
    ("child_closes", "a child that keeps a view of its parent's memory open"),
    ("low_limit", "a low descriptor number that neap takes, or a failure where it can open no file"),
];

/// The place of the first call: in the start routine, in each round of key destructors, in a destructor of a
/// thread_local object, and after all of these.
const WHERES: [&str; 7] = ["start", "key1", "key2", "key3", "key4", "cxx", "after"];

/// How a process ends, and what a test of it would catch.
const ENDS_OF_PROCESSES: [(&str, &str); 3] = [
    ("last", "a last thread that has no heap when it runs atexit handlers"),
    ("exec", "an exec in the middle of a thread's end that hangs"),
    ("handler", "an exit in a handler, in the middle of a thread's end, that has no heap"),
];

/// How the threads end, and what a test of it would catch.
const ENDS: [(&str, &str); 6] = [
    ("joined", "a heap that a thread gets after its last destructor, and that stays for ever"),
    ("reused", "the same on stacks that the program reuses"),
    ("unmapped", "a handshake that writes to the storage of a thread that is gone"),
    ("cancelled", "a cancelled thread that keeps its heap"),
    ("detached", "a heap that an ending thread gets by freeing other threads' storage, and that stays for ever"),
    ("gone", "a handshake that writes to the storage of a detached thread, unmapped as soon as it is gone"),
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
    cases.push(Case::new("thread::allocates_behind_its_end", "a handshake with a thread that is gone", || {
        ["detached", "gone", "unmapped"].iter().try_for_each(|end| lives("often", end, &[]))
    }));
    for (end, catches) in ENDS_OF_PROCESSES {
        cases.push(Case::new(format!("process::{end}"), catches, move || {
            WHERES.iter().try_for_each(|place| lives(place, end, &[]))
        }));
    }
    cases.push(Case::new("thread::forks", "a fork at one of these places whose child cannot allocate", || {
        let places = WHERES.iter().chain(&["often"]);
        places.copied().try_for_each(|place| lives(place, "gone", &[("LIVES_FORK", "1")]))
    }));
    cases.push(Case::new("thread::loads", "the same while libraries with thread storage come and go", || {
        let dso = DSO.build()?;
        let dso = dso.to_string_lossy();
        WHERES.iter().try_for_each(|place| lives(place, "detached", &[("LIVES_DSO", &dso)]))
    }));
    for (case, catches) in FILE_CASES {
        cases.push(Case::new(format!("files::{case}"), catches, move || {
            // Without the helper, which opens files for a moment.
            judge_case(Run::new(FILES.build()?).arg(case).env("NEAP_PURGE", "never"))?.no_complaint()?;
            Ok(())
        }));
    }
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        neap_tests::all_cases_named(&[FILES], &FILE_CASES.map(|(case, _)| ("files", case)))
    }));
    suite::main(cases)
}
