//! `neap profile`: where the time of allocation goes, on whole programs; its formats, read by other tools; its page in
//! a browser.

mod page;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use neap_tests::command::{neap, need_events};
use neap_tests::sys::TempDir;
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, expect, program};
use serde_json::Value;

/// The program that most cases profile.
pub const WORK: Source = Source::new("profile/work.cc");
const CALLOC: Source = Source::new("../lab/experiments/calloc.c");
const RETAIN_LARGE: Source = Source::new("../lab/experiments/retain-large.c");

const EXAMPLE: Source = Source::with_flags("../docs/examples/cache.cc", &["-O2"]);

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new("time::operations", "time under another operation or caller, or missing", operations),
        Case::new("time::ordinary_user", "a cause that only root sees", ordinary_user),
        Case::new("time::calloc_glibc", "a cause of the calloc experiment's time that is not named, on glibc", || {
            experiment(
                &CALLOC,
                &["--mode", "touched", "--ms", "300"],
                false,
                &[("page faults on fresh memory", "touch")],
            )
        }),
        Case::new("time::calloc_neap", "a cause of the calloc experiment's time that is not named, on neap", || {
            let expected = [("clearing for calloc", "zeroed"), ("page faults on fresh memory", "touch")];
            experiment(&CALLOC, &["--mode", "touched", "--ms", "300"], true, &expected)
        }),
        Case::new("time::retain_large_glibc", "a cause of retain-large's time that is not named, on glibc", || {
            let expected = [("page faults on fresh memory", "touch"), ("giving memory back (munmap, madvise)", "main")];
            experiment(&RETAIN_LARGE, &RETAIN, false, &expected)
        }),
        Case::new("time::retain_large_neap", "a cause of retain-large's time that is not named, on neap", || {
            experiment(&RETAIN_LARGE, &RETAIN, true, &[("page faults on fresh memory", "touch")])
        }),
        Case::new(
            "heap::example",
            "the leak of README.md's example that is not first, or is attributed to a header",
            example,
        ),
        Case::new("time::attach", "a running process that is not profiled, or is disturbed", attach),
        Case::new(
            "time::status",
            "an exit status that is not the program's, or a wrong one for programs that are not found",
            status,
        ),
        Case::new("format::pprof", "a file that go tool pprof rejects, or shows differently", go_pprof),
        Case::new("format::pprof_addresses", "names in a file that should have none", addresses),
        Case::new("format::every", "a format that is empty, or that cannot be made of a written profile", every_format),
        Case::new("show::refused", "a file that is no profile but is shown, or an error without a remedy", refused),
        Case::new("show::type", "a value type that is not shown although it is asked for", value_type),
        Case::new("diff::grew", "growth that is not found, or found in another function", grew),
        Case::new("page::script", "a page whose script fails, or without boxes", page::script),
        Case::new("page::search", "a search that finds nothing, or too much", page::search),
        Case::new("page::functions", "a wide column of numbers, or a name below its marker", page::functions),
        Case::new("page::keyboard", "boxes that the keyboard does not reach, or does not zoom", page::keyboard),
        Case::new("page::diff", "a comparison without colours, or with the wrong ones", page::diff),
        Case::new("page::pictures", "a page that is wider than a narrow screen", page::pictures),
    ])
}

/// Small enough for memory that is shared with other tests.
const RETAIN: [&str; 6] = ["--rounds", "2", "--buffers", "24", "--idle-ms", "0"];

/// Runs `neap profile --time OPTIONS -- COMMAND`.
fn profile(options: &[&str], command: &[&Path]) -> Result<Finished, Stop> {
    need_events()?;
    Run::new(neap()?).args(["profile", "--time"]).args(options).arg("--").args(command).plain().run()
}

