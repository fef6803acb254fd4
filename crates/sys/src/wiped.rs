//! Memory that the kernel wipes in the child of a fork (MADV_WIPEONFORK, Linux 4.14), however it was forked: what is true
//! of one address space only.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use neap_counters::Counters;
use rustix::mm::{self, MapFlags, ProtFlags};

/// What is known in this address space. All zero bytes: nothing.
#[repr(C)]
pub struct Wiped {
    /// `pagemap.rs`: the number of its file plus 1, or a code.
    pub file: AtomicI32,
    /// The kernel has no PAGEMAP_SCAN.
    pub old: AtomicU32,
    /// How often the file was opened again.
    pub reopened: AtomicU32,
    /// `gauges.rs`: the page, if there is one.
    pub page: AtomicPtr<Counters>,
    /// There can be no page.
    pub pageless: AtomicBool,
    /// A thread publishes.
    pub publishing: AtomicBool,
}

static WIPED: AtomicPtr<Wiped> = AtomicPtr::new(core::ptr::null_mut());

/// The memory, mapped at the first call; `page` is the size of an OS page. `None` if there can be none.
pub fn wiped(page: usize) -> Option<&'static Wiped> {
    let mut wiped = WIPED.load(Ordering::Acquire);
    if wiped.is_null() {
        // SAFETY: a fresh mapping, which stays unless it cannot be wiped or another thread was first.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let p = mm::mmap_anonymous(core::ptr::null_mut(), page, access, MapFlags::PRIVATE).ok()?;
            if mm::madvise(p, page, mm::Advice::LinuxWipeOnFork).is_err() {
                let _ = mm::munmap(p, page);
                return None;
            }
            wiped = p.cast();
            if let Err(first) =
                WIPED.compare_exchange(core::ptr::null_mut(), wiped, Ordering::AcqRel, Ordering::Acquire)
            {
                let _ = mm::munmap(p, page);
                wiped = first;
            }
        }
    }
    // SAFETY: never unmapped; zeroed bytes are valid, and all fields are atomic.
    Some(unsafe { &*wiped })
}

/// Forgets all, as if the process had just started. For tests.
#[cfg(test)]
pub fn forget() {
    WIPED.store(core::ptr::null_mut(), Ordering::Release);
}
