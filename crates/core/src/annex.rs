//! The annex: chunks at the end of the first arena for nested calls, which are calls in a signal handler that
//! interrupted another call of the same thread (`nested.rs`). They take no lock and wait for nobody.
//!
//! - Chunks are claimed by bits ([`Claims`]), and committed in groups when they are first used. Committing what is
//!   committed does no harm, so two threads may do it at a time.
//! - A slab here is an ordinary slab to all who free its blocks: the page map knows its class, the record says that its
//!   owner is nobody (`owner`). It was carved whole; a block is free exactly when its remote bit is set. So a
//!   free is what every free to another thread's slab is, and malloc takes the bit back. The slab's count starts so
//!   high that nobody ever finds it 0, so it is on no pending stack.
//! - Slabs of a class are in a list that is only pushed to; they stay slabs. The purger gives the memory of one back
//!   whose blocks are all free: it takes them all meanwhile.
//! - A large block here has the kind [`Kind::NESTED`]. Whoever frees it purges it and gives the chunks back, so what is
//!   claimed reads as zero unless it is a slab.
//!
//! Cost: where no call is ever nested, 4 KiB of zeroes that nobody touches.

use crate::arena::{ARENA_ALIGN, Arenas};
use crate::chunk::{Chunk, Kind};
use crate::claims::Claims;
use crate::class::{self, CLASSES};
use crate::commit::Step;
use crate::os::Run;
use crate::page_map::PageMap;
use crate::remote::DoubleFree;
use crate::sync::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use crate::{CHUNK, CHUNK_SHIFT, Heap, Os, slab};
use core::ops::Range;

/// Most chunks: 1 GiB.
const MOST: usize = (1 << 30) / CHUNK;
/// A shorter arena has so many times the chunks of its annex.
const SHARE: usize = 16;
/// Chunks that are committed together: a megabyte.
const GROUP: usize = 16;

/// What its address stands for.
static OWNER: AtomicU8 = AtomicU8::new(0);

/// The owner of the annex's slabs: an address that is no heap's, and that nobody looks behind.
pub(crate) fn owner() -> *mut Heap {
    (&raw const OWNER).cast_mut().cast()
}

/// Chunks of the annex of an arena of `chunks` chunks.
pub(crate) const fn share(chunks: usize) -> usize {
    let n = chunks / SHARE;
    if n < MOST { n } else { MOST }
}

/// The annex. Its end is that of its arena.
#[derive(Debug)]
pub struct Annex {
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
    /// The newest slab of each class, and the one that had a free block last.
    slabs: [AtomicPtr<Chunk>; CLASSES],
    recent: [AtomicPtr<Chunk>; CLASSES],
    /// Chunks that are claimed, slabs, large blocks and their usable bytes.
    pub(crate) used: AtomicUsize,
    pub(crate) slab_count: AtomicUsize,
    pub(crate) large_blocks: AtomicUsize,
    pub(crate) large_bytes: AtomicUsize,
}

impl Arenas {
    /// Opens the annex, once the page map is there, or known to be missing. The lock of the ranges must be held.
    pub(crate) fn open_annex(&self) {
        if let Some((first, _)) = self.used(0)
            // SAFETY: the lock is held.
            && !unsafe { self.nth(0) }.released.get()
        {
            let (base, _, chunks) = self.place(first);
            self.annex.open(base, chunks);
        }
    }
}

impl Default for Annex {
    fn default() -> Self {
        Self::new()
    }
}

impl Annex {
    /// There is none.
    pub const fn new() -> Self {
        Annex {
            base: AtomicUsize::new(0),
            chunks: AtomicUsize::new(0),
            arena_chunks: AtomicUsize::new(0),
            cut: AtomicUsize::new(0),
            claims: Claims::new(),
            committed: [const { AtomicU64::new(0) }; MOST / GROUP / 64],
            slabs: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
            recent: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
            used: AtomicUsize::new(0),
            slab_count: AtomicUsize::new(0),
            large_blocks: AtomicUsize::new(0),
            large_bytes: AtomicUsize::new(0),
        }
    }

