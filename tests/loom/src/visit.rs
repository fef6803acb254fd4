//! Visits to a heap, as far as thread slot, barrier and the thread's end go: what `crates/core/src/visit.rs` and
//! `crates/sys/src/thread/` do. Change both together.
//!
//! The system's barrier is a full fence in the visitor, and one in the owner between its two steps: what the owner's
//! processor has done of them when the barrier comes is what the visitor sees.

use crate::system::os::Futex;
use crate::system::sync::Threads;
use crate::system::sync::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::fence;

/// The thread slot holds the thread's heap.
pub const OWN: u32 = 1;
/// Somebody visits the heap.
pub const PARKED: u32 = 2;
/// The thread has given the heap up.
pub const GONE: u32 = 3;

/// `busy` where no call uses the heap.
const IDLE: u32 = u32::MAX;

/// A thread's heap and thread slot.
#[derive(Debug)]
pub struct Seated {
    slot: AtomicU32,
    busy: AtomicU32,
    /// The thread slot's memory, which ends with the thread.
    memory: UnsafeCell<()>,
    /// The heap: used by one at a time, which loom checks.
    pub heap: UnsafeCell<u32>,
    /// Whether the heap says where its thread's slot is.
    registry: Mutex<bool>,
    os: Futex,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Seated {}
// SAFETY: as above.
unsafe impl Send for Seated {}

impl Default for Seated {
    fn default() -> Self {
        Seated {
            slot: AtomicU32::new(OWN),
            busy: AtomicU32::new(IDLE),
            memory: UnsafeCell::new(()),
            heap: UnsafeCell::new(0),
            registry: Mutex::new(true),
            os: Futex::default(),
        }
    }
}

impl Seated {
    fn use_heap(&self) {
        // SAFETY: loom checks the access.
        self.heap.with_mut(|heap| unsafe { *heap += 1 });
    }

    /// A call of the thread that uses its heap: `with_heap` of the port.
    pub fn call<R>(&self, f: impl Fn() -> R) -> R {
        loop {
            assert_eq!(self.busy.fetch_add(1, Ordering::Relaxed), IDLE, "a reentrant call");
            // The owner's half of the barrier.
            fence(Ordering::SeqCst);
            // Acquire pairs with the Release of `visit`.
            if self.slot.load(Ordering::Acquire) == OWN {
                self.use_heap();
                let result = f();
                self.busy.store(IDLE, Ordering::Release);
                return result;
            }
            self.busy.store(IDLE, Ordering::Release);
            while self.slot.load(Ordering::Acquire) == PARKED {
                self.os.futex_wait(&self.slot, PARKED);
            }
        }
    }

    /// The thread's end: `end_of_thread` of the port, `Allocator::abandon` of the core.
    pub fn end(&self) {
        // Acquire pairs with the Release of a visitor who found the thread busy: it is done with the thread slot.
        let give_up = || self.slot.compare_exchange(OWN, GONE, Ordering::Acquire, Ordering::Relaxed).is_ok();
        while !self.call(give_up) {}
        // The caches go back.
        self.use_heap();
        *self.registry.lock().unwrap() = false;
        // SAFETY: loom checks the access.
        self.memory.with_mut(|m| unsafe { *m = () });
    }

    /// `Allocator::visit` of the core. Whether the heap was visited.
    pub fn visit(&self) -> bool {
        {
            let has_slot = self.registry.lock().unwrap();
            if !*has_slot {
                return false;
            }
            // SAFETY: loom checks the access.
            self.memory.with(|m| unsafe { *m });
            if self.slot.compare_exchange(OWN, PARKED, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                return false;
            }
        }
        // The visitor's half of the barrier.
        fence(Ordering::SeqCst);
        // Acquire pairs with the Release when the thread leaves.
        let visited = self.busy.load(Ordering::Acquire) == IDLE;
        if visited {
            self.use_heap();
        }
        // SAFETY: loom checks the access.
        self.memory.with(|m| unsafe { *m });
        // Release pairs with the Acquire of `call`.
        self.slot.store(OWN, Ordering::Release);
        self.os.futex_wake(&self.slot);
        visited
    }
}
