//! Trims, census, watching and samples, compared with what the fake system holds.

use neap_core::census::Census;
use neap_core::class::SIZE;
use neap_core::sample::weight;
use neap_core::valid::Depth;
use neap_core::watch::{Reason, Watch};
use neap_core::{Allocator, CHUNK};
use neap_coretest::{Call, Config, Fake, Owner};

type Shared = Allocator<Fake>;

const PAGE_SIZES: [usize; 3] = [4096, 16384, 65536];
const SIZES: [usize; 7] = [16, 100, 700, 3000, 9000, 40_000, 300_000];
/// OS pages of tables and heaps of programs of this size.
const TABLES: usize = 60;

fn system(page_size: usize) -> Box<Shared> {
    Box::new(Allocator::new(Fake::new(Config { page_size, purger: true, ..Config::default() })))
}

fn thread(a: &Shared) -> Owner {
    Owner::new(a, true, true).expect("memory for a heap")
}

/// 2 MiB of each size, written; all but one block in `keep` freed by `other`.
fn work(a: &Shared, owner: &Owner, other: &Owner, keep: usize) -> Vec<*mut u8> {
    let mut kept = Vec::new();
    for size in SIZES {
        let malloc = |_| {
            // SAFETY: the heap is lent by its thread; the block has `size` bytes.
            owner.with(a, |heap| unsafe {
                let p = a.malloc(heap, size);
                p.write_bytes(0xA5, size);
                p
            })
        };
        let blocks: Vec<_> = (0..(2 << 20) / size).map(malloc).collect();
        for (i, p) in blocks.into_iter().enumerate() {
            if i % keep == 0 {
                kept.push(p);
            } else {
                free(a, other, p);
            }
        }
    }
    valid(a);
    kept
}

fn free(a: &Shared, thread: &Owner, p: *mut u8) {
    // SAFETY: the heap is lent by its thread; the block is this test's.
    thread.with(a, |heap| unsafe { a.free(heap, p) }).expect("a block");
}

fn valid(a: &Shared) {
    // SAFETY: no other thread uses this allocator.
    if let Err(e) = unsafe { a.validate(Depth::Bits) } {
        panic!("{e:?}");
    }
}

/// Catches memory that a trim leaves behind, in the caches of any thread or between survivors, and a result that
/// differs from what the system got.
#[test]
fn a_trim_returns_what_it_says() {
    for page_size in PAGE_SIZES {
        let a = system(page_size);
        let (one, two) = (thread(&a), thread(&a));
        let kept = work(&a, &one, &two, 50);
        let before = a.os.usage().present;
        let done = a.trim(0, || true);
        let after = a.os.usage().present;
        assert!(done.complete && done.held > 4 << 20, "{done:?}");
        // The trim itself may touch a table or a record.
        let went = before - after;
        assert!(done.held.abs_diff(went) <= TABLES * page_size, "{done:?}, and {went} bytes went");
        valid(&a);
        let again = a.trim(0, || true);
        assert_eq!((again.held, again.complete), (0, true), "OS pages of {page_size}");
        kept.into_iter().for_each(|p| free(&a, &one, p));
        a.trim(0, || true);
        let (present, books) = (a.os.usage().present, a.held());
        assert!(present <= TABLES * page_size, "{present} bytes stay, {books} by the books: {:?}", a.figures());
        valid(&a);
    }
}

/// Catches a trim that takes more or less than it may, and one that does not end when `go_on` returns false.
#[test]
fn a_trim_keeps_what_is_requested() {
    let a = system(4096);
    let owner = thread(&a);
    let kept = work(&a, &owner, &owner, usize::MAX);
    kept.into_iter().for_each(|p| free(&a, &owner, p));
    let mut steps = 0;
    let short = a.trim(0, || {
        steps += 1;
        steps < 2
    });
    assert!(!short.complete && short.bytes <= 4 << 20 && steps == 2, "{short:?}");
    let keep = 40 * CHUNK;
    a.trim(keep, || true);
    assert_eq!(a.free_bytes().0, keep);
    let rest = a.trim(0, || true);
    assert_eq!((rest.bytes, a.free_bytes().0), (keep, 0));
    valid(&a);
}

/// Catches holes between survivors that a trim leaves because free ranges may stay.
#[test]
fn a_trim_that_keeps_ranges_takes_holes() {
    let a = system(4096);
    let owner = thread(&a);
    let kept = work(&a, &owner, &owner, 50);
    let free_ranges = a.free_bytes().0;
    let done = a.trim(1 << 30, || true);
    assert!(done.complete && done.held > 1 << 20, "{done:?}");
    assert!(a.free_bytes().0 >= free_ranges, "ranges that may stay went");
    kept.into_iter().for_each(|p| free(&a, &owner, p));
    valid(&a);
}

