//! Which heap a call uses, and when a thread gives its heap up.
//!
//! # The end of a thread
//!
//! The destructor of a pthread key runs at the end of a thread, and gives the heap up at once. Later destructors borrow
//! a heap. The key has index 31, the last one that needs no memory of the C library's. Destructors run in the order of
//! the indices, so this one runs behind those of most other keys. A value that one of those sets is handled in the same
//! round, also in the last round. With musl other keys may have greater indices: their destructors borrow a heap.
//!
//! # Early calls
//!
//! After the last round a thread can still call neap: the C library frees what the thread had (or another thread, whose
//! stack it takes out of its cache), and hooks of tools run with those frees. No destructor would run for a heap that
//! the thread got there. The heap would stay for ever, and handshakes would write to its slot after the thread's
//! storage is unmapped. The C library does not say whether a thread is past the last round. But code there makes few
//! calls. So the first calls of each thread, `EARLY_MALLOCS` allocations or `EARLY_FREES` frees, borrow a heap for the
//! call; after these the thread gets its own heap. (If a tool allocates more often than that after the last destructor,
//! in a thread that did not allocate before, each such thread costs a heap; for its slot see `Allocator::park`.) If
//! calls are watched, allocations get a heap at once, because samples need one.

use crate::allocator::NEAP;
use crate::arch::{self, Entered};
use crate::musl;
use crate::slot::{self, is_heap};
use crate::system::call;
use crate::thread::fork::watch_fork;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::fork::{CALL, Flight, Patience};
use neap_core::heap::{FORKED, Mine, PARKED};

/// Allocations of a thread before it gets a heap of its own.
const EARLY_MALLOCS: u32 = 8;
/// Frees of a thread before it gets a heap of its own.
const EARLY_FREES: u32 = 64;
/// Stands for no key, where none could be created.
const NO_KEY: u32 = u32::MAX;
/// The best index of a key: glibc keeps the values of keys up to this one in the thread's own record.
const BEST_KEY: u32 = 31;

/// The key, plus 1; 0 before it exists.
static KEY: AtomicU32 = AtomicU32::new(0);

/// A heap that the calling thread may use until this is dropped, which ends the call. Meanwhile the call must use
/// nothing else that allocates.
#[derive(Debug)]
pub struct Lent {
    heap: Mine<'static>,
    entered: Entered,
    /// Shows other threads a call with a borrowed heap, which the slot does not.
    flight: Option<Flight<'static>>,
}

impl Lent {
    /// The heap: the thread's own, or one that is borrowed for this call.
    #[inline]
    pub fn heap(&self) -> Mine<'_> {
        self.heap
    }
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            NEAP.abandon(self.heap);
            drop(flight);
        }
        self.entered.leave();
    }
}

/// How a call continues that the fast paths cannot serve.
#[derive(Debug)]
pub enum Turn {
    /// The call uses this heap.
    Heap(Lent),
    /// The call uses neither heap nor lock: it is a handler's, another thread forks, a handshake with this one takes
    /// long, or the process is stranded.
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
                return Turn::Heap(Lent { heap: entered.lend(), entered, flight: None });
            }
            if let Some(turn) = Self::without_heap(entered, weight) {
                return turn;
            }
        }
    }

    /// [`Turn::take`] in a thread that has no heap now; `None` if the caller must try again.
    #[cold]
    fn without_heap(entered: Entered, weight: u32) -> Option<Turn> {
        if entered.heap == PARKED.heap() {
            return if wait_parked(entered) { None } else { Some(Turn::Reentrant) };
        }
        if entered.heap == FORKED.heap() && take_back() {
            entered.leave();
            return None;
        }
        // The slot does not show other threads what follows; the flight does.
        let flight = if entered.heap == FORKED.heap() { None } else { NEAP.fly(arch::slot()) };
        let Some(flight) = flight else {
            // The call is left first, so the thread does not hold up a fork.
            entered.leave();
            return Some(Turn::Reentrant);
        };
        if entered.heap == slot::gone() || is_early(weight) {
            return Some(Self::borrow(entered, flight));
        }
        if acquire(entered, flight) { None } else { Some(Turn::NoMemory) }
    }

    /// For a thread that has given its heap up, or has none yet. In a stranded process the call is reentrant. The
    /// process may become stranded meanwhile: a handler interrupts this function, forks, and returns in the child.
    fn borrow(entered: Entered, flight: Flight<'static>) -> Turn {
        let heap = if NEAP.is_stranded() { None } else { NEAP.acquire(false) };
        if let Some(heap) = heap
            && !NEAP.is_stranded()
        {
            return Turn::Heap(Lent { heap, entered, flight: Some(flight) });
        }
        drop(flight);
        entered.leave();
        if NEAP.is_stranded() { Turn::Reentrant } else { Turn::NoMemory }
    }
}

