//! Ranges in pages of a pool (hugetlb), with real pools: empty, short, just enough, taken away, and a fork.

mod common;

use common::{Machine, pool_number};
use neap_ranges::advice::{self, Advice};
use neap_ranges::error::Error;
use neap_ranges::kernel::pmd_size;
use neap_ranges::prefault::Prefault;
use neap_ranges::range::{Pages, Range, Request};

const MIB: usize = 1 << 20;

fn hugetlb() -> Request {
    Request::new(Pages::Hugetlb(pmd_size()))
}

/// Catches a block without its bytes: each must be zero, and keep what is written.
fn check(range: &mut Range) {
    assert!(range.iter().all(|&byte| byte == 0));
    range.fill(7);
    assert!(range.iter().all(|&byte| byte == 7));
}

/// Catches a strict request that gets other pages, a fallback that gives no reason, and a signal.
#[test]
fn empty_and_short() {
    let Some(machine) = Machine::lock() else { return };
    for pages in [0, 3] {
        let Some(_pool) = machine.pool(pmd_size(), pages) else { return };
        let eight = 8 * pmd_size();
        assert_eq!(hugetlb().strict().allocate(eight).err(), Some(Error::PoolShort));
        let mut range = hugetlb().allocate(eight).expect("smaller pages");
        assert_eq!(range.why_smaller(), Some(Error::PoolShort));
        assert!(!matches!(range.pages(), Pages::Hugetlb(_)), "{range:?}");
        check(&mut range);
        assert_eq!(range.resident().expect("an answer").hugetlb, 0);
        assert_eq!(pool_number(pmd_size(), "free_hugepages"), pages);
        assert_eq!(pool_number(pmd_size(), "resv_hugepages"), 0);
    }
}

/// Catches a page of the pool that is lost or requested twice.
#[test]
fn just_enough() {
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 4) else { return };
    for shared in [false, true] {
        for _ in 0..3 {
            // One byte more than three pages: four.
            let bytes = 3 * pmd_size() + 1;
            let (resident, start) = if shared {
                let range = hugetlb().strict().allocate_shared(bytes).expect("four pages");
                (range.resident(), range.as_ptr())
            } else {
                let mut range = hugetlb().strict().allocate(bytes).expect("four pages");
                check(&mut range);
                assert_eq!(range.why_smaller(), None);
                assert_eq!(hugetlb().strict().allocate(1).err(), Some(Error::PoolShort));
                (range.resident(), range.as_ptr())
            };
            let resident = resident.expect("an answer");
            let all = 4 * pmd_size() as u64;
            let found = (resident.bytes, resident.resident, resident.hugetlb, resident.huge);
            assert_eq!(found, (all, all, all, all), "{resident:?}");
            assert_eq!(resident.in_pages_of(pmd_size()), all);
            assert!(start.addr().is_multiple_of(pmd_size()));
            assert_eq!(pool_number(pmd_size(), "free_hugepages"), 4);
        }
    }
}

/// Catches a page that is not reserved: the pool is taken away before the range is touched.
#[test]
fn taken_away_under_way() {
    let Some(machine) = Machine::lock() else { return };
    let Some(pool) = machine.pool(pmd_size(), 4) else { return };
    let mut range = hugetlb().strict().lazy().allocate(4 * pmd_size()).expect("four pages");
    assert_eq!(range.resident().expect("an answer").resident, 0);
    let taken = machine.resize(pmd_size(), 0);
    assert_eq!(hugetlb().strict().allocate(1).err(), Some(Error::PoolShort));
    range.prefault(Prefault::write().threads(2)).expect("what is reserved");
    check(&mut range);
    assert_eq!(range.resident().expect("an answer").hugetlb, 4 * pmd_size() as u64);
    drop(range);
    assert_eq!(pool_number(pmd_size(), "nr_hugepages"), 0);
    drop((taken, pool));
}

