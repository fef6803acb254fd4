//! Keeps sampled blocks for a profile: begins and ends that, and passes samples on. See `observe/profile.rs`.

use crate::allocator::NEAP;
use crate::observe::profile;
use crate::system::filter::Asking;
use crate::system::space;
use crate::watch;
use core::ffi::CStr;
use core::sync::atomic::Ordering;

pub use crate::observe::profile::{DEFAULT, directory, interval};

/// Begins to keep samples that are `interval` bytes apart on average, or each block (1). Not in a call.
pub fn start(interval: u64) {
    // The program's own choice has no lease.
    NEAP.control.lease.store(0, Ordering::Relaxed);
    NEAP.keep_samples(interval, 0);
    watch::apply();
}

/// Ends that. The file stays, and frees of samples are noted in it.
pub fn stop() {
    NEAP.keep_samples(0, 0);
    watch::apply();
}

/// Begins to keep samples, as [`start`], in files that are made in `directory`. False if there can be no file.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn start_in(directory: &CStr, interval: u64) -> bool {
    let Some(space) = space::space() else { return false };
    // SAFETY: as the caller promises.
    if !unsafe { profile::set_directory(directory) } {
        return false;
    }
    profile::set(&NEAP.control, interval, 0);
    let _asking = Asking::begin();
    let made = space.profile.make(&NEAP.control);
    if made {
        start(interval)
    } else {
        profile::set(&NEAP.control, 0, 0)
    }
    made
}

/// Keeps a new block of `size` requested bytes that stands for `weight` bytes. In no call.
#[cold]
pub fn allocated(p: *mut u8, size: usize, weight: u64) {
    let Some(space) = space::space() else { return };
    space.profile.allocated(&NEAP.control, || space.is_guest(), p, size, weight);
    if profile::is_over() {
        // Heaps follow at their next slow path, which is their next call.
        NEAP.keep_samples(0, 0);
    }
}

/// Notes that the sampled block at `p` is about to be freed. The block must be the caller's.
#[cold]
pub fn freed(p: *mut u8) {
    if let Some(space) = space::space() {
        space.profile.freed(p);
    }
}
