//! Atomics, and how a thread waits. Every atomic of the core comes from here, so that the model checker can compile this
//! file and the lock-free structures against its own (`tests/loom`), and the simulation can switch threads at each operation
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
