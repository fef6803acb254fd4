//! Finds the pages for which the kernel holds memory, in the page table of the process.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Size of an OS page of the machine that runs the tests.
pub(super) const HOST_PAGE: usize = 4096;

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
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// `PAGE_IS_PRESENT | PAGE_IS_SWAPPED`.
const HELD: u64 = 1 << 3 | 1 << 4;
/// `PAGE_IS_PFNZERO`.
const ZERO: u64 = 1 << 5;
/// Number of entries that one read asks for.
const AT_ONCE: usize = 4096;

/// `/proc/self/pagemap`.
#[derive(Debug)]
pub(super) struct Pagemap {
    file: File,
    /// Whether the kernel has PAGEMAP_SCAN (6.7), which distinguishes the zero page from others.
    scans: bool,
}

impl Pagemap {
    pub(super) fn open() -> Self {
        let file = File::open("/proc/self/pagemap").expect("the fake needs /proc/self/pagemap");
        let mut pagemap = Pagemap { file, scans: true };
        pagemap.scans = pagemap.scan(HOST_PAGE, 2 * HOST_PAGE, &mut |_, _| true);
        pagemap
    }

    /// Calls `visit` with start and end of each run of host pages in the range that are present or swapped out by the
    /// kernel and are not known to be the zero page, in order, until it returns false.
    pub(super) fn held(&self, from: usize, to: usize, mut visit: impl FnMut(usize, usize) -> bool) {
        let (from, to) = (from / HOST_PAGE * HOST_PAGE, to.next_multiple_of(HOST_PAGE));
        if self.scans {
            assert!(self.scan(from, to, &mut visit), "PAGEMAP_SCAN of {from:#x} to {to:#x}");
        } else {
            self.read(from, to, &mut visit);
        }
    }

    /// [`Pagemap::held`] through PAGEMAP_SCAN; false if the kernel refuses.
    fn scan(&self, from: usize, to: usize, visit: &mut dyn FnMut(usize, usize) -> bool) -> bool {
        let mut regions = [Region::default(); 256];
        let mut at = from;
        while at < to {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                start: at as u64,
                end: to as u64,
                vec: regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: regions.len() as u64,
                category_inverted: ZERO,
                category_mask: ZERO,
                category_anyof_mask: HELD,
                return_mask: ZERO,
                ..ScanArg::default()
            };
            // SAFETY: the kernel writes the argument and the regions, which both live here.
            let n = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) };
            let Ok(n) = usize::try_from(n) else { return false };
            if !regions[..n].iter().all(|r| visit(r.start as usize, r.end as usize)) {
                return true;
            }
            at = arg.walk_end as usize;
        }
        true
    }

    /// [`Pagemap::held`] through the entries of the file; the zero page counts as held.
    fn read(&self, from: usize, to: usize, visit: &mut dyn FnMut(usize, usize) -> bool) {
        let mut entries = vec![0u8; ((to - from) / HOST_PAGE).min(AT_ONCE) * 8];
        let mut at = from;
        while at < to {
            let n = ((to - at) / HOST_PAGE).min(AT_ONCE);
            let offset = (at / HOST_PAGE * 8) as u64;
            self.file.read_exact_at(&mut entries[..n * 8], offset).expect("reading /proc/self/pagemap");
            // Bits 63 and 62 of an entry, in its last byte: present, swapped.
            let held = |i: usize| entries[i * 8 + 7] & 0xC0 != 0;
            let mut i = 0;
            while i < n {
                let first = i;
                while i < n && held(i) {
                    i += 1;
                }
                if i > first && !visit(at + first * HOST_PAGE, at + i * HOST_PAGE) {
                    return;
                }
                i += 1;
            }
            at += n * HOST_PAGE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a fallback that finds other pages than PAGEMAP_SCAN does, and a scan that stops early.
    #[test]
    fn both_ways_agree() {
        const PAGES: usize = 3 * AT_ONCE;
        let p = super::super::kernel::mmap(0, PAGES * HOST_PAGE, libc::PROT_READ | libc::PROT_WRITE, 0).unwrap();
        let page = |i: usize| p.wrapping_add(i * HOST_PAGE);
        for i in (0..PAGES).filter(|i| i % 7 < 2 || i % AT_ONCE < 3) {
            // SAFETY: the page lies in the mapping.
            unsafe { page(i).write(1) };
        }
        let pagemap = Pagemap::open();
        let (mut scanned, mut read) = (vec![false; PAGES], vec![false; PAGES]);
        let mark = |into: &mut [bool], a: usize, b: usize| {
            into[(a - p.addr()) / HOST_PAGE..(b - p.addr()) / HOST_PAGE].fill(true);
            true
        };
        let end = page(PAGES).addr();
        pagemap.held(p.addr(), end, |a, b| mark(&mut scanned, a, b));
        pagemap.read(p.addr(), end, &mut |a, b| mark(&mut read, a, b));
        assert!((0..PAGES).all(|i| read[i] == (i % 7 < 2 || i % AT_ONCE < 3)));
        assert_eq!(scanned, read);
        let mut visits = 0;
        pagemap.held(p.addr(), end, |_, _| {
            visits += 1;
            visits < 2
        });
        assert_eq!(visits, 2);
        // The zero page: only PAGEMAP_SCAN recognises it.
        // SAFETY: the page lies in the mapping.
        assert_eq!(unsafe { page(5).read_volatile() }, 0);
        let mut found = false;
        pagemap.held(page(5).addr(), page(6).addr(), |_, _| {
            found = true;
            true
        });
        assert_eq!(found, !pagemap.scans);
        // SAFETY: the mapping is this test's.
        unsafe { libc::munmap(p.cast(), PAGES * HOST_PAGE) };
    }
}
