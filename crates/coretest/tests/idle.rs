//! What an idle program keeps: after some ticks, little more than the OS pages that hold a live block.

use neap_core::policy::Purge;
use neap_core::{Allocator, CHUNK};
use neap_coretest::calls::{self, Shared, fill, free, malloc, settle, thread};
use neap_coretest::{Call, Config, Fake, Owner};
use std::collections::{BTreeSet, HashMap};

/// Bytes of blocks of one class.
const BYTES: usize = 8 << 20;
/// One block in this many survives.
const SURVIVORS: usize = 20;
/// OS pages of tables and heaps that a program of this size has: five tables of a few pages, and some pages of heaps.
const TABLES: usize = 32;
const SIZES: [usize; 8] = [16, 48, 512, 1024, 2048, 3072, 5120, 20480];
const PAGE_SIZES: [usize; 3] = [4096, 16384, 65536];

fn system(page_size: usize) -> Box<Shared> {
    calls::system(Config { page_size, purger: true, ..Config::default() })
}

/// Frees all blocks but one in [`SURVIVORS`], chosen by a generator; returns those.
fn free_most(a: &Shared, thread: &Owner, blocks: Vec<*mut u8>) -> Vec<*mut u8> {
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for p in blocks {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if ((random >> 33) as usize).is_multiple_of(SURVIVORS) { kept.push(p) } else { gone.push(p) }
    }
    gone.into_iter().for_each(|p| free(a, thread, p));
    kept
}

/// Many threads with a large block each, 20 MB in all, and the bytes that may stay of that: heaps and tables.
const THREADS: usize = 200;
const CACHED: usize = 100_000;
const LEFT: usize = 1 << 20;

fn one_large_block(a: &Shared, threads: &[Owner]) -> Vec<*mut u8> {
    threads.iter().flat_map(|thread| fill(a, thread, CACHED, CACHED)).collect()
}

fn free_each(a: &Shared, threads: &[Owner], blocks: &[*mut u8]) {
    threads.iter().zip(blocks).for_each(|(thread, &p)| free(a, thread, p));
}

/// Catches large blocks in the caches of many threads that no purger empties because each cache holds little.
#[test]
fn large_caches_request_a_purger() {
    let a = system(4096);
    let threads: Vec<_> = (0..THREADS).map(|_| thread(&a)).collect();
    let blocks = one_large_block(&a, &threads);
    let asked = || a.os.faults.count(Call::StartPurger);
    assert_eq!(asked(), 0);
    free_each(&a, &threads, &blocks);
    assert_eq!(asked(), 1);
    settle(&a);
    assert!(a.os.usage().present < LEFT, "{} bytes held", a.os.usage().present);
    threads.into_iter().for_each(|thread| thread.abandon(&a));
}

/// Catches a purger that ends while caches of large blocks have much room: blocks that are freed into them would wait
/// for ever.
#[test]
fn room_in_large_caches_is_taken_back() {
    let a = system(4096);
    let threads: Vec<_> = (0..THREADS).map(|_| thread(&a)).collect();
    free_each(&a, &threads, &one_large_block(&a, &threads));
    // From the caches: they are empty while the purger runs.
    let blocks = one_large_block(&a, &threads);
    let asked = || a.os.faults.count(Call::StartPurger);
    assert_eq!(asked(), 1);
    settle(&a);
    free_each(&a, &threads, &blocks);
    assert_eq!(asked(), 2);
    settle(&a);
    assert!(a.os.usage().present < LEFT, "{} bytes held", a.os.usage().present);
    threads.into_iter().for_each(|thread| thread.abandon(&a));
}

/// Panics if the system holds much more than the OS pages of these blocks, plus `more` bytes.
fn check(a: &Shared, blocks: &[*mut u8], size: usize, what: &str) {
    let page = a.page_size();
    let pages: BTreeSet<_> = blocks.iter().flat_map(|p| p.addr() / page..=(p.addr() + size - 1) / page).collect();
    let (held, most) = (a.os.usage().present, pages.len() * page * 11 / 10 + TABLES * page);
    assert!(held <= most, "{what}, {size}-byte blocks on OS pages of {page}: {held} bytes held, {most} allowed");
}

fn each(test: impl Fn(&Shared, usize)) {
    for page_size in PAGE_SIZES {
        for size in SIZES {
            test(&system(page_size), size);
        }
    }
}

