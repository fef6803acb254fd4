//! The page map: from any address to the size class of the slab that holds it, in one load.
//!
//! One byte for each chunk of the 47-bit user address space, reserved as zeros that cost nothing until an arena
//! commits its part. The byte is the size class of the slab in that chunk, or 0. As foreign addresses read 0 as
//! well, `free` needs no range check before it looks.
//!
//! Where the reservation is refused (a limit on address space), [`PageMap::mask`] is 0: every address then reads
//! the one byte of chunk 0, which is always 0, and `free` takes its slow path, which asks the arena instead.

use crate::{CHUNK_SHIFT, Os};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// Bits of a user address on the processors that neap knows.
pub const ADDRESS_BITS: u32 = 47;
/// Bytes of the reservation: one for each chunk.
pub const MAP_BYTES: usize = 1 << (ADDRESS_BITS - CHUNK_SHIFT);

/// The page map. Invariant: `class(p) != 0` exactly if `p` lies in a slab of that class, or `mask == 0`.
#[derive(Debug)]
pub struct PageMap {
    base: AtomicPtr<u8>,
    mask: AtomicUsize,
}

/// What the map points to before it is set up and where it is refused: the byte of chunk 0.
static NOTHING: u8 = 0;

impl Default for PageMap {
    fn default() -> Self {
        Self::new()
    }
}

impl PageMap {
    /// A map in which every address reads 0.
    pub const fn new() -> Self {
        PageMap { base: AtomicPtr::new((&raw const NOTHING).cast_mut()), mask: AtomicUsize::new(0) }
    }

    /// Reserves the map. Without it everything works, through slower paths. Called once, under the lock of the
    /// registry; a thread that has a block to free took that lock, or got the block from one that did.
    pub fn set_up<O: Os>(&self, os: &O) {
        if let Some(base) = os.reserve_zeros(MAP_BYTES) {
            self.base.store(base, Ordering::Release);
            self.mask.store(MAP_BYTES - 1, Ordering::Release);
        }
    }

    /// The class of the slab at `p`, or 0. Any address may be asked for.
    #[inline(always)]
    pub fn class(&self, p: *const u8) -> usize {
        // Relaxed: see `set_up` for why this thread sees the map.
        let index = (p.addr() >> CHUNK_SHIFT) & self.mask.load(Ordering::Relaxed);
        // SAFETY: the masked index lies inside the reservation.
        unsafe { usize::from(self.base.load(Ordering::Relaxed).add(index).read()) }
    }

    /// Whether the map could be reserved.
    pub fn is_complete(&self) -> bool {
        self.mask.load(Ordering::Relaxed) != 0
    }

    /// Makes the entries `from..to` (indexes, multiples of the OS page size) writable.
    ///
    /// # Safety
    /// The entries must lie below [`MAP_BYTES`], and the chunks be an arena's.
    pub unsafe fn commit<O: Os>(&self, os: &O, from: usize, to: usize) -> bool {
        // SAFETY: both ends lie inside the reservation.
        !self.is_complete() || unsafe { os.commit(self.base.load(Ordering::Relaxed).add(from), to - from) }
    }

    /// Records that the chunk at `p` is a slab of `class`, or no slab (0).
    ///
    /// # Safety
    /// The chunk must be committed here and owned by the caller.
    #[inline]
    pub unsafe fn set(&self, p: *const u8, class: usize) {
        if self.is_complete() {
            // SAFETY: the entry is committed and nobody else writes it. Readers of this chunk's blocks got their
            // pointers after this write, through a channel that orders it.
            unsafe { self.base.load(Ordering::Relaxed).add(p.addr() >> CHUNK_SHIFT).write(class as u8) }
        }
    }
}
