//! Live blocks in 13 patterns, with each build: what the program counts, and what `neap why` finds.

use neap_tests::{Case, Outcome, Stop};

use crate::libraries::{BUILDS, Build, Running};
use crate::{fail, record};

/// The patterns of `truth.c`, in the order of the table.
const PATTERNS: [&str; 13] = [
    "small",
    "fragments",
    "freed",
    "class",
    "medium",
    "large",
    "huge",
    "aligned",
    "grown",
    "threads",
    "exited",
    "cross",
    "caches",
];
/// Aligned blocks of mimalloc have a rest that is never written. Which blocks of a page are live is not known, so other
/// resident memory of the page counts in its place.
const ROUNDED: (&str, &str) = ("mimalloc", "aligned");
/// The C library's own blocks, stacks of the first thread, and such.
const OTHER: f64 = 0.3 * MIB;
/// Records of an allocator for each of 100 threads.
const OF_THREADS: f64 = MIB;
const MIB: f64 = 1048576.0;

pub fn cases() -> Vec<Case> {
    let of = |(number, build): (usize, &'static Build)| {
        let name = format!("truth::{}_{number}", build.allocator);
        Case::new(name, "live blocks that are over 5 % off what the program has", move || truth(build))
    };
    BUILDS.iter().enumerate().map(of).collect()
}

fn truth(build: &'static Build) -> Outcome {
    let (mut cells, mut wrong) = (Vec::new(), Vec::new());
    for pattern in PATTERNS {
        let running = Running::start(&mut build.program("truth.c", &[pattern], &[])?)?;
        let said = running.said.lines().find_map(|line| line.strip_prefix("live "));
        let said: Vec<f64> = said.unwrap_or("").split(' ').filter_map(|word| word.parse().ok()).collect();
        let [least, most] = said[..] else { return fail(running.said.clone()) };
        let account = running.account()?;
        let live = live(&account, build.allocator).ok_or_else(|| Stop::Fail(account.to_string()))?;
        // How far it is from what the blocks may have.
        let off = if live > most { live - most } else { (live - least).min(0.0) };
        let other = if pattern == "caches" { OTHER + OF_THREADS } else { OTHER };
        let off = if off.abs() <= other { 0.0 } else { off / most.max(OTHER) * 100.0 };
        let limit = if (build.allocator, pattern) == ROUNDED { 40.0 } else { 5.0 };
        if off.abs() > limit {
            wrong.push(format!("{pattern}: {live} live bytes, the program has {least} to {most}"));
        }
        cells.push(if off == 0.0 { "in".to_owned() } else { format!("{off:+.1} %") });
    }
    if !wrong.is_empty() {
        return fail(format!("{}: {}", build.name()?, wrong.join("; ")));
    }
    let beginning = format!("| {} |", build.name()?);
    println!("{beginning} {}", cells.join(" | "));
    if record::is_on() {
        let row = format!("{beginning} {} | {} |", cells.join(" | "), record::today()?);
        record::row(&["docs/builds.md"], &format!("| {} ", build.allocator), &beginning, &row)?;
    }
    Ok(())
}

/// Resident bytes of live blocks of an allocator.
fn live(account: &serde_json::Value, allocator: &str) -> Option<f64> {
    let all = account["accounts"].as_array()?.iter();
    let own =
        all.filter(|of| of["kind"] == "heap-live" && of["owner"].as_str().is_some_and(|of| of.starts_with(allocator)));
    own.map(|of| of["bytes"].as_f64()).sum()
}
