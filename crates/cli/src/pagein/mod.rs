//! `neap pagein`: every page fault of a program, in order, with its cause.
//!
//! The steps, each in a module: open the events (`perf`), collect them in a thread while the program runs (`collect`,
//! `store`), or attach to one (`attach`), or do without events (`scan`); find symbols (`resolve`, `files`); explain
//! what the trace covers (`footer`), and write it. `diff` compares two that were written. What needs no system calls is
//! in `crates/trace` and `crates/symbols`.

mod attach;
mod blocks;
mod bpf;
mod code;
mod collect;
mod diff;
mod exact;
mod files;
mod footer;
mod output;
mod perf;
mod progress;
mod resolve;
mod scan;
mod sites;
mod store;
mod sys;
mod unwind;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use neap_options::Id;
use neap_trace::format::Format;
use neap_trace::track::Tracker;
use neap_trace::{Clock, Source, Tables};

use crate::args::{PageinAction, PageinArgs};
use crate::error::{Error, FAILED, system_message};
use crate::options::Setting;
use crate::run::child::{self, Attendant, Program, Status};
use crate::run::library::{self, Placed};
use crate::run::private_dir::{PrivateDir, volatile_bases};
use crate::run::target;

use self::collect::{Collected, Collector};
use self::exact::Exact;
use self::output::Output;
use self::perf::{Denied, Events, Wanted};
use self::progress::Told;
use self::resolve::Resolved;
use self::scan::Scanner;
use self::store::Store;

pub use self::perf::{Callgraph, Detail};

/// What watches the program.
enum Watcher {
    /// perf events.
    Perf { collector: Collector, kernel: bool, clock: ClockReading },
    /// Scans of page tables, and why.
    Scan { scanner: Scanner, why: Denied },
}

/// A program that runs and is watched.
struct Launched {
    /// Opened before the program runs, so that no run is in vain.
    output: Output,
    watcher: Watcher,
    exact: Option<Exact>,
}

impl Attendant for Launched {
    fn wait(&mut self, pid: i32) -> io::Result<Option<Status>> {
        match &mut self.exact {
            Some(exact) => exact.wait(),
            None => ().wait(pid),
        }
    }
}

/// What was watched, and what can be said about it.
struct Watched {
    collected: Collected,
    clock: Clock,
    /// None for scans.
    kernel: Option<bool>,
    /// Why there are no events.
    why: Option<Denied>,
}

/// Runs the command; the result is the program's exit status, as with `neap run`.
pub fn run(mut args: PageinArgs) -> Result<u8, Error> {
    if let Some(json) = Format::from_name("json").filter(|_| args.json) {
        args.format = json;
    }
    if let Some(PageinAction::Diff(diff)) = &args.action {
        return diff::run(diff);
    }
    match (args.pid, args.command.is_empty()) {
        (Some(pid), true) => attach::run(&args, pid),
        (None, false) => launch(&args),
        (Some(_), false) => Err(Error::failed("--pid and a program exclude each other")),
        (None, true) => Err(Error::failed("neither a program nor a process is given").remedy("neap pagein -- PROGRAM")),
    }
}

/// Runs a program and traces it.
fn launch(args: &PageinArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no program is given")) };
    let path = target::resolve(command)?;
    if let Some(why) = target::secure_execution(&path).or_else(|| unreadable(&path)) {
        return Err(Error::cannot_run(format!(
            "cannot trace {}: {why}, and the kernel ends a trace when such a program starts",
            path.display()
        ))
        .remedy("trace it as that user: sudo neap pagein -- PROGRAM"));
    }
    let recorded = args.sites.map(|interval| Recorded::new(&path, interval)).transpose()?;
    let environment = recorded.as_ref().map_or_else(|| std::env::vars_os().collect(), Recorded::environment);
    let mut program = Program::new(&path, &args.command, environment)?;
    if args.exact {
        program.before_exec(exact::install);
    }
    let (ended, launched, signals) = child::supervise_watched(&program, |pid| {
        let output = Output::create(args, pid.unsigned_abs())?;
        let exact = args.exact.then(|| Exact::start(pid)).transpose()?;
        let directory = recorded.as_ref().map(|recorded| recorded.directory.path().as_os_str());
        Ok(Launched { output, watcher: watch(args, pid, directory)?, exact })
    })?;
    let Launched { mut output, watcher, exact } = launched;
    let inexact = exact.as_ref().map(Exact::inexact);
    let watched = watcher.finish();
    drop(recorded);
    // From here on neap can be interrupted: finding symbols and writing may take long.
    signals.release();
    let finished = finish(args, watched, &mut output, |tables, facts, store| {
        footer::of_program(tables, facts, &args.command, &ended, store);
        footer::exact(tables, inexact);
    });
    match finished {
        Ok(()) => Ok(child::end_like(ended.status)),
        Err(error) => after(&ended, error),
    }
}

