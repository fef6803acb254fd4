//! Profiles that programs write of themselves: through the C functions, at a signal, and the documented example.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use neap_profile::Profile;
use neap_survey::{Asked, Request};
use neap_tests::sys::{Signal, TempDir};
use neap_tests::{Case, Daemon, Outcome, Run, Source, Stop, judge_case, library, package_dir, program};

const PROGRAM: Source = Source::new("own/own.c");
const EXAMPLE: Source = Source::new("../docs/examples/profile.c");
const SOON: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new(
            "c::writes",
            "totals that are wrong, errno changed, or frees after the end that are not noted",
            writes,
        ),
        Case::new(
            "c::errors",
            "a full disk, a closed reader or a limit that ends the program, or is not reported as an error",
            || run_case("errors"),
        ),
        Case::new("c::storm", "a hang or a crash where handlers write profiles in the middle of calls", || {
            run_case("storm")
        }),
        Case::new("c::forks", "a child with its parent's profile or none; a hang beside forks", || run_case("forks")),
        Case::new(
            "c::starts_at_once",
            "a thread that is refused samples because another one is just starting them",
            starts_at_once,
        ),
        Case::new(
            "c::starts_again",
            "a process that is refused samples for ever because memory was short once",
            || run_case("starts_again"),
        ),
        Case::new("c::few_mappings", "memory that stays after each profile where mappings are used up", || {
            run_case("few_mappings")
        }),
        Case::new("signal::no_files", "a message that blames a filter where no file can be opened", || {
            refused_by_system("no_files", "there is no room for another open file")
        }),
        Case::new("signal::no_directory", "a message with no reason, or a wrong one", || {
            refused_by_system("no_directory", "error 20")
        }),
        Case::new("c::archive", "functions that are not in libneap.a", archive),
        Case::new("c::example", "an example in the documents that does not run, or names the wrong code", example),
        Case::new(
            "asked::starts",
            "the program's own samples that end with those of a requesting process",
            starts_when_asked,
        ),
        Case::new("signal::writes", "a signal that writes no profile, or one that cannot be read", || {
            at_signal("serves", "usr2", libc::SIGUSR2)
        }),
        Case::new("signal::real_time", "a name that selects the wrong signal", || {
            at_signal("serves", "rtmin+3", libc::SIGRTMIN() + 3)
        }),
        Case::new("signal::short_stack", "a handler that overflows the program's signal stack", || {
            at_signal("short_stack", "usr1", libc::SIGUSR1)
        }),
        Case::new("signal::storm", "a crash or a hang under many signals", signal_storm),
        Case::new("signal::own_handler", "a program's own handler that is replaced", own_handler),
        Case::new("signal::refused", "a signal that is taken although the program uses or ignores it", refused),
        Case::new(
            "signal::full_disk",
            "a profile that is lost without a message, or a partial one that remains",
            full_disk,
        ),
        Case::new("table::complete", "a case that is written but never run", || {
            let list = Run::new(linked(&PROGRAM)?).arg("--list").run()?.success()?;
            let run = "writes errors storm forks serves catches short_stack signals_itself starts_at_once starts_again \
                       few_mappings no_files no_directory starts_when_asked";
            let missing: Vec<_> = list.stdout.lines().filter(|case| !run.split(' ').any(|run| run == *case)).collect();
            if missing.is_empty() { Ok(()) } else { fail(format!("cases that no table names: {missing:?}")) }
        }),
    ])
}

fn fail<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Fail(why))
}

fn linked(source: &Source) -> Result<PathBuf, Stop> {
    let include = format!("-I{}", package_dir().join("../include").display());
    source.build_with(&[library::require_neap()?], &[&include])
}

fn run_case(case: &str) -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let run = Run::new(linked(&PROGRAM)?).arg(case).env("OUT", directory.join("out.pb"));
    judge_case(run.timeout(Duration::from_secs(120)))?.no_complaint()?;
    Ok(())
}

fn starts_at_once() -> Outcome {
    let run = Run::new(neap_tests::strace()?).args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none"]).plain();
    let preload = format!("LD_PRELOAD={}", library::require_neap()?.display());
    let run = run.args(["-e", "inject=memfd_create:delay_enter=300000", "-E", &preload]);
    let run = run.arg(linked(&PROGRAM)?).arg("starts_at_once");
    judge_case(run)?.no_complaint()?;
    Ok(())
}

