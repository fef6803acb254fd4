//! Which calls take their slow paths so that blocks are counted, filled, sampled or recorded? See `neap_core::watch`.

use crate::allocator::NEAP;
use crate::observe::sites;
use crate::system::space;
use crate::thread;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};
use neap_core::watch::Reason;

/// See [`fill`].
static FILL: AtomicU8 = AtomicU8::new(0);

/// What freed blocks are filled with, and its complement what new ones are; 0: nothing.
#[inline]
pub fn fill() -> u8 {
    // Relaxed: the value stands for itself.
    FILL.load(Ordering::Relaxed)
}

/// Sets what blocks are filled with; 0 ends it.
pub fn set_fill(byte: u8) {
    FILL.store(byte, Ordering::Relaxed);
    set(Reason::Fill, byte != 0);
}

/// Adds a reason to watch all calls, or takes it away. A thread that is in a call at that time follows at its next slow
/// path.
pub fn set(reason: Reason, on: bool) {
    NEAP.set_reason(reason, on);
    thread::follow();
    // In a reentrant call no heap is visited: each follows at its next slow path.
    thread::in_call(|_| NEAP.tell_heaps());
}

/// Begins to record where blocks are allocated, see [`sites::start`].
///
/// # Safety
/// As that.
pub unsafe fn start_sites(directory: &CStr, interval: u64, stack_end: usize) -> bool {
    let Some(space) = space::space() else { return false };
    // SAFETY: as the caller promises.
    let started = unsafe { sites::start(&space.sites, directory, interval, stack_end) };
    if started {
        set(Reason::Sites, true);
    }
    started
}
