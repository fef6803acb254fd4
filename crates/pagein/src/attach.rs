//! `neap pagein --pid`: the faults of a running process and of its descendants.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use neap_trace::Usage;
use neap_trace::track::Tracker;

use super::args::PageinArgs;
use super::footer;
use super::output;
use super::perf::{Denied, Events, Wanted};
use super::scan::{self, Begin, Scanner};
use super::stat::Stat;
use super::watch::{Watched, Watcher, collector, finish};
use neap_launch::error::{Error, system_message};
use neap_launch::output::Output;
use neap_launch::signals;

/// How often neap checks whether the process still exists.
const LOOK: Duration = Duration::from_millis(50);
/// How many times neap tries to open the events of threads that come and go.
const ATTEMPTS: u32 = 10;
/// A thread that lives longer than this is not short-lived.
const LASTING: Duration = Duration::from_millis(5);

/// Traces a process until it ends, the time limit is over, or neap is asked to stop.
pub fn run(args: &PageinArgs, pid: u32) -> Result<u8, Error> {
    let inherited = signals::block();
    let traced = trace(args, pid);
    // From here on neap can be interrupted: finding symbols and writing may take long.
    inherited.release();
    let (process, watched, mut output) = traced?;
    finish(args, watched, &mut output, |tables, facts, store| footer::of_process(tables, facts, &process, store))?;
    Ok(0)
}

/// What was traced of the process, and the output for it.
fn trace(args: &PageinArgs, pid: u32) -> Result<(footer::Process, Watched, Output), Error> {
    let Attached { watcher, unfollowed, mut counts, before, began } = attach(args, pid)?;
    let started = Instant::now();
    // Only now: a process that cannot be traced leaves no file behind.
    let output = output::create(args, pid)?;
    let last = wait(args.duration.map(|duration| started + duration), || counts.look());
    let duration = started.elapsed();
    let watched = watcher.finish();
    let ended = counts.look();
    let usage = ended.usage.since(before.usage);
    let edges = began.usage.since(before.usage).total() + ended.usage.since(last.usage).total();
    let children = counts.last.len() > 1;
    let process = footer::Process { pid, usage, edges, ended: ended.ended, duration, children, unfollowed };
    Ok((process, watched, output))
}

/// A process that is watched.
struct Attached {
    watcher: Watcher,
    /// Whether new threads may be untraced.
    unfollowed: bool,
    counts: Counts,
    /// What the kernel had counted just before the trace began, and just after.
    before: Stat,
    began: Stat,
}

fn attach(args: &PageinArgs, pid: u32) -> Result<Attached, Error> {
    let gone = |e: io::Error| no_process(pid, &e);
    let mut tracker = Tracker::default();
    tracker.tables_mut().summary.pid = pid;
    let wanted =
        Wanted { on_exec: false, callgraph: args.callgraph, detail: args.detail(), clock: None, monotonic: false };
    let (opened, unfollowed) = open(&|| threads_of_tree(pid), wanted).map_err(gone)?;
    let before = Stat::of(pid).map_err(gone)?;
    if before.ended {
        return Err(gone(io::Error::from_raw_os_error(libc::ESRCH)));
    }
    if before.kernel {
        return Err(Error::failed(format!(
            "cannot trace process {pid}: it is a thread of the kernel, which has no pages"
        ))
        .remedy("name a process of a user program"));
    }
    let tree = scan::tree(pid);
    tracker.count(&tree);
    let mut counts = Counts { root: pid, last: tree.iter().map(|&pid| (pid, Usage::default())).collect() };
    let before = counts.look();
    let (watcher, began) = match opened {
        Ok(events) => {
            events.enable().map_err(|e| Error::failed(format!("cannot start the trace: {}", system_message(&e))))?;
            let began = counts.look();
            // Later mappings are in records; those made before are read from /proc.
            tree.iter().for_each(|&pid| adopt(&mut tracker, pid));
            (collector(args, events, tracker)?, began)
        }
        Err(why) => {
            if fs::read(format!("/proc/{pid}/maps")).is_err() {
                return Err(Error::failed(format!("cannot trace process {pid}: {}", system_message(&why.error)))
                    .remedy("it belongs to another user: run neap as that user, or as root"));
            }
            tree.iter().for_each(|&pid| adopt(&mut tracker, pid));
            let scanner = Scanner::start(pid, tracker, Begin::Running, false)
                .map_err(|e| Error::failed(format!("cannot start a thread: {}", system_message(&e))))?;
            (Watcher::Scan { scanner, why, follower: None }, counts.look())
        }
    };
    Ok(Attached { watcher, unfollowed, counts, before, began })
}

