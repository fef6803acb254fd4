//! Growth: gives a new slab all its memory at once if its heap keeps growing in its class.
//!
//! Slabs are carved OS page by OS page, so that a program pays for no OS page that it does not need. A program that
//! fills slab after slab needs all of each, and would pay a page fault for each OS page. Because it uses many classes
//! in turn, the OS pages of a slab would also be scattered over the machine's memory, which makes every walk of the
//! page tables slower, including fork's. So once a heap holds [`PROVEN`] slabs of a class, all full, the next one is
//! populated whole ([`Os::populate`]) when it is made.
//!
//! Bound: in each class, a heap populates at most one slab ahead of its need, while it holds [`PROVEN`] or more full
//! ones. So it wastes at most one part in `PROVEN` of what it holds. OS pages that turn out not to be needed are holes
//! like others (`holes.rs`), because the uncarved part of a populated slab does not count as clean. If blocks come back
//! to other slabs of the class, the program goes on in those, and the slab is noted for the purger
//! (`has_uncarved_memory`).
//!
//! No slab is populated if memory is short, if the memory limit was not read yet (`pressure.rs`), or if its blocks are
//! so long that a program may leave whole OS pages of them untouched.

use crate::blocks::Blocks;
use crate::blocks::class::{self, FIRST_PAGED};
use crate::blocks::heap::Mine;
use crate::blocks::slab_record::{self, OwnSlab};
use crate::pages::growth::AREA;
use crate::pages::huge_area::LEAST_IN_SLABS;
use crate::pages::notes::FRESH_CHUNKS;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Number of slabs of a class that a heap must hold, all full, before it populates the next one.
pub const PROVEN: u32 = if cfg!(neap_sim) { 2 } else { 32 };

const _: () = assert!(class::SIZE[FIRST_PAGED - 1] < 4096, "each OS page of a slab must have the start of a block");

/// Whether OS pages after the carved blocks may hold memory: the slab was populated, or made of memory that was used
/// before.
#[inline]
pub(crate) fn has_uncarved_memory(slab: OwnSlab) -> bool {
    !slab.is_zeroed() && slab.carved() < class::capacity(slab.class())
}

/// Subtracts a slab that is about to be released from the count of its heap.
#[inline]
pub(crate) fn uncount_slab(heap: Mine<'_>, slab: OwnSlab) {
    let count = &heap.slabs[slab.class()];
    count.set(count.get() - 1);
}

impl Mine<'_> {
    /// Whether the heap, all of whose slabs of the class are full, is about to have more than [`PROVEN`] of them, and
    /// each OS page of a slab has the start of a block.
    #[inline]
    fn is_proven(self, class: usize) -> bool {
        class < FIRST_PAGED && self.slabs[class].get() >= PROVEN
    }

    /// Whether the heap holds enough slabs to get a huge area for one more. Threads that hold little each, in
    /// slabs of many classes, get none. Nor do heaps without caches: the common heap is used under the lock of the
    /// registry, for which forks and new threads wait.
    pub(crate) fn holds_many(self) -> bool {
        self.is_cached() && self.slabs.iter().map(|count| count.get() as usize).sum::<usize>() >= LEAST_IN_SLABS * AREA
    }
}

impl<O: Os> Blocks<O> {
    /// Counts the new slab of `heap`, which has no carved block and is the heap's only slab of the class with free
    /// blocks. Populates it if that pays. `clean`: it reads as zero.
    #[inline]
    pub(crate) fn count_slab(&self, heap: Mine<'_>, slab: OwnSlab, clean: bool) {
        if clean && heap.is_proven(slab.class()) {
            self.populate_slab(heap, slab);
        }
        let count = &heap.slabs[slab.class()];
        count.set(count.get() + 1);
    }

    #[cold]
    fn populate_slab(&self, heap: Mine<'_>, slab: OwnSlab) {
        // `room`: what was left below the limit when it was last read; 0: it was not read yet. Relaxed: approximate.
        let room = self.notes.room.load(Ordering::Relaxed) / CHUNK >= FRESH_CHUNKS;
        let may = room && self.page_size() < CHUNK && heap.is_cached() && !slab_record::is_hardened(slab.chunk());
        let bytes = slab.bytes();
        // SAFETY: the memory is the holder's.
        if may && unsafe { self.os.populate(bytes.start(), bytes.len()) } {
            // Uncarved blocks still read as zero, but only a calloc past the cache would make use of that.
            slab.set_zeroed(false);
        }
    }
}
