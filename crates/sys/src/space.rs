//! What is known about this address space, and nowhere else: one OS page that the kernel wipes in the child of a fork
//! (MADV_WIPEONFORK, Linux 4.14), however it was forked. A child that was made without the C library's fork, so without
//! our handlers, tells from it what it has not.
//!
//! `SPACE` points to one of three places, and changes once: from `UNSETTLED`, which nothing is written to, to the page, or
//! to `COMMON` where the kernel cannot wipe it or has no memory for it.

use crate::global::NEAP;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use neap_core::Os;
use neap_core::helper::Helper;
use neap_counters::Counters;
use neap_sites::Header;
use rustix::mm::{self, MapFlags, ProtFlags};

/// The page's contents; zeroes in the child of a fork.
#[repr(C)]
#[derive(Debug)]
pub struct Space {
    /// `purger.rs`: the helper.
    pub helper: Helper,
    /// `pagemap.rs`: the file's number plus 1, or why there is none.
    pub file: AtomicI32,
    /// `pagemap.rs`: what tells the file from others, 0 until it is known.
    pub identity: AtomicU64,
    /// `pagemap.rs`: the file's position, 0 until it is known.
    pub mark: AtomicU64,
    /// `pagemap.rs`: when it was last looked at whether the file still is the same.
    pub checked: AtomicU64,
    /// `pagemap.rs`: the kernel has no PAGEMAP_SCAN.
    pub old: AtomicU32,
    /// `pagemap.rs`: how often the file was opened again.
    pub reopened: AtomicU32,
    /// `linux.rs`: the page in which this process counts its calls, if it does.
    pub counts: AtomicPtr<Counters>,
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

impl Space {
    const fn new() -> Self {
        Space {
            helper: Helper::new(),
            file: AtomicI32::new(0),
            identity: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            old: AtomicU32::new(0),
            mark: AtomicU64::new(0),
            reopened: AtomicU32::new(0),
            counts: AtomicPtr::new(core::ptr::null_mut()),
            page: AtomicPtr::new(core::ptr::null_mut()),
            pageless: AtomicBool::new(false),
            publishing: AtomicBool::new(false),
            sites: AtomicPtr::new(core::ptr::null_mut()),
            siteless: AtomicBool::new(false),
            sites_making: AtomicBool::new(false),
            sites_full: AtomicU32::new(0),
            sites_steps: AtomicU64::new(0),
            sites_lost: AtomicU64::new(0),
        }
    }
}

static UNSETTLED: Space = Space::new();
static COMMON: Space = Space::new();
static SPACE: AtomicPtr<Space> = AtomicPtr::new((&raw const UNSETTLED).cast_mut());
/// The process that first used neap in this memory, or that the fork handler ran in since; 0: not known.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that the calling process owns its address space: at its first use of neap, before it can have children, and in
/// the child of a fork.
pub fn note_owner(process: u32) {
    // Relaxed, here and below: a process of one thread, or a start-up that happens before all else.
    OWNER.store(process, Ordering::Relaxed);
}

/// Whether the address space is known to be the calling process's, and not its parent's (vfork).
pub fn is_owner(process: u32) -> bool {
    OWNER.load(Ordering::Relaxed) == process
}

/// In the child of a fork that was made with handlers.
pub fn forked(process: Option<u32>) {
    note_owner(process.unwrap_or(0));
    let space = SPACE.load(Ordering::Acquire);
    if !core::ptr::eq(space, &raw const UNSETTLED) {
        // SAFETY: see `here`.
        unsafe { (*space).helper.forked(process) };
    }
}

/// Where this address space has what it alone has; all zero before [`settle`].
#[inline]
pub fn here() -> &'static Space {
    // SAFETY: a static, or a page that is never unmapped and whose zeroed bytes are valid; all fields are atomic.
    unsafe { &*SPACE.load(Ordering::Acquire) }
}

/// [`here`], for a caller who is about to write to it.
pub fn settle() -> &'static Space {
    if core::ptr::eq(here(), &raw const UNSETTLED) {
        make();
    }
    here()
}

/// The page, mapped at the first call; `None` where it cannot be had.
pub fn space() -> Option<&'static Space> {
    let space = settle();
    (!core::ptr::eq(space, &raw const COMMON)).then_some(space)
}

#[cold]
fn make() {
    // The system is asked, as calls of the program's come here before the first that allocates.
    let page = NEAP.os.page_size();
    let (unsettled, common) = ((&raw const UNSETTLED).cast_mut(), (&raw const COMMON).cast_mut());
    // SAFETY: a fresh mapping, which stays unless it cannot be wiped or another thread was first.
    unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = mm::mmap_anonymous(core::ptr::null_mut(), page, access, MapFlags::PRIVATE).ok();
        let wiped = mapped.filter(|&p| mm::madvise(p, page, mm::Advice::LinuxWipeOnFork).is_ok());
        let new = wiped.map_or(common, |p| p.cast::<Space>());
        let owner = OWNER.load(Ordering::Relaxed);
        if owner != 0 {
            // Noted, where another thread has not done so.
            let _ = (*new).helper.is_owner(Some(owner));
        }
        let first = SPACE.compare_exchange(unsettled, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if let Some(p) = mapped.filter(|_| !first || wiped.is_none()) {
            let _ = mm::munmap(p, page);
        }
    }
}

/// Whether the calling process shares the address space of another one, which it may leave at any time (`vfork`,
/// `clone(CLONE_VM)`; see `neap_core::helper`): what it opens is no file of the owner's, and what bears its number is not
/// the owner's either. So it makes nothing that is noted here.
pub fn is_guest(space: &Space) -> bool {
    space.helper.is_owner(NEAP.os.process()) == Some(false)
}

/// Forgets the page, as if the process had just started. For tests.
#[cfg(test)]
pub fn forget() {
    SPACE.store((&raw const UNSETTLED).cast_mut(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a child that finds its parent's helper, or a process that takes itself for its child.
    #[test]
    fn a_bare_child_finds_zeroes() {
        let Some(space) = space() else { panic!("no page that is wiped") };
        space.helper.forked(Some(7));
        // SAFETY: the child only reads and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let fresh = space.helper.is_owner(Some(8)) == Some(true);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fresh)) };
        }
        let mut status = -1;
        // SAFETY: writes to `status`.
        assert_eq!(unsafe { libc::waitpid(child as i32, &raw mut status, 0) }, child as i32);
        assert_eq!(status, 0, "the words are the parent's");
        assert_eq!(space.helper.is_owner(Some(8)), Some(false));
        assert_eq!(space.helper.is_owner(Some(7)), Some(true));
        space.helper.forked(None);
    }
}
