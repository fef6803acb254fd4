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

use crate::blocks::class::{self, FIRST_PAGED};
use crate::blocks::{Blocks, record};
use crate::pages::chunk::Chunk;
use crate::pages::layout;
use crate::pages::notes::FRESH_CHUNKS;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// So many slabs of its class a heap must hold, all full, before the next one is populated.
pub const PROVEN: u32 = 32;

const _: () = assert!(class::SIZE[FIRST_PAGED - 1] < 4096, "each OS page of a slab must have the start of a block");

/// Whether OS pages behind the blocks that were carved may hold memory: the slab was populated, or made of memory that
/// was used before.
///
/// # Safety
/// The slab must be the caller's heap's.
#[inline]
pub(crate) unsafe fn is_left_behind(c: *const Chunk) -> bool {
    // SAFETY: the slab is the caller's.
    unsafe { !(*c).zeroed && (*c).carved < class::capacity(usize::from((*c).class)) }
}

impl<O: Os> Blocks<O> {
    /// Counts the new slab of `heap`, which has no slab of the class with free blocks but this one, and populates it if
    /// that pays. `clean`: it reads as zero.
    ///
    /// # Safety
    /// The heap and the slab must be the caller's, and nothing of it carved.
    #[inline]
    pub(crate) unsafe fn count_slab(&self, heap: *mut Heap, c: *mut Chunk, clean: bool) {
        // SAFETY: as the caller promises.
        unsafe {
            let class = usize::from((*c).class);
            if class < FIRST_PAGED {
                let count = &mut (*heap).slabs[class];
                *count += 1;
                if *count > PROVEN && clean {
                    self.populate_slab(heap, c);
                }
            }
        }
    }

    /// A slab is no more.
    ///
    /// # Safety
    /// The slab must be the caller's, as its owner's is.
    #[inline]
    pub(crate) unsafe fn uncount_slab(c: *const Chunk) {
        // SAFETY: as the caller promises.
        unsafe {
            let class = usize::from((*c).class);
            if class < FIRST_PAGED {
                (*record::owner(c)).slabs[class] -= 1;
            }
        }
    }

    #[cold]
    unsafe fn populate_slab(&self, heap: *mut Heap, c: *mut Chunk) {
        // What may be taken until somebody looks at the limit again. 0: nobody did so far. Relaxed: a guess.
        let room = self.notes.room.load(Ordering::Relaxed) / CHUNK >= FRESH_CHUNKS;
        // SAFETY: as the caller promises.
        unsafe {
            if room
                && self.page_size() < CHUNK
                && Heap::is_cached(heap)
                && !Self::is_hardened(c)
                && self.os.populate(layout::chunk(c), CHUNK)
            {
                // Blocks that were never carved still read as zero, but only calloc past a cache would ask.
                (*c).zeroed = false;
            }
        }
    }
}
