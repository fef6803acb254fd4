//! What the chunks that are taken hold: sums that each taking and giving back keeps, under the lock of the ranges, so that
//! figures need no walk. And when the sums have changed so far that observers want to know (`Held::news`).

use crate::CHUNK;
use crate::pages::chunk::Kind;

/// Chunks of the first step of an arena: programs that use fewer publish nothing.
pub(crate) const FIRST: usize = (3 << 19) / CHUNK;
/// A change of so many chunks is news, in a program of few heaps.
pub(crate) const STEP: usize = (1 << 20) / CHUNK;
/// Less chunks in use are news where they are less by an eighth.
const LESS: usize = 8;

/// What a change of the chunks in use means to observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing.
    None,
    /// There are less chunks in use.
    Shrunk,
    /// There are more.
    Grown,
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
    pub(crate) slabs: usize,
    pub(crate) large_blocks: usize,
    /// With what is on shelves, as long as it was when it was taken. Wraps around where that has become longer since.
    pub(crate) large_bytes: usize,
    /// Bytes of zeroed large blocks that were known to be zero.
    pub(crate) skipped: u64,
    /// Chunks in use when the figures were last published, and how many more or less are news.
    pub(crate) seen: usize,
    pub(crate) step: usize,
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
    pub(crate) fn news(&self, taken: usize) -> News {
        if taken >= self.seen {
            return if taken - self.seen >= self.step { News::Grown } else { News::None };
        }
        if self.seen - taken >= self.step.max(self.seen / LESS) { News::Shrunk } else { News::None }
    }
}
