//! Trimming: gives all free memory back now, on request. It empties the caches of all threads and gives back holes and
//! free ranges as the purger does, in the purger's batches, so that no other thread waits longer than one batch takes.
//! Unlike the purger it asks the system how much memory was held.

use crate::back::Back;
use crate::back::batch::{BATCH_BYTES, Due, Walk, Work};
use crate::back::measure::Held;
use crate::blocks::heap::Mine;
use crate::blocks::registry::OWNED;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// Result of a trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Address space given back.
    pub bytes: usize,
    /// How much of it held memory (resident or swapped out); all of it if the system cannot say.
    pub held: usize,
    /// Whether it ran to the end.
    pub complete: bool,
}

/// A trim in progress.
struct Trim<'a, O: Os, F> {
    a: &'a Back<O>,
    /// The heap that the call uses, or [`Mine::none`].
    mine: Mine<'a>,
    go_on: F,
    done: Trimmed,
}

impl<O: Os> Back<O> {
    /// Gives free memory back to the system until `keep` bytes are left in free ranges, or until `go_on`, which is
    /// called after each heap and each batch, returns false. Called under no lock, by a thread in a call that uses its
    /// heap `mine`, or [`Mine::none`].
    pub(crate) fn trim_all(&self, mine: Mine<'_>, keep: usize, go_on: impl FnMut() -> bool) -> Trimmed {
        self.drain();
        let mut trim = Trim { a: self, mine, go_on, done: Trimmed::default() };
        trim.done.complete = trim.caches() && trim.chunks(keep);
        if trim.done.complete {
            self.with_batch(|work| {
                self.purge_tables();
                self.retract();
                trim.done.bytes += self.purge_reentrant(work, Some(&mut trim.done.held));
            });
        }
        trim.done
    }
}

impl<O: Os, F: FnMut() -> bool> Trim<'_, O, F> {
    /// Empties the caches of all heaps that a handshake gets, then collects what other threads freed into each. False
    /// if it was cut short.
    fn caches(&mut self) -> bool {
        let complete = self.empty_heaps(|heap| heap.look().1) && self.empty_heaps(|heap| !heap.pending.is_empty());
        self.a.collect_common();
        complete
    }

    /// Empties those heaps for which `which` is true and which a handshake gets. False if it was cut short.
    fn empty_heaps(&mut self, which: impl Fn(&Heap) -> bool) -> bool {
        let a = self.a;
        for heap in a.all_heaps() {
            if heap.state.load(Ordering::Relaxed) == OWNED && which(heap) {
                a.with_batch(|_| a.handshake(self.mine, &mut [Some(heap)], |heap| a.empty_heap(heap)));
            }
            if !(self.go_on)() {
                return false;
            }
        }
        true
    }

    /// Gives back what waits in free ranges, but for `keep` bytes, and in holes. False if it was cut short.
    fn chunks(&mut self, keep: usize) -> bool {
        if keep == 0 {
            return self.pass(0, true, true);
        }
        self.pass(keep, true, false) && self.pass(0, false, true)
    }

    /// Goes through all chunks once, for free ranges, slabs with holes, or both. False if it was cut short.
    fn pass(&mut self, keep: usize, ranges: bool, slabs: bool) -> bool {
        let mut walk = Walk::new();
        loop {
            let a = self.a;
            if !a.with_batch(|work| self.send_some(work, &mut walk, keep, ranges, slabs)) {
                return true;
            }
            if !(self.go_on)() {
                return false;
            }
        }
    }

    /// Gives a batch back, from the position of `walk` on. Returns true if there are more chunks to look at.
    fn send_some(&mut self, work: &mut Work, walk: &mut Walk, keep: usize, ranges: bool, slabs: bool) -> bool {
        let a = self.a;
        let bytes = a.ranges.with(&a.os, |r| (r.free_chunks[1] + r.dropped_chunks) * CHUNK);
        let spare = bytes.saturating_sub(keep) / CHUNK * CHUNK;
        if ranges && !slabs && spare == 0 {
            return false;
        }
        let bytes = if slabs { BATCH_BYTES } else { spare.min(BATCH_BYTES) };
        let due = Due { lazy: true, slabs, ranges, bytes, ..a.due(0, BATCH_BYTES) };
        let more = a.fill(walk, due, &mut work.batch);
        if work.batch.count > 0 {
            let Work { batch, touched, .. } = work;
            self.done.bytes += a.send(batch, true, Some(Held { bytes: &mut self.done.held, room: touched }));
        }
        if work.batch.slab_count > 0 {
            self.done.bytes += a.punch(self.mine, work, Some(&mut self.done.held));
        }
        more
    }
}
