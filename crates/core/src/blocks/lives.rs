//! The lives of heaps: a thread acquires one at its first call and abandons it when it ends.
//!
//! An abandoned heap stays whole: it becomes an orphan, keeps its slabs, and the next new thread adopts it, warm.
//! So there are never more heaps than there were threads at one time, and the owner of a slab never changes.
//! While a heap is an orphan, the lock of the registry stands in for its owner: other threads take blocks from its
//! slabs, and whoever frees the first block into it also takes in the frees.
//!
//! Lock order: batch (of the purger), registry, ranges.

use crate::blocks::heap::PARKED;
use crate::blocks::registry::{ORPHAN, OWNED, Registry};
use crate::blocks::watch::Watch;
use crate::blocks::{Blocks, class};
use crate::pages::chunk::{Chunk, Kind};
use crate::pages::held::Use;
use crate::pages::layout;
use crate::system::sync::{Ordering, peek};
use crate::{CHUNK, Heap, Os};

/// Bytes that each heap gets in its chunk: no more than it needs, as threads are many.
const HEAP_BYTES: usize = size_of::<Heap>();
impl<O: Os> Blocks<O> {
    /// Whether no thread has called yet.
    pub fn is_unused(&self) -> bool {
        // Relaxed: the first caller decides for itself.
        self.heaps.load(Ordering::Relaxed) == 0
    }

    /// A heap for the calling thread, with caches or without, or null if there is no memory.
    pub(crate) fn acquire(&self, cached: bool) -> *mut Heap {
        self.registry.with(&self.os, |r| {
            if !r.ready {
                self.set_up();
                r.ready = true;
            }
            let heap = if r.orphans.is_null() {
                // SAFETY: the lock of the registry is held.
                unsafe { self.new_heap(r) }
            } else {
                let heap = r.orphans;
                // SAFETY: orphans are guarded by this lock.
                unsafe {
                    r.orphans = (*heap).next_orphan;
                    // SeqCst: see `abandon`.
                    (*heap).state.store(OWNED, Ordering::SeqCst);
                }
                self.orphans.fetch_sub(1, Ordering::Relaxed);
                heap
            };
            if !heap.is_null() {
                // SAFETY: the heap is now the caller's, and an orphan's caches are empty.
                unsafe {
                    Heap::set_cached(heap, cached);
                    // Nothing is sampled in a heap that is borrowed for a call.
                    let _ = self.set_in_hook(heap, !cached);
                    (*heap).watch = if cached { Watch::Nothing } else { Watch::Everything };
                    if cached {
                        self.show(heap);
                    }
                }
            }
            heap
        })
    }

    unsafe fn new_heap(&self, r: &mut Registry) -> *mut Heap {
        let mut heap = self.place_of_heap(r);
        if heap.addr() as u32 == PARKED.heap().addr() as u32 {
            // A thread that waits for its heap looks at this half of its address only (`Blocks::wait_parked`).
            heap = self.place_of_heap(r);
        }
        if !heap.is_null() {
            // SAFETY: the place is a heap's, and new.
            unsafe {
                heap.write(const { Heap::new() });
                (*heap).next = r.all;
            }
            r.all = heap;
            self.heaps.fetch_add(1, Ordering::Relaxed);
        }
        heap
    }

    /// A place for one more heap, or null if there is no memory.
    fn place_of_heap(&self, r: &mut Registry) -> *mut Heap {
        if r.store_left == 0 {
            // Heaps need no zeroed memory, as they are written whole.
            let Some(taken) = self.take_chunks(1, CHUNK, Use::Heaps) else {
                return core::ptr::null_mut();
            };
            r.store = layout::chunk(taken.first);
            r.store_left = CHUNK / HEAP_BYTES;
        }
        let heap = r.store.cast::<Heap>();
        // SAFETY: the store has room for one more heap.
        r.store = unsafe { r.store.add(HEAP_BYTES) };
        r.store_left -= 1;
        heap
    }

    /// Takes the caches away from a heap: from now on its calls take their slow paths.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub(crate) unsafe fn drop_caches(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe {
            if Heap::is_cached(heap) {
                for class in 1..class::CLASSES {
                    Heap::flush(heap, self, class, 0);
                }
                self.clear_shelf(heap, 0);
                Heap::shrink_caps(heap, self);
                Heap::set_cached(heap, false);
                Heap::release_last(heap, self);
            }
        }
    }

    /// Blocks and bytes that are not free: live ones and those in the caches of other threads. Walks all chunks.
    pub fn live(&self) -> (usize, usize) {
        self.ranges.with(&self.os, |_| {
            let mut sum = (0, 0);
            self.arenas.for_each(|c| {
                // SAFETY: records of used chunks are readable. Another thread's slab may change meanwhile.
                let (kind, class, used) = unsafe {
                    ((*c).kind.get(), peek(&raw const (*c).class, 1), peek(&raw const (*c).used, 0) as usize)
                };
                if kind == Kind::SLAB {
                    sum = (sum.0 + used, sum.1 + used * class::SIZE[usize::from(class)] as usize);
                } else if kind == Kind::LARGE {
                    // SAFETY: as above.
                    sum = (sum.0 + 1, sum.1 + unsafe { Chunk::bytes(c) });
                }
            });
            let (blocks, bytes) = self.live_in_annex();
            (sum.0 + blocks, sum.1 + bytes)
        })
    }

    /// Ends a thread's use of its heap: caches and remote frees go back to the slabs, and it becomes an orphan.
    ///
    /// # Safety
    /// `heap` must be the caller's, who forgets it.
    pub(crate) unsafe fn abandon(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe {
            self.drop_caches(heap);
            self.registry.with(&self.os, |r| {
                // Its thread has forgotten it, so it cannot be parked any more. Relaxed: the lock orders it.
                (*heap).seat.store(core::ptr::null_mut(), Ordering::Relaxed);
                // Before it is one: a handler that frees into it from then on leaves a note, and `drain`, which may take the
                // note at once, looks for orphans only where there are any. Relaxed: the note orders it.
                self.orphans.fetch_add(1, Ordering::Relaxed);
                // SeqCst pairs with `Pending::push` and the load behind it: a thread that pushes a slab either
                // comes before this store, and `collect` sees the slab, or sees ORPHAN and collects itself.
                (*heap).state.store(ORPHAN, Ordering::SeqCst);
                Heap::collect(heap, self);
                if self.policy.harden() {
                    Heap::release_last(heap, self);
                }
                (*heap).next_orphan = r.orphans;
                r.orphans = heap;
            });
        }
    }
}
