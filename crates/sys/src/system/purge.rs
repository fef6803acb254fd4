//! How does memory go back to the system, and how does it come before it is touched?
//!
//! **Back: MADV_DONTNEED.** The core takes memory that was given back for zeroed memory. Some systems do nothing and say that
//! they did: qemu before version 9, when it runs a program of another processor. So the first range that goes back is looked
//! at; and each one where the program has a filter of its own, which may do the same to one thread from some moment on.
//!
//! **Many ranges in one call: process_madvise** on the calling process itself, else one madvise each. Linux lets a process do
//! MADV_DONTNEED to itself by that call since 6.13, and has a number for "itself" that needs no file since 6.14. The call
//! returns the bytes of the ranges that it has done whole; a range in which it failed may have lost a part of its memory and
//! does not count. An error comes only if the first range failed.
//!
//! **Before it is touched: MADV_POPULATE_WRITE**, else not.

use crate::arch;
use crate::system::filter::{self, Asking};
use crate::system::probe::{DISCARD, Feature, POPULATE, PURGE_MANY};
use crate::system::space::{count, count_many};
use core::sync::atomic::{AtomicU64, Ordering};
use neap_core::os::Run;
use neap_counters::Syscall;
use rustix::io::Errno;
use rustix::mm;

/// PIDFD_SELF_THREAD of include/uapi/linux/pidfd.h, later fcntl.h: the calling thread, whose memory is the process's. It
/// has this value in all versions. PIDFD_SELF_THREAD_GROUP was -20000 before 6.17, is -10001 since, and fails with ESRCH
/// where the first thread of the process has ended.
const SELF: isize = -10000;
/// Ranges of one call.
const MOST: usize = 64;

/// Calls that gave memory back, since the process began or its last fork.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Calls that gave memory back, since the process began or its last fork.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// In the child of a fork: its count begins anew.
pub fn forked() {
    CALLS.store(0, Ordering::Relaxed);
}

/// Counts calls that give memory back.
pub fn count_calls(n: u64) {
    CALLS.fetch_add(n, Ordering::Relaxed);
    count_many(Syscall::Madvise, n);
}

/// MADV_DONTNEED, whatever becomes of it.
///
/// # Safety
/// The range must be committed memory of the caller's, in whole OS pages, whose contents are not needed.
unsafe fn dontneed(p: *mut u8, len: usize) -> bool {
    // SAFETY: as the caller promises.
    unsafe { mm::madvise(p.cast(), len, mm::Advice::LinuxDontNeed) }.is_ok()
}

/// See `Os::purge`.
///
/// # Safety
/// As that.
pub unsafe fn purge(p: *mut u8, len: usize) -> bool {
    count_calls(1);
    // SAFETY: as the caller promises.
    unsafe { purge_by(p, len, |p, len| dontneed(p, len), &DISCARD) }
}

/// [`purge`] by `call`, with what is known of it in `feature`.
///
/// # Safety
/// As that.
#[inline]
unsafe fn purge_by(p: *mut u8, len: usize, call: impl FnOnce(*mut u8, usize) -> bool, feature: &Feature) -> bool {
    match feature.known() {
        Some(true) if !filter::is_forbidden() => call(p, len),
        Some(false) => false,
        _ => {
            // SAFETY: the range is the caller's, writable, and not empty. Volatile: the call changes what is read.
            unsafe {
                // Where the memory stays it is as it was: the caller may know that it is zero, or that zero does no harm.
                let before = p.read_volatile();
                p.write_volatile(1);
                let done = call(p, len);
                let zero = p.read_volatile() == 0;
                if !zero {
                    p.write_volatile(before);
                }
                // What is refused (memory that the program locked, say) tells nothing.
                if done {
                    feature.note(zero);
                }
                done && zero
            }
        }
    }
}

/// See `Os::purge_runs`.
///
/// # Safety
/// As that.
pub unsafe fn purge_runs(runs: &[Run]) -> usize {
    let _asking = Asking::begin();
    let mut done = 0;
    while let Some(run) = runs.get(done) {
        // SAFETY: as the caller promises.
        unsafe {
            match DISCARD.known() {
                Some(true) if !filter::is_forbidden() => return done + purge_many(&runs[done..]),
                // Each range is looked at.
                known if known != Some(false) && purge(run.start, run.len) => done += 1,
                _ => break,
            }
        }
    }
    done
}

