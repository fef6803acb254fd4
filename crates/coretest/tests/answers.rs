//! What the core answers about blocks, and where it allows huge pages.

use neap_core::class::{CLASSES, SIZE};
use neap_core::heap::Mine;
use neap_core::policy::Purge;
use neap_core::watch::Reason;
use neap_core::{CHUNK, misuse};
use neap_coretest::calls::{Shared, free, malloc, system, thread, valid};
use neap_coretest::{Call, Config, Owner};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// The size of the block at `p`, from the page map and the block alone.
fn quick_size(a: &Shared, p: *mut u8) -> Option<usize> {
    // SAFETY: arenas of the test stay readable.
    unsafe { a.quick_size(p) }
}

/// Catches a quick answer that differs from the exact one, and any quick answer for an address that is not a live small
/// block: the exact way must check that, and report misuse.
#[test]
fn quick_sizes() {
    let a = system(Config::default());
    let t = thread(&a);
    for size in SIZE[1..CLASSES].iter().map(|&size| size as usize) {
        let (p, kept) = (malloc(&a, &t, size), malloc(&a, &t, size));
        // SAFETY: the block is live.
        let exact = unsafe { a.usable_size(Mine::none(), misuse::Call::UsableSize, p) };
        assert_eq!((quick_size(&a, p), exact), (Some(size), Some(size)));
        assert_eq!(quick_size(&a, p.wrapping_add(8)), None, "inside a block of {size} bytes");
        free(&a, &t, p);
        assert_eq!(quick_size(&a, p), None, "a free block of {size} bytes");
        assert_eq!(quick_size(&a, kept), Some(size));
        a.set_reason(Reason::Counts, true);
        assert_eq!(quick_size(&a, kept), None, "free blocks have no tags while all calls are watched");
        a.set_reason(Reason::Counts, false);
        free(&a, &t, kept);
    }
    let (large, mut mine) = (malloc(&a, &t, 100_000), [0u64; 32]);
    assert_eq!(quick_size(&a, large), None, "a large block");
    assert_eq!(quick_size(&a, mine.as_mut_ptr().cast()), None, "no block of neap's");
    assert_eq!(quick_size(&a, core::ptr::null_mut()), None, "null");
}

/// Catches a block that moves although its new size fits, one that stays where it wastes more than half of itself, and
/// one that loses bytes.
#[test]
fn blocks_stay_where_they_fit() {
    let a = system(Config::default());
    let t = thread(&a);
    // SAFETY: the heap is lent by its thread; the block is this test's, and has `old` bytes.
    let realloc = |p, old, size| t.with(&a, |heap| unsafe { a.realloc(heap, p, old, size) });
    for size in SIZE[1..CLASSES].iter().map(|&size| size as usize) {
        let p = malloc(&a, &t, size);
        // SAFETY: the block is that long.
        unsafe { p.write_bytes(0x5A, size) };
        for fits in [size, size - 1, size / 2] {
            assert_eq!(realloc(p, size, fits), p, "{size} bytes to {fits}");
        }
        let short = size / 2 - 1;
        let q = realloc(p, size, short);
        assert_eq!(q == p, size == SIZE[1] as usize, "{size} bytes to {short}");
        // SAFETY: the block is that long.
        assert!(unsafe { core::slice::from_raw_parts(q, short) }.iter().all(|&byte| byte == 0x5A));
        free(&a, &t, q);
    }
    let p = malloc(&a, &t, 100_000);
    assert_eq!(realloc(p, 102_400, 98_305), p, "the same OS pages");
    let behind = malloc(&a, &t, 2 << 20);
    assert_eq!(realloc(p, 102_400, 110_000), p, "the same chunks");
    // What cannot stay moves its pages, if it is long.
    let moved = || a.os.faults.count(Call::MovePages);
    let q = realloc(p, 110_592, 300_000);
    assert_eq!((q == p, moved()), (false, 0));
    let end = malloc(&a, &t, 100_000);
    let r = realloc(behind, 2 << 20, 20 << 20);
    assert_eq!((r == behind, moved()), (false, 1));
    [q, r, end].into_iter().for_each(|p| free(&a, &t, p));
}

