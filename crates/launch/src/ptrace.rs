//! ptrace in safe form: stops a program, and makes it execute system calls.

use std::io;

use libc::{c_int, c_long, pid_t};

/// A `PTRACE_EVENT_STOP` (in the third byte of `waitpid`'s status), which the C library's headers define since glibc
/// 2.26.
pub const EVENT_STOP: c_int = 128;
/// A stop at a system call has this added to SIGTRAP (`PTRACE_O_TRACESYSGOOD`).
pub const SYSCALL_STOP: c_int = libc::SIGTRAP | 0x80;

/// How `wait4` reports that a process was continued, and, in the lower byte, that it was stopped.
const CONTINUED: c_int = 0xffff;
const STOPPED: c_int = 0x7f;

/// How a stopped thread continues.
#[derive(Clone, Copy, Debug)]
pub enum Go {
    /// Continues; with a signal, unless it is 0.
    On(c_int),
    /// Continues to the beginning or the end of a system call.
    ToSystemCall,
    /// Stays stopped, as job control requires, until it is continued.
    Listen,
}

/// Begins to trace a thread, with options `PTRACE_O_...`.
pub fn seize(pid: pid_t, options: c_int) -> io::Result<()> {
    // SAFETY: PTRACE_SEIZE takes numbers.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0 as c_long, c_long::from(options)) })
}

/// Continues a stopped thread. It may have been killed meanwhile.
pub fn go(tid: pid_t, how: Go) {
    let (request, signal) = match how {
        Go::On(signal) => (libc::PTRACE_CONT, signal),
        Go::ToSystemCall => (libc::PTRACE_SYSCALL, 0),
        Go::Listen => (libc::PTRACE_LISTEN, 0),
    };
    // SAFETY: these requests take numbers.
    unsafe { libc::ptrace(request, tid, 0 as c_long, c_long::from(signal)) };
}

/// Stops tracing a stopped thread, which continues: with a signal, unless it is 0. It may have been killed meanwhile.
pub fn detach(tid: pid_t, signal: c_int) {
    // SAFETY: PTRACE_DETACH takes numbers.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0 as c_long, c_long::from(signal)) };
}

/// Stops a running thread; the stop is an [`EVENT_STOP`]. False if it has ended.
pub fn interrupt(tid: pid_t) -> bool {
    // SAFETY: PTRACE_INTERRUPT takes numbers.
    unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0 as c_long, 0 as c_long) == 0 }
}

/// The message of the event at which a thread stopped: for a fork the new process, for a clone the new thread.
pub fn event_message(tid: pid_t) -> io::Result<pid_t> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: PTRACE_GETEVENTMSG writes one unsigned long.
    check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0 as c_long, &raw mut message) })?;
    pid_t::try_from(message).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The `si_code` of the signal at which a thread stopped.
pub fn signal_code(tid: pid_t) -> io::Result<c_int> {
    // SAFETY: siginfo_t is a plain structure of integers and addresses, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: PTRACE_GETSIGINFO writes one such structure.
    check(unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid, 0 as c_long, &raw mut info) })?;
    Ok(info.si_code)
}

/// Replaces one byte of a stopped thread's memory if it has the old value; also where the thread may not write.
pub fn replace_byte(tid: pid_t, address: u64, old: u8, new: u8) -> io::Result<()> {
    let aligned = address & !7;
    let mut word: c_long = 0;
    // The system call, unlike the C library's function, stores the word through a pointer.
    // SAFETY: PTRACE_PEEKDATA writes one word.
    check(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, tid, aligned, &raw mut word) })?;
    let mut bytes = word.to_ne_bytes();
    let byte = &mut bytes[(address - aligned) as usize];
    if *byte != old {
        return Ok(());
    }
    *byte = new;
    // SAFETY: PTRACE_POKEDATA takes numbers.
    check(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, tid, aligned, c_long::from_ne_bytes(bytes)) })
}

/// An event of a traced thread.
#[derive(Clone, Copy)]
pub struct Happened {
    /// The thread.
    pub tid: pid_t,
    /// The status as `waitpid` reports it.
    pub status: c_int,
    /// Its usage, where it ended.
    pub usage: libc::rusage,
}

/// For an [`EVENT_STOP`]: the thread stops or continues with its job. Returns what `wait4` would report of that to the
/// parent of a process that is not traced.
pub fn with_job(happened: &Happened) -> (c_int, libc::rusage) {
    let signal = libc::WSTOPSIG(happened.status);
    let (how, status) = match signal {
        libc::SIGTRAP => (Go::On(0), CONTINUED),
        _ => (Go::Listen, signal << 8 | STOPPED),
    };
    go(happened.tid, how);
    (status, happened.usage)
}

