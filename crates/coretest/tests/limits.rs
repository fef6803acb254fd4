//! A limit on address space that is set while the program runs: unused reservations go back, and all blocks stay
//! unchanged.

use neap_core::valid::Depth;
use neap_core::{Allocator, CHUNK, Heap, Os};
use neap_coretest::history::OP_BYTES;
use neap_coretest::{Call, Config, Fake, Model, Op, Owner, Setup, slot};
use proptest::prelude::*;
use proptest::test_runner::Config as Runs;

/// A history of up to `most` operations.
fn history(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<[u8; OP_BYTES]>().prop_map(Op::decode), 0..most)
}

/// Bytes of the page map, which is given back only where no other thread reads it.
const MAP: usize = 2 << 30;

/// Runs `before`, sets the limit, and runs `after`. `heard`: the port reports the limit; otherwise the allocator finds
/// it when it grows.
fn run(page_size: usize, limit: usize, heard: bool, missing: &[Call], before: &[Op], after: &[Op]) {
    // A limit that leaves room for all reservations, so that the model excuses NULL from the beginning.
    let config = Config { page_size, address_limit: Some(1 << 40), missing: missing.to_vec(), ..Config::default() };
    let mut model = Model::new(&Setup { config, ..Setup::default() });
    before.iter().for_each(|op| model.step(*op));
    let used = model.a.resident().map_or(0, |resident| resident.total() as usize);
    model.a.os.set_address_limit(limit);
    if heard {
        assert!(model.a.give_reservations_back());
        // What may be committed beyond what is used: steps of the arenas and their tables.
        let room = used + (1 << 30);
        let taken = model.a.os.taken();
        assert!(taken < MAP + room || missing.contains(&Call::Unreserve), "{taken:#x} of address space");
        // SAFETY: the model has one thread.
        unsafe { model.a.give_map_back() };
        let taken = model.a.os.taken();
        assert!(taken < room || limit > MAP + room || missing.contains(&Call::Unreserve), "{taken:#x}");
        assert_eq!(model.a.map.is_complete(), limit > 8 * MAP);
    }
    after.iter().for_each(|op| model.step(*op));
    model.finish();
}

proptest! {
    #![proptest_config(Runs { cases: 40, failure_persistence: None, max_shrink_iters: 20_000, ..Runs::default() })]

    /// Catches a used part that goes back, a block that is not found without the page map, and reservations that stay.
    #[test]
    fn heard_of(
        page in 0..3u32,
        limit in prop::sample::select(vec![64 << 20, 512 << 20, 6 << 30, 40 << 30]),
        before in history(200),
        after in history(200),
    ) {
        run(4096usize << (2 * page), limit, true, &[], &before, &after);
    }

    /// Catches growth beyond a limit that another process has set.
    #[test]
    fn found(page in 0..3u32, before in history(200), after in history(200)) {
        run(4096usize << (2 * page), 512 << 20, false, &[], &before, &after);
    }

    /// Catches code that treats addresses as gone although the system did not take them back.
    #[test]
    fn refused(before in history(200), after in history(200)) {
        run(4096, 512 << 20, true, &[Call::Unreserve], &before, &after);
    }
}

/// Takes blocks of `size` bytes on a new system until none are left, and frees them. Returns their number, and how many
/// refused reservations the failing call made.
fn fill(page_size: usize, limit: usize, size: usize) -> (usize, u64) {
    let config = Config { page_size, address_limit: Some(limit), ..Config::default() };
    let a: Box<Allocator<Fake>> = Box::new(Allocator::new(Fake::new(config)));
    let Some(thread) = Owner::new(&a, true, true) else { return (0, 0) };
    let take = || thread.with(&a, |heap| a.malloc(heap, size));
    let blocks: Vec<*mut u8> = std::iter::from_fn(|| Some(take()).filter(|p| !p.is_null())).collect();
    let before = a.os.faults.count(Call::Reserve);
    assert!(take().is_null(), "NULL, then a block");
    let tries = a.os.faults.count(Call::Reserve) - before;
    assert!(a.resident().is_some_and(|resident| resident.tables > 0), "tables of a short arena are whole OS pages");
    for &p in &blocks {
        // SAFETY: the heap is lent by its thread; the blocks are this test's.
        thread.with(&a, |heap| unsafe { a.free(heap, p) }).expect("a block");
    }
    // SAFETY: no other thread uses the allocator.
    unsafe { a.validate(Depth::Bits) }.expect("valid");
    (blocks.len(), tries)
}

