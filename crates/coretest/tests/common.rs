//! The common heap: in a process of many threads the first blocks of each lie in slabs that all share.

use neap_core::common::CROWD;
use neap_core::fork::Begin;
use neap_core::heap::Mine;
use neap_core::{CHUNK, Os, class};
use neap_coretest::calls::{Shared, free, free_reentrant, malloc, rest, settle, system, thread, valid};
use neap_coretest::{Config, Owner, pattern};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sizes of different classes.
const SIZES: [usize; 10] = [16, 64, 100, 250, 500, 900, 1300, 1900, 2800, 3800];

/// Threads that do nothing, one fewer than make a crowd.
fn bystanders(a: &Shared) -> Vec<Owner> {
    (0..CROWD).map(|_| thread(a)).collect()
}

/// The address of the chunk of a block.
fn chunk(p: *mut u8) -> usize {
    p.addr() & !(CHUNK - 1)
}

/// Catches threads of a crowd that take a slab each for their first blocks, blocks that two of them get, and threads
/// that share slabs although they are few.
#[test]
fn threads_of_a_crowd_share_slabs() {
    for (threads, shared) in [(CROWD, false), (5 * CROWD, true)] {
        let a = system(Config::default());
        let mut blocks = Vec::new();
        let heaps: Vec<_> = (0..threads).map(|_| thread(&a)).collect();
        for (id, (t, size)) in heaps.iter().flat_map(|t| SIZES.map(|size| (t, size))).enumerate() {
            let p = malloc(&a, t, size);
            // SAFETY: the block has `size` bytes.
            unsafe { pattern::write(p, size, id as u64) };
            blocks.push((p, size, id as u64));
        }
        for &(p, size, id) in &blocks {
            // SAFETY: the block is live.
            assert_eq!(unsafe { pattern::first_wrong(p, size, size, id) }, None, "{size} bytes at {p:p}");
        }
        // A slab holds the blocks of many threads, or of one.
        let bytes: usize = SIZES.iter().map(|size| size.max(&256)).sum();
        let most = if shared { threads * bytes * 5 / 4 / CHUNK + SIZES.len() } else { usize::MAX };
        let least = if shared { 0 } else { threads * SIZES.len() };
        let slabs = valid(&a).slabs;
        assert!((least..=most).contains(&slabs), "{slabs} slabs, not {least} to {most}");
    }
}

/// Catches a thread that takes more than its first blocks from the common heap, or fewer, so that it shares their OS
/// pages with no other thread; and blocks that would gain nothing there.
#[test]
fn a_thread_that_needs_more_takes_a_slab() {
    for (size, share) in [(16, 48), (64, 20), (256, 5), (1000, 2), (3800, 2), (4096, 0), (30_000, 0)] {
        let a = system(Config::default());
        let _crowd = bystanders(&a);
        let (first, t) = (thread(&a), thread(&a));
        let common = chunk(malloc(&a, &first, size));
        let blocks: Vec<_> = (0..300).map(|_| malloc(&a, &t, size)).collect();
        let taken = blocks.iter().filter(|&&p| chunk(p) == common).count();
        assert_eq!(taken, share, "blocks of {size} bytes");
        // Also later: the thread has a slab.
        blocks.into_iter().for_each(|p| free(&a, &t, p));
        valid(&a);
    }
}

