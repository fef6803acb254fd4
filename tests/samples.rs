//! Samples of whole programs, and profiles made of them, compared with what the programs did.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use neap_profile::Profile;
use neap_survey::{Asked, Error, Request, Scope, Snapshot, collect, in_directory, profile};
use neap_tests::{Case, Outcome, Run, Source, Stop, library, program, sys, system};

const PROGRAM: Source = Source::new("samples/samples.c");
const LEAKS: Source = Source::new("samples/leaks.cc");
const PLUGIN_A: Source = Source::with_flags("samples/plugin.c", &["-shared"]);
const PLUGIN_B: Source = Source::with_flags("samples/plugin.c", &["-shared", "-DOTHER"]);

/// Planted leaks, each of some megabytes beside ten times as much that is freed.
const KINDS: [&str; 9] = [
    "with_malloc",
    "with_calloc",
    "with_aligned",
    "with_strdup",
    "with_large",
    "with_realloc",
    "with_vector",
    "with_list",
    "with_threads",
];
const KINDS_OF_CC: [&str; 3] = ["new", "map", "shared"];
const KINDS_OF_RUST: [&str; 3] = ["vector", "map", "circle"];
const MODULE: Source = Source::with_flags("samples/leaking.c", &["-shared"]);
/// Makes the module keep strings, beside Python objects that are freed.
const SCRIPT: &str = "
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader('leaking', sys.argv[1])
leaking = importlib.util.module_from_spec(importlib.util.spec_from_loader('leaking', loader))
for i in range(30000):
    [str(i + k) * 20 for k in range(20)]
    leaking.keep('kept' * 60)
";

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.push(Case::new(format!("leak::{kind}"), "a leak that is ranked behind another call site", move || {
            leak(kind)
        }));
        cases.push(Case::new(format!("exact::{kind}"), "a block that is not counted, or counted twice", move || {
            exact(kind)
        }));
        cases.push(Case::new(format!("totals::{kind}"), "samples whose weights are too high or too low", move || {
            totals(kind)
        }));
    }
    cases.push(Case::new(
        "totals::with_trimmed",
        "a sample that realloc moves although the blocks it stands for stay",
        || totals("with_trimmed"),
    ));
    for kind in KINDS_OF_CC {
        cases.push(Case::new(format!("leak::cc_{kind}"), "the same in C++", move || leak_of_cc(kind)));
    }
    for kind in KINDS_OF_RUST {
        cases.push(Case::new(format!("leak::rust_{kind}"), "the same in Rust", move || leak_of_rust(kind)));
    }
    cases.push(Case::new(
        "leak::python_module",
        "the same in a module of Python, below the interpreter",
        leak_of_python,
    ));
    cases.extend([
        Case::new("live::remote", "a sample that stays live when another thread frees it", || all_freed("remote")),
        Case::new("live::signals", "a sample that handlers lose, or a hang", || all_freed("signals")),
        Case::new("live::fork_storm", "a hang or a failed child where forks come beside samples", || {
            all_freed("fork_storm")
        }),
        Case::new("fork::own_file", "a child that writes into its parent's file", own_file),
        Case::new("stack::unloaded_code", "code that is named after what was loaded in its place", unloaded_code),
        Case::new("ask::running", "a process that does not start or stop sampling on request", running),
        Case::new("ask::two", "a request that another one stops, or that ends with the other", two_ask),
        Case::new("ask::growth", "growth that is not that between the two snapshots", growth),
        Case::new("ask::gone", "sampling that goes on for ever after the requesting process is gone", asker_gone),
        Case::new("ask::several", "a request that ends another one, or is not served beside it", several),
        Case::new("ask::idle", "a wait for an idle process, or no error for it", idle),
        Case::new("ask::others", "a process without neap that passes for one with it", others),
        Case::new(
            "ask::overlapping",
            "requests in one process that wait for each other for ever, or end each other",
            overlapping,
        ),
        Case::new("ask::chosen", "a program's own sampling that a request ends", chosen),
        Case::new("fork::asked", "samples of a child where only its parent has a file", asked_child),
        Case::new("exact::with_failed", "a block that is lost where realloc fails", || exact("with_failed")),
        Case::new("exact::again", "blocks that stay live because they were freed while sampling was off", again),
        Case::new("file::limit", "SIGXFSZ, or a program that does not run, under a limit of file sizes", limit),
        Case::new("table::complete", "a case that is written but never run", || {
            let asked = ["serves", "idles", "chooses", "exactly_twice", "fork_idles"];
            let rest = ["with_trimmed", "with_failed", "remote", "signals", "forks", "fork_storm", "plugins"]
                .into_iter()
                .chain(asked);
            let rest: Vec<&str> = rest.collect();
            let cases = KINDS.iter().chain(&rest).map(|&case| ("samples", case)).collect::<Vec<_>>();
            neap_tests::all_cases_named(&[PROGRAM], &cases)
        }),
    ]);
    neap_tests::suite::main(cases)
}