/// Catches holes that stay in slabs of the thread itself, whose caches are emptied first.
#[test]
fn survivors() {
    each(|a, size| {
        let own = thread(a);
        let blocks = fill(a, &own, size, BYTES);
        let kept = free_most(a, &own, blocks);
        settle(a);
        check(a, &kept, size, "survivors");
        own.abandon(a);
    });
}

/// Catches more than a tenth beside the OS pages that survivors of all small sizes need, tables and heaps included.
#[test]
fn survivors_of_many_sizes() {
    const BLOCKS: usize = 300_000;
    for page_size in PAGE_SIZES {
        let a = &*system(page_size);
        let own = thread(a);
        let size = |i: usize| 16 + i.wrapping_mul(0x9E37_79B9) % 1009;
        let blocks: Vec<_> = (0..BLOCKS).map(|i| fill(a, &own, size(i), size(i))[0]).collect();
        let sizes: HashMap<_, _> = blocks.iter().enumerate().map(|(i, p)| (p.addr(), size(i))).collect();
        let kept = free_most(a, &own, blocks);
        settle(a);
        let ends = |p: &*mut u8| (p.addr() / page_size, (p.addr() + sizes[&p.addr()] - 1) / page_size);
        let pages: BTreeSet<_> = kept.iter().map(ends).flat_map(|(first, last)| first..=last).collect();
        let ratio = a.os.usage().present as f64 / (pages.len() * page_size) as f64;
        println!("survivors on OS pages of {page_size}: {ratio:.3} times what they need");
        assert!(ratio < 1.1, "on OS pages of {page_size}: {ratio}");
        own.abandon(a);
    }
}

/// Catches the same where another thread frees, and the owner makes no calls.
#[test]
fn survivors_of_idle_owner() {
    each(|a, size| {
        let (own, other) = (thread(a), thread(a));
        let blocks = fill(a, &own, size, BYTES);
        let kept = free_most(a, &other, blocks);
        settle(a);
        check(a, &kept, size, "an idle owner's");
        own.abandon(a);
        other.abandon(a);
    });
}

/// Catches the same where the owner has ended.
#[test]
fn survivors_of_orphan() {
    each(|a, size| {
        let (own, other) = (thread(a), thread(a));
        let blocks = fill(a, &own, size, BYTES);
        own.abandon(a);
        let kept = free_most(a, &other, blocks);
        settle(a);
        check(a, &kept, size, "an orphan's");
        other.abandon(a);
    });
}

/// Catches parts of a long free range that go before they are due, or that are left behind where the purger stopped.
#[test]
fn parts_of_a_long_range() {
    const LEN: usize = 100 << 20;
    let a = system(4096);
    let own = thread(&a);
    let blocks = [(); 3].map(|()| own.with(&a, |heap| a.malloc(heap, LEN)));
    let tick = || a.os.advance(a.tick().unwrap_or(100).into());
    let mut seen = Vec::new();
    for p in blocks {
        // A block of which nothing is touched would go at once.
        // SAFETY: the block is that long.
        unsafe { p.add(LEN - 1).write(1) };
        free(&a, &own, p);
        tick();
    }
    for _ in 0..10 {
        seen.push(a.free_bytes().0 / LEN);
        tick();
    }
    seen.dedup();
    assert_eq!(seen, [3, 2, 1, 0]);
    own.abandon(&a);
}

/// Catches a purger that is not requested, however many small blocks are freed, by their owner or by another thread.
#[test]
fn small_blocks_ask_for_a_purger() {
    use neap_coretest::Call;
    for remote in [false, true] {
        let a = system(4096);
        let (own, other) = (thread(&a), thread(&a));
        let blocks = fill(&a, &own, 512, BYTES);
        free_most(&a, if remote { &other } else { &own }, blocks);
        assert!(a.os.faults.count(Call::StartPurger) > 0, "remote: {remote}");
        own.abandon(&a);
        other.abandon(&a);
    }
}

