//! Caches of large blocks: which blocks a thread gets back, how long they stay in the cache, and how they are counted.

use neap_core::CHUNK;
use neap_coretest::calls::{Shared, free, malloc, system, thread, valid};
use neap_coretest::{Call, Config, Owner, slot};

/// Allocates a block in the steps of the port.
fn take(a: &Shared, t: &Owner, size: usize) -> *mut u8 {
    let p = t.with(a, |heap| slot::malloc(a, heap, size));
    assert!(!p.is_null(), "no block of {size} bytes");
    p
}

/// Catches a cached block that fits and is not reused, one that wastes more than an eighth, and one that is too short.
#[test]
fn blocks_come_back_that_fit() {
    let cases =
        [(8, 8, true), (9, 8, true), (10, 8, false), (7, 8, false), (16, 16, true), (16, 15, true), (16, 13, false)];
    for (kept, wanted, fits) in cases {
        let a = system(Config::default());
        let t = thread(&a);
        let p = take(&a, &t, kept * CHUNK);
        free(&a, &t, p);
        assert_eq!(a.figures().cached, (kept * CHUNK) as u64);
        let q = take(&a, &t, wanted * CHUNK);
        assert_eq!(q == p, fits, "{wanted} chunks, where {kept} are in the cache");
        assert_eq!(a.figures().cached, if fits { 0 } else { kept * CHUNK } as u64);
        valid(&a);
    }
}

/// Catches a block that stays in the cache of a busy thread for ever, one that leaves it before its time, and one that
/// leaves it because an older one does.
#[test]
fn blocks_leave_when_they_are_old() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let (old, young) = (malloc(&a, &t, 8 * CHUNK), malloc(&a, &t, 4 * CHUNK));
    let p = malloc(&a, &t, 20 << 20);
    free(&a, &t, p);
    free(&a, &t, old);
    let mut seen = Vec::new();
    for tick in 1..10 {
        if tick == 4 {
            free(&a, &t, young);
        }
        // A thread whose caches change is busy: no handshake empties them.
        let kept: Vec<_> = (0..=tick % 3).map(|_| malloc(&a, &t, 100)).collect();
        kept.into_iter().for_each(|p| free(&a, &t, p));
        a.os.advance(100);
        a.tick();
        seen.push(a.figures().cached as usize / (4 * CHUNK));
    }
    assert_eq!(seen, [2, 2, 2, 3, 1, 1, 1, 0, 0], "in units of 4 chunks");
}

/// Number of threads, one after the other, that free blocks of these lengths until a purger is requested.
fn threads_until_asked(chunks: &[usize]) -> usize {
    let a = system(Config { purger: true, ..Config::default() });
    let asked = |_: &usize| {
        let t = thread(&a);
        let blocks: Vec<_> = chunks.iter().map(|n| malloc(&a, &t, n * CHUNK)).collect();
        blocks.into_iter().for_each(|p| free(&a, &t, p));
        a.os.faults.count(Call::StartPurger) > 0
    };
    (1..100).find(asked).expect("16 MiB are much")
}

/// Catches room in a cache that counts twice, or not at all: a purger would start too early or too late.
#[test]
fn room_is_counted_once() {
    assert_eq!(threads_until_asked(&[8]), 16, "a MiB each: as much again as lies there");
    assert_eq!(threads_until_asked(&[4, 4]), 32, "the second has the room that was counted with the first");
    assert_eq!(threads_until_asked(&[4, 8]), 11, "one and a half MiB each");
}

/// Catches room that still counts after a thread has given it up: in the end each block would request a purger.
#[test]
fn room_is_given_back() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    for _ in 0..40 {
        let p = malloc(&a, &t, 8 * CHUNK);
        free(&a, &t, p);
        t.with(&a, |heap| a.rest(heap));
    }
    assert_eq!(a.os.faults.count(Call::StartPurger), 0);
}

/// Catches a cache that holds more or less than 2 MiB, and one that keeps blocks at or above `mmap_threshold`, which
/// must go back at once.
#[test]
fn caches_hold_two_mebibytes() {
    let a = system(Config::default());
    let t = thread(&a);
    let blocks: Vec<_> = (0..5).map(|_| malloc(&a, &t, 8 * CHUNK)).collect();
    for (i, p) in blocks.into_iter().enumerate() {
        free(&a, &t, p);
        assert_eq!(a.figures().cached, ((i + 1).min(4) * 8 * CHUNK) as u64);
    }
    let a = system(Config::default());
    a.policy.set_mmap_threshold(8 * CHUNK);
    let t = thread(&a);
    for (chunks, kept) in [(8, 0), (7, 7)] {
        let p = malloc(&a, &t, chunks * CHUNK);
        free(&a, &t, p);
        assert_eq!(a.figures().cached, (kept * CHUNK) as u64, "{chunks} chunks");
        assert_eq!(a.figures().totals.purged, 8 * CHUNK as u64);
    }
}

/// Catches a thread that fills its cache on its fast path and requests no purger, although none runs and enough waits.
#[test]
fn a_full_cache_requests_a_purger() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let asked = [(); 2].map(|()| take(&a, &t, 8 * CHUNK)).map(|p| {
        // SAFETY: the heap is lent by its thread; the block is this test's.
        t.with(&a, |heap| unsafe { slot::free(&a, heap, p) }).expect("a block");
        a.os.faults.count(Call::StartPurger)
    });
    assert_eq!(asked, [0, 1]);
}