/// Catches blocks or bytes of any kind that the count of live blocks leaves out or counts twice.
#[test]
fn what_is_not_free() {
    let a = system(Config::default());
    assert!(a.is_unused());
    let t = thread(&a);
    assert!(!a.is_unused());
    let (mut blocks, mut bytes) = (0, 0);
    for size in [16, 48, 700, 5000, 32 << 10, 100_000, 3 << 20] {
        for _ in 0..20 {
            let p = malloc(&a, &t, size);
            blocks += 1;
            // SAFETY: the block is live.
            bytes += unsafe { a.usable_size(Mine::none(), misuse::Call::UsableSize, p) }.expect("a live block");
        }
        // Blocks in caches count as well.
        let cached = a.figures();
        let found = a.live();
        assert_eq!(
            (found.0 as u64, found.1 as u64),
            (blocks + cached.cached_blocks, bytes as u64 + cached.cached),
            "{size}"
        );
    }
    for size in [16, 5000, 100_000] {
        let (before, f) = (a.live(), a.figures());
        let p = a.malloc_reentrant(size, 16, false);
        // SAFETY: the block is live.
        let usable = unsafe { a.usable_size_reentrant(misuse::Call::UsableSize, p) }.expect("a live block");
        assert_eq!(a.live(), (before.0 + 1, before.1 + usable), "a block of {size} bytes of a handler");
        let g = a.figures();
        assert_eq!((g.live_blocks, g.live), (f.live_blocks + 1, f.live + usable as u64));
        // SAFETY: the block is this test's.
        unsafe { a.free_reentrant(p) }.expect("a block");
        assert_eq!(a.live(), before);
    }
}

/// The huge pages within `p..p + len`.
fn within(p: *mut u8, len: usize) -> (usize, usize) {
    let from = p.addr().next_multiple_of(HUGE);
    (from, ((p.addr() + len) & !(HUGE - 1)) - from)
}

/// An allocator that gives memory back at once.
fn eager(page_size: usize) -> Box<Shared> {
    let a = system(Config { page_size, ..Config::default() });
    a.policy.set_purge(Purge::Eager);
    a
}

/// Allocates `len` bytes, writes to one OS page in `step`, and frees them; returns where they were.
fn touch_each(a: &Shared, t: &Owner, len: usize, step: usize) -> *mut u8 {
    let p = malloc(a, t, len);
    for at in (0..len).step_by(4096 * step) {
        // SAFETY: the block is that long.
        unsafe { p.add(at).write(1) };
    }
    free(a, t, p);
    p
}

/// Catches huge pages that are allowed where half of a block was touched, beside the touched part, or twice; and those
/// that are not allowed where all of it was touched.
#[test]
fn dense_blocks_may_have_huge_pages() {
    let a = eager(4096);
    let t = thread(&a);
    let len = 5 * HUGE + 3 * CHUNK;
    touch_each(&a, &t, len, 2);
    assert_eq!(a.os.huge(), [], "half of it was touched");
    let p = touch_each(&a, &t, len, 1);
    assert_eq!(a.os.huge(), [within(p, len)]);
    let before = a.os.faults.count(Call::Touched);
    assert_eq!(touch_each(&a, &t, len, 1), p, "the same place again, as nothing else is free");
    assert_eq!(a.os.faults.count(Call::Touched), before, "nothing is to be found out");
    assert_eq!(a.os.huge().len(), 1, "it is allowed already");
    // Longer: part of it may already have huge pages.
    let longer = 2 * len;
    let p = touch_each(&a, &t, longer, 1);
    assert_eq!(a.os.huge()[1..], [within(p, longer)]);
    valid(&a);
}

/// Catches a range that counts as allowed to have huge pages because one behind it is.
#[test]
fn huge_pages_are_allowed_each() {
    let a = eager(4096);
    let t = thread(&a);
    let len = 5 * HUGE;
    let [p, q] = [(); 2].map(|()| malloc(&a, &t, len));
    assert!(p < q);
    for (n, block) in [q, p].into_iter().enumerate() {
        // SAFETY: the block is that long.
        unsafe { block.write_bytes(1, len) };
        free(&a, &t, block);
        assert_eq!(a.os.huge()[n..], [within(block, len)]);
    }
}

/// Catches a limit of density that is not the documented one: of sixteen OS pages all but one.
#[test]
fn what_is_dense() {
    for (left_out, is_dense) in [(80, true), (81, false)] {
        let a = eager(4096);
        let t = thread(&a);
        let p = malloc(&a, &t, 5 << 20);
        for at in (left_out * 4096..5 << 20).step_by(4096) {
            // SAFETY: the block is that long.
            unsafe { p.add(at).write(1) };
        }
        free(&a, &t, p);
        assert_eq!(a.os.huge().len(), usize::from(is_dense), "{left_out} of 1280 OS pages were not touched");
    }
}