/// A profile of the test program, in JSON, and where it is.
pub fn written(dir: &TempDir, name: &str, scale: &str) -> Result<(PathBuf, Value), Stop> {
    let file = dir.join(name);
    let work = WORK.build()?;
    let options = ["--period", "0.5ms", "--format", "json", "-o", file.to_str().unwrap_or_default()];
    let done = profile(&options, &[&work, Path::new(scale)])?;
    expect(done.status.code() == Some(3), &done, "not the program's status")?;
    Ok((file.clone(), parsed(&std::fs::read_to_string(&file)?)?))
}

fn parsed(text: &str) -> Result<Value, Stop> {
    serde_json::from_str(text).map_err(|e| Stop::Fail(format!("no JSON: {e}")))
}

/// The time of an operation on stacks with a function (any for an empty name), in nanoseconds.
fn time(profile: &Value, operation: &str, function: &str) -> i64 {
    let row = |table: &str, id: &Value| &profile[table][id.as_u64().unwrap_or(u64::MAX) as usize];
    let has = |sample: &Value| {
        let mut next = sample["stack"].clone();
        while !next.is_null() {
            let node = row("stacks", &next);
            let frames = row("locations", &node["location"])["frames"].as_array().cloned().unwrap_or_default();
            let name = |frame: &Value| row("functions", &frame["function"])["name"].as_str().map(str::to_owned);
            if frames.iter().filter_map(name).any(|name| name.starts_with(function)) {
                return true;
            }
            next = node["parent"].clone();
        }
        false
    };
    let column = profile["types"].as_array().into_iter().flatten().position(|of| of["name"] == "time").unwrap_or(0);
    let samples = profile["samples"].as_array().into_iter().flatten();
    let of_operation = samples.filter(|sample| {
        operation.is_empty()
            || sample["labels"].as_array().into_iter().flatten().any(|label| label["value"]["text"] == operation)
    });
    of_operation
        .filter(|sample| function.is_empty() || has(sample))
        .filter_map(|sample| sample["values"][column].as_i64())
        .sum()
}

/// Checks that each function has its operation, and nearly all of its time there.
fn operations() -> Outcome {
    let dir = TempDir::new("neap-profile-")?;
    let (file, json) = written(&dir, "work.json", "1")?;
    let shown = Run::new(neap()?).args(["profile", "show"]).arg(&file).plain().run()?.success()?;
    for (function, operations) in [
        ("clears()", &["clearing for calloc"][..]),
        ("touches()", &["page faults on fresh memory", "giving memory back (munmap, madvise)"]),
        ("small_blocks()", &["malloc", "free"]),
    ] {
        let all = time(&json, "", function);
        let found: i64 = operations.iter().map(|operation| time(&json, operation, function)).sum();
        let why = format!("{function}: {found} of {all} ns in {operations:?}");
        // A few samples are of other work: reserving memory, faults on the heap.
        expect(found > 5_000_000 && found * 10 > all * 7, &shown, &why)?;
    }
    expect(time(&json, "", "busy()") < 3_000_000, &shown, "a function that does not allocate")?;
    // calloc is on the stack although it ended in a tail call, and the time outside of the allocator is known.
    expect(time(&json, "clearing for calloc", "calloc") > 5_000_000, &shown, "no calloc on the stack")?;
    let whole = json["whole"].as_i64().unwrap_or(0);
    expect(whole > time(&json, "", "") + 20_000_000, &shown, "no time outside of the allocator")?;
    expect(
        json["allocator"] == "libc.so.6" || !Path::new("/lib/x86_64-linux-gnu/libc.so.6").exists(),
        &shown,
        "no allocator",
    )
}

