//! The system calls of `neap huge` that the standard library lacks, in safe form.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Limit on the memory that a process may lock; `None`: no limit.
pub fn locked_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (done == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The value of PR_GET_THP_DISABLE for this process: 0, or flags (1: disabled; 2: except where advised, Linux 6.18).
pub fn transparent_disabled() -> Option<u32> {
    // SAFETY: the call takes numbers; those after the first must be 0.
    let flags = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
    u32::try_from(flags).ok()
}

/// Whether the kernel can restrict a process to the transparent huge pages that it requests (Linux 6.18). Tried on this
/// process, and restored. `None` if the process has none.
pub fn can_restrict() -> Option<bool> {
    match transparent_disabled()? {
        // SAFETY: the calls take numbers; those after the third must be 0. The second puts back what was.
        0 => unsafe {
            let done = libc::prctl(libc::PR_SET_THP_DISABLE, 1, 2, 0, 0) == 0;
            Some(done && libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0)
        },
        flags => (flags & 2 != 0).then_some(true),
    }
}

/// Whether this user may write to a folder.
pub fn may_write(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a C string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) == 0 }
}
