//! What the port calls with the heap that it found in a thread's slot. Each call makes a [`Mine`] of it: the port promises
//! that the heap is the calling thread's, in a call that its thread slot tells of, or one that was borrowed for this call.

use crate::alloc::{Allocator, Foreign};
use crate::back::trim::Trimmed;
use crate::blocks::class;
use crate::blocks::heap::{Mine, ThreadSlot};
use crate::blocks::misuse::Call;
use crate::{CHUNK, Heap, Os};

impl<O: Os> Allocator<O> {
    /// A heap for the calling thread, with caches or without, or null if there is no memory.
    pub fn acquire(&self, cached: bool) -> *mut Heap {
        self.acquire_heap(cached)
    }

    /// Tells visitors where the thread of `heap` keeps it. The thread slot must last until [`Allocator::abandon`].
    ///
    /// # Safety
    /// `heap` must be the caller's, and `slot` the place that all its calls load it from.
    pub unsafe fn set_slot(&self, heap: *mut Heap, slot: *mut ThreadSlot) {
        // SAFETY: as the caller promises.
        unsafe { self.set_slot_of(Heap::at(heap), slot) };
    }

    /// malloc, whatever the fast path said. Null if there is no memory.
    ///
    /// # Safety
    /// `heap` must be the caller's (not [`Heap::none`]). If [`Heap::malloc`] was called for this request, it was the
    /// last call on the heap.
    pub unsafe fn malloc(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.take(unsafe { Mine::of(heap) }, size)
    }

    /// [`Heap::malloc`] failed for `size`: the rest of malloc.
    ///
    /// # Safety
    /// As [`Allocator::malloc`]; nothing may have happened to the heap since.
    #[inline]
    pub unsafe fn malloc_after_miss(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises. On the fast path, with a size of the table, `pop` ran and failed.
        unsafe {
            let mine = Mine::of(heap);
            if size <= class::MAX_TABLE && mine.is_fast() {
                return self.refill(mine, class::of(size));
            }
            self.take(mine, size)
        }
    }

    /// After [`Heap::malloc`] failed: a sample, if one is due in a heap that shows its allocations. Else null, and
    /// nothing has happened to the heap.
    ///
    /// # Safety
    /// As [`Allocator::malloc_after_miss`].
    pub unsafe fn sample_after_miss(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        let mine = unsafe { Mine::of(heap) };
        // On the fast path a block may be half taken: that is for others to undo.
        if mine.is_fast() || !self.is_due_for_sample(mine, size) {
            return core::ptr::null_mut();
        }
        self.take_sample(mine, size, CHUNK, false)
    }

    /// Counts `size` bytes that are asked for; whether their block is to be a sample.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    #[inline]
    pub unsafe fn is_sample(&self, heap: *mut Heap, size: usize) -> bool {
        // SAFETY: as the caller promises.
        self.sample_interval() != 0 && self.is_due_for_sample(unsafe { Mine::of(heap) }, size)
    }

