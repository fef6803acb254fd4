//! `--exact`: turns fault-around off for the program's files, so that each page of them that it touches is a fault.
//!
//! A userfaultfd turns it off for the ranges that are registered with it ([`uffd`]). It belongs to an address space, so
//! the program itself must make it: neap stops each program at its exec and each process at its start
//! ([`neap_launch::ptrace`]), makes it create one through a system call instruction of the vdso, and copies the
//! descriptor. Then neap registers the mappings. For later mappings a filter stops the program at each `mmap` of a file
//! ([`filter`]), and nowhere else.

mod filter;
mod uffd;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use libc::{c_int, pid_t};
use neap_process::maps::parse_maps;

use self::uffd::Userfaultfd;
use super::scan::Scanner;
use super::sys;
use neap_launch::child::Status;
use neap_launch::error::{Error, system_message};
use neap_launch::ptrace::{self, EVENT_STOP, Go, Happened, Registers, SYSCALL_STOP, SYSTEM_CALL};

/// All descendants are traced too: each stops when it begins, executes a program, ends, or makes a system call that the
/// filter reports. It is killed when neap ends, because that filter needs a tracer.
const OPTIONS: c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACESECCOMP
    | libc::PTRACE_O_EXITKILL;

pub use self::filter::install;

/// What was not made exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inexact {
    /// Programs and processes without a userfaultfd: 32-bit ones, those that refused, and those with a filter of system
    /// calls of their own.
    pub programs: u64,
    /// Mappings that the kernel does not permit to register.
    pub mappings: u64,
}

/// Traces a program and its descendants. Everything happens in the thread that started it, as ptrace requires.
pub struct Exact {
    root: pid_t,
    /// Threads that have begun, and their processes.
    threads: HashMap<pid_t, pid_t>,
    descriptors: HashMap<pid_t, Userfaultfd>,
    /// Threads in an `mmap` of a file.
    mapping: HashSet<pid_t>,
    /// Events that arrived while another one was awaited.
    later: VecDeque<Happened>,
    /// How the program ended.
    ended: Option<Status>,
    /// Number of filters of system calls that every process has from the start: those that neap was started under, and
    /// neap's own.
    filters: Option<u64>,
    inexact: Inexact,
}

