//! Sends all calls to their slow paths, where blocks are counted, filled, sampled or recorded. See `neap_core::watch`.

use crate::allocator::NEAP;
use crate::observe::{profile, sites};
use crate::system::space;
use crate::thread;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use neap_core::watch::Reason;

/// See [`fill`].
static FILL: AtomicU8 = AtomicU8::new(0);

/// The byte that freed blocks are filled with; new ones are filled with its complement. 0: blocks are not filled.
#[inline]
pub fn fill() -> u8 {
    // Relaxed: the value stands for itself.
    FILL.load(Ordering::Relaxed)
}

/// Sets the byte that blocks are filled with; 0 ends it.
pub fn set_fill(byte: u8) {
    FILL.store(byte, Ordering::Relaxed);
    set(Reason::Fill, byte != 0);
}

/// Adds a reason to watch all calls, or removes it. A thread that is in a call now notices at its next slow path.
pub fn set(reason: Reason, on: bool) {
    NEAP.set_reason(reason, on);
    apply();
}

/// Begins to record where blocks are allocated; see [`sites::start`].
///
/// # Safety
/// As that.
pub unsafe fn start_sites(directory: &CStr, interval: u64) -> bool {
    let Some(space) = space::space() else { return false };
    // SAFETY: as the caller promises.
    let started = unsafe { sites::start(&space.sites, directory, interval) };
    if started {
        set(Reason::Sites, true);
    }
    started
}

/// Bytes between two samples for the hook; 0: there is no hook.
static HOOK_INTERVAL: AtomicUsize = AtomicUsize::new(0);

/// Sets the mean bytes between two samples for the hook; 0: there is none from now on.
pub fn set_hook_interval(bytes: usize) {
    HOOK_INTERVAL.store(bytes, Ordering::Relaxed);
    choose_samples();
    apply();
}

/// Has blocks sampled as the hook and the profile need it. Heaps follow at their next slow path, or by [`apply`].
pub fn choose_samples() {
    let hook = HOOK_INTERVAL.load(Ordering::Relaxed) as u64;
    let wanted = profile::interval();
    // Both get samples at the shorter distance. Weights say what each stands for. A profile of each block needs none.
    let interval = match (hook, wanted) {
        (_, 0 | 1) => hook,
        (0, _) => wanted,
        _ => hook.min(wanted),
    };
    if interval != 0 {
        // This reason stays for ever. A thread that frees a sample has synchronised with the one that made it, so it
        // sees it.
        NEAP.set_reason(Reason::Marks, true);
    }
    NEAP.set_sample_interval(usize::try_from(interval).unwrap_or(usize::MAX));
    NEAP.set_reason(Reason::Exact, wanted == 1);
    NEAP.set_reason(Reason::Samples, interval != 0);
}

/// Has all heaps adopt the watch mode.
pub fn apply() {
    thread::follow();
    // A reentrant call makes no handshake: each thread notices at its next slow path.
    thread::in_call(|_| NEAP.apply_watch_mode());
}
