//! malloc, free and related functions, which the C surface and the Rust crate share.
//!
//! Each call tries the fast path of [`Heap`] on the thread's heap. A separate function does the rest of the call. Calls
//! that fail return null and set errno to ENOMEM; those that succeed leave errno alone.

use crate::observe::{samples, sites};
use crate::sampled::{
    are_taken, free_guarded, freed, is_reported, malloc_sample, note_new, take_reentrant, take_sample,
};
use crate::system::{errno, space};
use crate::thread::{self, Turn};
use crate::{arch, guards, profile, slot, watch};
use core::sync::atomic::Ordering;
use neap_core::alloc::MAX_SIZE;
use neap_core::class::{self, MAX_SMALL, MAX_TABLE, SIZE};
use neap_core::heap::{FORKED, Mine, Missed};
use neap_core::misuse::Call;
use neap_core::realloc::small_fits;
use neap_core::watch::Reason;
use neap_core::{CHUNK, Heap, Os};

pub use crate::allocator::NEAP;

/// What free does with a pointer that neap does not know. The crate that exports `free` passes it in.
pub type ForeignFree = unsafe fn(*mut u8);

#[cold]
#[inline(never)]
fn no_memory() -> *mut u8 {
    errno::set(libc::ENOMEM);
    // `black_box` hides that this is null. So callers end with a jump to this function, and their usual path keeps no
    // copy of the block.
    core::hint::black_box(core::ptr::null_mut())
}

/// The last step of the slow paths that allocate: returns the new block of `size` bytes; sets errno if it is null.
/// Where calls are watched, the block is filled (unless it must stay zeroed, `zero`), counted and recorded. If it is
/// `sampled`, the hook is called.
#[inline]
fn finish(p: *mut u8, size: usize, sampled: bool, zero: bool) -> *mut u8 {
    if p.is_null() {
        return no_memory();
    }
    if NEAP.is_watched() {
        finish_watched(p, size, sampled, zero);
    }
    p
}

#[cold]
#[inline(never)]
fn finish_watched(p: *mut u8, size: usize, sampled: bool, zero: bool) {
    if !zero && watch::fill() != 0 {
        // SAFETY: the block is new, and has as many bytes.
        unsafe { p.write_bytes(!watch::fill(), size) };
    }
    let counters = NEAP.os.counters();
    if !sampled && counters.is_none() && sites::interval() == 0 && !NEAP.has_reason(Reason::Exact) {
        return;
    }
    // SAFETY: the block is new.
    let usable = unsafe { usable_size(p, Call::UsableSize) }.unwrap_or(0);
    if let Some(counters) = counters {
        counters.blocks_allocated.fetch_add(1, Ordering::Relaxed);
        counters.bytes_allocated.fetch_add(usable as u64, Ordering::Relaxed);
    }
    if sites::interval() != 0
        && let Some(space) = space::space()
    {
        space.sites.record(|| space.is_guest(), p, usable);
    }
    note_new(p, size, usable, sampled);
}

/// `malloc`: a block of at least `size` bytes, aligned to 16.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    let Some(entered) = arch::enter() else { return malloc_reentrant(size, false) };
    // SAFETY: the thread's own heap.
    match unsafe { Heap::malloc(entered.heap, size, arch::untag) } {
        Ok(p) => {
            entered.leave();
            p
        }
        Err(Missed::Limit) => malloc_past_limit(size, entered.lend()),
        Err(Missed::Cache) => malloc_entered(size, entered.lend()),
    }
}

/// [`malloc`] of a size that is not below the limit of its heap. The usual case comes first: a heap whose blocks are
/// sampled.
#[inline(never)]
fn malloc_past_limit(size: usize, heap: Mine<'static>) -> *mut u8 {
    // SAFETY: the thread's own heap, which the call has entered.
    match unsafe { Heap::malloc_between_samples(heap.id(), size, arch::untag) } {
        None => malloc_entered(size, heap),
        Some(p) if p.is_null() => malloc_past_cache(size, heap),
        Some(p) => {
            arch::leave();
            p
        }
    }
}

/// The rest of [`malloc`], after `Heap::malloc` failed on `heap`, which the call has entered.
#[cold]
#[inline(never)]
fn malloc_entered(size: usize, heap: Mine<'static>) -> *mut u8 {
    // A mark counts as watched.
    if NEAP.is_watched_at(heap) {
        return malloc_watched(size, heap);
    }
    if size <= MAX_SMALL {
        return malloc_missed(size, heap);
    }
    let p = NEAP.malloc_cached_large(heap, size, CHUNK, false);
    if p.is_null() {
        return malloc_fresh(size, heap);
    }
    arch::leave();
    p
}

