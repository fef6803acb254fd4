//! The reentrant reserve: chunks at the end of the first arena for reentrant calls, which are calls in a signal handler that
//! interrupted another call of the same thread (`reentrant.rs`). They take no lock and wait for nobody.
//!
//! - Chunks are claimed by bits ([`Claims`]), and committed in groups when they are first used. Committing what is
//!   committed does no harm, so two threads may do it at a time.
//!
//! `blocks/reentrant_blocks.rs` says what is made of the chunks. What is claimed and is no slab reads as zero.
//!
//! Cost: where no call is ever reentrant, 4 KiB of zeroes that nobody touches.

use crate::pages::chunk::{Kind, Record};
use crate::pages::commit::Step;
use crate::pages::layout::{self, ARENA_ALIGN};
use crate::pages::page_map::PageMap;
use crate::system::claims::Claims;
use crate::system::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::{CHUNK, CHUNK_SHIFT, Os};
use core::ops::Range;

/// Most chunks: 1 GiB.
const MOST: usize = (1 << 30) / CHUNK;
/// A shorter arena has so many times the chunks of its reentrant reserve.
const SHARE: usize = 16;
/// Chunks that are committed together: a megabyte.
const GROUP: usize = 16;

/// Chunks of the reentrant reserve of an arena of `chunks` chunks.
pub(crate) const fn share(chunks: usize) -> usize {
    let n = chunks / SHARE;
    if n < MOST { n } else { MOST }
}

/// The reentrant reserve. Its end is that of its arena.
#[derive(Debug)]
pub struct ReentrantReserve {
    /// Address of the first chunk; 0 until it is open, and where there is none.
    base: AtomicUsize,
    /// Its chunks, and those of the arena; not 0 once `base` is not.
    chunks: AtomicUsize,
    arena_chunks: AtomicUsize,
    /// Chunks at its end that were given back.
    cut: AtomicUsize,
    claims: Claims<{ MOST / 64 }>,
    /// A bit for each group that is committed.
    committed: [AtomicU64; MOST / GROUP / 64],
    /// Chunks that are claimed.
    pub(crate) used: AtomicUsize,
}

impl Default for ReentrantReserve {
    fn default() -> Self {
        Self::new()
    }
}

impl ReentrantReserve {
    /// There is none.
    pub const fn new() -> Self {
        ReentrantReserve {
            base: AtomicUsize::new(0),
            chunks: AtomicUsize::new(0),
            arena_chunks: AtomicUsize::new(0),
            cut: AtomicUsize::new(0),
            claims: Claims::new(),
            committed: [const { AtomicU64::new(0) }; MOST / GROUP / 64],
            used: AtomicUsize::new(0),
        }
    }

    /// From now on reentrant calls may use the end of the arena at `base`, which nobody else does.
    pub(crate) fn open(&self, base: usize, arena_chunks: usize) {
        let chunks = share(arena_chunks);
        if chunks > 0 {
            self.chunks.store(chunks, Ordering::Relaxed);
            self.arena_chunks.store(arena_chunks, Ordering::Relaxed);
            // Release pairs with the Acquire of `base`.
            self.base.store(base + ((arena_chunks - chunks) << CHUNK_SHIFT), Ordering::Release);
        }
    }

    /// Address of the first chunk, and how many there are; `None` where there is no reentrant reserve (yet).
    fn place(&self) -> Option<(usize, usize)> {
        // Acquire pairs with the Release of `open`: the arena and the page map are there.
        let base = self.base.load(Ordering::Acquire);
        (base != 0).then(|| (base, self.chunks.load(Ordering::Relaxed)))
    }

    /// Whether `p` lies in a committed part, so that it has a record.
    pub(crate) fn holds(&self, p: *const u8) -> bool {
        let Some((base, chunks)) = self.place() else { return false };
        let index = p.addr().wrapping_sub(base) >> CHUNK_SHIFT;
        index < chunks && self.is_committed(index / GROUP)
    }

    fn is_committed(&self, group: usize) -> bool {
        // Acquire pairs with the Release of `commit`: not needed for what the system does, which is there for all, but
        // for who sees the bit without having been handed a block.
        self.committed[group / 64].load(Ordering::Acquire) >> (group % 64) & 1 != 0
    }

