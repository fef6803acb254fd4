//! A new slab gets all its memory at once where a heap keeps growing in its class.
//!
//! Slabs are carved OS page by OS page, so that a program pays for no page that it does not need. A program that fills
//! slab after slab needs all of each, and would pay a page fault for each page; and as it uses many classes in turn, the
//! pages of a slab would lie all over the machine's memory, which fork and whatever else walks page tables pays for. So once a
//! heap holds [`PROVEN`] slabs of a class, all full, the next one is populated whole ([`Os::populate`]) when it is made.
//!
//! Equation: of a class, a heap populates at most one slab ahead of its need, while it holds [`PROVEN`] or more that
//! are full: so no more than a part in `PROVEN` of what it holds. The OS pages that were not needed after all are holes like
//! others (`holes.rs`), as the slab does not call what was never carved clean; when blocks come back to other slabs of
//! the class, the program goes on in those, and the purger is told of what was left behind (`is_left_behind`).
//!
//! Not where memory is short or nobody has looked yet how much there is (`pressure.rs`); not for blocks of which a
//! program may leave whole OS pages alone.

use crate::blocks::Blocks;
use crate::blocks::class::{self, FIRST_PAGED};
use crate::blocks::heap::Mine;
use crate::blocks::slab_record::{self, OwnSlab};
use crate::pages::notes::FRESH_CHUNKS;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// So many slabs of its class a heap must hold, all full, before the next one is populated.
pub const PROVEN: u32 = 32;

const _: () = assert!(class::SIZE[FIRST_PAGED - 1] < 4096, "each OS page of a slab must have the start of a block");

/// Whether OS pages behind the blocks that were carved may hold memory: the slab was populated, or made of memory that
/// was used before.
#[inline]
pub(crate) fn is_left_behind(slab: OwnSlab) -> bool {
    !slab.is_zeroed() && slab.carved() < class::capacity(slab.class())
}

/// A slab of the heap is no more.
#[inline]
pub(crate) fn uncount_slab(heap: Mine<'_>, slab: OwnSlab) {
    if let Some(count) = heap.slabs.get(slab.class()) {
        count.set(count.get() - 1);
    }
}

impl<O: Os> Blocks<O> {
    /// Counts the new slab of `heap`, of which nothing is carved, and which is its only one of the class with free blocks;
    /// populates it if that pays. `clean`: it reads as zero.
    #[inline]
    pub(crate) fn count_slab(&self, heap: Mine<'_>, slab: OwnSlab, clean: bool) {
        if let Some(count) = heap.slabs.get(slab.class()) {
            count.set(count.get() + 1);
            if count.get() > PROVEN && clean {
                self.populate_slab(heap, slab);
            }
        }
    }

    #[cold]
    fn populate_slab(&self, heap: Mine<'_>, slab: OwnSlab) {
        // What may be taken until the limit is looked at again. 0: it was not so far. Relaxed: a guess.
        let room = self.notes.room.load(Ordering::Relaxed) / CHUNK >= FRESH_CHUNKS;
        let may = room && self.page_size() < CHUNK && heap.is_cached() && !slab_record::is_hardened(slab.chunk());
        // SAFETY: the chunk is committed, and the slab's owner's.
        if may && unsafe { self.os.populate(slab.chunk().start(), CHUNK) } {
            // Blocks that were never carved still read as zero, but only calloc past a cache would ask.
            slab.set_zeroed(false);
        }
    }
}
