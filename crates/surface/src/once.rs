//! Work that is done once in a process, by the first thread that needs it.

use core::sync::atomic::{AtomicU8, Ordering};

const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;

/// How far the work has come.
pub struct Once(AtomicU8);

impl Once {
    pub const fn new() -> Self {
        Once(AtomicU8::new(0))
    }

    /// Whether the work is done, and seen by this thread.
    pub fn is_done(&self) -> bool {
        // Pairs with the Release in `run`.
        self.0.load(Ordering::Acquire) == DONE
    }

    /// Does the work, or waits until another thread has done it. The wait is bounded, because that thread may not exist
    /// in the child of a fork, or may be this one, whose call a handler interrupted. After such a wait the work counts
    /// as done, so that later calls do not wait.
    #[cold]
    pub fn run(&self, work: &mut dyn FnMut()) {
        // Acquire, as in `is_done`.
        if self.0.compare_exchange(0, UNDER_WAY, Ordering::Acquire, Ordering::Acquire).is_ok() {
            work();
            self.0.store(DONE, Ordering::Release);
            return;
        }
        for _ in 0..100_000 {
            if self.is_done() {
                return;
            }
            rustix::thread::sched_yield();
        }
        self.0.store(DONE, Ordering::Release);
    }
}
