//! Address space: what is reserved for blocks that are long, aligned, or do not fit, and how much of it is committed.

use neap_core::alloc::MAX_SIZE;
use neap_core::os::Run;
use neap_core::pages::layout;
use neap_core::policy::Limit;
use neap_core::{CHUNK, Os};
use neap_coretest::calls::{Shared, books, free, free_reentrant, malloc, system, thread, try_malloc, valid};
use neap_coretest::{Call, Config, Owner};

const MIB: usize = 1 << 20;

/// An allocator on a system with this limit on address space.
fn short(address_limit: usize) -> Box<Shared> {
    system(Config { address_limit: Some(address_limit), ..Config::default() })
}

fn aligned(a: &Shared, t: &Owner, size: usize, align: usize) -> *mut u8 {
    t.with(a, |heap| a.malloc_aligned(heap, size, align, false))
}

/// Catches a request beyond PTRDIFF_MAX that reaches the system.
#[test]
fn more_than_there_can_be() {
    let a = system(Config::default());
    let t = thread(&a);
    let calls = || [Call::Map, Call::Reserve, Call::Commit].map(|call| a.os.faults.count(call));
    let before = calls();
    for size in [MAX_SIZE - CHUNK + 1, MAX_SIZE, MAX_SIZE + 1, usize::MAX] {
        assert!(try_malloc(&a, &t, size).is_null(), "{size}");
    }
    assert_eq!(calls(), before);
}

/// Catches blocks that get a mapping of their own although an arena could hold them: where address space is limited, an
/// arena is as long as a block needs, with its tables.
#[test]
fn long_blocks_in_short_arenas() {
    // The first arena has 32 MiB. Others are as long for blocks of up to 500 chunks, and longer for longer ones.
    for chunks in (473..496).step_by(5).chain(496..514) {
        let a = short(256 * MIB);
        let t = thread(&a);
        malloc(&a, &t, chunks * CHUNK);
        let f = a.figures();
        assert_eq!((f.huge_blocks, f.large_blocks), (0, 1), "{chunks} chunks");
        valid(&a);
    }
    // Alignment needs room as well, and no more than that.
    let a = short(250 * MIB);
    let t = thread(&a);
    let p = aligned(&a, &t, 150_000, 64 * MIB);
    assert!(p.addr().is_multiple_of(64 * MIB));
    assert_eq!((a.figures().huge_blocks, a.figures().large_blocks), (0, 1));
}

/// Catches a program that fails at the limit on the number of arenas: it gets no more, and keeps what it has.
#[test]
fn as_many_arenas_as_there_can_be() {
    let a = short(3 * MIB);
    let t = thread(&a);
    let mut blocks = Vec::new();
    for _ in 0..1000 {
        // A little more each time, so that each arena is short.
        a.os.set_address_limit(a.os.taken() + MIB / 2);
        let p = try_malloc(&a, &t, CHUNK);
        if p.is_null() {
            break;
        }
        blocks.push(p);
    }
    assert!((128..1000).contains(&blocks.len()), "{} blocks of a chunk", blocks.len());
    valid(&a);
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    valid(&a);
}

/// Catches an address behind an arena, or in a part that is not committed yet, that counts as inside the arena.
#[test]
fn addresses_without_memory_are_foreign() {
    for limit in [usize::MAX, 64 * MIB] {
        let a = short(limit);
        let t = thread(&a);
        let p = malloc(&a, &t, 100_000);
        assert!(a.arenas.contains(p));
        let reentrant = a.malloc_reentrant(100, 16, false);
        assert!(a.arenas.contains(reentrant));
        let arena = p.addr() & !((64 << 30) - 1);
        let len = if limit == usize::MAX { 64 << 30 } else { 8 * MIB };
        // In the tables, twice; in front of the reentrant reserve; behind the arena.
        for at in [0, CHUNK, len - len / 16 - CHUNK, len] {
            let at = core::ptr::without_provenance_mut::<u8>(arena + at);
            assert!(!a.arenas.contains(at), "{at:p}, where the arena begins at {arena:#x}");
        }
    }
}