    /// The chunks that are or may be committed, as indexes in its arena of so many chunks.
    pub(crate) fn in_use(&self, arena_chunks: usize) -> Range<usize> {
        let first = arena_chunks - share(arena_chunks);
        // Relaxed: written under the lock of the ranges, as this is read.
        let cut = self.cut.load(Ordering::Relaxed);
        if self.place().is_some() { first..arena_chunks - cut } else { first..first }
    }

    /// Claims, for good, the groups at its end that were never committed: their addresses are given back. The lock of the
    /// ranges must be held.
    pub(crate) fn cut(&self) {
        let Some((_, chunks)) = self.place() else { return };
        let mut left = chunks / GROUP;
        while left > 0 && self.claims.try_claim((left - 1) * GROUP, GROUP).is_ok() {
            if self.is_committed(left - 1) {
                self.claims.release((left - 1) * GROUP, GROUP);
                break;
            }
            left -= 1;
        }
        self.cut.store(chunks - left * GROUP, Ordering::Relaxed);
    }

    /// Claims `len` chunks, aligned to `align` of them, and returns the record of the first; the memory reads as zero.
    /// `None` if there is no room, or the system refuses memory.
    pub(crate) fn take<O: Os>(&self, os: &O, map: &PageMap, len: usize, align: usize) -> Option<Record> {
        let (base, chunks) = self.place()?;
        let skew = (base >> CHUNK_SHIFT) % align;
        let index = self.claims.claim(len, align, skew, chunks)?;
        if !self.commit(os, map, index, len) {
            self.claims.release(index, len);
            return None;
        }
        self.used.fetch_add(len, Ordering::Relaxed);
        Some(Self::record(base, index))
    }

    /// The record of a committed chunk of the reentrant reserve at `base`.
    fn record(base: usize, index: usize) -> Record {
        // SAFETY: as said.
        unsafe { Record::at(layout::at(base + (index << CHUNK_SHIFT))) }
    }

    /// Gives the caller's chunks from `c` on back, which read as zero.
    pub(crate) fn give(&self, c: Record, len: usize) {
        if let Some((base, _)) = self.place() {
            self.used.fetch_sub(len, Ordering::Relaxed);
            self.claims.release((c.start().addr() - base) >> CHUNK_SHIFT, len);
        }
    }

    /// Chunks of the caller's are lost: they stay claimed.
    pub(crate) fn lose(&self, len: usize) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }

    /// Commits the groups of some chunks of the caller's; false if the system refuses.
    fn commit<O: Os>(&self, os: &O, map: &PageMap, index: usize, len: usize) -> bool {
        let (first, end) = (index / GROUP, (index + len).div_ceil(GROUP));
        if (first..end).all(|group| self.is_committed(group)) {
            return true;
        }
        let Some((base, chunks)) = self.place() else { return false };
        let arena_chunks = self.arena_chunks.load(Ordering::Relaxed);
        let before = arena_chunks - chunks;
        let to = before + (end * GROUP).min(chunks);
        // Nothing in front of it is committed, as in the first step of an arena.
        let from = before + first * GROUP;
        let step = Step { base: base & !(ARENA_ALIGN - 1), chunks: arena_chunks, fresh: true, from, to };
        // SAFETY: the step lies in the arena; as it counts for the first one, it needs nothing before it.
        if !unsafe { step.make(os, map) } {
            return false;
        }
        for group in first..end {
            // Release: see `is_committed`.
            self.committed[group / 64].fetch_or(1 << (group % 64), Ordering::Release);
        }
        true
    }

    /// The records of large blocks, at rest. For tests.
    pub(crate) fn for_each_large(&self, visit: impl FnMut(Record)) {
        let Some((base, chunks)) = self.place() else { return };
        let committed = (0..chunks).filter(|&i| self.is_committed(i / GROUP));
        committed.map(|i| Self::record(base, i)).filter(|c| c.kind() == Kind::REENTRANT).for_each(visit);
    }

    /// Whether the chunk of `c` is claimed. For tests.
    pub(crate) fn is_claimed(&self, c: Record) -> bool {
        self.place().is_some_and(|(base, _)| self.claims.is_claimed((c.start().addr() - base) >> CHUNK_SHIFT))
    }
}
