//! Figures: how much memory is where, for observers.
//!
//! Nothing is counted on the fast paths of malloc and free. Each heap counts what moves between its caches and slabs
//! (`Flow`, plain stores by its owner), the ranges count what their chunks hold (`Held`, under their lock), and
//! [`Allocator::figures`] puts the sums together: some 100 ns for each heap, whatever the number of chunks.
//!
//! Who publishes: each tick of the purger; where it has no helper, or one with long ticks, slow paths do, when
//! the chunks in use have changed by a megabyte (`Held::news`). Programs that never had so much publish nothing.
//!
//! Equations: `blocks that left slabs - blocks that came back == live + cached`, over all heaps.

use crate::chunk::Kind;
use crate::life::Registry;
use crate::range::Ranges;
use crate::shelf::Shelf;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::{Allocator, CHUNK, Heap, Os};

/// Chunks of the first step of an arena: programs that use fewer publish nothing.
const FIRST: usize = (3 << 19) / CHUNK;
/// A change of so many chunks is news, in a program of few heaps.
const STEP: usize = (1 << 20) / CHUNK;
/// Less chunks in use are news where they are less by an eighth, and so many times in so many milliseconds: there are
/// programs whose use goes up and down with each call.
const LESS: usize = 8;
const MOST_SHRUNK: u32 = 64;
const SHRUNK_MS: u64 = 10;
/// Where the helper's ticks are longer, slow paths publish as well.
const LONG_TICK_MS: u32 = 200;

/// No news.
const NONE: u8 = 0;
/// There are less chunks in use.
const SHRUNK: u8 = 1;
/// There are more, or there is other news.
const GROWN: u8 = 2;

/// What went through one heap. Written by whoever may use the heap, with plain loads and stores; read by anybody.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Blocks from slabs less blocks to slabs: may be below zero, as threads free each other's blocks.
    blocks: AtomicU64,
    /// Their bytes.
    bytes: AtomicU64,
    /// Bytes of zeroed blocks that were cleared, and that did not have to be.
    cleared: AtomicU64,
    skipped: AtomicU64,
    /// OS pages of slabs that were clean and are not any more.
    clean: AtomicU64,
    /// Usable bytes of large blocks that came from the shelf, less those of blocks that were put there.
    large: AtomicU64,
}

// Relaxed, here and below: each number stands for itself.
fn add(number: &AtomicU64, n: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Flow {
    pub(crate) const fn new() -> Self {
        Flow {
            blocks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            clean: AtomicU64::new(0),
            large: AtomicU64::new(0),
        }
    }

    /// A block was taken that lies on so many clean OS pages.
    #[inline]
    pub(crate) fn take_clean(&self, pages: u32) {
        add(&self.clean, pages.into());
    }

    /// OS pages so far that [`Flow::take_clean`] was told of.
    pub(crate) fn clean_pages(&self) -> u64 {
        self.clean.load(Ordering::Relaxed)
    }

    /// A large block of `bytes` was put on the shelf.
    #[inline]
    pub(crate) fn shelve(&self, bytes: usize) {
        add(&self.large, (bytes as u64).wrapping_neg());
    }

    /// One left the shelf, and has `bytes` now.
    #[inline]
    pub(crate) fn unshelve(&self, bytes: usize) {
        add(&self.large, bytes as u64);
    }

    /// `count` blocks of `class` left slabs.
    #[inline]
    pub(crate) fn take(&self, class: usize, count: u32) {
        add(&self.blocks, u64::from(count));
        add(&self.bytes, u64::from(count) * u64::from(crate::class::SIZE[class]));
    }

    /// `count` blocks of `class` came back to slabs.
    #[inline]
    pub(crate) fn give(&self, class: usize, count: u32) {
        add(&self.blocks, u64::from(count).wrapping_neg());
        add(&self.bytes, (u64::from(count) * u64::from(crate::class::SIZE[class])).wrapping_neg());
    }

    /// [`Flow::take`] of one block by any number of threads at a time.
    pub(crate) fn take_shared(&self, class: usize) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(u64::from(crate::class::SIZE[class]), Ordering::Relaxed);
    }

    /// [`Flow::give`] of one block by any number of threads at a time.
    pub(crate) fn give_shared(&self, class: usize) {
        self.blocks.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(u64::from(crate::class::SIZE[class]), Ordering::Relaxed);
    }

    /// A zeroed block was handed out, of which so many bytes were cleared, and so many did not have to be.
    #[inline]
    pub(crate) fn zeroed(&self, cleared: usize, skipped: usize) {
        add(&self.cleared, cleared as u64);
        add(&self.skipped, skipped as u64);
    }
}