/// Catches more committed memory than a program of that size needs: it counts where writable memory is limited.
#[test]
fn what_is_usable_is_little() {
    let a = system(Config::default());
    let t = thread(&a);
    malloc(&a, &t, 100);
    let small = a.os.committed();
    // A step of 1.5 MiB, and the ages of the whole arena.
    assert!(small < 3 * MIB, "{small} bytes");
    for mib in 1..=256 {
        malloc(&a, &t, MIB - 4096);
        // Steps of 16 MiB, and then as much again.
        let (usable, most) = (a.os.committed(), (mib * 3).max(42) * MIB);
        assert!(usable < most, "{usable} bytes for {mib} MiB");
    }
}

/// Catches a handler's block that commits more than the MiB units it lies in, or none.
#[test]
fn what_is_usable_in_handlers_is_little() {
    let a = system(Config::default());
    let _t = thread(&a);
    for (size, groups) in [(100, 1), (100, 0), (CHUNK * 15, 0), (CHUNK, 1), (CHUNK * 14, 0), (CHUNK * 40, 3)] {
        let before = a.os.committed();
        assert!(!a.malloc_reentrant(size, 16, false).is_null());
        let more = a.os.committed() - before;
        // Of tables: at most a tile of bits for each, 68 KiB, and OS pages of records and of the page map.
        let most = groups * (MIB + 80 * 1024);
        assert!((groups * MIB..=most).contains(&more), "{more} bytes for a block of {size}");
    }
}

/// Catches a handler's block without its alignment, from 16 bytes up to the largest that fits.
#[test]
fn alignments_of_handlers() {
    let a = system(Config::default());
    let _t = thread(&a);
    for shift in 4..36 {
        let p = a.malloc_reentrant(100, 1 << shift, true);
        assert!(p.addr().is_multiple_of(1 << shift), "{p:p}, aligned to {} bytes", 1_u64 << shift);
        assert!(shift > 28 || a.arenas.contains(p), "{} bytes", 1 << shift);
    }
}

/// Catches reserve memory that is lost where addresses go back: what was committed and free must stay usable.
#[test]
fn free_memory_of_handlers_stays() {
    let a = short(1 << 40);
    let _t = thread(&a);
    // Six MiB, of which all but the first are free again.
    let blocks: Vec<_> = (0..6).map(|_| a.malloc_reentrant(MIB, 16, false)).collect();
    blocks[1..].iter().for_each(|&p| free_reentrant(&a, p));
    a.trim(0, || true);
    a.os.set_address_limit(512 * MIB);
    assert!(a.give_reservations_back());
    let before = a.os.committed();
    let again: Vec<_> = (0..5).map(|_| a.malloc_reentrant(MIB, 16, false)).collect();
    assert!(again.iter().all(|&p| a.arenas.contains(p) && p != blocks[0]), "{again:?} beside {blocks:?}");
    assert_eq!(a.os.committed(), before);
    assert!(again.iter().enumerate().all(|(i, p)| !again[..i].contains(p)), "a block twice: {again:?}");
    valid(&a);
}

/// The parts of reservations that no block uses, checked: none holds memory, and none holds one of `used`.
fn unused(a: &Shared, used: &[*mut u8]) -> usize {
    let mut bytes = 0;
    a.each_unused(&mut |part| {
        let start = core::ptr::with_exposed_provenance_mut(part.start);
        let mut runs = [Run::EMPTY; 1];
        // SAFETY: a part of a reservation.
        let touched = unsafe { a.os.touched(start, part.len(), &mut runs) }.expect("the fake can tell");
        assert_eq!(touched.runs, 0, "{part:x?} holds memory");
        assert!(!used.iter().any(|p| part.contains(&p.addr())), "a block in {part:x?}");
        bytes += part.len();
    });
    bytes
}

