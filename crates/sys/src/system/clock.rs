//! Clocks. They do not change errno, even if a filter refuses the call.

use crate::arch;
use crate::system::vdso;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// How often the program has taken the processor's cycle counter away from its threads; reading the counter raises
/// SIGSEGV then, and most clocks are read by it. Above 0, only the coarse clocks are read, which do not need it and are
/// up to a tick of the kernel late.
static COUNTER_TAKEN: AtomicU32 = AtomicU32::new(0);

/// To be called before the program takes the processor's counter away from a thread.
pub(crate) fn forgo_counter() {
    // Relaxed, here and below: the thread that loses the counter has stored it itself, or starts later.
    COUNTER_TAKEN.fetch_add(1, Ordering::Relaxed);
}

/// To be called if the system refused that.
pub(crate) fn keep_counter() {
    COUNTER_TAKEN.fetch_sub(1, Ordering::Relaxed);
}

/// Whether the program may have taken the processor's counter away.
pub fn is_coarse() -> bool {
    COUNTER_TAKEN.load(Ordering::Relaxed) != 0
}

/// Reads a clock, without a system call where the kernel has code for it (`vdso.rs`). The C library's function is not
/// used, because a library in front may replace it. Nor is that of rustix, which finds the auxiliary vector by system
/// calls for which a filter may end the process.
pub fn read(clock: libc::clockid_t) -> Option<Duration> {
    let clock = match clock {
        libc::CLOCK_MONOTONIC if is_coarse() => libc::CLOCK_MONOTONIC_COARSE,
        libc::CLOCK_REALTIME if is_coarse() => libc::CLOCK_REALTIME_COARSE,
        clock => clock,
    };
    match vdso::clock_gettime() {
        // SAFETY: writes to `time`.
        Some(read) => time(|time| unsafe { read(clock, time) } == 0),
        None => by_system_call(clock),
    }
}

/// The time that `read` writes; `None` if it fails.
fn time(read: impl FnOnce(*mut libc::timespec) -> bool) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    read(&raw mut time).then(|| Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32))
}

/// Milliseconds of a clock that never goes back, and is up to a tick of the kernel (1 to 10 ms) late.
pub fn coarse_milliseconds() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE).map_or(0, |now| now.as_millis() as u64)
}

/// Processor time of the calling thread in microseconds; 0 if it is not known.
pub fn thread_microseconds() -> u64 {
    by_system_call(libc::CLOCK_THREAD_CPUTIME_ID).map_or(0, |time| time.as_micros() as u64)
}

/// Processor time of the process in microseconds; 0 if it is not known.
pub fn process_microseconds() -> u64 {
    by_system_call(libc::CLOCK_PROCESS_CPUTIME_ID).map_or(0, |time| time.as_micros() as u64)
}

/// See `Os::run_time`.
pub fn other_threads_microseconds() -> Option<u64> {
    let read = |clock| Some(by_system_call(clock)?.as_micros() as u64);
    Some(read(libc::CLOCK_PROCESS_CPUTIME_ID)?.saturating_sub(read(libc::CLOCK_THREAD_CPUTIME_ID)?))
}

/// A clock that is read by a system call. Those of processor time always are.
fn by_system_call(clock: libc::clockid_t) -> Option<Duration> {
    time(|time| {
        // SAFETY: writes to `time`.
        let result = unsafe {
            arch::syscall(libc::SYS_clock_gettime as usize, [clock as usize, time.expose_provenance(), 0, 0, 0, 0])
        };
        result == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::errno;

    /// Catches a failed call that changes errno, and a clock that stands still.
    #[test]
    fn errno_stays() {
        errno::set(77);
        assert!(read(12345).is_none() && by_system_call(12345).is_none());
        assert_eq!(errno::get(), 77);
        let ran = || by_system_call(libc::CLOCK_THREAD_CPUTIME_ID);
        let (began, before) = (read(libc::CLOCK_MONOTONIC), ran());
        assert!(read(libc::CLOCK_MONOTONIC) > began && ran() > before && before.is_some());
    }
}
