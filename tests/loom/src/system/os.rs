//! As much of the system as the lock and the helper need: a futex, and threads.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};

/// See the core's trait of this name.
pub trait Os: Sync {
    /// Waits while `word` is `value`.
    fn futex_wait(&self, word: &AtomicU32, value: u32);
    /// Wakes one waiter.
    fn futex_wake(&self, word: &AtomicU32);
    /// Waits while `word` is `value`: here the time is never over.
    fn futex_wait_for(&self, word: &AtomicU32, value: u32, _milliseconds: u32) {
        self.futex_wait(word, value);
    }
    /// Wakes all.
    fn futex_wake_all(&self, word: &AtomicU32) {
        self.futex_wake(word);
    }
    /// The number of the process.
    fn process(&self) -> Option<u32> {
        Some(1)
    }
    /// Runs `f`, in which no handler comes: there are none here.
    fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
    /// Starts a helper.
    fn start_helper(&self) -> bool {
        false
    }
}

/// A kernel with one futex. As the real one, it looks at the word and falls asleep in one step.
#[derive(Debug, Default)]
pub struct Futex {
    queue: Mutex<()>,
    wake: Condvar,
}

impl Futex {
    /// Wakes all waiters.
    pub fn wake_all(&self) {
        let queue = self.queue.lock().unwrap();
        self.wake.notify_all();
        drop(queue);
    }
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

    fn futex_wake_all(&self, _word: &AtomicU32) {
        let queue = self.queue.lock().unwrap();
        self.wake.notify_all();
        drop(queue);
    }
}