    /// From now on nested calls may use the end of the arena at `base`, which nobody else does.
    fn open(&self, base: usize, arena_chunks: usize) {
        let chunks = share(arena_chunks);
        if chunks > 0 {
            self.chunks.store(chunks, Ordering::Relaxed);
            self.arena_chunks.store(arena_chunks, Ordering::Relaxed);
            // Release pairs with the Acquire of `base`.
            self.base.store(base + ((arena_chunks - chunks) << CHUNK_SHIFT), Ordering::Release);
        }
    }

    /// Address of the first chunk, and how many there are; `None` where there is no annex (yet).
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
    pub(crate) fn take<O: Os>(&self, os: &O, map: &PageMap, len: usize, align: usize) -> Option<*mut Chunk> {
        let (base, chunks) = self.place()?;
        let skew = (base >> CHUNK_SHIFT) % align;
        let index = self.claims.claim(len, align, skew, chunks)?;
        if !self.commit(os, map, index, len) {
            self.claims.release(index, len);
            return None;
        }
        self.used.fetch_add(len, Ordering::Relaxed);
        let p = core::ptr::with_exposed_provenance::<u8>(base + (index << CHUNK_SHIFT));
        Some(Arenas::record(p))
    }

    /// Gives the chunks from `c` on back.
    ///
    /// # Safety
    /// They must be the caller's, and read as zero.
    pub(crate) unsafe fn give(&self, c: *mut Chunk, len: usize) {
        if let Some((base, _)) = self.place() {
            self.used.fetch_sub(len, Ordering::Relaxed);
            self.claims.release((Arenas::chunk(c).addr() - base) >> CHUNK_SHIFT, len);
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

    /// A block of a slab of `class` that has one free. Linear in the slabs of the class, mostly one.
    pub(crate) fn take_block(&self, class: usize) -> Option<*mut u8> {
        let recent = self.recent[class].load(Ordering::Acquire);
        // SAFETY: slabs of the annex stay slabs.
        let found = unsafe { take_from(recent, class) };
        found.or_else(|| {
            self.slabs_of(class).find_map(|c| {
                // SAFETY: as above.
                let p = unsafe { take_from(c, class) }?;
                // Release, here and in `make_slab`, pairs with the Acquire of whoever loads the pointer: the record is set up.
                self.recent[class].store(c, Ordering::Release);
                Some(p)
            })
        })
    }

    /// Makes the chunk of `c` a slab of `class` and returns its first block.
    ///
    /// # Safety
    /// The chunk must be the caller's, from [`Annex::take`].
    pub(crate) unsafe fn make_slab(&self, arenas: &Arenas, map: &PageMap, c: *mut Chunk, class: usize) -> *mut u8 {
        let capacity = class::capacity(class);
        // SAFETY: the chunk and so its record and bits are the caller's until it is in the list; remote bits are zero.
        unsafe {
            slab::set_up(arenas, c, class, owner(), false);
            (*c).carved = capacity;
            (*c).used = capacity;
            for word in 0..capacity.div_ceil(64) as usize {
                let blocks = (capacity as usize - word * 64).min(64);
                // The first block is the caller's.
                let mask = (u64::MAX >> (64 - blocks)) & !u64::from(word == 0);
                // Relaxed: the exchange below shows it.
                slab::remote_word(c, word).store(mask, Ordering::Relaxed);
            }
            (*c).remote.set_apart(capacity - 1);
            map.set(Arenas::chunk(c), class);
            self.slab_count.fetch_add(1, Ordering::Relaxed);
            let head = &self.slabs[class];
            let mut next = head.load(Ordering::Relaxed);
            loop {
                (*c).next = next;
                // Release: see `take_block`.
                match head.compare_exchange_weak(next, c, Ordering::Release, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(now) => next = now,
                }
            }
        }
        self.recent[class].store(c, Ordering::Release);
        Arenas::chunk(c)
    }

    /// Gives the memory of the slab `c` back to the system if all its blocks are free, and it was not given back since one
    /// was taken; returns the bytes. Whoever allocates meanwhile finds no block there. An error if the program freed one of
    /// the free blocks once more meanwhile. `purge` does it: false if the system refuses. `masks` is room for the bits of
    /// the blocks, which is not on the stack, as that may be short.
    pub(crate) fn purge_slab(
        &self,
        c: *mut Chunk,
        masks: &mut [u64; crate::arena::BITS_BYTES / 8],
        purge: impl FnOnce(Run) -> bool,
    ) -> Result<usize, DoubleFree> {
        // SAFETY: slabs of the annex stay slabs; those of its blocks that are taken here are ours.
        unsafe {
            let capacity = class::capacity(usize::from((*c).class));
            // Relaxed, here and in `take_from`: the bits order it.
            if (*c).remote.apart() != capacity || (*c).clean.load(Ordering::Relaxed) != 0 {
                return Ok(0);
            }
            let words = capacity.div_ceil(64) as usize;
            let mut taken = 0;
            for (word, mask) in masks[..words].iter_mut().enumerate() {
                *mask = (*c).remote.take_all(slab::remote_word(c, word));
                taken += mask.count_ones();
            }
            let purged = taken == capacity && purge(Run { start: Arenas::chunk(c), len: CHUNK });
            (*c).clean.store(u16::from(purged), Ordering::Relaxed);
            for (word, &mask) in masks[..words].iter().enumerate().filter(|(_, mask)| **mask != 0) {
                (*c).remote.free(slab::remote_word(c, word), mask)?;
            }
            Ok(if purged { CHUNK } else { 0 })
        }
    }

    /// The slabs of `class`, newest first.
    pub(crate) fn slabs_of(&self, class: usize) -> impl Iterator<Item = *mut Chunk> {
        let mut c = self.slabs[class].load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let here = c;
            if here.is_null() {
                return None;
            }
            // SAFETY: a slab in the list has a record, whose link never changes.
            c = unsafe { (*here).next };
            Some(here)
        })
    }

