//! Guarded blocks in whole programs: errors are reported exactly, correct programs run unchanged, and all other signals
//! have their usual effect.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, library, suite};
use regex::Regex;

const ERRORS: Source = Source::with_flags("guards/errors.c", &["-w"]);
const CALLS: Source = Source::new("guards/calls.c");
const HANDLERS: Source = Source::with_flags("guards/handlers.c", &["-w"]);
const PLANTED: Source = Source::with_flags("guards/planted.c", &["-w"]);

/// A case of `errors.c`, the first line of its report, and which function the last stack (apart from those of the
/// block) shows: `frees` (F), `uses` (U), `reads` (R), or another one (-).
const FOUND: &[(&str, &str, char)] = &[
    (
        "use_after_free",
        r"use after free: write to 0x[0-9a-f]+, 8 bytes inside the 64-byte block at ADDR \(by thread \d+\)",
        'U',
    ),
    (
        "read_after_free",
        r"use after free: read of 0x[0-9a-f]+, 63 bytes inside the 64-byte block at ADDR \(by thread \d+\)",
        'R',
    ),
    (
        "overrun",
        r"overrun: write to 0x[0-9a-f]+, 0 bytes behind the 64-byte block at ADDR(, seen at its free)? \(by thread \d+\)",
        '?',
    ),
    (
        "overrun_in_slack",
        r"overrun: write to 0x[0-9a-f]+, 0 bytes behind the 61-byte block at ADDR, seen at its free \(by thread \d+\)",
        'F',
    ),
    (
        "underrun",
        r"underrun: write to 0x[0-9a-f]+, 1 byte before the 64-byte block at ADDR(, seen at its free)? \(by thread \d+\)",
        '?',
    ),
    ("double_free", r"double free of ADDR \(64-byte block, by thread \d+\)", 'F'),
    ("double_free_after_reuse", r"double free of ADDR \(64-byte block, by thread \d+\)", 'F'),
    ("free_inside", r"free of 0x[0-9a-f]+, which is not the start of a block \(64-byte block, 16 bytes inside\)", 'F'),
    ("realloc_freed", r"realloc of ADDR, which is free \(64-byte block, by thread \d+\)", '-'),
    ("usable_freed", r"malloc_usable_size of ADDR, which is free \(64-byte block, by thread \d+\)", '-'),
    (
        "freed_by_thread",
        r"use after free: write to ADDR, 0 bytes inside the 64-byte block at ADDR \(by thread \d+\)",
        'U',
    ),
];

/// Cases of `calls.c`, and what each would catch.
const GOOD: &[(&str, &str)] = &[
    ("each_call", "a call that mishandles guarded blocks, or gives them fewer bytes or another alignment"),
    ("threads", "a slot that two threads use, or a block that another thread cannot free"),
    ("forks", "a child that loses blocks, or cannot guard any"),
    ("signals", "a handler that hangs, or takes the slot of the interrupted call"),
    ("protected_page", "a block on an OS page that the program made inaccessible"),
    ("locked", "a program that fails where its memory is locked"),
    ("many_live", "more open pages than the limit, and slots that are lost"),
    ("filtered", "a call for which a sandbox ends the process"),
    ("few_mappings", "a program that fails where the kernel gives it no more mappings"),
];

/// Ways in which the system refuses a part of what guards need: a name, and arguments of strace.
const REFUSALS: &[(&str, &str)] =
    &[("no_markers", "madvise:error=EINVAL"), ("some_markers", "madvise:error=EINVAL:when=5+2")];

