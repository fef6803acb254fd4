//! What does each thread keep in its slot of thread storage ([`ThreadSlot`])?
//!
//! The heap in the thread's slot is one of
//! - [`Heap::none`]: the thread has called nothing yet, or a few times ("Early calls" in `thread/heap.rs`);
//! - [`GONE`]: the thread is ending and has given its heap up. What still runs (destructors of other libraries,
//!   the C library's own clean-up) allocates from a heap that is borrowed for each call, and frees as a remote
//!   thread does. In a stranded process (`Allocator::is_stranded`) it stands for all threads, and all calls that the
//!   fast paths cannot serve are reentrant ones;
//! - [`PARKED`]: another thread visits the heap, for microseconds;
//! - [`FORKED`]: another thread forks, or this one does. All calls that the fast paths cannot serve are reentrant ones, as they
//!   must not wait (`neap_core::fork`);
//! - a heap of its own.
//!

use crate::arch;
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::Heap;
use neap_core::heap::{FORKED, Name, PARKED, ThreadSlot};

/// The heap of a thread that has given its heap up.
static GONE: Name = Name::new();

/// What stands for the heap of a thread that has given its heap up.
pub fn gone() -> *mut Heap {
    GONE.heap()
}

/// The calling thread's slot. To be used at once, and not kept.
fn own<'a>() -> &'a ThreadSlot {
    // SAFETY: it is there as long as the thread runs, and all its fields are atomic.
    unsafe { &*arch::slot() }
}

/// Whether `heap` is a real one.
#[inline]
pub fn is_heap(heap: *mut Heap) -> bool {
    heap != Heap::none() && heap != GONE.heap() && heap != PARKED.heap() && heap != FORKED.heap()
}

/// The heap of the calling thread, or what stands for none.
pub fn heap() -> *mut Heap {
    // Acquire pairs with the Release of a visitor: what it did to the heap is seen.
    own().heap.load(Ordering::Acquire)
}

/// Sets the heap, which is not a real one now: so no other thread changes it.
pub fn set_heap(heap: *mut Heap) {
    // Release pairs with the Acquire of a visitor or a fork that takes the heap away.
    own().heap.store(heap, Ordering::Release);
}

/// Takes the heap out of the slot for good, in a call that uses it. False if a visitor parked it since the call began:
/// the visitor would put it back, so the thread has to wait for that.
pub fn give_up(heap: *mut Heap) -> bool {
    // Acquire pairs with the Release of a visitor who found the thread busy: it is done with the slot, which ends.
    own().heap.compare_exchange(heap, GONE.heap(), Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Whether the calling thread has a heap of its own at present.
pub fn has_heap() -> bool {
    let own = heap();
    is_heap(own) || own == PARKED.heap() || own == FORKED.heap()
}

// Relaxed from here on: used by the thread alone.

/// Adds to the calls that the thread has made before it had a heap; returns how many those are.
pub fn count_early(weight: u32) -> u32 {
    let sum = own().early.load(Ordering::Relaxed) + weight;
    own().early.store(sum, Ordering::Relaxed);
    sum
}

/// The forks that this thread is in the middle of.
pub fn forks<'a>() -> &'a AtomicU32 {
    &own().forks
}

/// Whether the calling thread is in the hook for samples. Its slot says so and not its heap, which it has not while another
/// thread forks.
pub fn in_hook() -> bool {
    own().in_hook.load(Ordering::Relaxed) != 0
}

/// The calling thread enters the hook, or leaves it.
pub fn set_in_hook(inside: bool) {
    own().in_hook.store(inside.into(), Ordering::Relaxed);
}
