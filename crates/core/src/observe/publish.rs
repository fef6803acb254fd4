//! Figures: computes for observers how much memory is where.
//!
//! Nothing is counted on the fast paths of malloc and free. Each heap counts what moves between its caches and slabs
//! (`blocks/flow.rs`, plain stores by its owner). The ranges count what their chunks hold (`pages/held.rs`, under their
//! lock). [`Observed::figures`] adds these up: some 100 ns for each heap, whatever the number of chunks.
//!
//! The purger publishes at each tick. If there is no helper, or one with long ticks, slow paths publish when the chunks
//! in use have changed by a megabyte (`Held::news`), but not before a program has had 8 MiB.
//!
//! Equation: `blocks that left slabs - blocks that came back == live + cached`, over all heaps.

use crate::blocks::flow::Flow;
use crate::observe::Observed;
use crate::pages::held::STEP;
use crate::pages::notes::{GROWN, SHRUNK};
use crate::system::figures::{Figures, Totals};
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Sums over all heaps.
#[derive(Default)]
struct Sums {
    blocks: u64,
    bytes: u64,
    cached_blocks: u64,
    cached: u64,
    cleared: u64,
    skipped: u64,
    large: u64,
    cached_large_blocks: u64,
    cached_large: u64,
}

impl Sums {
    /// Adds the counts of one heap.
    fn add(&mut self, flow: &Flow) {
        for (sum, number) in [
            (&mut self.blocks, &flow.blocks),
            (&mut self.bytes, &flow.bytes),
            (&mut self.cleared, &flow.cleared),
            (&mut self.skipped, &flow.skipped),
            (&mut self.large, &flow.large),
        ] {
            *sum = sum.wrapping_add(number.load(Ordering::Relaxed));
        }
    }
}

/// Returns `sum`, or 0 if it looks negative: its terms were read one after the other while they changed.
fn at_least_0(sum: u64) -> u64 {
    sum.cast_signed().max(0).cast_unsigned()
}

impl<O: Os> Observed<O> {
    /// Returns how much memory is where, now. Exact if no other thread runs; otherwise, memory that moves meanwhile may
    /// be counted at one place, at both or at none.
    #[cold]
    pub fn figures(&self) -> Figures {
        self.drain();
        let reentrant_blocks = &self.reentrant_blocks;
        // Relaxed: each number stands for itself.
        let [reentrant_slabs, reentrant_large, reentrant_large_bytes] =
            [&reentrant_blocks.slab_count, &reentrant_blocks.large_blocks, &reentrant_blocks.large_bytes]
                .map(|n| n.load(Ordering::Relaxed));
        let sums = self.sum_heaps();
        let huge_blocks = self.huge.count();
        let huge = self.huge_bytes.load(Ordering::Relaxed);
        let mut f = self.ranges.with(&self.os, |r| {
            let chunks = |n: usize| (n * CHUNK) as u64;
            Figures {
                dirty: chunks(r.waiting()),
                lazy: chunks((r.free_chunks[1] + r.dropped_chunks).saturating_sub(r.waiting())),
                clean: chunks(r.free_chunks[0]),
                slabs: chunks(r.held.slabs + reentrant_slabs),
                peak: chunks(r.peak_chunks.max(r.footprint())),
                held: chunks(r.demand.keep()),
                large_blocks: (r.held.large_blocks + reentrant_large) as u64,
                large: at_least_0(
                    (r.held.large_bytes.wrapping_add(reentrant_large_bytes) as u64).wrapping_add(sums.large),
                ),
                ..Figures::default()
            }
        });
        f.clock = self.os.clock();
        (f.ticks, f.purger) = (self.purger.ticks(), self.os.helper().who() as u32);
        // The heaps were read one after the other: no more can be cached than has left slabs.
        let (blocks, bytes) = (at_least_0(sums.blocks), at_least_0(sums.bytes));
        f.cached_blocks = sums.cached_blocks.min(blocks);
        f.cached = sums.cached.min(bytes);
        f.large_blocks = f.large_blocks.saturating_sub(sums.cached_large_blocks);
        (f.huge_blocks, f.huge) = (huge_blocks as u64, huge as u64);
        f.live_blocks = blocks - f.cached_blocks + f.large_blocks + f.huge_blocks;
        f.live = bytes - f.cached + f.large + f.huge;
        f.slab_free = f.slabs.saturating_sub(bytes);
        f.cached_blocks += sums.cached_large_blocks;
        f.cached += sums.cached_large;
        f.heaps = self.heaps.load(Ordering::Relaxed) as u64;
        f.totals = self.totals_since_fork(&sums);
        f.memory_limit = self.purger.limit.load(Ordering::Relaxed);
        f.memory_used = self.purger.used.load(Ordering::Relaxed);
        f
    }

    /// Adds up the counts of all heaps.
    fn sum_heaps(&self) -> Sums {
        let mut sums = Sums::default();
        // Heaps are never unmapped; the numbers are atomics, the caches approximate.
        for heap in self.all_heaps() {
            let (blocks, bytes) = heap.cached_now();
            sums.cached_blocks += blocks;
            sums.cached += bytes;
            let (blocks, bytes) = heap.large.holds_roughly();
            sums.cached_large_blocks += blocks;
            sums.cached_large += bytes;
            sums.add(&heap.flow);
        }
        sums.add(&self.stray);
        sums
    }

    /// Returns the totals since the process started, or since the first of its parents did.
    fn totals(&self, sums: &Sums) -> Totals {
        let skipped_large = self.ranges.with(&self.os, |r| r.held.skipped);
        Totals {
            purged: self.notes.purged.load(Ordering::Relaxed),
            cleared: self.habits.cleared.load(Ordering::Relaxed).wrapping_add(sums.cleared),
            skipped: self.habits.skipped.load(Ordering::Relaxed).wrapping_add(sums.skipped).wrapping_add(skipped_large),
        }
    }

    /// Returns the totals since the last fork that made this process.
    fn totals_since_fork(&self, sums: &Sums) -> Totals {
        let t = self.totals(sums);
        let base = |i: usize| self.publisher.base[i].load(Ordering::Relaxed);
        Totals {
            purged: t.purged.wrapping_sub(base(0)),
            cleared: t.cleared.wrapping_sub(base(1)),
            skipped: t.skipped.wrapping_sub(base(2)),
        }
    }

    /// In the child of a fork: totals begin at 0, and what is there counts as news.
    pub(crate) fn forget_totals(&self) {
        let mut sums = Sums::default();
        // Without the caches, which are more to read: this is part of each fork.
        self.all_heaps().for_each(|heap| sums.add(&heap.flow));
        sums.add(&self.stray);
        let t = self.totals(&sums);
        for (base, total) in self.publisher.base.iter().zip([t.purged, t.cleared, t.skipped]) {
            base.store(total, Ordering::Relaxed);
        }
        self.ranges.with(&self.os, |r| r.held.forget_news());
    }

    /// Publishes the figures.
    pub fn publish(&self) {
        let f = self.figures();
        self.ranges.with(&self.os, |r| {
            r.held.seen = r.taken_chunks();
            r.held.step = STEP.max(f.heaps as usize);
        });
        self.os.publish(&f);
    }

    /// Publishes the figures if changes were noted while locks were held.
    pub(crate) fn publish_news(&self) {
        let news = self.notes.take(GROWN | SHRUNK);
        // If not allowed now, the next change notes it again.
        if news & GROWN != 0 || (news != 0 && self.publisher.may_shrink(self.os.clock())) {
            self.publish();
        }
    }
}
