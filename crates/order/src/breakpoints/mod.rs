//! Runs a program with a breakpoint on every function of a binary, each of which is hit once.
//!
//! The binary is the program itself, another one that it executes, or a library that it loads. Its memory is written
//! when it is mapped: at an exec, or where the dynamic linker calls `_dl_debug_state`. At a hit neap restores the byte,
//! and sets the thread back by one; this also applies to a thread that has just passed a breakpoint which another
//! thread has removed.
//!
//! In a process that begins as a copy, all bytes are restored before it continues. A process that shares memory (vfork)
//! stays traced until it executes a program. neap detaches from processes that it does not trace: they run as without
//! neap.

mod copies;
mod space;
mod undumpable;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use neap_launch::child::{Attendant, Status};
use neap_launch::error::{Error, system_message};
use neap_launch::ptrace::{self, EVENT_STOP, Go, Happened, Registers};

use self::space::Space;
use crate::plan::Hits;
use crate::target::Target;

/// All descendants are traced too, and stop when they execute a program. They are killed with neap: without it the
/// remaining breakpoints would end them later.
const OPTIONS: c_int = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_EXITKILL;

/// The `si_code` of the signal of a breakpoint; no process can send it.
const SI_KERNEL: c_int = 0x80;
/// Time to wait for threads that cannot stop: those in a vfork, until its child executes a program.
const UNTIL_CLEAN: Duration = Duration::from_millis(200);
const UNTIL_FREE: Duration = Duration::from_secs(5);

/// Traces a program and its descendants. Everything happens in the thread that started it, as ptrace requires.
pub struct Tracer<'t> {
    target: &'t Target,
    root: pid_t,
    threads: HashMap<pid_t, Thread>,
    /// Threads and processes that were announced and have not stopped yet.
    announced: HashMap<pid_t, Origin>,
    /// Those that stopped before they were announced.
    early: HashSet<pid_t>,
    /// The memory that processes had before they executed a program.
    replaced: HashMap<pid_t, Rc<RefCell<Space>>>,
    hits: Hits,
    /// The first process with the target, and when that was mapped.
    began: Option<(pid_t, Instant)>,
    /// Whether the root is no longer traced.
    left: bool,
    ended: Option<Status>,
    failure: Option<io::Error>,
}

struct Thread {
    process: pid_t,
    space: Rc<RefCell<Space>>,
}

/// Where a new thread or process comes from.
struct Origin {
    space: Rc<RefCell<Space>>,
    /// Whether it shares the memory, instead of having a copy.
    shared: bool,
}

impl<'t> Tracer<'t> {
    /// Begins to trace a child of this process, which waits for its exec.
    pub fn start(pid: pid_t, target: &'t Target) -> Result<Self, Error> {
        ptrace::seize(pid, OPTIONS).map_err(|e| {
            Error::failed(format!("cannot trace a program: ptrace is denied ({})", system_message(&e)))
                .remedy("sudo sysctl kernel.yama.ptrace_scope=1, or allow ptrace in the container")
        })?;
        let space = Space::of(pid).map_err(|e| {
            Error::failed(format!("cannot write the memory of a program: {}", system_message(&e)))
                .remedy("mount /proc, or allow ptrace in the container")
        })?;
        Ok(Self {
            target,
            root: pid,
            threads: HashMap::from([(pid, Thread { process: pid, space: Rc::new(RefCell::new(space)) })]),
            announced: HashMap::new(),
            early: HashSet::new(),
            replaced: HashMap::new(),
            hits: Hits::new(target.plan.len()),
            began: None,
            left: false,
            ended: None,
            failure: None,
        })
    }

    /// The hits; `None` if no process had the target.
    pub fn finish(self) -> Result<Option<Hits>, io::Error> {
        match self.failure {
            Some(error) => Err(error),
            None => Ok(self.began.map(|_| self.hits)),
        }
    }

