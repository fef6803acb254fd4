//! Handles interruptions at any time: a signal sets a flag, every wait checks it, and cleanup runs on the way out.
//!
//! The handler itself kills nothing. Children are in process groups of their own, so that ^C at a terminal reaches this
//! process alone, which then ends them in order. A child also ends when this process ends in any way.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::environment;
use crate::toolchain::shell_line;

/// The number of the signal that came first; 0 for none.
static ARRIVED: AtomicI32 = AtomicI32::new(0);
/// The children that have not ended.
static LIVE: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// The signals that end a run in an orderly way; SIGPIPE comes when the reader of the output has ended.
const WATCHED: [libc::c_int; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE];
/// How long a child may take to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a wait checks the child and the flag.
const LOOK: Duration = Duration::from_millis(10);

/// The run was interrupted by a signal; what was measured until then is kept.
#[derive(Debug)]
pub struct Interrupted(pub i32);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// A command took longer than it may.
#[derive(Debug)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of time")
    }
}

impl std::error::Error for TimedOut {}

extern "C" fn note(number: libc::c_int) {
    // Relaxed: no other data depend on the flag.
    let _ = ARRIVED.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
}

/// Notes these signals from now on, instead of ending this process. Ignored signals stay ignored, as `nohup` requires.
pub fn watch() {
    for number in WATCHED {
        let handler: extern "C" fn(libc::c_int) = note;
        // SAFETY: an all-zero sigaction is valid; the handler has the type that sa_handler requires, and does only an
        // atomic exchange, which is allowed in a handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(number, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(number, &action, std::ptr::null_mut());
        }
    }
}

/// The signal that arrived, if one did.
pub fn arrived() -> Option<i32> {
    // Relaxed: see `note`.
    Some(ARRIVED.load(Ordering::Relaxed)).filter(|&number| number != 0)
}

/// An error once a signal has arrived.
pub fn check() -> Result<()> {
    match arrived() {
        Some(number) => Err(Interrupted(number).into()),
        None => Ok(()),
    }
}

/// Sleeps, unless a signal arrives.
pub fn sleep(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK));
    }
}

fn live_list() -> MutexGuard<'static, Vec<u32>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The children that have not ended.
pub fn live() -> Vec<u32> {
    live_list().clone()
}

/// A child in a process group of its own that does not outlive this value.
pub struct Guarded {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Guarded {
    /// Starts `command` with an empty standard input and without the user's settings of allocators.
    pub fn start(command: &mut Command) -> Result<Guarded> {
        command.process_group(0).stdin(Stdio::null());
        environment::clean(command);
        let parent = std::process::id();
        // SAFETY: prctl and getppid are system calls that may be made between fork and exec; nothing allocates.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong);
                // This process may have ended before the call above.
                if libc::getppid() as u32 == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start: {}", shell_line(command)))?;
        live_list().push(child.id());
        Ok(Guarded { child, ended: None })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
            self.forget_if_ended();
        }
        Ok(self.ended)
    }

    /// Once it has ended, its number may become another process's.
    fn forget_if_ended(&self) {
        if self.ended.is_some() {
            live_list().retain(|&pid| pid != self.child.id());
        }
    }

    /// Waits for its end, for a signal to this process, or for the time limit: then `None`.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.status()? {
                return Ok(Some(status));
            }
            check()?;
            if limit.is_some_and(|limit| begun.elapsed() > limit) {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }

    /// Ends the process group: with SIGTERM, and after five seconds with SIGKILL.
    pub fn end(&mut self) {
        let group = -(self.child.id() as libc::pid_t);
        if matches!(self.status(), Ok(None)) {
            send(group, libc::SIGTERM);
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE && matches!(self.status(), Ok(None)) {
                thread::sleep(LOOK);
            }
            send(group, libc::SIGKILL);
            self.ended = self.child.wait().ok();
            self.forget_if_ended();
        } else {
            send(group, libc::SIGKILL);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.end();
    }
}

fn send(target: libc::pid_t, number: libc::c_int) {
    // SAFETY: kill takes two numbers.
    unsafe { libc::kill(target, number) };
}

/// The result of a command.
pub struct Output {
    /// How it ended; none if it reached the time limit.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs `command` to its end, to the time limit, or to an interruption.
pub fn output(command: &mut Command, limit: Option<Duration>) -> Result<Output> {
    check()?;
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Guarded::start(command)?;
    let stdout = reader(child.child.stdout.take());
    let stderr = reader(child.child.stderr.take());
    let status = child.wait(limit);
    // Ends all processes that still hold the pipes; otherwise the readers would wait for them.
    child.end();
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    Ok(Output { status: status?, stdout, stderr })
}

/// As [`output`], but a failure is an error with the command and the end of its standard error.
pub fn run(command: &mut Command) -> Result<String> {
    run_within(command, None)
}

/// As [`run`]; if the time limit is reached, the error is [`TimedOut`].
pub fn run_within(command: &mut Command, limit: Option<Duration>) -> Result<String> {
    let line = shell_line(command);
    let out = output(command, limit)?;
    match out.status {
        Some(status) if status.success() => Ok(out.stdout),
        Some(status) => {
            let text: Vec<&str> = out.stderr.lines().collect();
            let tail = text[text.len().saturating_sub(20)..].join("\n");
            bail!("{status} from: {line}\n{tail}")
        }
        None => Err(TimedOut).with_context(|| line),
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch output that is lost, and a status that is not that of the command.
    #[test]
    fn output_and_status() {
        let out = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]), None).unwrap();
        assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(out.status.unwrap().code(), Some(3));
        let error = run(Command::new("sh").args(["-c", "echo why >&2; false"])).unwrap_err();
        assert!(error.to_string().contains("why"));
        let error = run_within(Command::new("sleep").arg("60"), Some(Duration::from_millis(50))).unwrap_err();
        assert!(error.is::<TimedOut>() && error.to_string().contains("sleep 60"), "{error:#}");
    }

    // Would catch a server that is not listed while it lives, and one that is listed after its end.
    #[test]
    fn live_children_are_known() {
        let mut child = Guarded::start(Command::new("sleep").arg("60")).unwrap();
        let pid = child.id();
        assert!(live().contains(&pid));
        child.end();
        assert!(!live().contains(&pid));
        let mut child = Guarded::start(&mut Command::new("true")).unwrap();
        child.wait(None).unwrap();
        assert!(!live().contains(&child.id()));
    }

    // Would catch a limit that is not kept, and a grandchild that holds the pipe and so blocks the caller.
    #[test]
    fn the_limit_ends_the_group() {
        let begun = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & sleep 60"]);
        let out = output(&mut command, Some(Duration::from_millis(100))).unwrap();
        assert!(out.status.is_none());
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
