//! Limits on memory: one set by the user, which is never passed, and those of the system, near which nothing waits.

use neap_core::os::Memory;
use neap_core::policy::Limit;
use neap_core::{CHUNK, Os};
use neap_coretest::calls::{Shared, free, malloc, rest, system, thread, try_malloc, valid};
use neap_coretest::{Call, Config, Moment, Owner};
use std::sync::LazyLock;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Blocks of `size` bytes until there is no other, at most this many bytes.
fn fill(a: &Shared, thread: &Owner, size: usize, most: usize) -> Vec<*mut u8> {
    (0..most / size).map(|_| try_malloc(a, thread, size)).take_while(|p| !p.is_null()).collect()
}

/// Catches a user's limit that is passed, that refuses what fits, or under which free memory cannot be reused for
/// blocks of another size.
#[test]
fn a_limit_of_the_users_holds() {
    let limit = 64 * MIB;
    for config in [Config::default(), Config { address_limit: Some(512 * MIB), ..Config::default() }] {
        let a = system(config);
        a.policy.set_limit(Limit::Bytes(limit));
        let t = thread(&a);
        for size in [100, 5000, 100_000, 10 * MIB, 600, 40 * MIB, 30_000] {
            let blocks = fill(&a, &t, size, 2 * limit);
            let bytes = blocks.len() * size;
            let chunked = if size > 32 << 10 { size.next_multiple_of(CHUNK) } else { size };
            assert!(bytes <= limit, "{bytes} bytes in blocks of {size}");
            // Subtracted: heaps, and what size classes round up to.
            assert!(blocks.len() * chunked + chunked + limit / 6 > limit, "only {bytes} bytes in blocks of {size} fit");
            valid(&a);
            blocks.into_iter().for_each(|p| free(&a, &t, p));
        }
        a.policy.set_limit(Limit::Off);
        assert!(!try_malloc(&a, &t, 2 * limit).is_null(), "still a limit");
    }
}

/// Catches a block that grows beyond the limit, or loses its contents where it may not grow.
#[test]
fn a_block_grows_to_the_limit() {
    let a = system(Config::default());
    a.policy.set_limit(Limit::Bytes(64 * MIB));
    let t = thread(&a);
    let (mut p, mut size) = (try_malloc(&a, &t, MIB), MIB);
    // SAFETY: the block is that long.
    unsafe { p.write_bytes(7, size) };
    loop {
        // SAFETY: the heap is lent by its thread; the block is this test's and has `size` bytes.
        let q = t.with(&a, |heap| unsafe { a.realloc(heap, p, size, size + MIB) });
        if q.is_null() {
            break;
        }
        (p, size) = (q, size + MIB);
        assert!(size <= 64 * MIB, "{size} bytes");
    }
    assert!(size >= 32 * MIB, "a copy fits twice at least: {size}");
    // SAFETY: as above.
    assert!(unsafe { core::slice::from_raw_parts(p, MIB) }.iter().all(|&byte| byte == 7));
    valid(&a);
    free(&a, &t, p);
}

/// Frees 200 MiB in blocks of a MiB; returns the peak of the bytes that waited, and those that wait at the end.
fn free_much(a: &Shared, t: &Owner) -> (usize, usize) {
    let blocks = fill(a, t, MIB, 200 * MIB);
    assert_eq!(blocks.len(), 200);
    // SAFETY: the blocks are that long.
    blocks.iter().for_each(|p| unsafe { p.write_bytes(1, MIB) });
    let mut most = 0;
    for p in blocks {
        free(a, t, p);
        most = most.max(a.free_bytes().0);
    }
    valid(a);
    (most, a.free_bytes().0)
}

