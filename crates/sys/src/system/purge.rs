//! Gives memory back to the system (MADV_DONTNEED), and populates it before it is touched (only with
//! MADV_POPULATE_WRITE).
//!
//! When a part of a huge page goes back, the kernel keeps its memory until all of the huge page goes back or until
//! memory is short, although it no longer counts as resident. So such a huge page is split first ([`huge::split`]).
//!
//! The core relies on memory that went back to read as zero. Some systems report success and do nothing. qemu's user
//! mode does so before version 7.1; later for what is not whole OS pages of its host, and where a mapping was moved away
//! (`moves.rs`). So neap checks the first OS page that goes back, alone. If the program has set a filter, neap checks
//! each range, because such a filter may do the same at any time, and to one thread only.

use crate::arch;
use crate::system::call::{self, page_size};
use crate::system::filter::{self, Asking};
use crate::system::huge;
use crate::system::probe::{DISCARD, Feature, LOCKED, POPULATE};
use crate::system::space::count;
use core::sync::atomic::{AtomicU64, Ordering};
use neap_core::os::Run;
use neap_counters::Syscall;
use rustix::io::Errno;
use rustix::mm;

/// Number of calls that gave memory back, since the process began or was forked.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Number of calls that gave memory back, since the process began or was forked.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// To be called in the child of a fork: its count begins anew.
pub fn forked() {
    CALLS.store(0, Ordering::Relaxed);
}

/// Counts a call that gives memory back.
pub fn count_call() {
    CALLS.fetch_add(1, Ordering::Relaxed);
    count(Syscall::Madvise);
}

/// See `Os::purge`.
///
/// # Safety
/// As `Os::purge`.
pub unsafe fn purge(p: *mut u8, len: usize) -> bool {
    let mut is_locked = false;
    let call = |p: *mut u8, len: usize| {
        // SAFETY: as the caller promises.
        let done = unsafe { discard(p, len) };
        is_locked = done == Err(Errno::INVAL);
        done.is_ok()
    };
    // SAFETY: as the caller promises.
    unsafe { purge_by(p, len, call, &DISCARD) || (is_locked && purge_locked(p, len)) }
}

/// MADV_DONTNEED.
///
/// # Errors
/// The system refuses: INVAL where the range is locked.
///
/// # Safety
/// The range must be mapped, and its contents not needed.
unsafe fn discard(p: *mut u8, len: usize) -> Result<(), Errno> {
    count_call();
    // SAFETY: as the caller promises.
    unsafe { mm::madvise(p.cast(), len, mm::Advice::LinuxDontNeed) }
}

/// MADV_DONTNEED_LOCKED of include/uapi/asm-generic/mman-common.h.
const DONTNEED_LOCKED: usize = 24;

/// [`purge`] of memory that the program has locked. It stays locked: the kernel locks each OS page again that is
/// touched.
///
/// # Safety
/// As [`purge`].
#[cold]
unsafe fn purge_locked(p: *mut u8, len: usize) -> bool {
    let Some(_asking) = Asking::if_allowed() else { return false };
    let call = |p: usize, len| {
        // SAFETY: as the caller promises; no range at all is given to find out whether the kernel knows the advice.
        unsafe { arch::syscall(libc::SYS_madvise as usize, [p, len, DONTNEED_LOCKED, 0, 0, 0]) == 0 }
    };
    if LOCKED.known().is_none() && !call(0, 0) {
        LOCKED.note(false);
    }
    if !LOCKED.is_usable() {
        return false;
    }
    count_call();
    // SAFETY: as the caller promises.
    unsafe { purge_by(p, len, |p, len| call(p.expose_provenance(), len), &LOCKED) }
}

