//! Flights: calls under way that no thread slot tells of. A fork waits for them; while one is under way, none begins, and no
//! batch.

use crate::Os;
use crate::back::Back;
use crate::back::batch::Work;
use crate::back::forks::{Flight, mark};
use crate::blocks::heap::ThreadSlot;
use crate::system::sync::Ordering;

impl<O: Os> Back<O> {
    /// Whether a fork is under way, from its preparation to the handler behind it.
    #[inline]
    pub fn is_forking(&self) -> bool {
        // Acquire: under the batch lock this is seen by a thread that takes it after the fork did.
        self.forks.word.load(Ordering::Acquire) != 0
    }

    /// Begins a call that takes locks or a heap without a thread slot that tells of it. `None` while a fork is under way: the call
    /// is a reentrant one. `slot` is the calling thread's, or null where no handler of it forks.
    #[must_use]
    pub fn fly(&self, slot: *const ThreadSlot) -> Option<Flight<'_>> {
        let flight = self.take_off(slot);
        // SeqCst: see `take_off`.
        (self.forks.word.load(Ordering::SeqCst) == 0).then_some(flight)
    }

    /// [`Back::fly`], also while a fork is under way: for a thread that is in a call, of which its thread slot will not tell
    /// any more.
    #[must_use]
    pub fn take_off(&self, slot: *const ThreadSlot) -> Flight<'_> {
        // SeqCst, here and in `fly`, pairs with the store and load of a fork: it sees the flight, or the flight sees it.
        self.forks.flights.fetch_add(1, Ordering::SeqCst);
        mark(slot, 1);
        Flight { forks: &self.forks, slot }
    }

    /// Runs `f` under the batch lock; does nothing while a fork is under way, and in a stranded child.
    pub(crate) fn with_batch<R: Default>(&self, f: impl FnOnce(&mut Work) -> R) -> R {
        let refused = || self.is_forking() || self.is_stranded();
        self.purger.batch.with(&self.os, |work| if refused() { R::default() } else { f(work) })
    }

    /// How many flights the thread of `slot` is in: 0 or 1.
    pub(crate) fn is_flying(slot: *const ThreadSlot) -> u32 {
        // SAFETY: the calling thread's own thread slot, or null. Relaxed: see `mark`.
        unsafe { slot.as_ref() }.map_or(0, |slot| slot.flying.load(Ordering::Relaxed).into())
    }

    /// In a child, before `Allocator::end_in_child`: whether another thread was in a flight when it was forked.
    pub(crate) fn others_fly(&self, slot: *const ThreadSlot) -> bool {
        // Relaxed: one thread.
        self.forks.flights.load(Ordering::Relaxed) > Self::is_flying(slot)
    }
}
