//! The handshake: how another thread uses the heap of a thread that is in no call, and what the end of that thread
//! does. See `crates/core/src/back/handshake.rs` and `crates/sys/src/thread/heap.rs`; change both together.
//!
//! The system's barrier is modelled by two full fences: one in the thread that makes the handshake, and one in the
//! owner between its store and its load. Either the other thread sees the store, or the owner's load comes after the
//! other thread's fence.

use crate::system::os::Futex;
use crate::system::sync::Threads;
use crate::system::sync::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::fence;

/// The thread slot holds the thread's heap.
pub const OWN: u32 = 1;
/// Another thread makes a handshake: the heap is parked.
pub const PARKED: u32 = 2;
/// The thread has given the heap up.
pub const GONE: u32 = 3;

/// The value of `busy` while the thread is in no call.
const IDLE: u32 = u32::MAX;

/// A thread's heap and thread slot.
#[derive(Debug)]
pub struct Thread {
    /// The slot's heap: [`OWN`], [`PARKED`] or [`GONE`].
    slot: AtomicU32,
    /// Whether the thread is in a call.
    busy: AtomicU32,
    /// The memory of the thread slot, which is unmapped when the thread ends.
    memory: UnsafeCell<()>,
    /// The heap. One thread uses it at a time, which loom checks.
    pub heap: UnsafeCell<u32>,
    /// Whether the heap still refers to the thread slot.
    registry: Mutex<bool>,
    os: Futex,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Thread {}
// SAFETY: as above.
unsafe impl Send for Thread {}

impl Default for Thread {
    fn default() -> Self {
        Thread {
            slot: AtomicU32::new(OWN),
            busy: AtomicU32::new(IDLE),
            memory: UnsafeCell::new(()),
            heap: UnsafeCell::new(0),
            registry: Mutex::new(true),
            os: Futex::default(),
        }
    }
}

impl Thread {
    fn use_heap(&self) {
        // SAFETY: loom checks the access.
        self.heap.with_mut(|heap| unsafe { *heap += 1 });
    }

    /// Makes a call of the thread that uses its heap: `Turn` of the port.
    pub fn call<R>(&self, f: impl Fn() -> R) -> R {
        loop {
            assert_eq!(self.busy.fetch_add(1, Ordering::Relaxed), IDLE, "a reentrant call");
            // The owner's half of the barrier.
            fence(Ordering::SeqCst);
            // Acquire pairs with the Release at the end of `handshake`.
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

    /// Ends the thread: `end_of_thread` of the port, `Blocks::abandon_heap` of the core.
    pub fn end(&self) {
        // Acquire pairs with the Release at the end of a handshake: the other thread no longer uses the thread slot.
        let give_up = || self.slot.compare_exchange(OWN, GONE, Ordering::Acquire, Ordering::Relaxed).is_ok();
        while !self.call(give_up) {}
        // The caches go back.
        self.use_heap();
        *self.registry.lock().unwrap() = false;
        // SAFETY: loom checks the access.
        self.memory.with_mut(|m| unsafe { *m = () });
    }

    /// Makes a handshake as another thread, `Back::handshake` of the core. Returns whether it used the heap.
    pub fn handshake(&self) -> bool {
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
        // The other thread's half of the barrier.
        fence(Ordering::SeqCst);
        // Acquire pairs with the Release with which the thread ends a call.
        let used = self.busy.load(Ordering::Acquire) == IDLE;
        if used {
            self.use_heap();
        }
        // SAFETY: loom checks the access.
        self.memory.with(|m| unsafe { *m });
        // Release pairs with the Acquire of `call`.
        self.slot.store(OWN, Ordering::Release);
        self.os.futex_wake(&self.slot);
        used
    }
}