/// [`purge`] by `call`; `feature` says whether `call` works.
///
/// # Safety
/// As [`purge`].
#[inline]
unsafe fn purge_by(p: *mut u8, len: usize, mut call: impl FnMut(*mut u8, usize) -> bool, feature: &Feature) -> bool {
    let is_forbidden = filter::is_forbidden();
    if feature.known().is_none() && !is_forbidden {
        // SAFETY: as the caller promises.
        match unsafe { is_cleared(p, len.min(page_size()), &mut call) } {
            Some(cleared) => feature.note(cleared),
            None => return false,
        }
    }
    if feature.known() == Some(false) {
        return false;
    }
    if !is_forbidden {
        return call(p, len);
    }
    // SAFETY: as the caller promises.
    let cleared = unsafe { is_cleared(p, len, &mut call) };
    if cleared == Some(false) {
        feature.note(false);
    }
    cleared == Some(true)
}

/// Gives memory back by `call`; whether it is zero then. `None` where that is refused (memory that the program locked,
/// say), which proves nothing.
///
/// # Safety
/// As [`purge`].
unsafe fn is_cleared(p: *mut u8, len: usize, mut call: impl FnMut(*mut u8, usize) -> bool) -> Option<bool> {
    // SAFETY: the range is the caller's, writable, and not empty. Volatile: the call changes what is read.
    unsafe {
        // If the memory stays, its contents are restored: the caller may rely on them, say on zero.
        let before = p.read_volatile();
        p.write_volatile(1);
        let done = call(p, len);
        let zero = p.read_volatile() == 0;
        if !zero {
            p.write_volatile(before);
        }
        done.then_some(zero)
    }
}

/// Gives an OS page back, as [`purge`] does; see [`is_cleared`].
///
/// # Safety
/// As [`purge`].
pub(super) unsafe fn is_page_cleared(p: *mut u8) -> Option<bool> {
    // SAFETY: as the caller promises.
    unsafe { is_cleared(p, page_size(), |p, len| discard(p, len).is_ok()) }
}

/// See `Os::purge_runs`.
///
/// # Safety
/// As `Os::purge_runs`.
pub unsafe fn purge_runs(runs: &[Run]) -> usize {
    let mut last = usize::MAX;
    let purge = |run: &&Run| {
        for page in cut_pages(run).into_iter().flatten() {
            let whole = page.addr() / huge::BYTES;
            if whole != last {
                last = whole;
                // SAFETY: the OS page is one of the run, whose contents are not needed.
                unsafe { huge::split(page) };
            }
        }
        // SAFETY: as the caller promises.
        unsafe { purge(run.start, run.len) }
    };
    runs.iter().take_while(purge).count()
}

/// An OS page of the run in each huge page of which only a part is in the run.
fn cut_pages(run: &Run) -> [Option<*mut u8>; 2] {
    let end = run.start.wrapping_add(run.len);
    let cut = |at: *mut u8| !at.addr().is_multiple_of(huge::BYTES);
    [(cut(run.start), run.start), (cut(end), end.wrapping_sub(page_size()))].map(|(cut, page)| cut.then_some(page))
}

/// See `Os::populate`.
pub fn populate(p: *mut u8, len: usize) -> bool {
    let _asking = Asking::begin();
    if !POPULATE.is_usable() {
        return false;
    }
    count(Syscall::Madvise);
    note_populate(call::populate(p, len))
}

