//! The side tables of free memory, which go back to the system, but only where no other memory needs them.

use neap_core::CHUNK;
use neap_core::policy::Purge;
use neap_coretest::calls::{Shared, free, malloc, system, thread, valid};
use neap_coretest::{Call, Config, Owner};

const MIB: usize = 1 << 20;

/// Catches a table entry of a neighbour, or of the ends of a range, that goes back with a range's own, wherever they
/// lie in their OS pages.
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

/// Catches tables of long free ranges that stay, and system calls for those of short ones.
#[test]
fn tables_of_long_ranges_go() {
    let a = system(Config::default());
    let t = thread(&a);
    let tables = || a.resident().expect("the fake can tell").tables;
    let calls = || a.os.faults.count(Call::PurgeRuns);
    // Slabs have records and bits.
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
    let p = t.with(&a, |heap| a.malloc_aligned(heap, 990 * CHUNK, CHUNK, false));
    a.purge();
    assert_eq!(calls(), before + 1, "what is left of it is short");
    free(&a, &t, p);
    free(&a, &t, behind);
    valid(&a);
}

/// Catches a program that makes system calls for each MiB by which it grows, and one that commits far more than it
/// needs.
#[test]
fn growth_takes_few_calls() {
    let a = system(Config::default());
    let t = thread(&a);
    let first = a.os.faults.count(Call::Commit);
    assert!(first <= 3, "{first} calls for the first step");
    for _ in 0..1000 {
        malloc(&a, &t, CHUNK);
    }
    let calls = a.os.faults.count(Call::Commit);
    assert!(calls <= 4 * 12, "{calls} calls for 64 MiB");
    let end = malloc(&a, &t, CHUNK);
    let far = t.with(&a, |heap| a.malloc(heap, 1 << 30));
    assert!(far.addr().abs_diff(end.addr()) < 128 << 20);
}

/// Catches tables that stay, or go too often, where memory goes back at once and there may be no helper.
#[test]
fn tables_go_when_much_was_freed_at_once() {
    for (purger, size, gone) in [(false, 1 << 30, 1), (false, 500 << 20, 0), (true, 1 << 30, 0)] {
        let a = system(Config { purger, ..Config::default() });
        let t = thread(&a);
        // Starts the helper, if there can be one.
        let p = malloc(&a, &t, 4 << 20);
        free(&a, &t, p);
        a.purge();
        a.policy.set_purge(Purge::Eager);
        let p = malloc(&a, &t, size);
        let before = a.os.faults.count(Call::PurgeRuns);
        free(&a, &t, p);
        let calls = a.os.faults.count(Call::PurgeRuns) - before;
        assert_eq!(calls, gone, "{size} bytes, with a helper: {purger}");
    }
}

/// Catches tables that stay when a program rests that has freed much, and system calls after it has freed little.
#[test]
fn tables_go_when_the_program_rests() {
    for (mib, tables) in [(24, 0), (64, 1)] {
        let a = system(Config { purger: true, ..Config::default() });
        let t = thread(&a);
        let p = malloc(&a, &t, mib << 20);
        malloc(&a, &t, 100_000);
        // A block of which nothing is touched would go at once.
        // SAFETY: the block is that long.
        unsafe { p.add((mib << 20) - 1).write(1) };
        free(&a, &t, p);
        while let Some(wait) = a.tick() {
            a.os.advance(wait.into());
        }
        assert_eq!(a.os.faults.count(Call::PurgeRuns), mib as u64 / 4 + tables, "{mib} MiB, 4 MiB at a time");
    }
}

/// Catches a purge of tables that takes more ranges at a time than it has room for.
#[test]
fn sixteen_ranges_at_a_time() {
    let a = system(Config::default());
    a.policy.set_purge(Purge::Eager);
    let t = thread(&a);
    let blocks: Vec<_> = (0..20).map(|_| (malloc(&a, &t, 16 << 20), malloc(&a, &t, 100_000)).0).collect();
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    let before = a.os.faults.count(Call::PurgeRuns);
    a.purge();
    assert_eq!(a.os.faults.count(Call::PurgeRuns), before + 16);
    valid(&a);
}

/// Catches a batch that is longer than 4 MiB, or a purge that leaves some free memory.
#[test]
fn memory_goes_back_in_batches() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let blocks: Vec<_> = (0..2).map(|_| (malloc(&a, &t, 3 << 20), malloc(&a, &t, 100_000)).0).collect();
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    let before = a.os.faults.count(Call::PurgeRuns);
    assert_eq!(a.purge(), 6 << 20);
    assert_eq!(a.os.faults.count(Call::PurgeRuns), before + 2, "4 MiB and 2");
    // Holes in slabs as well.
    let blocks: Vec<_> = (0..4096).map(|_| malloc(&a, &t, 1024)).collect();
    blocks.iter().enumerate().filter(|(i, _)| i % 64 != 0).for_each(|(_, &p)| free(&a, &t, p));
    assert_eq!(a.free_bytes().0, 0);
    let bytes = a.purge();
    assert!(bytes > 3 << 20, "{bytes} bytes of holes");
    valid(&a);
}

/// Allocates `len` bytes, fills and frees them.
fn free_dirty(a: &Shared, t: &Owner, len: usize) {
    let p = malloc(a, t, len);
    // SAFETY: the block is that long.
    unsafe { p.write_bytes(1, len) };
    free(a, t, p);
}

/// Catches a trim that looks at the records of a range which was taken back, and whose records' addresses went back,
/// between two of its batches.
#[test]
fn a_trim_forgets_what_was_taken_back() {
    let a = system(Config { address_limit: Some(1 << 40), ..Config::default() });
    let t = thread(&a);
    malloc(&a, &t, 100);
    // The system refuses a step: committed memory is scarce.
    a.os.faults.fail_nth(Call::Commit, a.os.faults.count(Call::Commit) + 1);
    free_dirty(&a, &t, 24 * MIB);
    let mut calls = 0;
    let done = a.trim(0, || {
        calls += 1;
        if calls == 6 {
            let before = a.os.committed();
            a.purge();
            assert!(a.os.committed() < before, "taken back");
            a.os.set_address_limit(512 * MIB);
            assert!(a.give_reservations_back());
            a.os.set_address_limit(1 << 40);
            free_dirty(&a, &t, 30 * MIB);
        }
        true
    });
    assert!(done.complete && calls > 6);
    valid(&a);
}
