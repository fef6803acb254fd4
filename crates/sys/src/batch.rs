//! Many ranges given back in one call: process_madvise on the calling process itself, else one madvise each.
//!
//! Linux lets a process do MADV_DONTNEED to itself by that call since 6.13, and has a number for "itself" that needs no file
//! since 6.14. The call returns the bytes of the ranges that it has done whole; a range in which it failed may have lost
//! a part of its memory and does not count. An error comes only if the first range failed.

use crate::arch;
use crate::status::{self, Filter};
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::os::Run;
use rustix::mm;

/// Not tried yet.
const UNKNOWN: u32 = 0;
const WORKS: u32 = 1;
const FAILS: u32 = 2;
/// Whether process_madvise does MADV_DONTNEED here.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// PIDFD_SELF_THREAD of include/uapi/linux/pidfd.h, later fcntl.h: the calling thread, whose memory is the process's. It
/// has this value in all versions. PIDFD_SELF_THREAD_GROUP was -20000 before 6.17, is -10001 since, and fails with ESRCH
/// where the first thread of the process has ended.
const SELF: isize = -10000;
/// Ranges of one call.
const MOST: usize = 64;

/// See `Os::purge_runs`. `count` is told the number of system calls.
///
/// # Safety
/// As that.
pub unsafe fn purge(runs: &[Run], count: impl Fn(u64)) -> usize {
    let mut done = 0;
    // SAFETY: as the caller promises, here and below.
    unsafe {
        while runs.len() - done > 1 && is_usable() {
            let n = together(&runs[done..]);
            count(1);
            if n == 0 {
                break;
            }
            done += n;
        }
        for run in &runs[done..] {
            count(1);
            if mm::madvise(run.start.cast(), run.len, mm::Advice::LinuxDontNeed).is_err() {
                return done;
            }
            done += 1;
        }
    }
    done
}

/// Whether to try process_madvise: not where a filter may punish it.
fn is_usable() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => {
            let filter = status::filter();
            if filter == Filter::Unknown {
                return false;
            }
            // No range: the answer is about the kernel alone. Two threads get the same one.
            // SAFETY: the call is told of no memory.
            let works = filter == Filter::No && unsafe { dontneed(core::ptr::null(), 0) } == 0;
            STATE.store(if works { WORKS } else { FAILS }, Ordering::Relaxed);
            works
        }
        state => state == WORKS && !status::is_forbidden(),
    }
}

/// The call itself: bytes done, or the negated error.
///
/// # Safety
/// As [`purge`], for the `n` ranges at `ranges`.
unsafe fn dontneed(ranges: *const Run, n: usize) -> isize {
    let ranges = ranges.expose_provenance();
    // SAFETY: as the caller promises.
    unsafe {
        arch::syscall(
            libc::SYS_process_madvise as usize,
            [SELF as usize, ranges, n, libc::MADV_DONTNEED as usize, 0, 0],
        )
    }
}

/// One call for as many runs as it takes; returns how many it did whole.
unsafe fn together(runs: &[Run]) -> usize {
    let n = runs.len().min(MOST);
    // SAFETY: the runs are ours, and hold nothing that is needed. They are laid out as the kernel's ranges.
    let result = unsafe { dontneed(runs.as_ptr(), n) };
    if result < 0 {
        // It is the first range that is refused: the program locked a part of it, say. EPERM and ENOSYS are a filter's.
        if [libc::EPERM, libc::ENOSYS, libc::EACCES].contains(&(-result as i32)) {
            STATE.store(FAILS, Ordering::Relaxed);
        }
        return 0;
    }
    // The bytes that were done; a range that was done in part is done again.
    let mut bytes = result as usize;
    runs[..n]
        .iter()
        .take_while(|run| {
            let whole = bytes >= run.len;
            bytes -= run.len.min(bytes);
            whole
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    /// Catches a range that is left out, whichever call does it.
    #[test]
    fn purges_all() {
        const PAGE: usize = 4096;
        const PAGES: usize = 300;
        for state in [UNKNOWN, FAILS] {
            STATE.store(state, Ordering::Relaxed);
            // SAFETY: a fresh mapping, used inside.
            unsafe {
                let access = ProtFlags::READ | ProtFlags::WRITE;
                let p = mm::mmap_anonymous(core::ptr::null_mut(), PAGES * PAGE, access, MapFlags::PRIVATE).unwrap();
                let p = p.cast::<u8>();
                p.write_bytes(7, PAGES * PAGE);
                let runs: std::vec::Vec<Run> =
                    (0..PAGES / 2).map(|i| Run { start: p.add(i * 2 * PAGE), len: PAGE }).collect();
                assert_eq!(purge(&runs, |_| ()), PAGES / 2);
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
            let works = dontneed(core::ptr::null(), 0) == 0;
            assert_eq!(status, if works { 0 } else { 1 << 8 });
        }
    }

    extern "C" fn probe(_: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
        // SAFETY: no range; ends the child.
        unsafe {
            // Time for the first thread to end.
            libc::usleep(20_000);
            libc::_exit(i32::from(dontneed(core::ptr::null(), 0) != 0))
        }
    }
}