    /// The records of large blocks, at rest. For tests.
    pub(crate) fn for_each_large(&self, mut visit: impl FnMut(*mut Chunk)) {
        let Some((base, chunks)) = self.place() else { return };
        for index in (0..chunks).filter(|&i| self.is_committed(i / GROUP)) {
            let c = Arenas::record(core::ptr::with_exposed_provenance::<u8>(base + (index << CHUNK_SHIFT)));
            // SAFETY: records of committed chunks are readable.
            if unsafe { (*c).kind.get() } == Kind::NESTED {
                visit(c);
            }
        }
    }

    /// Whether the chunk of `c` is claimed. For tests.
    pub(crate) fn is_claimed(&self, c: *mut Chunk) -> bool {
        self.place().is_some_and(|(base, _)| self.claims.is_claimed((Arenas::chunk(c).addr() - base) >> CHUNK_SHIFT))
    }
}

/// A free block of the slab `c`, or `None`. Null has none.
///
/// # Safety
/// `c` must be null or a slab of the annex, of `class`.
unsafe fn take_from(c: *mut Chunk, class: usize) -> Option<*mut u8> {
    // SAFETY: a slab of the annex stays one; addresses stay inside the chunk.
    unsafe {
        if c.is_null() || (*c).remote.apart() == 0 {
            return None;
        }
        (0..class::capacity(class).div_ceil(64) as usize).find_map(|word| {
            let bit = (*c).remote.take(slab::remote_word(c, word))?;
            if (*c).clean.load(Ordering::Relaxed) != 0 {
                (*c).clean.store(0, Ordering::Relaxed);
            }
            Some(Arenas::chunk(c).add((word * 64 + bit as usize) * class::SIZE[class] as usize))
        })
    }
}
