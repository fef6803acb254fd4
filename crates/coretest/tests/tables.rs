//! The side tables of free memory, which go back to the system, and nothing with them that is needed.

use neap_core::CHUNK;
use neap_coretest::calls::{free, malloc, system, thread, valid};
use neap_coretest::{Call, Config};

/// Catches an entry of a neighbour, or of the ends of a range, that goes back with a range's own, wherever they lie in
/// their OS pages.
#[test]
fn neighbours_keep_their_entries() {
    for extra in 0..64 {
        let a = system(Config::default());
        let t = thread(&a);
        let before = malloc(&a, &t, 2 * CHUNK);
        let range = malloc(&a, &t, (700 + extra) * CHUNK);
        let behind = malloc(&a, &t, 2 * CHUNK);
        assert_eq!(behind, range.wrapping_add((700 + extra) * CHUNK));
        free(&a, &t, range);
        a.purge();
        valid(&a);
        for p in [before, behind] {
            free(&a, &t, p);
        }
        valid(&a);
    }
}

/// Catches tables of long free ranges that stay, and a system that is asked to take those of short ones.
#[test]
fn tables_of_long_ranges_go() {
    let a = system(Config::default());
    let t = thread(&a);
    let tables = || a.resident().expect("the fake can tell").tables;
    let calls = || a.os.faults.count(Call::PurgeRuns);
    // Slabs, so that there are records and bits.
    let blocks: Vec<_> = (0..(64 << 20) / 1024).map(|_| malloc(&a, &t, 1024)).collect();
    let behind = malloc(&a, &t, 100_000);
    let full = tables();
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    a.purge();
    let (empty, before) = (tables(), calls());
    // A thousand chunks, each with a record and few bits.
    assert!(empty + 40_000 < full, "{empty} of {full} bytes of tables stay");
    a.purge();
    assert_eq!(calls(), before + 1, "one range is long");
    // SAFETY: the heap is lent by its thread.
    let p = t.with(&a, |heap| unsafe { a.malloc_aligned(heap, 990 * CHUNK, CHUNK, false) });
    a.purge();
    assert_eq!(calls(), before + 1, "what is left of it is short");
    free(&a, &t, p);
    free(&a, &t, behind);
    valid(&a);
}

/// Catches a program that pays system calls for each megabyte by which it grows, and one that has far more made usable than
/// it needs.
#[test]
fn growth_takes_few_calls() {
    let a = system(Config::default());
    let t = thread(&a);
    let first = a.os.faults.count(Call::Commit);
    assert!(first <= 7, "{first} calls for the first step");
    for _ in 0..1000 {
        malloc(&a, &t, CHUNK);
    }
    let calls = a.os.faults.count(Call::Commit);
    assert!(calls <= 7 * 12, "{calls} calls for 64 MiB");
    let end = malloc(&a, &t, CHUNK);
    // SAFETY: the heap is lent by its thread.
    let far = t.with(&a, |heap| unsafe { a.malloc(heap, 1 << 30) });
    assert!(far.addr().abs_diff(end.addr()) < 128 << 20);
}