fn fail<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Fail(why))
}

fn read(directory: &Path) -> Result<Vec<Snapshot>, Stop> {
    in_directory(directory).map_err(|e| Stop::Fail(e.to_string()))
}

/// What a case prints as live, and as requested in total.
fn says(output: &str) -> Result<Vec<(i64, i64)>, Stop> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("live ")?.split(" total ");
        Some((words.next()?.trim().parse().ok()?, words.next()?.trim().parse().ok()?))
    };
    let found: Vec<(i64, i64)> = output.lines().filter_map(line).collect();
    if found.is_empty() { fail(format!("the program says {output:?}")) } else { Ok(found) }
}

/// Runs a case to its end with samples at this interval; returns its output, and the profile of each process.
fn run(
    source: Source,
    case: &str,
    interval: &str,
    variables: &[(&str, &Path)],
) -> Result<(String, Vec<Profile>), Stop> {
    run_of(Run::new(source.build()?).arg(case), interval, variables)
}

/// Does the same for any program.
fn run_of(run: Run, interval: &str, variables: &[(&str, &Path)]) -> Result<(String, Vec<Profile>), Stop> {
    library::require_neap()?;
    let directory = sys::TempDir::new("neap-profile")?;
    let mut run = run.env("NEAP_PROFILE", directory.path()).env("NEAP_PROFILE_INTERVAL", interval);
    for (name, value) in variables {
        run = run.env(name, value);
    }
    let done = run.run()?.success()?.no_complaint()?;
    let all = read(directory.path())?;
    let profiles = all.iter().map(|one| profile(Some(one), None, &Scope::default())).collect();
    Ok((done.stdout.clone(), profiles))
}

fn one(mut profiles: Vec<Profile>) -> Result<Profile, Stop> {
    match profiles.len() {
        1 => Ok(profiles.remove(0)),
        other => fail(format!("{other} files")),
    }
}

fn total(profile: &Profile, name: &str) -> i64 {
    profile.column(name).map_or(-1, |column| profile.total(column))
}

/// The functions of each stack, innermost first, with its value; the greatest value first.
fn ranked(profile: &Profile, name: &str) -> Vec<(i64, String)> {
    let column = profile.column(name).unwrap_or(0);
    let mut all: Vec<(i64, String)> = profile
        .samples
        .iter()
        .map(|sample| {
            let names = profile.frames(sample).map(|frame| frame.name.into_owned());
            (sample.values[column], names.collect::<Vec<_>>().join(" < "))
        })
        .collect();
    all.sort_by_key(|(value, _)| std::cmp::Reverse(*value));
    all
}

fn check_first(profile: &Profile, wanted: &str) -> Outcome {
    let ranked = ranked(profile, "inuse_space");
    match ranked.first() {
        Some((_, stack)) if stack.contains(wanted) && stack.contains(" < ") => Ok(()),
        _ => fail(format!("{wanted} is not first: {ranked:#?}")),
    }
}

fn check_near(what: &str, value: i64, wanted: i64, part: f64) -> Outcome {
    let error = (value - wanted) as f64 / wanted as f64;
    if error.abs() <= part { Ok(()) } else { fail(format!("{what}: {value}, not {wanted} ({:+.1} %)", error * 100.0)) }
}

/// The C library's own blocks.
const STRAY: i64 = 80 << 10;

fn leak(kind: &str) -> Outcome {
    let profile = one(run(PROGRAM, kind, "64K", &[])?.1)?;
    check_first(&profile, "leaky_")
}

fn leak_of_cc(kind: &str) -> Outcome {
    let profile = one(run(LEAKS, kind, "64K", &[])?.1)?;
    check_first(&profile, &format!("leaky_{kind}"))
}

fn leak_of_rust(kind: &str) -> Outcome {
    system::need_native()?;
    // As cargo would: with the compiler that builds the tests.
    let rustc = std::env::var_os("RUSTC").map_or_else(|| program("rustc"), |path| Ok(path.into()))?;
    let directory = sys::TempDir::new("neap-leaks")?;
    let source = neap_tests::package_dir().join("samples/leaks.rs");
    let built = directory.join("leaks");
    Run::new(rustc).args(["--edition", "2024", "-O", "-g", "-o"]).arg(&built).arg(source).plain().run()?.success()?;
    let profile = one(run_of(Run::new(&built).arg(kind), "64K", &[])?.1)?;
    check_first(&profile, &format!("leaky_{kind}"))
}

