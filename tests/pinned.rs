//! Fragmentation profiles of whole programs: the sites that pin memory are named, and the sum is what is resident and
//! not live.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use neap_observe::Page;
use neap_profile::Profile;
use neap_profile::sites::{Row, sites};
use neap_survey::{Asked, Look, Request, Scope, pinned_profile};
use neap_tests::browser;
use neap_tests::command::neap;
use neap_tests::sys::TempDir;
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, expect, library};

const PROGRAM: Source = Source::new("pinned/pinned.c");
const PROGRAM_CC: Source = Source::new("pinned/pinned.cc");

/// Planted sites that pin, each beside a site that keeps more bytes of the same size classes.
const KINDS: [&str; 9] =
    ["page_64", "page_512", "page_1500", "page_6000", "far_48", "text_200", "mixed", "threads", "remote"];
const KINDS_OF_CC: [&str; 2] = ["map", "new"];

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.push(Case::new(
            format!("pinner::{kind}"),
            "another site that is blamed, or a sum that is wrong",
            move || pinner(PROGRAM, kind, Some("16K")),
        ));
    }
    for kind in KINDS_OF_CC {
        cases.push(Case::new(format!("pinner::cc_{kind}"), "the same in C++", move || {
            pinner(PROGRAM_CC, kind, Some("16K"))
        }));
    }
    cases.extend([
        // This failed once in some 140 runs, beside other tests: nothing was pinned then. The cause is unknown.
        Case::new("pinner::exact", "blocks that are placed differently where each is sampled", || {
            pinner(PROGRAM, "page_512", Some("1"))
        })
        .ignored(),
        Case::new("late::unknown", "sites that are blamed for blocks from before samples were requested", late),
        Case::new(
            "command::program",
            "a program that is not read while it runs, or a format without its figures",
            program,
        ),
        Case::new(
            "page::switch",
            "a page where pinned memory cannot be selected, or differs from the measurement",
            page,
        ),
        Case::new("big::2_gib", "a process that is stopped, or uses its own processor time, for its profile", || {
            big(2048)
        })
        .exclusive(),
        Case::new("big::10_gib", "the same, where all memory is in use", || big(10 << 10)).exclusive().ignored(),
    ]);
    neap_tests::suite::main(cases)
}

fn fail<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Fail(why))
}

fn said<T>(result: Result<T, neap_survey::Error>) -> Result<T, Stop> {
    result.map_err(|e| Stop::Fail(e.to_string()))
}

/// A case that waits for its input.
struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    /// Bytes of live blocks, as the program reports.
    live: u64,
    _samples: TempDir,
}

impl Running {
    /// Starts a case; `interval`: with samples at that interval from its beginning.
    fn start(source: Source, arguments: &[&str], interval: Option<&str>) -> Result<Self, Stop> {
        let samples = TempDir::new("neap-pinned")?;
        let mut command = Command::new(source.build()?);
        command.args(arguments).env("LD_PRELOAD", library::require_neap()?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(interval) = interval {
            command.env("NEAP_PROFILE", samples.path()).env("NEAP_PROFILE_INTERVAL", interval);
        }
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| Stop::Fail("no output".into()))?;
        let mut running = Running { child, output: BufReader::new(output), live: 0, _samples: samples };
        running.live = running.says("live ")?.parse().map_err(|_| Stop::Fail("no number".into()))?;
        Ok(running)
    }

    fn says(&mut self, what: &str) -> Result<String, Stop> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.strip_prefix(what) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => fail(format!("the program says {line:?}")),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn look(&self) -> Result<Look, Stop> {
        let asked = said(Asked::join(self.pid()))?.ok_or_else(|| Stop::Fail("no samples".into()))?;
        said(asked.look())
    }

    /// Bytes of a line of `/proc/PID/status`.
    fn status(&self, name: &str) -> Result<u64, Stop> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|rest| rest.trim_start_matches(':').trim().trim_end_matches(" kB").parse().ok());
        kilobytes.map(|n: u64| n << 10).ok_or_else(|| Stop::Fail(format!("no {name} in {text}")))
    }

    /// Processor time of all its threads.
    fn processor(&self) -> Result<Duration, Stop> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            sum += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(sum))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn near(what: &str, value: u64, wanted: u64) -> Outcome {
    let error = (value as f64 - wanted as f64) / wanted as f64;
    if error.abs() <= 0.05 { Ok(()) } else { fail(format!("{what}: {value}, not {wanted} ({:+.1} %)", error * 100.0)) }
}

fn pinned(profile: &Profile) -> usize {
    profile.column("pinned_space").unwrap_or(0)
}

