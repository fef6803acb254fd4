//! Huge areas: only where growth is proven, and never more than that allows.

use neap_core::CHUNK;
use neap_core::os::Memory;
use neap_core::pages::layout::HUGE_PAGE;
use neap_core::policy::{HugePages, Purge};
use neap_coretest::calls::{Shared, fill, free, malloc, system, thread, valid};
use neap_coretest::{Call, Config, Owner};

const MIB: usize = 1 << 20;
/// Bytes in use from which on a program that grows on gets areas: 32 of them.
const PROVEN: usize = 64 * MIB;

fn huge() -> Box<Shared> {
    adaptive(Config { huge: true, ..Config::default() })
}

/// An allocator with `huge=adaptive`.
fn adaptive(config: Config) -> Box<Shared> {
    let a = system(Config { purger: true, ..config });
    a.policy.set_huge(HugePages::Adaptive);
    a
}

/// Number of areas that the system was asked to fill.
fn areas(a: &Shared) -> u64 {
    a.os.faults.count(Call::PopulateHuge)
}

/// Bytes in free ranges that may hold memory.
fn dirty(a: &Shared) -> usize {
    a.figures().dirty as usize
}

/// Peak of the bytes in use.
fn peak(a: &Shared) -> usize {
    a.figures().peak as usize
}

/// Frees blocks, and gives all free memory back.
fn drop_all(a: &Shared, t: &Owner, blocks: Vec<*mut u8>) {
    blocks.into_iter().for_each(|p| free(a, t, p));
    t.with(a, |heap| a.purge_with(heap));
    valid(a);
}

/// Catches areas for a program that grows for the first time and is small, missing ones where it grows again, and more
/// memory than it had before.
#[test]
fn growth_again_is_proven() {
    let a = &*huge();
    let t = thread(a);
    let blocks = fill(a, &t, 500, 24 * MIB);
    assert_eq!(areas(a), 0, "the first growth");
    let before = peak(a);
    drop_all(a, &t, blocks);
    let blocks = fill(a, &t, 500, 24 * MIB);
    let filled = areas(a) as usize * HUGE_PAGE;
    assert!((20 * MIB..=26 * MIB).contains(&filled), "{filled} bytes in areas");
    assert!(peak(a) <= before + HUGE_PAGE, "at most an area beyond the peak");
    valid(a);
    drop_all(a, &t, blocks);
    assert!(dirty(a) < MIB, "areas go back like all free memory");
    t.abandon(a);
}

/// Catches areas before growth is proven, missing ones from then on, and memory that is filled but not used for slabs.
#[test]
fn growth_of_a_large_program_is_proven() {
    let a = &*huge();
    let t = thread(a);
    let mut blocks = fill(a, &t, 1000, PROVEN - 2 * MIB);
    assert_eq!(areas(a), 0);
    blocks.extend(fill(a, &t, 1000, 34 * MIB));
    let filled = areas(a) as usize * HUGE_PAGE;
    assert!((28 * MIB..=38 * MIB).contains(&filled), "{filled} bytes in areas");
    assert!(dirty(a) <= HUGE_PAGE, "an area is used before the next is filled");
    drop_all(a, &t, blocks);
    t.abandon(a);
}

/// Catches areas for threads that hold little each: their slabs are sparse, however much the process holds, or held.
#[test]
fn idle_threads_prove_nothing() {
    let a = &*huge();
    for _ in 0..2 {
        let threads: Vec<_> = (0..200).map(|_| thread(a)).collect();
        // 1.6 MiB each, in 25 full slabs of each of two classes, and one block of each of 70 classes.
        let hold = |t: &Owner| {
            let mut blocks = fill(a, t, 500, 25 * CHUNK);
            blocks.extend(fill(a, t, 1000, 25 * CHUNK));
            blocks.extend((0..70).map(|i| malloc(a, t, 400 * (i + 1))));
            blocks
        };
        let blocks: Vec<_> = threads.iter().map(hold).collect();
        assert!(peak(a) > 4 * PROVEN);
        assert_eq!(areas(a), 0);
        for (t, blocks) in threads.into_iter().zip(blocks) {
            drop_all(a, &t, blocks);
            t.abandon(a);
        }
    }
}

/// Catches an area for a heap that fills slabs of other classes only.
#[test]
fn a_class_proves_itself_alone() {
    let a = &*huge();
    let t = thread(a);
    let mut blocks = fill(a, &t, 500, PROVEN - 2 * MIB);
    blocks.extend(fill(a, &t, 1000, 31 * CHUNK));
    assert_eq!(areas(a), 0);
    blocks.extend(fill(a, &t, 1000, 2 * CHUNK));
    assert_eq!(areas(a), 1);
    drop_all(a, &t, blocks);
    t.abandon(a);
}

/// Catches large blocks in areas: what the program leaves untouched would become resident.
#[test]
fn large_blocks_touch_nothing() {
    for size in [5 * CHUNK, 5 * MIB] {
        let a = &*huge();
        let t = thread(a);
        let blocks = fill(a, &t, size, 40 * MIB);
        drop_all(a, &t, blocks);
        let mut blocks: Vec<_> = (0..30 * MIB / size).map(|_| malloc(a, &t, size)).collect();
        blocks.push(t.with(a, |heap| a.calloc(heap, size)));
        assert_eq!(areas(a), 0, "{size}");
        drop_all(a, &t, blocks);
        t.abandon(a);
    }
}

/// Catches areas where they cannot pay, or where memory may be short.
#[test]
fn not_everywhere() {
    let near = Memory { limit: 96 * MIB, used: 88 * MIB, stalled: false };
    let grown = |config: Config, change: fn(&Shared)| {
        let a = adaptive(config);
        change(&a);
        let t = thread(&a);
        let blocks = fill(&a, &t, 500, PROVEN + 10 * MIB);
        valid(&a);
        drop_all(&a, &t, blocks);
        t.abandon(&a);
        areas(&a) > 0
    };
    let config = || Config { huge: true, ..Config::default() };
    assert!(grown(config(), |_| ()));
    assert!(!grown(Config::default(), |_| ()), "the system has none");
    assert!(!grown(config(), |a| a.policy.set_huge(HugePages::Off)));
    assert!(!grown(config(), |a| a.policy.set_purge(Purge::Eager)));
    assert!(!grown(config(), |a| a.harden()));
    assert!(!grown(Config { memory: Some(near), ..config() }, |_| ()));
    assert!(!grown(Config { page_size: 16384, ..config() }, |_| ()), "huge pages have another size");
    assert!(!grown(Config { address_limit: Some(1 << 30), ..config() }, |_| ()), "parts of the arena may go back");
}

/// Catches a system that is asked again and again for what it does not have, and memory that is lost where it refuses.
#[test]
fn refusals_make_pauses() {
    let a = &*adaptive(Config { huge: true, missing: vec![Call::PopulateHuge], ..Config::default() });
    let t = thread(a);
    let blocks = fill(a, &t, 500, PROVEN + 40 * MIB);
    let asked = areas(a);
    assert!((2..=10).contains(&asked), "{asked} requests");
    drop_all(a, &t, blocks);
    assert!(dirty(a) < MIB);
    t.abandon(a);
}
