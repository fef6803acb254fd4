//! Misuse: for each kind one tiny program, one exact line on standard error, and SIGABRT.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use neap_tests::{Case, Outcome, Run, Source, Stop, command, library, suite};
use regex::Regex;

/// The messages, by kind of misuse. `ADDR` stands for the address that the program printed; the text must match a whole
/// line.
mod says {
    pub const DOUBLE_FREE: &str = r"neap: double free of ADDR \(64-byte block, by thread \d+\)";
    pub const DOUBLE_FREE_ANY_SIZE: &str = r"neap: double free of ADDR \(\d+-byte block, by thread \d+\)";
    /// Blocks of whole OS pages: the size depends on the OS page.
    pub const DOUBLE_FREE_LARGE: &str = r"neap: double free of ADDR \(30[1-9]\d{3}-byte block, by thread \d+\)";
    pub const DOUBLE_FREE_HUGE: &str = r"neap: double free of ADDR \(268435456-byte block, by thread \d+\)";
    pub const INSIDE_1: &str =
        r"neap: free of ADDR, which is not the start of a block \(64-byte blocks, 1 bytes? inside\)";
    pub const INSIDE_8: &str =
        r"neap: free of ADDR, which is not the start of a block \(64-byte blocks, 8 bytes inside\)";
    pub const INSIDE_16: &str =
        r"neap: free of ADDR, which is not the start of a block \(64-byte blocks, 16 bytes inside\)";
    pub const INSIDE_LARGE: &str =
        r"neap: free of ADDR, which is not the start of a block \(\d+-byte block, \d+ bytes inside\)";
    pub const NEVER_ALLOCATED: &str = r"neap: (free of ADDR, which is not the start of a block( \(.*\))?|free of ADDR, which neap did not allocate|double free of ADDR \(.*\)|double free of ADDR, or never allocated: .*)";
    pub const NOT_OURS: &str = r"neap: free of ADDR, which neap did not allocate";
    pub const CORRUPTED: &str = r"neap: corrupted free block ADDR \(64-byte block\): written after free";
    /// A double free whose traces the program overwrote: detected later, or by another sign.
    pub const DISGUISED: &str =
        r"neap: (double free (of ADDR|in the 64-byte blocks) .*|corrupted free (list|block) .*)";
    /// A free block was used after its OS page went back to the system.
    pub const REAPPEARED: &str =
        r"neap: corrupted free block ADDR \(64-byte block\): written after free, or freed twice";
    pub const REALLOC_FREED: &str = r"neap: realloc of ADDR, which is free \(64-byte block, by thread \d+\)";
    pub const REALLOC_INSIDE: &str =
        r"neap: realloc of ADDR, which is not the start of a block \(64-byte blocks, 16 bytes inside\)";
    pub const USABLE_FREED: &str = r"neap: malloc_usable_size of ADDR, which is free \(64-byte block, by thread \d+\)";
}

/// Cases of `double_free_gone.c`: what it does, the size of its blocks, the message.
const GONE: &[(&str, &str, &str)] = &[
    ("here", "48", r"neap: double free of ADDR \(48-byte block, by thread \d+\)"),
    ("here", "64", r"neap: double free of ADDR \(64-byte block, by thread \d+\)"),
    ("here", "16384", r"neap: double free of ADDR \(16384-byte block, by thread \d+\)"),
    ("here", "131072", r"neap: double free of ADDR \(131072-byte block, by thread \d+\)"),
    // The records of long free ranges go back too, and with them the size.
    ("many", "131072", r"neap: double free of ADDR, or never allocated: it lies in free memory \(by thread \d+\)"),
    ("inside", "48", r"neap: double free of ADDR, or never allocated: it lies in free memory \(by thread \d+\)"),
    ("thread", "48", r"neap: double free of ADDR \(48-byte block, by thread \d+\)"),
    ("fork", "48", r"neap: double free of ADDR \(48-byte block, by thread \d+\)"),
    ("realloc", "48", r"neap: realloc of ADDR, which is free \(48-byte block, by thread \d+\)"),
    ("usable", "48", r"neap: malloc_usable_size of ADDR, which is free \(48-byte block, by thread \d+\)"),
];

