//! The census, to the byte: free ranges by size, slabs with holes, memory that waits for the helper, hardened blocks.

use neap_core::CHUNK;
use neap_core::census::Count;
use neap_core::os::Memory;
use neap_core::policy::Limit;
use neap_coretest::calls::{books, free, hardened, malloc, rest, system, thread, valid};
use neap_coretest::{Call, Config};
use std::panic::{AssertUnwindSafe, catch_unwind};

const MIB: usize = 1 << 20;

fn count(count: u64, chunks: usize) -> Count {
    Count { count, bytes: (chunks * CHUNK) as u64 }
}

/// Catches a free range that counts under another size or length, and wrong peaks of used and held memory.
#[test]
fn free_ranges_by_size() {
    let a = system(Config::default());
    let t = thread(&a);
    // One of the chunks holds heaps.
    let chunks = [5, 1, 6, 1, 1, 1, 9, 1, 40, 1];
    let blocks: Vec<_> = chunks.iter().map(|n| malloc(&a, &t, n * CHUNK)).collect();
    let all = 1 + chunks.iter().sum::<usize>();
    let c = books(&a);
    assert_eq!((c.used, c.peak, c.held), ((all * CHUNK) as u64, (all * CHUNK) as u64, ((all - 1) * CHUNK) as u64));
    assert_eq!(a.figures().peak, c.peak);
    let (kept, gone): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 2 == 1);
    gone.into_iter().for_each(|(_, p)| free(&a, &t, p));
    rest(&a, &t);
    let c = books(&a);
    let dirty = [count(1, 1), count(0, 0), count(2, 11), count(1, 9), count(0, 0), count(1, 40)];
    assert_eq!(c.dirty[..6], dirty);
    assert!(c.dirty[6..].iter().all(|&count| count == Count::default()));
    assert_eq!((c.clean, c.held), (count(0, 0), ((all - 1) * CHUNK) as u64));
    a.purge();
    let c = books(&a);
    assert!(c.dirty.iter().all(|&count| count == Count::default()));
    assert_eq!((c.clean, c.held, c.used), (count(5, 61), (5 * CHUNK) as u64, (all * CHUNK) as u64));
    let f = a.figures();
    assert_eq!((f.clean, f.dirty, f.peak, f.totals.purged), (c.clean.bytes, 0, c.peak, c.clean.bytes));
    kept.into_iter().for_each(|(_, p)| free(&a, &t, p));
    valid(&a);
}

/// Catches OS pages of slabs that count as held although they were never used or went back, and those that do not
/// although they are held.
#[test]
fn slabs_hold_what_was_used() {
    for (page_size, size) in [(4096, 1024), (4096, 3072), (16384, 1024), (65536, 1024)] {
        let a = system(Config { page_size, ..Config::default() });
        let t = thread(&a);
        let of_slab = CHUNK / size;
        let blocks: Vec<_> = (0..of_slab + of_slab / 3).map(|_| malloc(&a, &t, size)).collect();
        // SAFETY: the blocks are that long.
        blocks.iter().for_each(|p| unsafe { p.write_bytes(1, size) });
        let held = a.held() as usize;
        // The second slab is partly used; blocks are carved up to the end of an OS page.
        let second = (of_slab / 3 * size).next_multiple_of(page_size);
        assert!((CHUNK + second..=(2 * CHUNK)).contains(&held) && held.is_multiple_of(page_size), "{held}");
        // Half of the first one.
        blocks[..of_slab / 2].iter().for_each(|&p| free(&a, &t, p));
        rest(&a, &t);
        assert_eq!(a.held() as usize, held, "free blocks hold memory still");
        let done = a.trim(0, || true);
        let whole = if page_size == CHUNK { 0 } else { (of_slab / 2 * size) / page_size * page_size };
        let now = a.held() as usize;
        assert_eq!((held - now, done.bytes), (done.bytes, done.bytes));
        assert!(done.bytes >= whole, "{done:?}: at least {whole} bytes of OS pages of {page_size}");
        let c = books(&a);
        let live = (blocks.len() - of_slab / 2) as u64;
        let class = neap_core::class::of(size);
        let capacity = u64::from(neap_core::class::capacity(class));
        assert_eq!(c.blocks[class], 2 * capacity - live);
        assert_eq!(c.tails, 2 * (CHUNK as u64 - capacity * size as u64));
        blocks[of_slab / 2..].iter().for_each(|&p| free(&a, &t, p));
        rest(&a, &t);
        a.trim(0, || true);
        assert_eq!((a.held(), a.figures().slabs), (0, 0));
        valid(&a);
    }
}

