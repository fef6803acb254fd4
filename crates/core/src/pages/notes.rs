//! Notes: work that the lower layers leave for the upper ones, because they may hold locks and never call upward.
//!
//! Code that frees, takes or commits memory leaves a note. At the end of the slow path, where it holds no lock,
//! `Allocator::settle` does the work. If a slow path does not see a note yet, the next one does.

use crate::CHUNK;
use crate::system::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A purger is needed: memory waits and there is none, or more waits than the limit allows.
pub(crate) const WANTED: u32 = 1;
/// The memory limit has to be read again: much clean memory was taken, or much more memory waits.
pub(crate) const LIMIT: u32 = 2;
/// The side tables have to be purged: much memory was freed, and there is no helper to do it.
pub(crate) const TABLES: u32 = 4;
/// A reentrant call or a fork left work to do.
pub(crate) const DEFERRED: u32 = 8;
/// Figures have to be published: fewer chunks are in use.
pub(crate) const SHRUNK: u32 = 16;
/// Figures have to be published: more chunks are in use, or other figures have changed.
pub(crate) const GROWN: u32 = 32;
/// Blocks were freed into the common heap.
pub(crate) const SHARED: u32 = 64;

/// A request from outside of the process: the last byte of the word of the notes. Other processes write this byte; this
/// process changes it only when it takes the request.
const REQUEST: u64 = 0xff << 56;

/// The readers of probes that are attached now: two counts of 16 bits in the middle of the word of the notes, from
/// [`Notes::READERS_AT`] on. Only the kernel changes them. While there are readers the word is not 0, as with a note,
/// so slow paths need no check of their own for readers.
const READERS: u64 = 0xffff_ffff << 16;

const _: () = assert!(cfg!(target_endian = "little"), "the last byte of a word is its most significant one");
const _: () = assert!(
    (WANTED | LIMIT | TABLES | DEFERRED | SHRUNK | GROWN | SHARED) as u64 & (REQUEST | READERS) == 0,
    "notes are bits of the first two bytes"
);

/// Number of clean chunks that may be taken before the memory limit is read again.
pub(crate) const FRESH_CHUNKS: usize = (16 << 20) / CHUNK;
/// Bytes that all programs under the limit may take between two reads of it.
pub(crate) const FAR: usize = 256 << 20;
/// Minimum number of slabs that begin to wait before a purger is requested. The simulation has little memory, so its
/// limits are lower, here and below.
const START_SLABS: usize = if cfg!(neap_sim) { 4 } else { 64 };
/// Bytes that the caches of all threads may hold before a purger has to look at them: more than those of three busy
/// threads.
const MOST_CACHED: usize = if cfg!(neap_sim) { 256 << 10 } else { 16 << 20 };

/// The notes, and the counts that decide when to leave them. Readable without a lock.
#[derive(Debug)]
pub struct Notes {
    /// The notes, one bit each, [`READERS`] and [`REQUEST`].
    bits: AtomicU64,
    /// Number of times that a slab began to wait.
    slabs: AtomicUsize,
    /// Bytes that the caches of all heaps may hold, beyond their initial capacity.
    cached: AtomicUsize,
    /// Number of chunks that waited when the memory limit was last read, or less.
    looked: AtomicUsize,
    /// Bytes below the limit when it was last read; 0: not read yet.
    pub(crate) room: AtomicUsize,
    /// True if so little was left below the limit when it was last read that blocks must not hold memory that they do
    /// not need, see `back/pressure.rs`.
    pub(crate) tight: AtomicBool,
    /// Limit on the bytes that wait, as last computed.
    pub(crate) most: AtomicUsize,
    /// Number of bytes given back.
    pub(crate) purged: AtomicU64,
    /// Clock when the helper last showed that it runs, or was asked for.
    pub(crate) helped: AtomicU64,
    /// True if the program took much clean memory since the purger last looked.
    grew: AtomicBool,
    /// True if the helper was woken early, as more memory waits than the limit allows.
    pub(crate) flood: AtomicBool,
    /// True if the system has said that memory is short, and no helper has given all back since.
    pub(crate) short: AtomicBool,
}

/// Work for the purger other than waiting chunks. If two values differ, more has come in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Came {
    /// Number of times that a slab began to wait.
    slabs: usize,
    /// Whether the caches of all threads may hold much.
    pub(crate) cached: bool,
    /// Whether the program grew.
    grew: bool,
}

impl Notes {
    /// No notes.
    pub const fn new() -> Self {
        Notes {
            bits: AtomicU64::new(0),
            slabs: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            looked: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            tight: AtomicBool::new(false),
            most: AtomicUsize::new(usize::MAX),
            purged: AtomicU64::new(0),
            helped: AtomicU64::new(0),
            grew: AtomicBool::new(false),
            flood: AtomicBool::new(false),
            short: AtomicBool::new(false),
        }
    }

    /// Offset of the byte of [`REQUEST`] in the notes.
    pub(crate) const REQUEST_AT: usize = core::mem::offset_of!(Notes, bits) + 7;