/// Catches figures that differ from what the system holds, where the program touched all of its blocks.
#[test]
fn books_and_system_agree() {
    for page_size in PAGE_SIZES {
        let a = system(page_size);
        let (one, two) = (thread(&a), thread(&a));
        let kept = work(&a, &one, &two, 3);
        for _ in 0..2 {
            let (books, present) = (a.held() as usize, a.os.usage().present);
            // The program does not write behind the requested size, and carved blocks that were never handed out are
            // touched only at their start.
            let slack = TABLES * page_size + kept.len() / 10 * (page_size - 4096) / 100 + books / 25;
            assert!(books.abs_diff(present) <= slack, "OS pages of {page_size}: {books} and {present}");
            let resident = a.resident().expect("the fake can tell");
            assert_eq!(resident.total() as usize, a.os.usage().present, "OS pages of {page_size}: {resident:?}");
            assert!(resident.arenas > 8 * resident.tables && resident.huge == 0, "{resident:?}");
            let (f, mut census) = (a.figures(), Census::new());
            a.take_census(&mut census);
            let blocks = census.blocks.iter().zip(SIZE).map(|(&count, size)| count * u64::from(size));
            let rest: u64 = blocks.chain(census.dirty.iter().map(|count| count.bytes)).sum();
            assert_eq!(rest + census.tails, f.slab_free + f.dirty + f.lazy, "OS pages of {page_size}");
            a.trim(0, || true);
        }
    }
}

/// Catches memory of any kind that is not counted, or twice: large blocks that were touched in part, huge blocks,
/// handlers' blocks, short arenas; and a result although the system cannot tell.
#[test]
fn resident_memory_is_what_the_system_holds() {
    let short = Config { address_limit: Some(512 << 20), reservations: Some(2), ..Config::default() };
    for (config, size) in PAGE_SIZES
        .map(|page_size| (Config { page_size, ..Config::default() }, 63 << 30))
        .into_iter()
        .chain([(short, 16 << 20)])
    {
        let what = format!("{config:?}");
        let a: Box<Shared> = Box::new(Allocator::new(Fake::new(config)));
        let t = thread(&a);
        let agree = |when: &str| {
            let resident = a.resident().expect("the fake can tell");
            assert_eq!(resident.total() as usize, a.os.usage().present, "{when}: {resident:?}, {what}");
            resident
        };
        let malloc = |size: usize| t.with(&a, |heap| a.malloc(heap, size));
        // SAFETY: the tests below write inside of their blocks.
        let write = |p: *mut u8, at: usize| unsafe { p.add(at).write_bytes(1, 5000) };
        let mut blocks = work(&a, &t, &t, 5);
        let before = agree("small blocks");
        let large = malloc(9 << 20);
        agree("a large block that was not touched");
        write(large, 3 << 20);
        let part = agree("a large block in part");
        assert!((5000..1 << 20).contains(&(part.arenas - before.arenas)), "{before:?} {part:?}");
        let reentrant = a.malloc_reentrant(5000, 16, false);
        write(reentrant, 0);
        agree("a block of a handler");
        blocks.extend((0..30).map(|_| malloc(size)).take_while(|p| !p.is_null()).inspect(|&p| write(p, 1 << 20)));
        let huge = agree("huge blocks").huge;
        assert!(huge >= 5000, "{huge}: {what}");
        blocks.into_iter().chain([large, reentrant]).for_each(|p| free(&a, &t, p));
        a.trim(0, || true);
        assert_eq!(agree("after a trim").huge, 0);
    }
    let a = Allocator::new(Fake::new(Config { missing: vec![Call::Touched], ..Config::default() }));
    thread(&a);
    assert_eq!(a.resident(), None);
}

/// Catches a heap that is damaged when watching begins or ends, or that does not follow; for each order of changes.
#[test]
fn heaps_follow_their_watchers() {
    let a = system(4096);
    let (one, two) = (thread(&a), thread(&a));
    let reasons = [Reason::Samples, Reason::Fill, Reason::Counts, Reason::NoCaches];
    let mut random = 4711u64;
    for round in 0..60 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let reason = reasons[(random >> 40) as usize % reasons.len()];
        a.set_reason(reason, random >> 50 & 1 == 0);
        if round % 2 == 0 {
            a.apply_watch_mode();
        } else {
            for thread in [&one, &two] {
                thread.with(&a, |heap| a.follow(heap));
            }
        }
        valid(&a);
        assert!(![&one, &two].iter().any(|t| t.with(&a, |heap| a.is_watched_at(heap)) && !a.is_watched()));
        let kept = work(&a, &one, &two, 20);
        kept.into_iter().for_each(|p| free(&a, &two, p));
    }
    for reason in reasons {
        a.set_reason(reason, false);
    }
    a.set_reason(Reason::Marks, true);
    assert_eq!(a.watch(), Watch::Nothing);
    a.apply_watch_mode();
    a.trim(0, || true);
    valid(&a);
}

