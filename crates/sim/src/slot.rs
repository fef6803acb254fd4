//! Does for virtual threads what `crates/sys/src/thread/` and `global.rs` do for real ones: the thread slot, reentrant
//! calls, the first and the last call. Change them together.

use crate::life::Life;
use crate::sched::{quietly, sched};
use crate::system::System;
use crate::world::world;
use neap_core::alloc::Foreign;
use neap_core::class::MAX_SMALL;
use neap_core::fork::{Begin, Flight};
use neap_core::heap::{Block, FORKED, Mine, Missed, Name, PARKED, ThreadSlot};
use neap_core::sync::Ordering;
use neap_core::{Allocator, CHUNK, Heap};

/// The heap of a thread that has given its heap up.
static GONE: Name = Name::new();
fn life() -> &'static mut Life {
    &mut allocator().os.lives()[sched().current]
}

/// Makes the stores of `thread` visible to all.
pub fn flush(thread: usize) {
    if let Some(life) = allocator().os.lives().get_mut(thread) {
        life.flush();
    }
}

fn set_busy(busy: u32) {
    let life = life();
    life.set_busy(busy);
    if world().config.buffers == 0 {
        life.flush();
    }
}

fn allocator() -> &'static Allocator<System> {
    &world().a
}

fn slot() -> &'static ThreadSlot {
    // SAFETY: the running thread's slot.
    unsafe { &*life().slot() }
}

fn is_heap(heap: *mut Heap) -> bool {
    heap != Heap::none() && heap != GONE.heap() && heap != PARKED.heap() && heap != FORKED.heap()
}

/// Begins a call: the heap in the thread slot, or `None` in a reentrant call.
fn enter() -> Option<*mut Heap> {
    // A handler may run before this one instruction, or after it.
    if life().busy() != ThreadSlot::IDLE {
        return None;
    }
    set_busy(0);
    // Acquire pairs with the Release at the end of a handshake.
    let heap = slot().heap.load(Ordering::Acquire);
    // The caller's next step on the heap has no atomic operation before it.
    neap_core::points::spin_loop();
    Some(heap)
}

fn leave() {
    set_busy(ThreadSlot::IDLE);
    neap_core::points::spin_loop();
}

/// False if the call has to be a reentrant one.
fn wait_parked() -> bool {
    // SAFETY: the thread's own thread slot, which it has left.
    unsafe { allocator().wait_parked(life().slot()) }
}

/// Waits, outside of a call, until no handshake has the thread's heap.
fn wait_for_heap() {
    // SAFETY: the thread's own thread slot, which is not busy.
    unsafe { allocator().wait_for_heap(life().slot()) };
}

/// Number of calls with a borrowed heap before a thread gets one of its own: fewer than in `crates/sys`, because lives
/// are short.
const EARLY_MALLOCS: u32 = 2;
const EARLY_FREES: u32 = 8;

