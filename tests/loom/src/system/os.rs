//! As much of the system as the lock and the helper need: a futex, and threads.

use crate::system::sync::{AtomicU32, Ordering, Threads};
use loom::sync::{Condvar, Mutex};

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

impl Threads for Futex {
    fn start_helper(&self) -> bool {
        false
    }

    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        let queue = self.queue.lock().unwrap();
        // SeqCst: the kernel's look at the word is ordered by the lock of its queue.
        if word.load(Ordering::SeqCst) == value {
            drop(self.wake.wait(queue).unwrap());
        }
    }

    fn futex_wake(&self, _word: *const AtomicU32) {
        let queue = self.queue.lock().unwrap();
        self.wake.notify_one();
        drop(queue);
    }

    /// Here the time is never over.
    fn futex_wait_for(&self, word: &AtomicU32, value: u32, _milliseconds: u32) {
        self.futex_wait(word, value);
    }

    fn futex_wake_all(&self, _word: *const AtomicU32) {
        let queue = self.queue.lock().unwrap();
        self.wake.notify_all();
        drop(queue);
    }
}
