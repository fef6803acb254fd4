//! Sample marks: which blocks are samples (`sampler.rs`), by a mark in the record of a large block.

use crate::Os;
use crate::blocks::Blocks;
use crate::blocks::given::Given;
use crate::blocks::heap::Mine;
use crate::blocks::large_record::Large;
use crate::blocks::watch::Watch;
use crate::system::sync::Ordering;

impl<O: Os> Blocks<O> {
    /// Mean bytes between two samples; 0: no samples.
    #[inline]
    pub fn sample_interval(&self) -> usize {
        // Relaxed: the value stands for itself.
        self.sample_interval.load(Ordering::Relaxed)
    }

    /// Sets the mean bytes between two samples.
    pub fn set_sample_interval(&self, bytes: usize) {
        self.sample_interval.store(bytes, Ordering::Relaxed);
    }

    /// Counts `size` requested bytes in a heap that counts until its next sample, if their block is no sample.
    /// Otherwise returns false and does nothing.
    #[inline]
    pub fn skips_sample(&self, heap: Mine<'_>, size: usize) -> bool {
        heap.sampler.skips(size.max(1))
    }

    /// Counts `size` requested bytes; returns whether their block is to be a sample.
    pub fn is_due_for_sample(&self, heap: Mine<'_>, size: usize) -> bool {
        let interval = self.sample_interval();
        if interval == 0 || heap.sampler.in_hook.get() {
            return false;
        }
        let counts = heap.watch.get() == Watch::Samples;
        heap.sampler.is_due(size, interval, counts, || self.os.random())
    }

    /// Returns the large block at `p`, if there is one and it is a sample.
    ///
    /// # Safety
    /// `p` must be a live block of the caller's, or foreign.
    unsafe fn marked(&self, p: *mut u8) -> Option<Large> {
        // SAFETY: the caller passes a live block of its own, or a foreign pointer, as `Given` demands.
        let given = unsafe { Given::of(p) };
        self.arenas.record(p).and_then(|c| given.large(c)).filter(|block| block.is_sample())
    }

    /// Whether the block at `p` is a sample.
    ///
    /// # Safety
    /// `p` must be a live block of the caller's, or foreign.
    pub unsafe fn is_marked(&self, p: *mut u8) -> bool {
        // SAFETY: the caller passes a live block of its own, or a foreign pointer.
        unsafe { self.marked(p) }.is_some()
    }

    /// The usable bytes that the sample at `p` would have if it were no sample. `None` if it is none.
    ///
    /// # Safety
    /// `p` must be a live block of the caller's, or foreign.
    pub unsafe fn ordinary_size(&self, p: *mut u8) -> Option<usize> {
        // SAFETY: the caller passes a live block of its own, or a foreign pointer.
        unsafe { self.marked(p) }.map(Large::ordinary_bytes)
    }

    /// Clears the mark of the block at `p`; returns whether it was set.
    ///
    /// # Safety
    /// `p` must be a live block of the caller's, or foreign.
    pub unsafe fn take_mark(&self, p: *mut u8) -> bool {
        // SAFETY: the caller passes a live block of its own, or a foreign pointer.
        let marked = unsafe { self.marked(p) };
        marked.inspect(|block| block.set_sample(false)).is_some()
    }

    /// Sets whether the thread of `heap` is in a hook; returns the value before.
    pub fn set_in_hook(&self, heap: Mine<'_>, inside: bool) -> bool {
        heap.sampler.in_hook.replace(inside)
    }
}