/// [`malloc_entered`] of a small block.
#[inline(never)]
fn malloc_missed(size: usize, heap: Mine<'static>) -> *mut u8 {
    let p = NEAP.malloc_after_miss(heap, size);
    arch::leave();
    if p.is_null() { no_memory() } else { p }
}

/// [`malloc_entered`] of a large block that the large cache does not have.
#[inline(never)]
fn malloc_fresh(size: usize, heap: Mine<'static>) -> *mut u8 {
    let p = NEAP.malloc_fresh(heap, size, CHUNK, false);
    arch::leave();
    if p.is_null() { no_memory() } else { p }
}

/// [`malloc_past_limit`] of a small block between two samples that the cache does not have.
#[inline(never)]
fn malloc_past_cache(size: usize, heap: Mine<'static>) -> *mut u8 {
    between_samples(NEAP.malloc_past_cache(heap, size), heap)
}

/// The last step of malloc between two samples, where nothing else is watched: returns the new block; sets errno if it
/// is null.
#[inline]
fn between_samples(p: *mut u8, heap: Mine<'static>) -> *mut u8 {
    NEAP.follow(heap);
    arch::leave();
    if p.is_null() { no_memory() } else { p }
}

/// [`malloc_entered`], where the thread has no heap or calls are watched.
#[cold]
#[inline(never)]
fn malloc_watched(size: usize, heap: Mine<'static>) -> *mut u8 {
    if !slot::is_heap(heap.id()) {
        arch::leave();
        return malloc_slow(size, 1, false);
    }
    if NEAP.skips_sample(heap, size) {
        return between_samples(NEAP.malloc_after_miss(heap, size), heap);
    }
    let due = are_taken() && NEAP.is_due_after_miss(heap, size);
    let sample = if due { take_sample(heap, size, 1, false) } else { core::ptr::null_mut() };
    let p = if sample.is_null() { NEAP.malloc_after_miss(heap, size) } else { sample };
    NEAP.follow(heap);
    arch::leave();
    finish(p, size, !sample.is_null(), false)
}

/// A block of at least `size` bytes aligned to `align`, a power of two, from the slow path; zeroed if `zero`.
#[inline]
fn malloc_slow(size: usize, align: usize, zero: bool) -> *mut u8 {
    let mut sample = core::ptr::null_mut();
    let mut chosen = false;
    let p = match Turn::to_allocate() {
        Turn::Heap(lent) => {
            if NEAP.is_watched() {
                sample = malloc_sample(lent.heap(), size, align, zero);
            }
            if sample.is_null() { NEAP.malloc_aligned(lent.heap(), size, align, zero) } else { sample }
        }
        Turn::Reentrant => {
            let (p, sampled) = take_reentrant(size, align, zero);
            chosen = sampled;
            p
        }
        Turn::NoMemory => core::ptr::null_mut(),
    };
    finish(p, size, chosen || !sample.is_null(), zero)
}

/// malloc and calloc in a handler that interrupted another call of this thread.
#[cold]
#[inline(never)]
fn malloc_reentrant(size: usize, zero: bool) -> *mut u8 {
    let (p, sampled) = take_reentrant(size, 1, zero);
    finish(p, size, sampled, zero)
}

/// `calloc`: a zeroed block of `count * size` bytes.
#[inline(always)]
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    // An overflow gives `usize::MAX`, a size that no block can have, so the slow path fails.
    let bytes = count.saturating_mul(size);
    if bytes > SHORT {
        return calloc_slow(bytes);
    }
    let Some(entered) = arch::enter() else { return malloc_reentrant(bytes, true) };
    // SAFETY: the thread's own heap; a block has at least 16 bytes.
    unsafe {
        match Heap::malloc(entered.heap, bytes, arch::untag) {
            Ok(p) => {
                entered.leave();
                arch::zero_short(p, bytes);
                p
            }
            Err(Missed::Limit) => zeroed(malloc_past_limit(bytes, entered.lend()), bytes),
            Err(Missed::Cache) => calloc_entered(bytes, entered.lend()),
        }
    }
}

/// Longest block that a loop zeroes faster than memset.
const SHORT: usize = 256;

#[cold]
#[inline(never)]
fn calloc_entered(bytes: usize, heap: Mine<'static>) -> *mut u8 {
    zeroed(malloc_entered(bytes, heap), bytes)
}

