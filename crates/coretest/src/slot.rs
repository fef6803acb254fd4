//! Does for each thread of a test what `neap-sys` does: a thread slot holds its heap, so that other threads can use the
//! heap by a handshake. Change this with `crates/sys/src/thread/heap.rs` and `global.rs`.

use neap_core::alloc::Foreign;
use neap_core::class::MAX_SMALL;
use neap_core::fork::Begin;
use neap_core::heap::{Block, FORKED, Mine, Missed, Name, PARKED, ThreadSlot};
use neap_core::{Allocator, CHUNK, Heap, Os};
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// The value of a thread slot whose thread has given its heap up.
pub static GONE: Name = Name::new();

/// malloc with a heap of the caller, in the steps of the port.
pub fn malloc<O: Os>(a: &Allocator<O>, heap: Mine<'_>, size: usize) -> *mut u8 {
    // SAFETY: the heap is the caller's.
    match unsafe { Heap::malloc(heap.id(), size, Block::untag) } {
        Ok(p) => return p,
        // SAFETY: as above.
        Err(Missed::Limit) => match unsafe { Heap::malloc_between_samples(heap.id(), size, Block::untag) } {
            Some(p) if p.is_null() => return a.malloc_past_cache(heap, size),
            Some(p) => return p,
            None => {}
        },
        Err(Missed::Cache) => {}
    }
    if size <= MAX_SMALL || a.is_watched_at(heap) {
        return a.malloc_after_miss(heap, size);
    }
    let p = a.malloc_cached_large(heap, size, CHUNK, false);
    if p.is_null() { a.malloc_fresh(heap, size, CHUNK, false) } else { p }
}

/// free with a heap of the caller, in the steps of the port.
///
/// # Safety
/// `p` must be a block of the caller's, NULL, or foreign.
pub unsafe fn free<O: Os>(a: &Allocator<O>, heap: Mine<'_>, p: *mut u8) -> Result<(), Foreign> {
    // SAFETY: as the caller promises.
    unsafe {
        if Heap::free(heap.id(), &a.map, p) || (!a.is_watched_at(heap) && a.free_to_cache_after_miss(heap, p)) {
            return Ok(());
        }
        a.free_after_miss(heap, p)
    }
}

/// A thread that owns a heap, with or without a thread slot for handshakes.
#[derive(Debug)]
pub struct Owner {
    heap: Mine<'static>,
    /// Null, or from a box. It is neither a box nor a reference, because other threads use the slot through the same
    /// pointer.
    slot: *mut ThreadSlot,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.slot.is_null() {
            // SAFETY: it is from a box, and no handshake uses it.
            drop(unsafe { Box::from_raw(self.slot) });
        }
    }
}

impl Owner {
    /// Makes the first call of a thread; `None` if there is no memory.
    pub fn new<O: Os>(a: &Allocator<O>, cached: bool, has_slot: bool) -> Option<Self> {
        let heap = a.acquire(cached)?;
        let slot = if has_slot { Box::into_raw(Box::new(ThreadSlot::new(heap.id()))) } else { core::ptr::null_mut() };
        if has_slot {
            // SAFETY: the heap is the caller's; all its calls go through the thread slot, which lasts until `abandon`.
            unsafe { a.set_slot(heap, slot) };
        }
        Some(Owner { heap, slot })
    }

    /// The heap, for comparisons.
    pub fn heap(&self) -> *mut Heap {
        self.heap.id()
    }

