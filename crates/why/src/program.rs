//! `neap why -- CMD`: runs a command, and accounts for it at the peak of its Rss.
//!
//! A thread reads Rss every 20 ms, and makes an account when Rss is a tenth above that of the last account. At the end
//! the kernel stops the process when it is about to exit, with all its memory still there, and a last account is made.
//! The report is the last account, unless an earlier one has clearly more Rss, and says when it was made.

use crate::args::WhyArgs;
use crate::output::Output;
use crate::read::look_at_command;
use crate::sys;
use neap_account::Report;
use neap_launch::child::{self, Attendant, Program, Status};
use neap_launch::error::{Error, FAILED, system_message};
use neap_launch::ptrace;
use neap_launch::target;
use std::fs;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The pause between two readings of Rss.
const NAP: Duration = Duration::from_millis(20);
/// The longest pause, after an account that took long.
const LONGEST: Duration = Duration::from_millis(400);

/// Runs the command; the result is its exit status.
pub fn run(args: &WhyArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no command is given")) };
    let path = target::resolve(command)?;
    if let Some(why) = target::secure_execution(&path) {
        return Err(Error::cannot_run(format!(
            "cannot account for {}: {why}, and the kernel lets no other process look at such a program",
            path.display()
        ))
        .remedy("run neap as that user: sudo neap why -- PROGRAM"));
    }
    let mut output = Output::of_command(args)?;
    let program = Program::new(&path, &args.command, std::env::vars_os().collect())?;
    let (ended, watched, signals) = child::supervise_watched(&program, Watched::start)?;
    let result = watched.finish().and_then(|report| output.report(&report));
    signals.release();
    if let Err(error) = result {
        error.report();
        // The command's own failure matters more to the caller than neap's.
        if ended.status.success() {
            return Ok(FAILED);
        }
    }
    Ok(child::end_like(ended.status))
}

/// A watched command, for `supervise_watched`.
pub struct Watched {
    started: Instant,
    traced: bool,
    sampler: Option<Sampler>,
    peak: Option<Report>,
    at_end: Option<Report>,
    exit: Option<Exit>,
}

/// Figures of a command that is about to exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// How long it ran.
    pub after: Duration,
    /// Its peak resident memory, without the programs that it started.
    pub peak_bytes: u64,
}

impl Watched {
    /// Starts the watch, before the process becomes the program.
    pub fn start(pid: i32) -> Result<Self, Error> {
        let started = Instant::now();
        // If that is denied, only accounts of the running command are made.
        let traced = ptrace::seize(pid, libc::PTRACE_O_TRACEEXIT).is_ok();
        let sampler = Sampler::start(pid.unsigned_abs(), started)
            .map_err(|error| Error::failed(format!("cannot start a thread: {}", system_message(&error))))?;
        Ok(Watched { started, traced, sampler: Some(sampler), peak: None, at_end: None, exit: None })
    }

    /// The account of the moment with the largest Rss.
    fn finish(mut self) -> Result<Report, Error> {
        self.end_sampler();
        let rss = |report: &Option<Report>| report.as_ref().map_or(0, |report| report.rss_bytes);
        // The end, unless an earlier account has over 5 % more.
        let better = rss(&self.at_end).saturating_mul(21) >= rss(&self.peak).saturating_mul(20);
        let chosen = if better { self.at_end.or(self.peak) } else { self.peak.or(self.at_end) };
        chosen.ok_or_else(|| {
            Error::failed("the command ended before it could be read")
                .remedy("allow ptrace in the container (--cap-add SYS_PTRACE), or use neap why PID while it runs")
        })
    }

    /// The same for a command that is timed: it is not read before its end.
    pub fn start_unseen(pid: i32) -> Self {
        let traced = ptrace::seize(pid, libc::PTRACE_O_TRACEEXIT).is_ok();
        Watched { started: Instant::now(), traced, sampler: None, peak: None, at_end: None, exit: None }
    }

    /// The account at its end, and its time and peak; none if it could not be traced.
    pub fn end(self) -> (Option<Report>, Option<Exit>) {
        (self.at_end, self.exit)
    }

    fn end_sampler(&mut self) {
        if let Some(sampler) = self.sampler.take() {
            self.peak = sampler.end();
        }
    }

    /// The process is about to exit.
    fn at_exit(&mut self, pid: u32) {
        let status = neap_process::text(format!("/proc/{pid}/status")).unwrap_or_default();
        let peak_bytes = neap_account::parse::value(&status, "VmHWM").unwrap_or(0);
        self.exit = Some(Exit { after: self.started.elapsed(), peak_bytes });
        self.end_sampler();
        let report = look_at_command(pid).ok();
        let after = self.started.elapsed().as_secs_f64();
        self.at_end = report.map(|report| Report { moment: Some(format!("at its end, after {after:.2} s")), ..report });
    }
}

impl Attendant for Watched {
    fn wait(&mut self, pid: i32) -> io::Result<Option<Status>> {
        if !self.traced {
            return ().wait(pid);
        }
        ptrace::next_status(pid, |tid| self.at_exit(tid.unsigned_abs()))
    }
}

/// A thread that makes accounts of the command while it grows. It gets no signals, because they are blocked already.
struct Sampler {
    /// Dropped to end the thread.
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Option<Report>>,
}

impl Sampler {
    fn start(pid: u32, started: Instant) -> io::Result<Sampler> {
        let (stop, stopped) = mpsc::channel();
        let own = fs::read_link("/proc/self/exe").ok();
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
            let mut best: Option<Report> = None;
            let mut nap = NAP;
            while stopped.recv_timeout(nap) == Err(RecvTimeoutError::Timeout) {
                let most = best.as_ref().map_or(0, |report| report.rss_bytes);
                let is_program = fs::read_link(format!("/proc/{pid}/exe")).ok() != own;
                if !is_program || rss(pid) <= most + most / 10 {
                    continue;
                }
                let began = Instant::now();
                if let Ok(report) = look_at_command(pid) {
                    let after = started.elapsed().as_secs_f64();
                    if report.rss_bytes > most {
                        best = Some(Report { moment: Some(format!("at its peak, after {after:.2} s")), ..report });
                    }
                }
                // Accounts take a third of the time, or more if they are slow: a longer pause could miss a peak.
                nap = (began.elapsed() * 2).clamp(NAP, LONGEST);
            }
            best
        })?;
        Ok(Sampler { stop, thread })
    }

    fn end(self) -> Option<Report> {
        drop(self.stop);
        self.thread.join().ok().flatten()
    }
}

/// Rss in `/proc/PID/statm`: its second number, in OS pages.
fn rss(pid: u32) -> u64 {
    let text = neap_process::text(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * sys::page_size()
}