/// Zeroes `bytes` bytes of the new block `p`, which may be null.
fn zeroed(p: *mut u8, bytes: usize) -> *mut u8 {
    if !p.is_null() {
        // SAFETY: the block is new, and has as many bytes.
        unsafe { p.write_bytes(0, bytes) };
    }
    p
}

#[inline(never)]
fn calloc_slow(bytes: usize) -> *mut u8 {
    if bytes <= MAX_TABLE {
        return zeroed(malloc(bytes), bytes);
    }
    let Some(entered) = arch::enter() else { return malloc_reentrant(bytes, true) };
    let heap = entered.lend();
    // A mark counts as watched.
    if NEAP.is_watched_at(heap) {
        entered.leave();
        return malloc_slow(bytes, 1, true);
    }
    let p = NEAP.calloc(heap, bytes);
    entered.leave();
    if p.is_null() { no_memory() } else { p }
}

/// A block of at least `size` bytes aligned to `align`, a power of two; zeroed if `zero`.
#[inline(never)]
pub fn malloc_aligned(size: usize, align: usize, zero: bool) -> *mut u8 {
    if size > MAX_SIZE || align > MAX_SIZE {
        return no_memory();
    }
    malloc_slow(size, align, zero)
}

/// `free`; calls `foreign` for a pointer that neap does not know.
///
/// # Safety
/// `p` must be null, a live block of neap's, or something that `foreign` can take.
#[inline(always)]
pub unsafe fn free(p: *mut u8, foreign: ForeignFree) {
    // SAFETY: the thread's own heap; as the caller promises.
    unsafe {
        let Some(entered) = arch::enter() else { return free_reentrant(p, foreign) };
        if !Heap::free(entered.heap, &NEAP.map, p) {
            return free_entered(p, entered.lend(), foreign);
        }
        entered.leave();
    }
}

/// The rest of [`free`], after `Heap::free` failed on `heap`, which the call has entered.
#[cold]
#[inline(never)]
unsafe fn free_entered(p: *mut u8, heap: Mine<'static>, foreign: ForeignFree) {
    if p.is_null() {
        heap.undo_free(0);
        return arch::leave();
    }
    // SAFETY: as the caller of `free` promises. A mark counts as watched.
    unsafe {
        if NEAP.is_watched_at(heap) {
            return free_watched(p, heap, foreign);
        }
        if !NEAP.free_to_cache_after_miss(heap, p) {
            return free_missed(p, heap, foreign);
        }
    }
    arch::leave();
}

/// [`free_entered`], where the block does not go into the large cache.
///
/// # Safety
/// As [`free`].
#[inline(never)]
unsafe fn free_missed(p: *mut u8, heap: Mine<'static>, foreign: ForeignFree) {
    // SAFETY: as the caller promises.
    unsafe {
        let known = NEAP.free_after_miss(heap, p);
        arch::leave();
        if known.is_err() {
            foreign(p);
        }
    }
}

/// [`free_entered`], where the thread has no heap or calls are watched.
///
/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe fn free_watched(p: *mut u8, heap: Mine<'static>, foreign: ForeignFree) {
    heap.undo_free(NEAP.map.class(p));
    if slot::is_heap(heap.id()) {
        NEAP.follow(heap);
    }
    arch::leave();
    // SAFETY: as the caller of `free` promises.
    unsafe {
        if guards::owns(p) {
            return free_guarded(p, true);
        }
        end_sample(p);
        let size = size_to_free(p);
        // A cache is of use to a thread that only frees, too. Without memory for a heap, this is a remote free.
        let known = match Turn::to_free() {
            Turn::Heap(lent) => NEAP.free(lent.heap(), p),
            Turn::Reentrant | Turn::NoMemory => NEAP.free_reentrant(p),
        };
        if known.is_err() { foreign(p) } else { freed(size) }
    }
}

/// [`free`] in a handler that interrupted another call of this thread. No hook is called if the block is a sample: the
/// hook may be what was interrupted.
///
/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe fn free_reentrant(p: *mut u8, foreign: ForeignFree) {
    if p.is_null() {
        return;
    }
    // SAFETY: as the caller promises.
    unsafe {
        if NEAP.is_watched() {
            if guards::owns(p) {
                return free_guarded(p, false);
            }
            profile::note_free(p);
        }
        let size = size_to_free(p);
        if NEAP.free_reentrant(p).is_err() { foreign(p) } else { freed(size) }
    }
}