/// Settings under which the message is the same: a name, and the environment. `--summary` stands for that option of
/// `neap run`, which counts each call.
const SETTINGS: &[(&str, Option<(&str, &str)>)] = &[
    ("plain", None),
    ("summary", None),
    ("perturb", Some(("MALLOC_PERTURB_", "165"))),
    ("harden", Some(("NEAP_HARDEN", "on"))),
];

/// Cases of the table below that print the same under all [`SETTINGS`].
const SAME: &[&str] = &[
    "double_free_now",
    "double_free_large",
    "double_free_huge",
    "double_free_by_other_thread",
    "double_free_of_remote",
    "double_free_of_orphan",
    "double_free_after_thread_end",
    "free_inside_8",
    "free_inside_16",
    "free_inside_large",
    "free_inside_remote",
    "realloc_freed",
    "realloc_freed_in_place",
    "realloc_inside",
    "usable_size_freed",
];

/// Program, its message, and what the test would catch.
const CASES: &[(&str, &str, &str)] = &[
    ("misuse/double_free_now.c", says::DOUBLE_FREE, "a double free that is not detected at once"),
    ("misuse/double_free_later.c", says::DOUBLE_FREE, "a double free that is detected only at the head of a free list"),
    ("misuse/double_free_first_of_pair.c", says::DOUBLE_FREE, "a free list that becomes a cycle"),
    ("misuse/double_free_large.c", says::DOUBLE_FREE_LARGE, "a large block given back twice"),
    ("misuse/double_free_huge.c", says::DOUBLE_FREE_HUGE, "a mapping that is unmapped twice"),
    ("misuse/double_free_aligned.c", says::DOUBLE_FREE_ANY_SIZE, "aligned blocks left out of the check"),
    ("misuse/double_free_by_other_thread.c", says::DOUBLE_FREE, "a free block that a remote free takes"),
    ("misuse/double_free_of_remote.c", says::DOUBLE_FREE, "a remotely freed block that looks live to its owner"),
    ("misuse/double_free_remote_twice.c", says::DOUBLE_FREE, "a block twice in the remote list"),
    ("misuse/double_free_of_orphan.c", says::DOUBLE_FREE, "a block of an ended thread, freed twice by another"),
    ("misuse/double_free_after_thread_end.c", says::DOUBLE_FREE, "a block freed before its thread ended, and after"),
    ("misuse/double_free_disguised.c", says::DISGUISED, "a double free of a block whose tag was overwritten"),
    ("misuse/double_free_of_purged.c", says::REAPPEARED, "a double free of a block whose tag went with its OS page"),
    ("misuse/free_inside_8.c", says::INSIDE_8, "an interior pointer that enters a free list"),
    ("misuse/free_inside_16.c", says::INSIDE_16, "an aligned interior pointer taken for a block"),
    ("misuse/free_inside_odd.c", says::INSIDE_1, "a misaligned pointer taken for a block"),
    ("misuse/free_inside_large.c", says::INSIDE_LARGE, "a pointer inside a large block that frees all of it"),
    ("misuse/free_inside_large_page.c", says::INSIDE_LARGE, "an OS page inside a large block that is freed alone"),
    ("misuse/free_inside_huge.c", says::INSIDE_LARGE, "a pointer inside a huge block that is unmapped from there"),
    ("misuse/free_inside_remote.c", says::INSIDE_16, "an interior pointer that enters the remote list"),
    ("misuse/free_never_allocated.c", says::NEVER_ALLOCATED, "a pointer into fresh heap taken for a block"),
    ("misuse/free_stack.c", says::NOT_OURS, "a stack address taken for a block"),
    ("misuse/free_static.c", says::NOT_OURS, "a static address taken for a block"),
    ("misuse/free_mapped.c", says::NOT_OURS, "a mapping of the program taken for a block"),
    ("misuse/free_no_access.c", says::NOT_OURS, "a crash on a mapping that may not be read"),
    ("misuse/free_wild.c", says::NOT_OURS, "a crash on an address beyond the page map"),
    ("misuse/write_after_free.c", says::CORRUPTED, "a free list that is followed to an address the program wrote"),
    ("misuse/write_after_free_two_words.c", says::CORRUPTED, "a forged pointer that looks like a block"),
    ("misuse/write_after_free_idle.c", says::CORRUPTED, "a message of the helper's that is not printed"),
    ("misuse/write_after_purge.c", says::REAPPEARED, "a write to a free OS page that the next owner finds"),
    ("misuse/realloc_purged.c", says::REAPPEARED, "a realloc of a freed block whose tag went with its OS page"),
    ("misuse/realloc_freed.c", says::REALLOC_FREED, "contents copied from a freed block"),
    ("misuse/realloc_freed_in_place.c", says::REALLOC_FREED, "a freed block handed back in place"),
    ("misuse/realloc_inside.c", says::REALLOC_INSIDE, "realloc that takes an interior pointer"),
    ("misuse/usable_size_freed.c", says::USABLE_FREED, "a size given for a freed block"),
];