fn leak_of_python() -> Outcome {
    system::need_native()?;
    let python = program("/usr/bin/python3")?;
    let asked = "import sysconfig; print(sysconfig.get_paths()['include'])";
    let include = Run::new(&python).args(["-c", asked]).plain().run()?.success()?.stdout;
    if !Path::new(include.trim()).join("Python.h").exists() {
        return Err(Stop::Skip("Python.h is not installed".into()));
    }
    let module = MODULE.build_with(&[], &["-I", include.trim()])?;
    let profile = one(run_of(Run::new(python).args(["-c", SCRIPT]).arg(module), "64K", &[])?.1)?;
    check_first(&profile, "leaky_keep")
}

fn exact(kind: &str) -> Outcome {
    let (output, profiles) = run(PROGRAM, kind, "1", &[])?;
    let (live, all) = says(&output)?[0];
    let profile = one(profiles)?;
    for (name, wanted) in [("inuse_space", live), ("alloc_space", all)] {
        let value = total(&profile, name);
        if value < wanted || value > wanted + STRAY + 500 * 1000 {
            return fail(format!("{name}: {value}, not {wanted}"));
        }
    }
    check_first(&profile, "leaky_")
}

fn totals(kind: &str) -> Outcome {
    let (output, profiles) = run(PROGRAM, kind, "2K", &[])?;
    let (live, all) = says(&output)?[0];
    let profile = one(profiles)?;
    // Four standard deviations of the live bytes of the smallest program, and more for all blocks.
    check_near("live", total(&profile, "inuse_space"), live, 0.08)?;
    check_near("all", total(&profile, "alloc_space"), all, 0.05)
}

fn all_freed(case: &str) -> Outcome {
    let (output, profiles) = run(PROGRAM, case, "8K", &[])?;
    let (live, all) = says(&output)?[0];
    // The parent's file is the first.
    let profile = &profiles[0];
    check_near("all", total(profile, "alloc_space"), all, 0.1)?;
    if live != 0 || total(profile, "inuse_space") > STRAY {
        return fail(format!("live: {:#?}", ranked(profile, "inuse_space")));
    }
    Ok(())
}

fn own_file() -> Outcome {
    let (output, profiles) = run(PROGRAM, "forks", "2K", &[])?;
    let says = says(&output)?;
    let [parent, child] = profiles.as_slice() else { return fail(format!("{} files", profiles.len())) };
    for (profile, (live, _), wanted) in [(parent, says[0], "leaky_parent"), (child, says[1], "leaky_child")] {
        check_first(profile, wanted)?;
        check_near(wanted, total(profile, "inuse_space"), live, 0.1)?;
        let sites = ranked(profile, "alloc_space");
        if sites.iter().filter(|(_, stack)| stack.contains("leaky_")).count() != 1 {
            return fail(format!("{sites:#?}"));
        }
    }
    Ok(())
}

fn unloaded_code() -> Outcome {
    let (a, b) = (PLUGIN_A.build()?, PLUGIN_B.build()?);
    let profile = one(run(PROGRAM, "plugins", "2K", &[("PLUGIN_A", &a), ("PLUGIN_B", &b)])?.1)?;
    let sites = ranked(&profile, "inuse_space");
    let of =
        |name: &str| sites.iter().filter(|(_, stack)| stack.starts_with(name)).map(|(value, _)| value).sum::<i64>();
    for name in ["allocate_a < plugin_allocate", "allocate_b < plugin_allocate"] {
        check_near(name, of(name), 4_000_000, 0.2)?;
    }
    Ok(())
}

/// A case that runs until it is dropped.
struct Running(Child);

impl Running {
    fn start(case: &str) -> Result<Self, Stop> {
        Self::start_with(case, &[])
    }

