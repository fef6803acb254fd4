//! Starts a command, and shows it at each interval and at its end: the kernel stops it just before it exits, with all
//! its memory still mapped.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Instant;

use neap_launch::child::{self, Attendant, Program, Status};
use neap_launch::error::{Error, FAILED, system_message};
use neap_launch::ptrace;
use neap_launch::target;

use super::output::{Output, read};
use super::report::Report;
use crate::args::ShowArgs;

/// Runs the command; the result is its exit status.
pub fn run(args: &ShowArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no command is given")) };
    let path = target::resolve(command)?;
    if let Some(why) = target::secure_execution(&path) {
        return Err(Error::cannot_run(format!(
            "cannot show {}: {why}, and the kernel lets no other process look at such a program",
            path.display()
        ))
        .remedy("show it as that user: sudo neap huge show -- PROGRAM"));
    }
    let mut output = Output::create(args, || io::stderr().as_fd().try_clone_to_owned().map(Into::into))?;
    let program = Program::new(&path, &args.command, std::env::vars_os().collect())?;
    let (ended, watched, signals) = child::supervise_watched(&program, |pid| Watched::start(args, pid, &output))?;
    let traced = watched.traced;
    let result = match watched.finish() {
        Some(Ok(report)) => output.write(&report),
        Some(Err(error)) => Err(error),
        None if traced => Err(Error::failed("the command ended before it could be shown")),
        None => Ok(()),
    };
    signals.release();
    if let Err(error) = result {
        error.report();
        // The command's own failure is worth more to the caller than neap's.
        if ended.status.success() {
            return Ok(FAILED);
        }
    }
    Ok(child::end_like(ended.status))
}

/// A command that is being watched.
struct Watched<'a> {
    args: &'a ShowArgs,
    started: Instant,
    traced: bool,
    sampler: Option<Sampler>,
    at_end: Option<Result<Report, Error>>,
}

impl<'a> Watched<'a> {
    fn start(args: &'a ShowArgs, pid: i32, output: &Output) -> Result<Self, Error> {
        let started = Instant::now();
        let traced = match ptrace::seize(pid, libc::PTRACE_O_TRACEEXIT) {
            Ok(()) => true,
            // It is shown at least while it runs.
            Err(_) if args.interval.is_some() => false,
            Err(error) => {
                return Err(Error::failed(format!("cannot stop the command at its end: {}", system_message(&error)))
                    .remedy("--interval 1s shows it while it runs; or allow ptrace in the container"));
            }
        };
        let sampler = Sampler::start(args, pid.unsigned_abs(), started, output)
            .map_err(|error| Error::failed(format!("cannot start a thread: {}", system_message(&error))))?;
        Ok(Watched { args, started, traced, sampler, at_end: None })
    }

    /// Its memory at its end; `None` if that was not seen.
    fn finish(mut self) -> Option<Result<Report, Error>> {
        drop(self.sampler.take());
        self.at_end
    }
}

impl Attendant for Watched<'_> {
    fn wait(&mut self, pid: i32) -> io::Result<Option<Status>> {
        if !self.traced {
            return ().wait(pid);
        }
        ptrace::next_status(pid, |tid| {
            drop(self.sampler.take());
            self.at_end = Some(read(self.args, tid.unsigned_abs(), self.started));
        })
    }
}

/// A thread that shows the command at each interval. It takes no signals: they are blocked already.
struct Sampler {
    /// Dropped to end the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    fn start(args: &ShowArgs, pid: u32, started: Instant, output: &Output) -> io::Result<Option<Sampler>> {
        let Some(interval) = args.interval else { return Ok(None) };
        let mut output = output.share();
        let (stop, stopped) = mpsc::channel();
        let args = args.clone();
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let written = read(&args, pid, started).and_then(|report| output.write(&report));
                if let Err(error) = written {
                    error.report();
                    return;
                }
            }
        })?;
        Ok(Some(Sampler { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
