//! What is known of forks that are under way, and of calls that they wait for.

use crate::blocks::heap::ThreadSlot;
use crate::system::sync::{AtomicU32, Ordering};

/// A fork begins or ends.
pub(crate) const CHANGES: u32 = 1 << 31;

/// Forks that are under way.
#[derive(Debug, Default)]
pub struct Forks {
    /// Forks between their handlers; [`CHANGES`] while the first one begins or the last one ends. 0: none.
    pub(crate) word: AtomicU32,
    /// Calls under way that no thread slot tells of, and ticks of the purger.
    pub(crate) flights: AtomicU32,
}

impl Forks {
    /// None.
    pub const fn new() -> Self {
        Forks { word: AtomicU32::new(0), flights: AtomicU32::new(0) }
    }
}

/// A call that no thread slot tells other threads of, until it is dropped.
///
/// The thread's own thread slot has a mark for it, so that a fork in a handler knows which of the calls under way is the one that
/// it interrupted. The mark is there only while the call is counted: a handler that comes between the two takes the call
/// for another thread's, which is the safe side.
#[derive(Debug)]
pub struct Flight<'a> {
    pub(crate) forks: &'a Forks,
    /// The thread's slot; null for a thread in which no handler forks.
    pub(crate) slot: *const ThreadSlot,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        mark(self.slot, 0);
        // Release pairs with the Acquire of a fork that waits: what the call did is seen. In the child of a fork in a
        // handler that interrupted this call just here, it is counted no more.
        let _ = self.forks.flights.fetch_update(Ordering::Release, Ordering::Relaxed, |n| n.checked_sub(1));
    }
}

/// Marks in `slot`, which may be null, whether its thread is in a flight.
pub(crate) fn mark(slot: *const ThreadSlot, flying: u8) {
    // SAFETY: a thread's own thread slot, which lasts as long as it is in a call.
    if let Some(slot) = unsafe { slot.as_ref() } {
        // Relaxed: read by the same thread alone, also in a handler. The count is changed by an operation with Acquire
        // before this, and by one with Release behind it.
        slot.flying.store(flying, Ordering::Relaxed);
    }
}
