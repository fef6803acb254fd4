//! The page map: from any address to the size class of the slab that holds it, in one load.
//!
//! One byte for each chunk of the 47-bit user address space, reserved as zeros that cost nothing until an arena
//! commits its part. The byte is the size class of the slab in that chunk, or 0. As foreign addresses read 0 as
//! well, `free` needs no range check before it looks.
//!
//! Where the reservation is refused (a limit on address space), the mask is 0: every address then reads
//! the one byte of chunk 0, which is always 0, and `free` takes its slow path, which asks the arena instead.

use crate::{CHUNK_SHIFT, Os};
use core::cell::UnsafeCell;

/// Bits of a user address on the processors that neap knows; Miri needs fewer.
pub const ADDRESS_BITS: u32 = if cfg!(miri) { 40 } else { 47 };
/// Bytes of the reservation: one for each chunk.
pub const MAP_BYTES: usize = 1 << (ADDRESS_BITS - CHUNK_SHIFT);

/// The page map. Invariant 14: `class(p) != 0` exactly if `p` lies in a slab of that class, or `mask == 0`.
#[derive(Debug)]
pub struct PageMap {
    base: UnsafeCell<*mut u8>,
    mask: UnsafeCell<usize>,
}

/// What the map points to before it is set up and where it is refused: the byte of chunk 0.
static NOTHING: u8 = 0;

// SAFETY: written by `set_up`, before any thread can have a block (see there), and by `give_back`, while no other thread
// uses it: no atomics, so that the compiler may fold the loads into the instructions that use them.
unsafe impl Sync for PageMap {}

impl Default for PageMap {
    fn default() -> Self {
        Self::new()
    }
}

impl PageMap {
    /// A map in which every address reads 0.
    pub const fn new() -> Self {
        PageMap { base: UnsafeCell::new((&raw const NOTHING).cast_mut()), mask: UnsafeCell::new(0) }
    }

    /// Reserves the map. Without it everything works, through slower paths. Called once, under the lock of the
    /// registry; a thread that has a block to free took that lock, or got the block from one that did. A thread that frees
    /// NULL or a foreign pointer first comes behind it as well: the C library allocates when it makes the process's first
    /// thread.
    pub fn set_up<O: Os>(&self, os: &O) {
        if let Some(base) = os.reserve_zeros(MAP_BYTES) {
            // SAFETY: called once, before anybody has a block.
            unsafe {
                self.base.get().write_volatile(base);
                self.mask.get().write_volatile(MAP_BYTES - 1);
            }
        }
    }

    /// Gives the map back: from now on every address reads 0. One OS page stays, with the byte of chunk 0.
    ///
    /// # Safety
    /// No other thread may use the map meanwhile, nor this one in a call that was interrupted.
    pub(crate) unsafe fn give_back<O: Os>(&self, os: &O) {
        if !self.is_complete() {
            return;
        }
        // SAFETY: as the caller promises; what is unmapped is read no more, as the mask is 0.
        unsafe {
            self.mask.get().write_volatile(0);
            let page = os.page_size();
            os.unreserve((*self.base.get()).add(page), MAP_BYTES - page);
        }
    }

    /// The class of the slab at `p`, or 0. Any address may be asked for.
    #[inline(always)]
    pub fn class(&self, p: *const u8) -> usize {
        // SAFETY: see `set_up` for why nobody writes meanwhile. The masked index lies inside the reservation.
        unsafe {
            let index = (p.addr() >> CHUNK_SHIFT) & *self.mask.get();
            usize::from((*self.base.get()).add(index).read())
        }
    }

    /// Whether the map could be reserved.
    pub fn is_complete(&self) -> bool {
        // SAFETY: as `class`.
        unsafe { *self.mask.get() != 0 }
    }

    /// Where the entry of a chunk lies, by the chunk's number; `None` where the map was refused.
    pub(crate) fn entry(&self, chunk: usize) -> Option<*mut u8> {
        // SAFETY: as `class`; the masked index lies inside the reservation.
        self.is_complete().then(|| unsafe { (*self.base.get()).add(chunk & *self.mask.get()) })
    }

    /// Makes the entries `from..to` (indexes, multiples of the OS page size) writable.
    ///
    /// # Safety
    /// The entries must lie below [`MAP_BYTES`], and the chunks be an arena's.
    pub unsafe fn commit<O: Os>(&self, os: &O, from: usize, to: usize) -> bool {
        // SAFETY: both ends lie inside the reservation.
        !self.is_complete() || unsafe { os.commit((*self.base.get()).add(from), to - from) }
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
            unsafe { (*self.base.get()).add(p.addr() >> CHUNK_SHIFT).write(class as u8) }
        }
    }
}