/// Ends the sample at `p`, if it is one: the block is about to be freed. Returns whether it was one.
///
/// # Safety
/// As [`free`].
#[inline]
unsafe fn end_sample(p: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        let sampled = profile::note_free(p);
        if sampled {
            samples::call(samples::FREED, p, 0, usable_size(p, Call::UsableSize).unwrap_or(0), 0);
            NEAP.take_mark(p);
        }
        sampled
    }
}

/// Usable bytes of a block that is about to be freed; `None` where blocks are neither counted nor filled. Fills the
/// block where that is on.
///
/// # Safety
/// As [`free`].
unsafe fn size_to_free(p: *mut u8) -> Option<usize> {
    if NEAP.os.counters().is_none() && watch::fill() == 0 {
        return None;
    }
    // SAFETY: as the caller promises; the block has as many bytes, which are not needed any more.
    unsafe {
        let size = usable_size(p, Call::Free)?;
        if watch::fill() != 0 && NEAP.stays_mapped(p) {
            p.write_bytes(watch::fill(), size);
        }
        Some(size)
    }
}

/// Usable bytes of the block at `p`, if it is a small block in use: without the call's own slow path, and without a
/// look at the bit of the block. `None` says nothing.
///
/// # Safety
/// `p` must be a live block of neap's, or foreign.
#[inline(always)]
pub unsafe fn quick_size(p: *mut u8) -> Option<usize> {
    // SAFETY: as the caller promises.
    unsafe { NEAP.quick_size(p) }
}

/// Usable bytes of the block at `p`; `None` if neap does not know it. `call` is the program's call, for messages.
///
/// # Safety
/// `p` must be a live block of neap's, or foreign.
pub unsafe fn usable_size(p: *mut u8, call: Call) -> Option<usize> {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(entered) = arch::enter() else { return usable_size_reentrant(p, call) };
        if entered.heap == FORKED.heap() {
            entered.leave();
            return usable_size_reentrant(p, call);
        }
        let size = NEAP.usable_size(entered.lend(), call, p);
        entered.leave();
        if size.is_none() { guards::usable_size(p, call) } else { size }
    }
}

/// # Safety
/// As [`usable_size`].
#[cold]
unsafe fn usable_size_reentrant(p: *mut u8, call: Call) -> Option<usize> {
    // SAFETY: as the caller promises.
    unsafe { NEAP.usable_size_reentrant(call, p) }.or_else(|| guards::usable_size(p, call))
}

/// [`realloc`] of a small block, without a heap's slow path: in place, or through the fast paths of malloc and free.
/// `None` if it is another kind of block, or fails a check.
///
/// # Safety
/// `p` must be a live block of neap's, or foreign.
#[inline(always)]
pub unsafe fn realloc_small(p: *mut u8, size: usize, foreign: ForeignFree) -> Option<*mut u8> {
    // SAFETY: as the caller promises; both blocks have the bytes that are copied.
    unsafe {
        let old = NEAP.quick_size(p)?;
        if small_fits(old, size) {
            return Some(p);
        }
        if size > MAX_SIZE {
            return Some(no_memory());
        }
        let before = errno::get();
        let new = malloc(size);
        if new.is_null() {
            // The slow path may need no new block.
            errno::set(before);
            return None;
        }
        new.copy_from_nonoverlapping(p, old.min(size));
        free(p, foreign);
        Some(new)
    }
}

/// Resizes the block at `p`, whose usable size is `old`, to at least `size` bytes.
///
/// # Safety
/// `p` must be a live block of neap's with usable size `old`.
pub unsafe fn realloc(p: *mut u8, old: usize, size: usize) -> *mut u8 {
    if size > MAX_SIZE {
        return no_memory();
    }
    // SAFETY: as the caller promises, here and below; the heap is lent to this call.
    let new = unsafe {
        if NEAP.is_watched() {
            return realloc_watched(p, old, size);
        }
        realloc_on(Turn::to_allocate(), p, old, size)
    };
    if !new.is_null() {
        freed(Some(old));
    }
    finish(new, size, false, true)
}

/// # Safety
/// As [`realloc`].
#[inline(always)]
unsafe fn realloc_on(turn: Turn, p: *mut u8, old: usize, size: usize) -> *mut u8 {
    // SAFETY: as the caller promises; the heap is lent to this call.
    unsafe {
        match turn {
            Turn::Heap(lent) => NEAP.realloc(lent.heap(), p, old, size),
            Turn::Reentrant => NEAP.realloc_reentrant(p, old, size),
            Turn::NoMemory => core::ptr::null_mut(),
        }
    }
}

