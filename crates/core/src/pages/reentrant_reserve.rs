//! The reentrant reserve: chunks at the end of the first arena for reentrant calls (calls in a signal handler that
//! interrupted another call of the same thread, see `blocks/reentrant.rs`). It takes no lock and does not wait.
//!
//! A call claims chunks by their bits ([`Claims`]), and commits them in groups at the first use. To commit a group
//! twice does no harm, so two threads may commit the same group at the same time. `blocks/reentrant_blocks.rs` makes
//! slabs and large blocks of the chunks. Chunks that are free read as zero. With `huge=hugetlb` heaps lie here too
//! (`blocks/lives.rs`).
//!
//! Cost in a program without reentrant calls: some 2 KiB of zeros that are never touched.

use crate::pages::chunk::{Kind, Record};
use crate::pages::commit::Step;
use crate::pages::layout::{self, ARENA_ALIGN};
use crate::pages::page_map::PageMap;
use crate::system::claims::Claims;
use crate::system::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::{CHUNK, CHUNK_SHIFT, Os};
use core::ops::Range;

/// Limit on its chunks: 1 GiB.
const MOST: usize = (1 << 30) / CHUNK;
/// In a shorter arena, the reserve is one part in this many of the arena.
const SHARE: usize = 16;
/// Number of chunks that are committed together: 1 MiB.
const GROUP: usize = 16;

/// Number of chunks of the reentrant reserve in an arena of `chunks` chunks.
pub(crate) const fn share(chunks: usize) -> usize {
    let n = chunks / SHARE;
    if n < MOST { n } else { MOST }
}

/// The reentrant reserve. It ends where its arena ends. The words that each program writes come last, see `Arenas`.
#[repr(C)]
#[derive(Debug)]
pub struct ReentrantReserve {
    /// A bit for each chunk that is claimed.
    claims: Claims<{ MOST / 64 }>,
    /// A bit for each group that is committed.
    committed: [AtomicU64; MOST / GROUP / 64],
    /// Number of chunks that blocks use.
    pub(crate) used: AtomicUsize,
    /// Number of chunks at its end whose addresses were given back.
    cut: AtomicUsize,
    /// Address of the first chunk; 0 until the reserve is open, and where there is none.
    base: AtomicUsize,
    /// Number of its chunks; not 0 once `base` is not 0.
    chunks: AtomicUsize,
    /// Number of chunks of the arena; not 0 once `base` is not 0.
    arena_chunks: AtomicUsize,
}

impl ReentrantReserve {
    /// Where an observer in another process finds the address of the first chunk.
    pub(crate) const BASE_AT: usize = core::mem::offset_of!(Self, base);

    /// A reserve that is not open.
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

    /// Opens the reserve: from now on reentrant calls may use the end of the arena at `base`, which other calls do not
    /// use.
    pub(crate) fn open(&self, base: usize, arena_chunks: usize) {
        let chunks = share(arena_chunks);
        if chunks > 0 {
            self.chunks.store(chunks, Ordering::Relaxed);
            self.arena_chunks.store(arena_chunks, Ordering::Relaxed);
            // Release pairs with the Acquire of `base`.
            self.base.store(base + ((arena_chunks - chunks) << CHUNK_SHIFT), Ordering::Release);
        }
    }

    /// Address of the first chunk, and the number of chunks; `None` unless the reserve is open.
    fn place(&self) -> Option<(usize, usize)> {
        // Acquire pairs with the Release of `open`: the arena and the page map are set up.
        let base = self.base.load(Ordering::Acquire);
        (base != 0).then(|| (base, self.chunks.load(Ordering::Relaxed)))
    }

    /// Whether `p` lies in a committed chunk of the reserve, so that it has a record.
    pub(crate) fn holds(&self, p: *const u8) -> bool {
        let Some((base, chunks)) = self.place() else { return false };
        let index = p.addr().wrapping_sub(base) >> CHUNK_SHIFT;
        index < chunks && self.is_committed(index / GROUP)
    }

    fn is_committed(&self, group: usize) -> bool {
        // Acquire pairs with the Release of `commit`: a thread that sees the bit uses the chunks after they were
        // committed, also if it got no block there.
        self.committed[group / 64].load(Ordering::Acquire) >> (group % 64) & 1 != 0
    }

    /// The chunks that are or may be committed, as indexes in the arena, which has `arena_chunks` chunks.
    pub(crate) fn in_use(&self, arena_chunks: usize) -> Range<usize> {
        let first = arena_chunks - share(arena_chunks);
        // Relaxed: written and read under the lock of the ranges.
        let cut = self.cut.load(Ordering::Relaxed);
        if self.place().is_some() { first..arena_chunks - cut } else { first..first }
    }