/// Catches a program that starts with little address space and gets no block or leaves most of it unused, and failing
/// calls that try one place after the other although none can be had.
#[test]
fn little_address_space_is_used() {
    for page_size in [4096, 65536] {
        for limit in [512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 64 << 20] {
            for size in [16, 64, 1024, 32 << 10] {
                let (blocks, tries) = fill(page_size, limit, size);
                let share = blocks * size * 100 / limit;
                assert!(share >= 25, "{blocks} blocks of {size}: {share} % of {limit}, pages of {page_size}");
                assert!(tries <= 1, "{tries} reservations of a call that fails below {limit}");
            }
        }
    }
}

/// Catches a call that fails although an arena is free, because its parts differ in state or blocks lie in caches.
#[test]
fn free_parts_make_one_block() {
    const LIMIT: usize = 64 << 20;
    // Blocks of `size` bytes fill an arena of an eighth of the limit; each `nth` block is purged.
    for (size, nth) in [(1 << 20, 2), (1 << 20, 3), (100_000, 5), (1000, 7)] {
        let config = Config { address_limit: Some(LIMIT), ..Config::default() };
        let a: Box<Allocator<Fake>> = Box::new(Allocator::new(Fake::new(config)));
        let thread = Owner::new(&a, true, true).expect("memory for a heap");
        let take = |size| thread.with(&a, |heap| a.malloc(heap, size));
        let blocks: Vec<*mut u8> = std::iter::from_fn(|| Some(take(size)).filter(|p| !p.is_null())).collect();
        let purged = |i: &usize| i.is_multiple_of(nth);
        for purges in [true, false] {
            for i in (0..blocks.len()).filter(|i| purged(i) == purges) {
                // SAFETY: the heap is lent by its thread; the blocks are this test's.
                thread.with(&a, |heap| unsafe { a.free(heap, blocks[i]) }).expect("a block");
            }
            if purges {
                a.purge();
            }
        }
        let long = take(LIMIT / 8 * 3 / 4);
        assert!(!long.is_null(), "{:?} bytes are free, after blocks of {size}", a.free_bytes());
        // SAFETY: no other thread uses the allocator.
        unsafe { a.validate(Depth::Bits) }.expect("valid");
    }
}

/// Catches a call that fails although a heap, the caller's or another one, has enough free memory in its caches.
#[test]
fn caches_are_emptied_before_a_call_fails() {
    const MIB: usize = 1 << 20;
    // Blocks of `size` fill an arena; thread `by` frees some; then thread 0 takes blocks of `wanted`, and there are
    // heaps for more threads.
    for (size, freed, by, wanted) in
        [(MIB, 2, 0, 1000), (MIB, 2, 1, 1000), (MIB, 2, 0, 5000), (MIB, 2, 1, 3 * MIB / 2), (1000, 64, 1, 40_000)]
    {
        let config = Config { address_limit: Some(64 * MIB), ..Config::default() };
        let a: Box<Allocator<Fake>> = Box::new(Allocator::new(Fake::new(config)));
        let threads = [0; 2].map(|_| Owner::new(&a, true, true).expect("memory for a heap"));
        let take = |size| threads[0].with(&a, |heap| slot::malloc(&a, heap, size));
        let all = |size| std::iter::from_fn(|| Some(take(size)).filter(|p| !p.is_null())).collect::<Vec<_>>();
        let blocks = all(size);
        // What is left of the arena.
        for size in [CHUNK, 5000, 1000, 16] {
            all(size);
        }
        let more = std::iter::from_fn(|| Owner::new(&a, true, false)).count();
        assert!(more < CHUNK / size_of::<Heap>(), "{more}");
        for &p in &blocks[..freed] {
            // SAFETY: the heap is lent by its thread; the blocks are this test's.
            threads[by].with(&a, |heap| unsafe { slot::free(&a, heap, p) }).expect("a block");
        }
        assert!(size < MIB || Owner::new(&a, true, false).is_some(), "a heap for one more thread");
        let got = all(wanted).len() * wanted;
        assert!(got >= size * freed / 2, "{got} bytes in blocks of {wanted}, {freed} of {size} were freed by {by}");
        // SAFETY: no other thread uses the allocator.
        unsafe { a.validate(Depth::Bits) }.expect("valid");
    }
}

