//! What time is it? errno of the caller stays as it is, also where a filter refuses the call.

use crate::arch;
use crate::system::vdso;

/// A clock that is read without a system call where the kernel has code for it. Not by the C library's function, which a
/// library in front of it may replace (`vdso.rs`), nor by rustix's, which asks for the auxiliary vector by calls that a
/// filter may punish.
pub fn read(clock: libc::clockid_t) -> Option<libc::timespec> {
    let Some(read) = vdso::clock_gettime() else { return by_system_call(clock) };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    let result = unsafe { read(clock, &raw mut time) };
    (result == 0).then_some(time)
}

/// Milliseconds of a clock that never goes back, a tick of the kernel (1 to 10 ms) late.
pub fn coarse_milliseconds() -> u64 {
    let milliseconds =
        |now: libc::timespec| now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000;
    read(libc::CLOCK_MONOTONIC_COARSE).map_or(0, milliseconds)
}

/// See `Os::run_time`.
pub fn other_threads_microseconds() -> Option<u64> {
    let read = |clock| {
        let time = processor_time(clock)?;
        Some(time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1000)
    };
    Some(read(libc::CLOCK_PROCESS_CPUTIME_ID)?.saturating_sub(read(libc::CLOCK_THREAD_CPUTIME_ID)?))
}

/// A clock of processor time, which is always a system call.
fn processor_time(clock: libc::clockid_t) -> Option<libc::timespec> {
    by_system_call(clock)
}

fn by_system_call(clock: libc::clockid_t) -> Option<libc::timespec> {
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
