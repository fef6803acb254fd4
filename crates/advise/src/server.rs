//! A command that does not end by itself: it works, idles, is looked at, and is ended.
//!
//! It idles when its processes used less than 2 % of a processor for the time of `--idle`. That is waited for at most ten
//! times as long.

use crate::args::AdviseArgs;
use neap_account::Report;
use neap_launch::error::{Error, system_message};
use neap_why::{Effort, look};
use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Less of a processor than that is idling.
const IDLE: f64 = 0.02;
/// How long idling is waited for, in times of `--idle`.
const PATIENCE: u32 = 10;
/// How long a server has for its end.
const GRACE: Duration = Duration::from_secs(10);
/// How long it has for its start before the load begins.
const START: Duration = Duration::from_secs(1);

/// What became of a server.
#[derive(Debug)]
pub struct Idled {
    /// How long it worked.
    pub worked: Duration,
    /// The account after idling.
    pub report: Option<Report>,
    /// It did not idle.
    pub busy: bool,
    /// It ended before.
    pub ended_early: bool,
}

/// The thread that attends to it. It takes no signals: they are blocked already.
pub struct Attendant {
    /// Dropped when the server has ended.
    stop: Sender<()>,
    thread: JoinHandle<Result<Idled, Error>>,
}

impl Attendant {
    /// What became of the server, which has ended.
    pub fn finish(self) -> Result<Idled, Error> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| Err(Error::failed("a thread has ended")))
    }
}

/// Starts it for process `pid`.
pub fn start(args: &AdviseArgs, pid: i32) -> Result<Attendant, Error> {
    let (stop, stopped) = mpsc::channel();
    let (time, load, idle) = (args.time, args.load.clone(), args.idle);
    let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        let result = attend(pid, time, load, idle, &stopped);
        if !result.as_ref().is_ok_and(|idled| idled.ended_early) {
            end(pid, &stopped);
        }
        result
    });
    let thread = thread.map_err(|error| Error::failed(format!("cannot start a thread: {}", system_message(&error))))?;
    Ok(Attendant { stop, thread })
}

/// Whether the server ended within that time.
fn ends_within(time: Duration, stopped: &Receiver<()>) -> bool {
    stopped.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
}

fn attend(
    pid: i32,
    time: Option<Duration>,
    load: Option<OsString>,
    idle: Duration,
    stopped: &Receiver<()>,
) -> Result<Idled, Error> {
    let early = |worked| Ok(Idled { worked, report: None, busy: false, ended_early: true });
    let mut started = Instant::now();
    if let Some(load) = load {
        if ends_within(START, stopped) {
            return early(started.elapsed());
        }
        started = Instant::now();
        put_load(&load, pid)?;
    } else if ends_within(time.unwrap_or_default(), stopped) {
        return early(started.elapsed());
    }
    let worked = started.elapsed();
    let began = Instant::now();
    loop {
        let before = processor_time(pid);
        if ends_within(idle, stopped) {
            return early(worked);
        }
        let used = processor_time(pid).saturating_sub(before).as_secs_f64();
        let idles = used <= IDLE * idle.as_secs_f64().max(0.5);
        if idles || began.elapsed() >= idle * PATIENCE {
            let report = largest(pid).and_then(|pid| look(pid, Effort::Full).ok());
            return Ok(Idled { worked, report, busy: !idles, ended_early: false });
        }
    }
}

/// Runs the load to its end.
fn put_load(load: &OsString, pid: i32) -> Result<(), Error> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(load).env("NEAP_ADVISE_PID", pid.to_string()).stdin(Stdio::null());
    unblock(&mut command);
    let failed = |why: String| {
        Error::failed(format!("the load fails: {why}"))
            .remedy("it is run by sh for each allocator; try it beside the server")
    };
    // Its output is no report of neap's.
    let status = match std::io::stderr().try_clone_as_output() {
        Some(output) => command.stdout(output).status(),
        None => command.stdout(Stdio::null()).status(),
    };
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(system_message(&error))),
    }
}

/// Standard error as another program's output.
trait AsOutput {
    fn try_clone_as_output(&self) -> Option<Stdio>;
}

impl AsOutput for std::io::Stderr {
    fn try_clone_as_output(&self) -> Option<Stdio> {
        use std::os::fd::AsFd;
        self.as_fd().try_clone_to_owned().ok().map(Stdio::from)
    }
}

/// neap has all signals blocked while the server runs; the load starts without.
fn unblock(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec only system calls are made; the set is initialised by sigemptyset.
    unsafe {
        command.pre_exec(|| {
            let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            Ok(())
        });
    }
}

/// The process and its descendants.
fn family(pid: i32) -> Vec<u32> {
    let mut all = vec![pid.unsigned_abs()];
    let mut at = 0;
    while at < all.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", all[at])).into_iter().flatten().flatten();
        for task in tasks {
            let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
        at += 1;
    }
    all
}

/// The process of the family that has most resident.
fn largest(pid: i32) -> Option<u32> {
    let resident = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        text.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok())
    };
    family(pid).into_iter().max_by_key(resident)
}

/// Processor time of the family so far.
fn processor_time(pid: i32) -> Duration {
    let ticks = |pid: u32| -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let tail = text.rsplit_once(") ").map_or("", |(_, tail)| tail);
        // utime and stime: fields 14 and 15 of proc_pid_stat(5), where the tail begins with field 3.
        tail.split(' ').skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum()
    };
    // SAFETY: sysconf takes a number.
    let second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
    Duration::from_secs_f64(family(pid).into_iter().map(ticks).sum::<u64>() as f64 / second as f64)
}

/// Asks the server to end, and ends it where it does not. Children that it leaves behind end with it.
fn end(pid: i32, stopped: &Receiver<()>) {
    let family = family(pid);
    neap_launch::signals::send(pid, libc::SIGTERM);
    if !ends_within(GRACE, stopped) {
        for &pid in family.iter().rev() {
            neap_launch::signals::send(pid as i32, libc::SIGKILL);
        }
    }
}