/// Notes by the call's result whether the system has the feature; returns that.
fn note_populate(result: Result<(), Errno>) -> bool {
    let works = match result {
        // The call works: it is short of memory, or a signal came. Later faults do the rest.
        Ok(()) | Err(Errno::NOMEM | Errno::FAULT | Errno::AGAIN | Errno::INTR | Errno::HWPOISON) => true,
        // A kernel that does not know it, or a filter that refuses it.
        Err(_) => false,
    };
    POPULATE.note(works);
    works
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::probe::Rarity;
    use rustix::mm::{MapFlags, ProtFlags};

    /// Catches memory that is taken for zero because a system that does nothing reports success, and one refusal that
    /// counts for all ranges.
    #[test]
    fn looks_at_what_became_of_it() {
        let mut page = [9u8; 64];
        let p = page.as_mut_ptr();
        let state = Feature::new(Rarity::Usual);
        let nothing = |_: *mut u8, _: usize| true;
        let zero = |p: *mut u8, len: usize| {
            // SAFETY: the array.
            unsafe { p.write_bytes(0, len) };
            true
        };
        // SAFETY: the array is this test's.
        unsafe {
            assert!(!purge_by(p, 64, |_, _| false, &state));
            assert_eq!(state.known(), None);
            assert!(!purge_by(p, 64, nothing, &state));
            assert!(!purge_by(p, 64, zero, &state), "known by now");
            let state = Feature::new(Rarity::Usual);
            assert!(purge_by(p, 64, zero, &state));
            assert!(purge_by(p, 64, nothing, &state), "not looked at again");
        }
    }

    /// Catches a check that changes memory which stays: side tables of free memory must hold zero or what they held.
    #[test]
    fn memory_that_stays_is_as_it_was() {
        for before in [0, 1, 9] {
            for (done, wiped) in [(false, false), (false, true), (true, false)] {
                let mut page = [before; 64];
                let call = |p: *mut u8, len: usize| {
                    if wiped {
                        // SAFETY: the array.
                        unsafe { p.write_bytes(0, len) };
                    }
                    done
                };
                // SAFETY: the array is this test's.
                assert!(!unsafe { purge_by(page.as_mut_ptr(), 64, call, &Feature::new(Rarity::Usual)) });
                assert!(page.iter().all(|&b| b == if wiped { 0 } else { before }), "{before} {done} {wiped}");
            }
        }
    }

    /// Catches a check of ranges that happen to be whole OS pages of a host with larger ones.
    #[test]
    fn checks_an_os_page_alone() {
        const HOST: usize = 1 << 16;
        #[repr(align(65536))]
        struct Aligned([u8; HOST]);
        let mut host = std::boxed::Box::new(Aligned([9; HOST]));
        let p = host.0.as_mut_ptr();
        let whole = |p: *mut u8, len: usize| {
            if (p.addr() | len).is_multiple_of(HOST) {
                // SAFETY: the array.
                unsafe { p.write_bytes(0, len) };
            }
            true
        };
        // SAFETY: the array is this test's.
        assert!(!unsafe { purge_by(p, HOST, whole, &Feature::new(Rarity::Usual)) });
        assert!(host.0.iter().all(|&b| b == 9));
    }

    /// Catches a range that is left out, or one that goes back with its neighbours.
    #[test]
    fn purges_all() {
        const PAGE: usize = 4096;
        const PAGES: usize = 300;
        // SAFETY: a fresh mapping, used inside.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let p = mm::mmap_anonymous(core::ptr::null_mut(), PAGES * PAGE, access, MapFlags::PRIVATE).unwrap();
            let p = p.cast::<u8>();
            p.write_bytes(7, PAGES * PAGE);
            let runs: std::vec::Vec<Run> =
                (0..PAGES / 2).map(|i| Run { start: p.add(i * 2 * PAGE), len: PAGE }).collect();
            assert_eq!(purge_runs(&runs), PAGES / 2);
            for i in 0..PAGES {
                assert_eq!(p.add(i * PAGE).read(), if i % 2 == 0 { 0 } else { 7 }, "OS page {i}");
            }
        }
    }

    /// Catches a refusal after which the call is tried again, and a passing error after which it is never tried again.
    #[test]
    fn populates_unless_refused() {
        const LEN: usize = 64 << 10;
        // SAFETY: a fresh mapping, used inside.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let p = mm::mmap_anonymous(core::ptr::null_mut(), LEN, access, MapFlags::PRIVATE).unwrap().cast::<u8>();
            assert!(note_populate(Err(Errno::NOMEM)));
            if populate(p, LEN) {
                let mut resident = [0u8; LEN / 4096];
                assert_eq!(libc::mincore(p.cast(), LEN, resident.as_mut_ptr()), 0);
                let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
                assert!(resident[..LEN / page].iter().all(|r| r & 1 == 1));
            }
            assert!((0..LEN).all(|i| p.add(i).read() == 0));
            for refusal in [Errno::INVAL, Errno::PERM, Errno::NOSYS] {
                assert!(!note_populate(Err(refusal)));
                assert!(!POPULATE.is_usable() && !populate(p, LEN));
            }
        }
    }
}
