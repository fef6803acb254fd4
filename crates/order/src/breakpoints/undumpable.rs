//! Processes that have made themselves undumpable (`PR_SET_DUMPABLE`, as agents with keys do): the kernel refuses
//! access to their memory to all but root, even with ptrace. A child of such a process is a copy with breakpoints,
//! which must be removed. So before the child does anything else, neap makes it dumpable, opens its memory, and makes
//! it undumpable again.

use std::io;

use libc::{c_int, pid_t};
use neap_launch::ptrace::{self, Go, Registers};

/// The system call instruction of 64-bit programs.
const SYSCALL: u16 = u16::from_le_bytes([0x0f, 0x05]);

/// Calls `act` while a process that has just begun as a copy is dumpable; `None` if that fails. It is stopped after the
/// system call that made it, and executes that instruction again for other calls. `original` reads the memory that it
/// is a copy of.
pub fn with_access<T>(original: impl Fn(u64) -> io::Result<u64>, pid: pid_t, act: impl FnOnce() -> T) -> Option<T> {
    let registers = Registers::of(pid).ok()?;
    let instruction = registers.program_counter().checked_sub(2)?;
    if original(instruction).ok()? as u16 != SYSCALL || !registers.is_64_bit() {
        return None;
    }
    let mut signals = Vec::new();
    let mut dumpable = |value: u64| {
        let arguments = [libc::PR_SET_DUMPABLE as u64, value];
        call(pid, registers.calling(instruction, libc::SYS_prctl, arguments), &mut signals)
    };
    let result = dumpable(1).map(|()| {
        let result = act();
        let _ = dumpable(0);
        result
    });
    registers.restore(pid).ok()?;
    // Signals that arrived meanwhile are sent again.
    signals.into_iter().for_each(|signal| ptrace::tell(pid, pid, signal));
    result
}

/// Makes a stopped thread execute a system call; puts aside signals that arrive meanwhile. `None` if it fails or has
/// ended.
fn call(tid: pid_t, registers: Registers, signals: &mut Vec<c_int>) -> Option<()> {
    registers.restore(tid).ok()?;
    for _begin_and_end in 0..2 {
        loop {
            ptrace::go(tid, Go::ToSystemCall);
            let happened = ptrace::next(Some(tid), true).ok()??;
            if !libc::WIFSTOPPED(happened.status) {
                return None;
            }
            match (libc::WSTOPSIG(happened.status), happened.status >> 16) {
                (libc::SIGTRAP, 0) => break,
                (signal, 0) => signals.push(signal),
                _ => {}
            }
        }
    }
    Registers::of(tid).ok()?.result().ok().map(drop)
}