/// A case of `handlers.c`, the action of SIGSEGV before neap starts, the signal that ends it (0: it succeeds), and the
/// number of reports.
const SIGNALS: &[(&str, &str, i32, usize)] = &[
    ("handler_leaves", "leaves", 0, 3),
    ("handler_returns", "returns", 0, 1),
    ("handler_plain", "plain", 0, 3),
    ("handler_once", "once", 0, 1),
    ("ignored", "ignores", libc::SIGSEGV, 1),
    ("fault", "", libc::SIGSEGV, 0),
    ("null", "", libc::SIGSEGV, 0),
    ("noncanonical", "", libc::SIGSEGV, 0),
    ("raised", "", libc::SIGSEGV, 0),
    ("sent", "", libc::SIGSEGV, 0),
    ("overflow", "", libc::SIGSEGV, 0),
    ("overflow", "leaves", libc::SIGSEGV, 0),
    ("later_handler", "", 0, 0),
    ("later_handler_that_passes_on", "", 0, 1),
    ("blocked", "", libc::SIGSEGV, 0),
];

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for &(case, says, whose) in FOUND {
        cases.push(Case::new(format!("found::{case}"), "an error that is missed, or reported wrongly", move || {
            found(case, says, whose)
        }));
        cases.push(Case::new(format!("report::{case}"), "a program that does not go on after a report", move || {
            goes_on(case, says)
        }));
    }
    for &(case, catches) in GOOD {
        cases.push(Case::new(format!("good::{case}"), catches, move || good(case, &[])));
        for &(name, inject) in REFUSALS {
            if matches!(case, "each_call" | "forks" | "protected_page" | "few_mappings") {
                let catches = "a program that fails where the system refuses guards";
                cases.push(Case::new(format!("good::{name}::{case}"), catches, move || refused(case, inject)));
            }
        }
    }
    for &(case, before, signal, reports) in SIGNALS {
        let name = format!("signal::{case}{}", if before.is_empty() { "" } else { "::" }.to_owned() + before);
        let catches = "a signal that does not reach the program as the kernel would send it";
        cases.push(Case::new(name, catches, move || signalled(case, before, signal, reports)));
    }
    cases.extend([
        Case::new("good::without_markers", "errors that are missed where the kernel has no markers", fallback),
        Case::new("good::limits", "a program that does not run under limits", limits),
        Case::new("good::forked_use_after_free", "a block that the child of a fork can use after its free", || {
            neap_tests::judge_case(guarded(CALLS, "forked_use_after_free", "on", "1")?).map(drop)
        }),
        Case::new("good::memory", "more than 512 KiB of memory", memory),
        Case::new("good::rate", "blocks that are guarded more or less often than the option sets", || {
            neap_tests::judge_case(guarded(CALLS, "rate", "on", "100000")?).map(drop)
        }),
        Case::new("report::once", "more than one report of a block", || reports("many_errors", 6)),
        Case::new("report::threads", "a thread that hangs, or mixed lines of two reports", || {
            reports("used_by_threads", 1)
        }),
        Case::new("off::unchanged", "guards, or a handler, without the option", off),
        Case::new("quiet", "a line although the option asks for none", quiet),
        Case::new("planted::rate", "bugs that are found less often than the rate predicts", planted),
        Case::new("table::complete", "a case that is written but never run", all_named),
    ]);
    suite::main(cases)
}

fn guarded(source: Source, case: &str, mode: &str, interval: &str) -> Result<Run, Stop> {
    library::require_neap()?;
    Ok(Run::new(source.build()?).arg(case).env("NEAP_GUARDS", mode).env("NEAP_GUARDS_INTERVAL", interval))
}

/// Splits the output of a program into reports: the first line of each, and the lines behind it.
fn reports_of(done: &Finished) -> Vec<(&str, Vec<&str>)> {
    let mut reports: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in done.stderr.lines() {
        match line.strip_prefix("neap: ") {
            Some(first) => reports.push((first, Vec::new())),
            None => reports.last_mut().into_iter().for_each(|report| report.1.push(line)),
        }
    }
    reports
}

/// The stack below `title` in the lines of a report, as addresses.
fn stack(lines: &[&str], title: &str) -> Vec<u64> {
    let below = lines.iter().skip_while(|line| !line.trim_start().starts_with(title)).skip(1);
    let frames = below.take_while(|line| line.starts_with("      #"));
    frames.filter_map(|line| u64::from_str_radix(line.split(" 0x").nth(1)?.split(' ').next()?, 16).ok()).collect()
}

/// Checks that there is one report, with the first line of the table and the right stacks.
fn judge(done: &Finished, says: &str, whose: char) -> Outcome {
    let printed: Vec<&str> = done.stdout.split_whitespace().take(5).collect();
    let [block, functions @ ..] = printed.as_slice() else { return Err(done.fail("the program printed nothing")) };
    let address = |text: &&str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0);
    let [allocates, frees, uses, reads] = functions.iter().map(address).collect::<Vec<_>>()[..] else {
        return Err(done.fail("the program printed too little"));
    };
    let reports = reports_of(done);
    let [(first, lines)] = &reports[..] else { return Err(done.fail("one report was expected")) };
    let wanted = format!("^{}$", says.replace("ADDR", block));
    if !Regex::new(&wanted).is_ok_and(|regex| regex.is_match(first)) {
        return Err(done.fail(&format!("another line was expected: {wanted}")));
    }
    // Each of these functions has less than 128 bytes.
    let is_in = |title: &str, function: u64| {
        stack(lines, title).first().is_some_and(|at| (function..function + 128).contains(at))
    };
    let at_free = first.contains("seen at its free") || !first.contains("run: ");
    let here = match whose {
        'F' => is_in("this call", frees),
        'U' => is_in("this access", uses),
        'R' => is_in("this access", reads),
        '?' if at_free => is_in("this call", frees),
        '?' => is_in("this access", uses),
        _ => !stack(lines, "this call").is_empty(),
    };
    let was_freed = first.contains("free:") || first.contains("double") || first.contains("is free");
    let good = here && is_in("allocated by thread", allocates) && (!was_freed || is_in("freed by thread", frees));
    if good { Ok(()) } else { Err(done.fail("a stack is wrong")) }
}

