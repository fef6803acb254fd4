//! Threads: which heap a call uses, when a thread gives its heap up, and fork.
//!
//! The heap in the thread's seat is one of
//! - [`Heap::none`]: the thread has called nothing yet, or a few times ("Early calls" below);
//! - `GONE`: the thread is ending and has given its heap up. What still runs (destructors of other libraries,
//!   the C library's own clean-up) allocates from a heap that is borrowed for each call, and frees as a remote
//!   thread does. In a stranded process (`Allocator::is_stranded`) it stands for all threads, and all calls that the
//!   fast paths cannot serve are nested ones;
//! - [`PARKED`]: another thread visits the heap, for microseconds;
//! - [`FORKED`]: another thread forks, or this one does. All calls that the fast paths cannot serve are nested ones, as they
//!   must not wait (`neap_core::fork`);
//! - a heap of its own.
//!
//! # The end of a thread
//!
//! It is seen by the destructor of a pthread key, which gives the heap up at once; later destructors borrow. The key's
//! index is 31, the last that needs no memory of the C library's: destructors run in the order of the indices, so ours
//! comes behind those of most other keys, and a value that is set in one of those is seen in the same round, also in
//! the last one.
//!
//! # Early calls
//!
//! A value that is set later than that is seen by no destructor: when the C library frees what the thread (or another
//! one, whose stack it takes out of its cache) had, and in hooks of tools that come with those frees. A heap of such a
//! thread would stay for ever, and so would its seat, which visitors write to, when the thread's storage is unmapped.
//! The C library does not tell where a thread is. But what runs there makes few calls. So the first calls of a thread,
//! `EARLY_MALLOCS` allocations or `EARLY_FREES` frees, borrow a heap for the call, as those behind the end do; only then
//! the thread gets one of its own. (A tool that allocates more often than that behind the last destructor of a thread
//! that did not allocate before costs a heap for each such thread; for its seat see `Allocator::park`.) Where calls are
//! watched, allocations get a heap at once, as samples need one.

use crate::arch::{self, Entered};
use crate::global::NEAP;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use neap_core::fork::{Begin, CALL, Flight, Patience};
use neap_core::heap::{FORKED, Name, PARKED, Seat};
use neap_core::{Heap, Os};

/// Allocations of a thread before it gets a heap of its own.
const EARLY_MALLOCS: u32 = 8;
/// Frees likewise.
const EARLY_FREES: u32 = 64;
/// `KEY` before the key exists.
const NO_KEY: u32 = u32::MAX;
/// The best index of a key: glibc keeps the values of keys up to here in the thread's own record.
const BEST_KEY: u32 = 31;

static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
static FORK_HANDLERS: AtomicBool = AtomicBool::new(false);

/// The heap of a thread that has given its heap up.
static GONE: Name = Name::new();

/// Whether `heap` is a real one.
#[inline]
pub fn is_heap(heap: *mut Heap) -> bool {
    heap != Heap::none() && heap != GONE.heap() && heap != PARKED.heap() && heap != FORKED.heap()
}

/// The heap of the calling thread, or what stands for none.
fn own() -> *mut Heap {
    // SAFETY: the thread's own seat. Acquire: what a visitor did to the heap is seen.
    unsafe { (*arch::seat()).heap.load(Ordering::Acquire) }
}

fn set_own(heap: *mut Heap) {
    // SAFETY: the thread's own seat, whose heap nobody else changes while it is not a real one.
    unsafe { (*arch::seat()).heap.store(heap, Ordering::Release) }
}

