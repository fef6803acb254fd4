//! The formats of `neap pagein` and `neap pagein diff`, on whole programs; the page of HTML in a browser.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use neap_tests::browser::{self, found, found_number, look};
use neap_tests::command::{neap, need_events};
use neap_tests::profiler::Profile;
use neap_tests::sys::TempDir;
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, expect, program};
use serde_json::Value;

const ODD: Source = Source::new("pagein/odd.c");
const CALLERS: Source =
    Source::with_flags("pagein/callers.c", &["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]);

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new("format::csv", "lines that are no faults, or a missing footer", csv),
        Case::new("format::json", "a trace that is no JSON, or lacks what its faults refer to", json),
        Case::new("format::json_option", "a trace that is no JSON although --json asks for it", || {
            need_events()?;
            let done =
                Run::new(neap()?).args(["pagein", "--json", "-o", "-", "--", "true"]).plain().run()?.success()?;
            let fits = parsed(&done.stdout)?["neap_trace"] == 1;
            expect(fits, &done, "no trace")?;
            let both = Run::new(neap()?).args(["pagein", "--json", "--format", "csv", "--", "true"]).plain().run()?;
            expect(!both.status.success() && both.stderr.contains("cannot be used with"), &both, "two formats at once")
        }),
        Case::new("format::folded", "stacks in the wrong order", folded),
        Case::new("format::firefox", "a profile without samples or functions", firefox),
        Case::new("format::profiler", "a profile that the Firefox Profiler rejects, or shows differently", profiler),
        Case::new("format::names", "a default file name without the ending of its format", names),
        Case::new("format::unknown", "an unknown format without an error", || {
            let done = Run::new(neap()?).args(["pagein", "--format", "xml", "--", "true"]).plain().run()?;
            expect(done.status.code() == Some(125) && done.stderr.contains("the formats are classic"), &done, "no list")
        }),
        Case::new("html::page", "a page whose script fails, or that lacks its rows", page_in_a_browser),
        Case::new("html::search", "a search that finds nothing, or too much", search_in_a_browser),
        Case::new(
            "html::lists",
            "lists without times, callers or allocation sites, or that never show more than 15 rows",
            lists,
        ),
        Case::new("show::formats", "a kept trace that changes when it is converted", shown),
        Case::new("html::many", "a page that is slow with 100,000 faults", many_in_a_browser),
        Case::new("html::drawn", "charts in which nothing is drawn", drawn),
        Case::new("html::pictures", "a page that is wider than a narrow screen", pictures),
        Case::new(
            "order::picture",
            "a picture of a binary that is wider than the window, or not beside the other",
            picture,
        ),
        Case::new("diff::text", "a difference of two runs that is not found", diff_text),
        Case::new("diff::json", "a comparison that is not valid JSON", diff_json),
        Case::new("diff::refused", "a file that is no trace, but is compared", diff_refused),
        Case::new("diff::program", "a program named `diff` that does not run", || {
            let done =
                Run::new(neap()?).args(["pagein", "-o", "/dev/null", "--", "diff", "--version"]).plain().run()?;
            expect(done.stdout.contains("diff"), &done.success()?, "the program was not run")
        }),
    ])
}

/// Runs `neap pagein --format FORMAT OPTIONS -o FILE -- COMMAND`.
fn trace(format: &str, options: &[&str], file: &Path, command: &[&OsStr]) -> Result<(Finished, String), Stop> {
    need_events()?;
    let done = Run::new(neap()?)
        .args(["pagein", "--format", format, "-o"])
        .arg(file)
        .args(options)
        .arg("--")
        .args(command)
        .plain()
        .run()?
        .success()?;
    let text = std::fs::read_to_string(file)?;
    Ok((done, text))
}

/// A trace of `odd.c`.
fn odd(format: &str, case: &str) -> Result<(Finished, String, TempDir, PathBuf), Stop> {
    let dir = TempDir::new("neap-formats-")?;
    let file = dir.path().join(format!("trace.{format}"));
    let (done, text) = trace(format, &[], &file, &[ODD.build()?.as_os_str(), OsStr::new(case)])?;
    Ok((done, text, dir, file))
}

fn parsed(text: &str) -> Result<Value, Stop> {
    serde_json::from_str(text).map_err(|e| Stop::Fail(format!("no JSON: {e}")))
}

fn csv() -> Outcome {
    let (done, text, ..) = odd("csv", "touch")?;
    let mut lines = text.lines();
    let names = lines.next().unwrap_or_default();
    let numbered = lines.zip(1..).all(|(line, number)| line.starts_with(&format!("{number},")));
    let count = text.lines().count() - 1;
    expect(names.starts_with("number,time_ns,") && numbered && count > 1000, &done, "other lines than faults")?;
    expect(
        done.stderr.contains(&format!("# neap {} pagein: {count} faults", env!("CARGO_PKG_VERSION"))),
        &done,
        "no footer",
    )
}