/// Catches blocks of a hole that are cleared although they read as zero: calloc would touch them.
#[test]
fn calloc_leaves_holes_untouched() {
    // Each block has two OS pages: where two blocks share a page, the second is not known to be zero.
    for page_size in [4096, 16384] {
        let (a, size) = (system(page_size), 2 * page_size);
        let own = thread(&a);
        let blocks = fill(&a, &own, size, BYTES);
        let kept = free_most(&a, &own, blocks);
        settle(&a);
        let before = a.os.usage().present;
        for _ in 0..BYTES / size / 2 {
            // SAFETY: the heap is lent by its thread; the block has `size` bytes.
            let dirty = own.with(&a, |heap| unsafe {
                let p = a.calloc(heap, size);
                a.os.first_nonzero(p, size)
            });
            assert_eq!(dirty, None, "a zeroed block is not zero");
        }
        let grown = a.os.usage().present.saturating_sub(before);
        assert!(grown <= 4 * page_size, "{grown} bytes were touched beside {} survivors", kept.len());
        own.abandon(&a);
    }
}

/// Catches a zeroed block that is not zero: of its three OS pages only the middle one, which is its own, went back.
#[test]
fn blocks_share_pages_with_holes() {
    let (a, size) = (system(4096), 7168);
    let own = thread(&a);
    let blocks = fill(&a, &own, size, 1 << 20);
    blocks.iter().step_by(3).for_each(|&p| free(&a, &own, p));
    settle(&a);
    assert!(a.figures().totals.purged > 0);
    for _ in 0..blocks.len() / 3 {
        // SAFETY: the heap is lent by its thread; the block has `size` bytes.
        let dirty = own.with(&a, |heap| unsafe {
            let p = a.calloc(heap, size);
            a.os.first_nonzero(p, size)
        });
        assert_eq!(dirty, None, "a zeroed block is not zero");
    }
    own.abandon(&a);
}

/// Catches side tables that stay when all blocks are free, and those that are wrong at their next use.
#[test]
fn tables_go_back() {
    const BYTES: usize = 80 << 20;
    for page_size in [4096, 16384] {
        let a = &*system(page_size);
        let thread = thread(a);
        for round in 0..2 {
            // A range that is long enough, and blocks that use all tables: many blocks, few, whole chunks.
            for size in [16, 512, 100_000] {
                let blocks = fill(a, &thread, size, BYTES);
                blocks.into_iter().for_each(|p| free(a, &thread, p));
                settle(a);
                check(a, &[], size, &format!("round {round}"));
                // SAFETY: no thread uses the allocator.
                if let Err(e) = unsafe { a.validate(neap_core::valid::Depth::Bits) } {
                    panic!("invalid: {} (at {:#x})", e.what, e.at);
                }
            }
        }
    }
}

/// A program that fills and frees 8 MiB of blocks every two seconds, in ticks of 100 ms; returns what was purged in the
/// last cycle.
fn pulse(a: &Shared, thread: &Owner, cycles: usize) -> u64 {
    let mut purged = 0;
    for _ in 0..cycles {
        let before = a.figures().totals.purged;
        fill(a, thread, 2048, BYTES).into_iter().for_each(|p| free(a, thread, p));
        for _ in 0..20 {
            a.os.run_for(50_000);
            a.os.advance(a.tick().unwrap_or(100).into());
        }
        purged = a.figures().totals.purged - before;
    }
    purged
}

/// Catches memory that goes back in each cycle of a program that needs it in the next; and memory that stays when such
/// a program is idle, goes on without it, or where the system does not report run time.
#[test]
fn cycles_keep_their_memory() {
    let a = system(4096);
    let thread = thread(&a);
    assert!(pulse(&a, &thread, 1) > BYTES as u64 / 2, "the first time cannot be foreseen");
    assert_eq!(pulse(&a, &thread, 3), 0, "from the third on nothing goes back");
    assert!(a.free_bytes().0 > BYTES / 2);
    // Idle: it runs for less than a twentieth of the time.
    for _ in 0..10 {
        a.os.run_for(4_900);
        a.os.advance(a.tick().unwrap_or(100).into());
    }
    assert_eq!(a.free_bytes().0, 0);
    // The purger ends, and restarts within the time for which it remembers.
    assert_eq!(pulse(&a, &thread, 3), 0);
    a.os.advance(5_000);
    assert_eq!(pulse(&a, &thread, 1), 0);
    // Busy with something else.
    assert_eq!(pulse(&a, &thread, 3), 0);
    for tick in 0..350 {
        a.os.run_for(50_000);
        let next = a.tick();
        assert!(next.is_some() || a.free_bytes().0 == 0, "the helper ends in tick {tick}, and what is held stays");
        a.os.advance(next.unwrap_or(100).into());
    }
    assert_eq!(a.free_bytes().0, 0);
    thread.abandon(&a);
    let blind = Allocator::new(Fake::new(Config { missing: vec![Call::RunTime], ..Config::default() }));
    let thread = Owner::new(&blind, true, true).expect("memory for a heap");
    assert!(pulse(&blind, &thread, 4) > BYTES as u64 / 2);
    thread.abandon(&blind);
}