/// [`purge_runs`] where MADV_DONTNEED is known to work.
///
/// # Safety
/// As that.
unsafe fn purge_many(runs: &[Run]) -> usize {
    let mut done = 0;
    while runs.len() - done > 1 && has_purge_many() {
        // SAFETY: as the caller promises.
        let n = unsafe { purge_together(&runs[done..]) };
        count_calls(1);
        if n == 0 {
            break;
        }
        done += n;
    }
    let one_by_one = runs[done..].iter().take_while(|run| {
        count_calls(1);
        // SAFETY: as the caller promises.
        unsafe { dontneed(run.start, run.len) }
    });
    done + one_by_one.count()
}

/// Whether to use process_madvise.
fn has_purge_many() -> bool {
    if PURGE_MANY.is_usable() && PURGE_MANY.known().is_none() {
        // No range: the answer is about the kernel alone. Two threads get the same one.
        // SAFETY: the call is given no memory.
        PURGE_MANY.note(unsafe { process_madvise(core::ptr::null(), 0) } == 0);
    }
    PURGE_MANY.works()
}

/// The call itself: bytes done, or the negated error.
///
/// # Safety
/// As [`purge_runs`], for the `n` ranges at `ranges`.
unsafe fn process_madvise(ranges: *const Run, n: usize) -> isize {
    let arguments = [SELF as usize, ranges.expose_provenance(), n, libc::MADV_DONTNEED as usize, 0, 0];
    // SAFETY: as the caller promises.
    unsafe { arch::syscall(libc::SYS_process_madvise as usize, arguments) }
}

/// One call for as many runs as it takes; returns how many it did whole.
///
/// # Safety
/// As [`purge_runs`].
unsafe fn purge_together(runs: &[Run]) -> usize {
    let n = runs.len().min(MOST);
    // SAFETY: as the caller promises. The runs are laid out as the kernel's ranges.
    let result = unsafe { process_madvise(runs.as_ptr(), n) };
    if result < 0 {
        // It is the first range that is refused: the program locked a part of it, say. EPERM and ENOSYS are a filter's.
        if [libc::EPERM, libc::ENOSYS, libc::EACCES].contains(&(-result as i32)) {
            PURGE_MANY.note(false);
        }
        return 0;
    }
    // The bytes that were done; a range that was done in part is done again.
    let mut bytes = result as usize;
    let is_whole = |run: &&Run| {
        let whole = bytes >= run.len;
        bytes -= run.len.min(bytes);
        whole
    };
    runs[..n].iter().take_while(is_whole).count()
}

/// See `Os::populate`.
///
/// # Safety
/// As that.
pub unsafe fn populate(p: *mut u8, len: usize) -> bool {
    let _asking = Asking::begin();
    if !POPULATE.is_usable() {
        return false;
    }
    count(Syscall::Madvise);
    // SAFETY: the range is committed memory of ours, whose contents stay.
    note_populate(unsafe { mm::madvise(p.cast(), len, mm::Advice::LinuxPopulateWrite) })
}

/// What the call said: whether there is such a call at all.
fn note_populate(result: Result<(), Errno>) -> bool {
    let works = match result {
        // Short of memory, or a signal came: the faults will tell.
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

    /// Catches memory that is taken for zero because a system that does nothing said yes, and one refusal that is taken
    /// for all.
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

    /// Catches a look that leaves its mark in memory which stays: the side tables of free memory hold zero or what they held.
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

    /// Catches a range that is left out, whichever call does it.
    #[test]
    fn purges_all() {
        const PAGE: usize = 4096;
        const PAGES: usize = 300;
        for fails in [false, true] {
            if fails {
                PURGE_MANY.note(false);
            }
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
    }

    /// Catches a number of the own process that is not that of this kernel, or that only works while the first thread of
    /// the process lives: this test runs in another one.
    #[test]
    fn the_call_works_where_the_kernel_has_it() {
        // SAFETY: a mapping that is only used here; the child has no other thread.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut thread = 0;
                libc::pthread_create(&raw mut thread, core::ptr::null(), probe, core::ptr::null_mut());
                libc::syscall(libc::SYS_exit, 0);
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            let works = process_madvise(core::ptr::null(), 0) == 0;
            assert_eq!(status, if works { 0 } else { 1 << 8 });
        }
    }

    extern "C" fn probe(_: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
        // SAFETY: no range; ends the child.
        unsafe {
            // Time for the first thread to end.
            libc::usleep(20_000);
            libc::_exit(i32::from(process_madvise(core::ptr::null(), 0) != 0))
        }
    }

    /// Catches a refusal after which the call is tried again, and an error that passes but ends it for ever.
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
