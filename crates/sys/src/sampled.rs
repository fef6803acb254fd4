//! Sampled blocks: how malloc and free make and free them. They are samples for the hook and for a profile, and guarded
//! blocks.

use crate::allocator::NEAP;
use crate::observe::{probes, samples};
use crate::system::random;
use crate::{guards, profile, slot};
use core::sync::atomic::Ordering;
use neap_core::CHUNK;
use neap_core::heap::Mine;
use neap_core::sample::{by_chance, is_also, weight};
use neap_core::watch::Reason;

/// A block that is a sample, if one is due; else null.
#[cold]
pub fn malloc_sample(heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
    let due = are_taken() && NEAP.is_due_for_sample(heap, size);
    if due { take_sample(heap, size, align, zero) } else { core::ptr::null_mut() }
}

/// Whether this thread takes samples now.
pub fn are_taken() -> bool {
    NEAP.has_reason(Reason::Samples) && !slot::in_hook()
}

/// Whether samples are for the profile, the hook or a tool that is attached to a probe.
pub fn is_reported() -> bool {
    profile::interval() > 1 || samples::interval() != 0 || probes::interval() != 0
}

/// Makes the sample that is due: a guarded block, or a block for the profile and the hook. Null if neither can be made.
#[cold]
pub fn take_sample(heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
    let wanted = guards::interval();
    if wanted != 0
        && is_also(size, NEAP.sample_interval() as u64, wanted, random::RANDOM.next())
        && let Some(p) = guards::allocate(size, align, is_reported())
    {
        return p;
    }
    if is_reported() { NEAP.malloc_sample(heap, size, align, zero) } else { core::ptr::null_mut() }
}

/// A new block of a reentrant call, and whether it is a sample. Samples are chosen by chance here, because there is no
/// heap that counts bytes, and only where there is no hook, because the hook may be what was interrupted.
pub fn take_reentrant(size: usize, align: usize, zero: bool) -> (*mut u8, bool) {
    let interval = NEAP.sample_interval();
    let is_wanted = (profile::interval() != 0 || probes::interval() != 0) && samples::interval() == 0;
    let chosen =
        NEAP.has_reason(Reason::Samples) && is_wanted && by_chance(size, interval as u64, random::RANDOM.next());
    let p = NEAP.malloc_reentrant(size, if chosen { align.max(CHUNK) } else { align }, zero);
    // SAFETY: the block is new.
    let sampled = chosen && !p.is_null() && unsafe { NEAP.mark(p, size) };
    (p, sampled)
}

/// Passes the block of `size` requested bytes to the profile, the hook and attached tools, if it is `sampled` or every
/// block is kept.
pub fn note_new(p: *mut u8, size: usize, usable: usize, sampled: bool) {
    let weight = if sampled { weight(size, NEAP.sample_interval()) } else { 0 };
    if NEAP.has_reason(Reason::Exact) {
        profile::allocated(p, size, None);
    } else if sampled && profile::interval() != 0 {
        profile::allocated(p, size, Some(weight));
    }
    if sampled {
        samples::call(samples::ALLOCATED, p, size, usable, weight);
        NEAP.pass_alloc(p, size, weight);
    }
}

/// Frees the guarded block at `p`. `hooked`: whether the hook may be called for it.
///
/// # Safety
/// `p` must be the caller's block, if the pool has one there.
#[cold]
#[inline(never)]
pub unsafe fn free_guarded(p: *mut u8, hooked: bool) {
    let Some(ending) = guards::begin_free(p) else { return };
    let size = ending.size();
    if ending.is_reported() || NEAP.has_reason(Reason::Exact) {
        profile::freed(p);
    }
    if ending.is_reported() {
        NEAP.pass_free(p);
    }
    if ending.is_reported() && hooked {
        samples::call(samples::FREED, p, 0, size, 0);
    }
    ending.finish();
    freed(Some(size));
}

/// Counts a block of `size` bytes that was freed, where the process counts.
#[inline]
pub fn freed(size: Option<usize>) {
    if let Some(counters) = NEAP.os.counters() {
        counters.blocks_freed.fetch_add(1, Ordering::Relaxed);
        counters.bytes_freed.fetch_add(size.unwrap_or(0) as u64, Ordering::Relaxed);
    }
}
