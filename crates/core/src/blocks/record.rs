//! What the record and the side tables of a slab say: its owner, a bit for each free block, a bit for each block that
//! another thread freed, and its age.

use crate::Heap;
use crate::blocks::class;
use crate::pages::chunk::Chunk;
use crate::pages::layout::{BEFORE_AGES, BEFORE_BITS, BITS_BYTES, FEW_BYTES, FEW_WORDS, RECORD_BYTES, at, entry};
use crate::system::sync::{AtomicU8, AtomicU64};

/// The heap that owns the slab.
///
/// # Safety
/// `c` must be a record; likewise below.
#[inline]
pub unsafe fn owner(c: *const Chunk) -> *mut Heap {
    // SAFETY: as the caller promises.
    unsafe { Chunk::owner(c) }.cast()
}

/// Sets the owner of a new slab, or none when the slab is released.
///
/// # Safety
/// The chunk of `c` must be the caller's.
#[inline]
pub unsafe fn set_owner(c: *mut Chunk, heap: *mut Heap) {
    // SAFETY: as the caller promises.
    unsafe { Chunk::set_owner(c, heap.cast()) }
}

/// The free bits of the slab that `record` describes, used by the owner alone: one for each block.
///
/// # Safety
/// `record` must be that of a slab, and from `layout::record`.
#[inline]
pub unsafe fn free_bits(record: *const Chunk) -> *mut u64 {
    // SAFETY: as the caller promises.
    unsafe { bits_in(record, has_few(record)).0 }
}

/// The remote bits of the slab that `record` describes, likewise.
///
/// # Safety
/// As [`free_bits`].
#[inline]
pub unsafe fn remote_bits(record: *const Chunk) -> *mut AtomicU64 {
    // SAFETY: as the caller promises.
    unsafe { bits_in(record, has_few(record)).1 }
}

/// Whether the slab has few blocks, so that its bits lie in the table of few bits.
#[inline]
pub(crate) unsafe fn has_few(record: *const Chunk) -> bool {
    // SAFETY: the record is readable.
    usize::from(unsafe { (*record).class }) >= class::FIRST_FEW
}

/// The free bits and the remote bits of a slab: its few bits, or those of the other tables.
#[inline]
pub(crate) unsafe fn bits_in(record: *const Chunk, few: bool) -> (*mut u64, *mut AtomicU64) {
    // SAFETY: as the callers promise.
    unsafe {
        if few {
            let bits = entry_of(record, RECORD_BYTES, FEW_BYTES);
            return (at(bits), at(bits + 8 * FEW_WORDS));
        }
        let bits = |before| entry_of(record, before, BITS_BYTES);
        (at(bits(BEFORE_BITS)), at(bits(BEFORE_BITS + BITS_BYTES)))
    }
}

/// The entry of a slab, of `bytes`, in the table that lies behind tables of `before` bytes a chunk.
#[inline]
unsafe fn entry_of(record: *const Chunk, before: usize, bytes: usize) -> usize {
    // SAFETY: the record is readable.
    entry(record, unsafe { (*record).tables }, before, bytes)
}

/// The age of the slab that `record` describes, see [`crate::pages::age`].
///
/// # Safety
/// `record` must be that of a slab.
#[inline]
pub unsafe fn slab_age<'a>(record: *const Chunk) -> &'a AtomicU8 {
    // SAFETY: the record is readable; the table of ages is committed with the arena and never goes.
    unsafe { &*at::<AtomicU8>(entry_of(record, BEFORE_AGES, 1)) }
}

/// Word `word` of the slab's remote bits.
///
/// # Safety
/// `c` must be the record of a slab.
#[inline]
pub unsafe fn remote_word<'a>(c: *const Chunk, word: usize) -> &'a AtomicU64 {
    // SAFETY: the word lies in the slab's remote bits, which live as long as the arena.
    unsafe { &*remote_bits(c).add(word) }
}