    fn start_with(case: &str, variables: &[(&str, &Path)]) -> Result<Self, Stop> {
        let mut child = Command::new(PROGRAM.build()?)
            .arg(case)
            .env("LD_PRELOAD", library::require_neap()?)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let running = Running(child);
        if line == "ready\n" { Ok(running) } else { fail(format!("the program says {line:?}")) }
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn said<T>(result: Result<T, Error>) -> Result<T, Stop> {
    result.map_err(|e| Stop::Fail(e.to_string()))
}

/// Whether the process takes samples: its count of them rises within a while.
fn takes_samples(asked: &Asked) -> Result<bool, Stop> {
    let samples = || -> Result<u64, Stop> {
        let snapshot = said(asked.snapshot())?;
        Ok(snapshot.map_or(0, |snapshot| snapshot.view().stacks().map(|stack| stack.samples).sum()))
    };
    let before = samples()?;
    std::thread::sleep(Duration::from_millis(300));
    Ok(samples()? != before)
}

fn running() -> Outcome {
    let program = Running::start("serves")?;
    let mut asked =
        said(Asked::ask(program.pid(), Request { interval: 16 << 10, duration: Duration::from_millis(1500) }))?;
    said(asked.wait(&mut || false))?;
    if !takes_samples(&asked)? {
        return fail("no samples".into());
    }
    let snapshot = said(asked.snapshot())?;
    check_first(&profile(snapshot.as_ref(), None, &Scope::of(&asked)), "leaky_served")?;
    said(asked.end())?;
    std::thread::sleep(Duration::from_millis(300));
    if takes_samples(&asked)? {
        return fail("it goes on".into());
    }
    // The same once more, in one step.
    check_first(&said(collect(program.pid(), Duration::from_millis(1500), 16 << 10))?, "leaky_served")
}

/// Two processes request samples at the same time: the second ends first, then the first.
fn two_ask() -> Outcome {
    let program = Running::start("serves")?;
    let ask = |milliseconds| {
        said(Asked::ask(program.pid(), Request { interval: 16 << 10, duration: Duration::from_millis(milliseconds) }))
    };
    let (mut first, mut second) = (ask(1500)?, ask(300)?);
    said(second.wait(&mut || false))?;
    said(first.wait(&mut || false))?;
    said(second.end())?;
    said(first.wait(&mut || false))?;
    if !takes_samples(&first)? {
        return fail("no samples after the other one has ended".into());
    }
    let mut third = ask(300)?;
    said(third.wait(&mut || false))?;
    said(first.end())?;
    if !takes_samples(&third)? {
        return fail("the one that came first has ended the samples of the last".into());
    }
    said(third.end())?;
    // Each takes the others for requests that still need samples, so these end with the lease.
    let ended = Instant::now();
    while takes_samples(&third)? {
        if ended.elapsed() > Duration::from_secs(20) {
            return fail("it goes on".into());
        }
    }
    Ok(())
}

fn growth() -> Outcome {
    let program = Running::start("serves")?;
    let request = Request { interval: 4 << 10, duration: Duration::from_millis(700) };
    let mut asked = said(Asked::ask(program.pid(), request))?;
    said(asked.wait(&mut || false))?;
    let first = said(asked.snapshot())?;
    std::thread::sleep(Duration::from_millis(700));
    let second = said(asked.snapshot())?;
    let profile = profile(second.as_ref(), first.as_ref(), &Scope::of(&asked));
    let (grown, live) = (ranked(&profile, "growth_space"), total(&profile, "inuse_space"));
    let leaked: i64 = grown.iter().filter(|(_, stack)| stack.contains("leaky_served")).map(|(value, _)| value).sum();
    // Much more is live in the ring, which does not grow.
    if !grown[0].1.contains("leaky_served") || leaked <= 0 || leaked >= live {
        return fail(format!("{leaked} of {live}: {grown:#?}"));
    }
    said(asked.end())
}

fn asker_gone() -> Outcome {
    let program = Running::start("serves")?;
    let request = Request { interval: 16 << 10, duration: Duration::from_millis(300) };
    let mut asked = said(Asked::ask(program.pid(), request))?;
    said(asked.wait(&mut || false))?;
    if !takes_samples(&asked)? {
        return fail("no samples".into());
    }
    // From here on the request is neither renewed nor ended.
    let began = Instant::now();
    while takes_samples(&asked)? {
        if began.elapsed() > Duration::from_secs(20) {
            return fail("it goes on".into());
        }
    }
    Ok(())
}

fn overlapping() -> Outcome {
    let program = Running::start("serves")?;
    let (pid, duration) = (program.pid(), Duration::from_secs(4));
    let (send, receive) = mpsc::channel();
    for late in [0, 1000] {
        let send = send.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(late));
            let _ = send.send(collect(pid, duration, 16 << 10));
        });
    }
    for _ in 0..2 {
        let Ok(made) = receive.recv_timeout(3 * duration) else { return fail("an asker does not end".into()) };
        check_first(&said(made)?, "leaky_served")?;
    }
    Ok(())
}

