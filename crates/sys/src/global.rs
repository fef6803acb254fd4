//! The allocator of the process, and the calls that the C surface and the Rust crate share.
//!
//! Each call tries the fast path of [`Heap`] on the thread's heap; all else is in one `#[cold]` function each. Calls
//! that fail return null and set errno to ENOMEM; those that succeed leave errno alone.

use crate::linux::Linux;
use crate::{arch, hooks, sites, thread, watch};
use core::sync::atomic::Ordering;
use neap_core::alloc::MAX_SIZE;
use neap_core::class::{MAX_SMALL, MAX_TABLE};
use neap_core::heap::FORKED;
use neap_core::misuse::Call;
use neap_core::realloc::small_fits;
use neap_core::{Allocator, CHUNK, Heap, Os};

/// The allocator.
pub static NEAP: Allocator<Linux> = Allocator::new(Linux::new());

/// What free does with a pointer that neap does not know; set by whoever owns the process's `free`.
pub type ForeignFree = unsafe fn(*mut u8);

#[cold]
fn no_memory() -> *mut u8 {
    // SAFETY: errno of the calling thread.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    core::ptr::null_mut()
}

/// Counts a new block, where the process counts; passes `p` on, with errno where it is null.
#[inline]
fn handed_out(p: *mut u8) -> *mut u8 {
    if p.is_null() {
        return no_memory();
    }
    if let Some(counters) = NEAP.os.counters() {
        // SAFETY: `p` is a block that was just made.
        let bytes = unsafe { usable_size(p, Call::UsableSize) }.unwrap_or(0);
        counters.blocks_allocated.fetch_add(1, Ordering::Relaxed);
        counters.bytes_allocated.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    p
}

/// `malloc`: a block of at least `size` bytes, aligned to 16.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    let Some(entered) = arch::enter() else { return malloc_nested(size, false) };
    // SAFETY: the thread's own heap.
    let p = unsafe { Heap::malloc(entered.heap, size, arch::untag) };
    if p.is_null() {
        return malloc_entered(size, entered.heap);
    }
    entered.leave();
    p
}

/// The rest of [`malloc`], after `Heap::malloc` failed on `heap`, which the call has entered.
#[cold]
#[inline(never)]
fn malloc_entered(size: usize, heap: *mut Heap) -> *mut u8 {
    // SAFETY: a real heap is this thread's, here and below. A name shows that it is watched.
    if unsafe { NEAP.is_watched_at(heap) } {
        return malloc_watched(size, heap);
    }
    if size <= MAX_SMALL {
        return malloc_missed(size, heap);
    }
    // SAFETY: the heap is this thread's.
    let p = unsafe { NEAP.malloc_shelved(heap, size, false) };
    if p.is_null() {
        return malloc_fresh(size);
    }
    arch::leave();
    p
}

/// [`malloc_entered`] of a small block.
#[inline(never)]
fn malloc_missed(size: usize, heap: *mut Heap) -> *mut u8 {
    // SAFETY: `Heap::malloc` has just failed on the heap, which is this thread's.
    let p = unsafe { NEAP.malloc_after_miss(heap, size) };
    arch::leave();
    if p.is_null() { no_memory() } else { p }
}

/// [`malloc_entered`] of a block that the shelf does not have.
#[inline(never)]
fn malloc_fresh(size: usize) -> *mut u8 {
    let p = NEAP.malloc_fresh(size, CHUNK, false);
    arch::leave();
    if p.is_null() { no_memory() } else { p }
}

/// [`malloc_entered`], where the thread has no heap or somebody watches.
#[cold]
#[inline(never)]
fn malloc_watched(size: usize, heap: *mut Heap) -> *mut u8 {
    if !thread::is_heap(heap) {
        arch::leave();
        return malloc_slow(size, 1, false);
    }
    // SAFETY: the heap is this thread's, and `Heap::malloc` has just failed on it.
    let (p, sampled) = unsafe {
        let sample = if thread::in_hook() { core::ptr::null_mut() } else { NEAP.sample_after_miss(heap, size) };
        let p = if sample.is_null() { NEAP.malloc_after_miss(heap, size) } else { sample };
        NEAP.follow(heap);
        (p, !sample.is_null())
    };
    arch::leave();
    finish(p, size, sampled, false)
}

