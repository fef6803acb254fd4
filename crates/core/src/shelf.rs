//! Shelves: large blocks that a heap keeps for its next requests of about their size, newest first.
//!
//! A program that allocates a buffer, uses it and frees it, over and over, gets the same warm memory each time, without
//! a lock. A shelf is short and holds little; what does not fit goes to the free ranges, where all heaps find it. What
//! lies on a shelf waits as all free memory does: the purger looks at shelves in its visits.
//!
//! Invariant: blocks on a shelf have the kind [`Kind::SHELVED`], and `chunks` is the sum of their lengths.

use crate::arena::Arenas;
use crate::chunk::{Chunk, Kind, List, State};
use crate::figures::Use;
use crate::misuse::{self, Call};
use crate::policy::Purge;
use crate::range::Taken;
use crate::{Allocator, CHUNK, Heap, Os, age};

/// Blocks on a shelf, at most.
const PLACES: u32 = 8;
/// Chunks on a shelf, and chunks of a block on it, at most: 2 MiB and 1 MiB.
const MOST_CHUNKS: u32 = 32;
const LONGEST: u32 = 16;

/// A shelf. All zero bytes are an empty one.
#[derive(Debug)]
pub struct Shelf {
    /// The blocks' records, newest first.
    blocks: List,
    /// The oldest block, if there is one.
    oldest: *mut Chunk,
    count: u32,
    chunks: u32,
}

impl Shelf {
    /// An empty shelf.
    pub const fn new() -> Self {
        Shelf { blocks: List::new(), oldest: core::ptr::null_mut(), count: 0, chunks: 0 }
    }

    /// Blocks on it. For other threads: a guess.
    pub(crate) fn count(shelf: *const Shelf) -> usize {
        // SAFETY: shelves are part of heaps, which are never unmapped.
        unsafe { (&raw const (*shelf).count).read_volatile() as usize }
    }

    /// Whether the oldest block waits since at least `ticks` epochs. For other threads: a guess.
    pub(crate) fn is_due(shelf: *const Shelf, now: u8, ticks: u8) -> bool {
        // SAFETY: as above; records are never unmapped.
        unsafe {
            let oldest = (&raw const (*shelf).oldest).read_volatile();
            Self::count(shelf) > 0 && !oldest.is_null() && age::passed((*oldest).since(), now) >= ticks
        }
    }

    /// # Safety
    /// The shelf and the block must be the caller's; likewise below.
    unsafe fn push(&mut self, c: *mut Chunk, since: u8) {
        // SAFETY: as the caller promises.
        unsafe {
            (*c).set_since(since);
            self.chunks += (*c).len;
            self.blocks.push(c);
        }
        if self.count == 0 {
            self.oldest = c;
        }
        self.count += 1;
    }

    unsafe fn remove(&mut self, c: *mut Chunk) {
        // SAFETY: the block is on this shelf.
        unsafe {
            if self.oldest == c {
                self.oldest = (*c).prev;
            }
            self.blocks.remove(c);
            self.chunks -= (*c).len;
        }
        self.count -= 1;
    }

    /// The oldest block, out of the shelf.
    unsafe fn pop_oldest(&mut self) -> Option<*mut Chunk> {
        let c = self.oldest;
        if c.is_null() {
            return None;
        }
        // SAFETY: the block is on this shelf.
        unsafe { self.remove(c) };
        Some(c)
    }

    /// The newest block of `len` chunks, or up to an eighth more, out of the shelf.
    #[inline]
    unsafe fn pop_fit(&mut self, len: u32) -> Option<*mut Chunk> {
        let mut c = self.blocks.head;
        // SAFETY: the blocks on this shelf have records.
        unsafe {
            while !c.is_null() {
                if (*c).len >= len && (*c).len <= len + len / 8 {
                    self.remove(c);
                    return Some(c);
                }
                c = (*c).next;
            }
        }
        None
    }
}

impl Default for Shelf {
    fn default() -> Self {
        Self::new()
    }
}