/// Waits, outside of the call, until the handshake with the thread has ended and its heap is back. False if that takes
/// too long: see `Back::wait_parked`.
fn wait_parked(entered: Entered) -> bool {
    entered.leave();
    // SAFETY: the thread's own slot, which it has just left.
    unsafe { NEAP.wait_parked(arch::slot()) }
}

/// Waits, outside of a call, until no handshake has the thread's heap.
fn wait_for_heap() {
    // SAFETY: the thread's own slot, which is not busy.
    unsafe { NEAP.wait_for_heap(arch::slot()) };
}

/// In a call: takes the thread's heap back if the fork that took it has ended.
fn take_back() -> bool {
    // SAFETY: the thread's own slot, in a call.
    unsafe { NEAP.take_back(arch::slot()) }
}

/// Whether a call of a thread without a heap borrows one; counts the call. The first call of the process does not, as
/// it is the main thread's.
#[cold]
fn is_early(weight: u32) -> bool {
    if NEAP.is_stranded() || NEAP.is_unused() || (weight > 1 && NEAP.is_watched()) {
        return false;
    }
    slot::count_early(weight) <= EARLY_FREES
}

/// Runs `f`, which may take locks of neap's, as a call of this thread. `f` gets the thread's heap, or [`Mine::none`]
/// where the thread has none now. `None` in a reentrant call, or where another thread's fork takes too long. All code
/// that takes a lock runs in here or with a [`Turn`], so that a handler which interrupts it finds the thread in a call.
pub fn in_call<R>(f: impl FnOnce(Mine<'_>) -> R) -> Option<R> {
    let mut patience = Patience::new(CALL);
    loop {
        let entered = arch::enter()?;
        if entered.heap == PARKED.heap() {
            entered.leave();
            wait_for_heap();
            continue;
        }
        if entered.heap == FORKED.heap() && take_back() {
            entered.leave();
            continue;
        }
        // The slot shows a call with a heap; a flight shows others.
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
            // SAFETY: the thread's own heap, in a call.
            let own = is_heap(entered.heap).then(|| unsafe { Mine::of(entered.heap) });
            Some(f(own.unwrap_or_else(Mine::none)))
        };
        drop(flight);
        entered.leave();
        return result;
    }
}

/// Gives the thread a heap of its own, and registers [`end_of_thread`] for it. False if there is no memory. Leaves the
/// call; the caller starts it again.
#[cold]
fn acquire(entered: Entered, flight: Flight<'static>) -> bool {
    let heap = if NEAP.is_stranded() { None } else { NEAP.acquire(true) };
    if let Some(heap) = heap {
        slot::set_heap(heap.id());
    }
    // Read after the store: a handler may have interrupted this function, forked, and returned in the child.
    let stranded = NEAP.is_stranded();
    if stranded {
        slot::set_heap(slot::gone());
    }
    drop(flight);
    entered.leave();
    if stranded {
        return true;
    }
    let Some(heap) = heap else { return false };
    // What follows may allocate, and can now: outside of the call, in a thread that has a heap.
    watch_fork();
    // SAFETY: the key exists; the value is a number.
    let seen = unsafe { libc::pthread_setspecific(key(), core::ptr::without_provenance(1)) };
    // ENOSYS: an old C library without threads (`older.rs` of crates/surface).
    if seen == 0 || (seen == libc::ENOSYS && call::thread() == call::process()) {
        // The destructor will run at the thread's end, and the slot lasts until then; or the thread is the first one of
        // the process, whose storage stays.
        // SAFETY: the heap is this thread's.
        unsafe { NEAP.set_slot(heap, arch::slot()) };
    }
    true
}