/// What chunks are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A slab.
    Slab,
    /// A large block of so many usable bytes.
    Large {
        /// Usable bytes.
        bytes: usize,
        /// It shall be zero, and what is known to be is not cleared.
        zero: bool,
    },
    /// Heaps.
    Heaps,
}

impl Use {
    /// The kind of the first chunk, as long as nothing else is said.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Use::Slab => Kind::NONE,
            Use::Large { .. } => Kind::LARGE,
            Use::Heaps => Kind::HEAPS,
        }
    }
}

/// What the chunks that are taken hold. Used under the lock of the ranges.
#[derive(Debug)]
pub struct Held {
    slabs: usize,
    large_blocks: usize,
    /// With what is on shelves, as long as it was when it was taken. Wraps around where that has become longer since.
    large_bytes: usize,
    /// Bytes of zeroed large blocks that were known to be zero.
    skipped: u64,
    /// Chunks in use when the figures were last published, and how many more or less are news.
    seen: usize,
    step: usize,
}

impl Default for Held {
    fn default() -> Self {
        Self::new()
    }
}

impl Held {
    /// Nothing.
    pub const fn new() -> Self {
        Held { slabs: 0, large_blocks: 0, large_bytes: 0, skipped: 0, seen: FIRST - STEP, step: STEP }
    }

    /// Chunks were taken, `dirty` bytes of which may hold anything.
    #[inline]
    pub(crate) fn take(&mut self, what: Use, dirty: usize) {
        match what {
            Use::Slab => self.slabs += 1,
            Use::Large { bytes, zero } => {
                self.large_blocks += 1;
                self.large_bytes = self.large_bytes.wrapping_add(bytes);
                self.skipped += if zero { bytes.saturating_sub(dirty) as u64 } else { 0 };
            }
            Use::Heaps => {}
        }
    }

    /// They were given back.
    #[inline]
    pub(crate) fn give(&mut self, what: Use) {
        match what {
            Use::Slab => self.slabs -= 1,
            Use::Large { bytes, .. } => {
                self.large_blocks -= 1;
                self.large_bytes = self.large_bytes.wrapping_sub(bytes);
            }
            Use::Heaps => {}
        }
    }

    /// A large block has other usable bytes.
    #[inline]
    pub(crate) fn resize(&mut self, from: usize, to: usize) {
        self.large_bytes = self.large_bytes.wrapping_sub(from).wrapping_add(to);
    }

    /// What `taken` chunks in use mean to observers.
    #[inline]
    fn news(&self, taken: usize) -> u8 {
        if taken >= self.seen {
            return if taken - self.seen >= self.step { GROWN } else { NONE };
        }
        if self.seen - taken >= self.step.max(self.seen / LESS) { SHRUNK } else { NONE }
    }
}

/// What only grows, since the process began or its last fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes given back to the system, those included that it was only told of (`purge=lazy`).
    pub purged: u64,
    /// Bytes of zeroed blocks that were cleared.
    pub cleared: u64,
    /// Bytes of zeroed blocks that were known to be zero.
    pub skipped: u64,
}

/// How much memory is where. Bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Clock of these figures, in milliseconds.
    pub clock: u64,
    /// Ticks of the purger so far.
    pub ticks: u64,
    /// Who is the purger: 0 nobody, 1 a helper thread, 2 the threads that free memory.
    pub purger: u32,
    /// Live blocks, a number.
    pub live_blocks: u64,
    /// Usable bytes of live blocks.
    pub live: u64,
    /// Blocks in caches, a number.
    pub cached_blocks: u64,
    /// Bytes of blocks in caches.
    pub cached: u64,
    /// Free ranges that wait to go back.
    pub dirty: u64,
    /// Free ranges that the system was told of, and takes when it wants to, or refused to take.
    pub lazy: u64,
    /// Free ranges that hold no memory.
    pub clean: u64,
    /// Chunks that are slabs.
    pub slabs: u64,
    /// What is free in slabs: free blocks, and what was never carved. Memory may lie there or not.
    pub slab_free: u64,
    /// Large blocks, a number, and their usable bytes.
    pub large_blocks: u64,
    /// Usable bytes of large blocks.
    pub large: u64,
    /// Huge blocks, a number.
    pub huge_blocks: u64,
    /// Usable bytes of huge blocks.
    pub huge: u64,
    /// Heaps: threads that use neap at present or did, a number.
    pub heaps: u64,
    /// Sums over time.
    pub totals: Totals,
    /// The memory limit that was last looked at, and how much was used of it; 0: none was.
    pub memory_limit: u64,
    /// What was used of it.
    pub memory_used: u64,
    /// Most bytes of arenas that were taken or dirty at one time.
    pub peak: u64,
    /// So much of what waits is held for the program, see `demand.rs`; it may be more than waits.
    pub held: u64,
}

