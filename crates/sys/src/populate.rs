//! Memory for many OS pages in one call: MADV_POPULATE_WRITE (Linux 5.14), else none.

use crate::status;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::io::Errno;
use rustix::mm;

/// Not tried yet.
const UNKNOWN: u32 = 0;
const WORKS: u32 = 1;
const FAILS: u32 = 2;
/// Whether the call is there.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// See `Os::populate`. `count` is told of a system call.
///
/// # Safety
/// As that.
pub unsafe fn populate(p: *mut u8, len: usize, count: impl FnOnce()) -> bool {
    if !is_usable() {
        return false;
    }
    count();
    // SAFETY: the range is committed memory of ours, whose contents stay.
    let result = unsafe { mm::madvise(p.cast(), len, mm::Advice::LinuxPopulateWrite) };
    note(result)
}

/// Whether to try it: not where a filter may punish it, as few programs do so.
fn is_usable() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => !status::is_hostile(),
        state => state == WORKS && !status::is_forbidden(),
    }
}

/// What the call said: whether there is such a call at all.
fn note(result: Result<(), Errno>) -> bool {
    let state = match result {
        // Short of memory, or a signal came: the faults will tell.
        Ok(()) | Err(Errno::NOMEM | Errno::FAULT | Errno::AGAIN | Errno::INTR | Errno::HWPOISON) => WORKS,
        // A kernel that does not know it, or a filter that refuses it.
        Err(_) => FAILS,
    };
    STATE.store(state, Ordering::Relaxed);
    state == WORKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    /// Catches a refusal after which the call is tried again, and an error that passes but ends it for ever.
    #[test]
    fn populates_unless_refused() {
        const LEN: usize = 64 << 10;
        // SAFETY: a fresh mapping, used inside.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let p = mm::mmap_anonymous(core::ptr::null_mut(), LEN, access, MapFlags::PRIVATE).unwrap().cast::<u8>();
            assert!(note(Err(Errno::NOMEM)));
            let mut calls = 0;
            let done = populate(p, LEN, || calls += 1);
            assert_eq!(calls, 1);
            if done {
                let mut resident = [0u8; LEN / 4096];
                assert_eq!(libc::mincore(p.cast(), LEN, resident.as_mut_ptr()), 0);
                let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
                assert!(resident[..LEN / page].iter().all(|r| r & 1 == 1));
            }
            assert!((0..LEN).all(|i| p.add(i).read() == 0));
            for refusal in [Errno::INVAL, Errno::PERM, Errno::NOSYS] {
                assert!(!note(Err(refusal)));
                assert!(!populate(p, LEN, || calls += 1));
            }
            assert_eq!(calls, 1);
        }
    }
}
