//! The cache of large blocks: keeps some that a heap freed for its next requests of about their size, newest first.
//!
//! A program that allocates a buffer, uses it and frees it, over and over, gets the same warm memory each time, without
//! a lock. The cache is short and holds little. What does not fit goes to the free ranges, where all heaps find it.
//! Blocks in the cache wait like all free memory: the purger takes them in handshakes.
//!
//! Invariant: its blocks have the kind [`Kind::CACHED`]; `chunks` is the sum of their lengths, and at most `counted`.

use crate::CHUNK;
use crate::blocks::large_record::{self, Large};
use crate::pages::age;
use crate::pages::chunk::{Kind, Record};
use crate::system::sync::peek_cell;
use core::cell::Cell;

/// Maximum number of blocks in a cache.
const PLACES: u32 = 8;
/// Maximum number of chunks in a cache, and of chunks of a block in it: 2 MiB and 1 MiB.
const MOST_CHUNKS: u32 = 32;
pub(crate) const LONGEST: usize = 16;

/// A cache of large blocks. All bytes zero: an empty one. Used through [`Mine`](crate::blocks::heap::Mine); what other
/// threads read is approximate.
#[derive(Debug, Default)]
pub struct LargeCache {
    /// The newest block; the `next` of each block is the one that was cached before it.
    newest: Cell<Option<Record>>,
    count: Cell<u32>,
    chunks: Cell<u32>,
    /// Number of chunks that were counted as memory that caches may hold (`Pages::note_room`).
    counted: Cell<u32>,
}

impl LargeCache {
    /// An empty cache.
    pub const fn new() -> Self {
        LargeCache { newest: Cell::new(None), count: Cell::new(0), chunks: Cell::new(0), counted: Cell::new(0) }
    }

    /// Returns its blocks, newest first. For other threads: approximate, and always finite.
    fn blocks_roughly(&self) -> impl Iterator<Item = Record> {
        // Records are never unmapped, so whatever the owner does, a link is a record or none.
        let newest = peek_cell(&self.newest, None);
        core::iter::successors(newest, |c| c.next_roughly()).take(PLACES as usize)
    }

    /// Number of blocks in it. For other threads: approximate.
    pub(crate) fn count_roughly(&self) -> usize {
        peek_cell(&self.count, 0) as usize
    }

    /// Number of blocks in it, and their bytes. For other threads: approximate.
    pub(crate) fn holds_roughly(&self) -> (u64, u64) {
        self.blocks_roughly().fold((0, 0), |(count, sum), c| (count + 1, sum + large_record::bytes(c) as u64))
    }

    /// Whether the oldest block has waited for at least `ticks` epochs. For other threads: approximate.
    pub(crate) fn is_due(&self, now: u8, ticks: u8) -> bool {
        self.blocks_roughly().last().is_some_and(|c| age::passed(large_record::since_roughly(c, now), now) >= ticks)
    }

    /// Whether any room is counted. For other threads: approximate.
    pub(crate) fn is_counted_roughly(&self) -> bool {
        peek_cell(&self.counted, 0) != 0
    }

    /// Whether it has no block.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// Number of chunks of its blocks.
    #[inline(always)]
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.get() as usize
    }

    /// Whether there is room for a block of `len` chunks.
    pub(crate) fn has_place(&self, len: usize) -> bool {
        self.count.get() < PLACES && self.chunks() + len <= MOST_CHUNKS as usize
    }

    /// Whether there is room for a block of `len` chunks in what was counted.
    #[inline(always)]
    pub(crate) fn has_counted_place(&self, len: usize) -> bool {
        self.count.get() < PLACES && self.chunks() + len <= self.counted.get() as usize
    }

    /// Makes sure that room for `len` more chunks is counted. If it is not, counts twice what is needed, up to the
    /// limit of the cache. Returns the bytes that were not counted before.
    pub(crate) fn count_room(&self, len: usize) -> usize {
        let (need, counted) = (self.chunks.get() + len as u32, self.counted.get());
        let more = if need > counted { (2 * need).min(MOST_CHUNKS) - counted } else { 0 };
        self.counted.set(counted + more);
        more as usize * CHUNK
    }

    /// Uncounts the room that is not used; returns its bytes.
    pub(crate) fn uncount_room(&self) -> usize {
        let less = self.counted.get() - self.chunks.get();
        self.counted.set(self.chunks.get());
        less as usize * CHUNK
    }

    /// Puts a block that was freed in the epoch `since` first.
    #[inline(always)]
    pub(crate) fn push(&self, block: Large, since: u8) {
        block.set_since(since);
        block.chunk().set_next(self.newest.get());
        self.newest.set(Some(block.chunk()));
        self.count.set(self.count.get() + 1);
        self.chunks.set(self.chunks.get() + block.len() as u32);
    }

    /// Takes the first block for which `wanted` is true out of the cache.
    #[inline(always)]
    fn pop(&self, wanted: impl Fn(Large) -> bool) -> Option<Large> {
        let (mut before, mut at) = (None::<Record>, self.newest.get());
        while let Some(c) = at {
            // SAFETY: a block in the cache is a large block, and belongs to the holder of the heap.
            let block = unsafe { Large::of(c) };
            if wanted(block) {
                match before {
                    None => self.newest.set(c.next()),
                    Some(before) => before.set_next(c.next()),
                }
                self.count.set(self.count.get() - 1);
                self.chunks.set(self.chunks.get() - block.len() as u32);
                return Some(block);
            }
            (before, at) = (at, c.next());
        }
        None
    }

    /// Takes the newest block of `len` chunks, or up to an eighth more, that is aligned to `align` bytes out of the
    /// cache.
    #[inline(always)]
    pub(crate) fn pop_fit(&self, len: usize, align: usize) -> Option<Large> {
        let is_aligned = |block: Large| align <= CHUNK || block.start().addr() & (align - 1) == 0;
        self.pop(|block| block.len().wrapping_sub(len) <= len / 8 && is_aligned(block))
    }

    /// Takes the oldest block out of the cache.
    pub(crate) fn pop_oldest(&self) -> Option<Large> {
        self.pop(|block| block.chunk().next().is_none())
    }

    /// Returns the number of blocks if the invariant holds. For tests, at rest.
    pub(crate) fn check(&self) -> Option<usize> {
        let (mut count, mut chunks, mut cached) = (0, 0, true);
        for c in core::iter::successors(self.newest.get(), |c| c.next()) {
            // SAFETY: at rest no other thread uses the block.
            (count, chunks) = (count + 1, chunks + unsafe { Large::of(c) }.len() as u32);
            cached &= c.kind() == Kind::CACHED;
        }
        let most = self.counted.get().min(MOST_CHUNKS);
        let counted = count == self.count.get() && chunks == self.chunks.get() && chunks <= most;
        (cached && counted && count <= PLACES).then_some(count as usize)
    }
}
