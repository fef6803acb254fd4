//! The helper and waiting: no thread is started, the test calls `tick`.

use super::{Call, Fake, Moment};
use core::sync::atomic::Ordering;
use neap_core::sync::{AtomicU32, Threads};

impl Threads for Fake {
    /// Starts no thread: the test calls `tick`, see `Config::purger`.
    fn start_helper(&self) -> bool {
        self.granted(Call::StartPurger) && self.config.purger
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.load(Ordering::Relaxed)).filter(|&process| process != 0)
    }

    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let forever = core::ptr::null::<libc::timespec>();
        // SAFETY: the word lives as long as the call; an early return is allowed.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, forever) };
    }

    fn futex_wait_for(&self, word: &AtomicU32, value: u32, milliseconds: u32) {
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
        let time = libc::timespec { tv_sec: seconds.into(), tv_nsec: i64::from(rest) * 1_000_000 };
        // SAFETY: the word and the time live as long as the call; an early return is allowed.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const time) };
    }

    fn rest(&self, word: &AtomicU32, value: u32, milliseconds: u32) -> bool {
        self.within.reach(Moment::Rest);
        let reports = self.reports.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        if !reports {
            self.futex_wait_for(word, value, milliseconds);
        }
        reports
    }

    fn watches_pressure(&self) -> bool {
        self.watches.load(Ordering::Relaxed)
    }

    fn futex_wake(&self, word: *const AtomicU32) {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a wake-up uses the address only.
        unsafe { libc::syscall(libc::SYS_futex, word.addr(), op, 1) };
    }
}