fn main() -> ExitCode {
    let mut cases: Vec<Case> = CASES
        .iter()
        .map(|(file, says, catches)| {
            let source = Source::with_flags(file, &["-w"]);
            Case::new(source.stem(), catches, move || message(&source, &[], "plain", says))
        })
        .collect();
    for &(name, _) in &SETTINGS[1..] {
        for (file, says, _) in CASES {
            let source = Source::with_flags(file, &["-w"]);
            if SAME.contains(&source.stem()) {
                let catches = "a setting under which the line names another size or misuse";
                cases.push(Case::new(format!("{name}::{}", source.stem()), catches, move || {
                    message(&source, &[], name, says)
                }));
            }
        }
    }
    for &(setting, _) in SETTINGS {
        for &(how, size, says) in GONE {
            let catches = "a double free that counts as foreign because the block's memory went back";
            cases.push(Case::new(format!("gone::{setting}::{how}_{size}"), catches, move || {
                message(&Source::with_flags("misuse/double_free_gone.c", &["-w"]), &[how, size], setting, says)
            }));
        }
    }
    cases.push(Case::new("check_action", "MALLOC_CHECK_ that prints too much, or hides misuse", check_action));
    cases.push(Case::new(
        "stack_of_sample",
        "a stack of the allocation that the profile has but the message lacks",
        stack_of_sample,
    ));
    cases.push(Case::new("table::complete", "a program that is written but never run", all_programs_named));
    suite::main(cases)
}

/// Checks that the program dies by SIGABRT after exactly one line of neap's, the expected one.
fn message(source: &Source, arguments: &[&str], setting: &str, expected: &str) -> Outcome {
    library::require_neap()?;
    let program = source.build()?;
    let mut run = match setting {
        "summary" => Run::new(command::neap()?).plain().args(["run", "--summary", "--"]).arg(program),
        _ => Run::new(program),
    };
    for (name, value) in SETTINGS.iter().filter(|s| s.0 == setting).filter_map(|s| s.1) {
        run = run.env(name, value);
    }
    let done = run.args(arguments).run()?;
    let address = done.stdout.lines().next().unwrap_or_default();
    let expected = expected.replace("ADDR", &regex::escape(address));
    if done.status.signal() != Some(neap_tests::sys::Signal::ABORT.as_raw()) {
        return Err(done.fail(&format!("SIGABRT was expected, and: {expected}")));
    }
    let regex = Regex::new(&format!("^{expected}$")).map_err(|e| Stop::Fail(format!("the table of messages: {e}")))?;
    // Lines of the summary start with the name of the command.
    let ours = |line: &&str| line.starts_with("neap: ") && !line.starts_with("neap: /");
    let lines: Vec<&str> = done.stderr.lines().filter(ours).collect();
    match lines[..] {
        [line] if regex.is_match(line) => stack_follows(&done, source.stem()),
        [_] => Err(done.fail(&format!("another message was expected: {expected}"))),
        _ => Err(done.fail(&format!("one line of neap's was expected: {expected}"))),
    }
}

