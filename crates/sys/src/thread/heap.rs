//! Which heap does a call use, and when does a thread give its heap up?
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
//! thread would stay for ever, and so would its slot, which visitors write to, when the thread's storage is unmapped.
//! The C library does not tell where a thread is. But what runs there makes few calls. So the first calls of a thread,
//! `EARLY_MALLOCS` allocations or `EARLY_FREES` frees, borrow a heap for the call, as those behind the end do; only then
//! the thread gets one of its own. (A tool that allocates more often than that behind the last destructor of a thread
//! that did not allocate before costs a heap for each such thread; for its slot see `Allocator::park`.) Where calls are
//! watched, allocations get a heap at once, as samples need one.

use crate::allocator::NEAP;
use crate::arch::{self, Entered};
use crate::slot::{self, is_heap};
use crate::thread::fork::watch_fork;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::Heap;
use neap_core::fork::{CALL, Flight, Patience};
use neap_core::heap::{FORKED, PARKED};

/// Allocations of a thread before it gets a heap of its own.
const EARLY_MALLOCS: u32 = 8;
/// Frees likewise.
const EARLY_FREES: u32 = 64;
/// `KEY` before the key exists.
const NO_KEY: u32 = u32::MAX;
/// The best index of a key: glibc keeps the values of keys up to here in the thread's own record.
const BEST_KEY: u32 = 31;

static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// A heap that the calling thread may use until this is dropped: then its call is over. The call must use nothing else that
/// allocates meanwhile.
#[derive(Debug)]
pub struct Lent {
    heap: *mut Heap,
    entered: Entered,
    /// What the slot does not say to other threads: a call with a borrowed heap.
    flight: Option<Flight<'static>>,
}

impl Lent {
    /// The heap: the thread's own, or one that is borrowed for this call.
    #[inline]
    pub fn heap(&self) -> *mut Heap {
        self.heap
    }
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            // SAFETY: the heap was borrowed for this call.
            unsafe { NEAP.abandon(self.heap) };
            drop(flight);
        }
        self.entered.leave();
    }
}

/// How a call goes on that the fast paths could not serve.
#[derive(Debug)]
pub enum Turn {
    /// With this heap.
    Heap(Lent),
    /// Without a heap or a lock: it is a handler's, another thread forks, or the process is stranded.
    Reentrant,
    /// There is no memory for a heap.
    NoMemory,
}

impl Turn {
    /// For a call that allocates.
    #[inline]
    pub fn to_allocate() -> Turn {
        Self::take(EARLY_FREES / EARLY_MALLOCS)
    }

    /// For a call that frees.
    #[inline]
    pub fn to_free() -> Turn {
        Self::take(1)
    }

    /// For a call that counts as `weight` frees.
    #[inline]
    fn take(weight: u32) -> Turn {
        loop {
            let Some(entered) = arch::enter() else { return Turn::Reentrant };
            if is_heap(entered.heap) {
                return Turn::Heap(Lent { heap: entered.heap, entered, flight: None });
            }
            if let Some(turn) = Self::without_heap(entered, weight) {
                return turn;
            }
        }
    }

    /// [`Turn::take`] in a thread that has no heap at present; `None` if it is to try again.
    #[cold]
    fn without_heap(entered: Entered, weight: u32) -> Option<Turn> {
        if entered.heap == PARKED.heap() {
            wait_parked(entered);
            return None;
        }
        // The slot does not tell other threads of what follows.
        let flight = if entered.heap == FORKED.heap() { None } else { NEAP.fly(arch::slot()) };
        let Some(flight) = flight else {
            // Outside of the call: nothing that the thread does is in the way of a fork.
            entered.leave();
            return Some(Turn::Reentrant);
        };
        if entered.heap == slot::gone() || is_early(weight) {
            return Some(Self::borrow(entered, flight));
        }
        if acquire(entered, flight) { None } else { Some(Turn::NoMemory) }
    }

    /// For a thread that has given its heap up, or has none yet. In a stranded process the call is reentrant, also where a
    /// handler made it one meanwhile (it interrupted this, forked and returned in the child).
    fn borrow(entered: Entered, flight: Flight<'static>) -> Turn {
        let heap = if NEAP.is_stranded() { Heap::none() } else { NEAP.acquire(false) };
        if !NEAP.is_stranded() && !heap.is_null() {
            return Turn::Heap(Lent { heap, entered, flight: Some(flight) });
        }
        drop(flight);
        entered.leave();
        if NEAP.is_stranded() { Turn::Reentrant } else { Turn::NoMemory }
    }
}