/// What publication keeps.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// There is news, see above.
    news: AtomicU8,
    /// Clock of the first publication of these milliseconds because of less chunks in use, and their number.
    since: AtomicU64,
    shrunk: AtomicU32,
    /// Heaps that there are.
    pub(crate) heaps: AtomicUsize,
    /// Frees by threads without a heap.
    pub(crate) stray: Flow,
    /// The totals at the last fork.
    base: [AtomicU64; 3],
    /// See [`Figures`].
    limit: AtomicU64,
    used: AtomicU64,
}

impl Publisher {
    pub(crate) const fn new() -> Self {
        Publisher {
            news: AtomicU8::new(NONE),
            since: AtomicU64::new(0),
            shrunk: AtomicU32::new(0),
            heaps: AtomicUsize::new(0),
            stray: Flow::new(),
            base: [const { AtomicU64::new(0) }; 3],
            limit: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }

    /// Whether [`Allocator::tell_news`] has something to do.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) != NONE
    }

    /// There is something to tell at the next slow path.
    pub(crate) fn note(&self) {
        self.news.store(GROWN, Ordering::Relaxed);
    }

    /// Whether there were few publications because of less chunks in use. A count that is wrong by some does no harm.
    fn may_shrink(&self, now: u64) -> bool {
        if now.wrapping_sub(self.since.load(Ordering::Relaxed)) >= SHRUNK_MS {
            self.since.store(now, Ordering::Relaxed);
            self.shrunk.store(0, Ordering::Relaxed);
        }
        self.shrunk.fetch_add(1, Ordering::Relaxed) < MOST_SHRUNK
    }

    /// The memory limit was looked at.
    pub(crate) fn note_memory(&self, memory: Option<crate::os::Memory>) {
        let (limit, used) = memory.map_or((0, 0), |m| (m.limit as u64, m.used as u64));
        self.limit.store(limit, Ordering::Relaxed);
        self.used.store(used, Ordering::Relaxed);
    }
}

/// Sums over heaps.
#[derive(Default)]
struct Sums {
    blocks: u64,
    bytes: u64,
    cached_blocks: u64,
    cached: u64,
    cleared: u64,
    skipped: u64,
    large: u64,
    shelved_blocks: u64,
    shelved: u64,
}

impl Sums {
    fn add(&mut self, flow: &Flow) {
        for (sum, number) in [
            (&mut self.blocks, &flow.blocks),
            (&mut self.bytes, &flow.bytes),
            (&mut self.cleared, &flow.cleared),
            (&mut self.skipped, &flow.skipped),
            (&mut self.large, &flow.large),
        ] {
            *sum = sum.wrapping_add(number.load(Ordering::Relaxed));
        }
    }
}

/// A sum of numbers that were read one after the other, while they changed: it may look negative.
fn at_least_0(sum: u64) -> u64 {
    sum.cast_signed().max(0).cast_unsigned()
}