/// Catches free memory that waits although the system's memory is short, with a helper and without, and memory that
/// does not wait although there is plenty.
#[test]
fn nothing_waits_where_memory_is_short() {
    let limit = 1024 * MIB;
    for purger in [true, false] {
        let run = |used| {
            let a = system(Config { purger, ..Config::default() });
            a.os.set_memory(Some(Memory { limit, used, stalled: false }));
            let t = thread(&a);
            free_much(&a, &t)
        };
        // A MiB of it is in the heap's cache of large blocks.
        let (most, _) = run(0);
        assert!(!purger || most >= 196 * MIB, "{most} bytes waited at most, where memory is plenty");
        // Less than twice what waits is left, from 50 MiB on: the thread gives back 16 of each 32 MiB that it frees,
        // and wakes the helper, which does not run here, for the rest.
        let (most, end) = run(limit - 100 * MIB);
        let bound = if purger { 150 * MIB } else { 70 * MIB };
        assert!(most <= bound && end <= most, "{most} bytes waited, {end} at the end");
        // A sixteenth is left, which is not short: the helper has time.
        let (most, _) = run(limit - limit / 16);
        assert!(!purger || most >= 60 * MIB, "{most} bytes waited at most");
        // Nearly nothing is left: all waiting memory goes back at each look.
        let (most, end) = run(limit - MIB);
        assert!(most <= 33 * MIB && end <= 17 * MIB, "{most} bytes waited, {end} at the end");
    }
}

/// Catches a program that grows in small steps and whose limit is never read, or is read at each step.
#[test]
fn the_limit_is_looked_at_while_a_program_grows() {
    let a = system(Config::default());
    a.os.set_memory(Some(Memory { limit: 1024 * MIB, used: 900 * MIB, stalled: false }));
    let t = thread(&a);
    fill(&a, &t, MIB, 64 * MIB);
    let looks = a.os.faults.count(Call::Memory);
    assert!((3..=5).contains(&looks), "{looks} looks in 64 MiB");
}

/// Makes holes in slabs while `used` bytes of a GiB are used, and wakes the helper; returns whether it punched them.
fn are_punched(a: &Shared, t: &Owner, used: usize) -> bool {
    let blocks = fill(a, t, 512, 16 * MIB);
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 64 == 0);
    freed.into_iter().for_each(|(_, p)| free(a, t, p));
    rest(a, t);
    assert!(a.free_bytes().0 < 2 * MIB, "holes alone");
    a.os.set_memory(Some(Memory { limit: GIB, used, stalled: false }));
    let before = a.figures().totals.purged;
    // The helper is woken before its time.
    assert!(a.tick().is_some());
    let purged = a.figures().totals.purged - before;
    kept.into_iter().for_each(|(_, p)| free(a, t, p));
    purged >= 8 << 20
}

/// Catches holes in slabs that wait although nearly no memory is left, holes that go although there is plenty, and
/// slabs that are searched again and again.
#[test]
fn holes_do_not_wait_where_nearly_nothing_is_left() {
    for (used, near) in [(GIB - GIB / 8, false), (GIB - GIB / 32, true)] {
        let a = system(Config { purger: true, ..Config::default() });
        let t = thread(&a);
        assert_eq!(are_punched(&a, &t, used), near, "{used} bytes are used");
        assert!(!are_punched(&a, &t, used), "a moment later");
        a.os.advance(600);
        assert_eq!(are_punched(&a, &t, used), near, "some time later");
        valid(&a);
    }
}

/// Catches a search for holes that takes long and is repeated after half a second anyway.
#[test]
fn a_long_look_for_holes_is_seldom() {
    static A: LazyLock<&Shared> = LazyLock::new(|| Box::leak(system(Config { purger: true, ..Config::default() })));
    let t = thread(&A);
    A.os.set_within(Moment::PurgeRuns, || A.os.advance(45));
    assert!(are_punched(&A, &t, GIB - GIB / 32));
    for (later, punched) in [(600, false), (200, false), (200, true)] {
        A.os.advance(later);
        assert_eq!(are_punched(&A, &t, GIB - GIB / 32), punched, "{later} ms later");
    }
}