/// Takes the heap out of the seat for good, in a call that uses it. False if a visitor parked it since the call began:
/// the visitor would put it back, so the thread has to wait for that.
fn give_up(heap: *mut Heap) -> bool {
    // SAFETY: the thread's own seat.
    let seat = unsafe { &(*arch::seat()).heap };
    // Acquire pairs with the Release of a visitor who found the thread busy: it is done with the seat, which ends.
    seat.compare_exchange(heap, GONE.heap(), Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Runs `f` with a heap that the calling thread owns meanwhile; `None` if there is no memory for one. `f` must not
/// call anything that allocates. In a nested call `nested` runs instead.
#[inline]
pub fn with_heap<R>(f: impl FnOnce(*mut Heap) -> R, nested: impl FnOnce() -> R) -> Option<R> {
    with_heap_for(EARLY_FREES / EARLY_MALLOCS, f, nested)
}

/// [`with_heap`] for a free.
#[inline]
pub fn with_heap_to_free<R>(f: impl FnOnce(*mut Heap) -> R, nested: impl FnOnce() -> R) -> Option<R> {
    with_heap_for(1, f, nested)
}

/// [`with_heap`] for a call that counts as `weight` frees.
#[inline]
fn with_heap_for<R>(weight: u32, f: impl FnOnce(*mut Heap) -> R, nested: impl FnOnce() -> R) -> Option<R> {
    loop {
        let Some(entered) = arch::enter() else { return Some(nested()) };
        if is_heap(entered.heap) {
            let result = f(entered.heap);
            entered.leave();
            return Some(result);
        }
        if entered.heap == PARKED.heap() {
            entered.leave();
            // SAFETY: the thread's own seat, which it has just left.
            unsafe { NEAP.wait_parked(arch::seat()) };
            continue;
        }
        // The seat does not tell other threads of what follows.
        let flight = if entered.heap == FORKED.heap() { None } else { NEAP.fly(arch::seat()) };
        let Some(flight) = flight else {
            // Outside of the call: nothing that the thread does is in the way of a fork.
            entered.leave();
            return Some(nested());
        };
        if entered.heap == GONE.heap() || is_early(weight) {
            let result = with_borrowed(f, nested);
            drop(flight);
            entered.leave();
            return result;
        }
        if !acquire(entered, flight) {
            return None;
        }
    }
}

/// Whether a call of a thread without a heap shall borrow one; counts the call. Not the first of the process, which is
/// the main thread's.
#[cold]
fn is_early(weight: u32) -> bool {
    if NEAP.is_stranded() || NEAP.is_unused() || (weight > 1 && NEAP.is_watched()) {
        return false;
    }
    // SAFETY: the thread's own seat. Relaxed: used by the thread alone, in a call.
    let early = unsafe { &(*arch::seat()).early };
    let sum = early.load(Ordering::Relaxed) + weight;
    early.store(sum, Ordering::Relaxed);
    sum <= EARLY_FREES
}

/// Runs `f`, which may take locks of neap's, as a call of this thread, with its heap, or [`Heap::none`] where it has
/// none at present. `None` in a nested call, or where another thread forks and does not get on with it. Whatever takes a
/// lock runs in here or in [`with_heap`], so that a handler that interrupts it sees a call.
pub fn in_call<R>(f: impl FnOnce(*mut Heap) -> R) -> Option<R> {
    let mut patience = Patience::new(CALL);
    loop {
        let entered = arch::enter()?;
        if entered.heap == PARKED.heap() {
            entered.leave();
            // SAFETY: the thread's own seat, which it has just left.
            unsafe { NEAP.wait_parked(arch::seat()) };
            continue;
        }
        // Of a heap's call its seat tells, of others this does.
        let flight = if entered.heap == FORKED.heap() { None } else { NEAP.fly(arch::seat()) };
        if flight.is_none() && !is_heap(entered.heap) {
            entered.leave();
            if patience.wait(&NEAP.os) {
                continue;
            }
            return None;
        }
        let result = if NEAP.is_stranded() {
            None
        } else {
            Some(f(if is_heap(entered.heap) { entered.heap } else { Heap::none() }))
        };
        drop(flight);
        entered.leave();
        return result;
    }
}

/// [`with_heap`] for a thread that has given its heap up, or has none yet: one that is borrowed for this call. In a stranded
/// process `nested` runs, also where a handler made it one meanwhile (it interrupted this, forked and returned in the child).
#[cold]
fn with_borrowed<R>(f: impl FnOnce(*mut Heap) -> R, nested: impl FnOnce() -> R) -> Option<R> {
    let heap = if NEAP.is_stranded() { Heap::none() } else { NEAP.acquire(false) };
    if NEAP.is_stranded() {
        return Some(nested());
    }
    if heap.is_null() {
        return None;
    }
    let result = f(heap);
    // SAFETY: the heap was borrowed for this call.
    unsafe { NEAP.abandon(heap) };
    Some(result)
}

/// A heap of the thread's own, and word of the thread's end. False if there is no memory. Leaves the call, which starts
/// again.
#[cold]
fn acquire(entered: Entered, flight: Flight<'_>) -> bool {
    if NEAP.is_stranded() {
        set_own(GONE.heap());
        entered.leave();
        return true;
    }
    let heap = NEAP.acquire(true);
    if !heap.is_null() {
        set_own(heap);
    }
    // After the store: a handler may have interrupted all this and forked, and have returned in the child.
    let stranded = NEAP.is_stranded();
    if stranded {
        set_own(GONE.heap());
    }
    drop(flight);
    entered.leave();
    if stranded {
        return true;
    }
    if heap.is_null() {
        return false;
    }
    // What follows may allocate, and now can, as a call of its own.
    watch_fork();
    // SAFETY: the key exists; the value is only not null.
    let seen = unsafe { libc::pthread_setspecific(key(), core::ptr::without_provenance(1)) };
    if seen == 0 {
        // The end of the thread will be seen, so the seat lasts until then.
        // SAFETY: the heap is this thread's.
        unsafe { NEAP.set_seat(heap, arch::seat()) };
    }
    true
}

/// The pthread key whose destructor ends a thread's use of its heap.
fn key() -> libc::pthread_key_t {
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        return key;
    }
    let Some(new) = late_key() else { return NO_KEY };
    // SAFETY: the key is ours.
    unsafe {
        match KEY.compare_exchange(NO_KEY, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                libc::pthread_key_delete(new);
                other
            }
        }
    }
}

