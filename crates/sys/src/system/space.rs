//! What belongs to this address space alone: one OS page that the kernel wipes in the child of a fork
//! (MADV_WIPEONFORK), however the child was made. A child that was made without the C library's fork handlers learns
//! from it that it has no helper, no counters page and no open files of its own. Each part of the page belongs to the
//! module that defines it.
//!
//! `SPACE` points to one of three places, and changes once: from `UNSETTLED`, which is never written to, to the page,
//! or to `COMMON` where the kernel cannot wipe it or has no memory for it.

use crate::observe::page::Page;
use crate::observe::prefault::Done;
use crate::observe::profile::Kept;
use crate::observe::sites::Ring;
use crate::system::call::READ_WRITE;
use crate::system::{call, filter, touched};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use neap_core::helper::Helper;
use neap_counters::Syscall;
use rustix::mm::{self, MapFlags};

/// The page's contents; zeroes in the child of a fork.
#[repr(C)]
#[derive(Debug)]
pub struct Space {
    /// The helper.
    pub helper: Helper,
    /// The file that says which OS pages hold memory.
    pub pagemap: touched::Kept,
    /// The counters page.
    pub page: Page,
    /// The file of allocation sites.
    pub sites: Ring,
    /// The file of samples.
    pub profile: Kept,
    /// What option `prefault` did.
    pub prefaulted: Done,
}

impl Space {
    const fn new() -> Self {
        Space {
            helper: Helper::new(),
            pagemap: touched::Kept::new(),
            page: Page::new(),
            sites: Ring::new(),
            profile: Kept::new(),
            prefaulted: Done::new(),
        }
    }

    /// Whether the calling process is a guest: it uses the address space of another process, the owner, and may leave
    /// at any time (`vfork`, `clone(CLONE_VM)`; see `neap_core::helper`). Its files and its process number are not the
    /// owner's. So it makes nothing that is noted here.
    pub fn is_guest(&self) -> bool {
        self.helper.is_owner(filter::known_process()) == Some(false)
    }
}

static UNSETTLED: Space = Space::new();
static COMMON: Space = Space::new();
/// The dynamic linker writes it at each start (a relocation). In a section of its own, which comes last, it shares an
/// OS page with other data that each start writes.
#[unsafe(link_section = ".neap.last")]
static SPACE: AtomicPtr<Space> = AtomicPtr::new((&raw const UNSETTLED).cast_mut());
/// The process that first used neap in this memory, or in which the fork handler ran since; 0: not known.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that the calling process owns its address space: at its first use of neap, before it can have children, and in
/// the child of a fork.
pub fn note_owner(process: u32) {
    // Relaxed, here and below: a process of one thread, or a start-up that happens before all else.
    OWNER.store(process, Ordering::Relaxed);
}

/// Whether this process is known to own its address space, and not to use its parent's (vfork).
pub fn is_owner(process: u32) -> bool {
    OWNER.load(Ordering::Relaxed) == process
}

/// To be called in the child of a fork that was made with handlers.
pub fn forked() {
    let process = filter::known_process();
    note_owner(process.unwrap_or(0));
    let space = SPACE.load(Ordering::Acquire);
    if !core::ptr::eq(space, &raw const UNSETTLED) {
        // SAFETY: see `here`.
        unsafe { (*space).helper.forked(process) };
    }
}

/// What belongs to this address space alone; all zero before [`settle`].
#[inline]
pub fn here() -> &'static Space {
    // SAFETY: a static, or a page that is never unmapped and whose zeroed bytes are valid; all fields are atomic.
    unsafe { &*SPACE.load(Ordering::Acquire) }
}

/// [`here`], for a caller that is about to write to it.
pub fn settle() -> &'static Space {
    if core::ptr::eq(here(), &raw const UNSETTLED) {
        make();
    }
    here()
}

/// The page, which is mapped at the first call; `None` where that fails.
pub fn space() -> Option<&'static Space> {
    let space = settle();
    (!core::ptr::eq(space, &raw const COMMON)).then_some(space)
}

#[cold]
fn make() {
    let page = call::page_size();
    let (unsettled, common) = ((&raw const UNSETTLED).cast_mut(), (&raw const COMMON).cast_mut());
    let mapped = call::fresh(0, page, READ_WRITE, MapFlags::PRIVATE);
    // SAFETY: the mapping is new. It stays unless it cannot be wiped or another thread was first.
    unsafe {
        let wiped = mapped.filter(|&p| mm::madvise(p.cast(), page, mm::Advice::LinuxWipeOnFork).is_ok());
        let new = wiped.map_or(common, |p| p.cast::<Space>());
        let owner = OWNER.load(Ordering::Relaxed);
        if owner != 0 {
            // The first call of `is_owner` notes the owner.
            let _ = (*new).helper.is_owner(Some(owner));
        }
        let first = SPACE.compare_exchange(unsettled, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if let Some(p) = mapped.filter(|_| !first || wiped.is_none()) {
            let _ = mm::munmap(p.cast(), page);
        }
    }
}

/// Counts a system call, if this process counts.
pub fn count(call: Syscall) {
    if let Some(counters) = here().page.counts() {
        counters.syscalls[call as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a child that finds its parent's helper, and a process that takes itself for a child.
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
