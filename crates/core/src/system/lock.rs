//! The lock, the list of all locks, and their order.
//!
//! | lock | guards | order |
//! |---|---|---|
//! | batch (`back/purger.rs`) | memory on its way to the system, and handshakes with other threads | first |
//! | registry (`blocks/registry.rs`) | the list of all heaps; orphans, the common heap, and their slabs | second |
//! | ranges (`pages/mod.rs`) | free ranges, and which part of each arena is in use | last |
//!
//! Invariant 23: a thread takes them in this order, and waits for none while it holds a later one. No code of the
//! program runs while one is held, and no page fault of the program waits for one. The fast paths take none; neither
//! does a reentrant call (`blocks/reentrant.rs`). `fork.rs` says what a fork does with them.

use crate::system::sync::{AtomicU32, Ordering, Threads, spin_loop};

const FREE: u32 = 0;
/// Held, and no thread sleeps.
const HELD: u32 = 1;
/// Held, and threads may sleep.
const WAITED: u32 = 2;
/// Held by a fork: this value plus the milliseconds after which another thread may take the lock away from it.
const FORKED: u32 = 3;
/// Milliseconds of each sleep of a thread that waits for a lock held by a fork.
const STEP: u32 = 1;
/// Number of tries before a thread sleeps. One is enough for the model checker and the simulation: they choose the
/// order of the threads.
const SPINS: u32 = if cfg!(any(loom, neap_sim)) { 1 } else { 100 };

/// A lock that sleeps in the kernel. All zero bytes are an unlocked lock.
///
/// `FREE -> HELD` without waiters, `WAITED` once a thread sleeps; the holder wakes one sleeper if it finds `WAITED`.
///
/// A fork holds the lock as `FORKED`, and may be waiting for the C library, which may be waiting for a thread that
/// waits for this lock. So after a while that thread takes the lock away from the fork, and the child of the fork sees
/// that.
#[derive(Debug, Default)]
pub struct Lock {
    word: AtomicU32,
}

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub struct Guard<'a, O: Threads> {
    lock: &'a Lock,
    os: &'a O,
}

impl Lock {
    /// An unlocked lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Lock { word: AtomicU32::new(FREE) }
    }

    /// An unlocked lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Lock { word: AtomicU32::new(FREE) }
    }

    /// Takes the lock, and returns a guard.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn lock<'a, O: Threads>(&'a self, os: &'a O) -> Guard<'a, O> {
        self.take(os);
        Guard { lock: self, os }
    }

    /// Takes the lock without a guard if it is free; returns whether it did.
    #[cfg_attr(neap_sim, track_caller)]
    pub fn try_take(&self) -> bool {
        // Acquire: as in `take`.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Whether the lock is free: a hint.
    pub fn is_free(&self) -> bool {
        self.word.load(Ordering::Relaxed) == FREE
    }

    /// [`Lock::try_take`] some times: a holder that runs releases the lock meanwhile.
    pub fn try_take_soon(&self) -> bool {
        (0..SPINS).any(|_| {
            let taken = self.try_take();
            if !taken {
                spin_loop();
            }
            taken
        })
    }

    /// Takes the lock without a guard. Spins a little, then sleeps.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn take<O: Threads>(&self, os: &O) {
        // Acquire pairs with the Release of `release`: this thread sees what the last holder wrote.
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.take_slow(os);
        }
    }

    #[cold]
    #[cfg_attr(neap_sim, track_caller)]
    fn take_slow<O: Threads>(&self, os: &O) {
        for _ in 0..SPINS {
            spin_loop();
            // Acquire: as in `take`.
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
        }
        let mut waited = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word >= FORKED && waited < word - FORKED {
                os.futex_wait_for(&self.word, word, STEP);
                waited += STEP;
            } else if word == WAITED {
                os.futex_wait(&self.word, WAITED);
            } else if self.word.compare_exchange(word, WAITED, Ordering::Acquire, Ordering::Relaxed).is_ok()
                && word != HELD
            {
                // Acquire: as in `take`. The new holder leaves WAITED, as other threads may still sleep.
                return;
            }
        }
    }

    /// Takes the lock for a fork; false if the lock is not free within `milliseconds`. A thread that waits for it takes
    /// it away after `lease` milliseconds.
    #[cfg_attr(neap_sim, track_caller)]
    pub fn take_for_fork<O: Threads>(&self, os: &O, milliseconds: u32, lease: u32) -> bool {
        let mut waited = 0;
        loop {
            // Acquire: as in `take`.
            match self.word.compare_exchange(FREE, FORKED + lease, Ordering::Acquire, Ordering::Relaxed) {
                // Wakes the sleepers, so that they count the lease from now on.
                Ok(_) => {
                    os.futex_wake_all(&self.word);
                    return true;
                }
                Err(_) if waited >= milliseconds => return false,
                // Marks the lock as waited for, so that its holder wakes this thread.
                Err(HELD) => {
                    let _ = self.word.compare_exchange(HELD, WAITED, Ordering::Relaxed, Ordering::Relaxed);
                }
                Err(word) => {
                    os.futex_wait_for(&self.word, word, STEP);
                    waited += STEP;
                }
            }
        }
    }

    /// Makes a lock that a fork holds an ordinary held lock, which no thread takes away; false if no fork holds it any
    /// more.
    pub fn keep(&self) -> bool {
        // Relaxed: `take_for_fork` did the Acquire.
        let word = self.word.load(Ordering::Relaxed);
        word >= FORKED && self.word.compare_exchange(word, HELD, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Releases a lock that a fork took, unless another thread has taken it away.
    pub fn release_for_fork<O: Threads>(&self, os: &O) {
        let word = self.word.load(Ordering::Relaxed);
        // Release pairs with the Acquire of `take`.
        if word >= FORKED && self.word.compare_exchange(word, FREE, Ordering::Release, Ordering::Relaxed).is_ok() {
            os.futex_wake(&self.word);
        }
    }

    /// Whether a fork holds the lock. In the child of a fork: whether no thread of the parent had taken it away.
    pub fn is_forked(&self) -> bool {
        self.word.load(Ordering::Relaxed) >= FORKED
    }

    /// Releases the lock. The caller is its holder, or the child of a fork whose parent held it.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn release<O: Threads>(&self, os: &O) {
        // Release pairs with the Acquire of `take`.
        if self.word.swap(FREE, Ordering::Release) == WAITED {
            os.futex_wake(&self.word);
        }
    }
}