/// Creates a key, with [`BEST_KEY`] for its index or what comes closest from below, else any. If there are none left,
/// threads that end leave their heaps behind, which is only waste.
fn late_key() -> Option<libc::pthread_key_t> {
    const COUNT: usize = BEST_KEY as usize + 1;
    let mut keys: [libc::pthread_key_t; COUNT] = [0; COUNT];
    let mut count = 0;
    // SAFETY: creates keys, and deletes again those that are not needed, whose values were never set.
    unsafe {
        while count < COUNT && libc::pthread_key_create(&raw mut keys[count], Some(end_of_thread)) == 0 {
            count += 1;
            // The C library gives the lowest index that is free.
            if keys[count - 1] >= BEST_KEY {
                break;
            }
        }
        let keys = &keys[..count];
        let best = keys.iter().copied().filter(|&k| k <= BEST_KEY).max().or(keys.first().copied())?;
        for &key in keys.iter().filter(|&&key| key != best) {
            libc::pthread_key_delete(key);
        }
        Some(best)
    }
}

unsafe extern "C" fn end_of_thread(_: *mut c_void) {
    if own() == Heap::none() || own() == GONE.heap() {
        return;
    }
    let mut given_up = false;
    while !given_up {
        let end = |own| {
            // The seat tells of the call no more, once the heap is given up.
            let flight = NEAP.take_off(arch::seat());
            given_up = give_up(own);
            if given_up {
                // SAFETY: the heap was this thread's, which has just forgotten it.
                unsafe { NEAP.abandon(own) };
                NEAP.thread_ended();
            }
            drop(flight);
        };
        let mut nested = false;
        with_heap(end, || nested = true);
        if nested && own() == FORKED.heap() {
            // SAFETY: the thread's own seat, outside of calls.
            if unsafe { NEAP.wait_for_fork(arch::seat()) } {
                continue;
            }
            // A handler ends the thread in the middle of a call.
            let Some(entered) = arch::enter() else { return };
            // SAFETY: the thread's own seat, in a call that is not nested.
            given_up = unsafe { NEAP.leave_to_others(arch::seat(), GONE.heap()) };
            entered.leave();
        } else if nested {
            // A handler ends the thread in the middle of a call.
            let heap = own();
            if is_heap(heap) && give_up(heap) {
                // SAFETY: the heap was this thread's, which has just forgotten it.
                unsafe { NEAP.lose(heap) };
            }
            return;
        }
    }
}

/// Whether the calling thread has a heap of its own at present.
pub fn has_heap() -> bool {
    let own = own();
    is_heap(own) || own == PARKED.heap() || own == FORKED.heap()
}