/// Catches memory in use that counts as never used, so that mlockall would not lock it, and much unused memory that
/// counts as used.
#[test]
fn what_is_in_use() {
    for address_limit in [1 << 40, 256 * MIB] {
        let a = short(address_limit);
        let t = thread(&a);
        let mut blocks = vec![malloc(&a, &t, 100)];
        let (all, before) = (a.os.taken(), unused(&a, &blocks));
        assert!(all - before < 2 * MIB + MIB / 2, "{before} of {all} bytes");
        blocks.extend((0..400).map(|i| malloc(&a, &t, i * i)));
        unused(&a, &blocks);
        blocks.extend((0..20).map(|_| a.malloc_reentrant(MIB, 16, false)).filter(|p| !p.is_null()));
        unused(&a, &blocks);
        a.os.set_address_limit(512 * MIB);
        a.give_reservations_back();
        unused(&a, &blocks);
        blocks.extend((0..40).map(|_| try_malloc(&a, &t, MIB)).filter(|p| !p.is_null()));
        unused(&a, &blocks);
        valid(&a);
    }
}

/// Catches a block of a handler or beside a fork in memory that is just looked at as unused: mlockall clears it.
#[test]
fn unused_memory_stays_unused() {
    for address_limit in [1 << 40, 256 * MIB] {
        let a = short(address_limit);
        let t = thread(&a);
        malloc(&a, &t, 100);
        for _ in 0..3 {
            let (mut blocks, mut parts) = (Vec::new(), Vec::new());
            a.each_unused(&mut |part| {
                // Of all sizes: with the records, bits and entries of the page map that they need.
                blocks.extend([100, 5000, 100_000, 3 * MIB].map(|size| a.malloc_reentrant(size, 16, true)));
                parts.push(part.clone());
                let inside = blocks.iter().find(|p| parts.iter().any(|part| part.contains(&p.addr())));
                assert!(inside.is_none(), "{inside:?} in a part of {parts:x?}");
            });
            assert!(blocks.iter().all(|p| !p.is_null()));
            // Afterwards the rest of the reserve is there.
            let p = a.malloc_reentrant(100_000, 16, false);
            assert!(a.arenas.contains(p));
            blocks.iter().for_each(|&p| free_reentrant(&a, p));
            valid(&a);
        }
    }
}

/// Catches a block in memory that the system refuses to lock, a block that is refused although exactly its memory could
/// be locked, and memory that is lost after a refusal.
#[test]
fn memory_that_may_not_be_locked() {
    let a = system(Config::default());
    let t = thread(&a);
    malloc(&a, &t, 100);
    let begins = || a.os.faults.count(Call::BeginUse);
    for kib in [100, 3000, 50, 9000] {
        let before = begins();
        a.os.faults.fail_nth(Call::BeginUse, before + 1);
        malloc(&a, &t, kib << 10);
        if begins() > before {
            assert!(begins() >= before + 2, "tried again");
        }
        valid(&a);
    }
    a.os.faults.fail_by_chance(1.0);
    // The system refuses all: NULL, and no block of memory that was not taken into use.
    let mut blocks = Vec::new();
    loop {
        let p = try_malloc(&a, &t, 60 << 10);
        if p.is_null() {
            break;
        }
        blocks.push(p);
    }
    a.os.faults.clear();
    unused(&a, &blocks);
    malloc(&a, &t, 20 * MIB);
    valid(&a);
}

/// Catches unused memory that is not taken into use again after the process began to lock all its memory.
#[test]
fn unused_memory_comes_into_use_again() {
    let a = system(Config::default());
    let t = thread(&a);
    malloc(&a, &t, 100);
    let before = a.os.faults.count(Call::BeginUse);
    malloc(&a, &t, 300 << 10);
    assert_eq!(a.os.faults.count(Call::BeginUse), before, "the first step holds both");
    a.begin_use_again();
    malloc(&a, &t, 300 << 10);
    assert_eq!(a.os.faults.count(Call::BeginUse), before + 1);
}

fn most_huge(a: &Shared) -> (u64, u64) {
    let most = books(a).most_huge;
    (most.count, most.bytes)
}