fn starts_when_asked() -> Outcome {
    let said = |error: neap_survey::Error| Stop::Fail(error.to_string());
    let folder = TempDir::new("neap-ready")?;
    let ready = folder.join("ready");
    let mut daemon = Run::new(linked(&PROGRAM)?).arg("starts_when_asked").env("READY", &ready).daemon()?;
    let request = Request { interval: 4096, duration: Duration::from_secs(2) };
    let asked_at = std::time::Instant::now();
    // Right after its start, a process may not have its libraries yet.
    let mut asked = loop {
        match Asked::ask(daemon.pid(), request) {
            Err(_) if asked_at.elapsed() < SOON => std::thread::sleep(Duration::from_millis(20)),
            asked => break asked.map_err(said)?,
        }
    };
    asked.wait(&mut || ready.exists()).map_err(said)?;
    daemon.wait_until(SOON, || ready.exists())?;
    asked.wait(&mut || false).map_err(said)?;
    asked.end().map_err(said)?;
    std::thread::sleep(Duration::from_millis(300));
    let samples = || -> Result<u64, Stop> {
        let snapshot = asked.snapshot().map_err(said)?;
        Ok(snapshot.map_or(0, |snapshot| snapshot.view().stacks().map(|stack| stack.samples).sum()))
    };
    let before = samples()?;
    std::thread::sleep(Duration::from_millis(300));
    let after = samples()?;
    daemon.stop(Signal::TERM, SOON)?.no_complaint()?;
    if after > before { Ok(()) } else { fail(format!("{before} samples, then {after}")) }
}

/// Checks that one line gives the reason why the system refused a profile at a signal.
fn refused_by_system(case: &str, why: &str) -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let run = Run::new(linked(&PROGRAM)?).arg(case).env("NEAP_PROFILE", directory.path());
    let done = judge_case(run.env("NEAP_PROFILE_SIGNAL", "usr2"))?;
    let lines: Vec<&str> = done.stderr.lines().filter(|line| line.starts_with("neap: ")).collect();
    match lines[..] {
        [line] if line == format!("neap: profile_signal: no profile was written: {why}") => Ok(()),
        _ => Err(done.fail("another line, or not one")),
    }
}

fn read(file: &Path) -> Result<Profile, Stop> {
    neap_profile::pprof::read(&std::fs::read(file)?).map_err(|why| Stop::Fail(format!("{}: {why}", file.display())))
}

fn total(profile: &Profile, name: &str) -> i64 {
    profile.column(name).map_or(-1, |column| profile.total(column))
}

fn near(what: &str, value: i64, wanted: i64) -> Outcome {
    let good = (value - wanted).abs() <= wanted / 8;
    if good { Ok(()) } else { fail(format!("{what}: {value}, not {wanted}")) }
}

fn writes() -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let out = directory.join("out.pb");
    judge_case(Run::new(linked(&PROGRAM)?).arg("writes").env("OUT", &out))?.no_complaint()?;
    let profile = read(&out)?;
    near("live bytes", total(&profile, "inuse_space"), 20_000_000)?;
    near("live blocks", total(&profile, "inuse_objects"), 20_000)?;
    near("all bytes", total(&profile, "alloc_space"), 40_000_000)?;
    near("all blocks", total(&profile, "alloc_objects"), 40_000)?;
    let freed = read(&directory.join("out.pb.freed"))?;
    near("all bytes after the end", total(&freed, "alloc_space"), 40_000_000)?;
    match total(&freed, "inuse_space") {
        live if live < 1_000_000 => Ok(()),
        live => fail(format!("{live} bytes are live after all were freed")),
    }
}

fn archive() -> Outcome {
    let archive = library::require_neap()?.with_file_name("libneap.a");
    if !archive.exists() {
        return Err(Stop::Skip(format!("{} is not built", archive.display())));
    }
    let include = format!("-I{}", package_dir().join("../include").display());
    let directory = TempDir::new("neap-own")?;
    let built = PROGRAM.build_with(&[&archive], &[&include, "-static"])?;
    judge_case(Run::new(built).arg("errors").plain().env("OUT", directory.join("out.pb")))?;
    Ok(())
}

/// The output of `go tool pprof` for a profile.
fn top(arguments: &[&Path]) -> Result<String, Stop> {
    let go = program("go")?;
    let done = Run::new(go).args(["tool", "pprof", "-top", "-nodecount=3"]).args(arguments).plain().run()?.success()?;
    Ok(done.stdout)
}

fn example() -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let (file, built) = (directory.join("heap.pb"), linked(&EXAMPLE)?);
    Run::new(&built).arg(&file).run()?.success()?.no_complaint()?;
    // Some 60 samples: within 5 standard deviations of 4 MB.
    let live = total(&read(&file)?, "inuse_space");
    if !(10_000_000..50_000_000).contains(&live) {
        return fail(format!("{live} bytes are live, not 30 MB"));
    }
    let top = top(&[&built, &file])?;
    let first = top.lines().skip_while(|line| !line.trim_start().starts_with("flat")).nth(1).unwrap_or_default();
    if top.contains("Type: inuse_space") && first.ends_with("fill_table") { Ok(()) } else { fail(top) }
}

