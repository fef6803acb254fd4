//! The lives of heaps: a thread acquires one at its first call and abandons it when it ends.
//!
//! An abandoned heap stays whole: it becomes an orphan, keeps its slabs, and the next new thread adopts it, warm.
//! So there are never more heaps than there were threads at one time, and the owner of a slab never changes.
//! While a heap is an orphan, the lock of the registry stands in for its owner: other threads take blocks from its
//! slabs, and whoever frees the first block into it also takes in the frees.
//!
//! Lock order: batch (of the purger), registry, ranges.

use crate::arena::Arenas;
use crate::chunk::{Chunk, Kind};
use crate::class::CLASSES;
use crate::figures::Use;
use crate::heap::PARKED;
use crate::slab::Taken;
use crate::sync::{Ordering, peek};
use crate::watch::Watch;
use crate::{Allocator, CHUNK, Heap, Os};

/// A thread owns the heap.
pub const OWNED: u32 = 0;
/// Nobody owns the heap; the lock of the registry guards it.
pub const ORPHAN: u32 = 1;
/// The heap of a thread that a fork left behind in the parent, in the middle of a call: nobody touches it any more.
pub const LOST: u32 = 2;
/// The heap of a thread that a fork left behind, outside of calls: it is whole, and waits to be abandoned.
pub const LEFT: u32 = 3;

/// Bytes that each heap gets in its chunk: no more than it needs, as threads are many.
const HEAP_BYTES: usize = size_of::<Heap>();
/// Orphans that a refill looks at.
const ORPHAN_PROBES: usize = 8;

/// All heaps. Used under its lock.
#[derive(Debug)]
pub struct Registry {
    ready: bool,
    /// Every heap, newest first.
    pub(crate) all: *mut Heap,
    /// Heaps without a thread, newest first.
    pub(crate) orphans: *mut Heap,
    /// Room for heaps in the current chunk.
    store: *mut u8,
    store_left: usize,
}

// SAFETY: heaps in the registry are reached under its lock.
unsafe impl Send for Registry {}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// No heap.
    pub const fn new() -> Self {
        Registry {
            ready: false,
            all: core::ptr::null_mut(),
            orphans: core::ptr::null_mut(),
            store: core::ptr::null_mut(),
            store_left: 0,
        }
    }
}

impl<O: Os> Allocator<O> {
    /// Whether no thread has called yet.
    pub fn is_unused(&self) -> bool {
        // Relaxed: the first caller decides for itself.
        self.publisher.heaps.load(Ordering::Relaxed) == 0
    }

    /// A heap for the calling thread, with caches or without, or null if there is no memory.
    pub fn acquire(&self, cached: bool) -> *mut Heap {
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
            // A thread that waits for its heap looks at this half of its address only (`Allocator::wait_parked`).
            heap = self.place_of_heap(r);
        }
        if !heap.is_null() {
            // SAFETY: the place is a heap's, and new.
            unsafe {
                heap.write(const { Heap::new() });
                (*heap).next = r.all;
            }
            r.all = heap;
            self.publisher.heaps.fetch_add(1, Ordering::Relaxed);
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
            r.store = Arenas::chunk(taken.first);
            r.store_left = CHUNK / HEAP_BYTES;
        }
        let heap = r.store.cast::<Heap>();
        // SAFETY: the store has room for one more heap.
        r.store = unsafe { r.store.add(HEAP_BYTES) };
        r.store_left -= 1;
        heap
    }

    /// Takes the caches away from the caller's heap: from now on its calls take their slow paths.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub unsafe fn drop_caches(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe {
            self.drop_caches_of(heap);
        }
        self.settle();
    }

    /// [`Allocator::drop_caches`], also for a heap that is visited: what has to be settled stays noted.
    ///
    /// # Safety
    /// As that.
    pub(crate) unsafe fn drop_caches_of(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe {
            if Heap::is_cached(heap) {
                for class in 1..CLASSES {
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
                    sum = (sum.0 + used, sum.1 + used * crate::class::SIZE[usize::from(class)] as usize);
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
    pub unsafe fn abandon(&self, heap: *mut Heap) {
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
        self.settle();
    }

    /// Takes in the remote frees of `heap` if it is an orphan (still).
    #[cold]
    pub(crate) fn collect_orphan(&self, heap: *mut Heap) {
        self.registry.with(&self.os, |_| {
            // SAFETY: heaps are never unmapped; an orphan is guarded by this lock.
            unsafe {
                if (*heap).state.load(Ordering::SeqCst) == ORPHAN {
                    Heap::collect(heap, self);
                }
            }
        });
    }

    /// Takes up to `want` blocks of `class` from the slabs of orphans; false if none was found.
    pub(crate) fn take_from_orphans(&self, class: usize, want: u32, taken: &mut Taken) -> bool {
        // Relaxed: a hint; the list is read under the lock.
        if self.orphans.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.registry.with(&self.os, |r| {
            let mut heap = r.orphans;
            for _ in 0..ORPHAN_PROBES {
                if heap.is_null() || taken.count > 0 {
                    break;
                }
                // SAFETY: orphans are guarded by this lock.
                unsafe {
                    Heap::take_from_bin(heap, self, class, want, taken);
                    heap = (*heap).next_orphan;
                }
            }
        });
        taken.count > 0
    }
}
