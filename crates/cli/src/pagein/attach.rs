//! `neap pagein --pid`: the faults of a process that runs already.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use neap_trace::track::Tracker;

use super::perf::{Events, Wanted};
use super::scan::Scanner;
use super::{Output, Watched, Watcher, finish, footer};
use crate::args::PageinArgs;
use crate::error::{Error, system_message};
use crate::run::signals;

/// How often neap looks whether the process is still there.
const LOOK: Duration = Duration::from_millis(50);

/// Traces a process until it ends, the time is over, or neap is told to stop.
pub fn run(args: &PageinArgs, pid: u32) -> Result<u8, Error> {
    let tids = threads(pid).map_err(|e| no_process(pid, &e))?;
    let mut output = match &args.output {
        Some(path) => Output::create(path)?,
        None => Output::create_default(pid, args.format)?,
    };
    let inherited = signals::block();
    let started = Instant::now();
    let watcher = match watch(args, pid, &tids) {
        Ok(watcher) => watcher,
        Err(error) => {
            inherited.restore();
            return Err(error);
        }
    };
    wait(pid, args.duration.map(|duration| started + duration));
    let duration = started.elapsed();
    let watched: Watched = watcher.finish();
    let done = finish(args, watched, &mut output, |tables, facts| {
        footer::common(tables, facts);
        tables.summary.pid = pid;
        tables.summary.duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    });
    inherited.restore();
    done.map(|()| 0)
}

fn watch(args: &PageinArgs, pid: u32, tids: &BTreeSet<i32>) -> Result<Watcher, Error> {
    let failed = |e: io::Error| Error::failed(format!("cannot start a thread: {}", system_message(&e)));
    let mut tracker = Tracker::default();
    tracker.tables_mut().summary.pid = pid;
    let wanted = Wanted { on_exec: false, callgraph: args.callgraph, detail: args.detail(), monotonic: false };
    let list: Vec<i32> = tids.iter().copied().collect();
    match Events::open(&list, wanted) {
        Ok(events) => {
            events.enable().map_err(|e| Error::failed(format!("cannot start the trace: {}", system_message(&e))))?;
            // What is mapped from now on is told by records; what was mapped before, by /proc.
            adopt(&mut tracker, pid);
            super::collector(args, events, tracker)
        }
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(no_process(pid, &error)),
        Err(why) => {
            if fs::read(format!("/proc/{pid}/maps")).is_err() {
                return Err(Error::failed(format!("cannot trace process {pid}: {}", system_message(&why)))
                    .remedy("it belongs to another user: run neap as that user, or as root"));
            }
            adopt(&mut tracker, pid);
            Ok(Watcher::Scan { scanner: Scanner::start(pid, tracker).map_err(failed)?, why })
        }
    }
}

/// Tells the tracker of the process as it is.
fn adopt(tracker: &mut Tracker, pid: u32) {
    let name = |path: String| fs::read_to_string(path).map(|name| name.trim_end().to_owned()).unwrap_or_default();
    let names: Vec<(u32, String)> = threads(pid)
        .unwrap_or_default()
        .into_iter()
        .map(|tid| (tid.unsigned_abs(), name(format!("/proc/{pid}/task/{tid}/comm"))))
        .collect();
    let maps = fs::read(format!("/proc/{pid}/maps")).ok();
    tracker.adopt(pid, &name(format!("/proc/{pid}/comm")), &names, maps.as_deref());
}

/// The threads of a process, looked up until two looks agree: new ones may appear meanwhile, and those that appear
/// later inherit the events.
fn threads(pid: u32) -> io::Result<BTreeSet<i32>> {
    let look = || -> io::Result<BTreeSet<i32>> {
        let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    };
    let mut known = look()?;
    for _ in 0..10 {
        let now = look()?;
        if now == known {
            break;
        }
        known = now;
    }
    Ok(known)
}

/// Waits until the process has ended, the time is over, or somebody sends a signal that asks neap to end.
fn wait(pid: u32, deadline: Option<Instant>) {
    loop {
        let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()).min(LOOK));
        if left.is_zero() || !fs::exists(format!("/proc/{pid}")).unwrap_or(false) {
            return;
        }
        if signals::asked_to_end(left) {
            return;
        }
    }
}

fn no_process(pid: u32, error: &io::Error) -> Error {
    Error::failed(format!("cannot trace process {pid}: {}", system_message(error))).remedy("is it still running?")
}
