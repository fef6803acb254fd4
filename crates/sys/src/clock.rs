//! Clocks. errno of the caller stays as it is, also where a filter refuses the call.

use crate::arch;

/// A clock that the C library reads without a system call where it can. rustix would ask for the auxiliary vector first, by
/// calls that a filter may punish.
pub fn read(clock: libc::clockid_t) -> Option<libc::timespec> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: errno of the calling thread; writes to `time`.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        if libc::clock_gettime(clock, &raw mut time) == 0 {
            return Some(time);
        }
        *errno = before;
    }
    None
}

/// A clock of processor time, which is always a system call.
pub fn processor_time(clock: libc::clockid_t) -> Option<libc::timespec> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let at = (&raw mut time).expose_provenance();
    // SAFETY: writes to `time`.
    let result = unsafe { arch::syscall(libc::SYS_clock_gettime as usize, [clock as usize, at, 0, 0, 0, 0]) };
    (result == 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a clock that does not exist and changes errno, and one that stands still.
    #[test]
    fn errno_stays() {
        // SAFETY: errno of this thread.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 77;
        assert!(read(12345).is_none() && processor_time(12345).is_none());
        assert_eq!(*errno, 77);
        let ran = || processor_time(libc::CLOCK_THREAD_CPUTIME_ID).map(|t| (t.tv_sec, t.tv_nsec));
        let (began, before) = (read(libc::CLOCK_MONOTONIC).map(|t| (t.tv_sec, t.tv_nsec)), ran());
        assert!(read(libc::CLOCK_MONOTONIC).map(|t| (t.tv_sec, t.tv_nsec)) > began && ran() > before);
    }
}