/// Catches memory that is held because the program reuses memory that went back long before.
#[test]
fn old_purges_are_no_reason() {
    let a = system(4096);
    let thread = thread(&a);
    assert!(pulse(&a, &thread, 1) > BYTES as u64 / 2);
    // No purger ticks meanwhile: nothing waits.
    a.os.advance(60_000);
    assert!(pulse(&a, &thread, 1) > BYTES as u64 / 2);
    thread.abandon(&a);
}

/// Catches a purge that leaves memory which was purged lazily before.
#[test]
fn a_purge_takes_what_is_lazy() {
    let a = system(4096);
    a.policy.set_purge(Purge::Lazy);
    let thread = thread(&a);
    fill(&a, &thread, 100_000, BYTES).into_iter().for_each(|p| free(&a, &thread, p));
    settle(&a);
    assert!(a.figures().lazy > BYTES as u64 / 2);
    assert!(a.purge() > BYTES / 2);
    assert_eq!((a.figures().lazy, a.free_bytes().0), (0, 0));
    thread.abandon(&a);
}

/// Catches a call that relies on an earlier allocation: a tick came before the first malloc, and divided by an OS page
/// size of 0.
#[test]
fn before_the_first_use() {
    let before = |call: &dyn Fn(&Shared)| {
        let a = system(4096);
        call(&a);
        let me = thread(&a);
        let blocks = fill(&a, &me, 1024, BYTES);
        let kept = free_most(&a, &me, blocks);
        settle(&a);
        check(&a, &kept, 1024, "after a call before the first use");
    };
    before(&|a| assert_eq!(a.tick(), None, "nothing waits"));
    before(&|a| assert_eq!(a.purge(), 0, "nothing to give back"));
    before(&|a| a.settle());
    before(&|a| a.resume_purging());
    before(&|a| a.look_at_limit());
    before(&|a| a.publish());
    before(&|a| assert_eq!(a.free_bytes(), (0, 0), "nothing is free"));
    before(&|a| assert_eq!(a.live(), (0, 0), "nothing lives"));
    before(&|a| assert_eq!(a.resident().map_or(0, |r| r.total()), 0, "nothing is resident"));
    before(&|a| assert_eq!(a.held(), 0, "nothing is held"));
    before(&|a| assert_eq!(a.figures().live_blocks, 0, "no block lives"));
    before(&|a| {
        let begin = a.fork_begin(core::ptr::null(), false, &mut a.fork_patience());
        assert_eq!(begin, neap_core::fork::Begin::Ready);
        a.fork_parent();
    });
}

/// Catches a program without a helper that frees much and is then idle: whatever waits then stays.
#[test]
fn little_waits_without_a_helper() {
    for size in [1 << 20, 20480, 48] {
        let a = Box::new(Allocator::new(Fake::new(Config::default())));
        let thread = thread(&a);
        fill(&a, &thread, size, 160 << 20).into_iter().for_each(|p| free(&a, &thread, p));
        let (dirty, _) = a.free_bytes();
        assert!(dirty <= 33 << 20, "{dirty} bytes wait after {size} bytes each");
        assert!(a.os.faults.count(Call::Purge) + a.os.faults.count(Call::PurgeRuns) < 2000);
        thread.abandon(&a);
    }
}

/// Catches memory that is lost with its addresses where the system refuses to make a guard accessible again.
#[test]
fn lost_chunks_hold_no_memory() {
    const SIZE: usize = 200 << 10;
    let a = system(4096);
    a.harden();
    let thread = thread(&a);
    for round in 0..100 {
        let blocks = fill(&a, &thread, if round % 2 == 0 { SIZE } else { 20480 }, SIZE);
        a.os.faults.fail_nth(Call::Commit, a.os.faults.count(Call::Commit) + 1);
        blocks.into_iter().for_each(|p| free(&a, &thread, p));
        a.os.faults.clear();
    }
    settle(&a);
    let held = a.os.usage().present;
    assert!(held <= 2 * TABLES * 4096, "{held} bytes held");
    thread.abandon(&a);
}