/// Checks that the stack of the call, and nothing else, follows the line; none where the helper detected the misuse.
fn stack_follows(done: &neap_tests::Finished, case: &str) -> Outcome {
    let mut rest = done.stderr.lines().skip_while(|line| !line.starts_with("neap: ")).skip(1).peekable();
    // The summary follows at the end.
    let lines: Vec<&str> = std::iter::from_fn(|| rest.next_if(|line| line.starts_with("    "))).collect();
    let is_frame = |line: &&str| line.starts_with("      #") && line.contains(" 0x");
    let (Some(title), frames) = (lines.first(), lines.iter().skip(1)) else {
        return if case.ends_with("_idle") { Ok(()) } else { Err(done.fail("no stack follows")) };
    };
    let own = frames.clone().any(|line| line.contains(case));
    if *title == "    this call:" && frames.clone().all(is_frame) && (own || case.contains("thread_end")) {
        Ok(())
    } else {
        Err(done.fail("another stack was expected, with a frame of the program"))
    }
}

/// Checks that a line about a sampled block is also followed by the stack of its allocation.
fn stack_of_sample() -> Outcome {
    library::require_neap()?;
    let program = Source::with_flags("misuse/free_inside_16.c", &["-w"]).build()?;
    let directory = neap_tests::sys::TempDir::new("misuse")?;
    for (interval, wanted) in [("1", true), ("1T", false)] {
        let run = Run::new(&program).env("NEAP_PROFILE", directory.path()).env("NEAP_PROFILE_INTERVAL", interval);
        let done = run.run()?;
        let behind = done.stderr.lines().skip_while(|line| *line != "    allocated by:").nth(1);
        if behind.is_some_and(|line| line.contains("free_inside_16")) != wanted {
            return Err(done.fail(&format!("the stack of the allocation was expected: {wanted}")));
        }
    }
    Ok(())
}

/// MALLOC_CHECK_: 2 ends the process without a message, all other values with one line; so does the tunable.
fn check_action() -> Outcome {
    library::require_neap()?;
    let program = Source::with_flags("misuse/double_free_now.c", &["-w"]).build()?;
    let runs = [("0", true), ("1", true), ("2", false), ("3", true), ("6", false), ("x", true)];
    let runs = runs.map(|(value, message)| ("MALLOC_CHECK_", value, message));
    for (name, value, message) in runs.into_iter().chain([("GLIBC_TUNABLES", "glibc.malloc.check=2", false)]) {
        let done = Run::new(&program).env(name, value).run()?;
        let aborted = done.status.signal() == Some(neap_tests::sys::Signal::ABORT.as_raw());
        if !aborted || done.stderr.lines().any(|line| line.starts_with("neap: ")) != message {
            return Err(done.fail(&format!("{name}={value}: SIGABRT was expected, and a line: {message}")));
        }
    }
    Ok(())
}

fn all_programs_named() -> Outcome {
    for entry in std::fs::read_dir(neap_tests::package_dir().join("misuse"))? {
        let name = format!("misuse/{}", entry?.file_name().to_string_lossy());
        if name != "misuse/double_free_gone.c" && !CASES.iter().any(|(file, ..)| *file == name) {
            return Err(Stop::Fail(format!("{name} is in no table")));
        }
    }
    Ok(())
}
