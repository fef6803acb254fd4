//! Option `stats`: what a process reports when it exits, and where nothing may be written.

use std::path::Path;
use std::process::ExitCode;

use neap_tests::process::Finished;
use neap_tests::sys::TempDir;
use neap_tests::{Case, Outcome, Run, Source, Stop, expect, library, program, suite};

const ENDS: Source = Source::new("stats/ends.c");

fn main() -> ExitCode {
    suite::main(vec![
        Case::new(
            "stats::at_exit",
            "a report that is missing, or differs from the summary in words or figures",
            at_exit,
        ),
        Case::new("stats::closed_by_the_program", "programs that close standard error when they exit", coreutils),
        Case::new("stats::of_children", "children that report nothing, or into the file of their parent", children),
        Case::new("stats::in_one_file", "reports of several processes that mix", one_file),
        Case::new("stats::no_exit", "a report by a process that ends by _exit or a signal", no_exit),
        Case::new("stats::by_a_handler", "a hang where a handler ends the process", || {
            reports(&run("handler", "exit", &[])?.stderr, 1)
        }),
        Case::new("stats::bare_children", "a child without fork handlers that waits for a lock when it exits", || {
            reports(&run("bare", "exit", &[])?.success()?.stderr, 1)
        }),
        Case::new("stats::closed_above", "no report where a program has closed all files but the first three", || {
            reports(&run("above", "exit", &[])?.success()?.stderr, 1)
        }),
        Case::new("stats::name", "a name that breaks the line, or controls a terminal", || {
            let done = run("named", "exit", &[])?.success()?;
            reports(&done.stderr, 1)?;
            done.contains("(a?b?[2J)").map(drop)
        }),
        Case::new("stats::other_files", "a report in another file that has the number of standard error", other_files),
        Case::new("stats::without_standard_error", "a report where there is no standard error", closed),
        Case::new("stats::refused", "a bad value, or a file that cannot be written, without a message", refused),
        Case::new("stats::peak", "a peak that another program had, before this one or in its parent", peak),
        Case::new("stats::with_counts", "counts of the option `counters` that are missing in the report", with_counts),
    ])
}

fn run(way: &str, stats: &str, arguments: &[&Path]) -> Result<Finished, Stop> {
    library::require_neap()?;
    Run::new(ENDS.build()?).arg(way).args(arguments).env("NEAP_STATS", stats).run()
}

/// Checks that the text is `count` whole reports, and nothing else.
fn reports(text: &str, count: usize) -> Outcome {
    const LINES: [&str; 6] = [
        "neap: process ",
        "  peak resident  ",
        "  faults         ",
        "  live at exit   ",
        "  given back     ",
        "  calloc         ",
    ];
    let lines: Vec<&str> = text.lines().collect();
    let whole = lines.chunks(LINES.len()).all(|lines| {
        lines.len() == LINES.len() && lines.iter().zip(LINES).all(|(line, beginning)| line.starts_with(beginning))
    });
    if whole && lines.len() == count * LINES.len() {
        Ok(())
    } else {
        Err(Stop::Fail(format!("not {count} reports:\n{text}")))
    }
}

fn at_exit() -> Outcome {
    let done = run("", "exit", &[])?.success()?;
    reports(&done.stderr, 1)?;
    let first = done.stderr.lines().next().unwrap_or_default();
    let live = done.stderr.lines().find(|line| line.contains("live at exit")).unwrap_or_default();
    let blocks = live.split_whitespace().nth(3).and_then(|count| count.parse::<u64>().ok());
    if first.contains(" (ends-")
        && blocks.is_some_and(|blocks| (1..100).contains(&blocks))
        && live.ends_with(" 3.0 MiB")
    {
        return Ok(());
    }
    Err(done.fail("another process, or other blocks"))
}

fn coreutils() -> Outcome {
    library::require_neap()?;
    let done = Run::new(program("ls")?).arg("/").env("NEAP_STATS", "exit").run()?.success()?;
    reports(&done.stderr, 1)
}