/// Catches memory that was put aside for the helper and counts as not held, or twice.
#[test]
fn memory_put_aside_is_held() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let size = 6 * MIB;
    let calloc = || t.with(&a, |heap| a.calloc(heap, size));
    let mut p = malloc(&a, &t, size);
    // SAFETY: the block is that long.
    unsafe { p.write_bytes(1, size) };
    // Written once, then left alone: in the end a block is made of clean memory, and the old memory is put aside.
    for _ in 0..3 {
        let before = p;
        free(&a, &t, p);
        p = calloc();
        if p != before {
            break;
        }
    }
    let (c, f) = (books(&a), a.figures());
    let aside = Count { count: 1, bytes: size as u64 };
    assert_eq!(c.dirty[(size / CHUNK).ilog2() as usize], aside);
    assert_eq!((c.held as usize, f.lazy as usize + f.dirty as usize, f.totals.purged), (2 * size, size, 0));
    a.tick();
    let (c, f) = (books(&a), a.figures());
    assert_eq!((c.held as usize, f.lazy + f.dirty, f.totals.purged as usize), (size, 0, size));
    valid(&a);
}

/// Catches a limit that observers do not see, and held memory that they do not see.
#[test]
fn limits_and_what_is_held_are_shown() {
    let a = system(Config { purger: true, ..Config::default() });
    let memory = Memory { limit: 8192 * MIB, used: 100 * MIB, stalled: false };
    a.os.set_memory(Some(memory));
    let t = thread(&a);
    let f = a.figures();
    assert_eq!((f.memory_limit, f.memory_used, f.held), (0, 0, 0), "not looked at so far");
    let tick = || {
        a.os.advance(100);
        a.os.run_for(100_000);
        a.tick();
    };
    for _ in 0..2 {
        let p = malloc(&a, &t, 20 * MIB);
        tick();
        free(&a, &t, p);
        (0..20).for_each(|_| tick());
    }
    let f = a.figures();
    assert_eq!((f.memory_limit as usize, f.memory_used as usize), (memory.limit, memory.used));
    assert_eq!((f.held as usize, f.dirty as usize), (20 * MIB, 20 * MIB), "what went back was needed again");
    // Idle: nothing is held.
    for _ in 0..20 {
        a.os.advance(100);
        a.tick();
    }
    assert_eq!((a.figures().held, a.figures().dirty), (0, 0));
}

/// Catches holes in slabs that go back over and over although the program uses them again each time.
#[test]
fn holes_that_are_needed_again_are_held() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let size = 1024;
    let blocks: Vec<_> = (0..64 * CHUNK / size).map(|_| malloc(&a, &t, size)).collect();
    // SAFETY: the blocks are that long.
    let write = |blocks: &[*mut u8]| blocks.iter().for_each(|p| unsafe { p.write_bytes(1, size) });
    write(&blocks);
    let (kept, mut rest_of): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 64 == 0);
    let ticks = || {
        for _ in 0..20 {
            a.os.advance(100);
            a.os.run_for(100_000);
            a.tick();
        }
    };
    let mut left = Vec::new();
    for _ in 0..3 {
        let full = a.os.usage().present;
        rest_of.drain(..).for_each(|(_, p)| free(&a, &t, p));
        rest(&a, &t);
        ticks();
        left.push(a.os.usage().present * 100 / full);
        rest_of = (0..63 * 64).map(|i| (i, malloc(&a, &t, size))).collect();
        write(&rest_of.iter().map(|&(_, p)| p).collect::<Vec<_>>());
        ticks();
    }
    assert!(left[0] < 30, "{left:?} % stay: the first time they go back");
    assert!(left[2] > 80, "{left:?} % stay: they were needed again");
    assert_eq!(kept.len(), 64);
    valid(&a);
}