/// Catches SIGBUS in parent or child where the pool has no page for a copy: a private range is not in the child, a
/// shared one is the same in both.
#[test]
fn fork_with_an_empty_pool() {
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 2) else { return };
    let mut range = hugetlb().strict().allocate(pmd_size()).expect("a page");
    let shared = hugetlb().strict().allocate_shared(pmd_size()).expect("another page");
    range.fill(1);
    let mut states = [0u8; 512];
    // SAFETY: the child makes system calls only; it has the shared range.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            let is_mapped = libc::mincore(range.as_ptr().cast(), range.bytes(), states.as_mut_ptr()) == 0;
            shared.as_ptr().write_volatile(2);
            libc::_exit(i32::from(is_mapped));
        }
        child
    };
    range.fill(3);
    let mut status = -1;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(range.iter().all(|&byte| byte == 3));
    // SAFETY: the range is mapped, and the child has ended.
    assert_eq!(unsafe { shared.as_ptr().read_volatile() }, 2);
}

/// A pool of one page of `size`: the page is given, written, taken, and given again.
fn one_page(machine: &Machine, size: usize) {
    let Some(_one) = machine.pool(size, 1) else { return };
    let step = size / 1024;
    let request = Request::new(Pages::Hugetlb(size)).strict();
    let mut range = request.allocate(1).expect("a page");
    assert_eq!((range.pages(), range.bytes(), range.why_smaller()), (Pages::Hugetlb(size), size, None));
    let (resident, all) = (range.resident().expect("an answer"), size as u64);
    assert_eq!((resident.hugetlb, resident.huge, resident.in_pages_of(size)), (all, all, all));
    // A part of the page.
    let part = neap_ranges::resident::of(range.as_ptr().wrapping_add(4096), 8192).expect("an answer");
    assert_eq!((part.bytes, part.hugetlb), (8192, 8192));
    // It is zero, can be written from end to end, and is the only one.
    for (i, at) in (0..size).step_by(step).chain([size - 1]).enumerate() {
        assert_eq!(core::mem::replace(&mut range[at], i as u8), 0);
    }
    assert!((0..size).step_by(step).chain([size - 1]).enumerate().all(|(i, at)| range[at] == i as u8));
    assert_eq!((pool_number(size, "free_hugepages"), request.allocate(1).err()), (0, Some(Error::PoolShort)));
    let other = Request::new(Pages::Hugetlb(size)).allocate(MIB).expect("smaller pages");
    assert_eq!(other.why_smaller(), Some(Error::PoolShort));
    assert!(other.bytes() < 8 * MIB, "{other:?}");
    // Freed, it is the pool's, and the next block has it, zero again.
    drop(range);
    assert_eq!((pool_number(size, "free_hugepages"), pool_number(size, "resv_hugepages")), (1, 0));
    let range = request.lazy().allocate(size).expect("the page again");
    assert_eq!((pool_number(size, "free_hugepages"), pool_number(size, "resv_hugepages")), (1, 1));
    assert_eq!((range[step], range[size - 1], pool_number(size, "free_hugepages")), (0, 0, 0));
}

/// Catches the only page of a pool that is not zero, that a second block gets as well, or that does not come back.
#[test]
fn the_only_page() {
    let Some(machine) = Machine::lock() else { return };
    one_page(&machine, pmd_size());
}

/// Catches a size of 1 GiB that is mapped, counted or replaced wrongly.
#[test]
fn one_gibibyte() {
    let Some(machine) = Machine::lock() else { return };
    let size = 1 << 30;
    {
        let Some(_none) = machine.pool(size, 0) else { return };
        let request = Request::new(Pages::Hugetlb(size));
        assert_eq!(request.strict().allocate(1).err(), Some(Error::PoolShort));
        // The next smaller pool has no page either.
        let Some(_pool) = machine.pool(pmd_size(), 0) else { return };
        let range = request.allocate(5 * MIB).expect("smaller pages");
        assert_eq!(range.why_smaller(), Some(Error::PoolShort));
        assert!(range.bytes() < 8 * MIB, "{range:?}");
        drop(range);
        // The smaller pool has some.
        let Some(_pool) = machine.pool(pmd_size(), 3) else { return };
        let range = request.allocate(5 * MIB).expect("smaller pages");
        assert_eq!((range.pages(), range.bytes()), (Pages::Hugetlb(pmd_size()), 6 * MIB));
    }
    one_page(&machine, size);
}

