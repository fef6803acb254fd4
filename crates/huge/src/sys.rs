//! The system calls of `neap huge` that the standard library lacks, in safe form.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How much memory a process may lock; `None`: all.
pub fn locked_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (done == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// What PR_GET_THP_DISABLE says of this process: 0, or flags (1: disabled; 2: except where it asks, Linux 6.18).
pub fn transparent_disabled() -> Option<u32> {
    // SAFETY: the call takes numbers; those after the first must be 0.
    let flags = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
    u32::try_from(flags).ok()
}

/// Whether the kernel can have a process get only the transparent huge pages that it asks for (Linux 6.18). Tried on
/// this process, and put back. `None` where the process has none.
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

/// A range that PAGEMAP_SCAN found in memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The first address.
    pub start: u64,
    /// The address behind the last one.
    pub end: u64,
    /// Whether each entry of the page table maps a whole huge page.
    pub huge: bool,
    /// Whether it is the page of zeros that all processes share.
    pub zero: bool,
}

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const IS_PRESENT: u64 = 1 << 3;
const IS_ZERO: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;
/// Limit of the regions that one scan returns.
const REGIONS: usize = 512;

/// What of a range is in memory, and up to where that is known: more regions may follow.
pub fn scan(pagemap: &File, start: u64, end: u64) -> io::Result<(Vec<Region>, u64)> {
    let mut found = [PageRegion::default(); REGIONS];
    let mut argument = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start,
        end,
        vec: found.as_mut_ptr().expose_provenance() as u64,
        vec_len: REGIONS as u64,
        category_mask: IS_PRESENT,
        return_mask: IS_PRESENT | IS_ZERO | IS_HUGE,
        ..ScanArg::default()
    };
    // SAFETY: the argument is the kernel's structure, as large as it says; it names an array of as many regions.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut argument) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let region = |found: &PageRegion| Region {
        start: found.start,
        end: found.end,
        huge: found.categories & IS_HUGE != 0,
        zero: found.categories & IS_ZERO != 0,
    };
    Ok((found.iter().take(count).map(region).collect(), argument.walk_end))
}

/// Whether the kernel has that call.
pub fn can_scan(pagemap: &File) -> bool {
    scan(pagemap, 0, 0).is_ok()
}
