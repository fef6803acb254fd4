//! Each thread's slot in thread storage ([`ThreadSlot`]), and the marks that may be there in place of a heap.
//!
//! The heap in the thread's slot is one of
//! - [`Heap::none`]: the thread has made no call yet, or a few ("Early calls" in `thread/heap.rs`);
//! - [`GONE`]: the thread is ending and has given its heap up. Code that still runs (destructors of other libraries,
//!   the C library's own clean-up) borrows a heap for each call. In a stranded process (`Allocator::is_stranded`) all
//!   threads have this mark, and all calls that the fast paths cannot serve are reentrant;
//! - [`PARKED`]: another thread uses the heap in a handshake, for microseconds;
//! - [`FORKED`]: another thread forks, or this one does. All calls that the fast paths cannot serve are reentrant,
//!   because they must not wait (`neap_core::fork`);
//! - the thread's own heap.

use crate::arch::{self, Entered};
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::Heap;
use neap_core::heap::{FORKED, Mine, Name, PARKED, ThreadSlot};

/// The mark of a thread that has given its heap up.
static GONE: Name = Name::new();

/// This mark, as it is in the slot.
pub fn gone() -> *mut Heap {
    GONE.heap()
}

impl Entered {
    /// The thread's own heap or a mark ([`Name`]), for use in this call only.
    #[inline(always)]
    pub fn lend(self) -> Mine<'static> {
        self.acquire();
        // SAFETY: the thread's slot says that a call of the thread uses the heap.
        unsafe { Mine::of(self.heap) }
    }
}

/// The calling thread's slot. The reference must not be kept: the slot ends with the thread.
fn own<'a>() -> &'a ThreadSlot {
    // SAFETY: the slot lives as long as the thread runs, and all its fields are atomic.
    unsafe { &*arch::slot() }
}

/// Whether `heap` is a heap and not a mark.
#[inline]
pub fn is_heap(heap: *mut Heap) -> bool {
    heap != Heap::none() && heap != GONE.heap() && heap != PARKED.heap() && heap != FORKED.heap()
}

/// The heap of the calling thread, or the mark in its place.
pub fn heap() -> *mut Heap {
    // Acquire pairs with the Release at the end of a handshake: this thread sees what the other one did to the heap.
    own().heap.load(Ordering::Acquire)
}

/// Sets the heap. The slot must not have a real heap now: then no other thread changes it.
pub fn set_heap(heap: *mut Heap) {
    // Release pairs with the Acquire of a handshake or a fork that takes the heap away.
    own().heap.store(heap, Ordering::Release);
}

/// Takes the heap out of the slot for good, in a call that uses the heap. False if another thread has parked it since
/// the call began: that thread will put it back, and this one must wait for that.
pub fn give_up(heap: *mut Heap) -> bool {
    // Acquire pairs with the Release of a handshake that found the thread busy: it does not use the slot any more.
    own().heap.compare_exchange(heap, GONE.heap(), Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Whether the calling thread has a heap of its own at present.
pub fn has_heap() -> bool {
    let own = heap();
    is_heap(own) || own == PARKED.heap() || own == FORKED.heap()
}

// Relaxed from here on: only the thread itself uses these words.

/// Adds to the count of calls that the thread has made before it had a heap; returns the sum.
pub fn count_early(weight: u32) -> u32 {
    let sum = own().early.load(Ordering::Relaxed) + weight;
    own().early.store(sum, Ordering::Relaxed);
    sum
}

/// The forks that this thread is in the middle of, as `thread/fork.rs` counts them.
pub fn forks<'a>() -> &'a AtomicU32 {
    &own().forks
}

/// Whether the calling thread is in the hook for samples. The slot says so, not the heap: while another thread forks,
/// this one has no heap.
pub fn in_hook() -> bool {
    own().in_hook.load(Ordering::Relaxed) != 0
}

/// Notes that the calling thread enters the hook, or leaves it.
pub fn set_in_hook(inside: bool) {
    own().in_hook.store(inside.into(), Ordering::Relaxed);
}
