//! The lock, which locks there are, and their order.
//!
//! | lock | guards | taken |
//! |---|---|---|
//! | batch (`back/purger.rs`) | memory on its way to the system, and visits to the heaps of other threads | first |
//! | registry (`blocks/registry.rs`) | the list of all heaps; orphans and their slabs | second |
//! | ranges (`pages/mod.rs`) | free ranges, and what is used of the arenas | last |
//!
//! A thread takes them in this order, and waits for none while it holds a later one. Nothing of the program's runs while one
//! is held, and no page fault of the program's waits for one. The fast paths take none; neither does a reentrant call
//! (`blocks/reentrant.rs`). What a fork does with them is in `fork.rs`.

use crate::system::sync::{AtomicU32, Ordering, Threads, spin_loop};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED: u32 = 2;
/// A fork has the lock: this, and the milliseconds after which a thread takes it away.
const FORKED: u32 = 3;
/// Milliseconds for which a thread sleeps at a time while a fork has the lock.
const STEP: u32 = 1;
/// How often a thread looks again before it sleeps. The model checker and the simulation try other orders anyway.
const SPINS: u32 = if cfg!(any(loom, neap_sim)) { 1 } else { 100 };

/// A lock that sleeps in the kernel. All zero bytes are an unlocked lock.
///
/// `FREE -> HELD` without waiters, `WAITED` once somebody sleeps; the holder wakes one sleeper if it finds `WAITED`.
///
/// A fork holds it as `FORKED`, and may be waiting for the C library. A thread that wants it may be what the C library waits
/// for; so after a while the thread takes it from the fork, whose child sees that.
#[derive(Debug, Default)]
pub struct Lock {
    word: AtomicU32,
}

/// The lock is held while this lives.
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

    /// Takes the lock.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn lock<'a, O: Threads>(&'a self, os: &'a O) -> Guard<'a, O> {
        self.take(os);
        Guard { lock: self, os }
    }

    /// Takes the lock without a guard if it is free.
    #[cfg_attr(neap_sim, track_caller)]
    pub fn try_take(&self) -> bool {
        // Acquire: as in `take`.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock without a guard, for fork. Spins a little, then sleeps.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn take<O: Threads>(&self, os: &O) {
        // Acquire pairs with the Release of `release`: what the last holder wrote is seen.
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
                // Acquire: as in `take`. WAITED is kept by the winner, who cannot know whether others sleep.
                return;
            }
        }
    }

    /// Takes the lock for a fork, which keeps it for at most `lease` milliseconds if others want it; false if it does not
    /// come free within `milliseconds`.
    #[cfg_attr(neap_sim, track_caller)]
    pub fn take_for_fork<O: Threads>(&self, os: &O, milliseconds: u32, lease: u32) -> bool {
        let mut waited = 0;
        loop {
            // Acquire: as in `take`.
            match self.word.compare_exchange(FREE, FORKED + lease, Ordering::Acquire, Ordering::Relaxed) {
                // Those who sleep shall count the time from now on.
                Ok(_) => {
                    os.futex_wake_all(&self.word);
                    return true;
                }
                Err(_) if waited >= milliseconds => return false,
                // As one that waits: who releases the lock wakes it.
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

    /// Makes a lock that a fork took an ordinary one, which is not taken away; false if it was already.
    pub fn keep(&self) -> bool {
        // Relaxed: `take_for_fork` has synchronised.
        let word = self.word.load(Ordering::Relaxed);
        word >= FORKED && self.word.compare_exchange(word, HELD, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Gives back a lock that a fork took, unless it was taken away.
    pub fn release_for_fork<O: Threads>(&self, os: &O) {
        let word = self.word.load(Ordering::Relaxed);
        // Release pairs with the Acquire of `take`.
        if word >= FORKED && self.word.compare_exchange(word, FREE, Ordering::Release, Ordering::Relaxed).is_ok() {
            os.futex_wake(&self.word);
        }
    }

    /// Whether a fork has the lock: in its child, where it was not taken away.
    pub fn is_forked(&self) -> bool {
        self.word.load(Ordering::Relaxed) >= FORKED
    }

    /// Gives the lock back: by its holder, or by the child of a fork whose parent took it.
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

/// A value behind a [`Lock`].
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct Locked<T> {
    lock: Lock,
    value: core::cell::UnsafeCell<T>,
}

// SAFETY: the value is reached only while the lock is held.
#[cfg(not(loom))]
unsafe impl<T: Send> Sync for Locked<T> {}

#[cfg(not(loom))]
impl<T> Locked<T> {
    /// An unlocked value.
    pub const fn new(value: T) -> Self {
        Locked { lock: Lock::new(), value: core::cell::UnsafeCell::new(value) }
    }

    /// Runs `f` with the value, under the lock. `f` must not take the same lock.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn with<O: Threads, R>(&self, os: &O, f: impl FnOnce(&mut T) -> R) -> R {
        let _guard = self.lock.lock(os);
        // SAFETY: the lock is held, and `f` does not take it again, so the reference is unique.
        f(unsafe { &mut *self.value.get() })
    }

    /// The value, whoever holds the lock: for a process that has only one thread left.
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

    /// Catches a lock of a thread that is taken for a fork's, and one that a fork has made ordinary twice.
    #[test]
    fn locks_of_forks_are_kept_once() {
        let lock = Lock::new();
        assert!(!lock.keep());
        assert!(lock.try_take() && !lock.keep() && !lock.try_take());
        lock.word.store(FORKED, Ordering::Relaxed);
        assert!(lock.keep() && !lock.keep());
        assert_eq!(lock.word.load(Ordering::Relaxed), HELD);
    }

    /// Catches a value that is not the lock's.
    #[test]
    fn the_value_is_the_locks() {
        let locked = Locked::new(7);
        assert_eq!(locked.value(), locked.value.get());
    }
}