impl<O: Threads> Drop for Guard<'_, O> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release(self.os);
    }
}

/// A value that a [`Lock`] guards.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct Locked<T> {
    lock: Lock,
    value: core::cell::UnsafeCell<T>,
}

// SAFETY: `with` gives access only under the lock; `value` leaves it to its caller.
#[cfg(not(loom))]
unsafe impl<T: Send> Sync for Locked<T> {}

#[cfg(not(loom))]
impl<T> Locked<T> {
    /// Where an observer in another process finds the value.
    pub(crate) const VALUE_AT: usize = core::mem::offset_of!(Self, value);

    /// An unlocked value.
    pub const fn new(value: T) -> Self {
        Locked { lock: Lock::new(), value: core::cell::UnsafeCell::new(value) }
    }

    /// Runs `f` with the value, under the lock. `f` must not take the same lock: it would wait for itself.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn with<O: Threads, R>(&self, os: &O, f: impl FnOnce(&mut T) -> R) -> R {
        let _guard = self.lock.lock(os);
        // SAFETY: the lock is held, and `f` does not take it again, so the reference is unique.
        f(unsafe { &mut *self.value.get() })
    }

    /// [`Locked::with`] without a wait: `None` if the lock does not become free at once.
    #[cfg_attr(neap_sim, track_caller)]
    pub fn try_with<O: Threads, R>(&self, os: &O, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.lock.try_take_soon() {
            return None;
        }
        let _guard = Guard { lock: &self.lock, os };
        // SAFETY: the lock is held, and `f` does not take it again, so the reference is unique.
        Some(f(unsafe { &mut *self.value.get() }))
    }

    /// The value, without taking the lock: for a fork that has taken it, or a process that has only one thread left.
    pub fn value(&self) -> *mut T {
        self.value.get()
    }

    /// The lock itself, for fork.
    pub fn raw(&self) -> &Lock {
        &self.lock
    }
}

#[cfg(all(test, not(any(loom, neap_sim))))]
mod tests {
    use super::*;

    /// Catches a lock of a thread that counts as one of a fork, and a fork's lock that is made ordinary twice.
    #[test]
    fn locks_of_forks_are_kept_once() {
        let lock = Lock::new();
        assert!(!lock.keep());
        assert!(lock.try_take() && !lock.keep() && !lock.try_take());
        lock.word.store(FORKED, Ordering::Relaxed);
        assert!(lock.keep() && !lock.keep());
        assert_eq!(lock.word.load(Ordering::Relaxed), HELD);
    }

    /// Catches a pointer to another value than the guarded one.
    #[test]
    fn the_value_is_the_locks() {
        let locked = Locked::new(7);
        assert_eq!(locked.value(), locked.value.get());
    }
}
