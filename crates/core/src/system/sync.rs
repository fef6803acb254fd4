//! Atomics, approximate reads of plain words, and the trait by which a thread waits. Every atomic of the core comes
//! from here, so that loom can compile the lock-free structures with its own atomics (`tests/loom`), and the simulation
//! can switch threads at each operation (`points.rs`, `crates/sim`).

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

/// Reads a word while its owner, another thread, may be writing it: the value is a hint.
///
/// The owner writes with plain stores, so that the fast paths pay nothing for such reads. By the rules of the language
/// that is a data race. It does no harm here: the word is aligned and no longer than a machine word, so it is read
/// whole; the read is volatile, so it happens once; and callers use the value as a hint that they confirm where it
/// matters (by a handshake or under a lock), or in figures. Under Miri, which stops at a data race, the result is
/// `in_miri`.
///
/// # Safety
/// `p` must be readable, and every value of its bytes valid.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) unsafe fn peek<T: Copy>(p: *const T, in_miri: T) -> T {
    const { assert!(size_of::<T>() <= size_of::<usize>(), "a longer value could be torn") };
    // SAFETY: the caller's promise.
    if cfg!(miri) { in_miri } else { unsafe { p.read_volatile() } }
}

/// Reads a cell that its owner, another thread, may be writing: a hint, as with [`peek`].
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn peek_cell<T: Copy>(cell: &core::cell::Cell<T>, in_miri: T) -> T {
    // SAFETY: a cell is readable, and always holds a valid value of its type.
    unsafe { peek(cell.as_ptr(), in_miri) }
}

/// The calls that the lock and the helper make to the system: to wait for a word, and to start a thread.
pub trait Threads: Sync {
    /// Wakes all waiters of `word`.
    fn futex_wake_all(&self, word: *const AtomicU32) {
        self.futex_wake(word);
    }

    /// The number of the calling process (not of its thread), never 0. `None` if that system call must not be made.
    fn process(&self) -> Option<u32> {
        Some(1)
    }

    /// Runs `f` while no signal handler can interrupt the calling thread.
    fn undisturbed<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }

    /// Starts a thread that calls `Allocator::help` and takes the step that it returns; false if the system refuses.
    /// The caller is a thread of the owner of the address space, perhaps in a signal handler, in
    /// [`Threads::undisturbed`]; one thread calls it at a time.
    fn start_helper(&self) -> bool;

    /// Waits while `word` is `value`; may return early.
    fn futex_wait(&self, word: &AtomicU32, value: u32);

    /// Waits while `word` is `value`, for at most this many milliseconds. A wake-up may end it early, a signal does
    /// not.
    fn futex_wait_for(&self, word: &AtomicU32, value: u32, milliseconds: u32);

    /// Makes the helper wait as [`Threads::futex_wait_for`] does. Where the system can say that it is short of memory
    /// ([`Threads::watches_pressure`]), that ends the wait too, and this returns true.
    fn rest(&self, word: &AtomicU32, value: u32, milliseconds: u32) -> bool {
        self.futex_wait_for(word, value, milliseconds);
        false
    }

    /// Ends [`Threads::rest`], after `word` was changed.
    fn rouse(&self, word: &AtomicU32) {
        self.futex_wake(word);
    }

    /// Whether the helper learns from the system that memory is short. Then it does not end when nothing waits, but
    /// waits for that. Asked by the helper, and by threads that need it.
    fn watches_pressure(&self) -> bool {
        false
    }

    /// Wakes one waiter of `word`. Uses the address only: the word may be unmapped.
    fn futex_wake(&self, word: *const AtomicU32);
}
