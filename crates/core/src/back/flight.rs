//! Flights: calls in progress that no thread slot shows as busy. A fork waits until they end. While a fork is in
//! progress, no flight and no batch begins.

use crate::Os;
use crate::back::Back;
use crate::back::batch::Work;
use crate::back::forks::{Flight, mark};
use crate::blocks::heap::ThreadSlot;
use crate::system::sync::Ordering;

impl<O: Os> Back<O> {
    /// Whether a fork is in progress: from its preparation to the end of the handler after it.
    #[inline]
    pub fn is_forking(&self) -> bool {
        // Acquire: a thread that takes the batch lock after the fork released it sees the value.
        self.forks.word.load(Ordering::Acquire) != 0
    }

    /// Begins a call that uses locks or a heap while its thread slot does not show it as busy. `None` while a fork is
    /// in progress: the call must be a reentrant one. `slot` is the calling thread's, or null if no handler of that
    /// thread forks.
    #[must_use]
    pub fn fly(&self, slot: *const ThreadSlot) -> Option<Flight<'_>> {
        let flight = self.take_off(slot);
        // SeqCst: see `take_off`.
        (self.forks.word.load(Ordering::SeqCst) == 0).then_some(flight)
    }

    /// Like [`Back::fly`], but also while a fork is in progress: for a thread in a call whose thread slot is about to
    /// stop showing the call.
    #[must_use]
    pub fn take_off(&self, slot: *const ThreadSlot) -> Flight<'_> {
        // SeqCst, here and in `fly`, pairs with the store and load of a fork: either the fork sees the flight, or the
        // flight sees the fork.
        self.forks.flights.fetch_add(1, Ordering::SeqCst);
        mark(slot, 1);
        Flight { forks: &self.forks, slot }
    }

    /// Runs `f` under the batch lock. Does nothing while a fork is in progress, and in a stranded child.
    pub(crate) fn with_batch<R: Default>(&self, f: impl FnOnce(&mut Work) -> R) -> R {
        let refused = || self.is_forking() || self.is_stranded();
        self.purger.batch.with(&self.os, |work| if refused() { R::default() } else { f(work) })
    }

    /// Number of flights that the thread of `slot` is in: 0 or 1.
    pub(crate) fn is_flying(slot: *const ThreadSlot) -> u32 {
        // SAFETY: the calling thread's own thread slot, or null. Relaxed: see `mark`.
        unsafe { slot.as_ref() }.map_or(0, |slot| slot.flying.load(Ordering::Relaxed).into())
    }

    /// In a child, before `Allocator::end_in_child`: whether another thread of the parent was in a flight at the fork.
    pub(crate) fn others_fly(&self, slot: *const ThreadSlot) -> bool {
        // Relaxed: one thread.
        self.forks.flights.load(Ordering::Relaxed) > Self::is_flying(slot)
    }
}