/// Why the kernel would not let this user look at the program, if so.
fn unreadable(path: &Path) -> Option<String> {
    let error = File::open(path).err()?;
    (error.kind() == io::ErrorKind::PermissionDenied).then(|| "it may be executed, but not read".to_owned())
}

/// A program on neap that records where it allocates.
struct Recorded {
    library: Placed,
    directory: PrivateDir,
    settings: [Setting; 2],
}

impl Recorded {
    fn new(program: &Path, interval: u64) -> Result<Self, Error> {
        target::inspect(program)?;
        // A file on a disk would have faults of its own, whenever the system writes it.
        let mut bases = vec![PathBuf::from("/dev/shm")];
        bases.extend(volatile_bases());
        let directory = PrivateDir::create(&bases, "neap-sites")
            .map_err(|reasons| Error::failed(format!("no directory for the allocation sites: {reasons}")))?;
        let path = directory.path().to_str().map(str::to_owned);
        let path = path.ok_or_else(|| Error::failed(format!("{} is not UTF-8", directory.path().display())))?;
        let setting = |id: Id, value| Setting { name: id.option().name, env: id.option().env, value };
        let settings = [setting(Id::Sites, path), setting(Id::SitesInterval, interval.to_string())];
        Ok(Self { library: library::place()?, directory, settings })
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        crate::run::environment(&self.library.path, &self.settings)
    }
}

/// neap failed after the program had ended: the program's own failure is worth more to the caller than ours.
fn after(ended: &child::Ended, error: Error) -> Result<u8, Error> {
    error.report();
    if ended.status.success() { Ok(FAILED) } else { Ok(child::end_like(ended.status)) }
}

/// Starts to watch a process that waits for its exec.
fn watch(args: &PageinArgs, pid: i32, sites: Option<&OsStr>) -> Result<Watcher, Error> {
    let monotonic = sites.is_some();
    let wanted = Wanted { on_exec: true, callgraph: args.callgraph, detail: args.detail(), monotonic };
    let mut tracker = Tracker::default();
    tracker.tables_mut().summary.pid = pid.unsigned_abs();
    if let Some(directory) = sites {
        tracker.expect_sites(directory.as_bytes());
    }
    match Events::open(&[pid], wanted) {
        Ok(events) => collector(args, events, tracker),
        Err(why) => {
            let scanner = Scanner::start(pid.unsigned_abs(), tracker)
                .map_err(|e| Error::failed(format!("cannot start a thread: {}", system_message(&e))))?;
            Ok(Watcher::Scan { scanner, why })
        }
    }
}

/// Starts the thread that collects.
fn collector(args: &PageinArgs, events: Events, mut tracker: Tracker) -> Result<Watcher, Error> {
    if args.detail() == Detail::Begin {
        tracker.only_begins();
    }
    let kernel = events.kernel;
    let clock = ClockReading::now(events.rings.first().and_then(sys::Ring::tsc));
    let collector = Collector::start(events, tracker, args.sites)
        .map_err(|e| Error::failed(format!("cannot start a thread: {}", system_message(&e))))?;
    Ok(Watcher::Perf { collector, kernel, clock })
}

impl Watcher {
    fn finish(self) -> Watched {
        match self {
            Self::Perf { collector, kernel, clock } => {
                let clock = clock.conversion();
                Watched { collected: collector.finish(), clock, kernel: Some(kernel), why: None }
            }
            Self::Scan { scanner, why } => {
                Watched { collected: scanner.finish(), clock: Clock::default(), kernel: None, why: Some(why) }
            }
        }
    }
}

