//! Kinds of faults on a real kernel: from disk, huge pages, shared memory.

use std::path::PathBuf;

use neap_tests::{Case, Outcome, SKIP_STATUS, Source, Stop};

use crate::trace::{Trace, table};

const KINDS: Source = Source::new("pagein/kinds.c");

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("kinds::major", "a read from disk that is shown as another kind", || {
            let (trace, addresses, _) = run("major")?;
            wanted(&trace, addresses[0], &["file-major"])
        }),
        Case::new("kinds::huge", "a huge page that is shown as a small one", || {
            let (trace, addresses, _) = run("huge")?;
            wanted(&trace, addresses[0], &["huge"])?;
            let shown = format!(" 2M {:#x} ", addresses[0]);
            if trace.faults.iter().any(|line| line.contains(&shown)) { Ok(()) } else { Err(trace.fail("no 2M")) }
        }),
        Case::new("kinds::shared", "shared memory that is shown as private", shared),
    ]
}

/// Runs a case of `kinds.c`: the trace, the addresses that it printed, and the file that it made.
fn run(case: &str) -> Result<(Trace, Vec<u64>, PathBuf), Stop> {
    let file = neap_tests::target_dir().join(format!("pagein-kinds-{case}-{}", std::process::id()));
    let trace = table(&KINDS.build()?, &[case, file.to_str().unwrap_or_default()]);
    let _ = std::fs::remove_file(&file);
    let trace = trace?;
    if trace.done.status.code() == Some(SKIP_STATUS) {
        return Err(Stop::Skip(trace.done.stdout.trim().to_owned()));
    }
    let words = trace.done.stdout.split_whitespace();
    let addresses = words.filter_map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()).collect();
    if trace.done.status.code() != Some(0) {
        return Err(trace.fail("the program failed"));
    }
    Ok((trace, addresses, file))
}

/// The lines of the faults at an address, and their kinds.
fn at(trace: &Trace, address: u64) -> Vec<(&str, &str)> {
    let shown = format!(" {address:#x} ");
    let lines = trace.faults.iter().filter(|line| line.contains(&shown));
    lines.filter_map(|line| Some((line.as_str(), line.split_whitespace().nth(8)?))).collect()
}

fn wanted(trace: &Trace, address: u64, kinds: &[&str]) -> Outcome {
    let seen: Vec<&str> = at(trace, address).into_iter().map(|(_, kind)| kind).collect();
    if seen == kinds { Ok(()) } else { Err(trace.fail(&format!("{address:#x}: {seen:?}, not {kinds:?}"))) }
}

/// Checks shared memory. The first write to a file may fault once more, so that the file system notices it.
fn shared() -> Outcome {
    let (trace, addresses, file) = run("shared")?;
    let &[memory, of_file] = &addresses[..] else { return Err(trace.fail("two addresses")) };
    wanted(&trace, memory, &["file-minor"])?;
    let seen = at(&trace, of_file);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let fits = |(line, kind): &(&str, &str)| *kind == "file-minor" && line.contains(&format!("{name}+0x2000"));
    if seen.is_empty() || seen.len() > 2 || !seen.iter().all(fits) {
        return Err(trace.fail(&format!("{seen:?}")));
    }
    Ok(())
}