/// Catches a helper that ends although something waits, because nothing did before: nothing would give that back.
#[test]
fn a_helper_stays_while_anything_waits() {
    for what in ["holes", "a range", "a cache"] {
        let a = system(4096);
        let own = thread(&a);
        let blocks = fill(&a, &own, 1024, 2 << 20);
        let [first, large] = [20 << 20, 8 << 16].map(|size| fill(&a, &own, size, size)[0]);
        free(&a, &own, first);
        let tick = || a.tick().map(|wait| a.os.advance(wait.into())).is_some();
        while a.free_bytes().0 > 0 {
            assert!(tick());
        }
        // Four idle ticks: after the fifth it ends.
        assert!((0..4).all(|_| tick()));
        let before = a.os.usage().present;
        let freed = match what {
            "holes" => {
                blocks.iter().enumerate().filter(|(i, _)| i % 64 != 0).for_each(|(_, &p)| free(&a, &own, p));
                3 << 19
            }
            _ => {
                free(&a, &own, large);
                8 << 16
            }
        };
        if what != "a cache" {
            own.with(&a, |heap| a.rest(heap));
        }
        settle(&a);
        let went = before - a.os.usage().present;
        assert!(went >= freed, "{what}: {went} of {freed} bytes");
    }
}

/// Catches the same for memory that is held for the program, less than a helper is started for.
#[test]
fn a_helper_stays_while_memory_is_held() {
    let a = system(4096);
    let own = Owner::new(&*a, false, true).expect("memory for a heap");
    let tick = || {
        a.os.run_for(50_000);
        a.tick().map(|wait| a.os.advance(wait.into())).is_some()
    };
    for _ in 0..3 {
        fill(&a, &own, 12 * CHUNK, 12 * CHUNK).into_iter().for_each(|p| free(&a, &own, p));
        (0..20).for_each(|_| _ = tick());
    }
    for ticks in 0.. {
        if a.free_bytes().0 == 0 {
            assert!((50..300).contains(&ticks), "{ticks} ticks");
            break;
        }
        assert!(tick(), "{:?} bytes wait after {ticks} ticks", a.free_bytes());
    }
}

/// Catches a tick that does not count although the clock is only slightly early, as clocks are coarse; and one that
/// counts although the helper was woken long before its time.
#[test]
fn coarse_clocks() {
    for (passes, gone) in [(88, true), (87, false)] {
        let a = system(4096);
        let own = thread(&a);
        free(&a, &own, malloc(&a, &own, 20 << 20));
        assert_eq!(a.tick(), Some(100));
        for _ in 0..7 {
            a.os.advance(passes);
            a.tick();
        }
        assert_eq!(a.free_bytes().0 == 0, gone, "after seven ticks of {passes} ms");
    }
}

/// Catches a helper that runs longer than it has to because empty caches count as full.
#[test]
fn a_helper_ends_where_caches_are_empty() {
    let a = system(4096);
    let own = thread(&a);
    // A cache of large blocks that had a block, and has room for another.
    let p = fill(&a, &own, 8 << 16, 8 << 16)[0];
    free(&a, &own, p);
    assert_eq!(fill(&a, &own, 8 << 16, 8 << 16)[0], p);
    a.os.advance(100);
    let ticks = (1..100).find(|_| a.tick().map(|wait| a.os.advance(wait.into())).is_none());
    assert_eq!(ticks, Some(6), "five that find nothing, and the last");
}

/// Catches a purger that is requested because a few slabs have free blocks.
#[test]
fn few_slabs_ask_for_no_purger() {
    let a = system(4096);
    let own = thread(&a);
    let blocks = fill(&a, &own, 1024, 4 << 20);
    let asked = |slabs: usize| {
        // One block in each slab stays live.
        let gone = blocks.iter().enumerate().skip(slabs * 64).take(30 * 64).filter(|(i, _)| i % 64 != 0);
        gone.for_each(|(_, &p)| free(&a, &own, p));
        a.os.faults.count(Call::StartPurger)
    };
    assert_eq!(asked(0), 0, "30 slabs");
    assert_eq!((asked(30), asked(60)), (0, 1), "64 slabs");
}

