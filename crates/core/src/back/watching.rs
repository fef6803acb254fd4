//! Watch modes: makes all heaps adopt the current mode (`blocks/watching.rs`), those of other threads by handshakes.

use crate::Os;
use crate::back::Back;
use crate::blocks::heap::Mine;
use crate::blocks::registry::OWNED;
use crate::system::sync::Ordering;

/// Maximum number of rounds of handshakes with heaps whose threads are in a call.
const ROUNDS: usize = 3;

impl<O: Os> Back<O> {
    /// Makes all heaps adopt the watch mode. Called under no lock, by a thread whose own heap has adopted it already.
    pub(crate) fn update_watch_everywhere(&self) {
        let mut rounds = 0;
        while rounds < ROUNDS && self.update_other_watches() {
            rounds += 1;
        }
    }

    /// Makes a handshake with each heap that has another mode. Returns whether one of them still has another mode.
    fn update_other_watches(&self) -> bool {
        let mut any_left = false;
        for heap in self.all_heaps() {
            // Approximate: another thread's heap.
            let is_updated = || heap.watch_roughly(self.watch()) == self.watch();
            let has_slot = !heap.slot.load(Ordering::Relaxed).is_null();
            if has_slot && heap.state.load(Ordering::Relaxed) == OWNED && !is_updated() {
                self.with_batch(|_| self.handshake(Mine::none(), &mut [Some(heap)], |heap| self.update_watch(heap)));
                any_left |= !is_updated();
            }
        }
        any_left
    }
}
