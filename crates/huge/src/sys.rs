//! The system calls of `neap huge` that the standard library lacks, in safe form.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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

/// The pages of a System V segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The size of a page.
    pub page_bytes: u64,
    /// The bytes in memory.
    pub held: u64,
}

/// The pages of a System V segment; `None` if this user may not know them. The kernel's own list (`/proc/sysvipc/shm`)
/// has no size of pages, and on Linux 6.18 has 512 times as many bytes for pages of 2 MiB as there are.
pub fn segment(id: i32) -> Option<Segment> {
    // With this setting the kernel removes a segment when the last process detaches it: neap must not be that.
    if fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").is_ok_and(|text| text.trim() != "0") {
        return None;
    }
    // SAFETY: a new mapping, read-only, at a place that the kernel chooses; its memory is not read.
    let at = unsafe { libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY) };
    if at.addr() == usize::MAX {
        return None;
    }
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let start = format!("{:08x}-", at.addr());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    // The file behind the mapping counts its pages in blocks of 512 bytes.
    let range = lines.next().and_then(|line| line.split(' ').next()).unwrap_or_default();
    let file = fs::metadata(format!("/proc/self/map_files/{}", range.trim_start_matches('0'))).ok();
    let kib = lines.find_map(|line| line.strip_prefix("KernelPageSize:"));
    // SAFETY: the mapping was made above, and ends here.
    unsafe { libc::shmdt(at) };
    let page_bytes = kib?.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    Some(Segment { page_bytes, held: file?.blocks() * 512 })
}

/// Whether this user may write to a folder.
pub fn may_write(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a C string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) == 0 }
}