impl Exact {
    /// Begins to trace a child of this process, which waits for its exec.
    pub fn start(pid: pid_t) -> Result<Self, Error> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::failed("--exact is for x86-64 only"));
        }
        Userfaultfd::probe().map_err(|e| {
            let why = match e.raw_os_error() {
                Some(libc::EINVAL) => "it needs Linux 6.7".to_owned(),
                _ => system_message(&e),
            };
            Error::failed(format!("--exact is not possible here: userfaultfd is denied ({why})"))
                .remedy("allow userfaultfd (docker run --security-opt seccomp=unconfined), or leave --exact out")
        })?;
        ptrace::seize(pid, OPTIONS).map_err(|e| {
            Error::failed(format!("--exact is not possible here: ptrace is denied ({})", system_message(&e)))
                .remedy("sudo sysctl kernel.yama.ptrace_scope=1, allow ptrace in the container, or leave --exact out")
        })?;
        Ok(Self {
            root: pid,
            threads: HashMap::from([(pid, pid)]),
            descriptors: HashMap::new(),
            mapping: HashSet::new(),
            later: VecDeque::new(),
            ended: None,
            filters: None,
            inexact: Inexact::default(),
        })
    }

    /// What was not made exact.
    pub fn inexact(&self) -> Inexact {
        self.inexact
    }

    /// Handles all pending events. Returns the program's status if it stopped, continued or ended; its end only when no
    /// descendant is left: the filter would fail without a tracer. Where page tables are scanned, `scanner` scans each
    /// stopped process.
    pub fn wait(&mut self, scanner: Option<&Scanner>) -> io::Result<Option<Status>> {
        loop {
            let happened = match self.later.pop_front() {
                Some(happened) => Some(happened),
                None => match ptrace::next(None, false) {
                    // Nothing is left.
                    Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(self.ended),
                    other => other?,
                },
            };
            let Some(happened) = happened else { return Ok(None) };
            if let Some(status) = self.deal(happened, scanner) {
                return Ok(Some(status));
            }
        }
    }

    fn deal(&mut self, happened: Happened, scanner: Option<&Scanner>) -> Option<Status> {
        let Happened { tid, status, usage } = happened;
        if !libc::WIFSTOPPED(status) {
            self.threads.remove(&tid);
            self.descriptors.remove(&tid);
            self.mapping.remove(&tid);
            if tid == self.root {
                self.ended = Some((status, usage));
            }
            return None;
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let begun = self.threads.contains_key(&tid);
        match event {
            EVENT_STOP if !begun => self.begin(tid, scanner),
            EVENT_STOP => return Some(ptrace::with_job(&happened)).filter(|_| tid == self.root),
            libc::PTRACE_EVENT_EXEC => {
                if let Some(scanner) = scanner {
                    scanner.executed(tid.unsigned_abs());
                }
                self.execute(tid);
            }
            libc::PTRACE_EVENT_EXIT => {
                if let Some(scanner) = scanner.filter(|_| process_of(tid) == Some(tid)) {
                    scanner.ending(tid.unsigned_abs());
                }
                ptrace::go(tid, Go::On(0));
            }
            libc::PTRACE_EVENT_SECCOMP => {
                self.mapping.insert(tid);
                ptrace::go(tid, Go::ToSystemCall);
            }
            0 if signal == SYSCALL_STOP => {
                if self.mapping.remove(&tid) {
                    self.mapped(tid);
                }
                ptrace::go(tid, Go::On(0));
            }
            0 => ptrace::go(tid, Go::On(signal)),
            _ => ptrace::go(tid, Go::On(0)),
        }
        None
    }

    /// A thread or a process begins. If it shares the address space of another one, it has that one's registrations,
    /// and its own are refused, which is harmless.
    fn begin(&mut self, tid: pid_t, scanner: Option<&Scanner>) {
        let process = process_of(tid).unwrap_or(tid);
        if let Some(scanner) = scanner.filter(|_| process == tid) {
            scanner.begun(tid.unsigned_abs());
        }
        self.threads.insert(tid, process);
        let signals = if process == tid { self.equip(tid) } else { Vec::new() };
        self.go_on(tid, &signals);
    }

    /// A process executed a program, and is still in that call.
    fn execute(&mut self, tid: pid_t) {
        self.threads.retain(|_, process| *process != tid);
        self.threads.insert(tid, tid);
        self.mapping.remove(&tid);
        self.descriptors.remove(&tid);
        let mut signals = Vec::new();
        ptrace::go(tid, Go::ToSystemCall);
        if self.at_system_call(tid, &mut signals).is_some() {
            signals.extend(self.equip(tid));
        }
        self.go_on(tid, &signals);
    }

    fn go_on(&self, tid: pid_t, signals: &[c_int]) {
        ptrace::go(tid, Go::On(0));
        let process = self.threads.get(&tid).copied().unwrap_or(tid);
        signals.iter().for_each(|&signal| ptrace::tell(process, tid, signal));
    }

    /// Gives a stopped process a userfaultfd, and registers its files; returns the signals that arrived meanwhile.
    fn equip(&mut self, pid: pid_t) -> Vec<c_int> {
        let mut signals = Vec::new();
        let maps = sys::read_whole(format!("/proc/{pid}/maps")).unwrap_or_default();
        match self.descriptor(pid, &maps, &mut signals) {
            Some(descriptor) => {
                for file in parse_maps(&maps).filter(|line| line.inode != 0) {
                    self.inexact.mappings += refused(&descriptor, file.start, file.end);
                }
                self.descriptors.insert(pid, descriptor);
            }
            None => self.inexact.programs += 1,
        }
        signals
    }

    fn descriptor(&mut self, pid: pid_t, maps: &[u8], signals: &mut Vec<c_int>) -> Option<Userfaultfd> {
        // A filter of the program's own could end it for an unexpected call.
        let filters = filters_of(pid)?;
        if filters > *self.filters.get_or_insert(filters) {
            return None;
        }
        let registers = Registers::of(pid).ok()?;
        let instruction = system_call(pid, maps).filter(|_| registers.is_64_bit())?;
        let made = self.call(pid, registers.calling(instruction, libc::SYS_userfaultfd, [uffd::FLAGS, 0]), signals);
        let taken = made.and_then(|number| {
            let taken = Userfaultfd::of(pid, number).ok();
            self.call(pid, registers.calling(instruction, libc::SYS_close, [number, 0]), signals);
            taken
        });
        registers.restore(pid).ok()?;
        taken
    }

    /// Makes a stopped thread execute a system call.
    fn call(&mut self, tid: pid_t, registers: Registers, signals: &mut Vec<c_int>) -> Option<u64> {
        registers.restore(tid).ok()?;
        for _begin_and_end in 0..2 {
            ptrace::go(tid, Go::ToSystemCall);
            self.at_system_call(tid, signals)?;
        }
        Registers::of(tid).ok()?.result().ok()
    }

    /// Waits until a thread stops at a system call, and puts signals aside; `None` if it ended.
    fn at_system_call(&mut self, tid: pid_t, signals: &mut Vec<c_int>) -> Option<()> {
        loop {
            let happened = ptrace::next(Some(tid), true).ok()??;
            if !libc::WIFSTOPPED(happened.status) {
                self.later.push_back(happened);
                return None;
            }
            match (libc::WSTOPSIG(happened.status), happened.status >> 16) {
                (SYSCALL_STOP, _) => return Some(()),
                (signal, 0) => signals.push(signal),
                _ => {}
            }
            ptrace::go(tid, Go::ToSystemCall);
        }
    }

    /// A thread is at the end of an `mmap` of a file.
    fn mapped(&mut self, tid: pid_t) {
        let Some(descriptor) = self.threads.get(&tid).and_then(|process| self.descriptors.get(process)) else { return };
        let Ok(registers) = Registers::of(tid) else { return };
        let Ok(start) = registers.result() else { return };
        let page = sys::page_size() as u64;
        let end = start.saturating_add(registers.mapped_length()).next_multiple_of(page);
        self.inexact.mappings += refused(descriptor, start, end);
    }
}

