//! How a thread waits, and how it is woken.

use crate::arch;
use crate::system::clock;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use rustix::io::Errno;
use rustix::thread::futex;

/// Longest wait of [`pause`] in a loop, in microseconds: less than it takes to sleep and wake.
pub const SPIN_MOST: u32 = 20;
/// Pause instructions in a microsecond, on processors where they are short. Where one takes 40 ns, these take 1.6 us.
const SPINS: u32 = 40;

/// Waits while `word` is `value`; may return early.
pub fn wait(word: &AtomicU32, value: u32) {
    // An error means that the word has changed or that a signal came; the caller checks again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

/// Waits while `word` is `value`, for at most `nanoseconds`. Signals do not make the wait shorter, as callers measure
/// time by the number of such waits.
pub fn wait_for(word: &AtomicU32, value: u32, nanoseconds: u64) {
    let most = Duration::from_nanos(nanoseconds);
    // Relative: an absolute end may lie far ahead where the clock has gone back, in a process that was restored from a
    // checkpoint.
    let wait = |time: Duration| {
        let time = futex::Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        futex::wait(word, futex::Flags::PRIVATE, value, Some(&time)) == Err(Errno::INTR)
    };
    // The coarse clock lags by more than a wait may last, so it does not say what is left when a signal has come.
    let now = || if clock::is_coarse() { None } else { clock::read(libc::CLOCK_MONOTONIC) };
    let Some(begun) = now() else {
        wait(most);
        return;
    };
    let mut left = most;
    while wait(left) {
        let rest = now().and_then(|now| most.checked_sub(now.checked_sub(begun)?));
        let Some(rest) = rest.filter(|rest| !rest.is_zero()) else { return };
        left = rest;
    }
}

/// Waits for about `microseconds`, up to [`SPIN_MOST`] without a system call.
pub fn pause(microseconds: u32) {
    if microseconds <= SPIN_MOST {
        return (0..microseconds * SPINS).for_each(|_| core::hint::spin_loop());
    }
    // No other thread knows the word.
    wait_for(&AtomicU32::new(0), 0, u64::from(microseconds) * 1000);
}

/// Wakes at most `most` threads that wait for `word`. The memory of `word` may be gone: only the address is used.
pub fn wake(word: *const AtomicU32, most: i32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let arguments = [word.expose_provenance(), operation, most as usize, 0, 0, 0];
    // SAFETY: for a futex of this process the kernel reads and writes nothing at the address.
    unsafe { arch::syscall(libc::SYS_futex as usize, arguments) };
}