    /// Runs `f` with the heap, as a call of the thread: no other thread uses the heap meanwhile.
    pub fn with<O: Os, R>(&self, a: &Allocator<O>, f: impl FnOnce(Mine<'static>) -> R) -> R {
        self.try_with(a, f).expect("no fork is under way")
    }

    /// [`Owner::with`]; `None` while another thread forks, because the call is a reentrant one then.
    pub fn try_with<O: Os, R>(&self, a: &Allocator<O>, f: impl FnOnce(Mine<'static>) -> R) -> Option<R> {
        let Some(slot) = self.shared() else { return Some(f(self.heap)) };
        loop {
            // Relaxed: the barrier of the other thread orders the store before the load; only the compiler must not
            // swap them.
            slot.busy.store(0, Ordering::Relaxed);
            // Under Miri there is no barrier for other threads: each side has a fence (`tests/miri/os.rs`).
            if cfg!(miri) {
                fence(Ordering::SeqCst)
            } else {
                compiler_fence(Ordering::SeqCst)
            }
            // Acquire pairs with the Release at the end of a handshake.
            let heap = slot.heap.load(Ordering::Acquire);
            // SAFETY: the thread slot is this thread's, in a call.
            if heap == FORKED.heap() && unsafe { a.take_back(self.slot) } {
                slot.busy.store(ThreadSlot::IDLE, Ordering::Release);
                continue;
            }
            if heap != PARKED.heap() {
                let result = (heap != FORKED.heap()).then(|| {
                    assert_eq!(heap, self.heap(), "the slot holds another heap");
                    f(self.heap)
                });
                // Release pairs with the Acquire load of `busy` in a handshake.
                slot.busy.store(ThreadSlot::IDLE, Ordering::Release);
                return result;
            }
            slot.busy.store(ThreadSlot::IDLE, Ordering::Release);
            // SAFETY: the thread slot is this thread's, and not busy.
            unsafe { a.wait_for_heap(self.slot) };
        }
    }

    /// Whether a call of the thread, which finds its heap parked, gives the wait up.
    pub fn waits_in_vain<O: Os>(&self, a: &Allocator<O>) -> bool {
        // SAFETY: the thread slot is this thread's, and not busy.
        unsafe { !a.wait_parked(self.slot) }
    }

    /// The thread slot, if there is one.
    fn shared(&self) -> Option<&ThreadSlot> {
        // SAFETY: the thread slot lasts as long as this; all of it is atomic.
        unsafe { self.slot.as_ref() }
    }

    /// Does what the port does before fork.
    pub fn fork_begin<O: Os>(&self, a: &Allocator<O>) -> Begin {
        let busy = |value| {
            if let Some(slot) = self.shared() {
                slot.busy.store(value, Ordering::Release);
            }
        };
        busy(0);
        let begin = a.fork_begin(self.slot, false, &mut a.fork_patience());
        busy(ThreadSlot::IDLE);
        begin
    }

    /// Does what the port does before fork in a handler that interrupted the thread in the middle of a fork.
    pub fn fork_begin_again<O: Os>(&self, a: &Allocator<O>) -> Begin {
        a.fork_begin(self.slot, true, &mut a.fork_patience())
    }

    /// Does what the port does after fork in the parent.
    pub fn fork_parent<O: Os>(&self, a: &Allocator<O>) {
        let busy = |value| self.shared().into_iter().for_each(|slot| slot.busy.store(value, Ordering::Release));
        busy(0);
        a.fork_parent();
        busy(ThreadSlot::IDLE);
    }

    /// Does what the port does after fork in the child. The child is this process: other threads of the test must not
    /// use their heaps.
    pub fn fork_child<O: Os>(&self, a: &Allocator<O>) {
        a.fork_child(self.slot, 0);
    }

    /// Does the same for a fork in a handler that interrupted another fork of the thread.
    pub fn fork_child_in_fork<O: Os>(&self, a: &Allocator<O>) {
        a.fork_child(self.slot, 1);
    }

    /// Runs `f` as a flight: a call that the thread's slot does not show.
    pub fn fly<O: Os, R>(&self, a: &Allocator<O>, f: impl FnOnce() -> R) -> R {
        let flight = a.fly(self.slot);
        assert!(flight.is_some(), "a fork is under way");
        f()
    }

    /// Does what the port does in the child of a fork that was made in a reentrant call.
    pub fn fork_child_reentrant<O: Os>(&self, a: &Allocator<O>) {
        a.fork_child_reentrant(self.slot, 0, true);
    }

    /// Ends the thread while another one is stuck in a fork.
    pub fn end_during_fork<O: Os>(self, a: &Allocator<O>) {
        let slot = self.slot;
        // SAFETY: the thread slot is this thread's, outside of calls.
        assert!(!unsafe { a.wait_for_fork(slot) }, "the fork is over");
        // SAFETY: the thread slot is this thread's, in a call.
        let left = self.shared().is_some_and(|own| {
            own.busy.store(0, Ordering::Release);
            // SAFETY: as above.
            let left = unsafe { a.leave_to_others(slot, GONE.heap()) };
            own.busy.store(ThreadSlot::IDLE, Ordering::Release);
            left
        });
        assert!(left, "the fork is over");
    }

    /// Ends the thread.
    pub fn abandon<O: Os>(self, a: &Allocator<O>) {
        while let Some(slot) = self.shared()
            && self.try_with(a, |heap| {
                // Another thread may have parked the heap since; then this one waits. Acquire pairs with the Release at
                // the end of a handshake, after which the other thread does not use the thread slot.
                slot.heap.compare_exchange(heap.id(), GONE.heap(), Ordering::Acquire, Ordering::Relaxed).is_ok()
            }) != Some(true)
        {
            // Waits for the end of a handshake or a fork.
            std::thread::yield_now();
        }
        // The thread has forgotten it, so no thread can park it.
        a.abandon(self.heap);
    }
}