/// A program that runs with the option until it is dropped, and has printed "ready".
fn start(case: &str, signal: &str, directory: &Path) -> Result<Daemon, Stop> {
    let run = Run::new(linked(&PROGRAM)?).arg(case);
    let run = run.env("NEAP_PROFILE", directory).env("NEAP_PROFILE_INTERVAL", "16K").env("NEAP_PROFILE_SIGNAL", signal);
    let folder = TempDir::new("neap-ready")?;
    let ready = folder.join("ready");
    let mut daemon = run.env("READY", &ready).daemon()?;
    daemon.wait_until(SOON, || ready.exists())?;
    Ok(daemon)
}

fn send(pid: u32, signal: i32) -> Outcome {
    Run::new("kill").args([format!("-{signal}"), pid.to_string()]).plain().run()?.success()?;
    Ok(())
}

fn profiles(directory: &Path) -> Result<Vec<PathBuf>, Stop> {
    let all = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "pb")).collect())
}

fn at_signal(case: &str, name: &str, number: i32) -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let mut daemon = start(case, name, directory.path())?;
    for files in 1..=3 {
        send(daemon.pid(), number)?;
        let there = || profiles(directory.path()).is_ok_and(|all| all.len() == files);
        daemon.wait_until(SOON, there)?;
        std::thread::sleep(Duration::from_millis(200));
    }
    for file in profiles(directory.path())? {
        near("live bytes", total(&read(&file)?, "inuse_space"), 20_000_000)?;
    }
    // Readers of the directory do not take profiles for samples.
    neap_survey::in_directory(directory.path()).map_err(|e| Stop::Fail(e.to_string()))?;
    daemon.stop(Signal::TERM, SOON)?.no_complaint()?;
    Ok(())
}

fn signal_storm() -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let run = Run::new(linked(&PROGRAM)?).arg("signals_itself").env("NEAP_PROFILE", directory.path());
    judge_case(run.env("NEAP_PROFILE_SIGNAL", "usr2"))?.no_complaint()?;
    let all = profiles(directory.path())?;
    for file in &all {
        read(file)?;
    }
    if all.len() == 100 { Ok(()) } else { fail(format!("{} files for 100 signals one after the other", all.len())) }
}

fn own_handler() -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let mut daemon = start("catches", "usr2", directory.path())?;
    send(daemon.pid(), libc::SIGUSR2)?;
    match daemon.wait_until(SOON, || false) {
        Err(Stop::Fail(why)) if why.contains("own") && why.contains("exit status: 0") => Ok(()),
        other => fail(format!("{other:?}")),
    }
}

fn refused() -> Outcome {
    let directory = TempDir::new("neap-own")?;
    let built = linked(&PROGRAM)?;
    let with = |signal: &str| Run::new("true").env("NEAP_PROFILE", directory.path()).env("NEAP_PROFILE_SIGNAL", signal);
    for signal in ["TERM", "SEGV", "KILL", "CHLD", "ALRM", "10", "USR1", "rtmin", ""] {
        with(signal).run()?.success()?.contains("NEAP_PROFILE_SIGNAL")?;
    }
    Run::new("true").env("NEAP_PROFILE_SIGNAL", "usr1").run()?.success()?.contains("names no directory")?;
    // A shell that ignores the signal; so do the programs that it starts.
    let ignoring = format!("trap '' USR2; exec {} errors", built.display());
    let run = Run::new("sh").args(["-c", &ignoring]).env("NEAP_PROFILE", directory.path());
    let done = run.env("NEAP_PROFILE_SIGNAL", "usr2").env("OUT", directory.join("out.pb")).run()?.success()?;
    done.contains("in use or ignored already")?;
    Ok(())
}

fn full_disk() -> Outcome {
    if !neap_tests::is_root() {
        return Err(Stop::Skip("a small file system takes root".into()));
    }
    let directory = TempDir::new("neap-own")?;
    let mounted =
        Run::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "none"]).arg(directory.path()).plain().run()?;
    if !mounted.status.success() {
        return Err(Stop::Skip("a small file system cannot be mounted".into()));
    }
    let result = on_full_disk(directory.path());
    Run::new("umount").arg("-l").arg(directory.path()).plain().run()?.success()?;
    result
}

fn on_full_disk(directory: &Path) -> Outcome {
    let daemon = start("serves", "usr2", directory)?;
    // Fills the rest with another file.
    let filled = std::fs::write(directory.join("filler"), vec![1; 8 << 20]);
    if filled.is_ok() {
        return fail("the file system is not full".into());
    }
    send(daemon.pid(), libc::SIGUSR2)?;
    std::thread::sleep(Duration::from_secs(1));
    let left = profiles(directory)?;
    let done = daemon.stop(Signal::TERM, SOON)?.contains("profile_signal: no profile was written: the disk is full")?;
    if left.is_empty() { Ok(()) } else { Err(done.fail("a part of a profile stays")) }
}