fn json() -> Outcome {
    let (done, text, ..) = odd("json", "touch")?;
    let trace = parsed(&text)?;
    let faults = trace["faults"].as_array().map_or(0, Vec::len);
    expect(trace["neap_trace"] == 1 && trace["summary"]["faults"] == faults && faults > 1000, &done, "wrong counts")?;
    let names: Vec<&str> = trace["faults"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|fault| trace["places"][fault["code"].as_u64()? as usize]["symbol"].as_u64())
        .filter_map(|symbol| trace["symbols"][symbol as usize]["name"].as_str())
        .collect();
    expect(names.iter().any(|name| ["touch", "main"].contains(name)), &done, "no fault of the program's own")?;
    expect(trace["clock"]["wall"].as_u64().is_some_and(|wall| wall > 1_700_000_000_000_000_000), &done, "no wall clock")
}

fn folded() -> Outcome {
    let dir = TempDir::new("neap-formats-")?;
    let command = CALLERS.build()?;
    let (done, text) = trace("folded", &["--callgraph", "fp"], &dir.path().join("folded"), &[command.as_os_str()])?;
    let stack = text.lines().any(|line| line.contains("main;outermost;middle;innermost "));
    expect(stack, &done, &format!("no stack of main, outermost, middle, innermost\n{text}"))?;
    let (_, text) = trace("folded", &[], &dir.path().join("folded"), &[command.as_os_str()])?;
    expect(text.lines().any(|line| line.contains(";innermost ")), &done, &format!("no object and function\n{text}"))
}

fn firefox() -> Outcome {
    let (done, text, ..) = odd("firefox", "touch")?;
    let profile = parsed(&text)?;
    let threads = profile["threads"].as_array().map_or(&[][..], Vec::as_slice);
    let samples: u64 = threads.iter().filter_map(|thread| thread["samples"]["length"].as_u64()).sum();
    let has = |thread: &Value, name: &str| {
        thread["stringArray"].as_array().is_some_and(|texts| texts.iter().any(|t| t == name))
    };
    let function = threads.iter().any(|thread| has(thread, "main") || has(thread, "touch"));
    expect(samples > 1000 && function, &done, &format!("{samples} samples"))
}

/// The stacks, threads, kinds and markers that the Firefox Profiler finds in a profile.
fn profiler() -> Outcome {
    let dir = TempDir::new("neap-formats-")?;
    let file = dir.path().join("profile");
    let command = CALLERS.build()?;
    let (done, text) = trace("firefox", &["--callgraph", "fp"], &file, &[command.as_os_str()])?;
    let wanted = parsed(&text)?["threads"][0]["samples"]["length"].as_u64();
    let profile = Profile::load(&file)?;
    let thread = &profile.ask(&["thread", "list"])?["threads"][0];
    let samples = profile.ask(&["thread", "samples"])?;
    let kinds = &samples["categoryBreakdown"];
    let first_touch = "first touch of anonymous memory";
    let kind = kinds["categories"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == first_touch));
    let counted = kinds["totalSamples"].as_u64() == wanted && thread["markerCount"].as_u64() == wanted;
    expect(wanted > Some(20) && counted && kind, &done, &format!("{wanted:?} faults, {thread}, {kinds}"))?;
    let tree = profile.ask(&["thread", "samples-top-down"])?;
    // Down the tree, whatever else lies on the way: how many of the names were met, in their order.
    let way = ["main", "outermost", "middle", "innermost"];
    let mut nodes = vec![(&tree, 0)];
    let mut found = 0;
    while let Some((node, depth)) = nodes.pop() {
        let name = node["name"].as_str().unwrap_or_default();
        let depth = depth + usize::from(way.get(depth).is_some_and(|wanted| name.ends_with(wanted)));
        found = found.max(depth);
        nodes.extend(node.as_object().into_iter().flat_map(|all| all.values()).map(|value| (value, depth)));
        nodes.extend(node.as_array().into_iter().flatten().map(|value| (value, depth)));
    }
    expect(found == way.len(), &done, &format!("a tree without the stack: {tree}"))
}