/// Catches huge blocks that are counted wrong, at present or at the peak, that are copied to grow, or whose inner
/// addresses pass as blocks.
#[test]
fn huge_blocks_are_counted() {
    let a = system(Config::default());
    let t = thread(&a);
    let (gib, remapped) = (1 << 30, || a.os.faults.count(Call::Remap));
    assert_eq!(most_huge(&a), (0, 0));
    let [p, q] = [63 * gib, 64 * gib].map(|size| malloc(&a, &t, size));
    let f = a.figures();
    assert_eq!((f.huge_blocks, f.huge as usize), (2, 127 * gib));
    assert_eq!((f.live_blocks, f.live as usize), (2, 127 * gib));
    free(&a, &t, p);
    // SAFETY: the heap is lent by its thread; the pointer is foreign, as it is the inside of a huge block.
    assert!(t.with(&a, |heap| unsafe { a.free(heap, q.wrapping_add(4096)) }).is_err());
    assert_eq!(most_huge(&a), (2, 127 << 30));
    // SAFETY: the heap is lent by its thread; the block is this test's.
    let r = t.with(&a, |heap| unsafe { a.realloc(heap, q, 64 * gib, 130 * gib) });
    assert_eq!((remapped(), a.figures().huge as usize), (1, 130 * gib));
    assert_eq!(most_huge(&a), (2, 130 << 30));
    free(&a, &t, r);
    let f = a.figures();
    assert_eq!((f.huge_blocks, f.huge, most_huge(&a)), (0, 0, (2, 130 << 30)));
    assert_eq!(a.os.faults.count(Call::Unmap), 2);
}

/// Catches a shortest huge block that is not a MiB: where no arena can be had, shorter blocks get no mapping of their
/// own.
#[test]
fn the_shortest_huge_block() {
    let a = system(Config { address_limit: Some(64 * MIB), reservations: Some(1), ..Config::default() });
    let t = thread(&a);
    while !try_malloc(&a, &t, CHUNK).is_null() {}
    assert!(try_malloc(&a, &t, MIB - 4096).is_null() && try_malloc(&a, &t, MIB - 1).is_null());
    assert_eq!(a.figures().huge_blocks, 0);
    let p = malloc(&a, &t, MIB);
    assert_eq!((a.figures().huge_blocks, a.figures().huge as usize), (1, MIB));
    let q = malloc(&a, &t, 2 * MIB + 1);
    assert_eq!(a.figures().huge as usize, 3 * MIB + a.os.page_size());
    [p, q].into_iter().for_each(|p| free(&a, &t, p));
    assert_eq!(a.figures().huge, 0);
}

/// Catches room at the end of an arena that is not used, for a new block or for one that grows in place.
#[test]
fn arenas_are_used_to_their_ends() {
    // 512 chunks: tables take 10, handlers have 32, heaps one.
    let room = 512 - 10 - 32 - 1;
    let a = short(256 * MIB);
    let t = thread(&a);
    let taken = a.os.taken();
    malloc(&a, &t, room * CHUNK);
    assert_eq!(a.os.taken(), taken);
    let a = short(256 * MIB);
    let t = thread(&a);
    let p = malloc(&a, &t, 400 * CHUNK);
    // SAFETY: the heap is lent by its thread; the block is this test's.
    let q = t.with(&a, |heap| unsafe { a.realloc(heap, p, 400 * CHUNK, room * CHUNK) });
    assert_eq!(q, p);
    valid(&a);
}

/// Catches reservations that go back, or become shorter, although no limit is set.
#[test]
fn arenas_are_long_where_there_is_no_limit() {
    let a = system(Config::default());
    let t = thread(&a);
    let taken = a.os.taken();
    for n in 1..=2 {
        malloc(&a, &t, 62 << 30);
        assert_eq!((a.figures().huge_blocks, a.figures().large_blocks), (0, n));
        assert_eq!(a.os.taken() - taken, n as usize * (64 << 30));
    }
}

/// Catches a chunk that counts as committed and is not: the first one behind each step.
#[test]
fn what_is_contained_can_be_read() {
    let a = system(Config::default());
    let t = thread(&a);
    let p = malloc(&a, &t, 100_000);
    let usable = (0..).map(|i| p.wrapping_add(i * CHUNK)).take_while(|&p| a.arenas.contains(p));
    // SAFETY: the memory of an arena that is usable can be read.
    let sum: usize = usable.map(|p| unsafe { usize::from(p.read_volatile()) + 1 }).sum();
    assert!((10..=24).contains(&sum), "{sum} chunks");
}

