//! `--exact`, `--detail`, and the blocks of neap's heap: programs whose pages and blocks are known.

use std::ffi::OsStr;
use std::path::Path;

use neap_tests::command::{neap, need_events};
use neap_tests::sys::TempDir;
use neap_tests::{Case, Outcome, Source, Stop};

use crate::trace::{KNOWN_STATIC, ODD, Trace, words};

const KNOWN_C: Source = Source::new("pagein/known.c");
const PAGES: Source = Source::new("pagein/pages.c");
const PAGES_STATIC: Source = Source::with_flags("pagein/pages.c", &["-static"]);
const HEAP: Source = Source::with_flags("pagein/heap.c", &["-fno-builtin"]);

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("exact::pages", "pages of files that are not shown exactly once", || pages(&PAGES, &[])),
        Case::new("exact::static", "the same in a static program", || pages(&PAGES_STATIC, &[])),
        Case::new("exact::children", "children, and programs that children execute, with fault-around", || {
            pages(&PAGES, &["sh", "-c", "\"$@\" & wait $!", "sh"])
        }),
        Case::new("exact::code", "pages of code that are missing, or have a wrong function", || code(&KNOWN_C)),
        Case::new("exact::code_static", "the same in a static program", || code(&KNOWN_STATIC)),
        Case::new("detail::begin", "a trace with `--detail begin` that does not report what is missing", begin),
        Case::new("exact::forks", "faults or an exit status that tracing changes", || {
            unchanged("forks", Some(0), 1000)
        }),
        Case::new("exact::signal", "a signal that tracing swallows", || unchanged("signal", None, 100)),
        Case::new("exact::daemon", "a daemon whose system calls fail when its tracer ends", || {
            // With --exact neap releases its programs only when they end.
            unchanged("short-daemon", Some(0), 500)
        }),
        Case::new("blocks::sizes", "blocks of neap's heap that are missing, or of a wrong size", blocks),
    ]
}

/// Runs a program, and in it `pages.c`, which reads 64 pages of a file and 64 pages of its own constants.
fn pages(source: &Source, runner: &[&str]) -> Outcome {
    need_events()?;
    let built = source.build()?;
    // Below target: the folder for temporary files may be in memory, whose pages are not a file's. A folder for each
    // call, as this runs several times at once.
    let dir = TempDir::below(&neap_tests::target_dir(), "pagein-pages-")?;
    let file = dir.join("read");
    std::fs::write(&file, vec![0; 64 * 4096])?;
    let command: Vec<&OsStr> = runner.iter().map(OsStr::new).chain([built.as_os_str(), file.as_os_str()]).collect();
    let traces =
        [&["--format", "table"][..], &["--format", "table", "--exact"]].map(|options| Trace::of(options, &command));
    let [usual, exact] = traces;
    let (usual, exact) = (usual?, exact?);
    for (trace, enough) in [(usual, false), (exact, true)] {
        let seen = ["read+0x", "(constants"].map(|words| trace.faults.iter().filter(|l| l.contains(words)).count());
        let fits = if enough { seen == [64, 64] } else { seen.iter().all(|&count| count < 32) };
        if !fits || trace.done.status.code() != Some(0) || trace.says("fault-around was off") != enough {
            return Err(trace.fail(&format!("{seen:?} pages, exact: {enough}")));
        }
    }
    Ok(())
}

/// Checks that the first instruction of each function of `known.c`, which begins a page of its own, has a fault.
fn code(source: &Source) -> Outcome {
    need_events()?;
    let trace = Trace::of(&["--exact", "--format", "table"], &words(&source.build()?, &[]))?;
    for n in ["one", "two", "three", "four", "five", "six", "seven", "eight"] {
        let fits = |line: &&String| line.contains(" C user") && line.contains(&format!(" function_{n} ("));
        if trace.faults.iter().filter(fits).count() != 1 {
            return Err(trace.fail(&format!("not one fault at the start of function_{n}")));
        }
    }
    Ok(())
}

/// Checks that the faults are the same; what their ends add is missing, and the footer says so where the format shows
/// it.
fn begin() -> Outcome {
    need_events()?;
    let command = ODD.build()?;
    let command = words(&command, &["touch"]);
    let [full, begin] = ["full", "begin"].map(|detail| Trace::of(&["--format", "table", "--detail", detail], &command));
    let (full, begin) = (full?, begin?);
    let touched = |trace: &Trace| trace.faults.iter().filter(|line| line.contains(" touch+0x")).count();
    if touched(&begin) != touched(&full) || full.says("missing: service times") || !begin.says("missing: service times")
    {
        return Err(begin.fail(&format!("{} faults in touch, and {}", touched(&begin), touched(&full))));
    }
    let classic = Trace::of(&[], &command)?;
    if classic.says("missing: service times") { Err(classic.fail("the format shows none")) } else { Ok(()) }
}

/// A case of `odd.c` that ends as it does without `--exact`.
fn unchanged(case: &str, status: Option<i32>, faults: usize) -> Outcome {
    need_events()?;
    let trace = Trace::of(&["--exact"], &words(&ODD.build()?, &[case]))?;
    if trace.done.status.code() != status || trace.faults.len() < faults || !trace.says("lost: 0") {
        return Err(trace.fail("the wrong end, or too few faults"));
    }
    Ok(())
}

/// `heap.c` touches 25 pages of a block of 100,000 bytes, 40 pages of one of 300 MiB, and 400 blocks of 1,000 bytes;
/// then it waits.
fn blocks() -> Outcome {
    need_events()?;
    let neap: &Path = neap()?;
    let heap = HEAP.build()?;
    let command = [neap.as_os_str(), OsStr::new("run"), OsStr::new("--"), heap.as_os_str()];
    let trace = Trace::of(&["--format", "table"], &command)?;
    let addresses: Vec<&str> = trace.done.stdout.split_whitespace().collect();
    let [large, huge] = addresses[..] else { return Err(Stop::Fail(trace.done.stdout.clone())) };
    let of = |size: u64| -> Vec<&String> {
        let words = format!("(block of {size} bytes at ");
        trace.faults.iter().filter(|line| line.contains(&words)).collect()
    };
    let at = |lines: &[&String], address: &str| lines.iter().all(|line| line.contains(&format!("at {address})")));
    let (larges, huges, smalls) = (of(102_400), of(300 << 20), of(1024));
    if (larges.len(), huges.len(), smalls.len()) != (25, 40, 100) || !at(&larges, large) || !at(&huges, huge) {
        return Err(trace.fail(&format!("{} {} {}", larges.len(), huges.len(), smalls.len())));
    }
    Ok(())
}
