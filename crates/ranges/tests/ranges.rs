//! Ranges without settings of the machine: contents, errors, advice, prefault, and what they got.

use neap_ranges::advice::{self, Advice};
use neap_ranges::error::Error;
use neap_ranges::kernel::{page_size, pmd_size};
use neap_ranges::populate::Access;
use neap_ranges::prefault::{Incomplete, Prefault, Progress};
use neap_ranges::range::{Pages, Range, Request};
use neap_ranges::resident;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const MIB: usize = 1 << 20;

fn small(bytes: usize) -> Range {
    Request::new(Pages::Small).allocate(bytes).expect("OS pages")
}

fn held(range: &Range) -> u64 {
    range.resident().expect("an answer").resident
}

/// Catches bytes that are not zero or lost, and a length that is not in whole pages.
#[test]
fn a_range_is_a_slice() {
    let mut range = small(3 * page_size() + 1);
    assert_eq!((range.len(), range.pages(), range.why_smaller()), (4 * page_size(), Pages::Small, None));
    assert!(range.iter().all(|&byte| byte == 0));
    range[3 * page_size()] = 9;
    assert_eq!(range.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 9);
    // The others were only read: they are the page of zeros.
    let got = range.resident().expect("an answer");
    assert_eq!((got.resident, got.zero), (page_size() as u64, 3 * page_size() as u64));
}

/// Catches a size that wraps around, and one that no kernel has.
#[test]
fn requests_that_make_no_sense() {
    let huge = Pages::Transparent(pmd_size());
    for (pages, bytes) in [
        (Pages::Small, 0),
        (Pages::Small, usize::MAX),
        (huge, isize::MAX as usize),
        (Pages::Transparent(page_size()), 1),
        (Pages::Transparent(3 * MIB), 1),
        (Pages::Transparent(0), 1),
        (Pages::Hugetlb(0), 1),
        (Pages::Hugetlb(3), 1),
        (Pages::Hugetlb(1 << 62), 1),
    ] {
        assert_eq!(Request::new(pages).allocate(bytes).err(), Some(Error::BadValue), "{pages:?} {bytes}");
    }
    assert_eq!(Request::new(Pages::Small).allocate(1 << 60).err(), Some(Error::NoMemory));
    assert_eq!(Request::new(Pages::Hugetlb(16 * MIB)).strict().allocate(1).err(), Some(Error::NoSuchPages));
    assert_eq!(Request::new(Pages::Transparent(1 << 30)).strict().allocate(1).err(), Some(Error::NoSuchPages));
    // No such pages anywhere: the next smaller ones, until some fit.
    let range = Request::new(Pages::Transparent(1 << 30)).allocate(1).expect("smaller pages");
    assert!(range.bytes() <= pmd_size() && range.why_smaller() == Some(Error::NoSuchPages), "{range:?}");
    // What takes the place of pages of a pool is no larger than those.
    for size in [page_size(), 2 * page_size(), 16 * page_size()] {
        let range = Request::new(Pages::Hugetlb(size)).allocate(1).expect("other pages");
        assert!(range.bytes() <= size, "{size} {range:?}");
    }
}

/// Catches advice that is not passed on, or that takes more than the range.
#[test]
fn advice_reaches_the_kernel() {
    let mut range = small(4 * MIB);
    range.fill(1);
    for advice in [Advice::Huge, Advice::NoHuge, Advice::Cold] {
        range.advise(advice).expect("advice");
    }
    assert!(range.iter().all(|&byte| byte == 1));
    // Only OS pages that lie in it as a whole.
    let page = page_size();
    let (start, bytes) = (range.as_ptr().wrapping_add(1), 3 * page);
    // SAFETY: the range is this test's.
    unsafe { advice::advise(start, bytes, Advice::Free).expect("advice") };
    assert!(range[..page].iter().chain(&range[3 * page..]).all(|&byte| byte == 1));
    assert!(range[page..3 * page].iter().all(|&byte| byte == 0));
    range.advise(Advice::Free).expect("advice");
    assert_eq!(held(&range), 0);
    // SAFETY: nothing lies there.
    let nothing = unsafe { advice::advise(std::ptr::without_provenance_mut(page), page, Advice::Cold) };
    assert_eq!(nothing, Err(Error::Inaccessible));
}