    /// A block that is known as a sample until it is freed. Null if there is no memory, or if no arena can hold it: then
    /// the block is not to be a sample.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub unsafe fn malloc_sample(&self, heap: *mut Heap, size: usize, align: usize, zero: bool) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.take_sample(unsafe { Mine::of(heap) }, size, align, zero)
    }

    /// A large block from the heap's own cache, or null: for the first look at a request of more than
    /// [`class::MAX_SMALL`] bytes.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    #[inline(always)]
    pub unsafe fn malloc_from_cache(&self, heap: *mut Heap, size: usize, zero: bool) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.malloc_cached_large(unsafe { Mine::of(heap) }, size, zero)
    }

    /// A block whose first `size` bytes are zero. Null if there is no memory.
    ///
    /// # Safety
    /// As [`Allocator::malloc`].
    pub unsafe fn calloc(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.take_zeroed(unsafe { Mine::of(heap) }, size)
    }

    /// A block aligned to `align`, a power of two. Null if there is no memory.
    ///
    /// # Safety
    /// As [`Allocator::malloc`].
    pub unsafe fn malloc_aligned(&self, heap: *mut Heap, size: usize, align: usize, zero: bool) -> *mut u8 {
        // SAFETY: as the caller promises.
        self.take_aligned(unsafe { Mine::of(heap) }, size, align, zero)
    }

    /// free, after [`Heap::free`] failed.
    ///
    /// # Safety
    /// `heap` must be the caller's (not [`Heap::none`]); `p` must be a block of the caller's, NULL, or foreign.
    pub unsafe fn free_after_miss(&self, heap: *mut Heap, p: *mut u8) -> Result<(), Foreign> {
        let class = self.map.class(p);
        // SAFETY: as the caller promises.
        unsafe {
            Heap::undo_free(heap, class);
            self.put(Mine::of(heap), p, if class != 0 { Some(class) } else { self.small_class(p) })
        }
    }

    /// free of a large block, after [`Heap::free`] failed for `p`, where the heap's own cache has a place and nothing has to
    /// be noted: what is done mostly, and there is nothing to settle. False: nothing has happened.
    ///
    /// # Safety
    /// As [`Allocator::free_after_miss`]; the heap must not be watched.
    #[inline(always)]
    pub unsafe fn free_to_cache_after_miss(&self, heap: *mut Heap, p: *mut u8) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.cache_large_after_miss(Mine::of(heap), p) }
    }

    /// free, whatever kind of block it is.
    ///
    /// # Safety
    /// As [`Allocator::free_after_miss`].
    pub unsafe fn free(&self, heap: *mut Heap, p: *mut u8) -> Result<(), Foreign> {
        // SAFETY: as the caller promises.
        unsafe { self.put(Mine::of(heap), p, self.small_class(p)) }
    }

    /// Usable bytes of the block at `p`, constant for its life; `None` if neap does not know it. `call` is who asks.
    ///
    /// # Safety
    /// `heap` must be the caller's or [`Heap::none`]; `p` must be a block of the caller's, or foreign.
    pub unsafe fn usable_size(&self, heap: *mut Heap, call: Call, p: *mut u8) -> Option<usize> {
        // SAFETY: as the caller promises. Of a name only what never changes is read.
        unsafe { self.size_of_block(Mine::of(heap), call, p) }
    }

    /// Resizes the block at `p`, whose usable size is `old`, to at least `size` bytes. Null if there is no memory;
    /// then the block is as it was.
    ///
    /// # Safety
    /// `heap` must be the caller's; `p` must be a block of the caller's with usable size `old`.
    pub unsafe fn realloc(&self, heap: *mut Heap, p: *mut u8, old: usize, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.resize(Mine::of(heap), p, old, size) }
    }

    /// Takes the caches away from a heap: from now on its calls take their slow paths.
    ///
    /// # Safety
    /// `heap` must be the caller's; likewise below.
    pub unsafe fn drop_caches(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        self.drop_caches_of(unsafe { Mine::of(heap) });
        self.settle();
    }

    /// Ends a thread's use of its heap, which it forgets: caches and remote frees go back to the slabs, and it becomes an
    /// orphan.
    ///
    /// # Safety
    /// As said.
    pub unsafe fn abandon(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        self.abandon_heap(unsafe { Mine::of(heap) });
        self.settle();
    }

    /// A reentrant call ends its thread, whose heap, out of its thread slot, may be half changed: it is not used any more.
    ///
    /// # Safety
    /// As said.
    pub unsafe fn lose(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        self.lose_heap(unsafe { Heap::at(heap) });
    }

    /// Whether calls on this heap have to be looked at: they are watched, or were and the heap has not followed yet.
    ///
    /// # Safety
    /// As said.
    #[inline(always)]
    pub unsafe fn is_watched_at(&self, heap: *mut Heap) -> bool {
        // SAFETY: as the caller promises.
        self.is_watched_in(unsafe { Mine::of(heap) })
    }

    /// Brings a heap, which is not one that was borrowed for a call, to what heaps shall show, if it has not followed yet.
    /// Under no lock, and not between a fast path that failed and what comes after it.
    ///
    /// # Safety
    /// As said.
    pub unsafe fn follow(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        let mine = unsafe { Mine::of(heap) };
        if mine.watch.get() != self.watch() {
            self.show(mine);
        }
        self.settle();
    }

    /// Says that the thread of `heap` is in a hook, or is not any more; returns what was said before.
    ///
    /// # Safety
    /// As said.
    pub unsafe fn set_in_hook(&self, heap: *mut Heap, inside: bool) -> bool {
        // SAFETY: as the caller promises.
        self.set_heap_in_hook(unsafe { Mine::of(heap) }, inside)
    }

    /// The calling thread will be idle: its caches go back to the slabs, its large blocks to the free ranges, and the
    /// blocks that others freed come home. The memory then goes as the policy says.
    ///
    /// # Safety
    /// As said.
    pub unsafe fn rest(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        self.empty_heap(unsafe { Mine::of(heap) });
        self.settle();
    }

    /// Tells all heaps what they shall show. Called under no lock, by a thread whose own heap shows it already.
    pub fn tell_heaps(&self) {
        self.show_everywhere();
        self.settle();
    }

    /// Gives all free memory back to the system, at once; returns the bytes.
    #[cold]
    pub fn purge(&self) -> usize {
        self.purge_with(Heap::none())
    }

    /// [`Allocator::purge`] by a thread in a call that uses its heap `mine`, whose caches go as well.
    #[cold]
    pub fn purge_with(&self, mine: *mut Heap) -> usize {
        let bytes = self.purge_all(mine);
        self.settle();
        self.publish();
        bytes
    }

    /// Gives free memory back to the system until `keep` bytes are left in free ranges, or `go_on` says that it is
    /// enough: it is asked after each heap and each batch. Called under no lock.
    pub fn trim(&self, keep: usize, go_on: impl FnMut() -> bool) -> Trimmed {
        self.trim_with(Heap::none(), keep, go_on)
    }

    /// [`Allocator::trim`] by a thread in a call that uses its heap `mine`, or [`Heap::none`].
    pub fn trim_with(&self, mine: *mut Heap, keep: usize, go_on: impl FnMut() -> bool) -> Trimmed {
        let done = self.trim_all(mine, keep, go_on);
        self.settle();
        self.publish();
        done
    }
}
