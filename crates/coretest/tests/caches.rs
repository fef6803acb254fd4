//! Caches and the slabs behind them: how much they hold, what they return when full, and which slabs stay.

use neap_core::class::{self, FIRST_PAGED, SIZE};
use neap_core::heap::Mine;
use neap_core::{CHUNK, misuse};
use neap_coretest::calls::{Shared, free, malloc, rest, system, thread, valid};
use neap_coretest::{Call, Config, Owner};

fn calloc(a: &Shared, t: &Owner, size: usize) -> *mut u8 {
    let p = t.with(a, |heap| a.calloc(heap, size));
    // SAFETY: the block is that long.
    assert_eq!(unsafe { a.os.first_nonzero(p, size) }, None, "a block of {size} bytes");
    p
}

fn many(a: &Shared, t: &Owner, size: usize, count: usize) -> Vec<*mut u8> {
    (0..count).map(|_| malloc(a, t, size)).collect()
}

/// Frees blocks; returns how many the cache gave back each time that it was full, and checks that it had `most` then.
fn given_by_full(a: &Shared, t: &Owner, blocks: &[*mut u8], most: usize) -> Vec<usize> {
    let mut cached = a.figures().cached_blocks as usize;
    let mut given = Vec::new();
    for &p in blocks {
        free(a, t, p);
        let now = a.figures().cached_blocks as usize;
        if now != cached + 1 {
            assert_eq!(cached, most);
            given.push(cached + 1 - now);
        }
        cached = now;
    }
    valid(a);
    given
}

/// Catches a cache that does not grow to its documented size (64 KiB, 1,024 blocks) or grows beyond it, and a full
/// cache that makes a free slow: it gives back more than 64 blocks of one slab, or more than 8 of several.
#[test]
fn full_caches_give_a_few_blocks_back() {
    for (size, most) in [(16, 1024), (64, 1024), (1024, 64), (2048, 16), (3072, 10)] {
        let a = system(Config::default());
        let t = thread(&a);
        let blocks = many(&a, &t, size, 4 * most);
        let given = given_by_full(&a, &t, &blocks, most);
        let (part, slab) = (64.min(most - most / 4), CHUNK / size);
        assert!(given.iter().all(|&n| n <= part), "{size} bytes: {given:?}");
        assert!(given.contains(&part), "{size} bytes: {given:?}");
        // A block of each slab in turn, until the cache, which already has blocks in any order, has been full several
        // times.
        let blocks = many(&a, &t, size, 32 * slab);
        let mut apart: Vec<_> = blocks.iter().map(|p| (p.addr() % CHUNK, *p)).collect();
        apart.sort();
        let apart: Vec<_> = apart.into_iter().map(|(_, p)| p).collect();
        let given = given_by_full(&a, &t, &apart, most);
        assert!(given.len() > 10 && given.iter().all(|&n| (1..=8).contains(&n)), "{size} bytes: {given:?}");
    }
}

/// Catches a full cache that gives blocks of other heaps' slabs back in small parts: each part moves the slab's record
/// to this processor's cache.
#[test]
fn full_caches_give_other_heaps_three_quarters() {
    for (size, most) in [(16, 1024), (64, 1024), (1024, 64)] {
        let a = system(Config::default());
        let (maker, user) = (thread(&a), thread(&a));
        let blocks = many(&a, &maker, size, 4 * most);
        many(&a, &user, size, 1);
        let before = a.figures().cached_blocks as usize;
        let (mut cached, mut given) = (before, Vec::new());
        for p in blocks {
            free(&a, &user, p);
            let now = a.figures().cached_blocks as usize;
            if now != cached + 1 {
                given.push(cached + 1 - now);
            }
            cached = now;
        }
        // Rounded up to a whole word of bits.
        assert!(!given.is_empty() && given.iter().all(|n| (most * 3 / 4..=most * 3 / 4 + 64).contains(n)), "{given:?}");
        valid(&a);
    }
}

