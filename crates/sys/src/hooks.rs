//! The hook for sampled blocks: who is told of them (`neap_core::sample` says which they are).
//!
//! A hook runs in the thread that allocates or frees, under no lock of neap's and not in the middle of a call, so it may
//! allocate and free. What it allocates is not sampled, and it is not told of samples that it frees itself. Nor of what
//! signal handlers do that interrupted a call: what they allocate is no sample, and a sample that they free ends untold.

use crate::global::{NEAP, usable_size};
use crate::{thread, watch};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_core::misuse::Call;
use neap_core::sample::weight;
use neap_core::watch::Reason;

/// [`Sample::event`]: a block was allocated.
pub const ALLOCATED: u32 = 1;
/// [`Sample::event`]: a block that was a sample is about to be freed.
pub const FREED: u32 = 2;

/// What a hook is told of. Fields are added at the end only; `size` says how many bytes there are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes of this structure.
    pub size: usize,
    /// [`ALLOCATED`] or [`FREED`].
    pub event: u32,
    /// 0.
    pub reserved: u32,
    /// The block. Nobody else has this address from the first event to the second.
    pub block: *mut c_void,
    /// Bytes that were asked for; 0 when it is freed.
    pub requested: usize,
    /// Usable bytes of the block, whole OS pages as it is a sample.
    pub usable: usize,
    /// Bytes that were asked for by all blocks that this one stands for; 0 when it is freed.
    pub weight: u64,
}

/// Who is told.
pub type Hook = unsafe extern "C" fn(sample: *const Sample, context: *mut c_void);

/// A hook and what it wants to be passed. Never freed, as another thread may be about to call it.
struct Target {
    hook: Hook,
    context: *mut c_void,
}

static TARGET: AtomicPtr<Target> = AtomicPtr::new(core::ptr::null_mut());

/// From now on `hook` is told of samples, which are `interval` bytes apart in the mean. False if there is no memory for
/// that.
///
/// # Safety
/// `hook` must be callable with `context` at any time, by any thread, also for a while after it was replaced.
pub unsafe fn set(hook: Hook, context: *mut c_void, interval: usize) -> bool {
    let target = crate::global::malloc(size_of::<Target>()).cast::<Target>();
    if target.is_null() {
        return false;
    }
    // SAFETY: the block is new, long enough, and aligned to 16 bytes.
    unsafe { target.write(Target { hook, context }) };
    // For ever: whoever frees a sample has synchronised with the one who made it.
    NEAP.set_reason(Reason::Marks, true);
    // Release pairs with the Acquire in `tell`.
    TARGET.store(target, Ordering::Release);
    NEAP.set_sample_interval(interval.max(1));
    watch::set(Reason::Samples, true);
    true
}

/// Nobody is told any more. Blocks that are samples stay so, and are freed as others.
pub fn clear() {
    NEAP.set_sample_interval(0);
    TARGET.store(core::ptr::null_mut(), Ordering::Release);
    watch::set(Reason::Samples, false);
}

/// A block was allocated that is a sample.
pub(crate) fn allocated(p: *mut u8, requested: usize) {
    let weight = weight(requested, NEAP.sample_interval());
    tell(p, ALLOCATED, requested, weight);
}

/// A block that is a sample is about to be freed.
pub(crate) fn freed(p: *mut u8) {
    tell(p, FREED, 0, 0);
}

fn tell(p: *mut u8, event: u32, requested: usize, weight: u64) {
    // Acquire pairs with the Release in `set`.
    let target = TARGET.load(Ordering::Acquire);
    // SAFETY: targets are never freed.
    let Some(target) = (unsafe { target.as_ref() }) else { return };
    if thread::in_hook() {
        return;
    }
    // SAFETY: the block is live.
    let usable = unsafe { usable_size(p, Call::UsableSize) }.unwrap_or(0);
    let sample = Sample { size: size_of::<Sample>(), event, reserved: 0, block: p.cast(), requested, usable, weight };
    // SAFETY: errno of the calling thread, which malloc and free keep; the hook is as `set` was promised.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        thread::set_in_hook(true);
        (target.hook)(&raw const sample, target.context);
        thread::set_in_hook(false);
        *errno = kept;
    }
}
