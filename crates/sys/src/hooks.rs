//! Sets the hook for sampled blocks.

use crate::allocator::NEAP;
use crate::observe::samples::{self, Target};
use crate::{global, watch};
use core::ffi::c_void;

pub use crate::observe::samples::{ALLOCATED, FREED, Hook, Sample};

/// Calls `hook` for samples from now on, which are `interval` bytes apart on average. False if there is no memory.
///
/// # Safety
/// `hook` must be callable with `context` at any time, by any thread, also for a while after it was replaced.
pub unsafe fn set(hook: Hook, context: *mut c_void, interval: usize) -> bool {
    let target = global::malloc(size_of::<Target>()).cast::<Target>();
    if target.is_null() {
        return false;
    }
    // SAFETY: the block is new, long enough, aligned to 16 bytes, and never freed; as the caller promises.
    unsafe {
        target.write(Target { hook, context });
        samples::set(target);
    }
    choose(interval.max(1));
    true
}

/// Ends the calls of the hook. Blocks that are samples stay samples; they are freed like other blocks.
pub fn clear() {
    // SAFETY: no target.
    unsafe { samples::set(core::ptr::null_mut()) };
    choose(0);
}

/// Sets the mean bytes between two samples for the hook; 0: there is no hook.
fn choose(interval: usize) {
    samples::set_interval(interval);
    NEAP.choose_samples();
    watch::apply();
}