/// A block of at least `size` bytes aligned to `align`, a power of two, from the slow path; zeroed if asked for.
fn malloc_slow(size: usize, align: usize, zero: bool) -> *mut u8 {
    if NEAP.is_watched() {
        return malloc_slow_watched(size, align, zero);
    }
    // SAFETY: `with_heap` lends a heap.
    let aligned = |heap| unsafe { NEAP.malloc_aligned(heap, size, align, zero) };
    let p = thread::with_heap(aligned, || NEAP.malloc_nested(size, align, zero));
    p.filter(|p| !p.is_null()).unwrap_or_else(no_memory)
}

/// [`malloc_slow`], where somebody watches.
#[cold]
#[inline(never)]
fn malloc_slow_watched(size: usize, align: usize, zero: bool) -> *mut u8 {
    let mut sampled = false;
    // SAFETY: `with_heap` lends a heap.
    let watched = |heap| unsafe {
        if !thread::in_hook() && NEAP.is_sample(heap, size) {
            let p = NEAP.malloc_sample(heap, size, align, zero);
            if !p.is_null() {
                sampled = true;
                return p;
            }
        }
        NEAP.malloc_aligned(heap, size, align, zero)
    };
    let p = thread::with_heap(watched, || NEAP.malloc_nested(size, align, zero));
    finish(p.unwrap_or(core::ptr::null_mut()), size, sampled, zero)
}

/// What the slow paths do with a new block: it is counted, filled unless it is `zero`, recorded, and shown if it is a
/// sample.
fn finish(p: *mut u8, size: usize, sampled: bool, zero: bool) -> *mut u8 {
    let p = handed_out(p);
    if !zero && !p.is_null() && watch::fill() != 0 {
        // SAFETY: the block is new, and has as many bytes.
        unsafe { p.write_bytes(!watch::fill(), size) };
    }
    sites::allocated(p);
    if sampled {
        hooks::allocated(p, size);
    }
    p
}

/// malloc and calloc in a handler that interrupted another call of this thread.
#[cold]
#[inline(never)]
fn malloc_nested(size: usize, zero: bool) -> *mut u8 {
    finish(NEAP.malloc_nested(size, 1, zero), size, false, zero)
}

/// `calloc`: a zeroed block of `count * size` bytes.
#[inline(always)]
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else { return no_memory() };
    if bytes > SHORT {
        return calloc_slow(bytes);
    }
    let Some(entered) = arch::enter() else { return malloc_nested(bytes, true) };
    // SAFETY: the thread's own heap; a block has at least 16 bytes.
    unsafe {
        let p = Heap::malloc(entered.heap, bytes, arch::untag);
        if p.is_null() {
            return calloc_entered(bytes, entered.heap);
        }
        entered.leave();
        arch::zero_short(p, bytes);
        p
    }
}

/// Up to here a loop zeroes faster than memset.
const SHORT: usize = 256;

#[cold]
#[inline(never)]
fn calloc_entered(bytes: usize, heap: *mut Heap) -> *mut u8 {
    let p = malloc_entered(bytes, heap);
    if !p.is_null() {
        // SAFETY: the block has as many bytes.
        unsafe { p.write_bytes(0, bytes) };
    }
    p
}

#[inline(never)]
fn calloc_slow(bytes: usize) -> *mut u8 {
    if bytes <= MAX_TABLE {
        let p = malloc(bytes);
        if !p.is_null() {
            // SAFETY: the block has as many bytes.
            unsafe { p.write_bytes(0, bytes) };
        }
        return p;
    }
    if NEAP.is_watched() {
        return malloc_slow_watched(bytes, 1, true);
    }
    // SAFETY: `with_heap` lends a heap.
    let p = thread::with_heap(|heap| unsafe { NEAP.calloc(heap, bytes) }, || NEAP.malloc_nested(bytes, 1, true));
    p.filter(|p| !p.is_null()).unwrap_or_else(no_memory)
}

/// A block of at least `size` bytes aligned to `align`, a power of two; zeroed if asked for.
#[inline]
pub fn malloc_aligned(size: usize, align: usize, zero: bool) -> *mut u8 {
    if size > MAX_SIZE || align > MAX_SIZE {
        return no_memory();
    }
    malloc_slow(size, align, zero)
}

/// `free`, with `foreign` for what neap does not know.
///
/// # Safety
/// `p` must be null, a live block of neap's, or something that `foreign` can take.
#[inline(always)]
pub unsafe fn free(p: *mut u8, foreign: ForeignFree) {
    // SAFETY: as the caller promises.
    let Some(entered) = arch::enter() else { return unsafe { free_nested(p, foreign) } };
    // SAFETY: the thread's own heap; as the caller promises.
    unsafe {
        if !Heap::free(entered.heap, &NEAP.map, p) {
            return free_entered(p, entered.heap, foreign);
        }
    }
    entered.leave();
}

