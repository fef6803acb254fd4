//! The common heap: slabs that the threads of a process with many threads share for their first blocks of each class.
//!
//! A slab of its own costs a thread an OS page, and side tables, for each class of which it needs a block. A process of
//! thousands of threads would hold more OS pages for such slabs than for blocks, and fork would copy their page tables.
//! So where more than [`CROWD`] threads have heaps, the first two refills of a class in a heap without a slab of the
//! class take a few blocks (`Mine::share`) of the common heap's slabs. Only a thread that needs more of the class
//! takes a slab of its own.
//!
//! The lock of the registry takes the place of an owner, as for an orphan (invariant 18). To the threads these blocks
//! are like those of any other heap's slabs: they may be in each cache, and come back by remote frees. These leave a
//! note (`SHARED`), so that a slow path collects all that it freed at once: a thread that ends has blocks of many of
//! these slabs. No thread of a crowd touches a block under the lock: where that faults, the program may have to act
//! first (userfaultfd). Nor is a huge area filled for them, which may take long. No thread waits for the lock to get
//! one: it takes a slab of its own instead. Once few threads are left, they take what is free there as they take it
//! from orphans (`Blocks::take_from_orphans`).

use crate::Os;
use crate::blocks::free_block::Free;
use crate::blocks::heap::{Mine, first, most};
use crate::blocks::registry::{COMMON, Registry};
use crate::blocks::slab::Taken;
use crate::blocks::{Blocks, class, misuse};
use crate::pages::notes::SHARED;
use crate::system::sync::Ordering;

/// Maximum number of threads that take slabs of their own for their first blocks.
pub const CROWD: usize = if cfg!(neap_sim) { 2 } else { 64 };
/// Bytes that the first refills of a class take of the common heap, but each takes one block at least. If the first took
/// fewer, threads would share lines of the processors' caches.
const SHARES: [usize; 2] = [256, 1024];
/// Maximum number of blocks that a refill takes of the common heap.
const MOST: usize = 32;

/// Blocks that were taken out of the common heap's slabs, and not touched yet; each with true if its OS pages were
/// purged since it was last used.
struct Share {
    blocks: [Option<(Free, bool)>; MOST],
    /// Whether the last of them is known to read as zero.
    zero: bool,
}

impl Mine<'_> {
    /// Returns the number of blocks that a refill of `class` may take of the common heap. 0 if few threads have heaps, if
    /// this heap has a slab of the class, and after the first refills; each doubles the cache, so its size shows their
    /// number. Blocks as long as an OS page would gain nothing.
    fn share<O: Os>(self, a: &Blocks<O>, class: usize) -> usize {
        let size = class::SIZE[class] as usize;
        if !a.is_crowded() || size >= a.page_size() || self.slabs[class].get() != 0 || a.policy.harden() {
            return 0;
        }
        if !self.is_cached() {
            // A heap that is borrowed for a call has no slot. Others without caches take each block this way.
            return self.slot.load(Ordering::Relaxed).is_null().into();
        }
        let cap = self.cap(class);
        if cap == 0 || cap == most(class) {
            return 0;
        }
        let refills = (cap / first(class)).ilog2() as usize;
        SHARES.get(refills).map_or(0, |bytes| (bytes / size).clamp(1, MOST))
    }

    /// Takes blocks of the common heap's slabs for a refill of `class`. False if it has to take others.
    #[inline(never)]
    pub(crate) fn take_common<O: Os>(self, a: &Blocks<O>, class: usize, taken: &mut Taken) -> bool {
        let Some(share) = a.take_share(self.share(a, class), class) else { return false };
        for (block, was_purged) in share.blocks.into_iter().flatten() {
            if was_purged && block.tag_behind_write() != 0 {
                misuse::written(a, block.start(), class);
            }
            taken.push(block);
        }
        true
    }

    /// [`Mine::take_common`] of one block, past the cache; true if it is known to read as zero. Counts as a refill.
    #[inline(never)]
    pub(crate) fn take_one_common<O: Os>(self, a: &Blocks<O>, class: usize) -> Option<(Free, bool)> {
        let share = a.take_share(self.share(a, class).min(1), class)?;
        self.grow_cap(a, class);
        let (block, _) = share.blocks[0]?;
        self.flow.take(class, 1);
        Some((block, share.zero))
    }
}

impl<O: Os> Blocks<O> {
    /// Whether more than [`CROWD`] threads have heaps; a hint.
    pub(crate) fn is_crowded(&self) -> bool {
        // Relaxed, twice: a hint. Saturating: other threads may make heaps and abandon them between the two loads.
        let heaps = self.heaps.load(Ordering::Relaxed);
        heaps.saturating_sub(self.orphans.load(Ordering::Relaxed)) > CROWD
    }

    /// Takes up to `n` blocks of `class` out of the common heap's slabs. `None` if another thread holds the lock, or if
    /// there is no memory.
    fn take_share(&self, n: usize, class: usize) -> Option<Share> {
        if n == 0 {
            return None;
        }
        let mut share = Share { blocks: [None; MOST], zero: false };
        self.registry.try_with(&self.os, |r| {
            let common = self.common_heap(r)?;
            if !common.pending.is_empty() && !self.is_stranded() {
                common.collect(self);
            }
            for place in &mut share.blocks[..n] {
                // In a stranded process another thread may have left the heap half changed.
                let taken = (!self.is_stranded()).then(|| common.take_untouched(self, class)).flatten();
                let Some((block, zero, pages)) = taken else { break };
                (*place, share.zero) = (Some((block, pages > 0)), zero);
            }
            share.blocks[0].map(|_| ())
        })??;
        Some(share)
    }

    /// Collects what was freed into the common heap since this was last done. The caller holds no lock but the batch
    /// lock.
    pub(crate) fn collect_common(&self) {
        if self.notes.has(SHARED) {
            self.registry.with(&self.os, |r| {
                // Under the lock, which a fork takes: the child must not lose the note.
                let noted = self.notes.take(SHARED) != 0;
                // In a stranded process another thread may have left the heap half changed.
                if let Some(common) = r.common().filter(|_| noted && !self.is_stranded()) {
                    common.collect(self);
                }
            });
        }
    }

    /// [`Blocks::collect_common`], or leaves it to a later slow path if another thread holds the lock.
    pub(crate) fn collect_common_soon(&self) {
        if self.registry.raw().is_free() {
            self.collect_common();
        }
    }

    /// Returns the common heap, which is made when it is needed first; `None` if there is no memory.
    fn common_heap<'r>(&self, r: &'r mut Registry) -> Option<Mine<'r>> {
        if r.common.is_null() {
            let heap = self.new_heap(r)?;
            heap.set_cached(false);
            // Relaxed: no other thread finds the heap before the lock is released.
            heap.state.store(COMMON, Ordering::Relaxed);
            r.common = heap.id();
        }
        r.common()
    }
}