/// Registers a range; returns 1 if that is refused. Ranges of a process that shares its address space are registered
/// already.
fn refused(descriptor: &Userfaultfd, start: u64, end: u64) -> u64 {
    match descriptor.register(start, end) {
        Err(e) if e.raw_os_error() != Some(libc::EBUSY) => 1,
        _ => 0,
    }
}

/// The process of a thread.
pub fn process_of(tid: pid_t) -> Option<pid_t> {
    pid_t::try_from(status(tid, "Tgid:")?).ok()
}

/// Number of filters of system calls on a thread (Linux 5.9).
fn filters_of(tid: pid_t) -> Option<u64> {
    status(tid, "Seccomp_filters:")
}

/// A number of `/proc/TID/status`.
fn status(tid: pid_t, name: &str) -> Option<u64> {
    let text = sys::read_whole(format!("/proc/{tid}/status")).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// The address of a system call instruction in the vdso, which every program has.
fn system_call(pid: pid_t, maps: &[u8]) -> Option<u64> {
    let line = parse_maps(maps).find(|line| line.path == b"[vdso]")?;
    let mut bytes = vec![0; usize::try_from(line.end - line.start).ok()?];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, line.start).ok()?;
    let at = bytes.windows(SYSTEM_CALL.len()).position(|window| window == SYSTEM_CALL)?;
    Some(line.start + at as u64)
}
