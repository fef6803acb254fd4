//! For scans of page tables: stops the program at the start, at each exec and at the end of each of its processes, so
//! that each gets a first and a last scan.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use neap_launch::child::Status;
use neap_launch::ptrace::{self, EVENT_STOP, Go, Happened};

use super::exact;
use super::scan::Scanner;

/// When traced processes stop. They go on without neap if neap is killed.
const OPTIONS: c_int = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;

/// Follows a program and its descendants. Everything happens in the thread that started it, as ptrace requires.
pub struct Follower {
    root: pid_t,
    /// Threads that have begun, or that their maker announced; whether they have begun.
    threads: HashMap<pid_t, bool>,
}

/// Limit on the time until the remaining processes are no longer followed. A thread in an uninterruptible call is
/// followed until neap ends.
const UNTIL_FREE: Duration = Duration::from_secs(1);

impl Follower {
    /// Begins to follow a child of this process, which waits for its exec.
    pub fn start(pid: pid_t, scanner: &Scanner) -> io::Result<Self> {
        ptrace::seize(pid, OPTIONS)?;
        scanner.follow();
        Ok(Self { root: pid, threads: HashMap::from([(pid, true)]) })
    }

    /// Handles all pending events; returns the program's status if it stopped, continued or ended.
    pub fn wait(&mut self, scanner: &Scanner) -> io::Result<Option<Status>> {
        loop {
            let Some(happened) = ptrace::next(None, false)? else { return Ok(None) };
            if let Some(status) = self.deal(happened, scanner) {
                return Ok(Some(status));
            }
        }
    }

    fn deal(&mut self, happened: Happened, scanner: &Scanner) -> Option<Status> {
        let Happened { tid, status, usage } = happened;
        if !libc::WIFSTOPPED(status) {
            self.threads.remove(&tid);
            if tid != self.root {
                return None;
            }
            self.leave();
            return Some((status, usage));
        }
        match status >> 16 {
            EVENT_STOP => {
                if self.threads.insert(tid, true) != Some(true) && is_process(tid) {
                    scanner.begun(tid.unsigned_abs());
                }
                // Also at its start: its job may be stopped by then.
                return Some(ptrace::with_job(&happened)).filter(|_| tid == self.root);
            }
            event => {
                match event {
                    libc::PTRACE_EVENT_EXEC => scanner.executed(tid.unsigned_abs()),
                    libc::PTRACE_EVENT_EXIT if is_process(tid) => scanner.ending(tid.unsigned_abs()),
                    event if makes(event) => {
                        if let Ok(made) = ptrace::event_message(tid) {
                            self.threads.entry(made).or_insert(false);
                        }
                    }
                    _ => {}
                }
                // Without an event it is a signal, which is passed on to the program.
                ptrace::go(tid, Go::On(if event == 0 { libc::WSTOPSIG(status) } else { 0 }));
            }
        }
        None
    }

    /// Stops following what is left when the program has ended, including threads that have not begun yet.
    fn leave(&mut self) {
        let started = Instant::now();
        self.threads.retain(|&tid, _| ptrace::interrupt(tid));
        while !self.threads.is_empty() && started.elapsed() < UNTIL_FREE {
            match ptrace::next(None, false) {
                Ok(Some(Happened { tid, status, .. })) => {
                    self.threads.remove(&tid);
                    if libc::WIFSTOPPED(status) {
                        if makes(status >> 16)
                            && let Ok(made) = ptrace::event_message(tid)
                            && ptrace::interrupt(made)
                        {
                            self.threads.insert(made, false);
                        }
                        // Without an event it is a signal, which is passed on to the program.
                        ptrace::detach(tid, if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 });
                    }
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return,
            }
        }
    }
}

/// Whether a thread that stops at this event has made another thread or a process, which is traced as well.
fn makes(event: c_int) -> bool {
    matches!(event, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE)
}

/// Whether a thread is the first one of its process.
fn is_process(tid: pid_t) -> bool {
    exact::process_of(tid) == Some(tid)
}
