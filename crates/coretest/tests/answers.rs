//! What the core says of blocks when it is asked, and where it allows huge pages.

use neap_core::class::{CLASSES, SIZE};
use neap_core::policy::Purge;
use neap_core::watch::Reason;
use neap_core::{CHUNK, Heap, misuse};
use neap_coretest::calls::{Shared, free, malloc, system, thread, valid};
use neap_coretest::{Config, Owner};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// The size of the block at `p`, without a look at more than the page map and the block.
fn quick_size(a: &Shared, p: *mut u8) -> Option<usize> {
    // SAFETY: arenas of the test stay readable.
    unsafe { a.quick_size(p) }
}

/// Catches a quick answer that differs from the exact one, or one of what is no live small block: those are left to the
/// exact way, which names a misuse.
#[test]
fn quick_sizes() {
    let a = system(Config::default());
    let t = thread(&a);
    for size in SIZE[1..CLASSES].iter().map(|&size| size as usize) {
        let (p, kept) = (malloc(&a, &t, size), malloc(&a, &t, size));
        // SAFETY: the block is live.
        let exact = unsafe { a.usable_size(Heap::none(), misuse::Call::UsableSize, p) };
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

/// Catches blocks or bytes that the count of what is not free leaves out or counts twice, of each kind.
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
            bytes += unsafe { a.usable_size(Heap::none(), misuse::Call::UsableSize, p) }.expect("a live block");
        }
        // What lies in caches counts as well.
        let cached = a.figures();
        let found = a.live();
        assert_eq!(
            (found.0 as u64, found.1 as u64),
            (blocks + cached.cached_blocks, bytes as u64 + cached.cached),
            "{size}"
        );
    }
    for size in [16, 5000, 100_000] {
        let before = a.live();
        let p = a.malloc_nested(size, 16, false);
        // SAFETY: the block is live.
        let usable = unsafe { a.usable_size_nested(misuse::Call::UsableSize, p) }.expect("a live block");
        assert_eq!(a.live(), (before.0 + 1, before.1 + usable), "a block of {size} bytes of a handler");
        // SAFETY: the block is this test's.
        unsafe { a.free_nested(p) }.expect("a block");
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
        // SAFETY: the block has so many bytes.
        unsafe { p.add(at).write(1) };
    }
    free(a, t, p);
    p
}

/// Catches huge pages that are allowed where less was touched than would pay, beside what was touched, or twice, and
/// such that are not allowed where all of it was.
#[test]
fn dense_blocks_may_have_huge_pages() {
    let a = eager(4096);
    let t = thread(&a);
    let len = 5 * HUGE + 3 * CHUNK;
    touch_each(&a, &t, len, 2);
    assert_eq!(a.os.huge(), [], "half of it was touched");
    let p = touch_each(&a, &t, len, 1);
    assert_eq!(a.os.huge(), [within(p, len)]);
    assert_eq!(touch_each(&a, &t, len, 1), p, "the same place again, as nothing else is free");
    assert_eq!(a.os.huge().len(), 1, "it is allowed already");
    // Longer: some of it may have huge pages already.
    let longer = 2 * len;
    let p = touch_each(&a, &t, longer, 1);
    assert_eq!(a.os.huge()[1..], [within(p, longer)]);
    valid(&a);
}

/// Catches huge pages for blocks with none in them, and where OS pages have another size.
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