/// The pthread key whose destructor ends a thread's use of its heap.
fn key() -> libc::pthread_key_t {
    if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
        return key;
    }
    let Some(new) = (if musl::is_here() { any_key() } else { late_key() }) else { return NO_KEY };
    match KEY.compare_exchange(0, new + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(other) => {
            // SAFETY: this function has made the key.
            unsafe { libc::pthread_key_delete(new) };
            other - 1
        }
    }
}

/// Creates a key.
fn any_key() -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: the key's place is valid.
    (unsafe { libc::pthread_key_create(&raw mut key, Some(end_of_thread)) } == 0).then_some(key)
}

/// Creates a key with the index [`BEST_KEY`], or the greatest one below that is free, else any. If no key is left,
/// threads that end leave their heaps behind, which only wastes memory.
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

/// Gives the heap up at once, because there may be no other round of destructors: the thread may have got the heap in
/// the last round but one.
unsafe extern "C" fn end_of_thread(_: *mut c_void) {
    while slot::has_heap() {
        match Turn::to_free() {
            Turn::Heap(lent) => {
                // Once the heap is given up, the slot does not show the call any more.
                let _flight = NEAP.take_off(arch::slot());
                if slot::give_up(lent.heap().id()) {
                    NEAP.abandon(lent.heap());
                    NEAP.thread_ended();
                    return;
                }
            }
            Turn::Reentrant if slot::heap() == FORKED.heap() => {
                // SAFETY: the thread's own slot.
                let ended = unsafe { NEAP.wait_for_fork(arch::slot()) };
                // A reentrant call: a handler ends the thread in the middle of a call.
                let Some(entered) = arch::enter() else { return };
                if ended {
                    entered.leave();
                    // If not the fork but another holder of the lock was in the way: it may need this processor.
                    Patience::new(CALL).wait(&NEAP.os);
                    continue;
                }
                // SAFETY: the thread's own slot, in a call that is not reentrant.
                let left = unsafe { NEAP.leave_to_others(arch::slot(), slot::gone()) };
                entered.leave();
                if left {
                    return;
                }
            }
            _ => {
                if let Some(entered) = arch::enter() {
                    // The fork has ended since the call was refused, and the heap is back; or a handshake has it.
                    entered.leave();
                    wait_for_heap();
                    continue;
                }
                // A handler ends the thread in the middle of a call.
                let heap = slot::heap();
                if is_heap(heap) && slot::give_up(heap) {
                    // SAFETY: the heap was this thread's, which has just forgotten it.
                    NEAP.lose(unsafe { Mine::of(heap) });
                }
                return;
            }
        }
    }
}

/// The calling thread's heap, if there is one, adopts the watch mode. In a reentrant call it does so at its next slow
/// path.
pub fn follow() {
    with_own_heap(|heap| NEAP.follow(heap));
}

/// To be called when the calling thread will be idle: its heap gives its caches back. Does nothing in a reentrant call.
pub fn rest() {
    with_own_heap(|heap| NEAP.rest(heap));
}

/// Runs `f` with the thread's own heap, if it has one and the call is not reentrant.
fn with_own_heap(f: impl FnOnce(Mine<'_>)) {
    if slot::has_heap()
        && let Turn::Heap(lent) = Turn::to_allocate()
    {
        f(lent.heap());
    }
}