fn names() -> Outcome {
    need_events()?;
    for (format, ending) in [("table", ""), ("json", ".json"), ("html", ".html")] {
        let dir = TempDir::new("neap-formats-")?;
        let command = ["pagein", "--format", format, "--", "sh", "-c", "echo $$"];
        let done = Run::new(neap()?).args(command).dir(dir.path()).plain().run()?.success()?;
        let file = dir.path().join(format!("pagein.{}{ending}", done.stdout.trim()));
        expect(file.is_file(), &done, &format!("no {}", file.display()))?;
    }
    Ok(())
}

/// A copy of the page with a test script at its end.
fn with_script(page: &Path, script: &str) -> Result<PathBuf, Stop> {
    let tried = page.with_extension("tried.html");
    let text = std::fs::read_to_string(page)?;
    std::fs::write(&tried, text.replace("</body>", &format!("<script>{script}</script></body>")))?;
    Ok(tried)
}

fn page_in_a_browser() -> Outcome {
    program("chromium")?;
    let (_, _, dir, page) = odd("html", "touch")?;
    let done = browser::open(&dir, &["--dump-dom"], &page)?;
    let faults = found_number(&done, "ready")?;
    // 100 faults, and a row of column names; lists of kinds and mappings have rows of their own.
    let rows = done.stdout.matches("<tr role=\"row\"").count();
    expect(faults > 1000.0 && rows == 101, &done, &format!("{faults} faults, {rows} rows"))?;
    let function = [">main<", ">touch<"].iter().any(|name| done.stdout.contains(name));
    expect(done.stdout.contains(">[anon]<") && function, &done, "no mapping or function in the lists")
}

fn search_in_a_browser() -> Outcome {
    program("chromium")?;
    let (_, _, dir, page) = odd("html", "kinds")?;
    let script = "const search = document.getElementById('search');
        search.value = 'no such thing';
        search.dispatchEvent(new Event('input'));
        setTimeout(() => {
            document.body.dataset.none = document.querySelectorAll('#body tr').length;
            search.value = 'libc.so';
            search.dispatchEvent(new Event('input'));
            setTimeout(() => {
                const rows = [...document.querySelectorAll('#body tr')];
                document.body.dataset.some = rows.length;
                document.body.dataset.right = rows.filter(row => row.textContent.includes('libc.so')).length;
                document.getElementById('clear').click();
                document.body.dataset.all = document.getElementById('count').textContent.split(' ')[0];
            }, 500);
        }, 500);";
    let done = browser::open(&dir, &["--dump-dom", "--virtual-time-budget=5000"], &with_script(&page, script)?)?;
    let number = |name| found_number(&done, name);
    let (none, some, right) = (number("none")?, number("some")?, number("right")?);
    expect(none == 0.0 && some > 0.0 && right > some / 2.0, &done, &format!("{none}, {some}, {right}"))?;
    expect(number("all")? == number("ready")?, &done, "a filter that stays")
}

/// Checks that lists are sorted by time, and get more rows on request.
fn lists() -> Outcome {
    program("chromium")?;
    let dir = TempDir::new("neap-formats-")?;
    let page = dir.path().join("trace.html");
    let command = ["python3", "-c", "import json"].map(OsStr::new);
    trace("html", &["--sites", "--callgraph", "dwarf"], &page, &command)?;
    let script = "const rows = (id) => page.querySelectorAll('#' + id + ' tbody tr').length;
        const heads = [...page.querySelectorAll('#symbols thead th')].map((head) => head.textContent).join();
        const hidden = ['sites', 'callers'].filter((id) => page.getElementById(id).closest('section').hidden).length;
        const before = rows('symbols');
        page.getElementById('symbols-more').click();
        return { heads, hidden, before, after: rows('symbols'), sites: rows('sites'), callers: rows('callers'),
                 lead: page.getElementById('lead').textContent };";
    let done = browser::look(&dir, &page, 1000, &[], script)?;
    let number = |name| found_number(&done, name);
    expect(found(&done, "heads")? == "Function,Time,Faults" && number("hidden")? == 0.0, &done, "no times or lists")?;
    expect(number("before")? == 15.0 && number("after")? > 15.0, &done, "no more rows")?;
    expect(number("sites")? > 3.0 && number("callers")? > 3.0, &done, "no sites or callers")?;
    expect(found(&done, "lead")?.contains("which took"), &done, "no time in all")
}

