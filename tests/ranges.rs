//! Ranges in pages of a chosen size: the C functions, and the documented example.

#[path = "../crates/ranges/tests/common/mod.rs"]
mod common;

use std::process::ExitCode;

use neap_tests::sys::TempDir;
use neap_tests::{Case, Outcome, Run, Source, Stop, judge_case, library, package_dir, program};

const RANGES: Source = Source::new("ranges/ranges.c");
const EXAMPLE: Source = Source::new("../docs/examples/ranges.c");

/// Case, and what the case would catch.
const CASES: &[(&str, &str)] = &[
    (
        "alloc_and_free",
        "a flag, a result or a field that is mixed up; errno changed; a write beyond another version's structure",
    ),
    ("prefault", "options that do nothing, a callback in another thread, or errors without a name"),
    ("blocks_of_malloc", "a block of malloc's that cannot be prefaulted, advised or queried"),
    ("texts", "a result code without a text"),
    ("after_fork", "a child with the parent's private range, or with another shared one"),
    ("cancelled", "a thread cancelled inside a prefault, whose threads go on using its stack"),
    ("signals", "handlers of the program that run in neap's threads"),
];

/// The case that needs a pool and a mount.
const SHARED: &str = "shared";

fn main() -> ExitCode {
    let mut cases: Vec<Case> = CASES
        .iter()
        .map(|(case, catches)| {
            Case::new(format!("ranges::{case}"), catches, move || {
                judge_case(Run::new(linked(&RANGES)?).arg(case))?.no_complaint()?;
                Ok(())
            })
        })
        .collect();
    cases.push(Case::new("ranges::shared", "files and segments that are not shared, or not freed", shared));
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        let list = Run::new(linked(&RANGES)?).arg("--list").run()?.success()?;
        let is_named = |case: &str| case == SHARED || CASES.iter().any(|(named, _)| *named == case);
        let missing: Vec<_> = list.stdout.lines().filter(|case| !is_named(case)).collect();
        if missing.is_empty() { Ok(()) } else { Err(Stop::Fail(format!("cases that no table names: {missing:?}"))) }
    }));
    cases.push(Case::new("example", "an example in the documents that does not run", example));
    cases.push(Case::new("archive", "functions that are not in libneap.a, or need a dynamic linker", archive));
    neap_tests::suite::main(cases)
}

fn linked(source: &Source) -> Result<std::path::PathBuf, Stop> {
    let include = format!("-I{}", package_dir().join("../include").display());
    source.build_with(&[library::require_neap()?], &[&include])
}

fn shared() -> Outcome {
    const SIZE: usize = 2 << 20;
    let cannot = || Stop::Skip("a pool of huge pages takes root, and memory for it".into());
    let machine = common::Machine::lock().ok_or_else(cannot)?;
    let _pool = machine.pool(SIZE, 4).ok_or_else(cannot)?;
    let folder = TempDir::new("ranges")?;
    let script = "mount -t hugetlbfs -o pagesize=2M none \"$1\" && exec \"$2\" \"$3\"";
    let run = Run::new(program("unshare")?).args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    judge_case(run.arg(folder.path()).arg(linked(&RANGES)?).arg(SHARED))?.no_complaint()?;
    Ok(())
}

fn example() -> Outcome {
    judge_case(Run::new(linked(&EXAMPLE)?))?.no_complaint()?;
    Ok(())
}

fn archive() -> Outcome {
    let library = library::require_neap()?.with_file_name("libneap.a");
    let program = RANGES.build_with(&[&library], &["-static"])?;
    for (case, _) in CASES {
        judge_case(Run::new(&program).arg(case).plain())?.no_complaint()?;
    }
    Ok(())
}
