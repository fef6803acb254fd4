//! What is known about this address space, and nowhere else: one OS page that the kernel wipes in the child of a fork
//! (MADV_WIPEONFORK, Linux 4.14), however it was forked. A child that was made without the C library's fork, so without
//! our handlers, tells from it what it has not.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use neap_counters::Counters;
use neap_sites::Header;
use rustix::mm::{self, MapFlags, ProtFlags};

/// The page's contents; zeroes in the child of a fork.
#[repr(C)]
#[derive(Debug)]
pub struct Space {
    /// `pagemap.rs`: the file's number plus 1, or why there is none.
    pub file: AtomicI32,
    /// `pagemap.rs`: what tells the file from others, 0 until it is known.
    pub identity: AtomicU64,
    /// `pagemap.rs`: when it was last looked at whether the file still is the same.
    pub checked: AtomicU64,
    /// `pagemap.rs`: the kernel has no PAGEMAP_SCAN.
    pub old: AtomicU32,
    /// `pagemap.rs`: how often the file was opened again.
    pub reopened: AtomicU32,
    /// `purger.rs`: the helper was started here.
    pub helper: AtomicU32,
    /// `gauges.rs`: the page, if there is one.
    pub page: AtomicPtr<Counters>,
    /// `gauges.rs`: there can be no page.
    pub pageless: AtomicBool,
    /// `gauges.rs`: a thread publishes.
    pub publishing: AtomicBool,
    /// `sites.rs`: the file, if there is one.
    pub sites: AtomicPtr<Header>,
    /// `sites.rs`: there can be no file.
    pub siteless: AtomicBool,
    /// `sites.rs`: a thread makes it.
    pub sites_making: AtomicBool,
    /// `sites.rs`: 1 when no more memory is to be had for it.
    pub sites_full: AtomicU32,
    /// `sites.rs`: a bit for each part of it that has memory.
    pub sites_steps: AtomicU64,
    /// `sites.rs`: allocations that were not recorded before there was a file.
    pub sites_lost: AtomicU64,
}

static SPACE: AtomicPtr<Space> = AtomicPtr::new(core::ptr::null_mut());

/// The page, mapped at the first call; `None` where it cannot be had.
pub fn space(page: usize) -> Option<&'static Space> {
    let mut space = SPACE.load(Ordering::Acquire);
    if space.is_null() {
        // SAFETY: a fresh mapping, which stays unless it cannot be wiped or another thread was first.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let p = mm::mmap_anonymous(core::ptr::null_mut(), page, access, MapFlags::PRIVATE).ok()?;
            if mm::madvise(p, page, mm::Advice::LinuxWipeOnFork).is_err() {
                let _ = mm::munmap(p, page);
                return None;
            }
            space = p.cast();
            if let Err(first) =
                SPACE.compare_exchange(core::ptr::null_mut(), space, Ordering::AcqRel, Ordering::Acquire)
            {
                let _ = mm::munmap(p, page);
                space = first;
            }
        }
    }
    // SAFETY: never unmapped; zeroed bytes are valid, and all fields are atomic.
    Some(unsafe { &*space })
}

/// Forgets the page, as if the process had just started. For tests.
#[cfg(test)]
pub fn forget() {
    SPACE.store(core::ptr::null_mut(), Ordering::Release);
}