/// The rest of [`free`], after `Heap::free` failed on `heap`, which the call has entered.
#[cold]
#[inline(never)]
unsafe fn free_entered(p: *mut u8, heap: *mut Heap, foreign: ForeignFree) {
    if p.is_null() {
        // SAFETY: the thread's own heap, or a name; the fast path has just failed on it.
        unsafe { Heap::undo_free(heap, 0) };
        return arch::leave();
    }
    // SAFETY: as the caller of `free` promises; a real heap is this thread's. A name shows that it is watched.
    unsafe {
        if NEAP.is_watched_at(heap) {
            return free_watched(p, heap, foreign);
        }
        if !NEAP.shelve_after_miss(heap, p) {
            return free_missed(p, heap, foreign);
        }
    }
    arch::leave();
}

/// [`free_entered`], where there is more to do than to shelve a block.
///
/// # Safety
/// As that.
#[inline(never)]
unsafe fn free_missed(p: *mut u8, heap: *mut Heap, foreign: ForeignFree) {
    // SAFETY: as the caller promises.
    unsafe {
        let known = NEAP.free_after_miss(heap, p);
        arch::leave();
        if known.is_err() {
            foreign(p);
        }
    }
}

/// [`free_entered`], where the thread has no heap or somebody watches.
///
/// # Safety
/// As that.
#[cold]
#[inline(never)]
unsafe fn free_watched(p: *mut u8, heap: *mut Heap, foreign: ForeignFree) {
    // SAFETY: the thread's own heap, or a name; the fast path has just failed on it.
    unsafe {
        Heap::undo_free(heap, NEAP.map.class(p));
        if thread::is_heap(heap) {
            NEAP.follow(heap);
        }
        arch::leave();
    }
    // SAFETY: as the caller of `free` promises.
    unsafe {
        if NEAP.is_marked(p) {
            hooks::freed(p);
            NEAP.take_mark(p);
        }
        let size = size_to_free(p);
        // A thread that only frees wants a cache as well. Without memory for it, free as a remote thread.
        let known = match thread::with_heap_to_free(|heap| NEAP.free(heap, p), || NEAP.free_nested(p)) {
            Some(known) => known,
            None => NEAP.free_nested(p),
        };
        if known.is_err() { foreign(p) } else { freed(size) }
    }
}

/// [`free`] in a handler that interrupted another call of this thread. Nobody is told if the block is a sample: a hook
/// may be what was interrupted.
///
/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe fn free_nested(p: *mut u8, foreign: ForeignFree) {
    if p.is_null() {
        return;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let size = size_to_free(p);
        if NEAP.free_nested(p).is_err() { foreign(p) } else { freed(size) }
    }
}

/// Counts a block of `size` bytes that was freed, where the process counts.
#[inline]
fn freed(size: Option<usize>) {
    if let Some(counters) = NEAP.os.counters() {
        counters.blocks_freed.fetch_add(1, Ordering::Relaxed);
        counters.bytes_freed.fetch_add(size.unwrap_or(0) as u64, Ordering::Relaxed);
    }
}

/// Usable bytes of a block that is about to be freed, where somebody wants to know them; it is filled if that is wanted.
///
/// # Safety
/// As [`free`].
unsafe fn size_to_free(p: *mut u8) -> Option<usize> {
    if NEAP.os.counters().is_none() && watch::fill() == 0 {
        return None;
    }
    // SAFETY: as the caller promises; the block has as many bytes, which nobody needs any more.
    unsafe {
        let size = usable_size(p, Call::Free)?;
        if watch::fill() != 0 && NEAP.stays_mapped(p) {
            p.write_bytes(watch::fill(), size);
        }
        Some(size)
    }
}

/// Usable bytes of the block at `p`; `None` if neap does not know it. `call` is who asks.
///
/// # Safety
/// `p` must be a live block of neap's, or foreign.
#[inline]
pub unsafe fn usable_size(p: *mut u8, call: Call) -> Option<usize> {
    // SAFETY: as the caller promises.
    let Some(entered) = arch::enter() else { return unsafe { NEAP.usable_size_nested(call, p) } };
    if entered.heap == FORKED.heap() {
        entered.leave();
        // SAFETY: as the caller promises.
        return unsafe { NEAP.usable_size_nested(call, p) };
    }
    let heap = if thread::is_heap(entered.heap) { entered.heap } else { Heap::none() };
    // SAFETY: as the caller promises.
    let size = unsafe { NEAP.usable_size(heap, call, p) };
    entered.leave();
    size
}

