//! Samples by the clock: each time that a thread of the program has run for one period, the instruction and its
//! callers, with symbols. `neap profile --time` makes a profile of them. Except for the event, everything works as in a
//! trace of faults.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use neap_launch::child::{self, Attendant, Program};
use neap_launch::error::{Error, system_message};
use neap_launch::{signals, target};
use neap_trace::track::Tracker;

use crate::collect::{Collected, Collector};
use crate::limit::TimeLimit;
use crate::perf::{Callgraph, Denied, Detail, Events, Wanted};
use crate::resolve::Resolved;
use crate::stat::Stat;
use crate::{attach, footer, perf, program, sys};

/// What was seen of a program.
pub struct Clocked {
    /// Samples, as faults at no address, with their places.
    pub samples: Resolved,
    /// Its process.
    pub pid: u32,
    /// How it ended; none where it was attached to.
    pub status: Option<ExitStatus>,
    /// How long it was watched.
    pub watched: Duration,
    /// When that began, in nanoseconds since 1970.
    pub began: u64,
    /// The processor time of the program and the children that it waited for; none where it was attached to.
    pub processor: Option<Processor>,
    /// Whether what the kernel does for the program was seen. Where not, [`Faults`] were counted.
    pub kernel: bool,
    /// How page faults were counted, where the clock does not see them.
    pub faults: Option<Faults>,
    /// Samples that did not fit in the rings, or could not be read.
    pub lost: u64,
    /// What is missing, a sentence each.
    pub missing: Vec<String>,
}

/// Page faults that were counted: they are among the samples, as faults at an address.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Faults for each sample.
    pub counted: u64,
    /// How long the first touch of a page takes, as neap measured it on its own memory, in nanoseconds.
    pub touch: u64,
}

/// Processor time.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    /// In the program.
    pub user: Duration,
    /// In the kernel, for the program.
    pub system: Duration,
}

/// The collector at work.
struct Watching {
    collector: Collector,
    kernel: bool,
    began: u64,
    limit: Option<TimeLimit>,
}

/// Runs a program and samples it each `period` nanoseconds of a thread's time; after `duration` it gets SIGTERM.
/// `prepare` is given its process before the program begins; if it fails, the program is not started.
pub fn run(
    command: &[OsString],
    env: Vec<(OsString, OsString)>,
    period: u64,
    duration: Option<Duration>,
    prepare: impl FnOnce(u32) -> Result<(), Error>,
) -> Result<Clocked, Error> {
    let Some(name) = command.first() else { return Err(Error::failed("no program is given")) };
    let path = target::resolve(name)?;
    program::traceable(&path, "profile")?;
    let program = Program::new(&path, command, env)?;
    let (ended, watching, signals) = child::supervise_watched(&program, |pid| {
        prepare(pid.unsigned_abs())?;
        let events = Events::open(&[pid], wanted(true, period)).map_err(denied)?;
        let limit = duration.map(|time| TimeLimit::start(pid.unsigned_abs(), time)).transpose()?;
        Ok(Watching { limit, ..watch(events, Tracker::default(), pid.unsigned_abs())? })
    })?;
    let (collected, kernel, began, over) = watching.finish();
    signals.release();
    let time = |of: libc::timeval| {
        Duration::from_secs(of.tv_sec.unsigned_abs()) + Duration::from_micros(of.tv_usec.unsigned_abs())
    };
    let processor = Processor { user: time(ended.usage.ru_utime), system: time(ended.usage.ru_stime) };
    let seen = Seen { pid: ended.pid, watched: ended.wall, began, kernel };
    let mut clocked = seen.resolve(collected)?;
    clocked.status = Some(ended.status);
    clocked.processor = Some(processor);
    if over {
        clocked
            .missing
            .push("what the program would have done later: it got SIGTERM at the end of --duration".to_owned());
    }
    Ok(clocked)
}