/// Catches holes that go early for a user's limit, which counts chunks: holes gain nothing there.
#[test]
fn holes_wait_beside_a_limit_of_the_users() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    // What the blocks take, and a little more: less than a sixteenth is left.
    a.policy.set_limit(Limit::Bytes(18 * MIB));
    assert!(!are_punched(&a, &t, 0));
}

/// Catches memory that goes early although it is less than a quarter of the system's limit, and more than a quarter
/// that waits.
#[test]
fn a_quarter_of_the_limit_may_wait() {
    for (limit, waits) in [(1024 * MIB, true), (70 * MIB, false)] {
        let a = system(Config { purger: true, ..Config::default() });
        a.os.set_memory(Some(Memory { limit, used: 0, stalled: false }));
        let t = thread(&a);
        let p = malloc(&a, &t, 20 * MIB);
        free(&a, &t, p);
        assert!(a.free_bytes().0 >= 20 * MIB);
        a.tick();
        assert_eq!(a.free_bytes().0 > 0, waits, "20 of {limit} bytes");
    }
}

/// Catches a helper that ends while there is something to do, and one that does not end when there is nothing.
#[test]
fn a_helper_ends_after_five_idle_ticks() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let p = malloc(&a, &t, 20 * MIB);
    free(&a, &t, p);
    let tick = || {
        a.os.advance(100);
        a.tick().is_some()
    };
    // A thread whose caches change is at work.
    for i in 0..20 {
        let kept: Vec<_> = (0..=i % 3).map(|_| malloc(&a, &t, 100)).collect();
        kept.into_iter().for_each(|p| free(&a, &t, p));
        assert!(tick(), "tick {i}");
    }
    assert_eq!(a.free_bytes().0, 0);
    t.with(&a, |heap| a.rest(heap));
    let left = (0..100).take_while(|_| tick()).count();
    assert_eq!(left, 10, "five until the free blocks go, and five in which there is nothing to do");
}

/// Catches a helper that sleeps although more than `purge_bytes` waits, and one that is woken for less.
#[test]
fn a_helper_is_woken_where_more_waits_than_may() {
    let a = system(Config { purger: true, ..Config::default() });
    a.policy.set_bytes(Some(8 * MIB));
    let t = thread(&a);
    let [first, second, third] = [4, 3, 3].map(|size| malloc(&a, &t, size * MIB));
    free(&a, &t, first);
    a.tick();
    assert_eq!(a.free_bytes().0, 4 * MIB, "this much may wait");
    let woken = a.os.helper().woken();
    free(&a, &t, second);
    assert_eq!(a.os.helper().woken(), woken, "7 MiB");
    free(&a, &t, third);
    assert_ne!(a.os.helper().woken(), woken, "10 MiB");
    a.tick();
    assert_eq!(a.free_bytes().0, 0);
}

/// Catches a block that waits longer because it was in a cache of large blocks, or goes back at once.
#[test]
fn time_in_a_large_cache_counts() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let p = malloc(&a, &t, 20 * MIB);
    free(&a, &t, p);
    let tick = || {
        a.os.advance(100);
        a.tick();
    };
    (0..9).for_each(|_| tick());
    let p = malloc(&a, &t, 8 * CHUNK);
    free(&a, &t, p);
    // Busy, so that no handshake succeeds.
    t.with(&a, |_| (0..3).for_each(|_| tick()));
    assert_eq!(a.free_bytes().0, 0, "it is in the cache");
    t.with(&a, |heap| a.rest(heap));
    tick();
    assert_eq!(a.free_bytes().0, 8 * CHUNK, "four ticks");
    tick();
    assert_eq!(a.free_bytes().0, 0);
}