    /// Calls `f` with the chunks that are or may come into use, as indexes in the arena, which has `arena_chunks` chunks:
    /// up to the last group that is committed or claimed. The groups behind it are claimed meanwhile, as reentrant calls
    /// take no lock: one that needs such a group gets a mapping of its own.
    pub(crate) fn with_rest_claimed<R>(&self, arena_chunks: usize, f: impl FnOnce(Range<usize>) -> R) -> R {
        let Some((_, chunks)) = self.place() else { return f(0..0) };
        // Relaxed: written and read under the lock of the ranges.
        let end = chunks - self.cut.load(Ordering::Relaxed);
        let mut used = end;
        while used > 0 && self.claim_unused(used.next_multiple_of(GROUP) - GROUP, used) {
            used = used.next_multiple_of(GROUP) - GROUP;
        }
        let before = arena_chunks - chunks;
        let result = f(if used == 0 { 0..0 } else { before..before + used });
        self.claims.release(used, end - used);
        result
    }

    /// Claims the chunks `from..to` of a group; false if one of them is claimed, or if the group is committed.
    fn claim_unused(&self, from: usize, to: usize) -> bool {
        let claimed = self.claims.try_claim(from, to - from).is_ok();
        if claimed && self.is_committed(from / GROUP) {
            self.claims.release(from, to - from);
            return false;
        }
        claimed
    }

    /// Claims the groups at the end that were never committed, permanently, as the caller gives their addresses back.
    /// The caller holds the lock of the ranges.
    pub(crate) fn cut(&self) {
        let Some((_, chunks)) = self.place() else { return };
        let mut left = chunks / GROUP;
        while left > 0 && self.claim_unused((left - 1) * GROUP, left * GROUP) {
            left -= 1;
        }
        self.cut.store(chunks - left * GROUP, Ordering::Relaxed);
    }

    /// Claims `len` chunks, aligned to `align` chunks, and returns the record of the first; the memory reads as zero.
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
        // SAFETY: the callers pass the index of a committed chunk.
        unsafe { Record::at(layout::at(base + (index << CHUNK_SHIFT))) }
    }

    /// Gives back `len` chunks of the caller from `c` on, which must read as zero.
    pub(crate) fn give(&self, c: Record, len: usize) {
        if let Some((base, _)) = self.place() {
            self.used.fetch_sub(len, Ordering::Relaxed);
            self.claims.release((c.start().addr() - base) >> CHUNK_SHIFT, len);
        }
    }

    /// Gives up `len` chunks of the caller, which stay claimed: the system refuses to make them usable again.
    pub(crate) fn lose(&self, len: usize) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }

    /// Commits the groups of `len` chunks that the caller has claimed, from `index` on; false if the system refuses.
    fn commit<O: Os>(&self, os: &O, map: &PageMap, index: usize, len: usize) -> bool {
        let (first, end) = (index / GROUP, (index + len).div_ceil(GROUP));
        if (first..end).all(|group| self.is_committed(group)) {
            return true;
        }
        let Some((base, chunks)) = self.place() else { return false };
        let arena_chunks = self.arena_chunks.load(Ordering::Relaxed);
        let before = arena_chunks - chunks;
        let to = before + (end * GROUP).min(chunks);
        // `fresh`: the chunks in front of it may not be committed, as in the first step of an arena.
        let from = before + first * GROUP;
        let step = Step { base: base & !(ARENA_ALIGN - 1), chunks: arena_chunks, fresh: true, from, to };
        // SAFETY: the step lies in the arena, and is `fresh`; what is made is committed.
        if !unsafe { step.make(os, map) && step.begin(os, map) } {
            return false;
        }
        for group in first..end {
            // Release: pairs with the Acquire of `is_committed`.
            self.committed[group / 64].fetch_or(1 << (group % 64), Ordering::Release);
        }
        true
    }

    /// Calls `visit` with the record of each chunk of `kind`, while no thread uses the reserve. For tests.
    pub(crate) fn for_each(&self, kind: Kind, visit: impl FnMut(Record)) {
        let Some((base, chunks)) = self.place() else { return };
        let committed = (0..chunks).filter(|&i| self.is_committed(i / GROUP));
        committed.map(|i| Self::record(base, i)).filter(|c| c.kind() == kind).for_each(visit);
    }

    /// Whether the chunk of `c` is claimed. For tests.
    pub(crate) fn is_claimed(&self, c: Record) -> bool {
        self.place().is_some_and(|(base, _)| self.claims.is_claimed((c.start().addr() - base) >> CHUNK_SHIFT))
    }
}