/// Checks that the sum is the kernel's resident memory less the program's live bytes, and that neap's own figures
/// agree.
fn check_sum(running: &Running, look: &Look, profile: &Profile) -> Outcome {
    let sum = profile.total(pinned(profile)) as u64;
    // Some 300 KiB of it belong to the C library and the stacks.
    near("sum", sum, running.status("RssAnon")? - running.live)?;
    near("live", look.tally.live + look.tally.untouched, running.live)?;
    let figures = Page::find(running.pid()).and_then(|page| page.read()).map_err(|e| Stop::Fail(e.to_string()))?;
    near("live by the counters", look.tally.live + look.tally.untouched, figures.gauges.live_bytes)?;
    if sum == look.tally.resident - look.tally.live { Ok(()) } else { fail(format!("{sum}, not {:?}", look.tally)) }
}

fn check_first(profile: &Profile) -> Outcome {
    let column = pinned(profile);
    let rows = sites(profile, column);
    let line = |row: &Row| format!("{} {} {:?}", row.values[column], row.site.function, row.callers);
    let listed = || rows.iter().take(8).map(line).collect::<Vec<_>>().join("\n");
    match rows.first() {
        Some(row) if line(row).contains("pinner_") => Ok(()),
        _ => fail(format!("no pinner is first:\n{}", listed())),
    }
}

fn pinner(source: Source, kind: &str, interval: Option<&str>) -> Outcome {
    let running = Running::start(source, &[kind], interval)?;
    let look = running.look()?;
    let profile = pinned_profile(&look, None, &Scope { process: Some(running.pid()), ..Scope::default() });
    check_sum(&running, &look, &profile)?;
    check_first(&profile)
}

/// Samples are requested when the heap exists already: the sites that pin it are unknown, and the profile says so.
fn late() -> Outcome {
    let mut running = Running::start(PROGRAM, &["serves"], None)?;
    let request = Request { interval: 4096, duration: Duration::from_millis(700) };
    let mut asked = said(Asked::ask(running.pid(), request))?;
    // From here on it allocates, and keeps a little.
    running.child.stdin.as_mut().map_or(Ok(()), |input| input.write_all(b"g"))?;
    said(asked.wait(&mut || false))?;
    let look = said(asked.look())?;
    let profile = pinned_profile(&look, None, &Scope::of(&asked));
    let column = pinned(&profile);
    let rows = sites(&profile, column);
    let of = |name: &str| -> i64 {
        rows.iter().filter(|row| row.site.function.contains(name)).map(|row| row.values[column]).sum()
    };
    let (before, served) = (of("[blocks from before"), of("served"));
    said(asked.end())?;
    // 32 MiB are pinned from before; later blocks fill those OS pages.
    if before > 24 << 20 && served < before / 4 {
        Ok(())
    } else {
        fail(format!("{before} from before, {served} since then: {rows:#?}"))
    }
}

/// Checks the command on a program that ends, in each format.
fn program() -> Outcome {
    let directory = TempDir::new("neap-pinned")?;
    let (file, _) = written(&directory)?;
    let shown = |format: &str, name: &str| -> Result<(String, PathBuf), Stop> {
        let to = directory.join(name);
        let done =
            Run::new(neap()?).args(["profile", "show", "--pinned", "--format", format, "-o"]).arg(&to).arg(&file);
        done.plain().run()?.success()?;
        Ok((String::from_utf8_lossy(&std::fs::read(&to)?).into_owned(), to))
    };
    for (format, words) in [
        ("text", ["pinned: ", "pinner_of", "[records of the allocator]"]),
        ("folded", ["pinner_of ", "[records of the allocator] ", "main;"]),
        ("firefox", ["pinned_space", "pinner_of", "[records of the allocator]"]),
        ("html", ["pinned_space", "pinner_of", "[records of the allocator]"]),
    ] {
        let (text, _) = shown(format, &format!("pinned.{format}"))?;
        if let Some(missing) = words.iter().find(|word| !text.contains(**word)) {
            return fail(format!("no {missing} in {format}: {}", text.chars().take(2000).collect::<String>()));
        }
    }
    let profile = |path: &PathBuf| neap_profile::read(&std::fs::read(path)?).map_err(|e| Stop::Fail(e.to_string()));
    let (json, pprof) = (profile(&file)?, profile(&shown("pprof", "pinned.pb.gz")?.1)?);
    check_first(&json)?;
    let column = pinned(&pprof);
    if pprof.total(column) != json.total(column)
        || pprof.whole.is_none()
        || pprof.types[pprof.shown].name != "pinned_space"
    {
        return fail(format!("pprof has {} of {}", pprof.total(column), json.total(column)));
    }
    check_first(&pprof)
}

