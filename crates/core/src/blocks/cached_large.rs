//! malloc and free of large blocks by way of a heap's cache (`large_cache.rs`).

use crate::blocks::given::Given;
use crate::blocks::heap::Mine;
use crate::blocks::large_cache::{LONGEST, LargeCache};
use crate::blocks::large_record::Large;
use crate::blocks::misuse::{self, Call};
use crate::blocks::{Blocks, large};
use crate::pages::chunk::{Kind, Record, State};
use crate::pages::held::Use;
use crate::pages::range::Taken;
use crate::system::policy::Purge;
use crate::{CHUNK, Os};

impl<O: Os> Blocks<O> {
    /// Returns a large block of at least `size` bytes, more than 0, aligned to `align`, from the cache of `heap`, or
    /// null. `zero`: it reads as zero.
    #[inline(always)]
    pub fn malloc_cached_large(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > LONGEST * CHUNK {
            return core::ptr::null_mut();
        }
        let len = size.div_ceil(CHUNK);
        let Some(block) = heap.large.pop_fit(len, align) else { return core::ptr::null_mut() };
        // They fit into `len` chunks, as an OS page is no longer than a chunk.
        let bytes = self.whole_pages(size);
        let carved = block.carved();
        heap.flow.uncache_large(bytes);
        block.set_kind(Kind::LARGE);
        block.set_sample(false);
        block.set_bytes(bytes);
        if carved < len {
            block.set_carved(len);
        }
        if zero {
            self.zero_cached(block, carved);
        }
        block.start()
    }

    /// Zeroes a block from a cache, which used `carved` chunks before.
    #[cold]
    fn zero_cached(&self, block: Large, carved: usize) {
        let bytes = block.bytes();
        let dirty = if block.behind() == State::Clean { carved } else { block.len() };
        let taken = Taken { first: block.chunk(), dirty: (0, dirty) };
        if !self.policy.zero_always() {
            self.habits.count(0, bytes.saturating_sub(dirty * CHUNK));
        }
        if !self.habits.clear_large(self, block.memory(bytes), taken) {
            self.purge_large(block);
        }
    }

    /// After [`Heap::free`](crate::Heap::free) failed for `given`: does what `cache_large` does, if the cache has room
    /// and nothing has to be noted, so that there is nothing to settle: the most frequent case of freeing a large
    /// block. Otherwise returns false and does nothing. `heap` must not be watched, and must be as `Heap::free` left
    /// it.
    #[inline(always)]
    pub(crate) fn cache_large_after_miss(&self, heap: Mine<'_>, given: Given) -> bool {
        // The page map has the class 0 for a large block. A heap in the mode `Watch::Nothing` has caches.
        if self.map.class(given.ptr()) != 0 {
            return false;
        }
        let Some(c) = self.arenas.ordinary_record(given.ptr()) else { return false };
        let Some(block) = self.for_cache(given, c) else { return false };
        let fits =
            heap.large.has_counted_place(block.len()) && !self.must_note_cache(heap.large.chunks() + block.len());
        if fits {
            heap.undo_free_of_large();
            self.put_in_cache(heap, block);
        }
        fits
    }

    /// Returns the block at `given`, whose record is `c`, if it is a large block that may be cached.
    #[inline(always)]
    fn for_cache(&self, given: Given, c: Record) -> Option<Large> {
        let block = given.ordinary_large(c)?;
        let may_be_cached = block.len() <= LONGEST
            && !block.is_apart()
            && self.policy.purge() != Purge::Eager
            && block.len() * CHUNK < self.policy.mmap_threshold();
        may_be_cached.then_some(block)
    }

    /// Puts a block into the cache of `heap`, which must have room for it.
    #[inline(always)]
    fn put_in_cache(&self, heap: Mine<'_>, block: Large) {
        block.set_kind(Kind::CACHED);
        heap.flow.cache_large(block.bytes());
        heap.large.push(block, self.epoch());
    }

    /// Puts the large block at `given`, whose record is `c`, into the cache of `heap`; the oldest blocks make room.
    /// False if it may not be cached.
    pub(crate) fn cache_large(&self, heap: Mine<'_>, given: Given, c: Record) -> bool {
        if c.kind() == Kind::CACHED {
            misuse::not_a_block(self, Call::Free, given.ptr());
        }
        if !heap.is_cached() || self.is_tight() {
            return false;
        }
        // A heap that has not followed `harden=on` yet has caches. A guard must not come to lie inside the next block.
        let Some(block) = self.for_cache(given, c).filter(|block| !block.is_guarded()) else { return false };
        let len = block.len();
        if !heap.large.has_place(len) {
            self.uncache(heap, |cache| !cache.has_place(len));
        }
        let more = heap.large.count_room(len);
        if more > 0 {
            self.note_room(more);
        }
        self.put_in_cache(heap, block);
        if self.must_note_cache(heap.large.chunks()) {
            self.want();
        }
        true
    }

    /// Gives the oldest blocks in the cache of `heap` to the free ranges, where they go on waiting, as long as there
    /// are any and `more` is true.
    fn uncache(&self, heap: Mine<'_>, more: impl Fn(&LargeCache) -> bool) {
        self.ranges.with(&self.os, |r| {
            while more(&heap.large)
                && let Some(block) = heap.large.pop_oldest()
            {
                block.set_kind(Kind::NONE);
                heap.flow.uncache_large(block.bytes());
                r.held.give(Use::Large { bytes: block.bytes(), zero: false });
                if self.is_stranded() {
                    // The block is lost, as in `give_chunks`.
                    continue;
                }
                self.give_parts(r, large::parts(block, block.since(), block.since()));
            }
            self.note_given(r);
        });
    }

    /// Empties the cache of `heap`, which keeps no block until room is counted for one again.
    #[cold]
    pub(crate) fn give_up_large_cache(&self, heap: Mine<'_>) {
        self.clear_cached_large(heap, 0);
        self.notes.forget_room(heap.large.uncount_room());
    }

    /// Removes the large blocks from the cache of `heap` that have waited for at least `ticks` epochs.
    pub(crate) fn clear_cached_large(&self, heap: Mine<'_>, ticks: u8) {
        let due = |cache: &LargeCache| ticks == 0 || cache.is_due(self.epoch(), ticks);
        if !heap.large.is_empty() && due(&heap.large) {
            self.uncache(heap, due);
        }
    }
}