/// The next event of any thread, or of that one. With `block` it waits for an event.
pub fn next(tid: Option<pid_t>, block: bool) -> io::Result<Option<Happened>> {
    let mut status = 0;
    // SAFETY: rusage is a plain structure of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: both pointers are valid for the call.
        let waited = unsafe { libc::wait4(tid.unwrap_or(-1), &mut status, flags, &mut usage) };
        if waited > 0 {
            return Ok(Some(Happened { tid: waited, status, usage }));
        }
        if waited == 0 {
            return Ok(None);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// For a process that is traced only for its exit (`PTRACE_O_TRACEEXIT`): what `wait4` would report next, if anything.
/// `at_exit` is called while the process is stopped just before its exit, with all its memory still mapped.
pub fn next_status(pid: pid_t, mut at_exit: impl FnMut(pid_t)) -> io::Result<Option<(c_int, libc::rusage)>> {
    while let Some(happened) = next(Some(pid), false)? {
        let Happened { tid, status, usage } = happened;
        if !libc::WIFSTOPPED(status) {
            return Ok(Some((status, usage)));
        }
        match status >> 16 {
            EVENT_STOP => return Ok(Some(with_job(&happened))),
            0 => go(tid, Go::On(libc::WSTOPSIG(status))),
            event => {
                if event == libc::PTRACE_EVENT_EXIT {
                    at_exit(tid);
                }
                go(tid, Go::On(0));
            }
        }
    }
    Ok(None)
}

/// Sends a signal to one thread.
pub fn tell(process: pid_t, tid: pid_t, signal: c_int) {
    // SAFETY: tgkill takes numbers.
    unsafe { libc::syscall(libc::SYS_tgkill, process, tid, signal) };
}

/// The registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// Reads them.
    pub fn of(tid: pid_t) -> io::Result<Self> {
        // SAFETY: the structure is one of integers, for which zero is a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let into: *mut libc::c_void = (&raw mut registers).cast();
        // SAFETY: PTRACE_GETREGS writes one such structure.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, 0 as c_long, into) })?;
        Ok(Self(registers))
    }

    /// Writes them back.
    pub fn restore(&self, tid: pid_t) -> io::Result<()> {
        let from: *const libc::c_void = (&raw const self.0).cast();
        // SAFETY: PTRACE_SETREGS reads one such structure.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0 as c_long, from) })
    }

    /// The same registers, about to execute the system call instruction at this address.
    pub fn calling(mut self, instruction: u64, number: c_long, arguments: [u64; 2]) -> Self {
        let registers = &mut self.0;
        registers.rip = instruction;
        registers.rax = number as u64;
        // No call is in progress, so none may be restarted.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi] = arguments;
        self
    }

    /// The result of a system call, at its end.
    pub fn result(&self) -> io::Result<u64> {
        match self.0.rax as i64 {
            error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32)),
            value => Ok(value as u64),
        }
    }

    /// The length argument of `mmap`, at its end.
    pub fn mapped_length(&self) -> u64 {
        self.0.rsi
    }

    /// The next instruction.
    pub fn program_counter(&self) -> u64 {
        self.0.rip
    }

    /// The stack pointer.
    pub fn stack(&self) -> u64 {
        self.0.rsp
    }

    /// The same registers, about to execute the instruction at this address, with this stack pointer.
    pub fn about_to(mut self, instruction: u64, stack: u64) -> Self {
        (self.0.rip, self.0.rsp) = (instruction, stack);
        self
    }

    /// Whether the program is a 64-bit one.
    pub fn is_64_bit(&self) -> bool {
        const CODE_SEGMENT: u64 = 0x33;
        self.0.cs == CODE_SEGMENT
    }
}

/// The registers of a stopped thread, on a processor for which this is not written: there are none.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
pub struct Registers(std::convert::Infallible);

#[cfg(not(target_arch = "x86_64"))]
impl Registers {
    /// Fails.
    pub fn of(_tid: pid_t) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Of none.
    pub fn restore(&self, _tid: pid_t) -> io::Result<()> {
        match self.0 {}
    }

    /// Of none.
    pub fn calling(self, _instruction: u64, _number: c_long, _arguments: [u64; 2]) -> Self {
        match self.0 {}
    }

    /// Of none.
    pub fn result(&self) -> io::Result<u64> {
        match self.0 {}
    }

    /// Of none.
    pub fn mapped_length(&self) -> u64 {
        match self.0 {}
    }

    /// Of none.
    pub fn program_counter(&self) -> u64 {
        match self.0 {}
    }

    /// Of none.
    pub fn stack(&self) -> u64 {
        match self.0 {}
    }

    /// Of none.
    pub fn about_to(self, _instruction: u64, _stack: u64) -> Self {
        match self.0 {}
    }

    /// Of none.
    pub fn is_64_bit(&self) -> bool {
        match self.0 {}
    }
}

/// The instruction that makes a system call, on x86-64.
pub const SYSTEM_CALL: &[u8] = &[0x0f, 0x05];

fn check(result: c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