fn found(case: &str, says: &str, whose: char) -> Outcome {
    // A block lies at the end or at the beginning of an OS page, by chance.
    for _ in 0..6 {
        let done = guarded(ERRORS, case, "on", "1")?.run()?;
        if done.status.signal() != Some(libc::SIGABRT) {
            return Err(done.fail("SIGABRT was expected"));
        }
        judge(&done, says, whose)?;
    }
    Ok(())
}

fn goes_on(case: &str, says: &str) -> Outcome {
    let done = guarded(ERRORS, case, "report", "1")?.run()?.success()?;
    if done.stdout.lines().last() != Some("ok") {
        return Err(done.fail("the program did not come to its end"));
    }
    judge(&done, says, if case.starts_with("realloc") || case.starts_with("usable") { '-' } else { ' ' }).or_else(
        |stop| {
            // `found` checks the stacks.
            let first = reports_of(&done).first().map(|report| report.0.to_owned()).unwrap_or_default();
            let known =
                Regex::new(&format!("^{}$", says.replace("ADDR", "0x[0-9a-f]+"))).is_ok_and(|r| r.is_match(&first));
            if known { Ok(()) } else { Err(stop) }
        },
    )
}

fn reports(case: &str, wanted: usize) -> Outcome {
    let done = guarded(ERRORS, case, "report", "1")?.run()?.success()?;
    let reports = reports_of(&done);
    // Each report is whole: the lines of two reports do not mix.
    let whole = reports.iter().all(|(_, lines)| !stack(lines, "allocated by thread").is_empty());
    if reports.len() == wanted && whole { Ok(()) } else { Err(done.fail(&format!("{wanted} reports were expected"))) }
}

fn good(case: &str, more: &[(&str, &str)]) -> Outcome {
    for (mode, interval) in [("on", "1"), ("on", "2000"), ("report", "1")] {
        // With fewer guarded blocks, these cases cannot tell that there are any.
        if interval != "1" && !matches!(case, "threads" | "signals" | "locked") {
            continue;
        }
        let run = more.iter().fold(guarded(CALLS, case, mode, interval)?, |run, (name, value)| run.env(name, value));
        neap_tests::judge_case(run)?.no_complaint()?;
    }
    Ok(())
}

/// Runs the case while the system refuses some calls: fewer blocks are guarded then, which the program may notice.
fn refused(case: &str, inject: &str) -> Outcome {
    let neap = library::require_neap()?;
    let strace = neap_tests::strace()?;
    let run = Run::new(strace).args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none", "-e"]);
    let run = run.arg(format!("inject={inject}")).arg("-E").arg(format!("LD_PRELOAD={}", neap.display()));
    let run = run.args(["-E", "NEAP_GUARDS=on", "-E", "NEAP_GUARDS_INTERVAL=1", "-E", "FEWER=1"]);
    let done = run.arg(CALLS.build()?).arg(case).plain().run()?.success()?;
    if done.stdout.lines().last() == Some("ok") {
        Ok(())
    } else {
        Err(done.fail("the program did not come to its end"))
    }
}

/// Checks that errors are also found without MADV_GUARD_INSTALL.
fn fallback() -> Outcome {
    let neap = library::require_neap()?;
    for case in ["use_after_free", "overrun", "double_free_after_reuse"] {
        let run = Run::new(neap_tests::strace()?).args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none"]);
        let run = run.args(["-e", "inject=madvise:error=EINVAL", "-E"]).arg(format!("LD_PRELOAD={}", neap.display()));
        let run = run.args(["-E", "NEAP_GUARDS=on", "-E", "NEAP_GUARDS_INTERVAL=1"]);
        let done = run.arg(ERRORS.build()?).arg(case).plain().run()?;
        let (_, says, whose) = *FOUND.iter().find(|found| found.0 == case).expect("a case");
        judge(&done, says, whose)?;
    }
    Ok(())
}

/// Compares resident memory with and without guards.
fn memory() -> Outcome {
    let resident = |mode: &str| {
        let done = neap_tests::judge_case(guarded(CALLS, "memory", mode, "1")?)?;
        done.stdout.lines().next().and_then(|line| line.parse::<i64>().ok()).ok_or_else(|| done.fail("no number"))
    };
    let (on, off) = (resident("on")?, resident("off")?);
    suite::note(format!("guards at their limit take {} KiB", on - off));
    if on - off <= 512 { Ok(()) } else { Err(Stop::Fail(format!("guards take {} KiB", on - off))) }
}

