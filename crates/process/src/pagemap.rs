//! Which pages of a process are resident: the ioctl PAGEMAP_SCAN of `/proc/PID/pagemap` (Linux 6.7). The allocator has
//! its own version (`neap_sys::scan`), without the standard library.
//!
//! An entry of the page table may hold a mark instead of a page: a guard (MADV_GUARD_INSTALL, Linux 6.13; glibc 2.42
//! protects stacks with it) or one of userfaultfd. The kernel reports these as swapped out. From Linux 6.15 on it also
//! says which are guards.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// A range that PAGEMAP_SCAN found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it is swapped out instead of resident; or has marks of userfaultfd, or guards before Linux 6.15.
    pub swapped: bool,
    /// Whether each entry of the page table maps a whole huge page.
    pub huge: bool,
    /// Whether it is the shared zero page, which counts in no process's Rss.
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
#[derive(Clone, Copy)]
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
/// Linux 6.15.
const IS_GUARD: u64 = 1 << 8;
/// Limit on the OS pages that one scan finds, because the process may have to wait meanwhile if it maps memory: 64 MiB
/// with OS pages of 4 KiB, less than half a millisecond.
pub const PAGES: u64 = 1 << 14;
/// Limit on the regions that one scan returns.
const REGIONS: usize = 1024;

/// Whether the kernel is asked for guards: until it refuses.
static HAS_GUARDS: AtomicBool = AtomicBool::new(true);

/// The resident or swapped-out parts of a range, and the address up to which they are known: more regions may follow.
/// Guards are neither.
pub fn scan(pagemap: &File, range: Range<u64>) -> io::Result<(Vec<Region>, u64)> {
    let wanted = IS_PRESENT | IS_SWAPPED | IS_ZERO | IS_HUGE;
    // Relaxed: it protects no other memory.
    let (found, walked) = match HAS_GUARDS.load(Ordering::Relaxed) {
        true => match ask(pagemap, range.clone(), IS_PRESENT | IS_SWAPPED, wanted | IS_GUARD) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let found = ask(pagemap, range, IS_PRESENT | IS_SWAPPED, wanted)?;
                HAS_GUARDS.store(false, Ordering::Relaxed);
                found
            }
            found => found?,
        },
        false => ask(pagemap, range, IS_PRESENT | IS_SWAPPED, wanted)?,
    };
    let region = |found: &PageRegion| Region {
        range: found.start..found.end,
        swapped: found.categories & IS_PRESENT == 0,
        huge: found.categories & IS_HUGE != 0,
        zero: found.categories & IS_ZERO != 0,
    };
    Ok((found.iter().filter(|found| found.categories & IS_GUARD == 0).map(region).collect(), walked))
}

/// The guards in a range that the kernel keeps in the page table; none where it does not show them.
pub fn guards(pagemap: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let (mut all, mut at): (Vec<Range<u64>>, u64) = (Vec::new(), range.start);
    while at < range.end {
        let Ok((found, walked)) = ask(pagemap, at..range.end, IS_GUARD, IS_GUARD) else { break };
        for found in found {
            match all.last_mut().filter(|last| last.end == found.start) {
                Some(last) => last.end = found.end,
                None => all.push(found.start..found.end),
            }
        }
        if walked <= at {
            break;
        }
        at = walked;
    }
    all
}

/// The parts of a range that are in any of these categories, with the wanted ones.
fn ask(pagemap: &File, range: Range<u64>, any: u64, wanted: u64) -> io::Result<(Vec<PageRegion>, u64)> {
    // Not filled with zeros: most results have few regions.
    let mut regions = [const { MaybeUninit::<PageRegion>::uninit() }; REGIONS];
    let mut argument = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start: range.start,
        end: range.end,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: REGIONS as u64,
        max_pages: PAGES,
        category_anyof_mask: any,
        return_mask: wanted,
        ..ScanArg::default()
    };
    // SAFETY: the argument is the kernel's structure, as large as it says; it names an array of as many regions.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut argument) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has written as many regions as it says.
    let found = regions.iter().take(count).map(|found| unsafe { found.assume_init() });
    let found: Vec<PageRegion> = found.collect();
    // Of more than 512 regions, the kernel says an end that is before some of them (up to Linux 6.18 at least).
    let end = found.last().map_or(0, |last| last.end);
    Ok((found, argument.walk_end.max(end)))
}

/// Whether the kernel has this call.
pub fn can_scan(pagemap: &File) -> bool {
    scan(pagemap, 0..0).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches regions that are found twice, or missed, where a scan has more than the kernel has room for at a time.
    #[test]
    fn each_region_is_found_once() {
        const PAGE: usize = 4096;
        let file = File::open("/proc/self/pagemap").expect("the page map");
        if !can_scan(&file) {
            return;
        }
        for number in [1, 511, 512, 513, 1000, 1025, 3000] {
            let length = 2 * number * PAGE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping, which no other code uses.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_WRITE, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            for page in (0..number).map(|page| 2 * page) {
                // SAFETY: it is inside the mapping.
                unsafe { at.cast::<u8>().add(page * PAGE).write(1) };
            }
            let (start, mut found) = (at.addr() as u64, Vec::new());
            let (end, mut next) = (start + length as u64, start);
            while next < end {
                let (regions, walked) = scan(&file, next..end).expect("a scan");
                found.extend(regions.into_iter().map(|region| region.range));
                assert!(walked > next);
                next = walked;
            }
            let expected = (0..number as u64).map(|page| start + 2 * page * PAGE as u64);
            assert!(found.iter().map(|range| range.start).eq(expected), "{number}: {}", found.len());
            // SAFETY: the mapping of before.
            unsafe { libc::munmap(at, length) };
        }
    }

    /// Catches guards that count as swapped out, and guards that are not found.
    #[test]
    fn guards_are_no_memory() {
        const GUARD_INSTALL: i32 = 102;
        let pagemap = File::open("/proc/self/pagemap").expect("this process");
        // SAFETY: sysconf takes a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which no other code uses; it stays until this process ends.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 8 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let (start, page) = (at.addr() as u64, page as u64);
        let place = |number: u64| at.wrapping_byte_add((number * page) as usize);
        // SAFETY: both OS pages are in the new mapping.
        let installed = unsafe {
            place(5).cast::<u8>().write(1);
            libc::madvise(place(2), 2 * page as usize, GUARD_INSTALL)
        };
        if installed != 0 || !can_scan(&pagemap) {
            return eprintln!("SKIPPED: needs Linux 6.13 for guards");
        }
        let range = start..start + 8 * page;
        let found = guards(&pagemap, range.clone());
        if !HAS_GUARDS.load(Ordering::Relaxed) {
            return eprintln!("SKIPPED: needs Linux 6.15, which shows guards");
        }
        assert_eq!(found, vec![start + 2 * page..start + 4 * page]);
        let (regions, walked) = scan(&pagemap, range).expect("this process");
        let held: Vec<_> = regions.iter().map(|region| (region.range.clone(), region.swapped)).collect();
        assert_eq!((held, walked), (vec![(start + 5 * page..start + 6 * page, false)], start + 8 * page));
    }
}