/// Catches another reservation that is made after the system refused memory: it would be refused there as well.
#[test]
fn refused_memory_takes_no_addresses() {
    let a = system(Config::default());
    let t = thread(&a);
    let (taken, calls) = (a.os.taken(), a.os.faults.count(Call::Reserve));
    a.os.faults.fail_by_chance(1.0);
    assert!(try_malloc(&a, &t, 100 * MIB).is_null());
    a.os.faults.clear();
    assert_eq!((a.os.taken(), a.os.faults.count(Call::Reserve)), (taken, calls));
    malloc(&a, &t, 100 * MIB);
    valid(&a);
}

/// Catches huge blocks that are refused or lost where the first table is full.
#[test]
fn many_huge_blocks() {
    let a = system(Config::default());
    let t = thread(&a);
    let mut blocks: Vec<_> = (0..40).map(|_| malloc(&a, &t, 64 << 30)).collect();
    assert_eq!(a.figures().huge_blocks, 40);
    valid(&a);
    blocks.drain(..).rev().for_each(|p| free(&a, &t, p));
    assert_eq!((a.figures().huge_blocks, a.figures().huge), (0, 0));
    valid(&a);
}

/// Catches a block that grows in place beyond the user's limit, or that is moved although it may grow.
#[test]
fn blocks_grow_in_place_to_the_limit() {
    let a = system(Config::default());
    a.policy.set_limit(Limit::Bytes(64 * MIB));
    let t = thread(&a);
    let p = malloc(&a, &t, 30 * MIB);
    // SAFETY: the heap is lent by its thread; the block is this test's.
    let realloc = |old, size| t.with(&a, |heap| unsafe { a.realloc(heap, p, old, size) });
    assert_eq!([realloc(30 * MIB, 33 * MIB), realloc(33 * MIB, 60 * MIB)], [p, p]);
    assert!(realloc(60 * MIB, 70 * MIB).is_null());
    valid(&a);
}

/// Catches tables that hold an OS page for every few slabs of large size parts: the bits of 64 such slabs lie in one.
#[test]
fn bits_of_few_blocks_lie_together() {
    let a = system(Config::default());
    let t = thread(&a);
    let tables = || a.resident().expect("the fake can tell").tables;
    let before = tables();
    let blocks: Vec<_> = (0..64 * 64).map(|_| malloc(&a, &t, 1024)).collect();
    blocks.iter().step_by(2).for_each(|&p| free(&a, &t, p));
    // Records and bits, each perhaps across the end of an OS page, and ages.
    assert!(tables() - before <= 6 * 4096, "{} bytes", tables() - before);
}

/// Catches addresses of later arenas that stay where a limit is set: those of each that were never used go back.
#[test]
fn addresses_of_all_arenas_go_back() {
    let a = short(1 << 40);
    let t = thread(&a);
    malloc(&a, &t, 62 << 30);
    let before = a.os.taken();
    a.os.set_address_limit(512 * MIB);
    assert!(a.give_reservations_back());
    // More than all of the first arena.
    assert!(before - a.os.taken() > 64 << 30, "{:#x} of {before:#x}", before - a.os.taken());
}

/// Resizes a block of the test's.
fn realloc(a: &Shared, t: &Owner, p: *mut u8, old: usize, size: usize) -> *mut u8 {
    // SAFETY: the heap is lent by its thread; the block is the test's.
    t.with(a, |heap| unsafe { a.realloc(heap, p, old, size) })
}

/// Catches a block that keeps what is behind its new end.
#[test]
fn what_is_behind_a_shorter_block_is_free() {
    let a = system(Config::default());
    let t = thread(&a);
    let p = malloc(&a, &t, 10 * MIB);
    assert_eq!(realloc(&a, &t, p, 10 * MIB, 4 * MIB), p);
    assert_eq!(a.figures().dirty, 6 << 20);
    valid(&a);
}

