//! All heaps are told what they shall show (`blocks/watching.rs`): those of other threads by visits.

use crate::back::Back;
use crate::blocks::registry::OWNED;
use crate::system::sync::{Ordering, peek};
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
        let mut heap = self.registry.with(&self.os, |r| r.all);
        while !heap.is_null() {
            // SAFETY: heaps are never unmapped, and `next` never changes; what a heap shows is read as a guess.
            unsafe {
                let shown = || peek(&raw const (*heap).watch, self.watch()) == self.watch();
                let seated = !(*heap).seat.load(Ordering::Relaxed).is_null();
                if seated && (*heap).state.load(Ordering::Relaxed) == OWNED && !shown() {
                    let show = |heap| self.show(heap);
                    self.with_batch(|_| self.visit(Heap::none(), &mut [heap], show));
                    late |= !shown();
                }
                heap = (*heap).next;
            }
        }
        late
    }
}
