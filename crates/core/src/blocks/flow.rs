//! Counts what moves between a heap's caches and slabs. The heap's own calls count where blocks move in batches, so
//! nothing is counted on the fast paths.
//!
//! Equation: `blocks that left slabs - blocks that came back == live + cached`, over all heaps.

use crate::blocks::class;
use crate::system::sync::{AtomicU64, Ordering};

/// Counts of one heap. Written with plain loads and stores by the thread that may use the heap; any thread may read
/// them.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Blocks taken from slabs less blocks given to slabs. May be negative, as threads free each other's blocks.
    pub(crate) blocks: AtomicU64,
    /// Their bytes.
    pub(crate) bytes: AtomicU64,
    /// Bytes of zeroed blocks that were cleared, and that needed no clearing.
    pub(crate) cleared: AtomicU64,
    pub(crate) skipped: AtomicU64,
    /// OS pages of slabs that were clean until a block on them was taken.
    clean: AtomicU64,
    /// Usable bytes of large blocks taken from caches, less those of blocks put there.
    pub(crate) large: AtomicU64,
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

    /// Counts `pages` clean OS pages on which a block was taken.
    #[inline]
    pub(crate) fn take_clean(&self, pages: u32) {
        add(&self.clean, pages.into());
    }

    /// Number of OS pages counted by [`Flow::take_clean`] so far.
    pub(crate) fn clean_pages(&self) -> u64 {
        self.clean.load(Ordering::Relaxed)
    }

    /// Counts a large block of `bytes` that was put into a cache.
    #[inline]
    pub(crate) fn cache_large(&self, bytes: usize) {
        add(&self.large, (bytes as u64).wrapping_neg());
    }

    /// Counts a large block that left a cache, and has `bytes` now.
    #[inline]
    pub(crate) fn uncache_large(&self, bytes: usize) {
        add(&self.large, bytes as u64);
    }

    /// Counts `count` blocks of `class` that left slabs.
    #[inline]
    pub(crate) fn take(&self, class: usize, count: u32) {
        add(&self.blocks, u64::from(count));
        add(&self.bytes, u64::from(count) * u64::from(class::SIZE[class]));
    }

    /// Counts `count` blocks of `class` that came back to slabs.
    #[inline]
    pub(crate) fn give(&self, class: usize, count: u32) {
        add(&self.blocks, u64::from(count).wrapping_neg());
        add(&self.bytes, (u64::from(count) * u64::from(class::SIZE[class])).wrapping_neg());
    }

    /// [`Flow::take`] of one block, by any number of threads at a time.
    pub(crate) fn take_shared(&self, class: usize) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(u64::from(class::SIZE[class]), Ordering::Relaxed);
    }

    /// [`Flow::give`] of one block, by any number of threads at a time.
    pub(crate) fn give_shared(&self, class: usize) {
        self.blocks.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(u64::from(class::SIZE[class]), Ordering::Relaxed);
    }

    /// Counts a zeroed block that was handed out: bytes that were cleared, and bytes that needed no clearing.
    #[inline]
    pub(crate) fn zeroed(&self, cleared: usize, skipped: usize) {
        add(&self.cleared, cleared as u64);
        add(&self.skipped, skipped as u64);
    }
}
