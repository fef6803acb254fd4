//! Shelves: large blocks that a heap keeps for its next requests of about their size, newest first.
//!
//! A program that allocates a buffer, uses it and frees it, over and over, gets the same warm memory each time, without
//! a lock. A shelf is short and holds little; what does not fit goes to the free ranges, where all heaps find it. What
//! lies on a shelf waits as all free memory does: the purger looks at shelves in its visits.
//!
//! Invariant: blocks on a shelf have the kind [`Kind::SHELVED`], and `chunks`, at most `counted`, is the sum of their lengths.

use crate::arena::Arenas;
use crate::chunk::{Chunk, Kind, State};
use crate::figures::Use;
use crate::misuse::{self, Call};
use crate::policy::Purge;
use crate::range::Taken;
use crate::sync::peek;
use crate::{Allocator, CHUNK, Heap, Os, age};

/// Blocks on a shelf, at most.
const PLACES: u32 = 8;
/// Chunks on a shelf, and chunks of a block on it, at most: 2 MiB and 1 MiB.
const MOST_CHUNKS: u32 = 32;
const LONGEST: u32 = 16;

/// A shelf. All zero bytes are an empty one.
#[derive(Debug)]
pub struct Shelf {
    /// The newest block; the `next` of each is the one that came before it.
    newest: *mut Chunk,
    count: u32,
    chunks: u32,
    /// So many chunks were counted as what threads may keep unseen ([`Allocator::note_room`]).
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
    fn has_place(&self, len: u32) -> bool {
        self.count < PLACES && self.chunks + len <= MOST_CHUNKS
    }

    /// The same, within what was counted.
    #[inline(always)]
    fn has_counted_place(&self, len: u32) -> bool {
        self.count < PLACES && self.chunks + len <= self.counted
    }

