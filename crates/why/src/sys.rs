//! The system calls of `neap why` that the standard library lacks, in safe form.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Copies memory of another process, without stopping it; how many bytes there were.
pub fn read_memory(pid: u32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: into.len() };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: the local vector is the buffer, which is writable and as long; the remote one is an address of the other
    // process, which the kernel checks.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// What PAGEMAP_SCAN found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where.
    pub range: Range<u64>,
    /// Swapped out, not resident.
    pub swapped: bool,
    /// Mapped as a huge page.
    pub huge: bool,
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
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;
/// Limit of the regions that one scan returns.
const REGIONS: usize = 1024;

/// What of a range holds memory or is swapped out, and up to where that is known: more regions may follow. The kernel's
/// page of zeros is left out: it is in nobody's Rss.
pub fn scan(pagemap: &File, range: Range<u64>, found: &mut Vec<Region>) -> io::Result<u64> {
    let mut regions = [PageRegion::default(); REGIONS];
    let mut argument = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: REGIONS as u64,
        category_inverted: IS_ZERO,
        category_mask: IS_ZERO,
        category_anyof_mask: IS_PRESENT | IS_SWAPPED,
        return_mask: IS_PRESENT | IS_SWAPPED | IS_HUGE,
        ..ScanArg::default()
    };
    // SAFETY: the argument is the kernel's structure, as large as it says; it names an array of as many regions.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut argument) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    found.extend(regions.iter().take(count).map(|region| Region {
        range: region.start..region.end,
        swapped: region.categories & IS_PRESENT == 0,
        huge: region.categories & IS_HUGE != 0,
    }));
    Ok(argument.walk_end)
}

/// Bytes of an OS page.
pub fn page_size() -> u64 {
    neap_launch::sys::page_size() as u64
}