/// Checks that what `neap pagein show` writes of a JSON trace is what a run in that format would have written.
fn shown() -> Outcome {
    let (_, json, dir, file) = odd("json", "touch")?;
    let show = |options: &[&str]| Run::new(neap()?).args(["pagein", "show"]).arg(&file).args(options).plain().run();
    let again = show(&["--format", "json"])?.success()?;
    let (before, after) = (parsed(&json)?, parsed(&again.stdout)?);
    expect(before == after, &again, "another trace")?;
    let csv = show(&["--format", "csv"])?.success()?;
    let faults = before["faults"].as_array().map_or(0, Vec::len);
    expect(faults > 1000 && csv.stdout.lines().count() == faults + 1, &csv, "other faults")?;
    let page = dir.path().join("page.html");
    let written = show(&["--format", "html", "-o", &page.to_string_lossy()])?.success()?;
    expect(std::fs::read_to_string(&page)?.contains("<!doctype html>"), &written, "no page")?;
    let summary = show(&[])?.success()?;
    let says = ["the kernel counts ", "FUNCTION", "MAPPING", "[anon]"];
    expect(says.iter().all(|words| summary.stdout.contains(words)), &summary, "no summary")?;
    let refused = Run::new(neap()?).args(["pagein", "show"]).arg(&page).plain().run()?;
    expect(
        refused.status.code() == Some(125) && refused.stderr.contains("not in the format json"),
        &refused,
        "a page is no trace",
    )
}

fn many_in_a_browser() -> Outcome {
    program("chromium")?;
    let (_, _, dir, page) = odd("html", "many")?;
    let script = "const kind = document.getElementById('kind');
        const took = [];
        for (let i = 0; i < 10; i++) {
            const start = performance.now();
            kind.value = ['0', ''][i % 2];
            kind.dispatchEvent(new Event('change'));
            took.push(performance.now() - start);
        }
        document.body.dataset.took = Math.min(...took);";
    let done = browser::open(&dir, &["--dump-dom"], &with_script(&page, script)?)?;
    let (faults, took) = (found_number(&done, "ready")?, found_number(&done, "took")?);
    let size = std::fs::metadata(&page)?.len();
    neap_tests::suite::note(format!("{faults} faults: a page of {size} bytes; a filter takes {took:.0} ms"));
    // An idle machine takes 100 ms. The least of ten: a page that is slow is slow each time.
    expect(
        faults > 110_000.0 && took < 1000.0 && size < 5 << 20,
        &done,
        &format!("{faults} faults, {took} ms, {size} bytes"),
    )
}

/// Checks that charts are drawn: the colours of kinds in the chart of faults over time; in the address space, something
/// in each bar, and a colour for each page by the order of touches.
fn drawn() -> Outcome {
    program("chromium")?;
    let (_, _, dir, page) = odd("html", "touch")?;
    let script = "const colours = (canvas) => {
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            const counts = new Map();
            for (let i = 0; i < data.length; i += 4) {
                const colour = [data[i], data[i + 1], data[i + 2]].join(' ');
                if (data[i + 3] === 255) counts.set(colour, (counts.get(colour) || 0) + 1);
            }
            return counts;
        };
        const swatches = [...page.querySelectorAll('#legend .swatch')].map((swatch) =>
            inside.getComputedStyle(swatch).backgroundColor.match(/[0-9]+/g).slice(0, 3).join(' '));
        const timeline = colours(page.getElementById('timeline'));
        const bars = [...page.querySelectorAll('#space canvas')].map(colours);
        return {
            kinds: swatches.length,
            shown: swatches.filter((colour) => timeline.has(colour)).length,
            pixels: Math.max(...swatches.map((colour) => timeline.get(colour) || 0)),
            bars: bars.length,
            empty: bars.filter((bar) => bar.size === 0).length,
            colours: Math.max(...bars.map((bar) => bar.size)),
        };";
    let done = browser::look(&dir, &page, 1000, &[], script)?;
    let number = |name| found_number(&done, name);
    let (kinds, shown, pixels) = (number("kinds")?, number("shown")?, number("pixels")?);
    let (bars, empty, colours) = (number("bars")?, number("empty")?, number("colours")?);
    // A kind with few faults can be less than a pixel high.
    expect(
        kinds >= 3.0 && shown >= 2.0 && pixels > 50.0,
        &done,
        &format!("{shown} of {kinds} kinds, {pixels} pixels"),
    )?;
    expect(bars > 5.0 && empty == 0.0 && colours > 10.0, &done, &format!("{empty} of {bars} bars, {colours} colours"))
}

/// Checks the page in wide, narrow and dark windows.
fn pictures() -> Outcome {
    let (_, _, dir, page) = odd("html", "forks")?;
    let wanted = [("wide", 1280, false), ("narrow", 400, false), ("dark", 1280, true)];
    browser::pictures(&dir, &page, &wanted, 2400, 20_000)?;
    let done = browser::look(&dir, &page, 400, &[], "return { wide: page.documentElement.scrollWidth };")?;
    let wide = found_number(&done, "wide")?;
    expect(wide <= 400.0, &done, &format!("the page is {wide} pixels wide"))
}