    /// Offset of the first count of [`READERS`] in the notes; the second one follows.
    pub(crate) const READERS_AT: usize = core::mem::offset_of!(Notes, bits) + 2;

    /// The two counts of [`READERS`].
    pub(crate) fn readers(&self) -> [u16; 2] {
        // Relaxed: they stand for themselves.
        let bits = self.bits.load(Ordering::Relaxed);
        [(bits >> 16) as u16, (bits >> 32) as u16]
    }

    /// Takes the request; returns whether there was one.
    pub(crate) fn take_request(&self) -> bool {
        // Acquire: what another process wrote before is seen.
        self.bits.load(Ordering::Relaxed) & REQUEST != 0
            && self.bits.fetch_and(!REQUEST, Ordering::Acquire) & REQUEST != 0
    }

    /// Whether there are notes, a request or readers.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        // Relaxed: if this slow path does not see a note yet, the next one does.
        self.bits.load(Ordering::Relaxed) != 0
    }

    /// Whether there are notes of `bits`.
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.bits.load(Ordering::Relaxed) & u64::from(bits) != 0
    }

    /// Leaves notes.
    pub(crate) fn leave(&self, bits: u32) {
        // Release pairs with the Acquire of `take`: the thread that takes the note sees the memory that the note is
        // about, and a state of the helper at least as new as the caller saw.
        self.bits.fetch_or(u64::from(bits), Ordering::Release);
    }

    /// Takes the notes of `bits`, and returns those that there were: the caller does the work.
    pub(crate) fn take(&self, bits: u32) -> u32 {
        // Acquire pairs with the Release of `leave`.
        self.bits.fetch_and(!u64::from(bits), Ordering::Acquire) as u32 & bits
    }

    /// Work for the purger other than waiting chunks. SeqCst: see [`Notes::slab_waits`].
    pub(crate) fn came(&self) -> Came {
        Came {
            slabs: self.slabs.load(Ordering::SeqCst),
            cached: self.cached.load(Ordering::SeqCst) >= MOST_CACHED,
            grew: self.grew.load(Ordering::SeqCst),
        }
    }

    /// Counts growth, which the purger has to look at. SeqCst: see [`Notes::slab_waits`].
    pub(crate) fn note_growth(&self) {
        self.grew.store(true, Ordering::SeqCst);
    }

    /// Takes the note of growth.
    pub(crate) fn take_growth(&self) -> bool {
        self.grew.swap(false, Ordering::SeqCst)
    }

    /// Counts a slab that begins to wait. Returns whether a purger is needed now, if there is none.
    #[inline]
    pub(crate) fn slab_waits(&self) -> bool {
        // SeqCst, here and where the caller then reads the state of the helper: see `helper.rs`.
        self.slabs.fetch_add(1, Ordering::SeqCst) % START_SLABS == START_SLABS - 1
    }

    /// Counts `bytes` more that a cache may hold. Returns whether a purger is needed now, if there is none. The purger
    /// has to empty the caches of idle threads: until a cache is full, `free` takes its fast path, which counts
    /// nothing.
    pub(crate) fn add_room(&self, bytes: usize) -> bool {
        // SeqCst: as in `slab_waits`.
        self.cached.fetch_add(bytes, Ordering::SeqCst) + bytes >= MOST_CACHED
    }

    /// Counts `bytes` less that caches may hold.
    pub(crate) fn forget_room(&self, bytes: usize) {
        self.cached.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Leaves a note to read the memory limit if many more chunks wait than at the last read. The caller holds the lock
    /// of the ranges.
    #[inline]
    pub(crate) fn look_at_waiting(&self, chunks: usize) {
        // Relaxed, here and below: the lock orders it.
        let looked = self.looked.load(Ordering::Relaxed);
        if chunks >= looked + FRESH_CHUNKS {
            self.looked.store(chunks, Ordering::Relaxed);
            self.note_limit(chunks);
        } else if chunks + FRESH_CHUNKS < looked {
            self.looked.store(chunks, Ordering::Relaxed);
        }
    }

    /// Leaves a note to read the memory limit if many clean chunks were taken since the last read; `chunks` is their
    /// number. Returns whether it is time to read it.
    #[inline]
    pub(crate) fn note_fresh(&self, chunks: usize, waiting: usize) -> bool {
        if chunks >= FRESH_CHUNKS {
            self.note_limit(waiting);
        }
        chunks >= FRESH_CHUNKS
    }

    /// Leaves a note to read the memory limit, unless so much was left at the last read that the limit cannot be near.
    /// That was at most a tick ago while memory waits. Reading the limit takes 25 us, as it is in files.
    fn note_limit(&self, waiting: usize) {
        let near = 2 * waiting * CHUNK + FAR;
        // Relaxed: a hint. 0 before the first read.
        if self.room.load(Ordering::Relaxed) / 2 < near {
            self.leave(LIMIT);
        }
    }

    /// Counts memory that was given back.
    pub(crate) fn count_purged(&self, bytes: usize) {
        self.purged.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
