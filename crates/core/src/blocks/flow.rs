//! What went through a heap: numbers that the heap's own calls keep where blocks go between caches and slabs, so that
//! nothing is counted on the fast paths.
//!
//! Equation: `blocks that left slabs - blocks that came back == live + cached`, over all heaps.

use crate::blocks::class;
use crate::system::sync::{AtomicU64, Ordering};

/// What went through one heap. Written by whoever may use the heap, with plain loads and stores; read by anybody.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Blocks from slabs less blocks to slabs: may be below zero, as threads free each other's blocks.
    pub(crate) blocks: AtomicU64,
    /// Their bytes.
    pub(crate) bytes: AtomicU64,
    /// Bytes of zeroed blocks that were cleared, and that did not have to be.
    pub(crate) cleared: AtomicU64,
    pub(crate) skipped: AtomicU64,
    /// OS pages of slabs that were clean and are not any more.
    clean: AtomicU64,
    /// Usable bytes of large blocks that came from caches, less those of blocks that were put there.
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

    /// A block was taken that lies on so many clean OS pages.
    #[inline]
    pub(crate) fn take_clean(&self, pages: u32) {
        add(&self.clean, pages.into());
    }

    /// OS pages so far that [`Flow::take_clean`] was told of.
    pub(crate) fn clean_pages(&self) -> u64 {
        self.clean.load(Ordering::Relaxed)
    }

    /// A large block of `bytes` was put into a cache.
    #[inline]
    pub(crate) fn cache_large(&self, bytes: usize) {
        add(&self.large, (bytes as u64).wrapping_neg());
    }

    /// One left a cache, and has `bytes` now.
    #[inline]
    pub(crate) fn uncache_large(&self, bytes: usize) {
        add(&self.large, bytes as u64);
    }

    /// `count` blocks of `class` left slabs.
    #[inline]
    pub(crate) fn take(&self, class: usize, count: u32) {
        add(&self.blocks, u64::from(count));
        add(&self.bytes, u64::from(count) * u64::from(class::SIZE[class]));
    }

    /// `count` blocks of `class` came back to slabs.
    #[inline]
    pub(crate) fn give(&self, class: usize, count: u32) {
        add(&self.blocks, u64::from(count).wrapping_neg());
        add(&self.bytes, (u64::from(count) * u64::from(class::SIZE[class])).wrapping_neg());
    }

    /// [`Flow::take`] of one block by any number of threads at a time.
    pub(crate) fn take_shared(&self, class: usize) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(u64::from(class::SIZE[class]), Ordering::Relaxed);
    }

    /// [`Flow::give`] of one block by any number of threads at a time.
    pub(crate) fn give_shared(&self, class: usize) {
        self.blocks.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(u64::from(class::SIZE[class]), Ordering::Relaxed);
    }

    /// A zeroed block was handed out, of which so many bytes were cleared, and so many did not have to be.
    #[inline]
    pub(crate) fn zeroed(&self, cleared: usize, skipped: usize) {
        add(&self.cleared, cleared as u64);
        add(&self.skipped, skipped as u64);
    }
}
