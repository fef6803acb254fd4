//! The hook for sampled blocks, and how it is called. `neap_core::sample` chooses the blocks.
//!
//! A hook runs in the thread that allocates or frees, under no lock of neap's and not in the middle of a call. So it
//! may allocate and free. Blocks that it allocates are not sampled, and it is not called for samples that it frees. The
//! same holds for signal handlers that interrupted a call: their blocks are not sampled, and the hook is not called for
//! samples that they free.

use crate::slot;
use crate::system::errno;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// [`Sample::event`]: a block was allocated.
pub const ALLOCATED: u32 = 1;
/// [`Sample::event`]: a block that was a sample is about to be freed.
pub const FREED: u32 = 2;

/// The argument of a hook. Fields are added at the end only; `size` says how many bytes there are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes of this structure.
    pub size: usize,
    /// [`ALLOCATED`] or [`FREED`].
    pub event: u32,
    /// 0.
    pub reserved: u32,
    /// The block. No other block has this address from the first event to the second.
    pub block: *mut c_void,
    /// Requested bytes; 0 when the block is freed.
    pub requested: usize,
    /// Usable bytes of the block; a sample has whole OS pages, unless it is guarded.
    pub usable: usize,
    /// Requested bytes of all blocks that this one stands for; 0 when the block is freed.
    pub weight: u64,
}

/// The type of a hook.
pub type Hook = unsafe extern "C" fn(sample: *const Sample, context: *mut c_void);

/// A hook and its argument. It is never freed, because another thread may be about to call the hook.
#[derive(Debug)]
pub struct Target {
    /// The hook.
    pub hook: Hook,
    /// What it is passed.
    pub context: *mut c_void,
}

/// Bytes between two samples for the hook; 0: there is no hook.
static INTERVAL: AtomicUsize = AtomicUsize::new(0);

/// Mean bytes between two samples for the hook; 0: there is no hook.
pub fn interval() -> usize {
    // Relaxed, here and below: the value stands for itself.
    INTERVAL.load(Ordering::Relaxed)
}

/// Sets [`interval`].
pub fn set_interval(bytes: usize) {
    INTERVAL.store(bytes, Ordering::Relaxed);
}

static TARGET: AtomicPtr<Target> = AtomicPtr::new(core::ptr::null_mut());

/// From now on the hook of `target` is called, or none if it is null.
///
/// # Safety
/// A target must stay for ever, and its hook be callable with its argument at any time, by any thread.
pub unsafe fn set(target: *mut Target) {
    // Release pairs with the Acquire in `call`.
    TARGET.store(target, Ordering::Release);
}

/// Calls the hook, if there is one: `block`, of `usable` bytes, was allocated or is about to be freed.
#[cold]
pub fn call(event: u32, block: *mut u8, requested: usize, usable: usize, weight: u64) {
    // Acquire pairs with the Release in `set`.
    // SAFETY: targets stay for ever.
    let Some(target) = (unsafe { TARGET.load(Ordering::Acquire).as_ref() }) else { return };
    if slot::in_hook() {
        return;
    }
    let size = size_of::<Sample>();
    let sample = Sample { size, event, reserved: 0, block: block.cast(), requested, usable, weight };
    slot::set_in_hook(true);
    // malloc and free keep errno.
    // SAFETY: the hook can be called with its argument, as the caller of `set` promised.
    errno::kept(|| unsafe { (target.hook)(&raw const sample, target.context) });
    slot::set_in_hook(false);
}
