//! Which OS pages hold memory: the kernel's answer, from /proc/self/pagemap.
//!
//! The file is opened at the first question and kept open, as opening takes five times as long as asking. It belongs to
//! the address space that it was opened in, so its number lies in memory that the child of a fork does not get
//! (`space.rs`). It is close-on-exec, and no low number: a program may count on
//! those. One that closes it all the same is noticed: the next question fails, or the file is not the same ([`is_same`]).
//!
//! Questions are PAGEMAP_SCAN (Linux 6.7: half a microsecond and up, for any length), else reads of the entries (eight
//! bytes for each OS page), else there is no answer: without /proc, and where a seccomp filter might end the process for
//! asking.

use crate::global::NEAP;
use crate::space::{Space, space};
use crate::{arch, status};
use core::sync::atomic::Ordering;
use neap_core::Os;
use neap_core::os::{Run, Touched};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Not opened yet, or wiped.
const UNKNOWN: i32 = 0;
/// There is no answer to be had.
const NONE: i32 = -1;
/// Lowest number of the file. The kernel's first table of files has 64 entries: to make it longer can take milliseconds.
const LOWEST: i32 = 48;
/// How often a file that was closed is opened again.
const REOPENS: u32 = 16;

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

/// struct page_region of the same.
#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: usize = 3 << 30 | size_of::<ScanArg>() << 16 | (b'f' as usize) << 8 | 16;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO_PAGE: u64 = 1 << 5;
/// Regions that are asked for at once.
const REGIONS: usize = 32;