/// Catches a collapse that makes no huge pages, or loses contents.
#[test]
fn a_range_collapses() {
    let Ok(mut range) = Request::new(Pages::Transparent(pmd_size())).strict().allocate(4 * MIB) else {
        return println!("SKIPPED: no transparent huge pages");
    };
    range.advise(Advice::NoHuge).expect("advice");
    range.advise(Advice::Free).expect("advice");
    range.iter_mut().zip(0u32..).for_each(|(byte, n)| *byte = n as u8);
    assert_eq!(range.resident().expect("an answer").huge, 0);
    range.advise(Advice::Huge).expect("advice");
    range.advise(Advice::Collapse).expect("huge pages");
    assert_eq!(range.resident().expect("an answer").huge, 4 * MIB as u64);
    assert!(range.iter().zip(0u32..).all(|(&byte, n)| byte == n as u8));
}

/// Catches a prefault that makes too little resident, or memory of what is only read.
#[test]
fn prefault_for_reading_and_writing() {
    for threads in [1, 2, 5, 1000] {
        let range = small(33 * MIB);
        range.prefault(Prefault::read().threads(threads)).expect("zeros");
        let got = range.resident().expect("an answer");
        assert_eq!((got.resident, got.zero), (0, 33 * MIB as u64), "{threads} threads: {got:?}");
        range.prefault(Prefault::write().threads(threads)).expect("memory");
        assert_eq!(held(&range), 33 * MIB as u64, "{threads} threads");
    }
    let range = small(64 * MIB);
    range.prefault(Prefault::write().all_processors()).expect("memory");
    assert_eq!(held(&range), 64 * MIB as u64);
    // A part, in OS pages that have a part of it.
    let range = small(MIB);
    Prefault::write().run(range.as_ptr().wrapping_add(page_size() - 1), 2).expect("memory");
    assert_eq!(held(&range), 2 * page_size() as u64);
    assert_eq!(Prefault::write().run(std::ptr::null(), 0), Ok(()));
}

/// Catches a prefault that changes what other threads write meanwhile.
#[test]
fn prefault_beside_writers() {
    let range = Request::new(Pages::Small).allocate_shared(16 * MIB).expect("OS pages");
    let end = AtomicBool::new(false);
    // SAFETY: the first word of each OS page, used as an atomic one only.
    let words: Vec<&AtomicU64> = (0..range.bytes() / page_size())
        .map(|n| unsafe { &*range.as_ptr().wrapping_add(n * page_size()).cast::<AtomicU64>() })
        .collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0;
            while !end.load(Ordering::Relaxed) || rounds < 2 {
                words.iter().for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
                rounds += 1;
            }
            rounds
        });
        for _ in 0..20 {
            range.prefault(Prefault::write().threads(2)).expect("memory");
        }
        end.store(true, Ordering::Relaxed);
        let rounds = writer.join().expect("no panic");
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == rounds));
    });
}

