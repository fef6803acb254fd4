//! One run of a program: faults, memory and time.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use neap_launch::child::{self, Attendant, Program, Status};
use neap_launch::error::{Error, system_message};
use neap_launch::ptrace::{self, EVENT_STOP, Go, Happened};
use neap_launch::target;

use super::conditions::{cached, evict};
use crate::pages::number;

/// The costs of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Page faults from the exec on, including those of children.
    pub faults: u64,
    /// The faults among them that read from disk.
    pub reads: u64,
    /// Resident memory of the process at its exit, in bytes.
    pub rss: u64,
    /// From the fork to the end.
    pub seconds: f64,
    /// The exit status; 128 plus the signal, if one ended it.
    pub status: i32,
    /// The share of its file that was in the page cache before the run, where the system reports it.
    pub cached: Option<f64>,
}

/// Runs a program and discards its output; `cold`: without its file in the page cache, as far as the kernel drops it.
pub fn measure(path: &Path, arguments: &[OsString], cold: bool) -> Result<Sample, Error> {
    if let Some(why) = target::secure_execution(path) {
        return Err(Error::cannot_run(format!("cannot measure {}: {why}", path.display())));
    }
    if cold {
        evict(path).map_err(|e| Error::failed(format!("cannot read {}: {}", path.display(), system_message(&e))))?;
    }
    let cached = cached(path);
    let command: Vec<OsString> = [path.as_os_str().to_owned()].into_iter().chain(arguments.iter().cloned()).collect();
    let mut program = Program::new(path, &command, std::env::vars_os().collect())?;
    program.before_exec(silence);
    let (ended, watched, signals) = child::supervise_watched(&program, Watched::start)?;
    signals.release();
    let faults = ended.usage.ru_minflt as u64 + ended.usage.ru_majflt as u64;
    Ok(Sample {
        faults: faults.saturating_sub(ended.faults_before_exec + ended.argument_pages),
        reads: ended.usage.ru_majflt as u64,
        rss: watched.rss,
        seconds: ended.wall.as_secs_f64(),
        status: number(ended.status),
        cached,
    })
}

/// Redirects standard input and output to `/dev/null`. Only makes system calls, because it runs between fork and exec.
fn silence() -> io::Result<()> {
    // SAFETY: the path is a C string; open and dup2 take numbers besides.
    let done = unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        null >= 0 && libc::dup2(null, 0) >= 0 && libc::dup2(null, 1) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A program that is stopped just before it exits, with its memory still mapped: `wait4` reports a resident size that
/// includes neap's before the exec, and the peak in `/proc/PID/status` is off by up to 64 pages a processor.
struct Watched {
    rss: u64,
}

impl Watched {
    fn start(pid: i32) -> Result<Self, Error> {
        ptrace::seize(pid, libc::PTRACE_O_TRACEEXIT).map_err(|e| {
            Error::failed(format!("cannot stop a program at its end: {}", system_message(&e)))
                .remedy("allow ptrace in the container")
        })?;
        Ok(Self { rss: 0 })
    }
}

impl Attendant for Watched {
    fn wait(&mut self, pid: i32) -> io::Result<Option<Status>> {
        while let Some(Happened { tid, status, usage }) = ptrace::next(Some(pid), false)? {
            if !libc::WIFSTOPPED(status) {
                return Ok(Some((status, usage)));
            }
            let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
            match event {
                libc::PTRACE_EVENT_EXIT => {
                    self.rss = resident(tid).unwrap_or(0);
                    ptrace::go(tid, Go::On(0));
                }
                // It stops and continues with its job.
                EVENT_STOP if signal != libc::SIGTRAP => {
                    ptrace::go(tid, Go::Listen);
                    return Ok(Some((signal << 8 | 0x7f, usage)));
                }
                EVENT_STOP => {
                    ptrace::go(tid, Go::On(0));
                    return Ok(Some((0xffff, usage)));
                }
                0 => ptrace::go(tid, Go::On(signal)),
                _ => ptrace::go(tid, Go::On(0)),
            }
        }
        Ok(None)
    }
}

/// Resident memory of a process, in bytes.
fn resident(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
