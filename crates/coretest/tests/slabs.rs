//! Slabs: how much of one is touched, where its blocks lie, and when it may be released.

use neap_core::blocks::slab_record::{OwnSlab, remote_word};
use neap_core::chunk::Record;
use neap_core::misuse::Call;
use neap_core::slab::Taken;
use neap_core::sync::AtomicU64;
use neap_core::{CHUNK, class};
use neap_coretest::Config;
use neap_coretest::calls::{free, hardened, malloc, system, thread, valid};
use neap_coretest::slot;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Catches a slab that is released while another thread is in the middle of a free of its last block.
#[test]
fn a_slab_stays_while_a_free_is_under_way() {
    let a = system(Config::default());
    let heap = a.acquire(false).expect("memory for a heap");
    let class = class::of(5000);
    // SAFETY: the heap is this test's, and so is the slab of its only block.
    unsafe {
        let p = a.malloc(heap, 5000);
        let (slab, i) = (OwnSlab::of(Record::at(p)), class::index(p, class) as usize);
        // The first half of a free by another thread: it sets the bit, but does not count yet.
        remote_word(slab.chunk(), class, i / 64).fetch_or(1 << (i % 64), Ordering::Relaxed);
        assert_eq!(slab.collect(), Ok(()));
        assert_eq!(slab.used(), 0);
        assert!(!slab.is_released(), "the other thread has not counted its free yet");
        // The other half.
        assert_eq!(slab.chunk().remote().free(&AtomicU64::new(0), 1), Ok(true));
        assert_eq!(slab.collect(), Ok(()));
        assert!(slab.is_released());
    }
}

/// Catches memory of a slab that is touched before its blocks are handed out.
#[test]
fn blocks_are_made_by_the_page() {
    for size in [48, 512, 1024] {
        let a = system(Config::default());
        let t = thread(&a);
        let first = malloc(&a, &t, size);
        let end = (first.addr() & !(CHUNK - 1)) + CHUNK;
        let mut top = first.addr() + size;
        for _ in 0..CHUNK / size / 2 {
            let behind = top.next_multiple_of(4096);
            assert_eq!(a.os.first_held(behind, end), None, "behind blocks of {size} bytes that end at {top:#x}");
            top = top.max(malloc(&a, &t, size).addr() + size);
        }
    }
}

/// Catches hardened blocks that lie one after the other.
#[test]
fn hardened_blocks_lie_anywhere() {
    let (a, t) = hardened(Config::default());
    // 64 words of 64 blocks.
    let words: BTreeSet<_> = (0..200).map(|_| malloc(&a, &t, 16).addr() % CHUNK / 1024).collect();
    assert!(words.len() > 32, "200 blocks in {} of 64 words", words.len());
}

/// Catches a slab that hands out more blocks than requested, or blocks behind its end.
#[test]
fn slabs_give_what_is_wanted_and_no_more() {
    for size in [16, 5000] {
        let a = system(Config::default());
        let heap = a.acquire(false).expect("memory for a heap");
        let class = class::of(size);
        // SAFETY: the heap is this test's, and so is the slab of its only block.
        unsafe {
            let first = a.malloc(heap, size);
            let slab = OwnSlab::of(Record::at(first));
            let mut out = Taken::new();
            // The OS page has more of the small blocks, and one of the others.
            for want in [2, 5, 8] {
                slab.carve(want, 4096, &mut out);
                assert!(out.count <= want && (size > 16 || out.count == want), "{} blocks for {want}", out.count);
            }
            let carved = out.count;
            let mut one_by_one = 0;
            while let Some((block, ..)) = slab.take_one(4096) {
                let p = block.start();
                assert_eq!(Record::at(p), slab.chunk(), "{p:p} lies behind the slab of {first:p}");
                one_by_one += 1;
            }
            assert_eq!(1 + carved + one_by_one, class::capacity(class));
            slab.carve(100, 4096, &mut out);
            assert_eq!(out.count, carved, "nothing is left");
            let mut recycled = Taken::new();
            let mut given = slab.give();
            (0..12).for_each(|i| assert_eq!(given.add(i), Ok(())));
            assert!(given.add(3).is_err(), "it was given back before");
            assert_eq!(given.finish(), 12);
            for want in [3, 5, 12] {
                assert_eq!(slab.take_recycled(want, 4096, &mut recycled), Ok(0));
                assert_eq!(recycled.count, want);
            }
        }
    }
}

/// Catches a process that ends because a thread that still has caches, as it has not followed yet, freed a block of a
/// hardened slab: the cache's tag and link came back to the slab.
#[test]
fn hardened_blocks_may_pass_through_a_cache() {
    let a = system(Config::default());
    let late = thread(&a);
    a.harden();
    let own = thread(&a);
    let blocks: Vec<_> = (0..100).map(|_| malloc(&a, &own, 100)).collect();
    for &p in &blocks {
        // SAFETY: the block is this test's.
        late.with(&a, |heap| unsafe { slot::free(&a, heap, p) }).expect("a block");
    }
    late.with(&a, |heap| a.follow(heap));
    // All blocks of a slab, and so those too.
    (0..CHUNK / 100).for_each(|_| _ = malloc(&a, &own, 100));
    valid(&a);
}

/// Catches a guard inside a block: a thread that still had caches kept the large block in front of it.
#[test]
fn hardened_blocks_are_not_cached() {
    let a = system(Config::default());
    let late = thread(&a);
    a.harden();
    let own = thread(&a);
    let p = malloc(&a, &own, 3 * CHUNK - 40_000);
    late.with(&a, |heap| {
        // SAFETY: the blocks are this test's.
        unsafe {
            let old = a.usable_size(heap, Call::Realloc, p).expect("a block");
            let shorter = a.realloc(heap, p, old, old - CHUNK);
            assert!(!shorter.is_null());
            let again = a.malloc(heap, 3 * CHUNK);
            again.write_bytes(1, 3 * CHUNK);
            assert!(a.free(heap, shorter).is_ok() && a.free(heap, again).is_ok());
        }
    });
    valid(&a);
}

/// Catches OS pages of a hardened slab that go back to the system although they never held memory.
#[test]
fn hardened_slabs_know_what_was_never_used() {
    let (a, t) = hardened(Config::default());
    let [_, p] = [(); 2].map(|()| malloc(&a, &t, 100));
    free(&a, &t, p);
    let bytes = a.purge();
    assert!(bytes <= 2 * 4096, "{bytes} bytes for one block");
}
