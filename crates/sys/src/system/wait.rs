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
    if clock::is_coarse() {
        // The coarse clock lags by more than a wait may last, so an end time is of no use. A signal may make this wait
        // shorter.
        let time = Duration::from_nanos(nanoseconds);
        let time = futex::Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(&time));
        return;
    }
    let now = || clock::read(libc::CLOCK_MONOTONIC);
    let Some(end) = now().map(|now| now + Duration::from_nanos(nanoseconds)) else { return };
    let time = futex::Timespec { tv_sec: end.as_secs().cast_signed(), tv_nsec: end.subsec_nanos().into() };
    let is_over = || now().is_none_or(|now| now >= end);
    let any = core::num::NonZeroU32::MAX;
    while futex::wait_bitset(word, futex::Flags::PRIVATE, value, Some(&time), any) == Err(Errno::INTR) && !is_over() {}
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