/// Catches blocks of the common heap that are lost when they come back: from caches, at the end of a thread, from
/// another thread and from a handler, and OS pages of its slabs that stay.
#[test]
fn shared_memory_goes_back() {
    let a = system(Config { purger: true, ..Config::default() });
    let crowd = bystanders(&a);
    let last = thread(&a);
    let blocks: Vec<_> = crowd.iter().chain([&last]).flat_map(|t| SIZES.map(|size| malloc(&a, t, size))).collect();
    let shared = malloc(&a, &last, 2800);
    assert!(valid(&a).slabs > 0);
    for (i, &p) in blocks.iter().enumerate() {
        match i % 3 {
            0 => free(&a, &last, p),
            1 => free(&a, &crowd[i / SIZES.len() % CROWD], p),
            _ => free_reentrant(&a, p),
        }
    }
    crowd.into_iter().for_each(|t| t.abandon(&a));
    rest(&a, &last);
    valid(&a);
    // OS pages on which no block is used, beside one that is.
    settle(&a);
    let (page, own) = (a.os.page_size(), chunk(shared));
    let held = (0..CHUNK / page).filter(|k| a.os.first_held(own + k * page, own + (k + 1) * page).is_some());
    assert!(held.count() <= 2, "OS pages of a slab with a block of 2800 bytes");
    free(&a, &last, shared);
    last.abandon(&a);
    let census = valid(&a);
    assert_eq!((census.slabs, census.small, census.cached, census.remote), (0, 0, 0, 0));
}

/// Catches free blocks of the common heap that no thread gets once the crowd has ended.
#[test]
fn few_threads_use_what_a_crowd_left() {
    let a = system(Config::default());
    let last = thread(&a);
    // A slab has 23 blocks of 2800 bytes. One of each ten stays, so that all slabs do.
    let gone: Vec<_> = (0..3 * CROWD).map(|_| thread(&a)).collect();
    let blocks: Vec<_> = gone.iter().map(|t| malloc(&a, t, 2800)).collect();
    let before = valid(&a).slabs;
    blocks.iter().enumerate().filter(|(i, _)| i % 10 != 0).for_each(|(_, &p)| free(&a, &last, p));
    gone.into_iter().for_each(|t| t.abandon(&a));
    rest(&a, &last);
    let free_blocks = 3 * CROWD - (3 * CROWD).div_ceil(10);
    let again: BTreeSet<_> = (0..free_blocks).map(|_| malloc(&a, &last, 2800)).collect();
    assert_eq!(again.len(), free_blocks);
    assert_eq!(valid(&a).slabs, before, "new slabs beside the free blocks");
}

/// Catches a free in a handler, of a block of the common heap, that no later call collects.
#[test]
fn frees_of_handlers_are_collected() {
    let a = system(Config::default());
    let (_crowd, t) = (bystanders(&a), thread(&a));
    let [p, _kept] = [(); 2].map(|()| malloc(&a, &t, 2800));
    free_reentrant(&a, p);
    // A slow path.
    free(&a, &t, malloc(&a, &t, 1 << 20));
    assert_eq!(valid(&a).remote, 0);
}

/// Catches calloc that takes used memory of the common heap for clean, and one that takes a slab for a block that need
/// not be in a cache.
#[test]
fn shared_blocks_are_zeroed() {
    let a = system(Config::default());
    let (_crowd, t, other) = (bystanders(&a), thread(&a), thread(&a));
    let calloc = |t: &Owner, size| t.with(&a, |heap| a.calloc(heap, size));
    let [kept, p] = [(); 2].map(|()| calloc(&t, 2800));
    assert_eq!(chunk(kept), chunk(p));
    // SAFETY: the block has 2800 bytes.
    unsafe { p.write_bytes(0xFF, 2800) };
    free(&a, &t, p);
    rest(&a, &t);
    let again = calloc(&other, 2800);
    assert_eq!(again, p, "the block is used again");
    // SAFETY: the block has 2800 bytes, and no other thread uses it.
    assert_eq!(unsafe { a.os.first_nonzero(again, 2800) }, None);
    valid(&a);
}

/// Catches calls with borrowed heaps that leave a slab for each of these behind.
#[test]
fn borrowed_heaps_share_slabs() {
    let a = system(Config::default());
    let _crowd = bystanders(&a);
    let borrowed: Vec<_> = (0..20).filter_map(|_| a.acquire(false)).collect();
    let chunks: BTreeSet<_> = borrowed.iter().map(|&heap| chunk(a.malloc(heap, 100))).collect();
    assert_eq!((borrowed.len(), chunks.len()), (20, 1));
    borrowed.into_iter().for_each(|heap| a.abandon(heap));
    valid(&a);
}