/// As a user who may not see kernel mode: page faults are counted instead.
fn ordinary_user() -> Outcome {
    if !neap_tests::is_root() {
        return Err(Stop::Skip("only root may become another user".into()));
    }
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    if level.trim() != "2" {
        return Err(Stop::Skip("kernel.perf_event_paranoid is not 2".into()));
    }
    let dir = TempDir::new("neap-profile-")?;
    let (tool, work) = (dir.join("neap"), dir.join("work"));
    for (from, to) in [(neap()?, &tool), (&WORK.build()?, &work)] {
        Run::new("install").args(["-m", "755"]).arg(from).arg(to).plain().run()?.success()?;
    }
    Run::new("chmod").arg("755").arg(dir.path()).plain().run()?.success()?;
    let done = Run::new(program("setpriv")?)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&tool)
        .args(["profile", "--time", "--period", "0.5ms", "--format", "json", "-o", "-", "--"])
        .arg(&work)
        .plain()
        .run()?;
    expect(done.status.code() == Some(3), &done, "not the program's status")?;
    let json = parsed(&done.stdout)?;
    let (clearing, faults) =
        (time(&json, "clearing for calloc", "clears()"), time(&json, "page faults on fresh memory", "touches()"));
    let notes = json["notes"].to_string();
    expect(clearing > 5_000_000 && faults > 5_000_000, &done, &format!("{clearing} and {faults} ns"))?;
    expect(notes.contains("perf_event_paranoid=1") && notes.contains("counted, not timed"), &done, "no word of it")
}

/// Checks that the expected operations of an experiment of the lab have at least three quarters of its time in the
/// allocator.
fn experiment(source: &Source, arguments: &[&str], on_neap: bool, expected: &[(&str, &str)]) -> Outcome {
    need_events()?;
    let built = source.build()?;
    let mut run = Run::new(neap()?).args(["profile", "--time", "--period", "0.5ms", "--format", "json", "-o"]);
    let dir = TempDir::new("neap-profile-")?;
    let file = dir.join("profile.json");
    run = run.arg(&file).arg("--");
    if on_neap {
        run = run.arg(neap()?).args(["run", "--"]);
    }
    let done = run.arg(&built).args(arguments).plain().run()?.success()?;
    let json = parsed(&std::fs::read_to_string(&file)?)?;
    let all = time(&json, "", "");
    let found: i64 = expected.iter().map(|(operation, function)| time(&json, operation, function)).sum();
    let shown = Run::new(neap()?).args(["profile", "show"]).arg(&file).plain().run()?.success()?;
    expect(all > 20_000_000, &done, &format!("only {all} ns"))?;
    expect(found * 4 > all * 3, &shown, &format!("{found} of {all} ns in {expected:?}"))?;
    let allocator = json["allocator"].as_str().unwrap_or_default();
    // Where all time is spent on faults in the program, no stack contains an allocator, or only that of the command's
    // own start.
    let is_neap = allocator.is_empty() || allocator == "neap" || allocator.starts_with("libneap");
    expect(!on_neap || is_neap, &shown, "another allocator")
}

/// The program of README.md, whose memory is held by inlined code.
fn example() -> Outcome {
    let options = ["profile", "--heap", "--interval", "16K", "--"];
    let done = Run::new(neap()?).args(options).arg(EXAMPLE.build()?).plain().run()?.success()?;
    let first = done.stderr.lines().find(|line| line.contains(" ← ") || line.contains("cache.cc:")).unwrap_or_default();
    let is_right = first.contains("Cache::keep(") && first.contains("(cache.cc:") && first.ends_with("← main");
    expect(is_right, &done, "another site is first")?;
    for part in ["live: ", "load_settings() (cache.cc:", "12.0 MiB"] {
        expect(done.stderr.contains(part), &done, part)?;
    }
    Ok(())
}

fn attach() -> Outcome {
    need_events()?;
    let work = WORK.build()?;
    let mut child = Command::new(&work).arg("40").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_millis(50));
    let pid = child.id().to_string();
    let options = ["profile", "--time", "--format", "json", "-o", "-", "--duration", "500ms", "--pid", &pid];
    let done = Run::new(neap()?).args(options).plain().run();
    let alive = child.try_wait()?.is_none();
    let _ = (child.kill(), child.wait());
    let done = done?.success()?;
    let json = parsed(&done.stdout)?;
    let found = time(&json, "clearing for calloc", "clears()");
    expect(found > 50_000_000 && alive, &done, &format!("{found} ns, alive: {alive}"))?;
    let gone = Run::new(neap()?).args(["profile", "--time", "--pid", &pid]).plain().run()?;
    expect(gone.status.code() == Some(125) && gone.stderr.contains("no such process"), &gone, "a process that is gone")
}