/// Catches a cache that is filled block by block: each refill brings half of what it may hold, or what an OS page has.
#[test]
fn caches_are_filled_by_many() {
    let a = system(Config::default());
    let t = thread(&a);
    let mut fills = Vec::new();
    let mut last = 0;
    for _ in 0..2000 {
        malloc(&a, &t, 16);
        let now = a.figures().cached_blocks;
        if now + 1 != last {
            fills.push(now + 1);
        }
        last = now;
    }
    assert!(
        fills.iter().all(|&count| (64..=512).contains(&count)) && fills.iter().any(|&count| count >= 256),
        "{fills:?}"
    );
}

/// Catches a class that loses its cache because of zeroed blocks although they are short, wrong counts of cleared
/// bytes, and a largest small block that is a large one.
#[test]
fn zeroed_blocks_of_slabs() {
    for size in [1, 100, 2047, 2048, 3000, 4097, 5000, 32768] {
        let a = system(Config::default());
        let t = thread(&a);
        let blocks: Vec<_> = (0..8).map(|_| calloc(&a, &t, size)).collect();
        assert_eq!(a.figures().large_blocks, 0);
        let usable = SIZE[class::of(size)] as usize;
        // SAFETY: the blocks are that long.
        blocks.iter().for_each(|p| unsafe { p.write_bytes(0xA5, size) });
        blocks.into_iter().for_each(|p| free(&a, &t, p));
        if usable < SIZE[FIRST_PAGED] as usize {
            assert!(a.figures().cached_blocks >= 4, "{size} bytes");
        }
        for _ in 0..10 {
            let before = a.figures().totals;
            calloc(&a, &t, size);
            let after = a.figures().totals;
            let [cleared, skipped] = [after.cleared - before.cleared, after.skipped - before.skipped];
            assert_eq!(cleared + skipped, size as u64, "{cleared} bytes cleared, {skipped} not");
        }
        valid(&a);
    }
}

/// Catches a slab that is taken and released with each block of a class without a cache, an empty one that stays beside
/// others, and one that stays when its thread has ended.
#[test]
fn one_empty_slab_stays_where_there_is_no_cache() {
    let size = 5000;
    let slabs = |a: &Shared| a.figures().slabs as usize / CHUNK;
    let a = system(Config::default());
    let t = thread(&a);
    // From now on the class has no cache.
    free(&a, &t, calloc(&a, &t, size));
    assert_eq!((slabs(&a), a.figures().cached_blocks), (1, 0));
    let blocks = many(&a, &t, size, 50);
    assert!(slabs(&a) > 3);
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    assert_eq!(slabs(&a), 1);
    // A slab with a block comes first or last in the list: the empty one is not needed.
    let blocks = many(&a, &t, size, 2 * class::capacity(class::of(size)) as usize);
    let (first, second) = blocks.split_at(blocks.len() / 2);
    free(&a, &t, second[0]);
    first.iter().for_each(|&p| free(&a, &t, p));
    assert_eq!(slabs(&a), 1, "the other one has a free block");
    second[1..].iter().for_each(|&p| free(&a, &t, p));
    assert_eq!(slabs(&a), 1);
    // The other way round: the empty one is last in the list.
    let blocks = many(&a, &t, size, 2 * class::capacity(class::of(size)) as usize);
    let (first, second) = blocks.split_at(blocks.len() / 2);
    free(&a, &t, first[0]);
    free(&a, &t, second[0]);
    first[1..].iter().for_each(|&p| free(&a, &t, p));
    assert_eq!(slabs(&a), 1, "the other one has a free block");
    second[1..].iter().for_each(|&p| free(&a, &t, p));
    assert_eq!(slabs(&a), 1);
    valid(&a);
    t.abandon(&a);
    // The next slow path of another thread releases it.
    let u = thread(&a);
    // Classes with a cache keep no empty slab.
    let p = malloc(&a, &u, 100);
    free(&a, &u, p);
    rest(&a, &u);
    assert!(slabs(&a) <= 1);
    valid(&a);
}