/// Catches a short arena at the place of a long one whose unused front was given back: the long one's blocks would no
/// longer be found.
#[test]
fn places_of_long_arenas_are_not_used_again() {
    if std::env::var_os("NEAP_TEST_SANITIZER").is_some() {
        eprintln!("SKIPPED: the tables of sanitizers lie where arenas would");
        return;
    }
    // All arenas would lie at one place.
    let place = 20 << 40;
    let places = Some(place..place + (64 << 30));
    let config = Config { places, address_limit: Some(1 << 40), ..Config::default() };
    let a: Box<Allocator<Fake>> = Box::new(Allocator::new(Fake::new(config)));
    let thread = Owner::new(&a, true, true).expect("memory for a heap");
    let take = || thread.with(&a, |heap| a.malloc(heap, 40_000));
    let long = take();
    assert!((place..place + (64 << 30)).contains(&long.addr()), "{long:p}");
    // So little that the last arenas are shorter than that front.
    a.os.set_address_limit(MAP + (64 << 20));
    assert!(a.give_reservations_back());
    let blocks: Vec<*mut u8> = std::iter::from_fn(|| Some(take()).filter(|p| !p.is_null())).collect();
    let apart = blocks.iter().filter(|p| p.addr() >> 36 != place >> 36).count();
    assert!(apart > 0, "{} blocks, all in the long arena", blocks.len());
    for p in blocks.into_iter().chain([long]) {
        // SAFETY: the heap is lent by its thread; the blocks are this test's.
        thread.with(&a, |heap| unsafe { a.free(heap, p) }).expect("a block");
    }
    // SAFETY: no other thread uses the allocator.
    unsafe { a.validate(Depth::Bits) }.expect("valid");
}

/// Catches arenas outside of the places that the system prefers, at the same places in each process, or nowhere because
/// the system grants none of the preferred places.
#[test]
fn arenas_lie_where_there_is_room() {
    const TIB: usize = 1 << 40;
    let first = |seed, places| {
        let a: Box<Allocator<Fake>> = Box::new(Allocator::new(Fake::new(Config { seed, places, ..Config::default() })));
        let thread = Owner::new(&a, true, true).expect("memory for a heap");
        (thread.heap().addr(), a.os.faults.count(Call::Reserve), a.os.places())
    };
    let (mut high, mut all) = (0, 0);
    for seed in 1..=24 {
        let (at, tries, places) = first(seed << 20, None);
        assert!(places.contains(&at), "{at:#x}");
        (high, all) = (high + usize::from(at > 8 * TIB), all + tries);
    }
    assert!(high > 12, "{high} of 24 lie beyond 8 TiB");
    assert!(all < 36, "{all} tries: another test may have a place already, but no more than that");
    if std::env::var_os("NEAP_TEST_SANITIZER").is_some() {
        eprintln!("SKIPPED: the tables of sanitizers lie where arenas would, below 8 TiB");
        return;
    }
    // Beyond all addresses that a program may have.
    let (at, tries, _) = first(1, Some(1 << 47..1 << 48));
    assert!((TIB..8 * TIB + (64 << 30)).contains(&at) && tries <= 18, "{at:#x} after {tries} tries");
    let (at, tries, _) = first(1, Some(0..0));
    assert!((TIB..8 * TIB + (64 << 30)).contains(&at) && tries <= 3, "{at:#x} after {tries} tries");
}

/// Catches reservations that are given back although much address space is left or kept although little is, and unused
/// parts of them that stay.
#[test]
fn what_is_not_used_goes_where_little_is_left() {
    const LITTLE: usize = 8 << 30;
    let config = Config { address_limit: Some(1 << 40), ..Config::default() };
    let a: Box<Allocator<Fake>> = Box::new(Allocator::new(Fake::new(config)));
    let _thread = Owner::new(&a, true, true).expect("memory for a heap");
    assert!(!a.malloc_reentrant(100, 16, false).is_null());
    let taken = a.os.taken();
    a.os.set_address_limit(taken + LITTLE);
    assert!(!a.give_reservations_back() && a.os.taken() == taken);
    a.os.set_address_limit(taken + LITTLE - 4096);
    assert!(a.give_reservations_back());
    let left = (64 << 30) - (taken - a.os.taken());
    assert!(left < 8 << 20, "{left} bytes of the arena stay");
    // SAFETY: no other thread uses the allocator.
    unsafe { a.validate(Depth::Bits) }.expect("valid");
}

/// Catches a page map, which is reserved in one piece, in a process that starts with little address space.
#[test]
fn a_limited_process_has_no_page_map() {
    for (address_limit, maps) in [(None, 1), (Some(128 << 20), 0)] {
        let a: Allocator<Fake> = Allocator::new(Fake::new(Config { address_limit, ..Config::default() }));
        let _thread = Owner::new(&a, true, true).expect("memory for a heap");
        assert_eq!(a.os.faults.count(Call::ReserveZeros), maps, "{address_limit:?}");
    }
}
