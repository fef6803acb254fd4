//! Signals while neap supervises a program: all are blocked and taken by `wait`, and the program starts with the mask
//! and the dispositions that neap was started with.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use libc::{c_int, pid_t, sigset_t};

/// Signals that report a fault of this process itself; blocking them would hide neap's own bugs.
const FAULTS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// Signals that request neap's end.
const ENDS: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signal state that neap was started with; restored for the program.
pub struct Inherited {
    mask: sigset_t,
    child: libc::sigaction,
}

/// A signal that neap received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub number: c_int,
    /// Whether a process sent it (kill, sigqueue), not the kernel.
    by_process: bool,
    /// The sender, if a process sent it.
    sender: pid_t,
}

impl Received {
    /// Whether the signal must be passed on, because the program did not get it itself.
    ///
    /// Keys (^C, ^\, ^Z) and window changes come from the kernel and go to the whole foreground process group,
    /// including the program. A hang-up goes only to the session leader, which may be neap. A signal from the program
    /// (`kill 0`) reached the program too.
    pub fn must_be_passed_on(self, program: pid_t, session_leader: bool) -> bool {
        if self.by_process { self.sender != program } else { self.number == libc::SIGHUP && session_leader }
    }
}

/// The signals that [`wait`] takes.
fn supervised() -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that the valid pointer names; it cannot fail then.
    let mut set = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    };
    for number in FAULTS {
        // SAFETY: the set is initialised and the number is that of a signal.
        unsafe { libc::sigdelset(&mut set, number) };
    }
    set
}

/// Blocks the signals, and makes children waitable even if neap was started with SIGCHLD ignored.
pub fn block() -> Inherited {
    let set = supervised();
    let mut mask = MaybeUninit::<sigset_t>::uninit();
    let mut child = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: an all-zero sigaction is SIG_DFL with an empty mask and no flags.
    let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: all pointers are valid, the sets and actions that are read are initialised, and both calls
    // write their last argument as they cannot fail with a valid `how` and signal number.
    unsafe {
        libc::sigprocmask(libc::SIG_BLOCK, &set, mask.as_mut_ptr());
        libc::sigaction(libc::SIGCHLD, &default, child.as_mut_ptr());
        Inherited { mask: mask.assume_init(), child: child.assume_init() }
    }
}

impl Inherited {
    /// Restores everything when there is nothing left to supervise. Signals that arrived meanwhile were meant for the
    /// program, and are dropped.
    pub fn release(&self) {
        while take(Duration::ZERO).is_some() {}
        self.restore();
    }

    /// Restores everything. Makes system calls only, so it may be used between fork and exec.
    pub fn restore(&self) {
        // SAFETY: both fields were filled in by the kernel in `block`.
        unsafe {
            libc::sigaction(libc::SIGCHLD, &self.child, ptr::null_mut());
            libc::sigprocmask(libc::SIG_SETMASK, &self.mask, ptr::null_mut());
        }
    }
}

/// Waits for the next signal.
pub fn wait() -> io::Result<Received> {
    let set = supervised();
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    loop {
        // SAFETY: the set is initialised and `info` is writable.
        let number = unsafe { libc::sigwaitinfo(&set, info.as_mut_ptr()) };
        if number > 0 {
            // SAFETY: sigwaitinfo succeeded, so it filled in `info`.
            let info = unsafe { info.assume_init() };
            // Codes up to zero are those of kill, tgkill and sigqueue.
            let by_process = info.si_code <= 0;
            // SAFETY: those three fill in the sender.
            let sender = if by_process { unsafe { info.si_pid() } } else { 0 };
            return Ok(Received { number, by_process, sender });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Waits for the given time, or until a signal arrives; returns whether a signal requested neap's end. A signal that
/// requests a stop stops neap.
pub fn asked_to_end(time: Duration) -> bool {
    match take(time) {
        Some(number) if ENDS.contains(&number) => true,
        Some(number @ (libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)) => {
            suffer(number);
            false
        }
        _ => false,
    }
}

/// Whether a blocked signal that requests neap's end is pending; [`asked_to_end`] takes it.
pub fn is_pending() -> bool {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: sigpending writes the set that the valid pointer names; zeros are an empty set, were it to fail.
    let set = unsafe {
        libc::sigpending(set.as_mut_ptr());
        set.assume_init()
    };
    // SAFETY: the set is initialised and the numbers are those of signals.
    ENDS.into_iter().any(|number| unsafe { libc::sigismember(&set, number) } == 1)
}

/// Takes the next signal that arrives within the given time.
fn take(time: Duration) -> Option<c_int> {
    let set = supervised();
    let time = libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the set is initialised, the time is valid, and no information is requested.
    let number = unsafe { libc::sigtimedwait(&set, ptr::null_mut(), &time) };
    (number > 0).then_some(number)
}

/// Sends a signal to the program; it may have ended already.
pub fn send(pid: pid_t, number: c_int) {
    // SAFETY: kill takes no pointers.
    unsafe { libc::kill(pid, number) };
}

/// Lets one blocked signal have its default effect on neap itself: stop, or end.
///
/// It is sent while still blocked, so that it merges with one that the terminal has already sent and takes effect once.
pub fn suffer(number: c_int) {
    // SAFETY: an all-zero sigaction is SIG_DFL with an empty mask and no flags.
    let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    let mut only = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: all pointers are valid. `before` is used only if sigaction wrote it (it refuses SIGKILL and
    // SIGSTOP, whose effect cannot be changed). `only` is initialised by sigemptyset.
    unsafe {
        let replaced = libc::sigaction(number, &default, before.as_mut_ptr()) == 0;
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), number);
        libc::kill(libc::getpid(), number);
        libc::sigprocmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut());
        // Stops here until neap is continued.
        libc::sigprocmask(libc::SIG_BLOCK, only.as_ptr(), ptr::null_mut());
        if replaced {
            libc::sigaction(number, before.as_ptr(), ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches keys that are delivered twice, and signals of other processes that are lost.
    #[test]
    fn only_what_the_program_did_not_get_is_passed_on() {
        let from = |number, by_process, sender| Received { number, by_process, sender };
        assert!(!from(libc::SIGINT, false, 0).must_be_passed_on(7, false));
        assert!(!from(libc::SIGWINCH, false, 0).must_be_passed_on(7, true));
        assert!(!from(libc::SIGHUP, false, 0).must_be_passed_on(7, false));
        assert!(from(libc::SIGHUP, false, 0).must_be_passed_on(7, true));
        assert!(from(libc::SIGTERM, true, 1).must_be_passed_on(7, false));
        assert!(!from(libc::SIGTERM, true, 7).must_be_passed_on(7, false));
    }
}