fn chosen() -> Outcome {
    let mut program = Running::start("chooses")?;
    let request = Request { interval: 16 << 10, duration: Duration::from_millis(300) };
    let mut asked = said(Asked::ask(program.pid(), request))?;
    said(asked.wait(&mut || false))?;
    if let Some(input) = &mut program.0.stdin {
        input.write_all(b"1")?;
    }
    std::thread::sleep(Duration::from_millis(300));
    said(asked.end())?;
    std::thread::sleep(Duration::from_millis(300));
    if takes_samples(&asked)? { Ok(()) } else { fail("the program's own samples have ended".into()) }
}

fn asked_child() -> Outcome {
    let directory = sys::TempDir::new("neap-profile")?;
    let program = Running::start_with("fork_idles", &[("NEAP_PROFILE", directory.path())])?;
    let (duration, pid) = (Duration::from_millis(100), program.pid());
    let Ok(children) = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) else {
        return Err(Stop::Skip("the kernel does not say which children a process has".into()));
    };
    let Ok(child) = children.trim().parse() else { return fail(format!("children: {children:?}")) };
    let made = said(collect(child, duration, 1024))?;
    if total(&made, "alloc_space") == 0 { Ok(()) } else { fail(format!("{made:?}")) }
}

fn again() -> Outcome {
    let profile = one(run(PROGRAM, "exactly_twice", "1M", &[])?.1)?;
    let (live, all) = (total(&profile, "inuse_space"), total(&profile, "alloc_space"));
    if live <= STRAY && all >= 1_000_000 { Ok(()) } else { fail(format!("{live} live of {all}")) }
}

/// Two requests at a time, which both get samples at least as dense as requested; the second one ends first, then the
/// first.
fn several() -> Outcome {
    let program = Running::start("serves")?;
    let request = |interval| Request { interval, duration: Duration::from_millis(1200) };
    let mut dense = said(Asked::ask(program.pid(), request(4 << 10)))?;
    said(dense.wait(&mut || false))?;
    let mut sparse = said(Asked::ask(program.pid(), request(64 << 10)))?;
    let mut beside = said(Asked::ask(program.pid(), request(4 << 10)))?;
    said(sparse.wait(&mut || false))?;
    said(sparse.end())?;
    for asked in [&mut dense, &mut beside] {
        said(asked.wait(&mut || false))?;
        if !takes_samples(asked)? {
            return fail("no samples, as another asker has ended".into());
        }
    }
    if !profile_of(&beside)?.notes.iter().any(|note| note.contains(" 4.0 KiB ")) {
        return fail("samples of another distance".into());
    }
    said(beside.end())?;
    said(dense.end())?;
    // Each takes the other for one that still needs samples, so these end with the lease.
    let began = Instant::now();
    while takes_samples(&dense)? {
        if began.elapsed() > Duration::from_secs(20) {
            return fail("it goes on".into());
        }
    }
    // A request's interval does not stay for the next one.
    let mut later = said(Asked::ask(program.pid(), request(64 << 10)))?;
    said(later.wait(&mut || false))?;
    if !profile_of(&later)?.notes.iter().any(|note| note.contains(" 64.0 KiB ")) {
        return fail("samples of an earlier distance".into());
    }
    said(later.end())
}

fn profile_of(asked: &Asked) -> Result<Profile, Stop> {
    Ok(profile(said(asked.snapshot())?.as_ref(), None, &Scope::of(asked)))
}

fn idle() -> Outcome {
    let program = Running::start("idles")?;
    match collect(program.pid(), Duration::from_millis(500), 1024) {
        Err(Error::Silent(_)) => Ok(()),
        other => fail(format!("{other:?}")),
    }
}

fn others() -> Outcome {
    let duration = Duration::from_millis(100);
    match (collect(std::process::id(), duration, 1024), collect(u32::MAX, duration, 1024)) {
        (Err(Error::NoNeap), Err(Error::NoProcess)) => Ok(()),
        other => fail(format!("{other:?}")),
    }
}

fn limit() -> Outcome {
    library::require_neap()?;
    let directory = sys::TempDir::new("neap-profile")?;
    let program = PROGRAM.build()?;
    let script = format!("ulimit -f 1; exec {} remote", program.display());
    let done = Run::new("sh").args(["-c", &script]).env("NEAP_PROFILE", directory.path()).run()?.success()?;
    // One line says that the option does nothing; the shell's own file has room.
    done.contains("NEAP_PROFILE")?;
    Ok(())
}