/// Samples a process that runs already, until it ends, the time is over, or neap is asked to stop.
pub fn attach(pid: u32, duration: Option<Duration>, period: u64) -> Result<Clocked, Error> {
    let inherited = signals::block();
    let watched = attached(pid, duration, period);
    inherited.release();
    let (seen, collected, unfollowed) = watched?;
    let mut clocked = seen.resolve(collected)?;
    if unfollowed {
        clocked.missing.push("some threads that began while neap attached".to_owned());
    }
    Ok(clocked)
}

fn attached(pid: u32, duration: Option<Duration>, period: u64) -> Result<(Seen, Collected, bool), Error> {
    let gone = |e: std::io::Error| attach::no_process(pid, &e);
    let mut tracker = Tracker::default();
    let (events, unfollowed) = attach::open(&|| attach::threads(pid), wanted(false, period)).map_err(gone)?;
    let before = Stat::of(pid).map_err(gone)?;
    if before.ended || before.kernel {
        return Err(gone(std::io::Error::from_raw_os_error(libc::ESRCH)));
    }
    let events = events.map_err(denied)?;
    events.enable().map_err(|e| Error::failed(format!("cannot start the profile: {}", system_message(&e))))?;
    attach::adopt(&mut tracker, pid);
    let started = Instant::now();
    let watching = watch(events, tracker, pid)?;
    attach::wait(duration.map(|duration| started + duration), || {
        Stat::of(pid).unwrap_or(Stat { ended: true, ..before })
    });
    let watched = started.elapsed();
    let (collected, kernel, began, _) = watching.finish();
    Ok((Seen { pid, watched, began, kernel }, collected, unfollowed))
}

fn wanted(on_exec: bool, period: u64) -> Wanted {
    Wanted { on_exec, callgraph: Some(Callgraph::Dwarf), detail: Detail::Begin, clock: Some(period), monotonic: false }
}

fn denied(why: Denied) -> Error {
    Error::failed(format!("the kernel denies the clock of perf events: {}", footer::reason(&why)))
        .remedy(footer::remedy(Some(&why)))
}

fn watch(events: Events, mut tracker: Tracker, pid: u32) -> Result<Watching, Error> {
    tracker.tables_mut().summary.pid = pid;
    let kernel = events.kernel;
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let collector = Collector::start(events, tracker, None)
        .map_err(|e| Error::failed(format!("cannot start a thread: {}", system_message(&e))))?;
    Ok(Watching { limit: None, collector, kernel, began: u64::try_from(began.as_nanos()).unwrap_or(0) })
}

impl Attendant for Watching {}

impl Watching {
    /// What was collected, whether the kernel is in it, when it began, and whether the time was over.
    fn finish(self) -> (Collected, bool, u64, bool) {
        let over = self.limit.is_some_and(TimeLimit::finish);
        (self.collector.finish(), self.kernel, self.began, over)
    }
}

/// What is known beside the samples.
struct Seen {
    pid: u32,
    watched: Duration,
    began: u64,
    kernel: bool,
}

impl Seen {
    fn resolve(self, collected: Collected) -> Result<Clocked, Error> {
        use neap_trace::Source;
        let Collected { tracker, store, malformed, files } = collected;
        let (tables, mappings) = tracker.into_tables();
        let lost = tables.summary.lost + malformed;
        let samples = Resolved::with_more(tables, &mappings, store, files)
            .map_err(|e| Error::failed(format!("cannot read the samples back: {}", system_message(&e))))?;
        let missing = samples.tables().summary.missing.clone();
        Ok(Clocked {
            samples,
            pid: self.pid,
            status: None,
            watched: self.watched,
            began: self.began,
            processor: None,
            kernel: self.kernel,
            faults: (!self.kernel)
                .then(|| Some(Faults { counted: perf::FAULTS_COUNTED, touch: sys::first_touch_time().ok()? }))
                .flatten(),
            lost,
            missing,
        })
    }
}
