//! PAGEMAP_SCAN (Linux 6.7): asks a pagemap file what the OS pages of a range hold. The callers probe the call, and
//! decide what to do without it.

use crate::arch;
use core::ops::Range;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// Resident.
pub const PRESENT: u64 = 1 << 3;
/// Swapped out.
pub const SWAPPED: u64 = 1 << 4;
/// The shared page of zeros.
pub const ZERO_PAGE: u64 = 1 << 5;
/// Mapped by huge entries.
pub const HUGE: u64 = 1 << 6;
/// A guard (MADV_GUARD_INSTALL): no memory, though it is reported as swapped out too. Before Linux 6.15 the call fails
/// with `INVAL` where this is to be returned.
pub const GUARD: u64 = 1 << 8;

/// struct pm_scan_arg of include/uapi/linux/fs.h.
#[repr(C)]
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

/// struct page_region of the same: neighbouring OS pages of the same categories.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Address behind the last one.
    pub end: u64,
    /// Bits such as [`PRESENT`], of those that were requested.
    pub categories: u64,
}

impl Region {
    /// To be filled in.
    pub const EMPTY: Region = Region { start: 0, end: 0, categories: 0 };
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: usize = 3 << 30 | size_of::<ScanArg>() << 16 | (b'f' as usize) << 8 | 16;

/// Which OS pages are wanted: those that are resident or swapped out, except those of a category in `without`. The
/// categories in `returned` are reported.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Bits such as [`ZERO_PAGE`].
    pub without: u64,
    /// Bits such as [`PRESENT`].
    pub returned: u64,
}

/// Finds them; returns how many of `regions` were filled in, and up to which address the kernel looked. The kernel
/// stops before the end of the range only where the regions are used up.
///
/// # Errors
/// The kernel's: `NOTTY` where it does not have the call, or the file is no pagemap.
pub fn scan(
    pagemap: BorrowedFd<'_>,
    range: Range<usize>,
    wanted: Wanted,
    regions: &mut [Region],
) -> Result<(usize, usize), Errno> {
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        flags: 0,
        start: range.start as u64,
        end: range.end as u64,
        walk_end: 0,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        max_pages: 0,
        category_inverted: wanted.without,
        category_mask: wanted.without,
        // A category of `without` is inverted here as well: an OS page that was never touched is not swapped out.
        category_anyof_mask: (PRESENT | SWAPPED) & !wanted.without,
        return_mask: wanted.returned,
    };
    let arguments = [pagemap.as_raw_fd() as usize, PAGEMAP_SCAN, (&raw mut arg).expose_provenance(), 0, 0, 0];
    // SAFETY: the argument is as the call wants it; the kernel writes to it and to the regions.
    let count = unsafe { arch::syscall(libc::SYS_ioctl as usize, arguments) };
    if count < 0 {
        return Err(Errno::from_raw_os_error(-count as i32));
    }
    Ok((count as usize, arg.walk_end as usize))
}