/// The kernel's counts of the processes that exist when the trace begins.
struct Counts {
    root: u32,
    /// The last count of each process.
    last: HashMap<u32, Usage>,
}

impl Counts {
    /// The sum of all counts, and whether the first process has ended.
    fn look(&mut self) -> Stat {
        let mut sum = Stat { usage: Usage::default(), ended: true, kernel: false };
        for (&pid, last) in &mut self.last {
            match Stat::of(pid) {
                Ok(stat) => {
                    *last = stat.usage;
                    sum.ended &= pid != self.root || stat.ended;
                }
                // The count of the first one is not part of another's here; that of a child, of its parent's.
                Err(_) if pid == self.root => {}
                Err(_) => *last = Usage::default(),
            }
            sum.usage = sum.usage.plus(*last);
        }
        sum
    }
}

/// The threads of a process and of all its descendants that the user may inspect.
fn threads_of_tree(pid: u32) -> io::Result<BTreeSet<i32>> {
    let may = |pid: &u32| fs::File::open(format!("/proc/{pid}/maps")).is_ok();
    // One of the others may have ended meanwhile.
    let others = scan::tree(pid).into_iter().skip(1).filter(may).filter_map(|pid| threads(pid).ok()).flatten();
    Ok(threads(pid)?.into_iter().chain(others).collect())
}

/// Opens the events of all threads. A new thread inherits the events of the thread that made it, as far as they were
/// open by then. If it lasts, neap starts again, and after some attempts accepts that. Returns whether it did.
pub fn open(
    threads: &dyn Fn() -> io::Result<BTreeSet<i32>>,
    wanted: Wanted,
) -> io::Result<(Result<Events, Denied>, bool)> {
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        let tids = threads()?;
        let list: Vec<i32> = tids.iter().copied().collect();
        let opened = Events::open(&list, wanted);
        let begun: BTreeSet<i32> = threads()?.difference(&tids).copied().collect();
        match opened {
            // All of them have ended.
            Err(Denied { error, .. }) if error.raw_os_error() == Some(libc::ESRCH) => {
                if left == 0 {
                    return Err(error);
                }
            }
            Ok(_) if !begun.is_empty() => {
                // Nothing is traced yet, so those that end now do not matter.
                std::thread::sleep(LASTING);
                let lasting = !threads()?.is_disjoint(&begun);
                if !lasting || left == 0 {
                    return Ok((opened, lasting));
                }
            }
            opened => return Ok((opened, false)),
        }
    }
}

/// Adds the process to the tracker in its current state.
pub fn adopt(tracker: &mut Tracker, pid: u32) {
    let tids = neap_process::threads(pid).unwrap_or_default();
    let names: Vec<(u32, String)> = tids.into_iter().map(|tid| (tid, neap_process::name(tid))).collect();
    let maps = neap_process::maps(pid).ok();
    tracker.adopt(pid, &neap_process::name(pid), &names, maps.as_deref());
}

/// The threads of a process.
pub fn threads(pid: u32) -> io::Result<BTreeSet<i32>> {
    Ok(neap_process::threads(pid)?.into_iter().map(u32::cast_signed).collect())
}

/// Waits until the process has ended, the time limit is over, or a signal asks neap to end; returns the last result of
/// `look`.
pub fn wait(deadline: Option<Instant>, mut look: impl FnMut() -> Stat) -> Stat {
    loop {
        let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()).min(LOOK));
        let over = left.is_zero() || signals::asked_to_end(left);
        let seen = look();
        if over || seen.ended {
            return seen;
        }
    }
}

pub fn no_process(pid: u32, error: &io::Error) -> Error {
    let cause = match error.kind() {
        // /proc's error for a missing process.
        io::ErrorKind::NotFound => "there is no such process".to_owned(),
        _ => system_message(error),
    };
    Error::failed(format!("cannot trace process {pid}: {cause}")).remedy("is it still running?")
}
