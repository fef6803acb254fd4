//! Counts what the taken chunks hold. Each take and each give updates the sums under the lock of the ranges, so that
//! figures need no walk over all chunks. Also decides when the number of chunks in use has changed enough to publish
//! new figures (`Held::news`).

use crate::CHUNK;
use crate::pages::chunk::Kind;

/// Minimum number of chunks in use before figures are published for the first time. It takes more than a tenth of a
/// millisecond to make the counters page, so small programs that end within milliseconds have none. The simulation has
/// little memory.
const FIRST: usize = (if cfg!(neap_sim) { 3 << 19 } else { 8 << 20 }) / CHUNK;
/// Change in chunks that is worth publishing, in a program with few heaps.
pub(crate) const STEP: usize = (1 << 20) / CHUNK;
/// A decrease is worth publishing only if it is at least one part in this many of the chunks in use.
const LESS: usize = 8;

/// Whether the number of chunks in use has changed enough for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Not enough.
    None,
    /// Enough: fewer chunks are in use.
    Shrunk,
    /// Enough: more chunks are in use.
    Grown,
}

/// The purpose for which chunks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A slab.
    Slab {
        /// Whether its heap holds many.
        of_many: bool,
    },
    /// A large block.
    Large {
        /// Usable bytes.
        bytes: usize,
        /// Whether the block must be zero: bytes that are known to be zero are not cleared.
        zero: bool,
    },
    /// Heaps.
    Heaps,
}

impl Use {
    /// A slab that is given back.
    pub(crate) const A_SLAB: Use = Use::Slab { of_many: false };

    /// The kind that the first chunk gets; the caller may change it.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Use::Slab { .. } => Kind::NONE,
            Use::Large { .. } => Kind::LARGE,
            Use::Heaps => Kind::HEAPS,
        }
    }
}

/// Sums over the taken chunks. Used under the lock of the ranges.
#[derive(Debug)]
pub struct Held {
    /// Number of slabs.
    pub(crate) slabs: usize,
    /// Number of large blocks, including those in caches.
    pub(crate) large_blocks: usize,
    /// Usable bytes of large blocks. A block that comes from a cache counts with its old size, although it may have a
    /// new one: the counts of heaps make up for that (`blocks/flow.rs`). So this sum may wrap around.
    pub(crate) large_bytes: usize,
    /// Bytes of zeroed large blocks that were known to be zero and were not cleared.
    pub(crate) skipped: u64,
    /// Number of chunks in use when figures were last published; 0 before that.
    pub(crate) seen: usize,
    /// Change in chunks that is worth publishing.
    pub(crate) step: usize,
}

impl Held {
    /// The sums where nothing is taken.
    pub const fn new() -> Self {
        Held { slabs: 0, large_blocks: 0, large_bytes: 0, skipped: 0, seen: 0, step: FIRST }
    }

    /// Counts chunks that were taken, of which `dirty` bytes are not known to be zero.
    #[inline]
    pub(crate) fn take(&mut self, what: Use, dirty: usize) {
        match what {
            Use::Slab { .. } => self.slabs += 1,
            Use::Large { bytes, zero } => {
                self.large_blocks += 1;
                self.large_bytes = self.large_bytes.wrapping_add(bytes);
                self.skipped += if zero { bytes.saturating_sub(dirty) as u64 } else { 0 };
            }
            Use::Heaps => {}
        }
    }

    /// Counts chunks that were given back.
    #[inline]
    pub(crate) fn give(&mut self, what: Use) {
        match what {
            Use::Slab { .. } => self.slabs -= 1,
            Use::Large { bytes, .. } => {
                self.large_blocks -= 1;
                self.large_bytes = self.large_bytes.wrapping_sub(bytes);
            }
            Use::Heaps => {}
        }
    }

    /// Counts a large block whose usable size has changed.
    #[inline]
    pub(crate) fn resize(&mut self, from: usize, to: usize) {
        self.large_bytes = self.large_bytes.wrapping_sub(from).wrapping_add(to);
    }

    /// Notes that nothing was published, as in a new process.
    pub(crate) fn forget_news(&mut self) {
        (self.seen, self.step) = (0, FIRST);
    }

    /// Whether `taken` chunks in use are worth publishing.
    #[inline]
    pub(crate) fn news(&self, taken: usize) -> News {
        if taken >= self.seen {
            return if taken - self.seen >= self.step { News::Grown } else { News::None };
        }
        if self.seen - taken >= self.step.max(self.seen / LESS) { News::Shrunk } else { News::None }
    }
}
