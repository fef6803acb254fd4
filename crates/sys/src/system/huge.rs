//! Transparent huge pages: whether the system gives them on request, and how a range gets one.
//!
//! neap asks for a huge page where it wants one, and forbids them elsewhere, so it does so only where the system leaves
//! that to programs ("madvise"). Under "always" the kernel gives them without being asked; under "never", and where the
//! process has none (PR_SET_THP_DISABLE), there are none.
//!
//! A huge page takes 60 to 100 us where memory is at hand. It takes longer than small pages where the kernel has to
//! compact memory first, or where the machine is a guest whose host took unused memory back: 5 ms then. What is slow
//! once is mostly quick the next time. So slow ones have a budget.

use crate::arch;
use crate::system::clock;
use crate::system::filter::Asking;
use crate::system::probe::HUGE;
use crate::system::space::count;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use neap_counters::Syscall;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mm::Advice;

/// MADV_COLLAPSE of include/uapi/asm-generic/mman-common.h.
const COLLAPSE: usize = 25;

/// A huge page that takes more microseconds of processor time is slow: so long take 512 faults on a quick machine.
const SLOW_US: u64 = 400;
/// All slow huge pages of the process may take so many microseconds, and one part in `SHARE` of its processor time.
const START_US: u64 = 20_000;
const SHARE: u64 = 16;

/// Microseconds that slow huge pages took.
static SPENT: AtomicU64 = AtomicU64::new(0);

/// True once huge pages were forbidden anywhere.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Finds out what [`may_exist`] returns, once.
#[cold]
pub fn look() {
    if HUGE.known().is_none() && HUGE.is_usable() {
        HUGE.note(is_by_request(c"/sys/kernel/mm/transparent_hugepage/enabled") && !is_disabled());
    }
}

/// Whether the file of this name says that programs have to ask for huge pages.
fn is_by_request(name: &core::ffi::CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let Ok(file) = openat(CWD, name, flags, Mode::empty()) else { return false };
    let mut text = [0; 64];
    let Ok(len) = rustix::io::read(&file, &mut text) else { return false };
    text[..len].windows(9).any(|word| word == b"[madvise]")
}

/// Whether the process has no huge pages (PR_GET_THP_DISABLE). True where that is not known.
fn is_disabled() -> bool {
    // SAFETY: the call only returns a number.
    unsafe { arch::syscall(libc::SYS_prctl as usize, [libc::PR_GET_THP_DISABLE as usize, 0, 0, 0, 0, 0]) != 0 }
}

/// See `Os::has_huge_pages`.
pub fn may_exist() -> bool {
    HUGE.works()
}

/// See `Os::populate_huge`.
///
/// # Safety
/// As that.
pub unsafe fn populate(p: *mut u8, len: usize) -> bool {
    let _asking = Asking::begin();
    if !may_exist() || SPENT.load(Ordering::Relaxed) > START_US + clock::process_microseconds() / SHARE {
        return false;
    }
    // SAFETY: as the caller promises; the write leaves what reads as zero as it is.
    unsafe {
        if !advise(p, len, Advice::LinuxHugepage as usize) {
            return false;
        }
        let begun = clock::thread_microseconds();
        p.write_volatile(p.read_volatile());
        // Where a page table is left from small pages, the kernel goes on with those.
        let done = is_resident(p.wrapping_add(len - 1)) || advise(p, len, COLLAPSE);
        let took = clock::thread_microseconds().saturating_sub(begun);
        if took > SLOW_US {
            // Relaxed, here and below: a sum that stands for itself.
            SPENT.fetch_add(took, Ordering::Relaxed);
        }
        advise(p, len, Advice::LinuxNoHugepage as usize);
        done
    }
}

/// Whether the OS page at `p` holds memory.
fn is_resident(p: *mut u8) -> bool {
    count(Syscall::Other);
    let mut state = 0u8;
    let page = p.map_addr(|a| a & !(crate::system::call::page_size() - 1));
    let arguments = [page.expose_provenance(), 1, (&raw mut state).expose_provenance(), 0, 0, 0];
    // SAFETY: the call writes one byte, to `state`.
    unsafe { arch::syscall(libc::SYS_mincore as usize, arguments) == 0 && state & 1 != 0 }
}

/// See `Os::forbid_huge`.
///
/// # Safety
/// As that.
pub unsafe fn forbid(p: *mut u8, len: usize) {
    let _asking = Asking::begin();
    // Relaxed: a mapping that is made at the same time stays a mapping of its own.
    FORBIDDEN.store(true, Ordering::Relaxed);
    // SAFETY: as the caller promises.
    unsafe { follow(p, len) };
}

/// Forbids huge pages in a range of an arena that was mapped anew, if they were forbidden before: so it forms one
/// mapping with its neighbours.
///
/// # Safety
/// As [`forbid`].
pub unsafe fn follow(p: *mut u8, len: usize) {
    if FORBIDDEN.load(Ordering::Relaxed) {
        // SAFETY: as the caller promises.
        unsafe { advise(p, len, Advice::LinuxNoHugepage as usize) };
    }
}

/// madvise with an advice that changes no contents; false if the system refuses.
///
/// # Safety
/// The range must be mapped by this caller.
unsafe fn advise(p: *mut u8, len: usize, advice: usize) -> bool {
    count(Syscall::Madvise);
    // SAFETY: as the caller promises.
    unsafe { arch::syscall(libc::SYS_madvise as usize, [p.expose_provenance(), len, advice, 0, 0, 0]) == 0 }
}
