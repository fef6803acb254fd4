//! malloc and free of large blocks that a heap keeps (`large_cache.rs`).

use crate::blocks::Blocks;
use crate::blocks::large_cache::{LONGEST, Shelf};
use crate::blocks::misuse::{self, Call};
use crate::pages::age;
use crate::pages::chunk::{Chunk, Kind, State};
use crate::pages::held::Use;
use crate::pages::layout;
use crate::pages::range::Taken;
use crate::system::policy::Purge;
use crate::{CHUNK, Heap, Os};

impl<O: Os> Blocks<O> {
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
            layout::chunk(c)
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
            if !self.habits.clear_large(self, layout::chunk(c), bytes, taken) {
                self.purge_large(c);
            }
        }
    }

    /// `Blocks::shelve` after [`Heap::free`] failed for `p`, where the shelf has a place and nobody has to be told: what
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
            let c = layout::record(p);
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
    /// As [`Blocks::shelve`].
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
    /// As [`Blocks::shelve`].
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
        let c = layout::record(p);
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
                if self.is_stranded() {
                    // As in `give_chunks`: it is lost.
                    continue;
                }
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
}
