//! Traces a process, and completes the trace: symbols, the footer, the file.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use neap_trace::track::Tracker;
use neap_trace::{Backend, Clock, Source, Tables};

use super::args::PageinArgs;
use super::collect::{Collected, Collector};
use super::follow::Follower;
use super::footer;
use super::perf::{Denied, Detail, Events, Wanted};
use super::progress::Shown;
use super::resolve::Resolved;
use super::scan::{Begin, Scanner};
use super::show;
use super::store::Store;
use super::sys;
use neap_launch::child::{Attendant, Status};
use neap_launch::error::{Error, system_message, tell};
use neap_launch::output::Output;

/// The means of tracing.
pub enum Watcher {
    /// perf events.
    Perf { collector: Collector, kernel: bool, clock: ClockReading },
    /// Scans of page tables, and why; `follower` follows the program where ptrace is permitted and `--exact` does not
    /// do it.
    Scan { scanner: Scanner, why: Denied, follower: Option<Follower> },
}

/// What was traced, and facts about it.
pub struct Watched {
    collected: Collected,
    clock: Clock,
    /// `None` for scans.
    kernel: Option<bool>,
    /// Why there are no events.
    why: Option<Denied>,
    /// See [`footer::Facts`].
    followed: bool,
}

/// Starts to trace a process that waits for its exec.
pub fn watch(args: &PageinArgs, pid: i32, sites: Option<&OsStr>) -> Result<Watcher, Error> {
    let monotonic = sites.is_some();
    let wanted = Wanted { on_exec: true, callgraph: args.callgraph, detail: args.detail(), clock: None, monotonic };
    let mut tracker = Tracker::default();
    tracker.tables_mut().summary.pid = pid.unsigned_abs();
    if let Some(directory) = sites {
        tracker.expect_sites(directory.as_bytes());
    }
    match Events::open(&[pid], wanted) {
        Ok(events) => collector(args, events, tracker),
        Err(why) => {
            let scanner = Scanner::start(pid.unsigned_abs(), tracker, Begin::BeforeExec, args.exact)
                .map_err(|e| Error::failed(format!("cannot start a thread: {}", system_message(&e))))?;
            if args.exact {
                scanner.follow();
            }
            let follower = if args.exact { None } else { Follower::start(pid, &scanner).ok() };
            Ok(Watcher::Scan { scanner, why, follower })
        }
    }
}

/// Starts the thread that collects.
pub fn collector(args: &PageinArgs, events: Events, mut tracker: Tracker) -> Result<Watcher, Error> {
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
    pub fn finish(self) -> Watched {
        match self {
            Self::Perf { collector, kernel, clock } => {
                let clock = clock.conversion();
                Watched { collected: collector.finish(), clock, kernel: Some(kernel), why: None, followed: true }
            }
            Self::Scan { scanner, why, .. } => {
                let (collected, followed) = scanner.finish();
                Watched { collected, clock: Clock::default(), kernel: None, why: Some(why), followed }
            }
        }
    }

    /// The scanner, where there is one.
    pub fn scanner(&self) -> Option<&Scanner> {
        match self {
            Self::Perf { .. } => None,
            Self::Scan { scanner, .. } => Some(scanner),
        }
    }

    /// The next status of the program, from whatever follows it.
    pub fn wait(&mut self, pid: i32) -> io::Result<Option<Status>> {
        match self {
            Self::Scan { scanner, follower: Some(follower), .. } => follower.wait(scanner),
            _ => ().wait(pid),
        }
    }
}

/// Resolves and writes a trace; `complete` fills in its summary.
pub fn finish(
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
        // Only formats that show missing values report them.
        rich: format.rich,
        why: watched.why,
        followed: watched.followed,
    };
    let (mut tables, stack_mappings) = tracker.into_tables();
    tables.clock = Clock { origin: tables.clock.origin, ..watched.clock };
    complete(&mut tables, &facts, &store);
    let resolved = Resolved::new(tables, &stack_mappings, store, files, format.rich)
        .map_err(|e| Error::failed(format!("cannot read the faults back: {}", system_message(&e))))?;
    super::output::write(output, format, &Shown::new(&resolved))?;
    if !format.footer {
        for line in resolved.tables().summary.lines() {
            tell(format_args!("# {}", line.replace(char::is_control, "?")));
        }
    }
    let summary = &resolved.tables().summary;
    let shown = !output.is_standard() && io::stderr().is_terminal();
    if args.output.is_none() || shown {
        let by = if summary.backend == Backend::Scan { ", by page table scans," } else { "" };
        tell(format_args!("neap: {} faults{by} in {}", summary.faults, output.path().display()));
    }
    if shown {
        // A terminal that is gone gets no summary.
        let _ = show::summary(&resolved, &mut io::stderr().lock());
    }
    Ok(())
}

/// Two readings of two clocks, which give the length of a cycle.
pub struct ClockReading {
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

    /// The conversion that the kernel published; otherwise the one measured from the start to now.
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
