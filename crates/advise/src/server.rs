//! A command that does not end by itself: it works and idles, an account is made, and it is ended.
//!
//! It counts as idle when the processes of the run have used at most 2 % of a processor for the time of `--idle`. neap
//! waits for that at most ten times as long.

use crate::args::AdviseArgs;
use crate::family::Family;
use neap_account::Report;
use neap_launch::error::{Error, system_message};
use neap_why::{Effort, look};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// At most this fraction of a processor is idling.
const IDLE: f64 = 0.02;
/// Limit on the wait for idling, as a multiple of `--idle`.
const PATIENCE: u32 = 10;
/// How long a server may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// How long it may take to start before the load begins.
const START: Duration = Duration::from_secs(1);

/// How often the load is checked.
const NAP: Duration = Duration::from_millis(20);

/// The result of a server's run.
#[derive(Debug)]
pub struct Idled {
    /// How long it worked.
    pub worked: Duration,
    /// The account after idling.
    pub report: Option<Report>,
    /// It did not idle.
    pub busy: bool,
    /// It ended before it idled.
    pub ended_early: bool,
}

/// The thread that attends to the server. It gets no signals, because they are blocked already.
pub struct Attendant {
    /// Dropped when the server has ended.
    stop: Sender<()>,
    thread: JoinHandle<Result<Idled, Error>>,
}

impl Attendant {
    /// The result, after the server has ended.
    pub fn finish(self) -> Result<Idled, Error> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| Err(Error::failed("a thread has ended")))
    }
}

/// Starts the thread for process `pid`, which was not waited for.
pub fn start(args: &AdviseArgs, pid: i32, family: &Family) -> Result<Attendant, Error> {
    let failed = |what: &str, error: &io::Error| Error::failed(format!("cannot {what}: {}", system_message(error)));
    let server = Server::open(pid).map_err(|error| failed("open the process", &error))?;
    let (stop, stopped) = mpsc::channel();
    let (time, load, idle, family) = (args.time, args.load.clone(), args.idle, family.clone());
    let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        let result = attend(pid, time, load, idle, &family, &stopped);
        if !result.as_ref().is_ok_and(|idled| idled.ended_early) {
            server.send(libc::SIGTERM);
            if !ends_within(GRACE, &stopped) {
                server.send(libc::SIGKILL);
            }
        }
        result
    });
    let thread = thread.map_err(|error| failed("start a thread", &error))?;
    Ok(Attendant { stop, thread })
}

/// The server's process, by a pidfd, because its number may become another process's when it has ended.
struct Server(OwnedFd);

impl Server {
    fn open(pid: i32) -> io::Result<Server> {
        // SAFETY: pidfd_open takes numbers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so the descriptor is open, and has no other owner.
        Ok(Server(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    fn send(&self, signal: i32) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: pidfd_send_signal takes numbers, and no details of the signal.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, none, 0) };
    }
}

/// Whether the server ends within `time`.
fn ends_within(time: Duration, stopped: &Receiver<()>) -> bool {
    stopped.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
}

fn attend(
    pid: i32,
    time: Option<Duration>,
    load: Option<OsString>,
    idle: Duration,
    family: &Family,
    stopped: &Receiver<()>,
) -> Result<Idled, Error> {
    let early = |worked| Ok(Idled { worked, report: None, busy: false, ended_early: true });
    let mut started = Instant::now();
    if let Some(load) = load {
        if ends_within(START, stopped) {
            return early(started.elapsed());
        }
        started = Instant::now();
        if !put_load(&load, pid, stopped)? {
            return early(started.elapsed());
        }
    } else if ends_within(time.unwrap_or_default(), stopped) {
        return early(started.elapsed());
    }
    let worked = started.elapsed();
    let began = Instant::now();
    loop {
        let before = family.times();
        if ends_within(idle, stopped) {
            return early(worked);
        }
        let used = family.times().since(&before).as_secs_f64();
        let idles = used <= IDLE * idle.as_secs_f64().max(0.5);
        if idles || began.elapsed() >= idle * PATIENCE {
            let report = family.largest().and_then(|pid| look(pid, Effort::Full).ok());
            return Ok(Idled { worked, report, busy: !idles, ended_early: false });
        }
    }
}

/// Runs the load to its end; false if the server ends first, which ends the load too.
fn put_load(load: &OsString, pid: i32, stopped: &Receiver<()>) -> Result<bool, Error> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(load).env("NEAP_ADVISE_PID", pid.to_string()).stdin(Stdio::null());
    unblock(&mut command);
    let failed = |why: String| {
        Error::failed(format!("the load fails: {why}"))
            .remedy("it is run by sh for each allocator; try it beside the server")
    };
    // Its output must not mix with neap's report.
    command.stdout(io::stderr().try_clone_as_output().unwrap_or_else(Stdio::null));
    let mut child = command.spawn().map_err(|error| failed(system_message(&error)))?;
    loop {
        let status = child.try_wait().map_err(|error| failed(system_message(&error)))?;
        if status.is_some_and(|status| status.success()) {
            return Ok(true);
        }
        // Also if the load has failed because the server ended.
        if ends_within(NAP, stopped) {
            let _ = child.kill().and_then(|()| child.wait());
            return Ok(false);
        }
        if let Some(status) = status {
            return Err(failed(status.to_string()));
        }
    }
}

/// Standard error as another program's output.
trait AsOutput {
    fn try_clone_as_output(&self) -> Option<Stdio>;
}

impl AsOutput for io::Stderr {
    fn try_clone_as_output(&self) -> Option<Stdio> {
        use std::os::fd::AsFd;
        self.as_fd().try_clone_to_owned().ok().map(Stdio::from)
    }
}

/// Starts the load with no signals blocked; neap has them blocked while the server runs.
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