fn children() -> Outcome {
    let dir = TempDir::new("stats")?;
    let path = dir.join("ends.%p");
    run("fork", &path.to_string_lossy(), &[])?.success()?.no_complaint()?;
    let mut files = 0;
    for entry in std::fs::read_dir(dir.path())? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        reports(&text, 1)?;
        let pid = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        if !text.starts_with(&format!("neap: process {pid} (ends-")) {
            return Err(Stop::Fail(format!("{}:\n{text}", path.display())));
        }
        files += 1;
    }
    if files == 3 { Ok(()) } else { Err(Stop::Fail(format!("{files} files of 3 processes"))) }
}

fn one_file() -> Outcome {
    let dir = TempDir::new("stats")?;
    let path = dir.join("all");
    // The path is absolute, because a process may change its folder.
    run("moves", &path.to_string_lossy(), &[])?.success()?.no_complaint()?;
    run("fork", &path.to_string_lossy(), &[])?.success()?.no_complaint()?;
    reports(&std::fs::read_to_string(path)?, 4)
}

fn no_exit() -> Outcome {
    reports(&run("_exit", "exit", &[])?.success()?.stderr, 0)?;
    reports(&run("abort", "exit", &[])?.stderr, 0)
}

fn other_files() -> Outcome {
    let dir = TempDir::new("stats")?;
    let file = dir.join("file");
    for (way, count) in [("closed", 1), ("all", 1)] {
        reports(&run(way, "exit", &[&file])?.success()?.stderr, count)?;
        if std::fs::metadata(&file)?.len() > 0 {
            return Err(Stop::Fail(format!("{way}: {}", std::fs::read_to_string(&file)?)));
        }
    }
    Ok(())
}

fn closed() -> Outcome {
    let dir = TempDir::new("stats")?;
    let file = dir.join("file");
    let script = format!("exec 2>&-; exec {} closed {}", ENDS.build()?.display(), file.display());
    library::require_neap()?;
    let done = Run::new("sh").args(["-c", &script]).env("NEAP_STATS", "exit").run()?.success()?;
    reports(&done.stderr, 0)?;
    reports(&std::fs::read_to_string(&file)?, 0)
}

fn refused() -> Outcome {
    let want = |stats: &str, wanted: &str| {
        let done = run("", stats, &[])?.success()?;
        if done.stderr == wanted { Ok(()) } else { Err(done.fail(&format!("wanted:\n{wanted}"))) }
    };
    let use_ = "use exit, the path of a file with a slash in it (%p: the process), or off; the default is used: off\n";
    want("exti", &format!("neap: NEAP_STATS=exti is invalid; {use_}"))?;
    want(
        "/nonexistent/file",
        &format!(
            "neap: NEAP_STATS=/nonexistent/file does not work: no file can be made there, or a filter of system \
             calls is in the way; {use_}"
        ),
    )?;
    want("/dev/full", "neap: NEAP_STATS: the file cannot be written (error 28)\n")?;
    want("off", "")
}

/// A program of 100 MiB starts `true`, which reports its own peak.
fn peak() -> Outcome {
    for way in ["spawn", "exec"] {
        let done = run(way, "exit", &[])?.success()?;
        let mut lines = done.stderr.lines().skip_while(|line| !line.ends_with(" (true)"));
        let line = lines.nth(1).and_then(|line| line.trim_start().strip_prefix("peak resident "));
        let mebibytes = line.and_then(|text| text.trim().strip_suffix(" MiB")?.parse::<f64>().ok());
        expect(mebibytes.is_some_and(|peak| peak < 20.0), &done, "`true` had no 20 MiB")?;
    }
    Ok(())
}

fn with_counts() -> Outcome {
    library::require_neap()?;
    let dir = TempDir::new("stats")?;
    let done = Run::new(ENDS.build()?).env("NEAP_STATS", "exit").env("NEAP_COUNTERS", dir.path()).run()?.success()?;
    let line =
        |label: &str| done.stderr.lines().any(|line| line.trim_start().starts_with(label) && line.contains(" block"));
    if line("allocated ") && line("freed ") && line("live at exit ") { Ok(()) } else { Err(done.fail("no counts")) }
}