fn status() -> Outcome {
    let done = profile(&[], &[Path::new("sh"), Path::new("-c"), Path::new("kill -TERM $$")])?;
    expect(done.status.code().is_none() || done.status.code() == Some(143), &done, "not the signal's status")?;
    let done = profile(&[], &[Path::new("/nonexistent/program")])?;
    expect(done.status.code() == Some(127), &done, "not the status of what is not found")?;
    let file = Path::new("/nonexistent/file");
    let done = profile(&["--format", "json", "-o", "/nonexistent/file"], &[Path::new("true")])?;
    expect(
        done.status.code() == Some(125) && done.stderr.contains("name another file"),
        &done,
        &file.to_string_lossy(),
    )?;
    let done = Run::new(neap()?).args(["profile", "--time"]).plain().run()?;
    expect(
        done.status.code() == Some(125) && done.stderr.contains("neap profile --time -- PROGRAM"),
        &done,
        "no remedy",
    )
}

/// The go command, wherever its packages install it.
fn go() -> Result<PathBuf, Stop> {
    program("go").or_else(|_| program("/usr/local/go/bin/go"))
}

fn go_pprof() -> Outcome {
    let go = go()?;
    let dir = TempDir::new("neap-profile-")?;
    let (json, _) = written(&dir, "work.json", "1")?;
    let file = dir.join("work.pb.gz");
    let options = ["profile", "show", "--format", "pprof", "-o"];
    Run::new(neap()?).args(options).arg(&file).arg(&json).plain().run()?.success()?;
    let tool = |arguments: &[&str]| {
        Run::new(&go)
            .args(["tool", "pprof"])
            .args(arguments)
            .arg(&file)
            .env("HOME", dir.path())
            .plain()
            .run()?
            .success()
    };
    let top = tool(&["-top", "-cum"])?;
    for part in ["Type: time", "clears()", "touches()", "small_blocks()", "calloc"] {
        expect(top.stdout.contains(part), &top, part)?;
    }
    expect(
        top.stdout.contains(&format!("File: {}", WORK.build()?.file_name().unwrap_or_default().to_string_lossy())),
        &top,
        "another program",
    )?;
    let tags = tool(&["-tags"])?;
    expect(tags.stdout.contains("clearing for calloc"), &tags, "no operations")?;
    let raw = tool(&["-raw"])?;
    expect(
        raw.stdout.contains("PeriodType: cpu nanoseconds") && raw.stdout.contains("samples/count time/nanoseconds"),
        &raw,
        "types",
    )?;
    // And back again.
    let shown = Run::new(neap()?).args(["profile", "show"]).arg(&file).plain().run()?.success()?;
    let first = Run::new(neap()?).args(["profile", "show"]).arg(&json).plain().run()?.success()?;
    expect(shown.stdout == first.stdout, &shown, &first.stdout)
}

fn addresses() -> Outcome {
    let go = go()?;
    let dir = TempDir::new("neap-profile-")?;
    let (json, _) = written(&dir, "work.json", "1")?;
    let file = dir.join("work.pb.gz");
    let options = ["profile", "show", "--format", "pprof", "--no-symbols", "-o"];
    Run::new(neap()?).args(options).arg(&file).arg(&json).plain().run()?.success()?;
    let tool = |arguments: &[&str]| {
        Run::new(&go)
            .args(["tool", "pprof"])
            .args(arguments)
            .arg(&file)
            .env("HOME", dir.path())
            .plain()
            .run()?
            .success()
    };
    let raw = tool(&["-symbolize=none", "-raw"])?;
    expect(!raw.stdout.contains("clears"), &raw, "names")?;
    // pprof finds the names in the program's file by itself only if build ids and mappings are right.
    let top = tool(&["-symbolize=local", "-top", "-cum"])?;
    expect(top.stdout.contains("clears"), &top, "pprof does not find the names")
}

