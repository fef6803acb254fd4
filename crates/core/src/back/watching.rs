//! All heaps are told what they shall show (`blocks/watching.rs`): those of other threads by visits.

use crate::back::Back;
use crate::blocks::registry::OWNED;
use crate::system::sync::Ordering;
use crate::{Heap, Os};

/// Rounds of visits to heaps whose threads are in a call.
const ROUNDS: usize = 3;

impl<O: Os> Back<O> {
    /// Tells all heaps what they shall show. Called under no lock, by a thread whose own heap shows it already.
    pub(crate) fn show_everywhere(&self) {
        let mut rounds = 0;
        while rounds < ROUNDS && self.show_all() {
            rounds += 1;
        }
    }

    /// Visits the heaps of threads that do not show what they shall; whether one of them still does not.
    fn show_all(&self) -> bool {
        let mut late = false;
        for heap in self.all_heaps() {
            // What a heap shows is read as a guess.
            let shown = || heap.watch_roughly(self.watch()) == self.watch();
            let has_slot = !heap.slot.load(Ordering::Relaxed).is_null();
            if has_slot && heap.state.load(Ordering::Relaxed) == OWNED && !shown() {
                self.with_batch(|_| self.visit(Heap::none(), &mut [Some(heap)], |heap| self.show(heap)));
                late |= !shown();
            }
        }
        late
    }
}
