//! Blocks that grow again and again: when they are copied, moved, or grow in place, and how much memory they hold.

use neap_core::CHUNK;
use neap_core::policy::Purge;
use neap_coretest::calls::{self, Shared, free, malloc, thread, valid};
use neap_coretest::{Call, Config, Owner};

const MIB: usize = 1 << 20;
/// Ticks after which free memory no longer waits.
const TICKS: usize = 6;
/// OS pages of tables and heaps.
const TABLES: usize = 64 * 4096;

fn system() -> Box<Shared> {
    calls::system(Config { purger: true, ..Config::default() })
}

/// Allocates a block and writes to all of it.
fn fresh(a: &Shared, t: &Owner, size: usize) -> *mut u8 {
    let p = malloc(a, t, size);
    // SAFETY: the block has `size` bytes.
    unsafe { p.write_bytes(1, size) };
    p
}

/// Grows a block from `old` to `size` bytes and writes what is new.
fn grow(a: &Shared, t: &Owner, p: *mut u8, old: usize, size: usize) -> *mut u8 {
    // SAFETY: the heap is lent by its thread; the block is this test's, and has `old` bytes.
    let p = t.with(a, |heap| unsafe { a.realloc(heap, p, old, size) });
    assert!(!p.is_null());
    // SAFETY: the block has `size` bytes.
    unsafe { p.add(old).write_bytes(1, size - old) };
    p
}

/// Grows `count` blocks in turn from a chunk to `most` bytes, by `add` of their size, and frees them. Returns the peak
/// of held memory.
fn round(a: &Shared, t: &Owner, count: usize, most: usize, add: fn(usize) -> usize) -> usize {
    let (mut size, mut held) = (CHUNK, 0);
    let mut blocks: Vec<_> = (0..count).map(|_| fresh(a, t, size)).collect();
    while size + add(size) <= most {
        let new = size + add(size).next_multiple_of(CHUNK);
        for p in &mut blocks {
            *p = grow(a, t, *p, size, new);
        }
        held = held.max(a.os.usage().present);
        size = new;
    }
    blocks.into_iter().for_each(|p| free(a, t, p));
    valid(a);
    held
}

fn moved(a: &Shared) -> u64 {
    a.os.faults.count(Call::MovePages)
}

/// Catches memory that goes back to the system whenever a grown block is freed, so that the next one pays page faults
/// for all of it; and memory that grows from round to round.
#[test]
fn memory_of_blocks_that_grow_is_used_again() {
    let factors: [fn(usize) -> usize; 3] = [|size| size, |size| size / 2, |size| size / 8];
    for (count, most) in [(1, 2 * MIB), (2, 2 * MIB), (4, 2 * MIB), (2, 8 * MIB), (16, MIB / 2)] {
        for (i, add) in factors.into_iter().enumerate() {
            let (a, what) = (system(), format!("{count} blocks up to {most}, factor {i}"));
            let t = thread(&a);
            (0..6).for_each(|_| _ = round(&a, &t, count, most, add));
            let (moved_before, before) = (moved(&a), a.figures().totals.purged);
            let held = (0..8).map(|_| round(&a, &t, count, most, add)).max().expect("rounds");
            assert_eq!((moved(&a), a.figures().totals.purged), (moved_before, before), "{what}");
            // The old and the new blocks of all that grow, and some that are too short.
            assert!(held <= 9 * count * most / 4 + TABLES, "{what}: {held} bytes held");
        }
    }
}

/// Catches blocks that are copied although no memory waits and none was returned lately, which costs more page faults
/// and more memory; and long blocks that are copied.
#[test]
fn blocks_are_moved_where_nothing_waits() {
    for (wait, policy, most, again) in [
        (0, Purge::Decay, 2 * MIB, false),
        (TICKS, Purge::Decay, 2 * MIB, true),
        (0, Purge::Eager, 2 * MIB, true),
        (0, Purge::Decay, 32 * MIB, true),
    ] {
        let a = system();
        a.policy.set_purge(policy);
        let t = thread(&a);
        let start = most / 2;
        let mut moves = Vec::new();
        for _ in 0..2 {
            let before = moved(&a);
            let (p, behind) = (fresh(&a, &t, start), malloc(&a, &t, CHUNK));
            let p = grow(&a, &t, p, start, most);
            free(&a, &t, p);
            moves.push(moved(&a) - before);
            (0..wait).for_each(|_| {
                a.os.advance(100);
                a.tick();
            });
            // It keeps the next block from growing in place.
            assert!(!behind.is_null());
        }
        assert_eq!(moves, [1, u64::from(again)], "{policy:?}, {wait} ticks, {most} bytes");
        valid(&a);
    }
}

/// Catches a changed block that is copied: parts of it may be unreadable.
#[test]
fn changed_blocks_are_moved() {
    let a = system();
    let t = thread(&a);
    let waiting = malloc(&a, &t, 8 * MIB);
    let (p, behind) = (malloc(&a, &t, MIB), malloc(&a, &t, CHUNK));
    free(&a, &t, waiting);
    a.note_changed(p);
    let p = grow(&a, &t, p, MIB, 2 * MIB);
    assert_eq!(moved(&a), 1);
    free(&a, &t, p);
    free(&a, &t, behind);
    valid(&a);
}
