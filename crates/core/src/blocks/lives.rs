//! Lives of heaps: a thread acquires a heap at its first call and abandons it when it ends.
//!
//! An abandoned heap stays whole: it becomes an orphan, keeps its slabs, and the next new thread adopts it, warm. So
//! there are never more heaps than there were threads at one time, and the owner of a slab never changes. While a heap
//! is an orphan, the lock of the registry takes the place of its owner (invariants 18, 21): other threads take blocks
//! from its slabs, and the thread that frees the first block into it also collects the frees.

use crate::blocks::heap::{Mine, PARKED};
use crate::blocks::registry::{self, ORPHAN, OWNED, Registry};
use crate::blocks::watch::Watch;
use crate::blocks::{Blocks, class, large_record, slab_record};
use crate::pages::chunk::Kind;
use crate::pages::held::Use;
use crate::system::policy::HugePages;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// Bytes of a heap in its chunk. Not rounded up, as there may be many threads.
const HEAP_BYTES: usize = size_of::<Heap>();

impl<O: Os> Blocks<O> {
    /// Whether no thread has made a call yet.
    pub fn is_unused(&self) -> bool {
        // Relaxed: a thread that has made a call sees the heap that it got.
        self.heaps.load(Ordering::Relaxed) == 0
    }

    /// Returns every heap that exists now. Under no lock: heaps are never unmapped.
    pub(crate) fn all_heaps(&self) -> impl Iterator<Item = &'static Heap> {
        registry::all(self.registry.with(&self.os, |r| r.all))
    }

    /// Returns a heap for the calling thread, with caches or without, or `None` if there is no memory.
    pub fn acquire(&self, cached: bool) -> Option<Mine<'static>> {
        self.registry.with(&self.os, |r| {
            if !r.ready {
                self.set_up();
                r.ready = true;
            }
            let mine = match self.adopt(r) {
                Some(orphan) => orphan,
                None => {
                    let heap = self.new_heap(r)?;
                    self.heaps.fetch_add(1, Ordering::Relaxed);
                    heap
                }
            };
            // SeqCst: see `abandon_heap`.
            mine.state.store(OWNED, Ordering::SeqCst);
            // An orphan's caches are empty.
            mine.set_cached(cached);
            // No sampling in a heap that is borrowed for a call.
            let _ = self.set_in_hook(mine, !cached);
            mine.watch.set(if cached { Watch::Nothing } else { Watch::Everything });
            if cached {
                self.update_watch(mine);
            }
            Some(mine)
        })
    }

    /// Takes an orphan out of the registry.
    fn adopt(&self, r: &mut Registry) -> Option<Mine<'static>> {
        let (orphan, next) = r.orphans().next().map(|orphan| (orphan.id(), orphan.next_orphan.get()))?;
        r.orphans = next;
        self.orphans.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: no thread has the heap, and no other thread finds it among the orphans.
        Some(unsafe { Mine::of(orphan) })
    }

    /// Makes one more heap, or returns `None` if there is no memory.
    pub(crate) fn new_heap(&self, r: &mut Registry) -> Option<Mine<'static>> {
        let mut heap = self.place_of_heap(r);
        if heap.addr() as u32 == PARKED.heap().addr() as u32 {
            // A thread that waits for its heap compares only this half of its address (`Back::wait_parked`).
            heap = self.place_of_heap(r);
        }
        if heap.is_null() {
            return None;
        }
        // SAFETY: the place is a heap's, and new.
        let mine: Mine<'static> = unsafe {
            heap.write(const { Heap::new() });
            Mine::of(heap)
        };
        mine.next.set(r.all);
        r.all = heap;
        Some(mine)
    }

    /// Returns memory for one more heap, or null if there is none.
    fn place_of_heap(&self, r: &mut Registry) -> *mut Heap {
        if r.store_left == 0 {
            // Heaps need no zeroed memory, as each is written whole.
            let Some(chunk) = self.chunk_of_heaps() else {
                return core::ptr::null_mut();
            };
            r.store = chunk;
            r.store_left = CHUNK / HEAP_BYTES;
        }
        let heap = r.store.cast::<Heap>();
        r.store = r.store.wrapping_add(HEAP_BYTES);
        r.store_left -= 1;
        heap
    }

    /// Takes a chunk for heaps. Not from the pool of huge pages: the child of a fork writes to its heaps before the
    /// program goes on, and would end with SIGBUS where the pool has no page for the copy.
    fn chunk_of_heaps(&self) -> Option<*mut u8> {
        if self.policy.huge() == HugePages::Pool
            && let Some(c) = self.arenas.reentrant_reserve.take(&self.os, &self.map, 1, 1)
        {
            c.set_kind(Kind::HEAPS);
            return Some(c.start());
        }
        Some(self.take_chunks(1, CHUNK, Use::Heaps)?.first.start())
    }

    /// Removes the caches of a heap: from now on its calls take their slow paths.
    pub(crate) fn drop_caches_of(&self, heap: Mine<'_>) {
        if heap.is_cached() {
            self.empty_caches_of(heap);
            heap.set_cached(false);
            heap.release_last(self);
        }
    }

    /// Empties the caches of a heap, which has some.
    fn empty_caches_of(&self, heap: Mine<'_>) {
        (1..class::CLASSES).for_each(|class| heap.flush_all(self, class));
        self.clear_cached_large(heap, 0);
        heap.shrink_caps(self);
    }

    /// Empties the caches of a heap, and collects what other threads freed into it.
    #[cold]
    pub(crate) fn empty_heap(&self, heap: Mine<'_>) {
        if heap.is_cached() {
            self.empty_caches_of(heap);
        }
        heap.collect(self);
    }

    /// Returns the number of blocks that are not free, and their bytes: live blocks and those in caches. Walks all
    /// chunks.
    pub fn live(&self) -> (usize, usize) {
        self.ranges.with(&self.os, |r| {
            let mut sum = (0, 0);
            self.arenas.for_each(r.lock(), |c| {
                // Approximate: another thread's slab may change meanwhile.
                if c.kind() == Kind::SLAB {
                    let (used, size) = (slab_record::seen(c).0 as usize, class::SIZE[c.class_roughly(1)] as usize);
                    sum = (sum.0 + used, sum.1 + used * size);
                } else if c.kind() == Kind::LARGE {
                    sum = (sum.0 + 1, sum.1 + large_record::bytes(c));
                }
            });
            let (blocks, bytes) = self.live_reentrant();
            (sum.0 + blocks, sum.1 + bytes)
        })
    }

    /// Ends a thread's use of its heap: gives caches and remote frees back to the slabs, and makes the heap an orphan.
    pub(crate) fn abandon_heap(&self, heap: Mine<'_>) {
        self.drop_caches_of(heap);
        self.registry.with(&self.os, |r| {
            // The slot no longer holds the heap, so no thread can park it. Relaxed: the lock orders it.
            heap.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
            // Counted before it becomes an orphan. A handler that then frees into it leaves a note; `drain` may take
            // the note at once, and looks for orphans only if the count is not 0. Relaxed: the note orders it.
            self.orphans.fetch_add(1, Ordering::Relaxed);
            // SeqCst pairs with `Pending::push` and the load after it: a thread that pushes a slab either does so
            // before this store, and `collect` sees the slab, or sees ORPHAN and collects itself.
            heap.state.store(ORPHAN, Ordering::SeqCst);
            heap.collect(self);
            if self.policy.harden() {
                heap.release_last(self);
            }
            heap.next_orphan.set(r.orphans);
            r.orphans = heap.id();
        });
    }
}