    fn deal(&mut self, happened: Happened) -> Option<Status> {
        let Happened { tid, status, usage } = happened;
        if !libc::WIFSTOPPED(status) {
            self.gone(tid);
            if tid == self.root {
                self.ended = Some((status, usage));
            }
            return None;
        }
        if !self.threads.contains_key(&tid) {
            match self.announced.remove(&tid) {
                Some(origin) => self.begin(tid, origin),
                None => {
                    self.early.insert(tid);
                    self.adopt_late(tid);
                }
            }
            return None;
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        match event {
            EVENT_STOP => return Some(ptrace::with_job(&happened)).filter(|_| tid == self.root),
            _ => self.pass(tid, signal, event),
        }
        None
    }

    /// Handles a stop that does not belong to job control.
    fn pass(&mut self, tid: pid_t, signal: c_int, event: c_int) {
        match event {
            libc::PTRACE_EVENT_EXEC => self.execute(tid),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                self.announce(tid, event);
                ptrace::go(tid, Go::On(0));
            }
            0 if signal == libc::SIGTRAP && self.hit(tid).is_some() => ptrace::go(tid, Go::On(0)),
            0 => ptrace::go(tid, Go::On(signal)),
            _ => ptrace::go(tid, Go::On(0)),
        }
    }

    /// Handles a breakpoint of neap's: afterwards the thread continues as if it had not been there.
    fn hit(&mut self, tid: pid_t) -> Option<()> {
        if ptrace::signal_code(tid).ok()? != SI_KERNEL {
            return None;
        }
        let registers = Registers::of(tid).ok()?;
        let address = registers.program_counter().wrapping_sub(1);
        let thread = self.threads.get(&tid)?;
        let (process, space) = (thread.process, thread.space.clone());
        if space.borrow().is_loader_stop(address) {
            let stack = registers.stack();
            let back = space.borrow().word(stack).ok()?;
            self.loaded(tid, process, &space);
            return registers.about_to(back, stack + 8).restore(tid).ok();
        }
        let space = space.borrow();
        let Some(site) = space.site(&self.target.plan, address) else {
            copies::restore(&space, self.target, tid, address)?;
            return registers.about_to(address, registers.stack()).restore(tid).ok();
        };
        let at = self.began.map_or(0, |(_, began)| began.elapsed().as_nanos() as u64);
        self.hits.add(site, at);
        space.restore(tid, site, address);
        registers.about_to(address, registers.stack()).restore(tid).ok()
    }

    /// The dynamic linker of a process has mapped files.
    fn loaded(&mut self, tid: pid_t, process: pid_t, space: &RefCell<Space>) {
        if !self.target.follow && self.began.is_some_and(|(first, _)| first != process) {
            return;
        }
        let Some(bias) = self.target.bias_in(tid) else { return };
        if space.borrow().bias() != Some(bias) {
            self.plant(process, &mut space.borrow_mut(), bias);
        }
    }

    fn plant(&mut self, process: pid_t, space: &mut Space, bias: u64) {
        match space.plant(&self.target.plan, bias, &self.hits) {
            Ok(()) => _ = self.began.get_or_insert_with(|| (process, Instant::now())),
            Err(error) => self.failure = Some(error),
        }
    }

    /// A process executed a program, and is still in that call.
    fn execute(&mut self, tid: pid_t) {
        // Other threads were killed, perhaps after one made a process that is not announced yet: it has the memory from
        // before.
        let before = self.threads.values().find(|thread| thread.process == tid).map(|thread| thread.space.clone());
        self.threads.retain(|_, thread| thread.process != tid);
        if let Some(before) = before {
            self.adopt(&before, |parent| parent == Some(tid));
            self.replaced.insert(tid, before);
        }
        let first = self.began.is_none_or(|(process, _)| process == tid);
        let is_target = self.target.is_program_of(tid);
        let may_load = self.target.may_be_library && (self.target.follow || self.began.is_none());
        let wanted = self.failure.is_none() && (self.began.is_none() || self.target.follow || (first && is_target));
        if !wanted {
            return self.leave(tid, 0);
        }
        let mut space = match Space::of(tid) {
            Ok(space) => space,
            Err(error) => {
                self.failure = Some(error).filter(is_exhausted);
                return self.leave(tid, 0);
            }
        };
        match self.target.bias_in(tid).filter(|_| is_target) {
            Some(bias) => self.plant(tid, &mut space, bias),
            None if may_load => _ = space.stop_loader(tid),
            None => {}
        }
        self.threads.insert(tid, Thread { process: tid, space: Rc::new(RefCell::new(space)) });
        ptrace::go(tid, Go::On(0));
    }

