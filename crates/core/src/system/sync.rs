//! Atomics and the lock. Every atomic of the core comes from here, so that the model checker can compile this file and
//! the lock-free structures against its own (`tests/loom`), and the simulation can switch threads at each operation
//! (`points.rs`, `crates/sim`).

#[cfg(neap_sim)]
pub use crate::system::points::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, spin_loop,
};
#[cfg(not(neap_sim))]
pub use core::hint::spin_loop;
#[cfg(neap_sim)]
pub use core::sync::atomic::Ordering;
#[cfg(not(any(loom, neap_sim)))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Reads a word that the thread that owns it may be writing, without waiting for it: what comes back is a guess.
///
/// The owner writes with plain stores, as the fast paths pay for nothing else. In the language's terms that is a data
/// race. It does no harm here: the word is aligned and no longer than the processor's own, so it is read whole; the read
/// is volatile, so it is done once; and callers use the value as a hint, which they confirm where it matters (a visit, a
/// lock), or in figures. Miri gets `in_miri` instead, as it would stop.
///
/// # Safety
/// `p` must be readable, and every value of its bytes valid.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) unsafe fn peek<T: Copy>(p: *const T, in_miri: T) -> T {
    const { assert!(size_of::<T>() <= size_of::<usize>(), "a longer value could be torn") };
    // SAFETY: as the caller promises.
    if cfg!(miri) { in_miri } else { unsafe { p.read_volatile() } }
}

/// [`peek`] at a cell, which holds a value of its type whatever its owner does.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn guess<T: Copy>(cell: &core::cell::Cell<T>, in_miri: T) -> T {
    // SAFETY: the cell is readable, and what it holds is valid.
    unsafe { peek(cell.as_ptr(), in_miri) }
}

/// What the lock and the helper need of the system: to wait for a word, and to start a thread. No call fails.
pub trait Threads: Sync {
    /// Wakes all that wait for `word`.
    fn futex_wake_all(&self, word: *const AtomicU32) {
        self.futex_wake(word);
    }

    /// The number of the calling process (not of its thread), never 0. `None` if the system must not be asked.
    fn process(&self) -> Option<u32> {
        Some(1)
    }

    /// Runs `f`, in which no signal's handler interrupts the calling thread.
    fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    /// Starts a thread that calls `Allocator::help` and takes the step that it returns; false if there can be
    /// none. Called by a thread of the owner of the address space, perhaps in a signal handler, one at a time, in
    /// [`Threads::undisturbed`].
    fn start_helper(&self) -> bool;

    /// Waits while `word` is `value`; may return early.
    fn futex_wait(&self, word: &AtomicU32, value: u32);

    /// Waits while `word` is `value`, for so many milliseconds at most. A wake-up may end it early, signals do not.
    fn futex_wait_for(&self, word: &AtomicU32, value: u32, milliseconds: u32);

    /// Wakes one waiter of `word`. Only the address is used: the word may not be there any more.
    fn futex_wake(&self, word: *const AtomicU32);
}

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