/// Catches a program that grows although another thread frees each of its blocks.
#[test]
fn what_another_thread_frees_is_used_again() {
    for size in [16, 100, 1000, 5000, 8192] {
        let a = system(Config::default());
        let (maker, user) = (thread(&a), thread(&a));
        if size >= 4096 {
            // Without a cache.
            free(&a, &maker, calloc(&a, &maker, size));
        }
        let mut most = 0;
        for round in 0..20 {
            let blocks = many(&a, &maker, size, 4 * CHUNK / size);
            let slabs = a.figures().slabs;
            if round == 3 {
                most = slabs;
            }
            assert!(round < 3 || slabs <= most, "{size} bytes: {slabs} bytes of slabs, {most} before");
            blocks.into_iter().for_each(|p| free(&a, &user, p));
            rest(&a, &user);
        }
        valid(&a);
    }
}

/// Catches a thread that takes new slabs although slabs of threads that have ended have free blocks.
#[test]
fn slabs_of_ended_threads_are_used() {
    for size in [16, 200, 3000] {
        let a = system(Config::default());
        let mine = thread(&a);
        let others: Vec<_> = (0..6).map(|_| thread(&a)).collect();
        let mut kept = Vec::new();
        // All of them have their slabs before the first thread ends.
        let all: Vec<_> = others.iter().map(|t| many(&a, t, size, CHUNK / size / 2)).collect();
        for (t, mut blocks) in others.into_iter().zip(all) {
            kept.push(blocks.pop().expect("a block"));
            blocks.into_iter().for_each(|p| free(&a, &t, p));
            t.abandon(&a);
        }
        let before = a.figures().slabs as usize;
        assert_eq!(before, 6 * CHUNK, "{size} bytes");
        // Most of three of the six slabs.
        let blocks = many(&a, &mine, size, CHUNK / size * 3);
        assert_eq!(a.figures().slabs as usize, before, "{size} bytes");
        blocks.into_iter().chain(kept).for_each(|p| free(&a, &mine, p));
        valid(&a);
    }
}

/// Catches room in caches that counts for ever: the program would get a helper that has nothing to do.
#[test]
fn room_counts_as_long_as_it_is_there() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    // Grows the caches of these classes to their limit, some 250 KiB; the slabs stay.
    let sizes = [128, 256, 512, 1024];
    for round in 0..80 {
        for size in sizes {
            let kept = if round == 0 { [0, 2 * CHUNK / size - 1] } else { [usize::MAX; 2] };
            let blocks = many(&a, &t, size, 2 * CHUNK / size - usize::from(round > 0) * 2);
            blocks.into_iter().enumerate().filter(|(i, _)| !kept.contains(i)).for_each(|(_, p)| free(&a, &t, p));
        }
        assert_eq!(a.os.faults.count(Call::StartPurger), 0, "round {round}");
        rest(&a, &t);
    }
    let p = malloc(&a, &t, 1024);
    assert!(a.figures().cached_blocks <= 1, "caches are small again");
    free(&a, &t, p);
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    for round in 0..60 {
        let p = malloc(&a, &t, 8 * CHUNK);
        free(&a, &t, p);
        rest(&a, &t);
        a.purge();
        assert_eq!(a.os.faults.count(Call::StartPurger), 0, "round {round}, large");
    }
}