/// Checks pictures of a program that touches little and of the same program when it touches much.
fn picture() -> Outcome {
    let dir = TempDir::new("neap-formats-")?;
    let folder = dir.path().join("a_folder_with_a_name_of_some_length/x86_64_unknown_linux_gnu");
    std::fs::create_dir_all(&folder)?;
    let [before, after] =
        ["the_program_that_was_there_before", "the_program_that_was_there_after"].map(|name| folder.join(name));
    let [trace, page] = ["trace", "picture.html"].map(|name| dir.path().join(name));
    for program in [&before, &after] {
        neap_tests::install(&ODD.build()?, program)?;
    }
    let order = |action: &str| Ok::<_, Stop>(Run::new(neap()?).args(["order", action, "-o"]).plain());
    order("trace")?.arg(&trace).arg("--").arg(&before).run()?;
    let drawn = order("picture")?.arg(&page).arg("--after").arg(&trace).arg(&after).arg(&trace).arg(&before);
    drawn.run()?.success()?;
    let script = "const tops = [...page.querySelectorAll('section')].map(section => section.offsetTop);
        return { wide: page.documentElement.scrollWidth, beside: tops.length == 2 && tops[0] == tops[1],
                 phone: page.querySelectorAll('meta[name=viewport]').length };";
    for (width, beside) in [(390, "false"), (1200, "true")] {
        let done = look(&dir, &page, width, &[], script)?;
        let wide = found(&done, "wide")?;
        expect(wide == width.to_string(), &done, &format!("the picture is {wide} pixels wide in {width}"))?;
        expect(found(&done, "beside")? == beside, &done, &format!("beside each other in {width}: not {beside}"))?;
        expect(found(&done, "phone")? == "1", &done, "phones show it small")?;
    }
    Ok(())
}

fn two_traces() -> Result<(TempDir, [PathBuf; 2]), Stop> {
    let (_, _, dir, before) = odd("json", "kinds")?;
    let after = dir.path().join("after.csv");
    trace("csv", &[], &after, &[ODD.build()?.as_os_str(), OsStr::new("touch")])?;
    Ok((dir, [before, after]))
}

fn diff(options: &[&str], files: &[PathBuf]) -> Result<Finished, Stop> {
    Run::new(neap()?).args(["pagein", "diff"]).args(options).args(files).plain().run()
}

fn diff_text() -> Outcome {
    let (_dir, files) = two_traces()?;
    let done = diff(&["--limit", "3"], &files)?.success()?;
    let own = format!("({})", ODD.build()?.file_name().map(|name| name.to_string_lossy()).unwrap_or_default());
    let line = |words: &[&str]| {
        done.stdout.lines().any(|line| words.iter().all(|word| line.contains(word)) && line.contains(" +"))
    };
    expect(line(&["  anon"]) && line(&[&own]) && line(&["  [anon]"]), &done, "the difference is not there")?;
    let same = diff(&[], &[files[0].clone(), files[0].clone()])?.success()?;
    expect(!same.stdout.contains('+'), &same, "a trace differs from itself")
}

fn diff_json() -> Outcome {
    let (_dir, files) = two_traces()?;
    let done = diff(&["--json"], &files)?.success()?;
    let report = parsed(&done.stdout)?;
    let number = |list: &str, name: &str| {
        let rows = report[list].as_array().into_iter().flatten();
        rows.filter(|row| row["name"] == name).filter_map(|row| row["difference"].as_i64()).sum::<i64>()
    };
    expect(number("kinds", "anon") > 900 && number("mappings", "[anon]") > 900, &done, "the difference is not there")?;
    expect(report["before"]["command"][1] == "kinds" && report["neap_diff"] == 1, &done, "no command or version")
}

fn diff_refused() -> Outcome {
    let (_dir, [good, _]) = two_traces()?;
    let bad = good.with_file_name("bad");
    for (text, why) in [
        ("", "it is empty"),
        ("hello\n", "it is no trace of neap pagein"),
        ("{\"a\": 1}", "no member \"neap_trace\""),
        ("1 0x3000000000 D 0 0x3000001080: ???\n", "it is in the format classic"),
    ] {
        std::fs::write(&bad, text)?;
        let done = diff(&[], &[good.clone(), bad.clone()])?;
        expect(done.status.code() == Some(125) && done.stderr.contains(why), &done, why)?;
        expect(done.stdout.is_empty() && done.stderr.contains("--format json"), &done, "no remedy")?;
    }
    let done = diff(&[], &[good.clone(), good.with_file_name("missing")])?;
    expect(done.status.code() == Some(125) && done.stderr.contains("No such file"), &done, "no cause")
}
