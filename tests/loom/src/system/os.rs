//! The system that the lock and the helper wait on: a futex.

use crate::system::sync::{AtomicU32, Ordering, Threads};
use loom::sync::{Condvar, Mutex};

/// A kernel with one futex. Like the real one, it compares the word and puts the thread to sleep in one step.
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
        // SeqCst: in the kernel, the lock of the queue orders the comparison.
        if word.load(Ordering::SeqCst) == value {
            drop(self.wake.wait(queue).unwrap());
        }
    }

    fn futex_wake(&self, _word: *const AtomicU32) {
        let queue = self.queue.lock().unwrap();
        self.wake.notify_one();
        drop(queue);
    }

    /// Waits without a time limit.
    fn futex_wait_for(&self, word: &AtomicU32, value: u32, _milliseconds: u32) {
        self.futex_wait(word, value);
    }

    fn futex_wake_all(&self, _word: *const AtomicU32) {
        let queue = self.queue.lock().unwrap();
        self.wake.notify_all();
        drop(queue);
    }
}
