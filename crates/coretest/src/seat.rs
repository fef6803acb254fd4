//! What `neap-sys` does for each thread: a seat for its heap, so that visitors can use it while the thread does
//! something else. Change this with `crates/sys/src/{thread,global}.rs`.

use neap_core::heap::{Name, PARKED, Seat};
use neap_core::{Allocator, Heap, Os};
use std::sync::atomic::{Ordering, compiler_fence};

/// The heap of a thread that has given its heap up.
pub static GONE: Name = Name::new();

/// A thread's hold on its heap, with a seat for visitors or without.
#[derive(Debug)]
pub struct Owner {
    heap: *mut Heap,
    seat: Option<Box<Seat>>,
}

impl Owner {
    /// A thread's first call; `None` if there is no memory.
    pub fn new<O: Os>(a: &Allocator<O>, cached: bool, seated: bool) -> Option<Self> {
        let heap = a.acquire(cached);
        if heap.is_null() {
            return None;
        }
        let mut owner = Owner { heap, seat: None };
        if seated {
            let seat = Box::new(Seat::new(heap));
            let seat = owner.seat.insert(seat);
            // SAFETY: the heap is the caller's; all its calls go through the seat, which lasts until `abandon`.
            unsafe { a.set_seat(heap, &raw mut **seat) };
        }
        Some(owner)
    }

    /// The heap, for comparisons.
    pub fn heap(&self) -> *mut Heap {
        self.heap
    }

    /// Runs `f` with the heap, which nobody visits meanwhile.
    pub fn with<O: Os, R>(&self, a: &Allocator<O>, f: impl FnOnce(*mut Heap) -> R) -> R {
        let Some(seat) = &self.seat else { return f(self.heap) };
        loop {
            // Relaxed: the visitor's barrier orders the store before the load; here only the compiler must not swap them.
            seat.busy.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // Acquire pairs with the Release when a visitor gives the heap back.
            let heap = seat.heap.load(Ordering::Acquire);
            if heap != PARKED.heap() {
                assert_eq!(heap, self.heap, "the seat holds another heap");
                let result = f(heap);
                // Release pairs with the visitor's look at `busy`.
                seat.busy.store(Seat::IDLE, Ordering::Release);
                return result;
            }
            seat.busy.store(Seat::IDLE, Ordering::Release);
            // SAFETY: the seat is this thread's, and not busy.
            unsafe { a.wait_parked((&raw const **seat).cast_mut()) };
        }
    }

    /// The thread's end.
    pub fn abandon<O: Os>(self, a: &Allocator<O>) {
        while let Some(seat) = &self.seat
            && !self.with(a, |heap| {
                // A visitor may have parked the heap since; then the thread waits. Acquire: one that found it busy is
                // done with the seat.
                seat.heap.compare_exchange(heap, GONE.heap(), Ordering::Acquire, Ordering::Relaxed).is_ok()
            })
        {}
        // SAFETY: the heap is the caller's, who has forgotten it; nobody can park it any more.
        unsafe { a.abandon(self.heap) };
    }
}