impl<O: Os> Allocator<O> {
    /// How much memory is where, now. Exact where no other thread runs; else, what moves meanwhile may be counted at
    /// one place, at both or at none.
    #[cold]
    pub fn figures(&self) -> Figures {
        self.drain();
        let annex = &self.arenas.annex;
        let annexed = [&annex.slab_count, &annex.large_blocks, &annex.large_bytes].map(|n| n.load(Ordering::Relaxed));
        let sums = self.sum_heaps();
        let huge_blocks = self.huge.count();
        let huge = self.huge_bytes.load(Ordering::Relaxed);
        let mut f = self.ranges.with(&self.os, |r| {
            let chunks = |n: usize| (n * CHUNK) as u64;
            Figures {
                dirty: chunks(r.waiting()),
                lazy: chunks((r.free_chunks[1] + r.dropped_chunks).saturating_sub(r.waiting())),
                clean: chunks(r.free_chunks[0]),
                slabs: chunks(r.held.slabs + annexed[0]),
                peak: chunks(r.peak_chunks.max(r.footprint())),
                held: chunks(r.demand.keep()),
                large_blocks: (r.held.large_blocks + annexed[1]) as u64,
                large: at_least_0((r.held.large_bytes.wrapping_add(annexed[2]) as u64).wrapping_add(sums.large)),
                ..Figures::default()
            }
        });
        f.clock = self.os.clock();
        (f.ticks, f.purger) = (self.purger.ticks(), self.os.helper().who() as u32);
        // The heaps were read one after the other: no more than is there can be cached.
        let (blocks, bytes) = (at_least_0(sums.blocks), at_least_0(sums.bytes));
        f.cached_blocks = sums.cached_blocks.min(blocks);
        f.cached = sums.cached.min(bytes);
        f.large_blocks = f.large_blocks.saturating_sub(sums.shelved_blocks);
        (f.huge_blocks, f.huge) = (huge_blocks as u64, huge as u64);
        f.live_blocks = blocks - f.cached_blocks + f.large_blocks + f.huge_blocks;
        f.live = bytes - f.cached + f.large + f.huge;
        f.slab_free = f.slabs.saturating_sub(bytes);
        f.cached_blocks += sums.shelved_blocks;
        f.cached += sums.shelved;
        f.heaps = self.publisher.heaps.load(Ordering::Relaxed) as u64;
        f.totals = self.totals_since_fork(&sums);
        f.memory_limit = self.publisher.limit.load(Ordering::Relaxed);
        f.memory_used = self.publisher.used.load(Ordering::Relaxed);
        f
    }

    fn sum_heaps(&self) -> Sums {
        let mut sums = Sums::default();
        let mut heap = self.registry.with(&self.os, |r: &mut Registry| r.all);
        while !heap.is_null() {
            // SAFETY: heaps are never unmapped, and `next` never changes; the numbers are atomics, caches are a guess.
            unsafe {
                let (blocks, bytes) = Heap::cached_now(heap);
                sums.cached_blocks += blocks;
                sums.cached += bytes;
                let (blocks, bytes) = Shelf::holds(&raw const (*heap).shelf);
                sums.shelved_blocks += blocks;
                sums.shelved += bytes;
                sums.add(&(*heap).flow);
                heap = (*heap).next;
            }
        }
        sums.add(&self.publisher.stray);
        sums
    }

    fn totals(&self, sums: &Sums) -> Totals {
        let skipped_large = self.ranges.with(&self.os, |r| r.held.skipped);
        Totals {
            purged: self.purger.purged.load(Ordering::Relaxed),
            cleared: self.habits.cleared.load(Ordering::Relaxed).wrapping_add(sums.cleared),
            skipped: self.habits.skipped.load(Ordering::Relaxed).wrapping_add(sums.skipped).wrapping_add(skipped_large),
        }
    }

    fn totals_since_fork(&self, sums: &Sums) -> Totals {
        let t = self.totals(sums);
        let base = |i: usize| self.publisher.base[i].load(Ordering::Relaxed);
        Totals {
            purged: t.purged.wrapping_sub(base(0)),
            cleared: t.cleared.wrapping_sub(base(1)),
            skipped: t.skipped.wrapping_sub(base(2)),
        }
    }

    /// In the child of a fork: totals begin anew, and whatever is there is news.
    pub(crate) fn forget_totals(&self) {
        let t = self.totals(&self.sum_heaps());
        for (base, total) in self.publisher.base.iter().zip([t.purged, t.cleared, t.skipped]) {
            base.store(total, Ordering::Relaxed);
        }
        self.ranges.with(&self.os, |r| r.held.seen = FIRST - STEP);
    }

    /// Publishes the figures.
    pub fn publish(&self) {
        let f = self.figures();
        self.ranges.with(&self.os, |r| {
            r.held.seen = r.taken_chunks();
            r.held.step = STEP.max(f.heaps as usize);
        });
        self.os.publish(&f);
    }

    /// Chunks were taken or given back. The lock of the ranges is held.
    #[inline]
    pub(crate) fn note_news(&self, r: &mut Ranges) {
        r.peak_chunks = r.peak_chunks.max(r.footprint());
        let news = r.held.news(r.taken_chunks());
        if news != NONE && !(self.has_helper() && self.tick_length() <= LONG_TICK_MS) {
            self.publisher.news.store(news, Ordering::Relaxed);
        }
    }

    /// Publishes what was noted while locks were held.
    pub(crate) fn tell_news(&self) {
        match self.publisher.news.swap(NONE, Ordering::Relaxed) {
            NONE => {}
            // The next change notes it again.
            SHRUNK if !self.publisher.may_shrink(self.os.clock()) => {}
            _ => self.publish(),
        }
    }
}