/// [`realloc`], where calls are watched. A block that changes its size counts as freed and allocated anew. So a block
/// that grows step by step is sampled as often as one that is allocated at once.
///
/// # Safety
/// As [`realloc`].
#[cold]
#[inline(never)]
unsafe fn realloc_watched(p: *mut u8, old: usize, size: usize) -> *mut u8 {
    // SAFETY: as the caller promises; the heap is lent to this call; the new block is the caller's.
    unsafe {
        let guarded = guards::owns(p).then(|| SIZE[class::of(old)] as usize);
        let ordinary = NEAP.ordinary_size(p).or(guarded);
        if watch::fill() != 0 || (ordinary.is_some() && (old <= MAX_SMALL || size <= MAX_SMALL)) {
            return realloc_by_copy(p, old, ordinary, size);
        }
        if NEAP.fits_in_place(old, size) {
            if NEAP.has_reason(Reason::Exact) {
                profile::freed(p);
                profile::allocated(p, size, None);
            }
            return p;
        }
        let mut turn = Turn::to_allocate();
        let due = match &turn {
            Turn::Heap(lent) => are_taken() && NEAP.is_due_for_sample(lent.heap(), size),
            _ => false,
        };
        if due && size <= MAX_SMALL {
            // Only a block with OS pages of its own can be a sample.
            let new = match &turn {
                Turn::Heap(lent) => take_sample(lent.heap(), size, 1, false),
                _ => core::ptr::null_mut(),
            };
            drop(turn);
            if !new.is_null() {
                new.copy_from_nonoverlapping(p, old.min(size));
                free(p, not_foreign);
                return finish(new, size, true, true);
            }
            turn = Turn::to_allocate();
        }
        let was_sampled = end_sample(p);
        let new = realloc_on(turn, p, old, size);
        if new.is_null() {
            // The old block stays, so it is noted again.
            note_new(p, old, old, was_sampled && NEAP.mark(p, old));
        }
        let sampled = due && is_reported() && !new.is_null() && NEAP.mark(new, size);
        if !new.is_null() {
            freed(Some(old));
        }
        finish(new, size, sampled, true)
    }
}

/// [`realloc`] where the old block is a sample, or blocks are filled. A sample is in place of an ordinary block of
/// `ordinary` usable bytes. It stays or moves as that block would: otherwise samples would be freed that stand for
/// blocks which stay.
///
/// # Safety
/// As [`realloc`].
#[cold]
unsafe fn realloc_by_copy(p: *mut u8, old: usize, ordinary: Option<usize>, size: usize) -> *mut u8 {
    // SAFETY: as the caller promises; both blocks have the bytes that are copied.
    unsafe {
        // A block that gets shorter in place keeps its tail, which is copied when the block grows. So it stays only if
        // the program cannot have made the tail inaccessible.
        let keeps = || old - size < NEAP.os.page_size() || NEAP.stays_mapped(p);
        let fits = ordinary.map_or(size >= old / 2, |usable| NEAP.fits_in_place(usable, size));
        if size <= old && fits && keeps() {
            return p;
        }
        let before = errno::get();
        let new = malloc_slow(size, 1, false);
        if new.is_null() {
            if size > old {
                return new;
            }
            // A block can always get shorter.
            errno::set(before);
            return p;
        }
        new.copy_from_nonoverlapping(p, old.min(size));
        free(p, not_foreign);
        new
    }
}

/// The [`ForeignFree`] for blocks that are known to be neap's: ends the process.
///
/// # Safety
/// None; the type is that of [`ForeignFree`].
unsafe fn not_foreign(p: *mut u8) {
    neap_core::misuse::foreign(&NEAP, Call::Realloc, p)
}

/// Gives free memory back to the system; returns how many bytes. 0 in a reentrant call, which gives nothing back.
pub fn purge() -> usize {
    thread::in_call(|heap| NEAP.purge_with(heap)).unwrap_or(0)
}

/// Dirty and clean bytes in free ranges; 0 in a reentrant call.
pub fn free_bytes() -> (usize, usize) {
    thread::in_call(|_| NEAP.free_bytes()).unwrap_or((0, 0))
}

/// Resident bytes of neap's memory, or neap's own count of them if the system does not say. 0 in a reentrant call.
pub fn held() -> usize {
    let held = thread::in_call(|_| NEAP.resident().map_or_else(|| NEAP.held(), |r| r.total()));
    held.unwrap_or(0) as usize
}

#[cfg(test)]
mod tests;
