//! Threads: which heap a call uses, when a thread gives its heap up, and fork.
//!
//! The word of thread storage is one of
//! - [`Heap::none`]: the thread has called nothing yet;
//! - [`gone`]: the thread is ending and has given its heap up. What still runs (destructors of other libraries,
//!   the C library's own clean-up) allocates from a heap that is borrowed for each call, and frees as a remote
//!   thread does;
//! - a heap of its own.
//!
//! The end of a thread is seen by the destructor of a pthread key. Destructors of other keys may run later and
//! allocate; so ours puts its value back until the last of the rounds that POSIX allows.

use crate::arch;
use crate::global::NEAP;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use neap_core::Heap;
use neap_core::heap::Name;

/// Rounds of destructors that the C library runs (PTHREAD_DESTRUCTOR_ITERATIONS).
const ROUNDS: usize = 4;
/// `KEY` before the key exists.
const NO_KEY: u32 = u32::MAX;

static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
static FORK_HANDLERS: AtomicBool = AtomicBool::new(false);

/// The heap of a thread that has given its heap up.
static GONE: Name = Name::new();

/// The value of the thread's word before its first call.
#[inline]
pub fn none() -> *mut Heap {
    Heap::none()
}

/// The value of the thread's word after it gave its heap up.
#[inline]
pub fn gone() -> *mut Heap {
    GONE.heap()
}

/// Whether `heap` is a real one.
#[inline]
pub fn is_heap(heap: *mut Heap) -> bool {
    heap != none() && heap != gone()
}

/// Runs `f` with a heap that the calling thread owns meanwhile; null if there is no memory for one.
#[inline]
pub fn with_heap<R>(f: impl FnOnce(*mut Heap) -> R) -> Option<R> {
    let mut heap = arch::thread_heap();
    if heap == gone() {
        heap = NEAP.acquire(false);
        if heap.is_null() {
            return None;
        }
        let result = f(heap);
        // SAFETY: the heap was borrowed for this call.
        unsafe { NEAP.abandon(heap) };
        return Some(result);
    }
    if heap == none() {
        heap = acquire();
        if heap.is_null() {
            return None;
        }
    }
    Some(f(heap))
}

/// The first call of a thread: a heap of its own, and word of the thread's end.
#[cold]
fn acquire() -> *mut Heap {
    let heap = NEAP.acquire(NEAP.os.counters().is_none());
    if heap.is_null() {
        return heap;
    }
    arch::set_thread_heap(heap);
    // What follows may allocate, and now can.
    watch_fork();
    // SAFETY: the key exists; the value is only a count of rounds.
    unsafe {
        libc::pthread_setspecific(key(), core::ptr::without_provenance(1));
    }
    heap
}

/// The pthread key whose destructor ends a thread's use of its heap.
fn key() -> libc::pthread_key_t {
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        return key;
    }
    let mut new = 0;
    // SAFETY: creates a key. If there are none left, threads that end leave their heaps behind, which is only waste.
    unsafe {
        if libc::pthread_key_create(&raw mut new, Some(end_of_thread)) != 0 {
            return NO_KEY;
        }
        match KEY.compare_exchange(NO_KEY, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                libc::pthread_key_delete(new);
                other
            }
        }
    }
}

unsafe extern "C" fn end_of_thread(round: *mut c_void) {
    let heap = arch::thread_heap();
    if !is_heap(heap) {
        return;
    }
    if round.addr() < ROUNDS {
        // SAFETY: our key; no memory is needed, as the slot exists.
        let kept = unsafe { libc::pthread_setspecific(key(), core::ptr::without_provenance(round.addr() + 1)) };
        if kept == 0 {
            return;
        }
    }
    arch::set_thread_heap(gone());
    // SAFETY: the heap was this thread's, which has just forgotten it.
    unsafe { NEAP.abandon(heap) };
}

/// Registers the fork handlers, once.
pub fn watch_fork() {
    if !FORK_HANDLERS.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers stay as long as the library, which cannot be unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    }
}

unsafe extern "C" fn before_fork() {
    NEAP.fork_prepare();
}

unsafe extern "C" fn in_parent() {
    NEAP.fork_parent();
}

unsafe extern "C" fn in_child() {
    crate::purger::forked();
    NEAP.fork_child(arch::thread_heap());
}