/// Catches holes that go back in each cycle of a program that needs them in the next.
#[test]
fn cycles_keep_their_holes() {
    let a = system(4096);
    let own = thread(&a);
    let mut blocks = fill(&a, &own, 2048, BYTES);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (kept, gone): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 16 == 0);
        let before = a.figures().totals.purged;
        gone.iter().for_each(|&(_, p)| free(&a, &own, p));
        for _ in 0..20 {
            a.os.run_for(50_000);
            a.os.advance(a.tick().unwrap_or(100).into());
        }
        seen.push(a.figures().totals.purged - before);
        let again = fill(&a, &own, 2048, gone.len() * 2048);
        let mut all: Vec<_> = kept.into_iter().map(|(_, p)| p).chain(again).collect();
        all.sort();
        blocks = all;
    }
    assert!(seen[0] > BYTES as u64 / 2, "{seen:?}");
    assert_eq!(seen[3..], [0, 0], "{seen:?}");
    // A helper that holds them does not end.
    blocks.iter().enumerate().filter(|(i, _)| i % 16 != 0).for_each(|(_, &p)| free(&a, &own, p));
    let before = a.figures().totals.purged;
    for tick in 0..400 {
        a.os.run_for(50_000);
        match a.tick() {
            Some(wait) => a.os.advance(wait.into()),
            None => {
                let purged = a.figures().totals.purged - before;
                assert!(purged > BYTES as u64 / 2, "{purged} bytes went when it ended in tick {tick}");
                break;
            }
        }
    }
}

/// Catches holes that are held although the program never missed them: those that went back on request count as taken
/// again when the program takes others.
#[test]
fn holes_that_went_on_request_are_no_reason() {
    let a = system(4096);
    let own = thread(&a);
    let blocks = fill(&a, &own, 512, 40 * CHUNK);
    let (_, gone): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 128 < 8);
    let ticks = |n: usize| {
        for _ in 0..n {
            a.os.run_for(50_000);
            a.os.advance(a.tick().unwrap_or(100).into());
        }
    };
    let free_all = |blocks: &[(usize, *mut u8)]| {
        blocks.iter().for_each(|&(_, p)| free(&a, &own, p));
        calls::rest(&a, &own);
    };
    // The holes of one slab go when they are due, all others on request.
    let (request, time) = gone.split_at(39 * 120);
    free_all(request);
    assert_eq!(a.purge(), 39 * 15 * 4096);
    free_all(time);
    ticks(8);
    let again: Vec<_> = fill(&a, &own, 512, gone.len() * 512).into_iter().enumerate().collect();
    ticks(1);
    let before = a.figures().totals.purged;
    free_all(&again);
    ticks(10);
    let went = a.figures().totals.purged - before;
    assert_eq!(went, 25 * 15 * 4096, "of 40 slabs 15 are held, as 15 OS pages were missed");
}

/// Catches a batch that cannot take as many holes as it has room for: eight in each of sixteen slabs.
#[test]
fn each_second_page_goes_back() {
    let a = system(4096);
    let t = thread(&a);
    let blocks = fill(&a, &t, 2048, BYTES);
    let before = a.os.usage().present;
    let (kept, gone): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|p| p.addr() & 4096 == 0);
    gone.into_iter().for_each(|p| free(&a, &t, p));
    settle(&a);
    let after = a.os.usage().present;
    assert!(after < before - BYTES / 2 + LEFT, "{before} {after}");
    kept.into_iter().for_each(|p| free(&a, &t, p));
    t.abandon(&a);
}

/// Catches batches that end inside a huge page: the system would have to split it, and would keep its page table.
#[test]
fn batches_end_where_huge_pages_do() {
    const LEN: usize = (40 << 20) + 5 * CHUNK;
    let a = system(4096);
    let thread = thread(&a);
    let blocks = [malloc(&a, &thread, LEN), malloc(&a, &thread, CHUNK)];
    // SAFETY: the block is that long.
    unsafe { blocks[0].write_bytes(1, LEN) };
    free(&a, &thread, blocks[0]);
    settle(&a);
    assert!(a.os.usage().present < 1 << 20, "{} bytes held", a.os.usage().present);
    assert!(a.os.cut_huge_pages() <= 1, "{} batches", a.os.cut_huge_pages());
    free(&a, &thread, blocks[1]);
    thread.abandon(&a);
}