    /// Counts room for `len` chunks more, and for as many again, as there is a place for; returns the bytes that were not
    /// counted before.
    fn count_room(&mut self, len: u32) -> usize {
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
    unsafe fn push(&mut self, c: *mut Chunk, len: u32, since: u8) {
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
    unsafe fn pop_fit(&mut self, len: u32) -> *mut Chunk {
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
    unsafe fn pop_oldest(&mut self) -> *mut Chunk {
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
}

impl Default for Shelf {
    fn default() -> Self {
        Self::new()
    }
}

impl<O: Os> Allocator<O> {
    /// A large block of at least `size` bytes, more than 0, from the shelf of `heap`, or null. `zero`: it reads as zero.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    #[inline(always)]
    pub unsafe fn malloc_shelved(&self, heap: *mut Heap, size: usize, zero: bool) -> *mut u8 {
        if size > LONGEST as usize * CHUNK {
            return core::ptr::null_mut();
        }
        let len = size.div_ceil(CHUNK) as u32;
        // SAFETY: the heap and so its shelf are the caller's.
        unsafe {
            let c = (*heap).shelf.pop_fit(len);
            if c.is_null() {
                return core::ptr::null_mut();
            }
            // `len` chunks hold them, as an OS page is no longer than a chunk.
            let bytes = self.whole_pages(size);
            let carved = (*c).carved;
            (*heap).flow.unshelve(bytes);
            (*c).kind.set(Kind::LARGE);
            (*c).listed = false;
            Chunk::set_bytes(c, bytes);
            if carved < len {
                (*c).carved = len;
            }
            if zero {
                self.zero_shelved(c, carved as usize);
            }
            Arenas::chunk(c)
        }
    }

    /// Makes a block from a shelf, that used `carved` chunks before, read as zero.
    #[cold]
    unsafe fn zero_shelved(&self, c: *mut Chunk, carved: usize) {
        // SAFETY: the block is the caller's.
        unsafe {
            let bytes = Chunk::bytes(c);
            let dirty = if (*c).state == State::Clean { carved } else { (*c).len as usize };
            let taken = Taken { first: c, dirty: (0, dirty) };
            if !self.policy.zero_always() {
                self.habits.count(0, bytes.saturating_sub(dirty * CHUNK));
            }
            if !self.clear_large(Arenas::chunk(c), bytes, taken) {
                self.purge_large(c);
            }
        }
    }

    /// `Allocator::shelve` after [`Heap::free`] failed for `p`, where the shelf has a place and nobody has to be told: what
    /// a free of a large block does mostly, and there is nothing to settle. Otherwise nothing has happened.
    ///
    /// # Safety
    /// `heap` must be the caller's and not watched, and nothing may have happened to it since; `p` must be a block of
    /// the caller's, or foreign.
    #[inline(always)]
    pub unsafe fn shelve_after_miss(&self, heap: *mut Heap, p: *mut u8) -> bool {
        // SAFETY: as the caller promises. The page map has the class 0 for a large block. A heap that shows that nobody
        // watches has caches.
        unsafe {
            if self.map.class(p) != 0 {
                return false;
            }
            let c = Arenas::record(p);
            let fits = self.arenas.has_record(p)
                && self.goes_on_shelf(c, p)
                && (*heap).shelf.has_counted_place((*c).len)
                && !self.minds((*heap).shelf.chunks + (*c).len);
            if fits {
                Heap::undo_free_of_large(heap);
                self.push_on_shelf(heap, c);
            }
            fits
        }
    }

    /// Whether the block at `p`, whose record is `c`, is one for a shelf that has a place.
    ///
    /// # Safety
    /// As [`Allocator::shelve`].
    #[inline(always)]
    unsafe fn goes_on_shelf(&self, c: *mut Chunk, p: *mut u8) -> bool {
        // SAFETY: records of committed chunks are readable; a large block is the caller's, as is the heap.
        unsafe {
            p.addr() & (CHUNK - 1) == 0
                && (*c).kind.get() == Kind::LARGE
                && (*c).len <= LONGEST
                && !Chunk::is_apart(c)
                && self.policy.purge() != Purge::Eager
                && ((*c).len as usize * CHUNK) < self.policy.mmap_threshold()
        }
    }

    /// Puts a block for which there is a place on the shelf of `heap`.
    ///
    /// # Safety
    /// As [`Allocator::shelve`].
    #[inline(always)]
    unsafe fn push_on_shelf(&self, heap: *mut Heap, c: *mut Chunk) {
        // SAFETY: the heap and the block are the caller's.
        unsafe {
            let len = (*c).len;
            (*c).kind.set(Kind::SHELVED);
            (*heap).flow.shelve(Chunk::bytes(c));
            (*heap).shelf.push(c, len, self.epoch());
        }
    }

    /// Puts the large block at `p`, which lies in an arena, on the shelf of `heap`, where the oldest make room; false if
    /// that is no place for it.
    ///
    /// # Safety
    /// `heap` must be the caller's or [`Heap::none`]; if `p` is a large block, it must be the caller's.
    pub(crate) unsafe fn shelve(&self, heap: *mut Heap, p: *mut u8) -> bool {
        let c = Arenas::record(p);
        // SAFETY: records of committed chunks are readable; a large block is the caller's, as is the heap.
        unsafe {
            if (*c).kind.get() == Kind::SHELVED {
                misuse::not_a_block(self, Call::Free, p);
            }
            if !Heap::is_cached(heap) || !self.goes_on_shelf(c, p) {
                return false;
            }
            let len = (*c).len;
            if !(*heap).shelf.has_place(len) {
                self.unshelve(heap, |shelf| !(*shelf).has_place(len));
            }
            let more = (*heap).shelf.count_room(len);
            if more > 0 {
                self.note_room(more);
            }
            self.push_on_shelf(heap, c);
            if self.minds((*heap).shelf.chunks) {
                self.want();
            }
        }
        true
    }

    /// Gives the oldest blocks of the shelf of `heap` to the free ranges, where they go on waiting, as long as there are
    /// any and `more` says so.
    unsafe fn unshelve(&self, heap: *mut Heap, more: impl Fn(*const Shelf) -> bool) {
        // SAFETY: the heap and so its shelf are the caller's; `with` holds the lock of the ranges.
        self.ranges.with(&self.os, |r| unsafe {
            while more(&raw const (*heap).shelf) {
                let c = (*heap).shelf.pop_oldest();
                if c.is_null() {
                    break;
                }
                (*c).kind.set(Kind::NONE);
                (*heap).flow.unshelve(Chunk::bytes(c));
                r.held.give(Use::Large { bytes: Chunk::bytes(c), zero: false });
                let (len, used, since) = ((*c).len as usize, (*c).carved as usize, Chunk::since(c));
                let behind = if (*c).state == State::Clean { age::NONE } else { since };
                self.give_parts(r, [(c.add(used), len - used, behind), (c, used, since)]);
            }
            self.note_given(r);
        });
    }

    /// Clears the shelf of `heap` of blocks that wait since at least `ticks` epochs.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub(crate) unsafe fn clear_shelf(&self, heap: *mut Heap, ticks: u8) {
        let due = |shelf| ticks == 0 || Shelf::is_due(shelf, self.epoch(), ticks);
        // SAFETY: the heap and so its shelf are the caller's.
        unsafe {
            if (*heap).shelf.count > 0 && due(&raw const (*heap).shelf) {
                self.unshelve(heap, due);
            }
        }
    }

    /// Whether the shelf of `heap` is as said above, and how many blocks and chunks it has. For tests.
    ///
    /// # Safety
    /// The heap must be at rest.
    pub(crate) unsafe fn check_shelf(&self, heap: *mut Heap) -> Option<usize> {
        // SAFETY: the heap is at rest, and its blocks have records.
        unsafe {
            let shelf = &(*heap).shelf;
            let (mut c, mut count, mut chunks, mut shelved) = (shelf.newest, 0, 0, true);
            while !c.is_null() {
                (count, chunks, shelved) = (count + 1, chunks + (*c).len, shelved && (*c).kind.get() == Kind::SHELVED);
                c = (*c).next;
            }
            let most = shelf.counted.min(MOST_CHUNKS);
            let counted = count == shelf.count && chunks == shelf.chunks && chunks <= most && count <= PLACES;
            (shelved && counted).then_some(count as usize)
        }
    }
}