fn with_heap<R>(f: impl FnMut(Mine<'static>) -> R, reentrant: impl FnMut() -> R) -> Option<R> {
    with_heap_for(EARLY_FREES / EARLY_MALLOCS, f, reentrant)
}

/// Whether a call of a thread without a heap borrows one; counts the call.
fn is_early(weight: u32) -> bool {
    let a = allocator();
    if a.is_stranded() || a.is_unused() || (weight > 1 && a.is_watched()) {
        return false;
    }
    let early = &slot().early;
    let sum = early.load(Ordering::Relaxed) + weight;
    early.store(sum, Ordering::Relaxed);
    sum <= EARLY_FREES
}

/// Runs `f` with a heap that the thread owns meanwhile, or `reentrant`, as a call that counts as `weight` frees.
fn with_heap_for<R>(weight: u32, mut f: impl FnMut(Mine<'static>) -> R, mut reentrant: impl FnMut() -> R) -> Option<R> {
    let a = allocator();
    loop {
        let Some(heap) = enter() else { return Some(reentrant()) };
        if is_heap(heap) {
            // SAFETY: the thread's own heap, in a call.
            let result = f(unsafe { Mine::of(heap) });
            leave();
            return Some(result);
        }
        if heap == PARKED.heap() {
            leave();
            if !wait_parked() {
                return Some(reentrant());
            }
            continue;
        }
        // SAFETY: the thread's own slot, in a call.
        if heap == FORKED.heap() && unsafe { a.take_back(life().slot()) } {
            leave();
            continue;
        }
        let flight = if heap == FORKED.heap() { None } else { a.fly(life().slot()) };
        let Some(flight) = flight else {
            leave();
            return Some(reentrant());
        };
        if heap == GONE.heap() || is_early(weight) {
            let result = with_borrowed(&mut f);
            drop(flight);
            leave();
            return if result.is_none() && a.is_stranded() { Some(reentrant()) } else { result };
        } else if !acquire(flight) {
            return None;
        }
    }
}

/// Runs `f` as a call, with the thread's heap or none; `None` in a reentrant call.
pub fn in_call<R>(f: impl FnOnce(Mine<'_>) -> R) -> Option<R> {
    loop {
        let heap = enter()?;
        if heap == PARKED.heap() {
            leave();
            wait_for_heap();
            continue;
        }
        // SAFETY: the thread's own slot, in a call.
        if heap == FORKED.heap() && unsafe { allocator().take_back(life().slot()) } {
            leave();
            continue;
        }
        let flight = if heap == FORKED.heap() { None } else { allocator().fly(life().slot()) };
        if flight.is_none() && !is_heap(heap) {
            leave();
            return None;
        }
        // SAFETY: the thread's own heap, in a call.
        let heap = if is_heap(heap) { unsafe { Mine::of(heap) } } else { Mine::none() };
        let result = (!allocator().is_stranded()).then(|| f(heap));
        drop(flight);
        leave();
        return result;
    }
}

fn with_borrowed<R>(mut f: impl FnMut(Mine<'static>) -> R) -> Option<R> {
    let heap = if allocator().is_stranded() { None } else { allocator().acquire(false) };
    crate::trace!("borrowed {:p}", heap.map_or(Heap::none(), |heap| heap.id()));
    let heap = heap.filter(|_| !allocator().is_stranded())?;
    let result = f(heap);
    allocator().abandon(heap);
    Some(result)
}

fn acquire(flight: Flight<'_>) -> bool {
    let a = allocator();
    if a.is_stranded() {
        slot().heap.store(GONE.heap(), Ordering::Release);
        leave();
        return true;
    }
    let heap = a.acquire(true);
    crate::trace!("acquired {:p}", heap.map_or(Heap::none(), |heap| heap.id()));
    if let Some(heap) = heap {
        slot().heap.store(heap.id(), Ordering::Release);
    }
    let stranded = a.is_stranded();
    if stranded {
        slot().heap.store(GONE.heap(), Ordering::Release);
    }
    drop(flight);
    leave();
    if stranded {
        return true;
    }
    let Some(heap) = heap else { return false };
    if world().config.slotless == 0 {
        // SAFETY: the heap is this thread's, and the thread slot lasts until its end.
        unsafe { a.set_slot(heap, life().slot()) };
    }
    true
}

/// Gives up the thread's heap, in a call that is not reentrant.
pub fn give_up() {
    let a = allocator();
    // A thread without a heap: later calls borrow one each, because nothing would give up one that they acquired. A
    // handler may acquire one before this. Relaxed: only the thread itself changes a thread slot without a heap.
    let none = slot().heap.compare_exchange(Heap::none(), GONE.heap(), Ordering::Relaxed, Ordering::Relaxed);
    if none.is_ok() || own_heap() == GONE.heap() {
        return;
    }
    let mut given_up = false;
    while !given_up {
        let end = |own: Mine<'static>| {
            let flight = a.take_off(life().slot());
            // Acquire pairs with the Release of a handshake that found the thread busy.
            let gone =
                slot().heap.compare_exchange(own.id(), GONE.heap(), Ordering::Acquire, Ordering::Relaxed).is_ok();
            crate::trace!("gives up {:p}: {gone}", own.id());
            if gone {
                given_up = true;
                a.abandon(own);
            }
            drop(flight);
        };
        let mut forked = false;
        with_heap(end, || forked = true);
        if forked && own_heap() == FORKED.heap() {
            // SAFETY: the thread's own thread slot, outside of calls.
            if unsafe { a.wait_for_fork(life().slot()) } {
                continue;
            }
            if enter().is_none() {
                crate::finding("a thread ends in a reentrant call");
            }
            // SAFETY: the thread's own thread slot, in a call that is not reentrant.
            given_up = unsafe { a.leave_to_others(life().slot(), GONE.heap()) };
            leave();
        } else if own_heap() == GONE.heap() {
            // A handler forked, and this is its child, which is stranded.
            return;
        } else if forked {
            if life().busy() != ThreadSlot::IDLE {
                crate::finding("a thread ends in a reentrant call");
            }
            wait_for_heap();
        }
    }
}

/// The thread has ended, and another one takes its place.
pub fn be_born_again() {
    quietly(|| *life() = Life::new(allocator().os.process.new_thread()));
}

/// The thread ends and leaves its heap behind: its first calls came after the point at which the C library would have
/// given it up. Its storage stays until the threads meet: another thread in a handshake, which checked just before, may
/// use it for some more instructions. Does nothing if the system does not report ends of threads.
pub fn vanish() {
    if let Some(thread) = life().thread {
        allocator().os.process.thread_ended(thread);
        let new = quietly(|| Life::new(allocator().os.process.new_thread()));
        let old = core::mem::replace(life(), new);
        world().bury(old);
    }
}

/// The thread's storage is also used by a child of vfork, which has another number: nothing may be asked about the
/// thread any longer.
pub fn share() {
    life().thread = None;
}

/// The thread's heap, in the child of a fork.
pub fn own_heap() -> *mut Heap {
    slot().heap.load(Ordering::Acquire)
}

/// The thread has lost its heap: it ends, or its process is stranded.
pub fn strand() {
    slot().heap.store(GONE.heap(), Ordering::Release);
}

/// The thread's slot.
pub fn place() -> *mut ThreadSlot {
    life().slot()
}

/// Called before fork; false in a reentrant call, or if a lock stays taken.
pub fn enter_fork() -> bool {
    let a = allocator();
    let mut patience = a.fork_patience();
    while enter().is_some() {
        let begin = a.fork_begin(life().slot(), false, &mut patience);
        leave();
        match begin {
            Begin::Ready => return true,
            Begin::Refused => return false,
            Begin::Later => {
                patience.wait(&a.os);
            }
        }
    }
    false
}

/// Called after fork.
pub fn leave_fork() {
    if enter().is_some() {
        allocator().fork_parent();
        leave();
    }
}

/// Whether the thread is in the middle of a call.
pub fn is_reentrant() -> bool {
    life().busy() != ThreadSlot::IDLE
}

/// malloc, in the steps of `libneap.so`.
pub fn malloc(size: usize) -> *mut u8 {
    let a = allocator();
    let Some(heap) = enter() else { return a.malloc_reentrant(size, 1, false) };
    // SAFETY: the thread's own heap, or a name.
    let (taken, mine) = unsafe { (Heap::malloc(heap, size, Block::untag), Mine::of(heap)) };
    if let Ok(p) = taken {
        leave();
        return p;
    }
    // SAFETY: as above.
    let between = |_| unsafe { Heap::malloc_between_samples(heap, size, Block::untag) };
    if let Some(p) = taken.err().filter(|&missed| missed == Missed::Limit).and_then(between) {
        let p = if p.is_null() {
            let p = a.malloc_past_cache(mine, size);
            a.follow(mine);
            p
        } else {
            p
        };
        leave();
        return p;
    }
    if a.is_watched_at(mine) {
        if !is_heap(heap) {
            leave();
            return malloc_aligned(size, 1, false);
        }
        let p = a.malloc_after_miss(mine, size);
        a.follow(mine);
        leave();
        return p;
    }
    let p = if size <= MAX_SMALL {
        a.malloc_after_miss(mine, size)
    } else {
        let p = a.malloc_cached_large(mine, size, CHUNK, false);
        if p.is_null() { a.malloc_fresh(mine, size, CHUNK, false) } else { p }
    };
    leave();
    p
}

/// calloc.
pub fn calloc(size: usize) -> *mut u8 {
    let a = allocator();
    if size <= 256 {
        let p = malloc(size);
        if !p.is_null() {
            // SAFETY: the block is new, and at least so long.
            unsafe { p.write_bytes(0, size) };
        }
        return p;
    }
    with_heap(|heap| a.calloc(heap, size), || a.malloc_reentrant(size, 1, true)).unwrap_or(core::ptr::null_mut())
}

/// aligned_alloc, zeroed or not.
pub fn malloc_aligned(size: usize, align: usize, zero: bool) -> *mut u8 {
    let a = allocator();
    let aligned = |heap| a.malloc_aligned(heap, size, align, zero);
    with_heap(aligned, || a.malloc_reentrant(size, align, zero)).unwrap_or(core::ptr::null_mut())
}

/// free.
///
/// # Safety
/// `p` must be a live block.
pub unsafe fn free(p: *mut u8) -> Result<(), Foreign> {
    let a = allocator();
    // SAFETY: as the caller promises; the thread's own heap, or a name.
    unsafe {
        let Some(heap) = enter() else { return a.free_reentrant(p) };
        if Heap::free(heap, &a.map, p) {
            leave();
            return Ok(());
        }
        let mine = Mine::of(heap);
        if a.is_watched_at(mine) {
            mine.undo_free(a.map.class(p));
            if is_heap(heap) {
                a.follow(mine);
            }
            leave();
            return match with_heap_for(1, |heap| a.free(heap, p), || a.free_reentrant(p)) {
                Some(known) => known,
                None => a.free_reentrant(p),
            };
        }
        let known = if a.free_to_cache_after_miss(mine, p) { Ok(()) } else { a.free_after_miss(mine, p) };
        leave();
        known
    }
}

/// realloc.
///
/// # Safety
/// `p` must be a live block of usable size `old`.
pub unsafe fn realloc(p: *mut u8, old: usize, size: usize) -> *mut u8 {
    let a = allocator();
    // SAFETY: as the caller promises; `with_heap` lends a heap.
    let new = unsafe { with_heap(|heap| a.realloc(heap, p, old, size), || a.realloc_reentrant(p, old, size)) };
    new.unwrap_or(core::ptr::null_mut())
}

/// malloc_usable_size.
///
/// # Safety
/// `p` must be a live block.
pub unsafe fn usable_size(p: *mut u8) -> Option<usize> {
    let (a, call) = (allocator(), neap_core::misuse::Call::UsableSize);
    // SAFETY: as the caller promises.
    unsafe {
        let Some(heap) = enter() else { return a.usable_size_reentrant(call, p) };
        if heap == FORKED.heap() {
            leave();
            return a.usable_size_reentrant(call, p);
        }
        let size = a.usable_size(Mine::of(heap), call, p);
        leave();
        size
    }
}

/// Gives the thread's caches back.
pub fn rest() {
    if is_heap(own_heap()) || own_heap() == PARKED.heap() || own_heap() == FORKED.heap() {
        with_heap(|heap| allocator().rest(heap), || ());
    }
}