/// Catches a hardened process whose blocks are not in random order because its threads are many.
#[test]
fn hardened_threads_share_no_slab() {
    let a = system(Config::default());
    a.harden();
    let heaps: Vec<_> = (0..=CROWD).map(|_| thread(&a)).collect();
    let borrowed = a.acquire(false).expect("memory for a heap");
    let blocks = heaps.iter().map(|t| malloc(&a, t, 100)).chain([a.malloc(borrowed, 100)]);
    assert_eq!(blocks.map(chunk).collect::<BTreeSet<_>>().len(), CROWD + 2);
}

/// Catches a block of the common heap that was written after its OS page went back, and is handed out all the same.
#[test]
fn writes_to_purged_shared_blocks_are_seen() {
    let a = system(Config { purger: true, ..Config::default() });
    let (_crowd, t, next) = (bystanders(&a), thread(&a), thread(&a));
    let other = thread(&a);
    let kept = malloc(&a, &t, 1000);
    let gone: Vec<_> = (0..30).map(|_| thread(&a)).map(|t| (malloc(&a, &t, 1000), t)).collect();
    let blocks: Vec<_> = gone.iter().map(|&(p, _)| p).collect();
    gone.into_iter().for_each(|(p, t)| {
        free(&a, &t, p);
        t.abandon(&a);
    });
    settle(&a);
    let own = |p: &&*mut u8| chunk(**p) == chunk(kept) && a.os.first_held(p.addr() & !4095, p.addr() + 1000).is_none();
    let written: Vec<_> = blocks.iter().filter(own).copied().collect();
    assert!(!written.is_empty(), "an OS page went back");
    // SAFETY: the memory is there; that the blocks are free is what the test is about.
    written.iter().for_each(|p| unsafe { p.cast::<u64>().write(7) });
    let take = || {
        for t in [&next, &other] {
            (0..3).for_each(|_| assert!(!malloc(&a, t, 1000).is_null()));
        }
    };
    let end = catch_unwind(AssertUnwindSafe(take)).expect_err("the write was not seen");
    let line = *end.downcast::<String>().expect("a line");
    let class = class::SIZE[class::of(1000)];
    assert!(
        line.starts_with("neap: corrupted free block") && line.contains(&format!("({class}-byte block)")),
        "{line}"
    );
}

/// Catches the child of a fork that cannot use the common heap, or that loses what comes back to it.
#[test]
fn the_child_of_a_fork_uses_the_common_heap() {
    let a = system(Config::default());
    let (crowd, t) = (bystanders(&a), thread(&a));
    let [p, kept] = [(); 2].map(|()| malloc(&a, &t, 2800));
    assert_eq!(t.fork_begin(&a), Begin::Ready);
    t.fork_child(&a);
    assert!(!a.is_stranded());
    free(&a, &t, p);
    rest(&a, &t);
    valid(&a);
    free(&a, &t, kept);
    rest(&a, &t);
    assert_eq!(valid(&a).slabs, 0);
    drop(crowd);
}

/// Catches a stranded child that takes blocks of the common heap, which another thread may have left half changed.
#[test]
fn a_stranded_child_takes_no_shared_block() {
    let a = system(Config::default());
    let (_crowd, t) = (bystanders(&a), thread(&a));
    let common = chunk(malloc(&a, &t, 2800));
    let p = t.with(&a, |heap: Mine<'_>| {
        t.fork_child_reentrant(&a);
        assert!(a.is_stranded());
        // The interrupted call goes on.
        a.malloc(heap, 2800)
    });
    assert!(!p.is_null() && chunk(p) != common, "{p:p}");
}