/// Catches errors that are swallowed or confused, and a signal in their place.
#[test]
fn prefault_reports_errors() {
    let run = |how: Prefault, at: *const u8, bytes| how.run(at, bytes).map_err(|incomplete| incomplete.error);
    let range = small(32 * MIB);
    let at = range.as_ptr();
    // SAFETY: the range is this test's, and the part is not used.
    unsafe {
        let hole = at.wrapping_add(24 * MIB);
        assert_eq!(libc::mprotect(hole.cast(), page_size(), libc::PROT_READ), 0);
        assert_eq!(run(Prefault::read(), at, 32 * MIB), Ok(()));
        assert_eq!(run(Prefault::write(), at, 32 * MIB), Err(Error::Inaccessible));
        assert_eq!(libc::mprotect(hole.cast(), page_size(), libc::PROT_NONE), 0);
        assert_eq!(run(Prefault::read(), at, 32 * MIB), Err(Error::Inaccessible));
        assert_eq!(libc::munmap(hole.cast(), page_size()), 0);
    }
    for threads in [1, 3] {
        let failed = Prefault::write().threads(threads).run(at, 32 * MIB).expect_err("a hole");
        assert_eq!(failed.error, Error::Inaccessible);
        assert!((16 * MIB..32 * MIB).contains(&failed.done), "{failed:?}");
    }
    assert_eq!(run(Prefault::read(), std::ptr::without_provenance(usize::MAX - 100), 50), Err(Error::BadValue));
    assert_eq!(run(Prefault::read(), at, usize::MAX), Err(Error::BadValue));
    assert_eq!(run(Prefault::read(), std::ptr::without_provenance(usize::MAX / 2), 5000), Err(Error::Inaccessible));
}

/// Catches SIGBUS behind the end of a file.
#[test]
fn prefault_of_a_file() {
    let path = std::env::temp_dir().join(format!("neap-ranges-{}", std::process::id()));
    let mut file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&vec![5; 3 * page_size() / 2]).unwrap();
    let bytes = 4 * page_size();
    // SAFETY: a new mapping.
    let at = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0).cast::<u8>()
    };
    for how in [Prefault::read(), Prefault::write()] {
        assert_eq!(how.run(at, 2 * page_size()), Ok(()));
        let Err(Incomplete { error: Error::Inaccessible, done }) = how.run(at, bytes) else { panic!("behind the end") };
        // More than 0 where a border of 2 MiB lies in the mapping.
        assert!(done <= 2 * page_size(), "{done}");
    }
    assert_eq!(resident::of(at, bytes).expect("an answer").resident, 2 * page_size() as u64);
    assert!(std::fs::metadata(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap().len() == bytes as u64 * 3 / 8);
    // SAFETY: the mapping is this test's.
    unsafe { libc::munmap(at.cast(), bytes) };
}

/// Catches progress that goes back, ends early or is reported by another thread, and a prefault that cannot be ended.
#[test]
fn progress_and_cancel() {
    let range = small(40 * MIB);
    let me = std::thread::current().id();
    for threads in [1, 2] {
        let mut seen: Vec<Progress> = Vec::new();
        let result = range.prefault_with(Prefault::write().threads(threads), |progress| {
            assert_eq!(std::thread::current().id(), me);
            seen.push(progress);
            ControlFlow::Continue(())
        });
        assert_eq!(result, Ok(()));
        assert!(seen.iter().all(|progress| progress.total == 40 * MIB));
        assert!(seen.is_sorted_by_key(|progress| progress.done));
        assert_eq!(seen.last().map(|progress| progress.done), Some(40 * MIB), "{threads} threads");
    }
    for threads in [1, 2] {
        let range = small(40 * MIB);
        let ended = range.prefault_with(Prefault::write().threads(threads), |_| ControlFlow::Break(()));
        match ended {
            Err(ended) => {
                assert_eq!(ended.error, Error::Cancelled);
                assert!(ended.done < 40 * MIB && held(&range) == ended.done as u64, "{ended:?}");
            }
            // The other thread had done all the rest before this one was asked.
            Ok(()) => assert!(threads == 2 && held(&range) == 40 * MIB as u64),
        }
    }
}

/// Catches threads that go on after the callback has panicked, with a job that is gone.
#[test]
fn a_callback_that_panics() {
    let range = small(512 * MIB);
    let panicked = std::panic::catch_unwind(|| {
        range.prefault_with(Prefault::write().threads(2), |progress| {
            // The other thread is at work.
            while held(&range) < progress.done as u64 + 8 * MIB as u64 {}
            std::panic::resume_unwind(Box::new(4711))
        })
    });
    assert!(panicked.is_err());
    let before = held(&range);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(held(&range), before);
}