/// Catches a wrong size at the ends of the tables, asked without a heap.
#[test]
fn sizes_at_the_ends() {
    let a = system(Config::default());
    let t = thread(&a);
    for (size, usable) in [(0, 16), (16, 16), (17, 32), (1024, 1024), (1025, 1152), (32768, 32768), (32769, 36864)] {
        let p = malloc(&a, &t, size);
        // SAFETY: the block is live.
        let found = unsafe { a.usable_size(Mine::none(), misuse::Call::UsableSize, p) };
        assert_eq!(found, Some(usable), "{size} bytes");
        assert_eq!(a.figures().large_blocks > 0, size > 32768);
    }
    for (size, align, usable) in
        [(32768, 64, 32768), (20000, 32768, 32768), (100, 128, 128), (129, 128, 256), (1, 65536, 4096)]
    {
        let p = t.with(&a, |heap| a.malloc_aligned(heap, size, align, false));
        // SAFETY: the block is live.
        let found = unsafe { a.usable_size(Mine::none(), misuse::Call::UsableSize, p) };
        assert_eq!((found, p.addr() % align), (Some(usable), 0), "{size} bytes at {align}");
    }
}

/// Catches caches of idle threads that keep their room: later frees into them would wait unnoticed.
#[test]
fn room_in_caches_is_taken_back() {
    let a = system(Config { purger: true, ..Config::default() });
    let asked = || a.os.faults.count(Call::StartPurger);
    let threads: Vec<_> = (0..300).map(|_| thread(&a)).collect();
    let mut blocks = Vec::new();
    for t in &threads {
        many(&a, t, 1024, 64).into_iter().for_each(|p| free(&a, t, p));
        // Takes all blocks out of its cache, so that only room is left to take back.
        let mut own = Vec::new();
        while a.figures().cached_blocks > 0 {
            own.push(malloc(&a, t, 1024));
        }
        blocks.push(own);
    }
    assert_eq!(asked(), 1, "300 caches of 64 KiB");
    let ends = (0..100).any(|_| {
        a.os.advance(100);
        a.tick().is_none()
    });
    assert!(ends);
    for (t, own) in threads.iter().zip(blocks) {
        own.into_iter().for_each(|p| free(&a, t, p));
    }
    assert_eq!(asked(), 2, "the same caches again");
}

/// Catches a block that was in a cache and still looks free when it is handed out past the caches.
#[test]
fn blocks_past_caches_look_live() {
    let a = system(Config::default());
    let t = thread(&a);
    many(&a, &t, 5000, 8).into_iter().for_each(|p| free(&a, &t, p));
    // The class loses its cache.
    calloc(&a, &t, 5000);
    for p in many(&a, &t, 5000, 8) {
        // SAFETY: the block is live.
        assert_eq!(unsafe { a.quick_size(p) }, Some(5120));
        free(&a, &t, p);
    }
    valid(&a);
}

/// Blocks in the cache of a thread after another thread has trimmed: what the handshake left.
fn left_by_a_handshake(a: &Shared, questions: u64) -> u64 {
    a.os.end_threads_after(questions);
    a.trim(0, || true);
    a.os.end_threads_after(u64::MAX);
    a.figures().cached_blocks
}

/// Catches a handshake with a thread that has ended, which uses a thread slot that may be gone: before the heap is
/// parked, before it is used, and before it is given back.
#[test]
fn no_handshake_with_threads_that_have_ended() {
    let fill = |a: &Shared, t: &Owner| many(a, t, 64, 100).into_iter().for_each(|p| free(a, t, p));
    let a = system(Config::default());
    let t = thread(&a);
    fill(&a, &t);
    let cached = a.figures().cached_blocks;
    assert!(cached >= 100, "{cached}");
    assert_eq!(left_by_a_handshake(&a, 0), cached, "ended before");
    // In a child of a fork that ran no fork handlers, the recorded number is that of a thread of the parent.
    a.os.set_process(2);
    assert_eq!(left_by_a_handshake(&a, 0), 0, "a number of another process");
    for (questions, left) in [(1, true), (2, false)] {
        let a = system(Config::default());
        let t = thread(&a);
        fill(&a, &t);
        let cached = left_by_a_handshake(&a, questions);
        assert_eq!(cached > 0, left, "ended after {questions} questions: {cached}");
        // The thread slot is no longer written: its heap stays parked.
        assert_eq!(left_by_a_handshake(&a, u64::MAX), cached, "one more handshake");
    }
}