/// See `Os::touched`.
///
/// # Safety
/// The range must be mapped, and `len` be whole OS pages of `page` bytes.
pub unsafe fn touched(p: *mut u8, len: usize, page: usize, runs: &mut [Run]) -> Option<Touched> {
    if status::is_forbidden() {
        return None;
    }
    let known = space(page)?;
    loop {
        let file = file(known)?;
        // SAFETY: as the caller promises. A number that is no file any more makes the calls fail.
        let (borrowed, result) = unsafe {
            let borrowed = BorrowedFd::borrow_raw(file - 1);
            let old = known.old.load(Ordering::Relaxed) != 0;
            let same = is_same(borrowed, known);
            (
                borrowed,
                if !same {
                    Err(Errno::BADF)
                } else if old {
                    read(borrowed, p, len, page, runs)
                } else {
                    scan(borrowed, p, len, runs)
                },
            )
        };
        match result {
            Ok(touched) => return Some(touched),
            Err(Errno::NOTTY) if known.old.load(Ordering::Relaxed) == 0 && is_pagemap(borrowed, known, page) => {
                known.old.store(1, Ordering::Relaxed);
            }
            Err(_) => {
                // The program has closed the file; its number may be another's by now.
                let next = if known.reopened.fetch_add(1, Ordering::Relaxed) < REOPENS { UNKNOWN } else { NONE };
                known.checked.store(0, Ordering::Relaxed);
                let _ = known.file.compare_exchange(file, next, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

/// The file's number plus 1, opened where it is not yet.
fn file(known: &Space) -> Option<i32> {
    let file = known.file.load(Ordering::Acquire);
    if file != UNKNOWN {
        return (file != NONE).then_some(file);
    }
    let opened = if status::is_hostile() { None } else { open() };
    let new = opened.as_ref().map_or(NONE, |f| f.as_raw_fd() + 1);
    match known.file.compare_exchange(UNKNOWN, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            let identity = opened.as_ref().map_or(0, identity);
            known.identity.store(identity, Ordering::Release);
            let _ = opened.map(IntoRawFd::into_raw_fd);
            (new != NONE).then_some(new)
        }
        // Another thread was first; ours is closed.
        Err(first) => (first != NONE && first != UNKNOWN).then_some(first),
    }
}

/// What tells a file from all others that are open; 0 if nobody can tell.
fn identity(file: impl AsFd) -> u64 {
    rustix::fs::fstat(file).map_or(0, |s| s.st_ino ^ s.st_dev.rotate_left(32))
}

/// Whether `file` is what was opened. A program that has closed it may have opened another process's pagemap since,
/// which would answer as well. One look for each step of the clock: a look takes a third of the time of a question.
fn is_same(file: BorrowedFd<'_>, known: &Space) -> bool {
    let now = NEAP.os.clock();
    if known.checked.swap(now, Ordering::Relaxed) == now {
        return true;
    }
    let wanted = known.identity.load(Ordering::Acquire);
    wanted == 0 || identity(file) == wanted
}

fn open() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, c"/proc/self/pagemap", flags, Mode::empty()).ok()?;
    Some(rustix::io::fcntl_dupfd_cloexec(&file, LOWEST).unwrap_or(file))
}

/// Whether `file` still is the pagemap: the page at `known`, which was written, is there.
fn is_pagemap(file: BorrowedFd<'_>, known: &Space, page: usize) -> bool {
    let p = core::ptr::from_ref(known).cast_mut().cast::<u8>();
    let mut runs = [Run::EMPTY; 1];
    // SAFETY: the page is mapped.
    unsafe { read(file, p, page, page, &mut runs).is_ok_and(|t| t.runs == 1) }
}

unsafe fn scan(file: BorrowedFd<'_>, p: *mut u8, len: usize, runs: &mut [Run]) -> Result<Touched, Errno> {
    let mut regions = [Region { start: 0, end: 0, categories: 0 }; REGIONS];
    let end = p.addr() + len;
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        flags: 0,
        start: p.addr() as u64,
        end: end as u64,
        walk_end: 0,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: runs.len().min(REGIONS) as u64,
        max_pages: 0,
        category_inverted: ZERO_PAGE,
        category_mask: ZERO_PAGE,
        category_anyof_mask: PRESENT | SWAPPED,
        return_mask: PRESENT | SWAPPED,
    };
    // SAFETY: the argument is as the call wants it; the kernel writes to it and to the regions.
    let count = unsafe {
        arch::syscall(
            libc::SYS_ioctl as usize,
            [file.as_raw_fd() as usize, PAGEMAP_SCAN, (&raw mut arg).expose_provenance(), 0, 0, 0],
        )
    };
    if count < 0 {
        return Err(Errno::from_raw_os_error(-count as i32));
    }
    for (run, region) in runs.iter_mut().zip(&regions[..count as usize]) {
        let start = region.start as usize;
        *run = Run { start: p.wrapping_add(start - p.addr()), len: region.end as usize - start };
    }
    // The walk ends early only where the regions are used up.
    Ok(Touched { runs: count as usize, looked: arg.walk_end as usize - p.addr() })
}

unsafe fn read(file: BorrowedFd<'_>, p: *mut u8, len: usize, page: usize, runs: &mut [Run]) -> Result<Touched, Errno> {
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    let mut entries = [0u64; 256];
    let (mut looked, mut count) = (0, 0);
    while looked < len {
        let most = ((len - looked) / page).min(entries.len());
        let offset = (p.addr() + looked) / page * size_of::<u64>();
        // SAFETY: the entries are plain bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), most * 8) };
        let got = rustix::io::pread(file, bytes, offset as u64)? / size_of::<u64>();
        if got == 0 {
            return Err(Errno::IO);
        }
        for &entry in &entries[..got] {
            if entry & PRESENT_OR_SWAPPED != 0 {
                let start = p.wrapping_add(looked);
                if count > 0 && runs[count - 1].start.addr() + runs[count - 1].len == start.addr() {
                    runs[count - 1].len += page;
                } else if count == runs.len() {
                    return Ok(Touched { runs: count, looked });
                } else {
                    runs[count] = Run { start, len: page };
                    count += 1;
                }
            }
            looked += page;
        }
    }
    Ok(Touched { runs: count, looked })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{self, MapFlags, ProtFlags};

    const PAGE: usize = 4096;

    /// A mapping of 64 OS pages, of which some were written.
    fn mapping(written: &[usize]) -> *mut u8 {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping, written inside.
        unsafe {
            let p =
                mm::mmap_anonymous(core::ptr::null_mut(), 64 * PAGE, access, MapFlags::PRIVATE).unwrap().cast::<u8>();
            for &i in written {
                p.add(i * PAGE).write(1);
            }
            p
        }
    }

    fn found(p: *mut u8, runs: &[Run]) -> std::vec::Vec<(usize, usize)> {
        runs.iter().map(|r| ((r.start.addr() - p.addr()) / PAGE, r.len / PAGE)).collect()
    }

    /// Catches runs that are wrong, and an answer that goes on behind the room for runs; both ways to ask.
    #[test]
    fn finds_what_was_written() {
        let p = mapping(&[0, 1, 2, 10, 63]);
        // SAFETY: the mapping is 64 OS pages long.
        unsafe {
            // A page that was read but not written is the zero page.
            let _ = p.add(20 * PAGE).read_volatile();
            let mut runs = [Run::EMPTY; 8];
            let t = touched(p, 64 * PAGE, PAGE, &mut runs).unwrap();
            assert_eq!(t.looked, 64 * PAGE);
            let zero_page_counts = space(PAGE).unwrap().old.load(Ordering::Relaxed) != 0;
            if !zero_page_counts {
                assert_eq!(found(p, &runs[..t.runs]), [(0, 3), (10, 1), (63, 1)]);
            }
            let t = touched(p, 64 * PAGE, PAGE, &mut runs[..1]).unwrap();
            assert_eq!(found(p, &runs[..1]), [(0, 3)]);
            assert!(t.looked >= 3 * PAGE && t.looked <= 10 * PAGE, "{t:?}");

            let file = open().unwrap();
            let t = read(rustix::fd::AsFd::as_fd(&file), p, 64 * PAGE, PAGE, &mut runs).unwrap();
            assert_eq!(found(p, &runs[..t.runs]), [(0, 3), (10, 1), (20, 1), (63, 1)]);
            let t = read(rustix::fd::AsFd::as_fd(&file), p, 64 * PAGE, PAGE, &mut runs[..2]).unwrap();
            assert_eq!((t.runs, t.looked), (2, 20 * PAGE));
        }
    }

    /// Catches an answer from the wrong file after the program closed ours.
    #[test]
    fn notices_that_it_was_closed() {
        crate::space::forget();
        let p = mapping(&[3]);
        let mut runs = [Run::EMPTY; 8];
        // SAFETY: the mapping is 64 OS pages long; the file that is closed is ours.
        unsafe {
            assert_eq!(touched(p, 64 * PAGE, PAGE, &mut runs).unwrap().runs, 1);
            let file = space(PAGE).unwrap().file.load(Ordering::Relaxed) - 1;
            assert!(file >= LOWEST);
            libc::close(file);
            assert_eq!(touched(p, 64 * PAGE, PAGE, &mut runs).unwrap().runs, 1);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
            let file = space(PAGE).unwrap().file.load(Ordering::Relaxed) - 1;
            libc::dup2(null, file);
            assert_eq!(touched(p, 64 * PAGE, PAGE, &mut runs).unwrap().runs, 1);
        }
    }
}