/// Whether the calling thread is in the hook for samples. Its seat says so and not its heap, which it has not while another
/// thread forks.
pub fn in_hook() -> bool {
    // SAFETY: the thread's own seat. Relaxed, here and below: used by the thread alone.
    unsafe { (*arch::seat()).in_hook.load(Ordering::Relaxed) != 0 }
}

/// The calling thread enters the hook, or leaves it.
pub fn set_in_hook(inside: bool) {
    // SAFETY: the thread's own seat.
    unsafe { (*arch::seat()).in_hook.store(inside.into(), Ordering::Relaxed) }
}

/// Lets the calling thread's heap, if it has one, follow what heaps shall show: in a nested call, at its next slow path.
pub fn follow() {
    if has_heap() {
        // SAFETY: `with_heap` lends the thread's own heap, as it has one.
        with_heap(|heap| unsafe { NEAP.follow(heap) }, || ());
    }
}

/// The calling thread will be idle: gives up what its heap keeps at hand. Nothing in a nested call.
pub fn rest() {
    if has_heap() {
        // SAFETY: `with_heap` lends the thread's own heap.
        with_heap(|heap| unsafe { NEAP.rest(heap) }, || ());
    }
}

/// Registers the fork handlers, once. Where the C library has no memory for that, the next thread asks again.
pub fn watch_fork() {
    if !FORK_HANDLERS.swap(true, Ordering::AcqRel) {
        if let Some(process) = NEAP.os.process() {
            crate::space::note_owner(process);
        }
        // SAFETY: the handlers stay as long as the library, which cannot be unloaded.
        let refused = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        if refused != 0 {
            FORK_HANDLERS.store(false, Ordering::Release);
        }
    }
}

/// What [`Seat::forks`] counts for a fork that is not one in a nested call.
const FORK: u32 = 1 << 16;

/// The forks that this thread is in the middle of.
fn forks() -> &'static AtomicU32 {
    // SAFETY: the thread's own seat. Used by the thread alone, so Relaxed is enough.
    unsafe { &(*arch::seat()).forks }
}

/// From here to [`in_parent`] or [`in_child`] all calls of all threads are nested ones, and no lock is held. A fork in a
/// handler that interrupted a call (also this one) leaves the locks alone: the call may hold them.
unsafe extern "C" fn before_fork() {
    let mut patience = NEAP.fork_patience();
    while let Some(entered) = arch::enter() {
        let begin = NEAP.fork_begin(arch::seat(), forks().load(Ordering::Relaxed) >= FORK, &mut patience);
        if begin == Begin::Ready {
            forks().fetch_add(FORK, Ordering::Relaxed);
        }
        entered.leave();
        match begin {
            Begin::Ready => return,
            Begin::Refused => break,
            // Outside of the call, as the other fork waits for this thread.
            Begin::Later => {
                patience.wait(&NEAP.os);
            }
        }
    }
    forks().fetch_add(1, Ordering::Relaxed);
}

/// Whether the fork that ends was one in a nested call. Those end in the reverse order of their beginnings.
fn was_nested() -> bool {
    let nested = !forks().load(Ordering::Relaxed).is_multiple_of(FORK);
    forks().fetch_sub(if nested { 1 } else { FORK }, Ordering::Relaxed);
    nested
}

unsafe extern "C" fn in_parent() {
    if !was_nested() {
        let entered = arch::enter();
        NEAP.fork_parent();
        if let Some(entered) = entered {
            entered.leave();
        }
    }
}

#[cold]
unsafe extern "C" fn in_child() {
    let helped = crate::purger::forked();
    let nested = was_nested();
    let inner = forks().load(Ordering::Relaxed) / FORK;
    let seat: *const Seat = arch::seat();
    if nested {
        NEAP.fork_child_nested(seat, inner, !helped);
    } else {
        let entered = arch::enter();
        // Before there can be a helper.
        crate::cgroup::forked();
        NEAP.fork_child(seat, inner);
        if let Some(entered) = entered {
            entered.leave();
        }
    }
    if NEAP.is_stranded() {
        // An interrupted call goes on with the heap that it has; the next one finds none.
        set_own(GONE.heap());
    }
}