/// Catches settings that are ignored, and a strict range that is not what it says.
#[test]
fn transparent_always_advised_never() {
    let Some(machine) = Machine::lock() else { return };
    let huge = Pages::Transparent(pmd_size());
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    for (value, works) in [("madvise", true), ("always", true), ("never", false)] {
        let _set = machine.set(file, value);
        let strict = Request::new(huge).strict().allocate(5 * MIB);
        let range = Request::new(huge).allocate(5 * MIB).expect("some pages");
        if works {
            let strict = strict.expect("huge pages");
            assert_eq!(strict.resident().expect("an answer").huge, strict.bytes() as u64);
            assert_eq!((range.pages(), range.why_smaller(), range.bytes()), (huge, None, 6 * MIB));
            range.prefault(Prefault::write()).expect("memory");
            assert_eq!(range.resident().expect("an answer").huge, 6 * MIB as u64, "{value}");
        } else {
            assert_eq!(strict.err(), Some(Error::HugeOff));
            assert_eq!((range.pages(), range.why_smaller()), (Pages::Small, Some(Error::HugeOff)));
            range.prefault(Prefault::write()).expect("memory");
            assert_eq!(range.resident().expect("an answer").huge, 0);
        }
        let small = Request::new(Pages::Small).allocate(4 * MIB).expect("OS pages");
        small.prefault(Prefault::write()).expect("memory");
        assert_eq!(small.resident().expect("an answer").huge, 0, "{value}");
    }
}

/// Catches pages of 64 KiB that are OS pages, or that are counted as such by root, which can see their size.
#[test]
fn pages_of_64_kib() {
    let Some(machine) = Machine::lock() else { return };
    let size = 64 << 10;
    let file = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    let request = Request::new(Pages::Transparent(size));
    if !std::fs::exists(file).unwrap_or(false) {
        assert_eq!(request.strict().allocate(MIB).err(), Some(Error::NoSuchPages));
        return;
    }
    {
        let _set = machine.set(file, "never");
        assert_eq!(request.strict().allocate(MIB).err(), Some(Error::HugeOff));
    }
    let _set = machine.set(file, "madvise");
    // One page less than 2 MiB: none of those fits.
    let range = request.strict().allocate(pmd_size() - size).expect("pages of 64 KiB");
    let resident = range.resident().expect("an answer");
    assert_eq!((resident.resident, resident.huge), (range.bytes() as u64, 0), "{resident:?}");
    if resident.folios_known != 0 {
        assert_eq!(resident.in_pages_of(size), range.bytes() as u64, "{resident:?}");
    }
}

/// Catches shared memory whose own settings are ignored.
#[test]
fn transparent_and_shared() {
    let Some(machine) = Machine::lock() else { return };
    let request = Request::new(Pages::Transparent(pmd_size()));
    let own = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
    if !std::fs::exists(own).unwrap_or(false) {
        return println!("SKIPPED: {own} is missing");
    }
    {
        let _set = machine.set(own, "never");
        assert_eq!(request.strict().allocate_shared(3 * MIB).err(), Some(Error::HugeOff));
        let range = request.allocate_shared(3 * MIB).expect("smaller pages");
        assert_eq!(range.why_smaller(), Some(Error::HugeOff));
    }
    let _set = machine.set(own, "advise");
    let range = request.strict().allocate_shared(3 * MIB).expect("huge pages");
    assert_eq!(range.resident().expect("an answer").huge, 4 * MIB as u64);
}

/// Catches SIGBUS after a range was freed: its pages are reserved still (Linux 6.18), or a prefault says that they are
/// not.
#[test]
fn freed_and_used_again() {
    let Some(machine) = Machine::lock() else { return };
    let Some(_pool) = machine.pool(pmd_size(), 2) else { return };
    let mut range = hugetlb().strict().allocate(2 * pmd_size()).expect("two pages");
    range.fill(1);
    range.advise(Advice::Free).expect("advice");
    let other = hugetlb().strict().allocate(2 * pmd_size());
    match range.prefault(Prefault::write()) {
        Ok(()) => {
            assert_eq!(other.err(), Some(Error::PoolShort));
            check(&mut range);
        }
        Err(incomplete) => return assert!(other.is_ok(), "{incomplete}"),
    }
    // A part of a page is not freed.
    let half = pmd_size() / 2;
    let second = range.as_ptr().wrapping_add(half);
    // SAFETY: the range is this test's, and its contents do not matter.
    unsafe {
        assert_eq!(advice::advise(range.as_ptr(), half, Advice::Free), Ok(()));
        assert_eq!(advice::advise(second, half, Advice::Free), Err(Error::Unsupported));
    }
    assert_eq!(range.resident().expect("an answer").hugetlb, 2 * pmd_size() as u64);
}