/// Catches wrong counts of the bytes that went back with a moved block.
#[test]
fn moved_blocks_go_back_at_once() {
    let a = system(Config::default());
    let t = thread(&a);
    let (p, _behind) = (malloc(&a, &t, 2 * MIB), malloc(&a, &t, 2 * MIB));
    let q = realloc(&a, &t, p, 2 * MIB, 20 * MIB);
    assert_eq!((q == p, a.os.faults.count(Call::MovePages)), (false, 1));
    let before = a.figures().totals.purged;
    free(&a, &t, q);
    assert_eq!(a.figures().totals.purged - before, 20 << 20);
    valid(&a);
}

/// Catches room behind a block that counts as used although only the chunks of the block were used before.
#[test]
fn room_that_was_not_used_stays_clean() {
    let a = system(Config { missing: vec![Call::MovePages], ..Config::default() });
    let t = thread(&a);
    let [p, _kept, last] = [MIB, CHUNK, 4 * MIB].map(|size| malloc(&a, &t, size));
    free(&a, &t, last);
    // It has as much room again, which was never used.
    let q = realloc(&a, &t, p, MIB, 4 * MIB);
    assert_eq!(q, last);
    let before = a.figures().dirty;
    free(&a, &t, q);
    assert_eq!(a.figures().dirty - before, 4 << 20);
    valid(&a);
}

/// Catches an arena that grows, or keeps its addresses, under a limit that another process has set.
#[test]
fn a_limit_is_found_where_an_arena_grows() {
    let a = short(1 << 40);
    let t = thread(&a);
    let limit = a.os.taken() - (32 << 30);
    a.os.set_address_limit(limit);
    // More than the first step.
    malloc(&a, &t, 40 * MIB);
    assert!(a.os.taken() <= limit, "{:#x} bytes of addresses", a.os.taken());
    valid(&a);
}

/// Catches a later arena that takes most of the remaining addresses, where the first one had few.
#[test]
fn later_arenas_leave_addresses_to_the_program() {
    let a = short(256 * MIB);
    let t = thread(&a);
    let left = 128 << 30;
    a.os.set_address_limit(a.os.taken() + left);
    let before = a.os.taken();
    malloc(&a, &t, 64 * MIB);
    assert_eq!(a.os.taken() - before, left / 8);
}

/// Catches a block that gets a mapping of its own although a new arena has exactly the room for it.
#[test]
fn the_longest_arena_is_used() {
    let a = system(Config::default());
    let t = thread(&a);
    // Such a long block begins at a multiple of 2 MiB, for which an arena must have room.
    malloc(&a, &t, (layout::longest() - 2 * MIB / CHUNK) * CHUNK);
    assert_eq!((a.figures().huge_blocks, a.figures().large_blocks), (0, 1));
}

/// Catches a read of a record that is not readable: that of an address in the tables, or of one that is not committed
/// yet.
#[test]
fn foreign_pointers_go_into_no_cache() {
    let a = system(Config::default());
    let t = thread(&a);
    let p = malloc(&a, &t, 100_000);
    let arena = p.addr() & !((64 << 30) - 1);
    for at in [arena + CHUNK, arena + MIB, p.addr() + (1 << 30), arena + (60 << 30)] {
        let at = core::ptr::without_provenance_mut(at);
        // SAFETY: the heap is lent by its thread; the pointer is foreign.
        assert!(!t.with(&a, |heap| unsafe { a.free_to_cache_after_miss(heap, at) }), "{at:p}");
    }
}

/// Catches free memory that is passed over although a block fits: a range behind a shorter one of nearly its length,
/// and one with clean memory beside it, behind a longer one without any.
#[test]
fn free_memory_is_found_behind_other() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let [long, short] = [1010, 985].map(|chunks| (malloc(&a, &t, chunks * CHUNK), malloc(&a, &t, 2 * CHUNK)).0);
    free(&a, &t, long);
    free(&a, &t, short);
    assert_eq!(malloc(&a, &t, 1000 * CHUNK), long, "not the one that was freed last");
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let [alone, _, dirty, clean, _] = [40, 2, 20, 60, 2].map(|chunks| malloc(&a, &t, chunks * CHUNK));
    assert_eq!(clean, dirty.wrapping_add(20 * CHUNK));
    free(&a, &t, clean);
    a.purge();
    free(&a, &t, alone);
    free(&a, &t, dirty);
    assert_eq!(malloc(&a, &t, 64 * CHUNK), dirty);
}