/// A profile of a program by the command, as a file.
fn written(directory: &TempDir) -> Result<(PathBuf, Finished), Stop> {
    let file = directory.join("pinned.json");
    let options = ["profile", "--pinned", "--interval", "16K", "--format", "json", "-o"];
    let done = Run::new(neap()?)
        .args(options)
        .arg(&file)
        .arg("--")
        .arg(PROGRAM.build()?)
        .args(["mixed", "stays"])
        .plain()
        .run()?;
    expect(done.status.success() && file.exists(), &done, "no file")?;
    Ok((file, done))
}

/// Checks that the HTML page shows pinned memory, and live and allocated bytes when these are selected.
fn page() -> Outcome {
    neap_tests::program("chromium")?;
    let directory = TempDir::new("neap-pinned")?;
    let (file, _) = written(&directory)?;
    let page = directory.join("pinned.html");
    let show = ["profile", "show", "--format", "html", "-o"];
    Run::new(neap()?).args(show).arg(&page).arg(&file).plain().run()?.success()?;
    let script = "const type = page.getElementById('type');
        const leads = {};
        for (const name of ['live', 'allocated', 'pinned']) {
            type.value = [...type.options].find((option) => option.textContent === name + ' (bytes)').value;
            type.dispatchEvent(new inside.Event('change'));
            const first = page.querySelector('#functions tbody tr .link').textContent;
            leads[name] = page.getElementById('lead').textContent + '; ' + first;
        }
        return leads;";
    let done = browser::look(&directory, &page, 1000, &["--virtual-time-budget=5000"], script)?;
    for (name, first) in [("live", "dense_of"), ("allocated", "freed_of"), ("pinned", "pinner_of")] {
        let lead = browser::found(&done, name)?;
        let right = lead.starts_with(name) && lead.contains(first);
        expect(right && (name != "pinned" || lead.contains(" of ")), &done, &lead)?;
    }
    browser::pictures(&directory, &page, &[("pinned-wide", 1280, false), ("pinned-dark", 1280, true)], 1200, 20_000)
}

/// Runs the command on a process with this many MiB live; then once more while the process records each stop.
fn big(mebibytes: u64) -> Outcome {
    /// Memory that the machine must have besides, in MiB.
    const LEFT: u64 = 4 << 10;
    let free = std::fs::read_to_string("/proc/meminfo")?;
    let free =
        free.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok());
    if free.unwrap_or(0u64) >> 10 < mebibytes + LEFT {
        return Err(Stop::Skip(format!("less than {} MiB of memory", mebibytes + LEFT)));
    }
    let mut running = Running::start(PROGRAM, &["big", &mebibytes.to_string()], Some("512K"))?;
    if running.live < mebibytes << 20 {
        return fail(format!("{} bytes are live", running.live));
    }
    let directory = TempDir::new("neap-pinned")?;
    let mut longest = 0;
    let pid = running.pid().to_string();
    let (before, began) = (running.processor()?, Instant::now());
    for format in ["json", "pprof", "html", "folded", "firefox"] {
        let to = directory.join(format);
        let options = ["profile", "--pinned", "--duration", "100ms", "--format", format, "--pid", &pid, "-o"];
        Run::new(neap()?).args(options).arg(&to).plain().run()?.success()?;
        longest = longest.max(std::fs::metadata(&to)?.len());
        neap_tests::suite::note(format!("{format}: {} bytes", std::fs::metadata(&to)?.len()));
    }
    let (processor, took) = ((running.processor()? - before) / 5, began.elapsed() / 5);
    running.child.stdin.as_mut().map_or(Ok(()), |input| input.write_all(b"b"))?;
    let (looked, look) = (Instant::now(), running.look()?);
    let look_took = looked.elapsed();
    drop(running.child.stdin.take());
    let stopped: f64 = running.says("longest ")?.parse().unwrap_or(f64::MAX);
    neap_tests::suite::note(format!(
        "{mebibytes} MiB live: {longest} bytes at most, {processor:?} of its processor time, each {took:?}; a look of \
         {look_took:?}, longest gap {:.1} ms",
        stopped * 1e3
    ));
    near("live", look.tally.live + look.tally.untouched, running.live)?;
    // Beside other tests it may have to wait for a processor; a stop would last as long as the look.
    let is_stopped = stopped > f64::max(0.1, look_took.as_secs_f64() / 2.0);
    if longest >= 1 << 20 || processor > Duration::from_millis(50) || is_stopped {
        return fail(format!("{longest} bytes, {processor:?}, a gap of {stopped} s"));
    }
    Ok(())
}