fn every_format() -> Outcome {
    let dir = TempDir::new("neap-profile-")?;
    let (json, _) = written(&dir, "work.json", "1")?;
    for (format, part) in [
        ("text", "clearing for calloc"),
        ("folded", "main;clears();calloc;"),
        ("firefox", "\"weightType\""),
        ("json", "\"schema\":\"neap-profile\""),
        ("html", "id=\"graph\""),
    ] {
        let done =
            Run::new(neap()?).args(["profile", "show", "--format", format, "-o", "-"]).arg(&json).plain().run()?;
        let done = done.success()?;
        expect(done.stdout.contains(part), &done, part)?;
    }
    let done = Run::new(neap()?).args(["profile", "show", "--format", "xml"]).arg(&json).plain().run()?;
    expect(done.status.code() == Some(125) && done.stderr.contains("the formats are text, pprof"), &done, "no list")
}

fn refused() -> Outcome {
    let dir = TempDir::new("neap-profile-")?;
    let bad = dir.join("bad");
    for (text, why) in [
        ("", "it is empty"),
        ("hello", "neither JSON nor"),
        ("{}", "no profile of neap"),
        ("\u{1f}\u{8b}", "neither JSON nor"),
    ] {
        std::fs::write(&bad, text)?;
        let done = Run::new(neap()?).args(["profile", "show"]).arg(&bad).plain().run()?;
        let fits =
            done.status.code() == Some(125) && done.stderr.contains(why) && done.stderr.contains("--format json");
        expect(fits && done.stdout.is_empty(), &done, why)?;
    }
    let done = Run::new(neap()?).args(["profile", "show", "/nonexistent"]).plain().run()?;
    expect(done.status.code() == Some(125) && done.stderr.contains("No such file"), &done, "no cause")
}

fn value_type() -> Outcome {
    let dir = TempDir::new("neap-profile-")?;
    let (json, _) = written(&dir, "work.json", "1")?;
    let done = Run::new(neap()?).args(["profile", "show", "--type", "samples"]).arg(&json).plain().run()?.success()?;
    expect(done.stdout.contains("samples: ") && !done.stdout.contains(" ms  "), &done, "another type")?;
    let done = Run::new(neap()?).args(["profile", "show", "--type", "inuse_space"]).arg(&json).plain().run()?;
    expect(done.status.code() == Some(125) && done.stderr.contains("samples, time"), &done, "no list")
}

fn grew() -> Outcome {
    let dir = TempDir::new("neap-profile-")?;
    let (before, _) = written(&dir, "before.json", "1")?;
    let (after, _) = written(&dir, "after.json", "4")?;
    let run = |options: &[&str]| {
        Run::new(neap()?).args(["profile", "diff"]).args(options).args([&before, &after]).plain().run()?.success()
    };
    let json = parsed(&run(&["--json"])?.stdout)?;
    let sites = json["sites"].as_array().cloned().unwrap_or_default();
    let growth = |function: &str| -> i64 {
        let of = sites.iter().filter(|site| site["function"].as_str().is_some_and(|name| name.starts_with(function)));
        of.map(|site| site["after"].as_i64().unwrap_or(0) - site["before"].as_i64().unwrap_or(0)).sum()
    };
    let text = run(&[])?;
    for function in ["clears()", "touches()", "small_blocks()"] {
        expect(growth(function) > 5_000_000, &text, &format!("{function}: {} ns", growth(function)))?;
    }
    expect(text.stdout.contains("  +") && json["unit"] == "nanoseconds", &text, "no growth")
}