/// Catches figures of other addresses, and a hole that is an error.
#[test]
fn what_is_resident() {
    let mut range = small(8 * MIB);
    range[..MIB].fill(1);
    let second = small(page_size());
    let all = resident::of(range.as_ptr(), 8 * MIB).expect("an answer");
    assert_eq!((all.bytes, all.resident, all.hugetlb), (8 * MIB as u64, MIB as u64, 0), "{all:?}");
    let part = resident::of(range.as_ptr().wrapping_add(MIB - 1), 2).expect("an answer");
    assert_eq!((part.bytes, part.resident), (2 * page_size() as u64, page_size() as u64));
    // SAFETY: this test's, and not used.
    unsafe { libc::munmap(range.as_ptr().wrapping_add(512 << 10).cast(), 4 * MIB) };
    let rest = resident::of(range.as_ptr(), 8 * MIB).expect("an answer");
    assert_eq!(rest.resident, 512 << 10, "{rest:?}");
    assert_eq!(resident::of(range.as_ptr(), 0).err(), Some(Error::BadValue));
    assert_eq!(resident::of(std::ptr::without_provenance(usize::MAX - 5), 100).err(), Some(Error::BadValue));
    drop(second);
}

/// Catches marks in the page table that count as swapped out: guards (MADV_GUARD_INSTALL), and those of userfaultfd.
#[test]
fn marks_are_not_swapped_out() {
    const GUARD_INSTALL: i32 = 102;
    let (mut range, page) = (small(MIB), page_size());
    range[..16 * page].fill(1);
    let before = resident::of(range.as_ptr(), MIB).expect("an answer").swapped;
    // SAFETY: a part of the range, which is not used again.
    if unsafe { libc::madvise(range.as_mut_ptr().wrapping_add(8 * page).cast(), 8 * page, GUARD_INSTALL) } == 0 {
        let all = resident::of(range.as_ptr(), MIB).expect("an answer");
        assert_eq!((all.resident, all.swapped), (8 * page as u64, before), "{all:?}");
    } else {
        println!("SKIPPED: marks_are_not_swapped_out, guards: needs Linux 6.13");
    }
    let marked = small(MIB);
    if !write_protected(marked.as_ptr(), MIB) {
        println!("SKIPPED: marks_are_not_swapped_out, userfaultfd: needs Linux 6.4 and permission");
        return;
    }
    let all = resident::of(marked.as_ptr(), MIB).expect("an answer");
    assert_eq!((all.resident, all.swapped), (0, before), "{all:?}");
}

/// Marks untouched memory as write-protected for a userfaultfd that stays; false if the kernel refuses.
fn write_protected(at: *const u8, bytes: usize) -> bool {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
    const USER_MODE_ONLY: libc::c_long = 1;
    const WP_UNPOPULATED: u64 = 1 << 13;
    let (start, bytes) = (at.addr() as u64, bytes as u64);
    // SAFETY: the call takes a number.
    let file = unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY) } as i32;
    let (mut api, mut register, mut protect) = ([0xaau64, WP_UNPOPULATED, 0], [start, bytes, 2, 0], [start, bytes, 1]);
    let ask = |request: libc::c_ulong, words: *mut u64| {
        // SAFETY: the words are the structure of the request.
        unsafe { libc::ioctl(file, request, words) == 0 }
    };
    file >= 0
        && ask(API, api.as_mut_ptr())
        && ask(REGISTER, register.as_mut_ptr())
        && ask(WRITEPROTECT, protect.as_mut_ptr())
}

/// Catches a prefault that takes more than the kernel's own call: touching by the kernel in its place.
#[test]
fn populates_what_is_requested() {
    let range = small(4 * page_size());
    neap_ranges::populate::populate(range.as_ptr(), 2 * page_size(), Access::Write).expect("memory");
    assert_eq!(held(&range), 2 * page_size() as u64);
}
