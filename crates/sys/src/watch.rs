//! Sends all calls to their slow paths, where blocks are counted, filled, sampled or recorded. See `neap_core::watch`.

use crate::allocator::NEAP;
use crate::guards::{self, Mode, Settings};
use crate::observe::sites;
use crate::system::space;
use crate::thread;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};
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
/// As [`sites::start`].
pub unsafe fn start_sites(directory: &CStr, interval: u64) -> bool {
    let Some(space) = space::space() else { return false };
    // SAFETY: as the caller promises.
    let started = unsafe { sites::start(&space.sites, directory, interval) };
    if started {
        set(Reason::Sites, true);
    }
    started
}

/// Starts guards, as [`guards::start`]; false if that fails. To be called once, while the process has one thread.
pub fn start_guards(mode: Mode, interval: u64) -> bool {
    let started = guards::start(Settings { mode, interval, is_quiet: || NEAP.policy.is_quiet() });
    if started {
        NEAP.choose_samples();
        apply();
    }
    started
}

/// Has all heaps adopt the watch mode.
pub fn apply() {
    thread::follow();
    // A reentrant call makes no handshake: each thread notices at its next slow path.
    thread::in_call(|_| NEAP.apply_watch_mode());
}