/// Resolves and writes a trace; `complete` fills in its summary.
fn finish(
    args: &PageinArgs,
    watched: Watched,
    output: &mut Output,
    complete: impl FnOnce(&mut Tables, &footer::Facts, &Store),
) -> Result<(), Error> {
    let Collected { tracker, store, malformed, files } = watched.collected;
    let format = args.format;
    let facts = footer::Facts {
        not_completed: tracker.not_completed(),
        not_waited_for: tracker.not_waited_for(),
        running: tracker.running(),
        malformed,
        kernel: watched.kernel,
        detail: args.detail(),
        // Only formats that show what is missing lack it.
        rich: format.rich,
        why: watched.why,
    };
    let (mut tables, stack_mappings) = tracker.into_tables();
    tables.clock = Clock { origin: tables.clock.origin, ..watched.clock };
    complete(&mut tables, &facts, &store);
    let resolved = Resolved::new(tables, &stack_mappings, store, files, format.rich)
        .map_err(|e| Error::failed(format!("cannot read the faults back: {}", system_message(&e))))?;
    output.write(format, &Told::new(&resolved))?;
    if !format.footer {
        for line in resolved.tables().summary.lines() {
            eprintln!("# {}", line.replace(char::is_control, "?"));
        }
    }
    if args.output.is_none() {
        eprintln!("neap: {} faults in {}", resolved.tables().summary.faults, output.path().display());
    }
    Ok(())
}

/// Two readings of two clocks say how long a cycle is.
struct ClockReading {
    published: Option<(u32, u16)>,
    start: Option<(u64, u64)>,
    /// The wall clock: a few milliseconds before the first fault.
    wall: u64,
}

impl ClockReading {
    fn now(published: Option<(u32, u16)>) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { published, start: sys::tsc_and_clock(), wall: u64::try_from(wall.as_nanos()).unwrap_or(0) }
    }

    /// The conversion that the kernel published; else what is measured from the start to now.
    fn conversion(&self) -> Clock {
        const SHIFT: u16 = 31;
        if self.published.is_some() {
            return Clock { tsc: self.published, wall: self.wall, ..Clock::default() };
        }
        let Some(((cycles, ns), (cycles_now, ns_now))) = self.start.zip(sys::tsc_and_clock()) else {
            return Clock { wall: self.wall, ..Clock::default() };
        };
        let (cycles, ns) = (cycles_now.saturating_sub(cycles), ns_now.saturating_sub(ns));
        let mult = (u128::from(ns) << SHIFT).checked_div(u128::from(cycles)).and_then(|mult| u32::try_from(mult).ok());
        Clock { tsc: mult.map(|mult| (mult, SHIFT)), measured: true, wall: self.wall, ..Clock::default() }
    }
}

/// A time on the command line: `10s`, `500ms`, `2min`; seconds without a unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time is a number and ms, s, min or h".to_owned()),
    };
    let seconds = number.parse::<f64>().map_err(|_| "a time begins with a number".to_owned())? * scale;
    Duration::try_from_secs_f64(seconds).map_err(|_| "that time is too long".to_owned())
}

/// A sampling interval on the command line: as the option of the library.
pub fn parse_interval(text: &str) -> Result<u64, String> {
    let option = Id::SitesInterval.option();
    match option.parse(text.as_bytes()) {
        Some(neap_options::Value::Bytes(bytes)) => Ok(bytes),
        _ => Err(format!("it is {}", option.kind)),
    }
}

/// A format on the command line.
pub fn parse_format(text: &str) -> Result<&'static Format, String> {
    Format::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = neap_trace::format::FORMATS.iter().map(|format| format.name).collect();
        format!("the formats are {}", names.join(", "))
    })
}

/// The arguments as text, for people.
fn shown(command: &[OsString]) -> Vec<String> {
    command.iter().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches times that are read wrong.
    #[test]
    fn durations() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2min"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "-1s", "1 day", "1e400"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