    /// A thread made another one, or a process.
    fn announce(&mut self, tid: pid_t, event: c_int) {
        let Ok(child) = ptrace::event_message(tid) else { return };
        let Some(thread) = self.threads.get(&tid) else { return };
        let shared = shares_memory(tid, child).unwrap_or(event != libc::PTRACE_EVENT_FORK);
        let origin = Origin { space: thread.space.clone(), shared };
        if self.early.remove(&child) {
            self.begin(child, origin);
        } else {
            self.announced.insert(child, origin);
        }
    }

    /// A thread or a process begins, and is stopped.
    fn begin(&mut self, tid: pid_t, origin: Origin) {
        let process = process_of(tid).unwrap_or(tid);
        let mut space = origin.space;
        if !origin.shared {
            let wanted = self.ended.is_none() && (self.began.is_none() || self.target.follow);
            let copy = space.borrow().copy(tid);
            let copy = match copy {
                Ok(copy) if wanted => copy,
                Ok(copy) => {
                    copy.clean(&self.target.plan);
                    return self.leave(tid, 0);
                }
                Err(error) => {
                    space.borrow().clean_copy(tid, &self.target.plan);
                    self.failure = self.failure.take().or(Some(error).filter(|error| wanted && is_exhausted(error)));
                    return self.leave(tid, 0);
                }
            };
            space = Rc::new(RefCell::new(copy));
        }
        self.threads.insert(tid, Thread { process, space });
        if self.ended.is_some() {
            ptrace::interrupt(tid);
        }
        ptrace::go(tid, Go::On(0));
    }

    /// A thread has ended. A process that it made and could not announce, because it was killed, counts as a copy. (A
    /// thread that it made was killed with it.)
    fn gone(&mut self, tid: pid_t) {
        self.announced.remove(&tid);
        self.early.remove(&tid);
        let Some(thread) = self.threads.remove(&tid) else { return };
        if self.early.is_empty() && self.replaced.is_empty() {
            return;
        }
        let processes: HashSet<pid_t> = self.threads.values().map(|thread| thread.process).collect();
        self.replaced.retain(|process, _| processes.contains(process));
        self.adopt(&thread.space, |parent| !parent.is_some_and(|parent| processes.contains(&parent)));
    }

    /// A process made before its parent executed a program: it has other addresses than that program.
    fn adopt_late(&mut self, tid: pid_t) {
        let Some(parent) = number_of(tid, "PPid:") else { return };
        let Some(before) = self.replaced.get(&parent).cloned() else { return };
        let now = self.threads.values().find(|thread| thread.process == parent);
        if now.is_none_or(|now| now.space.borrow().bias() != before.borrow().bias()) {
            self.adopt(&before, |other| other == Some(parent));
        }
    }

    /// Begins unannounced processes, as copies of one with this memory.
    fn adopt(&mut self, space: &Rc<RefCell<Space>>, is_lost: impl Fn(Option<pid_t>) -> bool) {
        let bias = space.borrow().bias();
        let lost = |tid: &pid_t| {
            process_of(*tid) == Some(*tid) && is_lost(number_of(*tid, "PPid:")) && self.target.bias_in(*tid) == bias
        };
        let orphans: Vec<pid_t> = self.early.iter().copied().filter(lost).collect();
        for orphan in orphans {
            self.early.remove(&orphan);
            self.begin(orphan, Origin { space: space.clone(), shared: false });
        }
    }

    /// Stops tracing a stopped thread.
    fn leave(&mut self, tid: pid_t, signal: c_int) {
        self.threads.remove(&tid);
        self.left |= tid == self.root;
        ptrace::detach(tid, signal);
    }