/// Catches bits of huge pages that go back with the addresses behind them, and memory of a huge page that stays behind
/// a block that ends inside that page.
#[test]
fn huge_pages_where_addresses_went_back() {
    let a = system(Config { address_limit: Some(1 << 40), ..Config::default() });
    a.policy.set_purge(Purge::Eager);
    let t = thread(&a);
    let calls = || a.os.faults.count(Call::Purge);
    // The block is free and clean: only its tables can go.
    let p = malloc(&a, &t, 40 << 20);
    free(&a, &t, p);
    let before = calls();
    a.purge();
    assert_eq!(calls(), before);
    a.os.set_address_limit(512 << 20);
    assert!(a.give_reservations_back());
    let p = touch_each(&a, &t, 5 * HUGE, 1);
    assert_eq!(a.os.huge(), [within(p, 5 * HUGE)]);
    let before = calls();
    a.purge();
    assert_eq!(calls(), before + 1, "the range, as its huge pages may hold more than blocks did");
}

/// Catches huge pages for blocks that contain no whole one, and where OS pages have another size.
#[test]
fn short_blocks_have_no_huge_pages() {
    let a = eager(4096);
    let t = thread(&a);
    for _ in 0..20 {
        touch_each(&a, &t, HUGE - CHUNK, 1);
    }
    let b = eager(16384);
    let u = thread(&b);
    touch_each(&b, &u, 4 * HUGE, 1);
    assert_eq!((a.os.huge(), b.os.huge()), (vec![], vec![]));
}

/// Catches a handler's block without the requested alignment, one that is returned although none can fit, and one that
/// cannot shrink because there is no memory.
#[test]
fn blocks_of_handlers_where_there_is_little() {
    // A short arena, whose reentrant reserve is shorter than some alignments.
    let a = system(Config { address_limit: Some(128 << 20), ..Config::default() });
    let _t = thread(&a);
    for shift in 4..24 {
        let p = a.malloc_reentrant(100, 1 << shift, true);
        assert!(p.addr().is_multiple_of(1 << shift), "{p:p}, aligned to {} bytes", 1 << shift);
    }
    for (size, align) in [(100, 1 << 63), (usize::MAX, 16), (usize::MAX / 2, 16), (isize::MAX as usize - 100, 16)] {
        assert!(a.malloc_reentrant(size, align, false).is_null(), "{size} bytes aligned to {align}");
    }
    let (small, large) = (a.malloc_reentrant(1000, 16, false), a.malloc_reentrant(200_000, 16, false));
    assert!(!small.is_null() && !large.is_null());
    a.os.faults.fail_by_chance(1.0);
    // The memory that is usable already is used up first.
    while !a.malloc_reentrant(32_000, 16, false).is_null() {}
    // SAFETY: the blocks are this test's, and are that long.
    unsafe {
        assert_eq!(a.realloc_reentrant(small, 1024, 400), small, "to shrink is never refused");
        assert_eq!(a.realloc_reentrant(large, 200_704, 40_000_000), core::ptr::null_mut());
        assert_eq!(a.realloc_reentrant(small, 1024, 30_000), core::ptr::null_mut());
    }
}

/// Catches a zeroed block of a handler that is cleared although it is clean: all of it would be touched.
#[test]
fn clean_blocks_of_handlers_stay_untouched() {
    let a = system(Config::default());
    let _t = thread(&a);
    assert!(!a.malloc_reentrant(100, 16, true).is_null());
    let before = a.os.usage().present;
    assert!(!a.malloc_reentrant(4 << 20, 16, true).is_null());
    let grown = a.os.usage().present - before;
    assert!(grown < CHUNK, "{grown} bytes were touched");
}

/// Catches a large block that stays large although it shrinks to a small size, and a short one that takes twice the
/// addresses that it needs.
#[test]
fn blocks_that_move_have_just_what_they_need() {
    let a = system(Config { page_size: 65536, ..Config::default() });
    let t = thread(&a);
    // SAFETY: the heap is lent by its thread; the block is this test's.
    let realloc = |a: &Shared, t: &Owner, p, old, size| t.with(a, |heap| unsafe { a.realloc(heap, p, old, size) });
    let p = realloc(&a, &t, malloc(&a, &t, 40_000), 65536, 32768);
    // SAFETY: the block is live.
    assert_eq!(unsafe { a.usable_size(Mine::none(), misuse::Call::UsableSize, p) }, Some(32768));
    let a = system(Config::default());
    let t = thread(&a);
    let p = malloc(&a, &t, 100_000);
    malloc(&a, &t, 100_000);
    let q = realloc(&a, &t, p, 102_400, 4 * CHUNK);
    assert_ne!(p, q);
    assert_eq!(malloc(&a, &t, 300_000), q.wrapping_add(4 * CHUNK), "the next chunks are free");
}
