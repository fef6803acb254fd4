//! State of forks in progress, and of the calls that they wait for.

use crate::blocks::heap::ThreadSlot;
use crate::system::sync::{AtomicU32, Ordering};

/// Bit of [`Forks::word`]: a fork is beginning or ending.
pub(crate) const CHANGES: u32 = 1 << 31;

/// State of forks in progress.
#[derive(Debug, Default)]
pub struct Forks {
    /// Number of forks between their handlers; [`CHANGES`] while the first one begins or the last one ends. 0: none.
    pub(crate) word: AtomicU32,
    /// Number of flights: calls in progress that no thread slot shows as busy, and ticks of the purger.
    pub(crate) flights: AtomicU32,
}

impl Forks {
    /// State without a fork.
    pub const fn new() -> Self {
        Forks { word: AtomicU32::new(0), flights: AtomicU32::new(0) }
    }
}

/// A call in progress that no thread slot shows as busy. It ends when this is dropped.
///
/// The thread's own slot has a mark for it, so that a fork in a handler knows which flight it interrupted. The mark is
/// set after the flight is counted and cleared before it is uncounted. A handler that runs in between takes the flight
/// for another thread's, which is the safe assumption.
#[derive(Debug)]
pub struct Flight<'a> {
    pub(crate) forks: &'a Forks,
    /// The thread's slot; null if no handler of the thread forks.
    pub(crate) slot: *const ThreadSlot,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        mark(self.slot, 0);
        // Release pairs with the SeqCst load of a fork that waits: the fork sees what the call did. In the child of a
        // fork in a handler that interrupted this call just here, the flight is no longer counted.
        let _ = self.forks.flights.fetch_update(Ordering::Release, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// Records in `slot`, which may be null, whether its thread is in a flight.
pub(crate) fn mark(slot: *const ThreadSlot, flying: u8) {
    // SAFETY: a thread's own thread slot, which lasts as long as it is in a call.
    if let Some(slot) = unsafe { slot.as_ref() } {
        // Relaxed: only the same thread reads it, also in a handler. The count changes by an operation with Acquire
        // before this, and by one with Release after it.
        slot.flying.store(flying, Ordering::Relaxed);
    }
}
