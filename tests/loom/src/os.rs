//! As much of the system as the lock needs: a futex.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};

/// See the core's trait of this name.
pub trait Os: Sync {
    /// Waits while `word` is `value`.
    fn futex_wait(&self, word: &AtomicU32, value: u32);
    /// Wakes one waiter.
    fn futex_wake(&self, word: &AtomicU32);
}

/// A kernel with one futex. As the real one, it looks at the word and falls asleep in one step.
#[derive(Debug, Default)]
pub struct Futex {
    queue: Mutex<()>,
    wake: Condvar,
}

impl Os for Futex {
    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        let queue = self.queue.lock().unwrap();
        // SeqCst: the kernel's look at the word is ordered by the lock of its queue.
        if word.load(Ordering::SeqCst) == value {
            drop(self.wake.wait(queue).unwrap());
        }
    }

    fn futex_wake(&self, _word: &AtomicU32) {
        let queue = self.queue.lock().unwrap();
        self.wake.notify_one();
        drop(queue);
    }
}
