//! How does a thread wait, and how is it woken?

use crate::arch;
use crate::system::clock;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use rustix::io::Errno;
use rustix::thread::futex;

/// Microseconds that [`pause`] waits on its processor: less than it takes to sleep and wake.
pub const SPIN_MOST: u32 = 20;
/// Rounds of the processor's pause that take a microsecond where it is short; where it is long, 40 ns, they take 1.6.
const SPINS: u32 = 40;

/// Waits while `word` is `value`; may return early.
pub fn wait(word: &AtomicU32, value: u32) {
    // An error means that the word has changed or that a signal came: the caller looks again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

/// Waits while `word` is `value`, for at most `nanoseconds`. Signals do not make it shorter: callers that count such
/// waits count time by them.
pub fn wait_for(word: &AtomicU32, value: u32, nanoseconds: u64) {
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

/// Wakes at most `count` threads that wait for `word`, which may not be there any more: only the address is used.
pub fn wake(word: *const AtomicU32, count: i32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let arguments = [word.expose_provenance(), operation, count as usize, 0, 0, 0];
    // SAFETY: for a futex of this process the kernel reads and writes nothing at the address.
    unsafe { arch::syscall(libc::SYS_futex as usize, arguments) };
}
