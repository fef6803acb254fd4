//! Notes: what the lower layers leave for the upper ones to do, as they may hold locks and never call upward.
//!
//! Who frees, takes or commits memory notes that it happened; the slow path that it belongs to has the notes done when it
//! holds no lock any more (`Allocator::settle`). A note that is seen late is seen by the next slow path.

use crate::CHUNK;
use crate::system::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A purger is wanted: memory waits and there is none, or more waits than may.
pub(crate) const WANTED: u32 = 1;
/// The memory limit is to be looked at: much memory was taken that was clean, or much more waits.
pub(crate) const LIMIT: u32 = 2;
/// The side tables are to be looked at: much was freed that does not wait for a purger.
pub(crate) const TABLES: u32 = 4;
/// A reentrant call or a fork left something to do.
pub(crate) const DEFERRED: u32 = 8;
/// Observers want to know: there are less chunks in use; there are more, or other news.
pub(crate) const SHRUNK: u32 = 16;
pub(crate) const GROWN: u32 = 32;

/// So many chunks may be taken that were clean until the memory limit is looked at.
pub(crate) const FRESH_CHUNKS: usize = (16 << 20) / CHUNK;
/// What programs could take between two looks at the memory limit.
const FAR: usize = 256 << 20;
/// Minimum of slabs that come to wait before a purger is wanted. The simulation has little memory, so its limits are
/// lower, here and below.
const START_SLABS: usize = if cfg!(neap_sim) { 4 } else { 64 };
/// Most bytes that the caches of all threads may hold before they are looked at: more than those of three busy threads.
const MOST_CACHED: usize = if cfg!(neap_sim) { 256 << 10 } else { 16 << 20 };

/// The notes, readable without a lock.
#[derive(Debug)]
pub struct Notes {
    bits: AtomicU32,
    /// Slabs that came to wait so far.
    slabs: AtomicUsize,
    /// Bytes that the caches of all heaps may hold, without what each cache may from the beginning.
    cached: AtomicUsize,
    /// Chunks that waited when the limit was last looked at, and what was left of it then, in bytes; 0: not known.
    looked: AtomicUsize,
    pub(crate) room: AtomicUsize,
    /// Most bytes that may wait, as last looked up.
    pub(crate) most: AtomicUsize,
    /// Bytes given back so far.
    pub(crate) purged: AtomicU64,
    /// More waits than may: the helper was woken before its time.
    pub(crate) flood: AtomicBool,
}

impl Notes {
    /// Nothing is to be done.
    pub const fn new() -> Self {
        Notes {
            bits: AtomicU32::new(0),
            slabs: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            looked: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            purged: AtomicU64::new(0),
            flood: AtomicBool::new(false),
        }
    }

    /// Whether there is anything to do.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        // Relaxed: a note that is seen late is seen by the next slow path.
        self.bits.load(Ordering::Relaxed) != 0
    }

    /// Whether one of `bits` is noted.
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.bits.load(Ordering::Relaxed) & bits != 0
    }

    /// Leaves a note.
    pub(crate) fn leave(&self, bits: u32) {
        // Release pairs with the Acquire of `take`: who takes the note sees what it is about, and who the purger is, at least
        // as late as here.
        self.bits.fetch_or(bits, Ordering::Release);
    }

    /// Takes those of `bits` that are noted: the caller does them.
    pub(crate) fn take(&self, bits: u32) -> u32 {
        // Acquire pairs with the Release of `leave`.
        self.bits.fetch_and(!bits, Ordering::Acquire) & bits
    }

    /// What came to wait, other than chunks: slabs so far, and whether caches may hold much.
    pub(crate) fn came(&self) -> (usize, bool) {
        (self.slabs.load(Ordering::SeqCst), self.cached.load(Ordering::SeqCst) >= MOST_CACHED)
    }

    /// A slab has free memory that waits, and had none before. Whether a purger is wanted now, if there is none.
    #[inline]
    pub(crate) fn slab_waits(&self) -> bool {
        // SeqCst, here and where the state of the helper is read behind it: see `helper.rs`.
        self.slabs.fetch_add(1, Ordering::SeqCst) % START_SLABS == START_SLABS - 1
    }

    /// A cache may hold so many bytes more than before. Whether a purger is wanted now, if there is none: it has to look what
    /// caches do hold once their threads are idle, as free has its fast path until they are full.
    pub(crate) fn add_room(&self, bytes: usize) -> bool {
        // SeqCst: as in `slab_waits`.
        self.cached.fetch_add(bytes, Ordering::SeqCst) + bytes >= MOST_CACHED
    }

    /// Caches may hold so many bytes less.
    pub(crate) fn forget_room(&self, bytes: usize) {
        self.cached.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// So many chunks wait now. The lock of the ranges is held.
    #[inline]
    pub(crate) fn look_at_waiting(&self, chunks: usize) {
        // Relaxed: the lock orders it.
        let looked = self.looked.load(Ordering::Relaxed);
        if chunks >= looked + FRESH_CHUNKS {
            self.looked.store(chunks, Ordering::Relaxed);
            self.note_limit(chunks);
        } else if chunks + FRESH_CHUNKS < looked {
            self.looked.store(chunks, Ordering::Relaxed);
        }
    }

    /// So many chunks that were clean were taken since the limit was last looked at. True if it is time to look again.
    #[inline]
    pub(crate) fn note_fresh(&self, chunks: usize, waiting: usize) -> bool {
        if chunks >= FRESH_CHUNKS {
            self.note_limit(waiting);
        }
        chunks >= FRESH_CHUNKS
    }

    /// It is time to look at the memory limit, unless so much was left at the last look (while memory waits, a tick ago)
    /// that it cannot be near: a look is 25 us of reading files.
    fn note_limit(&self, waiting: usize) {
        let near = 2 * waiting * CHUNK + FAR;
        // Relaxed: a guess. 0 before the first look.
        if self.room.load(Ordering::Relaxed) / 2 < near {
            self.leave(LIMIT);
        }
    }

    /// Counts memory that went back.
    pub(crate) fn count_purged(&self, bytes: usize) {
        self.purged.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Default for Notes {
    fn default() -> Self {
        Self::new()
    }
}