/// Catches a shortage of the system's memory that threads notice too late while much waits here.
#[test]
fn the_limit_is_looked_at_while_much_waits() {
    let limit = 2048 * MIB;
    let a = system(Config { purger: true, ..Config::default() });
    a.os.set_memory(Some(Memory { limit, used: limit / 2, stalled: false }));
    let t = thread(&a);
    let mut blocks = fill(&a, &t, MIB, 240 * MIB);
    blocks.drain(..200).for_each(|p| free(&a, &t, p));
    let before = a.free_bytes().0;
    assert!(before >= 190 * MIB, "memory is plenty still");
    a.os.set_memory(Some(Memory { limit, used: limit - MIB, stalled: false }));
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    assert!(a.free_bytes().0 <= 34 * MIB, "{} bytes wait", a.free_bytes().0);
}

/// Catches memory that goes early although no more than the limit waits, to the byte.
#[test]
fn just_as_much_waits_as_may() {
    for (size, waits) in [(8 * MIB, true), (8 * MIB + CHUNK, false)] {
        let a = system(Config { purger: true, ..Config::default() });
        a.policy.set_bytes(Some(8 * MIB));
        let t = thread(&a);
        let p = malloc(&a, &t, size);
        free(&a, &t, p);
        a.tick();
        assert_eq!(a.free_bytes().0, if waits { size } else { 0 });
    }
}

/// Catches a wrong figure of how much of the user's limit is used.
#[test]
fn a_limit_of_the_users_is_published() {
    let a = system(Config { purger: true, ..Config::default() });
    a.policy.set_limit(Limit::Bytes(64 * MIB));
    let t = thread(&a);
    let (kept, freed) = (malloc(&a, &t, 20 * MIB), malloc(&a, &t, 4 * MIB));
    free(&a, &t, freed);
    a.look_at_limit();
    let f = a.figures();
    let blocks = 24 << 20;
    assert_eq!(f.memory_limit, 64 << 20);
    assert!((blocks..blocks + (1 << 20)).contains(&f.memory_used), "{} bytes, and heaps", f.memory_used);
    free(&a, &t, kept);
}

/// Catches caches of idle threads that are emptied again and again where memory is short but nothing waits.
#[test]
fn where_nothing_waits_nothing_is_done() {
    let a = system(Config::default());
    a.os.set_memory(Some(Memory { limit: 1 << 40, used: 0, stalled: true }));
    let (one, idle) = (thread(&a), thread(&a));
    let p = malloc(&a, &idle, 100);
    free(&a, &idle, p);
    let cached = a.figures().cached_blocks;
    assert!(cached > 0);
    let looks = a.os.faults.count(Call::Memory);
    let p = malloc(&a, &one, 40 * MIB);
    assert!(a.os.faults.count(Call::Memory) > looks, "much was taken");
    assert_eq!(a.figures().cached_blocks, cached);
    free(&a, &one, p);
}

/// Catches a limit that is no longer read because far more waited once.
#[test]
fn the_limit_is_looked_at_when_less_waits() {
    let limit = 512 * MIB;
    let a = system(Config { purger: true, ..Config::default() });
    a.os.set_memory(Some(Memory { limit, used: 0, stalled: false }));
    let t = thread(&a);
    let mut blocks = fill(&a, &t, MIB, 200 * MIB);
    blocks.drain(..120).for_each(|p| free(&a, &t, p));
    assert!(a.free_bytes().0 >= 110 * MIB);
    a.purge();
    a.os.set_memory(Some(Memory { limit, used: limit - MIB, stalled: false }));
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    assert!(a.free_bytes().0 <= 34 * MIB, "{} bytes wait", a.free_bytes().0);
}

/// Catches a thread that gives back more than its share in one call where there is no helper, or nothing.
#[test]
fn a_thread_gives_back_its_share() {
    let a = system(Config::default());
    let t = thread(&a);
    let p = malloc(&a, &t, 24 * MIB);
    free(&a, &t, p);
    let mut purged = 0;
    for call in 0..40 {
        a.os.advance(100);
        let p = malloc(&a, &t, 100_000);
        free(&a, &t, p);
        let now = a.figures().totals.purged;
        assert!(now - purged <= 2 << 20, "{} bytes in call {call}", now - purged);
        purged = now;
    }
    assert!(purged >= 23 << 20, "{purged} of 24 MiB");
}
