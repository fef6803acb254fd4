//! Which blocks are samples (`sampler.rs`): the mark in the record of a large block.

use crate::blocks::Blocks;
use crate::pages::chunk::Kind;
use crate::pages::layout;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

impl<O: Os> Blocks<O> {
    /// Mean bytes between two samples; 0: no samples are taken.
    #[inline]
    pub fn sample_interval(&self) -> usize {
        // Relaxed: the value stands for itself.
        self.sample_interval.load(Ordering::Relaxed)
    }

    /// Sets how many bytes lie between two samples in the mean.
    pub fn set_sample_interval(&self, bytes: usize) {
        self.sample_interval.store(bytes, Ordering::Relaxed);
    }

    /// Counts `size` bytes that are asked for; whether their block is to be a sample.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    #[inline]
    pub unsafe fn is_sample(&self, heap: *mut Heap, size: usize) -> bool {
        let interval = self.sample_interval();
        if interval == 0 {
            return false;
        }
        // SAFETY: the heap is the caller's.
        let sampler = unsafe { &mut (*heap).sampler };
        !sampler.in_hook && sampler.is_due(size, interval, || self.os.random())
    }

    /// Whether the block at `p` is a sample.
    ///
    /// # Safety
    /// `p` must be a live block, or foreign.
    pub unsafe fn is_marked(&self, p: *mut u8) -> bool {
        if p.addr() & (CHUNK - 1) != 0 || !self.arenas.contains(p) {
            return false;
        }
        let c = layout::record(p);
        // SAFETY: records of committed chunks are readable; that of a large block is its owner's.
        unsafe { (*c).kind.get() == Kind::LARGE && (*c).listed }
    }

    /// Whether the block at `p` is a sample; it is none any more.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, or foreign.
    pub unsafe fn take_mark(&self, p: *mut u8) -> bool {
        // SAFETY: as the caller promises.
        unsafe {
            let marked = self.is_marked(p);
            if marked {
                (*layout::record(p)).listed = false;
            }
            marked
        }
    }

    /// Says that the thread of `heap` is in a hook, or is not any more; returns what was said before.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub unsafe fn set_in_hook(&self, heap: *mut Heap, inside: bool) -> bool {
        // SAFETY: the heap is the caller's.
        unsafe { core::mem::replace(&mut (*heap).sampler.in_hook, inside) }
    }
}