impl<O: Os> Allocator<O> {
    /// A large block of at least `size` bytes from the shelf of `heap`, or null.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    #[inline]
    pub(crate) unsafe fn malloc_shelved(&self, heap: *mut Heap, size: usize, zero: bool) -> *mut u8 {
        let len = size.div_ceil(CHUNK);
        // SAFETY: the heap and so its shelf are the caller's.
        unsafe {
            if len > LONGEST as usize || (*heap).shelf.count == 0 {
                return core::ptr::null_mut();
            }
            let Some(c) = (*heap).shelf.pop_fit(len as u32) else {
                return core::ptr::null_mut();
            };
            let bytes = size.next_multiple_of(self.page_size());
            let (carved, used) = ((*c).carved as usize, bytes.div_ceil(CHUNK));
            (*heap).flow.unshelve((*c).bytes(), bytes);
            (*c).kind = Kind::LARGE;
            (*c).listed = false;
            (*c).carved = carved.max(used) as u32;
            (*c).set_bytes(bytes);
            if zero {
                let dirty = if (*c).state == State::Clean { carved } else { (*c).len as usize };
                let taken = Taken { first: c, dirty: (0, dirty) };
                if !self.policy.zero_always() {
                    self.habits.count(0, bytes.saturating_sub(dirty * CHUNK));
                }
                if !self.clear_large(Arenas::chunk(c), bytes, taken) {
                    self.purge_large(c);
                }
            }
            Arenas::chunk(c)
        }
    }

    /// Puts the large block at `p`, which lies in an arena, on the shelf of `heap`; false if that is no place for it.
    ///
    /// # Safety
    /// `heap` must be the caller's or [`Heap::none`]; if `p` is a large block, it must be the caller's.
    #[inline]
    pub(crate) unsafe fn shelve(&self, heap: *mut Heap, p: *mut u8) -> bool {
        let c = Arenas::record(p);
        // SAFETY: records of committed chunks are readable; a large block is the caller's, as is the heap.
        unsafe {
            if (*c).kind == Kind::SHELVED {
                misuse::not_a_block(self, Call::Free, p);
            }
            let len = (*c).len;
            if (*c).kind != Kind::LARGE
                || p.addr() & (CHUNK - 1) != 0
                || len > LONGEST
                || (*c).moved
                || !Heap::is_cached(heap)
                || self.policy.purge() == Purge::Eager
                || len as usize * CHUNK >= self.policy.mmap_threshold()
            {
                return false;
            }
            (*c).kind = Kind::SHELVED;
            let shelf = &mut (*heap).shelf;
            while shelf.count == PLACES || shelf.chunks + len > MOST_CHUNKS {
                let Some(oldest) = shelf.pop_oldest() else { break };
                self.unshelve(heap, oldest);
            }
            shelf.push(c, self.epoch());
            (*heap).flow.shelve((*c).bytes());
            if shelf.chunks as usize >= crate::purge::START_CHUNKS {
                self.note_shelf();
            }
        }
        true
    }

    /// Gives a block that was on a shelf to the free ranges, where it goes on waiting.
    unsafe fn unshelve(&self, heap: *mut Heap, c: *mut Chunk) {
        // SAFETY: the heap and the block are the caller's.
        unsafe {
            (*heap).flow.unshelve((*c).bytes(), (*c).bytes());
            let what = Use::Large { bytes: (*c).bytes(), zero: false };
            let (len, used, since) = ((*c).len as usize, (*c).carved as usize, (*c).since());
            let behind = if (*c).state == State::Clean { age::NONE } else { since };
            self.give_chunks(what, || {
                (*c).kind = Kind::NONE;
                Some([(c.add(used), len - used, behind), (c, used, since)])
            });
        }
    }

    /// Clears the shelf of `heap` of blocks that wait since at least `ticks` epochs.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub(crate) unsafe fn clear_shelf(&self, heap: *mut Heap, ticks: u8) {
        // SAFETY: the heap and so its shelf are the caller's.
        unsafe {
            while ticks == 0 || Shelf::is_due(&raw const (*heap).shelf, self.epoch(), ticks) {
                let Some(oldest) = (*heap).shelf.pop_oldest() else { return };
                self.unshelve(heap, oldest);
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
            let (mut c, mut last) = (shelf.blocks.head, core::ptr::null_mut());
            let (mut count, mut chunks, mut shelved) = (0, 0, true);
            while !c.is_null() {
                (count, chunks, shelved) = (count + 1, chunks + (*c).len, shelved && (*c).kind == Kind::SHELVED);
                (last, c) = (c, (*c).next);
            }
            let counted = count == shelf.count && chunks == shelf.chunks && chunks <= MOST_CHUNKS;
            (shelved && counted && last == shelf.oldest).then_some(count as usize)
        }
    }
}
