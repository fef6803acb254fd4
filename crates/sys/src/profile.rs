//! Begins and ends to keep sampled blocks for a profile, and passes samples on. See `observe/profile.rs`.

use crate::allocator::NEAP;
use crate::observe::once::AtStart;
use crate::observe::{probes, profile, written};
use crate::system::{errno, space};
use crate::watch;
use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering;
use neap_core::watch::Reason;
use rustix::fd::RawFd;

pub use crate::observe::profile::{DEFAULT, directory, interval};
pub use crate::observe::written::Unwritten;
pub use neap_samples::pprof::Kind;

/// Sets the mean bytes between two samples for tools that attach to the probes from now on (`observe/probes.rs`).
pub fn choose_for_probes(interval: u64) {
    probes::choose(interval);
}

/// Begins to keep samples that are `interval` bytes apart on average, or every block (1). Must not be called within a
/// call of malloc or free. False if there can be no file for them.
pub fn start(interval: u64) -> bool {
    let Some(space) = space::space() else { return false };
    let (own, before, until) = (profile::chosen(), profile::interval(), profile::until());
    profile::choose(interval);
    profile::set(&NEAP.control, interval, 0);
    let made = space.profile.make(&NEAP.control);
    if made {
        // The program's own choice has no lease.
        NEAP.control.lease.store(0, Ordering::Relaxed);
        NEAP.keep_samples(interval, 0);
    } else {
        profile::choose(own);
        NEAP.keep_samples(before, until);
    }
    watch::apply();
    made
}

/// Ends what [`start`] began. The file stays, and frees of samples are still noted in it.
pub fn stop() {
    profile::choose(0);
    NEAP.keep_samples(0, 0);
    watch::apply();
}

/// Begins to keep samples, as [`start`], in files that are made in `directory`. False if there can be no file.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn start_in(directory: &CStr, interval: u64) -> bool {
    // SAFETY: as the caller promises.
    if !unsafe { profile::set_directory(directory) } {
        return false;
    }
    start(interval)
}

/// Writes a profile of this process for pprof to `sink`, which returns false when it takes no more. Allocates nothing
/// from the heap.
pub fn write(kind: Kind, sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Unwritten> {
    let space = space::space().ok_or(Unwritten::NoSamples)?;
    written::write(&space.profile, kind, sink)
}

/// Writes such a profile to an open file.
pub fn write_to(kind: Kind, file: RawFd) -> Result<(), Unwritten> {
    let space = space::space().ok_or(Unwritten::NoSamples)?;
    written::write_to(&space.profile, kind, file)
}

/// The value of option `profile_signal`. In the section of `space::SPACE`, for the same reason.
#[unsafe(link_section = ".neap.last")]
static SIGNAL: AtStart<&str> = AtStart::new("off");

/// The value of option `profile_signal` that is in force.
pub fn signal() -> &'static str {
    SIGNAL.get()
}

/// Notes the value of option `profile_signal`.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn set_signal(name: &'static str) {
    // SAFETY: as the caller promises.
    unsafe { SIGNAL.change(|signal| *signal = name) };
}

/// The handler of option `profile_signal`: writes a profile into a new file of the directory.
pub extern "C" fn by_signal(_: c_int) {
    if let Some(space) = space::space() {
        errno::kept(|| written::by_signal(&space.profile, profile::place()));
    }
}

/// Keeps a new block of `size` requested bytes that stands for `weight` bytes (`None`: every block is kept). Must not
/// be called within a call of malloc or free.
#[cold]
pub fn allocated(p: *mut u8, size: usize, weight: Option<u64>) {
    let Some(space) = space::space() else { return };
    space.profile.allocated(&NEAP.control, || space.is_guest(), p, size, weight);
    if profile::is_over() {
        // Heaps adopt this at their next slow path, which is their next call. It is the program's own choice that is in
        // force from now on: the program may have made it while the request was followed.
        NEAP.keep_samples(profile::chosen(), 0);
    }
}

/// Notes that the sampled block at `p`, which is the caller's, is about to be freed.
#[cold]
pub fn freed(p: *mut u8) {
    if let Some(space) = space::space() {
        space.profile.freed(p);
    }
}

/// If the block at `p` is a sample, notifies the profile and attached tools that it is about to be freed. Returns
/// whether the block is marked as a sample.
///
/// # Safety
/// `p` must be a live block of neap's, which is the caller's, or foreign.
#[inline]
pub unsafe fn note_free(p: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    let marked = unsafe { NEAP.is_marked(p) };
    if marked || NEAP.has_reason(Reason::Exact) {
        freed(p);
    }
    if marked {
        NEAP.pass_free(p);
    }
    marked
}
