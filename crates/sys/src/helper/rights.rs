//! Finds out whether the process has given up rights since its helper was started, because the helper keeps the rights
//! that it had at its start. The helper checks ten times a second.
//!
//! /proc/self/status shows all rights. The helper reads it if it has its own table of files. In the program's table the
//! file would take a descriptor number for some microseconds, and the program may rely on getting that number.
//! Otherwise (under a filter, before Linux 5.9), and without /proc or a free descriptor, two system calls ask about the
//! process's first thread. capget(2) returns its capabilities. prlimit(2) is allowed as long as user and group are
//! those of the caller, or the caller has CAP_SYS_RESOURCE, whose loss by the process capget shows. These two calls
//! miss a change of supplementary groups alone.

use crate::system::{alive, call, lines};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::process::Pid;

/// The rights when the helper was started, as the file shows them and as the calls show them; [`UNKNOWN`] if they do
/// not.
static BY_FILE: AtomicU64 = AtomicU64::new(UNKNOWN);
static BY_CALLS: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = 0;
/// Whether the helper has a table of files of its own.
static OWN_FILES: AtomicBool = AtomicBool::new(false);

/// What [`look`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The rights of the start.
    Same,
    /// Other rights, or the rights cannot be found out any more.
    Changed,
    /// The first thread has ended, and the helper is the only one left.
    OneIsLeft,
}

/// Notes the rights of the process. The thread that is about to start the helper calls this, not the helper: a change
/// of user reaches the threads of the C library by a signal, and this thread has signals blocked until the helper is
/// there. False where the rights cannot be found out: then no helper may be started, because it would keep what the
/// process gives up.
pub fn note() -> bool {
    let by_file = lines::look().map_or(UNKNOWN, |look| look.credentials);
    let by_calls = by_calls();
    // Relaxed, here and below: the thread that is started next reads it.
    BY_FILE.store(by_file, Ordering::Relaxed);
    BY_CALLS.store(by_calls, Ordering::Relaxed);
    by_file != UNKNOWN || by_calls != UNKNOWN
}

/// Notes whether the helper has a table of files of its own.
pub fn note_files(own: bool) {
    OWN_FILES.store(own, Ordering::Relaxed);
}

/// Whether the helper has a table of files of its own.
pub fn has_own_files() -> bool {
    OWN_FILES.load(Ordering::Relaxed)
}

/// Compares the rights of the process with those of the start. Called by the helper.
pub fn look() -> Rights {
    let (by_file, by_calls_then) = (BY_FILE.load(Ordering::Relaxed), BY_CALLS.load(Ordering::Relaxed));
    if by_file != UNKNOWN && (has_own_files() || by_calls_then == UNKNOWN) {
        return match lines::look() {
            Ok(look) if look.one_is_left => Rights::OneIsLeft,
            Ok(look) if look.credentials == by_file => Rights::Same,
            _ => Rights::Changed,
        };
    }
    // The first thread has ended. That is rare, so opening a file in the program's table is acceptable.
    if alive::has_no_locks(call::process()) && lines::look().is_ok_and(|look| look.one_is_left) {
        return Rights::OneIsLeft;
    }
    if by_calls() == by_calls_then { Rights::Same } else { Rights::Changed }
}

/// A number that changes when the first thread of the process gets other capabilities, or another user or group than
/// the calling thread.
fn by_calls() -> u64 {
    let process = call::process();
    let Ok(sets) = rustix::thread::capabilities(Pid::from_raw(process.cast_signed())) else { return UNKNOWN };
    let same = call::limit_of(process, libc::RLIMIT_NOFILE).is_some();
    let bytes = [sets.effective, sets.permitted, sets.inheritable].into_iter().flat_map(|set| set.bits().to_le_bytes());
    lines::digest_of(bytes.chain([u8::from(same)])).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches rights that were given up unnoticed, by either way to find out, and a change that is reported without
    /// one.
    #[test]
    fn sees_what_is_given_up() {
        // SAFETY: the child changes only itself.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut codes = 0;
                for own_files in [true, false] {
                    assert!(note());
                    note_files(own_files);
                    codes |= i32::from(look() != Rights::Same);
                }
                // By the system call: of the first thread alone.
                let other = if libc::geteuid() == 0 { libc::syscall(libc::SYS_setresuid, 7, 7, 7) } else { -1 };
                for own_files in [true, false] {
                    note_files(own_files);
                    codes |= i32::from(other == 0 && look() != Rights::Changed) << 1;
                }
                libc::_exit(codes);
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
