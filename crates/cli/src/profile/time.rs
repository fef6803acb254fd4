//! `neap profile --time`: where the time of allocation goes, for any program and any allocator.

use std::time::Duration;

use neap_launch::child;
use neap_launch::error::{Error, FAILED};
use neap_pagein::clock::{self, Clocked};
use neap_pagein::resolve::More;
use neap_profile::time::{Clock, Details, allocator, profile};
use neap_profile::{Profile, Unit};

use super::args::ProfileArgs;
use super::written;

/// Profiles a program or a process.
pub fn run(args: &ProfileArgs) -> Result<u8, Error> {
    let period = u64::try_from(args.period.as_nanos()).unwrap_or(u64::MAX);
    match args.pid {
        Some(pid) => {
            let output = written::output(&args.written, pid)?;
            let clocked = clock::attach(pid, args.duration, period)?;
            let made = made(args, &clocked, Vec::new())?;
            written::write(&made, made.shown, &args.written, output)?;
            Ok(0)
        }
        None => {
            // Opened before the program runs, so that no result is lost.
            let mut output = None;
            let clocked = clock::run(&args.command, std::env::vars_os().collect(), period, args.duration, |pid| {
                output = written::output(&args.written, pid)?;
                Ok(())
            })?;
            let command = args.command.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
            let written =
                made(args, &clocked, command).and_then(|made| written::write(&made, made.shown, &args.written, output));
            let Some(status) = clocked.status else { return written.map(|()| 0) };
            if let Err(error) = written {
                error.report();
                // The program's own failure is worth more to the caller than ours.
                if status.success() {
                    return Ok(FAILED);
                }
            }
            Ok(child::end_like(status))
        }
    }
}

/// The profile of what was seen.
fn made(args: &ProfileArgs, clocked: &Clocked, command: Vec<String>) -> Result<Profile, Error> {
    let period = u64::try_from(args.period.as_nanos()).unwrap_or(u64::MAX);
    let details = |place| clocked.samples.more(place).cloned().map(details).unwrap_or_default();
    let mut made = profile(
        &clocked.samples,
        &details,
        Clock { period, fault: clocked.faults.map(|faults| faults.counted * faults.touch) },
    )
    .map_err(|e| Error::failed(format!("cannot read the samples back: {e}")))?;
    made.command = command;
    made.pid = clocked.pid;
    made.time = clocked.began;
    made.duration = u64::try_from(clocked.watched.as_nanos()).unwrap_or(u64::MAX);
    if !clocked.kernel {
        // The clock has seen a part of it only.
        let all = clocked.processor.map(|processor| processor.user + processor.system);
        made.whole = all.map(|all| i64::try_from(all.as_nanos()).unwrap_or(i64::MAX));
    }
    made.allocator = allocator(&made);
    made.notes = notes(clocked, &made);
    Ok(made)
}

/// What is known of a place, in the words of the profile.
fn details(more: More) -> Details {
    let More { called, inlined, outer } = more;
    Details { called, inlined, outer }
}

/// What the profile covers, and what it does not.
fn notes(clocked: &Clocked, made: &Profile) -> Vec<String> {
    let seconds =
        |time: Duration| neap_profile::amount(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX), &Unit::Nanoseconds);
    let mut notes = Vec::new();
    if let Some(processor) = clocked.processor {
        notes.push(format!(
            "processor time of the program: {} in user mode, {} in the kernel",
            seconds(processor.user),
            seconds(processor.system)
        ));
    }
    if !clocked.kernel {
        notes.push(
            "not seen: what the kernel does in system calls (munmap, madvise, mmap). To see it: sudo sysctl \
             kernel.perf_event_paranoid=1, or run neap as root"
                .to_owned(),
        );
    }
    if let Some(faults) = clocked.faults {
        let touch = neap_profile::amount(i64::try_from(faults.touch).unwrap_or(i64::MAX), &Unit::Nanoseconds);
        notes.push(format!(
            "page faults are counted, not timed: one in {} is a sample, and each stands for {touch}, what the first \
             touch of a page takes neap itself",
            faults.counted
        ));
    }
    if clocked.lost > 0 {
        notes.push(format!("{} samples were lost: the profile has too little time", clocked.lost));
    }
    if made.whole == Some(0) {
        notes.push("no sample was taken: the program ran for less than a period".to_owned());
    }
    notes.extend(clocked.missing.iter().map(|what| format!("missing: {what}")));
    notes
}