/// Catches guards that are not made, not counted, or stay; and a block that is lost with its guard and counts as live.
#[test]
fn guards_are_made_and_go() {
    let (a, t) = hardened(Config::default());
    let guards = || (a.guards.count(), a.os.faults.count(Call::Guard));
    let small = malloc(&a, &t, 100);
    assert_eq!(guards(), (1, 1), "the last OS page of its slab");
    let large = malloc(&a, &t, 100_000);
    assert_eq!(guards(), (2, 2), "behind it");
    // SAFETY: the heap is lent by its thread; the block is this test's, and is that long.
    let moved = t.with(&a, |heap| unsafe {
        large.write_bytes(1, 102_400);
        a.realloc(heap, large, 102_400, 120_000)
    });
    // SAFETY: as above.
    unsafe { moved.write_bytes(1, 120_000) };
    assert_eq!(guards(), (2, 3), "its guard moves with it");
    free(&a, &t, moved);
    assert_eq!(guards().0, 1);
    free(&a, &t, small);
    t.abandon(&a);
    assert_eq!(guards().0, 0);
    valid(&a);
    let t = thread(&a);
    let p = malloc(&a, &t, 100_000);
    a.os.faults.fail_nth(Call::Commit, a.os.faults.count(Call::Commit) + 1);
    free(&a, &t, p);
    let f = a.figures();
    assert_eq!((f.live_blocks, f.live, f.large_blocks), (0, 0, 0), "the system did not make its guard accessible");
    valid(&a);
}

/// Catches a write to a free hardened block that goes unnoticed when the block is handed out again, and a predictable
/// order of blocks.
#[test]
fn hardened_blocks_are_looked_at() {
    for size in [16, 100, 1000, 3000] {
        let (a, t) = hardened(Config::default());
        let p = malloc(&a, &t, size);
        // SAFETY: the block is that long.
        unsafe { p.write_bytes(1, size) };
        free(&a, &t, p);
        // SAFETY: its memory is there still, and zero.
        assert_eq!(unsafe { a.os.first_nonzero(p, size) }, None, "{size} bytes");
        // SAFETY: the memory is there; that the block is free is what the test is about.
        unsafe { p.add(size - 1).write(1) };
        let all = || (0..CHUNK / size).map(|_| malloc(&a, &t, size)).collect::<Vec<_>>();
        let end = catch_unwind(AssertUnwindSafe(all)).expect_err("the write was not seen");
        let line = *end.downcast::<String>().expect("a line");
        assert!(line.starts_with(&format!("neap: corrupted free block {p:p}")), "{line}");
    }
    let places = |seed| {
        let (a, t) = hardened(Config { seed, ..Config::default() });
        (0..16).map(|_| malloc(&a, &t, 100).addr() % CHUNK).collect::<Vec<_>>()
    };
    let [one, two] = [1, 2].map(places);
    assert_ne!(one, two, "two processes");
    assert!(!one.is_sorted());
}

/// Catches wrong counts of cleared bytes where a zeroed block is made of used memory and clean memory before it.
#[test]
fn zeroed_blocks_of_two_kinds_of_memory() {
    let a = system(Config::default());
    let t = thread(&a);
    let [clean, dirty, _kept] = [10, 20, 1].map(|chunks| malloc(&a, &t, chunks * CHUNK));
    free(&a, &t, clean);
    rest(&a, &t);
    a.purge();
    // SAFETY: the block is that long.
    unsafe { dirty.write_bytes(1, 20 * CHUNK) };
    free(&a, &t, dirty);
    rest(&a, &t);
    let before = a.figures().totals;
    let p = t.with(&a, |heap| a.calloc(heap, 25 * CHUNK));
    assert_eq!(p, dirty.wrapping_sub(5 * CHUNK));
    let after = a.figures().totals;
    assert_eq!((after.cleared - before.cleared, after.skipped - before.skipped), (20 << 16, 5 << 16));
    // SAFETY: the block is that long.
    assert_eq!(unsafe { a.os.first_nonzero(p, 25 * CHUNK) }, None);
}

/// Catches free memory that waits and counts against the user's limit when a new block would pass it, and memory that
/// goes back although there is room.
#[test]
fn what_waits_makes_room_below_a_limit() {
    let a = system(Config { purger: true, ..Config::default() });
    a.policy.set_limit(Limit::Bytes(64 * MIB));
    let t = thread(&a);
    let [one, _kept, two, _behind] = [20 * MIB, CHUNK, 20 * MIB, CHUNK].map(|size| malloc(&a, &t, size));
    [one, two].into_iter().for_each(|p| free(&a, &t, p));
    let waits = || a.figures().dirty as usize;
    let before = waits();
    assert!(before >= 20 * MIB);
    malloc(&a, &t, 300_000);
    assert!(waits() + MIB > before, "there is room");
    malloc(&a, &t, 46 * MIB);
    assert_eq!(waits(), 0, "no range is long enough, and with another one the limit is passed");
    assert!(a.figures().peak as usize <= 64 * MIB, "{} bytes at one time", a.figures().peak);
}
