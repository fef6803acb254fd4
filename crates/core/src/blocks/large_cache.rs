//! Shelves: large blocks that a heap keeps for its next requests of about their size, newest first.
//!
//! A program that allocates a buffer, uses it and frees it, over and over, gets the same warm memory each time, without
//! a lock. A shelf is short and holds little; what does not fit goes to the free ranges, where all heaps find it. What
//! lies on a shelf waits as all free memory does: the purger looks at shelves in its visits.
//!
//! Invariant: blocks on a shelf have the kind [`Kind::SHELVED`], and `chunks`, at most `counted`, is the sum of their lengths.

use crate::CHUNK;
use crate::pages::age;
use crate::pages::chunk::{Chunk, Kind};
use crate::system::sync::peek;

/// Blocks on a shelf, at most.
const PLACES: u32 = 8;
/// Chunks on a shelf, and chunks of a block on it, at most: 2 MiB and 1 MiB.
const MOST_CHUNKS: u32 = 32;
pub(crate) const LONGEST: u32 = 16;

/// A shelf. All zero bytes are an empty one.
#[derive(Debug)]
pub struct Shelf {
    /// The newest block; the `next` of each is the one that came before it.
    newest: *mut Chunk,
    pub(crate) count: u32,
    pub(crate) chunks: u32,
    /// So many chunks were counted as what threads may keep unseen (`Pages::note_room`).
    counted: u32,
}

impl Shelf {
    /// An empty shelf.
    pub const fn new() -> Self {
        Shelf { newest: core::ptr::null_mut(), count: 0, chunks: 0, counted: 0 }
    }

    /// Its blocks, newest first. For other threads: a guess, which ends.
    fn blocks(shelf: *const Shelf) -> impl Iterator<Item = *const Chunk> {
        // SAFETY: shelves are part of heaps, and neither those nor records are unmapped, so whatever the owner does a
        // link is a record's or null.
        let next = |c: &*const Chunk| unsafe { peek(&raw const (**c).next, core::ptr::null_mut()).cast_const() };
        // SAFETY: likewise.
        let newest = unsafe { peek(&raw const (*shelf).newest, core::ptr::null_mut()).cast_const() };
        let linked = core::iter::successors(Some(newest), move |c| (!c.is_null()).then(|| next(c)));
        linked.take_while(|c| !c.is_null()).take(PLACES as usize)
    }

    /// Blocks on it. For other threads: a guess.
    pub(crate) fn count(shelf: *const Shelf) -> usize {
        // SAFETY: shelves are part of heaps, which are never unmapped.
        unsafe { peek(&raw const (*shelf).count, 0) as usize }
    }

    /// Blocks on it, and their bytes. For other threads: a guess.
    pub(crate) fn holds(shelf: *const Shelf) -> (u64, u64) {
        // SAFETY: as above.
        let bytes = |c: *const Chunk| unsafe { Chunk::bytes(c) as u64 };
        Self::blocks(shelf).fold((0, 0), |(count, sum), c| (count + 1, sum + bytes(c)))
    }

    /// Whether the oldest block waits since at least `ticks` epochs. For other threads: a guess.
    pub(crate) fn is_due(shelf: *const Shelf, now: u8, ticks: u8) -> bool {
        // SAFETY: as above.
        Self::blocks(shelf).last().is_some_and(|c| age::passed(unsafe { Chunk::since_roughly(c, now) }, now) >= ticks)
    }

    /// Whether there is a place for `len` chunks more.
    pub(crate) fn has_place(&self, len: u32) -> bool {
        self.count < PLACES && self.chunks + len <= MOST_CHUNKS
    }

    /// The same, within what was counted.
    #[inline(always)]
    pub(crate) fn has_counted_place(&self, len: u32) -> bool {
        self.count < PLACES && self.chunks + len <= self.counted
    }

    /// Counts room for `len` chunks more, and for as many again, as there is a place for; returns the bytes that were not
    /// counted before.
    pub(crate) fn count_room(&mut self, len: u32) -> usize {
        let need = self.chunks + len;
        let more = if need > self.counted { (2 * need).min(MOST_CHUNKS) - self.counted } else { 0 };
        self.counted += more;
        more as usize * CHUNK
    }

    /// What is not used does not count any more; returns its bytes.
    pub(crate) fn uncount_room(&mut self) -> usize {
        let less = self.counted - self.chunks;
        self.counted = self.chunks;
        less as usize * CHUNK
    }

    /// Whether any was counted. For other threads: a guess.
    pub(crate) fn is_counted(shelf: *const Shelf) -> bool {
        // SAFETY: as above.
        unsafe { peek(&raw const (*shelf).counted, 0) != 0 }
    }

    /// Puts a block of `len` chunks first.
    ///
    /// # Safety
    /// The shelf and the block must be the caller's; likewise below.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, c: *mut Chunk, len: u32, since: u8) {
        // SAFETY: as the caller promises.
        unsafe {
            Chunk::set_since(c, since);
            (*c).next = self.newest;
        }
        self.newest = c;
        self.count += 1;
        self.chunks += len;
    }

    /// The newest block of `len` chunks, or up to an eighth more, out of the shelf; or null.
    #[inline(always)]
    pub(crate) unsafe fn pop_fit(&mut self, len: u32) -> *mut Chunk {
        let mut link = &raw mut self.newest;
        // SAFETY: the blocks on this shelf have records.
        unsafe {
            while !(*link).is_null() {
                let c = *link;
                let have = (*c).len;
                if have.wrapping_sub(len) <= len / 8 {
                    *link = (*c).next;
                    self.count -= 1;
                    self.chunks -= have;
                    return c;
                }
                link = &raw mut (*c).next;
            }
        }
        core::ptr::null_mut()
    }

    /// The oldest block, out of the shelf; or null.
    pub(crate) unsafe fn pop_oldest(&mut self) -> *mut Chunk {
        let mut link = &raw mut self.newest;
        // SAFETY: the blocks on this shelf have records.
        unsafe {
            while !(*link).is_null() {
                let c = *link;
                if (*c).next.is_null() {
                    *link = core::ptr::null_mut();
                    self.count -= 1;
                    self.chunks -= (*c).len;
                    return c;
                }
                link = &raw mut (*c).next;
            }
        }
        core::ptr::null_mut()
    }

    /// Whether the shelf is as said above, and how many blocks it has. For tests.
    ///
    /// # Safety
    /// The heap must be at rest.
    pub(crate) unsafe fn check(&self) -> Option<usize> {
        let (mut c, mut count, mut chunks, mut shelved) = (self.newest, 0, 0, true);
        while !c.is_null() {
            // SAFETY: the heap is at rest, and its blocks have records.
            unsafe {
                (count, chunks, shelved) = (count + 1, chunks + (*c).len, shelved && (*c).kind.get() == Kind::SHELVED);
                c = (*c).next;
            }
        }
        let counted = count == self.count && chunks == self.chunks && chunks <= self.counted.min(MOST_CHUNKS);
        (shelved && counted && count <= PLACES).then_some(count as usize)
    }
}

impl Default for Shelf {
    fn default() -> Self {
        Self::new()
    }
}