    /// Releases what is left when the program has ended: stops it, restores the bytes, and stops tracing it.
    fn release(&mut self) {
        let (started, mut held, mut clean) = (Instant::now(), HashSet::new(), false);
        self.threads.keys().for_each(|&tid| _ = ptrace::interrupt(tid));
        let left = |tracer: &Self| {
            !(tracer.threads.is_empty() && tracer.announced.is_empty() && tracer.early.is_empty())
                && started.elapsed() < UNTIL_FREE
        };
        while left(self) {
            let happened = match ptrace::next(None, false) {
                Ok(Some(happened)) => happened,
                Ok(None) => {
                    std::thread::sleep(Duration::from_millis(1));
                    clean |= self.clean_when(&mut held, started);
                    continue;
                }
                Err(_) => return,
            };
            let (tid, status) = (happened.tid, happened.status);
            let stop = libc::WIFSTOPPED(status) && self.threads.contains_key(&tid);
            match status >> 16 {
                EVENT_STOP if stop && clean => self.free(tid),
                EVENT_STOP if stop => _ = held.insert(tid),
                event if stop => self.pass(tid, libc::WSTOPSIG(status), event),
                _ => _ = self.deal(happened),
            }
            clean |= self.clean_when(&mut held, started);
        }
    }

    /// Once all threads are held, or all that can be: restores the bytes, and stops tracing them.
    fn clean_when(&mut self, held: &mut HashSet<pid_t>, started: Instant) -> bool {
        held.retain(|tid| self.threads.contains_key(tid));
        let all = self.threads.len() == held.len();
        if held.is_empty() || !all && started.elapsed() < UNTIL_CLEAN {
            return false;
        }
        self.threads.values().for_each(|thread| thread.space.borrow().clean(&self.target.plan));
        held.drain().for_each(|tid| self.free(tid));
        true
    }

    /// Stops tracing a held thread. It may have executed a breakpoint whose signal is still pending.
    fn free(&mut self, tid: pid_t) {
        const BIT: u64 = 1 << (libc::SIGTRAP - 1);
        let text = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let pending = text.lines().find_map(|line| line.strip_prefix("SigPnd:"));
        let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let mut signal = 0;
        if pending.is_some_and(|mask| mask & BIT != 0) {
            ptrace::go(tid, Go::On(0));
            if let Ok(Some(stopped)) = ptrace::next(Some(tid), true) {
                let delivered = libc::WSTOPSIG(stopped.status);
                signal = if self.hit(tid).is_some() { 0 } else { delivered };
            }
        }
        self.leave(tid, signal);
    }
}

impl Attendant for Tracer<'_> {
    /// Handles all pending events; returns the program's status if it stopped, continued or ended.
    fn wait(&mut self, pid: pid_t) -> io::Result<Option<Status>> {
        loop {
            let happened = match ptrace::next(None, false) {
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(self.ended),
                other => other?,
            };
            let Some(happened) = happened else { break };
            let status = self.deal(happened);
            if self.ended.is_some() {
                self.release();
                return Ok(self.ended);
            }
            if status.is_some() {
                return Ok(status);
            }
        }
        if !self.left {
            return Ok(None);
        }
        let status = ().wait(pid)?;
        // It may have ended since the check above.
        if status.is_some_and(|(status, _)| libc::WIFEXITED(status) || libc::WIFSIGNALED(status)) {
            self.ended = status;
            self.release();
        }
        Ok(status)
    }
}

/// Whether an error is one of neap's limits, and not due to a process that was killed meanwhile.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Whether two processes share their memory; `None` where the kernel does not say.
fn shares_memory(one: pid_t, other: pid_t) -> Option<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: kcmp takes numbers.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    (result >= 0).then_some(result == 0)
}

/// The process of a thread.
fn process_of(tid: pid_t) -> Option<pid_t> {
    number_of(tid, "Tgid:")
}

/// A number of `/proc/TID/status`.
fn number_of(tid: pid_t, name: &str) -> Option<pid_t> {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}