/// Catches a sample that loses its mark or passes it on, is not a usable block, or is not zero where it should be.
#[test]
fn samples_are_blocks() {
    let a = system(4096);
    let owner = thread(&a);
    for size in SIZES.into_iter().chain([0, 1, 5 << 20]) {
        for align in [1, 16, 4096, 1 << 20] {
            // SAFETY: the heap is lent by its thread; the block has `size` bytes, and is freed once.
            owner.with(&a, |heap| unsafe {
                let p = a.malloc_sample(heap, size, align, true);
                assert!(!p.is_null() && p.addr().is_multiple_of(align) && a.is_marked(p));
                assert!((0..size).all(|i| p.add(i).read() == 0), "{size} aligned to {align}");
                p.write_bytes(7, size);
                // A realloc treats it as the block that it is in place of.
                let other = a.malloc(heap, size);
                assert_eq!(a.ordinary_size(p), a.usable_size(heap, neap_core::misuse::Call::Free, other), "{size}");
                assert_eq!(a.ordinary_size(other), None);
                a.free(heap, other).expect("a block");
                assert!(a.take_mark(p) && !a.is_marked(p) && !a.take_mark(p));
                a.free(heap, p).expect("a block");
                let other = a.malloc(heap, size.max(40_000));
                assert!(!a.is_marked(other) && !a.is_marked(other.add(CHUNK)) && !a.is_marked(other.add(16)));
                a.free(heap, other).expect("a block");
            });
        }
    }
    // SAFETY: as above. What is foreign is not read.
    owner.with(&a, |heap| unsafe {
        assert!(a.malloc_sample(heap, usize::MAX / 4, 1, false).is_null());
        assert!(!a.is_marked(core::ptr::without_provenance_mut(CHUNK)), "foreign, at a multiple of a chunk");
    });
    valid(&a);
}

/// Catches a small zeroed sample for which the system is asked what was touched: that opens a file, and costs more than
/// clearing.
#[test]
fn small_samples_ask_nothing() {
    let a = system(4096);
    let owner = thread(&a);
    for size in [1, 4096, 32 << 10] {
        // The second sample gets the memory of the first.
        for _ in 0..2 {
            // SAFETY: the heap is lent by its thread; the block has `size` bytes, and is freed once.
            owner.with(&a, |heap| unsafe {
                let p = a.malloc_sample(heap, size, 1, true);
                assert!(!p.is_null() && (0..size).all(|i| p.add(i).read() == 0), "{size}");
                p.write_bytes(7, size);
                a.free(heap, p).expect("a block");
            });
        }
    }
    assert_eq!(a.os.faults.count(Call::Touched), 0);
}

/// Catches biased samples of a heap, and samples in a hook.
#[test]
fn heaps_sample_by_bytes() {
    let a = system(4096);
    let owner = thread(&a);
    let due = |size| owner.with(&a, |heap| a.is_due_for_sample(heap, size));
    assert!(!(0..1000).any(|_| due(1 << 30)), "no sample was requested");
    a.set_sample_interval(1000);
    let samples = (0..200_000).filter(|_| due(100)).count() as f64;
    let ratio = samples * weight(100, 1000) as f64 / 20_000_000.0;
    assert!((ratio - 1.0).abs() < 0.04, "{ratio}");
    assert!(!owner.with(&a, |heap| a.set_in_hook(heap, true)));
    assert!(!(0..1000).any(|_| due(1 << 30)), "in a hook");
}

/// Catches a trim that gives nothing back where only holes in slabs are free.
#[test]
fn a_trim_takes_holes_where_no_range_is_free() {
    let a = system(4096);
    let t = thread(&a);
    let malloc = |_| t.with(&a, |heap| a.malloc(heap, 1024).cast::<[u8; 1024]>());
    let blocks: Vec<_> = (0..4096).map(malloc).collect();
    // SAFETY: the blocks are that long.
    blocks.iter().for_each(|p| unsafe { p.write([1; 1024]) });
    blocks.iter().enumerate().filter(|(i, _)| i % 64 != 0).for_each(|(_, p)| free(&a, &t, p.cast()));
    assert_eq!(a.free_bytes().0, 0, "each slab has a block that is left");
    let done = a.trim(0, || true);
    assert!(done.held > 3 << 20, "{done:?}");
    valid(&a);
}

/// Catches heaps that take their samples after the same number of bytes, and samples that leave a mapping behind where
/// no arena has room.
#[test]
fn samples_are_each_heaps_own() {
    let a = system(4096);
    a.set_sample_interval(1000);
    let first = |_| {
        let owner = thread(&a);
        owner.with(&a, |heap| (0..100_000).position(|_| a.is_due_for_sample(heap, 1)))
    };
    let places: std::collections::BTreeSet<_> = (0..8).map(first).collect();
    assert!(places.len() > 5, "{places:?}");
    let mapped = || a.os.faults.count(Call::Map);
    let owner = thread(&a);
    let before = mapped();
    assert!(owner.with(&a, |heap| a.malloc_sample(heap, 65 << 30, 1, false)).is_null());
    assert_eq!(mapped(), before, "no arena is so long");
    let short = Config { address_limit: Some(512 << 20), reservations: Some(1), ..Config::default() };
    let a: Box<Shared> = Box::new(Allocator::new(Fake::new(short)));
    let owner = thread(&a);
    let taken = a.os.taken();
    assert!(owner.with(&a, |heap| a.malloc_sample(heap, 100 << 20, 1, false)).is_null());
    assert_eq!((a.os.faults.count(Call::Map), a.os.taken(), a.figures().huge_blocks), (1, taken, 0));
    valid(&a);
}