/// [`realloc`] of a small block, without a heap's slow path: in place, or through the fast paths of malloc and free.
/// `None` if it is another kind of block, or if it is not in order.
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
        let errno = libc::__errno_location();
        let before = *errno;
        let new = malloc(size);
        if new.is_null() {
            // The slow path may need no new block.
            *errno = before;
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
    if NEAP.is_watched() {
        // SAFETY: as the caller promises.
        return unsafe { realloc_watched(p, old, size) };
    }
    // SAFETY: as the caller promises.
    unsafe { realloc_plain(p, old, size) }
}

/// [`realloc`], whoever watches.
///
/// # Safety
/// As that.
#[inline]
unsafe fn realloc_plain(p: *mut u8, old: usize, size: usize) -> *mut u8 {
    // SAFETY: `with_heap` lends a heap; as the caller promises.
    let new =
        unsafe { thread::with_heap(|heap| NEAP.realloc(heap, p, old, size), || NEAP.realloc_nested(p, old, size)) };
    let new = new.unwrap_or(core::ptr::null_mut());
    if !new.is_null() {
        freed(Some(old));
    }
    handed_out(new)
}

/// Gives free memory back to the system; returns the bytes. 0 in a nested call, which gives nothing back.
pub fn purge() -> usize {
    thread::in_call(|heap| NEAP.purge_with(heap)).unwrap_or(0)
}

/// Bytes in free ranges: dirty, clean. None in a nested call.
pub fn free_bytes() -> (usize, usize) {
    thread::in_call(|_| NEAP.free_bytes()).unwrap_or((0, 0))
}

/// How much memory the system holds for neap; by neap's own books where the system cannot tell. 0 in a nested call.
pub fn held() -> usize {
    let held = thread::in_call(|_| NEAP.resident().map_or_else(|| NEAP.held(), |r| r.total()));
    held.unwrap_or(0) as usize
}

/// [`realloc`] while somebody watches: by copying, where the old block is a sample, or blocks are filled.
///
/// # Safety
/// As [`realloc`].
#[cold]
unsafe fn realloc_watched(p: *mut u8, old: usize, size: usize) -> *mut u8 {
    // SAFETY: as the caller promises; both blocks have the bytes that are copied.
    unsafe {
        if watch::fill() == 0 && !NEAP.is_marked(p) {
            let new = realloc_plain(p, old, size);
            sites::allocated(new);
            return new;
        }
        // What the program may have made inaccessible is not kept behind a shorter block: it would be copied when that grows.
        let keeps = || old - size < NEAP.os.page_size() || NEAP.stays_mapped(p);
        if size <= old && size >= old / 2 && keeps() {
            return p;
        }
        let errno = libc::__errno_location();
        let before = *errno;
        let new = malloc_slow(size, 1, false);
        if new.is_null() {
            if size > old {
                return new;
            }
            // To shrink is never refused.
            *errno = before;
            return p;
        }
        new.copy_from_nonoverlapping(p, old.min(size));
        free(p, not_foreign);
        new
    }
}

/// For blocks that are known to be neap's.
///
/// # Safety
/// None; the type is that of [`ForeignFree`].
unsafe fn not_foreign(p: *mut u8) {
    neap_core::misuse::foreign(&NEAP, Call::Realloc, p)
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe fn no_foreign(p: *mut u8) {
        panic!("{p:p} is foreign");
    }

    /// Catches a free of NULL, or one that fails for another reason, that leaves its count behind: after 2^30 of
    /// them the next one took NULL for a block.
    #[test]
    fn failed_frees_leave_no_count() {
        // SAFETY: the blocks are this test's; no other thread of this process uses neap.
        unsafe {
            free(core::ptr::null_mut(), no_foreign);
            let (small, large) = (malloc(100), malloc(100_000));
            free(large, no_foreign);
            free(small, no_foreign);
            // The last, as any other undone free of class 0 mends the count.
            free(core::ptr::null_mut(), no_foreign);
            assert_eq!(
                NEAP.validate(neap_core::valid::Depth::Bits).map_err(|e| e.what).map(|c| c.cached > 0),
                Ok(true)
            );
        }
    }
}