fn limits() -> Outcome {
    let neap = library::require_neap()?.display().to_string();
    let program = CALLS.build()?.display().to_string();
    for limit in ["-v 400000", "-d 100000", "-l 64"] {
        let script = format!(
            "ulimit {limit}; LD_PRELOAD={neap} NEAP_GUARDS=on NEAP_GUARDS_INTERVAL=1 FEWER=1 exec {program} each_call"
        );
        Run::new("bash").args(["-c", &script]).plain().run()?.success()?;
    }
    Ok(())
}

fn signalled(case: &str, before: &str, signal: i32, reports: usize) -> Outcome {
    // libneap.so's constructors run before all others, so only a program with neap inside can set a handler first.
    let archive = library::require_neap()?.with_file_name("libneap.a");
    let run = match before {
        "" => Run::new(HANDLERS.build()?),
        before => Run::new(HANDLERS.build_with(&[&archive], &[])?).env("BEFORE", before).plain(),
    };
    let done = run.arg(case).env("NEAP_GUARDS", "report").env("NEAP_GUARDS_INTERVAL", "1").run()?;
    let ended = match signal {
        0 => done.status.success() && done.stdout.lines().last() == Some("ok"),
        signal => done.status.signal() == Some(signal),
    };
    if !ended {
        return Err(done.fail(&format!("another end was expected: {signal}")));
    }
    if reports_of(&done).len() == reports {
        Ok(())
    } else {
        Err(done.fail(&format!("{reports} reports were expected")))
    }
}

fn off() -> Outcome {
    library::require_neap()?;
    for off in [None, Some("off")] {
        let run = Run::new(ERRORS.build()?).arg("double_free_after_reuse");
        let done = off.into_iter().fold(run, |run, value| run.env("NEAP_GUARDS", value)).run()?;
        if done.stderr.contains("allocated by") {
            return Err(done.fail("a block was guarded"));
        }
        let run = Run::new("cat").arg("/proc/self/status");
        let done = off.into_iter().fold(run, |run, value| run.env("NEAP_GUARDS", value)).run()?.success()?;
        let caught = done
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:\t"))
            .and_then(|mask| u64::from_str_radix(mask, 16).ok());
        if caught.is_none_or(|mask| mask >> (libc::SIGSEGV - 1) & 1 != 0) {
            return Err(done.fail("SIGSEGV has a handler"));
        }
    }
    Ok(())
}

fn quiet() -> Outcome {
    for case in ["double_free", "use_after_free"] {
        let done = guarded(ERRORS, case, "on", "1")?.env("MALLOC_CHECK_", "2").run()?;
        if done.status.signal() != Some(libc::SIGABRT) || !done.stderr.is_empty() {
            return Err(done.fail("SIGABRT without a line was expected"));
        }
    }
    Ok(())
}

/// Each run guards the block with the bug with a probability of 1 - exp(-1000 / 4000) = 22.1 %.
fn planted() -> Outcome {
    const RUNS: u32 = 150;
    for (bug, says) in [("1", "overrun: write to"), ("2", "use after free: write to"), ("3", "double free of")] {
        let mut found = 0;
        for at in 0..RUNS {
            let run = Run::new(PLANTED.build()?).arg(bug).arg((at * 7).to_string());
            let done = run.env("NEAP_GUARDS", "on").env("NEAP_GUARDS_INTERVAL", "4000").run()?;
            let report = reports_of(&done).first().map(|report| report.0.to_owned()).unwrap_or_default();
            let is_found = report.starts_with(says) && report.contains("1000-byte block");
            if !is_found && !done.status.success() && bug != "3" {
                return Err(done.fail("another end was expected"));
            }
            found += u32::from(is_found);
        }
        suite::note(format!("bug {bug}: found in {found} of {RUNS} runs, 33.2 expected"));
        // 33.2 of 150, and 4.5 times its standard deviation of 5.1.
        if !(10..=56).contains(&found) {
            return Err(Stop::Fail(format!("bug {bug}: found in {found} of {RUNS} runs")));
        }
    }
    let done = Run::new(PLANTED.build()?).args(["3", "5"]).run()?.success()?;
    if done.stderr.is_empty() { Ok(()) } else { Err(done.fail("the bug is found without guards, so it shows nothing")) }
}

fn all_named() -> Outcome {
    let others = ["forked_use_after_free", "rate", "memory"].map(|case| ("calls", case));
    let errors =
        FOUND.iter().map(|found| ("errors", found.0)).chain([("errors", "many_errors"), ("errors", "used_by_threads")]);
    let calls = GOOD.iter().map(|good| ("calls", good.0)).chain(others);
    neap_tests::all_cases_named(&[ERRORS, CALLS], &errors.chain(calls).collect::<Vec<_>>())
}