/// The heap is parked: waits, outside of the call, until the visitor has put it back.
fn wait_parked(entered: Entered) {
    entered.leave();
    // SAFETY: the thread's own slot, which it has just left.
    unsafe { NEAP.wait_parked(arch::slot()) };
}

/// Whether a call of a thread without a heap borrows one; counts the call. Not the first of the process, which is
/// the main thread's.
#[cold]
fn is_early(weight: u32) -> bool {
    if NEAP.is_stranded() || NEAP.is_unused() || (weight > 1 && NEAP.is_watched()) {
        return false;
    }
    slot::count_early(weight) <= EARLY_FREES
}

/// Runs `f`, which may take locks of neap's, as a call of this thread, with its heap, or [`Heap::none`] where it has
/// none at present. `None` in a reentrant call, or where another thread forks and does not get on with it. Whatever takes a
/// lock runs in here or with a [`Turn`], so that a handler that interrupts it sees a call.
pub fn in_call<R>(f: impl FnOnce(*mut Heap) -> R) -> Option<R> {
    let mut patience = Patience::new(CALL);
    loop {
        let entered = arch::enter()?;
        if entered.heap == PARKED.heap() {
            wait_parked(entered);
            continue;
        }
        // Of a heap's call its slot tells, of others this does.
        let flight = if entered.heap == FORKED.heap() { None } else { NEAP.fly(arch::slot()) };
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

/// A heap of the thread's own, and notice of the thread's end. False if there is no memory. Leaves the call, which
/// starts again.
#[cold]
fn acquire(entered: Entered, flight: Flight<'static>) -> bool {
    if NEAP.is_stranded() {
        slot::set_heap(slot::gone());
        entered.leave();
        return true;
    }
    let heap = NEAP.acquire(true);
    if !heap.is_null() {
        slot::set_heap(heap);
    }
    // After the store: a handler may have interrupted all this and forked, and have returned in the child.
    let stranded = NEAP.is_stranded();
    if stranded {
        slot::set_heap(slot::gone());
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
        // The end of the thread will be seen, so the slot lasts until then.
        // SAFETY: the heap is this thread's.
        unsafe { NEAP.set_slot(heap, arch::slot()) };
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
    if slot::heap() == Heap::none() || slot::heap() == slot::gone() {
        return;
    }
    loop {
        match Turn::to_free() {
            Turn::Heap(lent) => {
                // The slot does not tell of the call any more, once the heap is given up.
                let _flight = NEAP.take_off(arch::slot());
                if slot::give_up(lent.heap()) {
                    // SAFETY: the heap was this thread's, which has just forgotten it.
                    unsafe { NEAP.abandon(lent.heap()) };
                    NEAP.thread_ended();
                    return;
                }
            }
            Turn::Reentrant if slot::heap() == FORKED.heap() => {
                // SAFETY: the thread's own slot, outside of calls.
                if unsafe { NEAP.wait_for_fork(arch::slot()) } {
                    continue;
                }
                // A handler ends the thread in the middle of a call.
                let Some(entered) = arch::enter() else { return };
                // SAFETY: the thread's own slot, in a call that is not reentrant.
                let left = unsafe { NEAP.leave_to_others(arch::slot(), slot::gone()) };
                entered.leave();
                if left {
                    return;
                }
            }
            _ => {
                // A handler ends the thread in the middle of a call.
                let heap = slot::heap();
                if is_heap(heap) && slot::give_up(heap) {
                    // SAFETY: the heap was this thread's, which has just forgotten it.
                    unsafe { NEAP.lose(heap) };
                }
                return;
            }
        }
    }
}

/// Lets the calling thread's heap, if it has one, follow what heaps shall show: in a reentrant call, at its next slow path.
pub fn follow() {
    if slot::has_heap()
        && let Turn::Heap(lent) = Turn::to_allocate()
    {
        // SAFETY: the thread's own heap, as it has one.
        unsafe { NEAP.follow(lent.heap()) };
    }
}

/// The calling thread will be idle: gives up what its heap keeps at hand. Nothing in a reentrant call.
pub fn rest() {
    if slot::has_heap()
        && let Turn::Heap(lent) = Turn::to_allocate()
    {
        // SAFETY: the thread's own heap.
        unsafe { NEAP.rest(lent.heap()) };
    }
}
