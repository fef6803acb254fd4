//! The page map: looks up the size class of the slab at an address, in one load.
//!
//! One byte for each chunk of the 47-bit user address space, reserved as zeros that cost nothing until an arena commits
//! its part. The byte is the size class of the slab in that chunk, or 0. As foreign addresses read 0 too, `free` needs
//! no range check before the look-up.
//!
//! Where the system refuses the reservation (a limit on address space), the mask is 0: every address then reads the one
//! byte of chunk 0, which is always 0, and `free` takes its slow path, which asks the arenas instead.

use crate::pages::chunk::Record;
use crate::pages::layout::ADDRESS_BITS;
use crate::system::os::Run;
use crate::{CHUNK_SHIFT, Os};
use core::cell::UnsafeCell;
use core::ops::Range;

/// Size of the reservation in bytes: one for each chunk.
pub const MAP_BYTES: usize = 1 << (ADDRESS_BITS - CHUNK_SHIFT);

/// The page map. Invariant 14: `class(p) != 0` exactly if `p` lies in a slab of that class, or `mask == 0`.
#[derive(Debug)]
pub struct PageMap {
    base: UnsafeCell<*mut u8>,
    mask: UnsafeCell<usize>,
}

/// The byte of chunk 0: the whole map before it is set up, and where the reservation is refused.
static NOTHING: u8 = 0;

// SAFETY: `set_up` writes the fields before any thread can have a block (see there), and `give_back` while no other
// thread uses them. They are not atomics, so that the compiler may fold the loads into the instructions that use them.
unsafe impl Sync for PageMap {}

impl PageMap {
    /// A map in which every address reads 0.
    pub const fn new() -> Self {
        PageMap { base: UnsafeCell::new((&raw const NOTHING).cast_mut()), mask: UnsafeCell::new(0) }
    }

    /// Reserves the map. If the system refuses, everything works through slower paths. Called once, under the lock of
    /// the registry. A thread that frees a block took that lock before, or got the block from a thread that did. A
    /// thread whose first call frees NULL or a foreign pointer runs after `set_up` too: the C library allocates when it
    /// makes the first thread of the process.
    pub fn set_up<O: Os>(&self, os: &O) {
        if let Some(base) = os.reserve_zeros(MAP_BYTES) {
            // SAFETY: called once, before any thread has a block.
            unsafe {
                self.base.get().write_volatile(base);
                self.mask.get().write_volatile(MAP_BYTES - 1);
            }
        }
    }

    /// Gives the map back: from then on every address reads 0. One OS page stays, with the byte of chunk 0.
    ///
    /// # Safety
    /// No other thread may use the map meanwhile; nor may this thread be in a handler that interrupted a call which
    /// uses it.
    pub(crate) unsafe fn give_back<O: Os>(&self, os: &O) {
        if !self.is_complete() {
            return;
        }
        // SAFETY: the caller's promise; the unmapped part is no longer read, as the mask is 0.
        unsafe {
            self.mask.get().write_volatile(0);
            let page = os.page_size();
            os.unreserve((*self.base.get()).add(page), MAP_BYTES - page);
        }
    }

    /// The size class of the slab at `p`, or 0. `p` may be any address.
    #[inline(always)]
    pub fn class(&self, p: *const u8) -> usize {
        // SAFETY: no thread writes the fields meanwhile, see `set_up`. The masked index lies inside the reservation.
        unsafe {
            let index = (p.addr() >> CHUNK_SHIFT) & *self.mask.get();
            usize::from((*self.base.get()).add(index).read())
        }
    }

    /// Whether the map is reserved.
    pub fn is_complete(&self) -> bool {
        // SAFETY: as `class`.
        unsafe { *self.mask.get() != 0 }
    }

    /// Address of the entry of a chunk, by the number of the chunk; `None` if the map is not reserved.
    pub(crate) fn entry(&self, chunk: usize) -> Option<*mut u8> {
        // SAFETY: as `class`; the masked index lies inside the reservation.
        self.is_complete().then(|| unsafe { (*self.base.get()).add(chunk & *self.mask.get()) })
    }

    /// Makes the entries `from..to` (indexes, multiples of the OS page size) writable; false if the system refuses.
    ///
    /// # Safety
    /// The entries must lie below [`MAP_BYTES`], and be those of an arena's chunks.
    pub unsafe fn commit<O: Os>(&self, os: &O, from: usize, to: usize) -> bool {
        // SAFETY: both ends lie inside the reservation.
        !self.is_complete() || unsafe { os.commit((*self.base.get()).add(from), to - from) }
    }

    /// Addresses of the reservation; empty if there is none.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let whole = self.run(0, MAP_BYTES);
        whole.start.addr()..whole.start.addr() + whole.len
    }

    /// The entries `from..to`, indexes; an empty run if the map is not reserved.
    pub(crate) fn run(&self, from: usize, to: usize) -> Run {
        if !self.is_complete() {
            return Run::EMPTY;
        }
        // SAFETY: as `class`; both ends lie inside the reservation.
        Run { start: unsafe { (*self.base.get()).add(from) }, len: to - from }
    }

    /// Notes that the chunk of `c`, which is the caller's, is a slab of `class`, or no slab (0).
    #[inline]
    pub(crate) fn set(&self, c: Record, class: usize) {
        if self.is_complete() {
            // SAFETY: the entry of a chunk that has a record is committed, and written by the chunk's holder alone. A
            // thread that looks up a block of this chunk got its pointer after this write, by a synchronisation that
            // orders the two.
            unsafe { (*self.base.get()).add(c.start().addr() >> CHUNK_SHIFT).write(class as u8) }
        }
    }
}
