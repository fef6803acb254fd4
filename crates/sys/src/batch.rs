//! Many ranges given back in one call: process_madvise on the process itself (Linux 6.13), else one madvise each.

use crate::{arch, status};
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::os::Run;
use rustix::mm;

/// Not tried yet.
const UNKNOWN: u32 = 0;
const WORKS: u32 = 1;
const FAILS: u32 = 2;
/// Whether process_madvise does MADV_DONTNEED here.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// PIDFD_SELF_THREAD_GROUP of include/uapi/linux/pidfd.h (6.14), which 6.13 has as PIDFD_SELF.
const PIDFD_SELF: isize = -10001;
/// Ranges of one call.
const MOST: usize = 64;

/// struct iovec.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    len: usize,
}

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
            if status::is_filtered() {
                STATE.store(FAILS, Ordering::Relaxed);
            }
            STATE.load(Ordering::Relaxed) != FAILS
        }
        state => state == WORKS && !status::is_forbidden(),
    }
}

/// One call for as many runs as it takes; returns how many it did whole.
unsafe fn together(runs: &[Run]) -> usize {
    let mut ranges = [Range { start: 0, len: 0 }; MOST];
    let n = runs.len().min(MOST);
    for (range, run) in ranges.iter_mut().zip(runs) {
        *range = Range { start: run.start.expose_provenance(), len: run.len };
    }
    // SAFETY: the ranges are ours, and hold nothing that is needed.
    let result = unsafe {
        arch::syscall(
            libc::SYS_process_madvise as usize,
            [PIDFD_SELF as usize, (&raw const ranges).expose_provenance(), n, libc::MADV_DONTNEED as usize, 0, 0],
        )
    };
    if result < 0 {
        // Once it has worked, it is the first range that is refused: the program locked a part of it, say. EPERM and ENOSYS
        // are a filter's.
        let filtered = [libc::EPERM, libc::ENOSYS, libc::EACCES].contains(&(-result as i32));
        if filtered || STATE.load(Ordering::Relaxed) == UNKNOWN {
            STATE.store(FAILS, Ordering::Relaxed);
        }
        return 0;
    }
    STATE.store(WORKS, Ordering::Relaxed);
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
}
