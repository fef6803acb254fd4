//! The counts of handlers' blocks, of threads that end or rest, and of samples.

use neap_core::blocks::slab_record::slab_age;
use neap_core::chunk::Kind;
use neap_core::chunk::Record;
use neap_core::class::{self, SIZE};
use neap_core::heap::{Block, Heap, Mine};
use neap_core::pages::age;
use neap_core::policy::{Limit, Purge};
use neap_core::watch::{Reason, Watch};
use neap_core::{CHUNK, misuse};
use neap_coretest::calls::{Shared, books, free, free_reentrant, hardened, malloc, rest, system, thread, valid};
use neap_coretest::{Call, Config, Owner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// A block of a handler.
fn reentrant(a: &Shared, size: usize) -> *mut u8 {
    let p = a.malloc_reentrant(size, 16, false);
    assert!(!p.is_null(), "no block of {size} bytes");
    p
}

/// Catches blocks of handlers that the census leaves out, and memory that counts as held although it went back.
#[test]
fn blocks_of_handlers_are_counted() {
    let a = system(Config::default());
    let t = thread(&a);
    let before = books(&a);
    let class = class::of(100);
    let (size, capacity) = (u64::from(SIZE[class]), u64::from(class::capacity(class)));
    let blocks: Vec<_> = (0..5).map(|_| reentrant(&a, 100)).collect();
    let with = books(&a);
    assert_eq!(with.blocks[class] - before.blocks[class], capacity - 5);
    assert_eq!(with.tails - before.tails, CHUNK as u64 - capacity * size);
    assert_eq!(with.held - before.held, CHUNK as u64);
    assert!(with.used - before.used >= CHUNK as u64);
    let large = reentrant(&a, 100_000);
    assert_eq!(books(&a).held - with.held, 102_400);
    blocks.into_iter().for_each(|p| free_reentrant(&a, p));
    assert_eq!(books(&a).blocks[class] - before.blocks[class], capacity);
    // Large blocks are freed by the next slow path.
    free_reentrant(&a, large);
    a.trim(0, || true);
    assert_eq!(books(&a).held, books(&a).dirty.iter().map(|count| count.bytes).sum::<u64>());
    // Again: the memory of that slab went back.
    let p = reentrant(&a, 100);
    assert_eq!(books(&a).blocks[class] - before.blocks[class], capacity - 1);
    // SAFETY: the block is this test's.
    unsafe { p.write_bytes(1, 100) };
    free_reentrant(&a, p);
    let done = a.trim(0, || true);
    assert!((4096..=CHUNK).contains(&done.held), "an OS page of it was touched: {done:?}");
    let again = a.trim(0, || true);
    assert_eq!((again.bytes, again.held), (0, 0), "it went already");
    valid(&a);
    t.abandon(&a);
}

/// Catches a pointer into a large block of a handler, and a second free of one, that pass as the free of a block.
#[test]
fn large_blocks_of_handlers_are_checked() {
    let a = system(Config::default());
    let t = thread(&a);
    let line = |p: *mut u8| {
        // SAFETY: the heap is lent by its thread; a wrong pointer is what the test is about.
        let free = || t.with(&a, |heap| unsafe { a.free(heap, p) });
        let end = catch_unwind(AssertUnwindSafe(free)).expect_err("a misuse that is not seen");
        *end.downcast::<String>().expect("a line")
    };
    let p = reentrant(&a, 200_000);
    for inside in [4096, CHUNK, 2 * CHUNK + 16] {
        let (at, line) = (p.wrapping_add(inside), line(p.wrapping_add(inside)));
        let wanted = format!(
            "neap: free of {at:p}, which is not the start of a block (200704-byte block, {inside} bytes inside)"
        );
        assert!(line.starts_with(&wanted), "{line}");
    }
    free(&a, &t, p);
    // The addresses belong to the reentrant reserve again, and are not in use.
    a.trim(0, || true);
    let line = line(p);
    assert!(line.starts_with(&format!("neap: free of {p:p}")) || line.starts_with("neap: double free"), "{line}");
}

/// Catches addresses of the reentrant reserve that go back while blocks lie there, or that are handed out after they
/// went back.
#[test]
fn handlers_go_on_where_addresses_went_back() {
    let a = system(Config { address_limit: Some(1 << 40), ..Config::default() });
    let t = thread(&a);
    let (small, large) = (reentrant(&a, 100), reentrant(&a, 200_000));
    let taken = a.os.taken();
    a.os.set_address_limit(512 << 20);
    assert!(a.give_reservations_back());
    assert!(a.os.taken() + (32 << 30) < taken, "{} of {taken} bytes of addresses stay", a.os.taken());
    // SAFETY: the blocks are that long.
    unsafe {
        small.write_bytes(1, 100);
        large.write_bytes(2, 200_000);
    }
    // As many blocks as there is room for: the fake panics if a block lies where nothing is mapped.
    let more: Vec<_> = (0..2000).map(|_| a.malloc_reentrant(30_000, 16, false)).take_while(|p| !p.is_null()).collect();
    assert!(!more.is_empty());
    // SAFETY: as above.
    more.iter().for_each(|p| unsafe { p.write_bytes(3, 30_000) });
    valid(&a);
    more.into_iter().chain([small, large]).for_each(|p| free_reentrant(&a, p));
    a.trim(0, || true);
    valid(&a);
    t.abandon(&a);
}

/// Frees `len` bytes in blocks of 100 KB, all of which wait.
fn wait(a: &Shared, t: &Owner, len: usize) {
    let blocks: Vec<_> = (0..len / 102_400).map(|_| malloc(a, t, 102_400)).collect();
    // SAFETY: the blocks are that long.
    blocks.iter().for_each(|p| unsafe { p.write_bytes(1, 102_400) });
    blocks.into_iter().for_each(|p| free(a, t, p));
}

/// Catches memory that stays for ever when the last working thread ends, where threads are the purger; and a thread
/// that gives back what other threads will use soon.
#[test]
fn the_last_thread_gives_back_what_waits() {
    let run = |len: usize, purge: Purge, threads: usize| {
        let a = system(Config::default());
        a.policy.set_purge(purge);
        let main = thread(&a);
        let others: Vec<_> = (0..threads).map(|_| thread(&a)).collect();
        wait(&a, &main, len);
        let before = a.free_bytes().0;
        assert!(before > len / 2, "{before} bytes wait");
        others.into_iter().for_each(|t| t.abandon(&a));
        a.thread_ended();
        valid(&a);
        (before, a.free_bytes().0)
    };
    let (_, left) = run(24 << 20, Purge::Decay, 1);
    assert_eq!(left, 0, "one thread is left, and may never call again");
    let (before, left) = run(24 << 20, Purge::Never, 1);
    assert_eq!(left, before, "nothing goes back");
    // A process that only shares the memory with its owner purges nothing: it may end at any time.
    let a = system(Config::default());
    let t = thread(&a);
    wait(&a, &t, 24 << 20);
    let before = a.free_bytes().0;
    a.os.set_process(2);
    a.thread_ended();
    assert_eq!(a.free_bytes().0, before);
    let (before, left) = run(8 << 20, Purge::Decay, 1);
    assert_eq!(left, before, "too little to be worth it");
    // Two threads go on.
    let a = system(Config::default());
    let (one, two, three) = (thread(&a), thread(&a), thread(&a));
    wait(&a, &one, 24 << 20);
    let before = a.free_bytes().0;
    three.abandon(&a);
    a.thread_ended();
    assert_eq!(a.free_bytes().0, before, "it waits for its time: two threads go on");
    one.abandon(&a);
    two.abandon(&a);
}

/// Catches a thread that rests and keeps the blocks of its caches.
#[test]
fn a_thread_that_rests_has_no_caches() {
    let a = system(Config { purger: true, ..Config::default() });
    let (one, two) = (thread(&a), thread(&a));
    let blocks: Vec<_> =
        [16, 100, 700, 40_000].iter().flat_map(|&size| [size; 20]).map(|size| malloc(&a, &one, size)).collect();
    for (i, p) in blocks.into_iter().enumerate() {
        free(&a, if i % 2 == 0 { &one } else { &two }, p);
    }
    for t in [&one, &two] {
        t.with(&a, |heap| a.rest(heap));
    }
    let f = a.figures();
    assert_eq!((f.cached_blocks, f.cached, f.live_blocks), (0, 0, 0));
    valid(&a);
}

/// Catches a caller that waits for ever for a heap whose thread is in a call.
#[test]
fn busy_heaps_are_shown_later() {
    let a = system(Config::default());
    let (one, two) = (thread(&a), thread(&a));
    let is_watched = |t: &Owner| t.with(&a, |heap| a.is_watched_at(heap));
    one.with(&a, |_| {
        a.set_reason(Reason::Counts, true);
        a.apply_watch_mode();
        assert!(is_watched(&two), "a heap that is idle");
    });
    let p = malloc(&a, &one, 100_000);
    assert!(is_watched(&one), "it follows at its next slow path");
    free(&a, &one, p);
    valid(&a);
}

/// Catches samples that are due after a miss and not taken, that are taken where the fast path serves, or that get
/// memory beyond a limit.
#[test]
fn samples_after_a_miss() {
    let a = system(Config::default());
    let t = thread(&a);
    let sample = |size| {
        t.with(&a, |heap| {
            if a.is_due_after_miss(heap, size) {
                a.malloc_sample(heap, size, CHUNK, false)
            } else {
                core::ptr::null_mut()
            }
        })
    };
    assert!(sample(100).is_null(), "no samples are wanted");
    a.set_sample_interval(1);
    assert!(sample(100).is_null(), "the heap has caches, so that its fast path serves");
    a.set_reason(Reason::Samples, true);
    a.apply_watch_mode();
    let p = sample(100);
    assert!(!p.is_null() && p.addr().is_multiple_of(CHUNK));
    // SAFETY: the block is live.
    assert!(unsafe { a.is_marked(p) });
    // SAFETY: as above.
    let usable = unsafe { a.usable_size(Mine::none(), misuse::Call::UsableSize, p) };
    assert_eq!(usable, Some(4096), "whole OS pages");
    free(&a, &t, p);
    assert!(sample(usize::MAX / 2).is_null(), "more than there can be");
    a.policy.set_limit(Limit::Bytes(8 << 20));
    assert!(sample(16 << 20).is_null(), "more than the limit allows");
    valid(&a);
}

/// Catches zeroed blocks that lose their alignment or are not zero, where the memory was written and is then left
/// untouched, so that it is given back instead of cleared; and memory that goes back although the policy is to keep it.
#[test]
fn zeroed_blocks_in_memory_that_was_used() {
    for (purge, size) in [(Purge::Decay, 3 << 20), (Purge::Decay, 64 << 20), (Purge::Never, 3 << 20)] {
        let a = system(Config::default());
        a.policy.set_purge(purge);
        let t = thread(&a);
        let align = 4 << 20;
        for round in 0..8 {
            let p = t.with(&a, |heap| a.malloc_aligned(heap, size, align, true));
            assert!(!p.is_null() && p.addr().is_multiple_of(align), "{p:p} in round {round}");
            // SAFETY: the block is that long.
            unsafe {
                assert_eq!(a.os.first_nonzero(p, size), None, "round {round}");
                if round < 2 {
                    p.write_bytes(1, size);
                }
            }
            free(&a, &t, p);
            valid(&a);
        }
        if purge == Purge::Never {
            assert_eq!(a.figures().totals.purged, 0);
        }
    }
}

/// Catches memory of hardened blocks that is lost with each free, or counts as lost.
#[test]
fn hardened_memory_comes_back() {
    let (a, t) = hardened(Config::default());
    let rounds = |n: usize| {
        for _ in 0..n {
            let blocks: Vec<_> = [100, 5000, 100_000].iter().flat_map(|&size| [size; 30]).collect();
            let blocks: Vec<_> = blocks.into_iter().map(|size| malloc(&a, &t, size)).collect();
            blocks.into_iter().for_each(|p| free(&a, &t, p));
        }
        a.figures().peak
    };
    let first = rounds(1);
    assert_eq!(rounds(10), first, "each round has what the one before had");
    valid(&a);
}

/// Catches contents of a hardened large block that remain after its free.
#[test]
fn hardened_blocks_leave_nothing() {
    let (a, t) = hardened(Config::default());
    let p = malloc(&a, &t, 200_000);
    // SAFETY: the block is that long.
    unsafe { p.write_bytes(1, 200_000) };
    free(&a, &t, p);
    // SAFETY: free memory of an arena can be read.
    assert_eq!(unsafe { a.os.first_nonzero(p, 200_000) }, None);
}

/// Catches caches that may hold much in total without a purger, and a purger that is requested too early.
#[test]
fn caches_of_many_threads_have_a_purger() {
    let a = system(Config { purger: true, ..Config::default() });
    let threads: Vec<_> = (0..16).map(|_| thread(&a)).collect();
    for (i, t) in threads.iter().enumerate() {
        assert_eq!(a.os.faults.count(Call::StartPurger), 0, "{i} threads");
        // Half a MiB in a cache of large blocks counts as a MiB: the room that it may use.
        let p = malloc(&a, t, 8 * CHUNK);
        free(&a, t, p);
    }
    assert_eq!(a.os.faults.count(Call::StartPurger), 1, "16 MiB");
}

/// Catches slabs that stay although another thread has freed all of their blocks.
#[test]
fn what_another_thread_frees_is_released() {
    for size in [16, 64, 1000, 5000, 30_000] {
        let a = system(Config::default());
        let (one, two) = (thread(&a), thread(&a));
        let blocks: Vec<_> = (0..(1 << 20) / size).map(|_| malloc(&a, &one, size)).collect();
        assert!(a.figures().slabs >= 1 << 20);
        // In two halves: the owner collects the first before there are more.
        for half in blocks.chunks(blocks.len() / 2 + 1) {
            half.iter().for_each(|&p| free(&a, &two, p));
            [&two, &one].into_iter().for_each(|t| t.with(&a, |heap| a.rest(heap)));
            valid(&a);
        }
        assert_eq!(a.figures().slabs, 0, "blocks of {size} bytes");
    }
}

/// Catches wrong counts of used blocks where a cache is filled from several slabs, and a cache that is filled from one
/// only.
#[test]
fn caches_are_filled_from_several_slabs() {
    for size in [16, 64, 200, 1000] {
        let a = system(Config::default());
        let t = thread(&a);
        let blocks: Vec<_> = (0..(1 << 20) / size).map(|_| malloc(&a, &t, size)).collect();
        // Two or three in each slab.
        let step = CHUNK / size * 2 / 5;
        blocks.iter().step_by(step).for_each(|&p| free(&a, &t, p));
        t.with(&a, |heap| a.rest(heap));
        let mut filled = 0;
        for _ in 0..20 {
            malloc(&a, &t, size);
            filled = filled.max(a.figures().cached_blocks);
            valid(&a);
        }
        assert!(filled > 3, "{filled} blocks of {size} bytes at once");
    }
}

/// Catches a lost heap that is used: its thread ended in a handler, so it may be half changed.
#[test]
fn lost_heaps_are_left_alone() {
    let a = system(Config::default());
    let (lost, other) = (thread(&a), thread(&a));
    let p = malloc(&a, &lost, 40_000);
    free(&a, &lost, p);
    let free_before = a.free_bytes();
    lost.with(&a, |heap| a.lose(heap));
    a.trim(0, || true);
    assert_eq!(a.free_bytes(), free_before, "its block stays in its cache");
    assert_ne!(malloc(&a, &other, 40_000), p);
    let next = thread(&a);
    assert_ne!(next.heap(), lost.heap());
}

/// Catches a block that a handler frees into the heap of an ended thread, and that waits until a new thread adopts the
/// heap.
#[test]
fn what_a_handler_frees_of_an_ended_thread_is_seen() {
    let a = system(Config::default());
    let (ended, other) = (thread(&a), thread(&a));
    let p = malloc(&a, &ended, 5000);
    ended.abandon(&a);
    free_reentrant(&a, p);
    assert_eq!(valid(&a).small, 0);
    // A slow path of another thread.
    free(&a, &other, malloc(&a, &other, 5 << 20));
    // SAFETY: the record is readable.
    let kind = unsafe { Record::at(p).kind() };
    assert!(kind != Kind::SLAB, "its slab is released");
}

/// Catches a slab of a lost heap whose free memory is examined again and again, although it never changes.
#[test]
fn slabs_of_lost_heaps_are_looked_at_once() {
    let a = system(Config::default());
    let lost = thread(&a);
    let blocks: Vec<_> = (0..64).map(|_| malloc(&a, &lost, 1024)).collect();
    blocks[1..].iter().for_each(|&p| free(&a, &lost, p));
    rest(&a, &lost);
    // SAFETY: the heap is its thread's, which no longer uses it; the record is that of a slab.
    let age = lost.with(&a, |heap| unsafe {
        a.lose(heap);
        slab_age(Record::at(blocks[0]))
    });
    assert_ne!(age.load(Ordering::Relaxed), age::NONE, "free memory waits there");
    assert_eq!(a.purge(), 0);
    assert_eq!(age.load(Ordering::Relaxed), age::NONE);
    valid(&a);
}

/// Catches a figure of resident memory where the system did not answer each question.
#[test]
fn resident_memory_is_all_or_nothing() {
    let a = system(Config::default());
    let t = thread(&a);
    malloc(&a, &t, 63 << 30);
    let asked = || a.os.faults.count(Call::Touched);
    let before = asked();
    assert!(a.resident().is_some());
    let questions = asked() - before;
    assert!(questions > 3, "{questions}");
    for n in 1..=questions {
        a.os.faults.fail_nth(Call::Touched, asked() + n);
        assert_eq!(a.resident(), None, "question {n} of {questions}");
    }
}

/// Catches blocks between two samples whose bytes are not counted, a block that is served although a sample is due,
/// calls that a heap goes on to serve although they are also watched for another reason, a heap that is used without
/// its caches, and one that goes on with an old distance between samples.
#[test]
fn blocks_between_samples() {
    let a = system(Config::default());
    let t = thread(&a);
    let between = |heap: Mine<'_>, size| {
        // SAFETY: the heap is the caller's.
        unsafe { Heap::malloc_between_samples(heap.id(), size, Block::untag) }
    };
    let take = |size| {
        t.with(&a, |heap| between(heap, size).map(|p| if p.is_null() { a.malloc_past_cache(heap, size) } else { p }))
    };
    assert!(take(64).is_none(), "nothing is sampled");
    a.set_sample_interval(1 << 20);
    a.set_reason(Reason::Samples, true);
    a.apply_watch_mode();
    assert!(take(64).is_none(), "the next sample is not known yet");
    let (mut bytes, mut samples) = (0, 0);
    while samples < 200 {
        match take(64) {
            Some(p) => {
                assert!(!p.is_null());
                bytes += 64;
                free(&a, &t, p);
            }
            None => samples += u64::from(t.with(&a, |heap| a.is_due_after_miss(heap, 64))),
        }
    }
    // The mean of 200 distances has a standard deviation of 7 %.
    assert!((bytes as f64 / 200.0 / f64::from(1 << 20) - 1.0).abs() < 0.3, "{bytes} bytes");
    assert!(take(0).is_none() && take(1025).is_none(), "sizes that the table does not serve");
    t.with(&a, |heap| a.drop_caches(heap));
    let (p, q) = (take(64).unwrap(), take(64).unwrap());
    assert!(!p.is_null() && !q.is_null() && p != q, "blocks of the slabs");
    a.set_sample_interval(1);
    t.with(&a, |heap| a.follow(heap));
    assert!(take(64).is_none(), "each block is a sample");
    a.set_reason(Reason::Sites, true);
    a.apply_watch_mode();
    assert!(take(64).is_none(), "each call is recorded");
    free(&a, &t, p);
    free(&a, &t, q);
    valid(&a);
}

/// Catches a heap that is not tried again after its thread was in a call, one that has caches while each call is
/// watched, and one that has none when the watch is over.
#[test]
fn heaps_show_what_they_shall() {
    let a = system(Config::default());
    let (one, two) = (thread(&a), thread(&a));
    let barriers = || a.os.faults.count(Call::Barrier);
    a.set_reason(Reason::Samples, true);
    assert_eq!(a.watch(), Watch::Samples);
    a.set_reason(Reason::Sites, true);
    assert_eq!(a.watch(), Watch::Allocations);
    a.set_reason(Reason::Sites, false);
    a.set_reason(Reason::Samples, false);
    one.with(&a, |_| {
        a.set_reason(Reason::Counts, true);
        let before = barriers();
        a.apply_watch_mode();
        assert_eq!(
            barriers() - before,
            4,
            "a handshake with one thread, and one with the other in each of three rounds"
        );
    });
    assert_eq!(a.watch(), Watch::Everything);
    let cached = |t: &Owner| {
        t.with(&a, |heap| a.follow(heap));
        let p = malloc(&a, t, 100);
        free(&a, t, p);
        a.figures().cached_blocks
    };
    assert_eq!((cached(&one), cached(&two)), (0, 0));
    a.set_reason(Reason::Counts, false);
    let first = cached(&one);
    assert!(first > 0 && cached(&two) > first, "both have caches again");
    valid(&a);
}

/// Catches a trim that leaves what other threads freed into a heap with empty caches, and one whose result counts
/// memory behind the part that the system reported.
#[test]
fn a_trim_takes_what_others_freed() {
    let a = system(Config { purger: true, touched_runs: Some(1), ..Config::default() });
    let (owner, other) = (thread(&a), thread(&a));
    let blocks: Vec<_> = (0..200).map(|_| malloc(&a, &owner, 5000)).collect();
    let large = [3 << 20, 1 << 20].map(|size| malloc(&a, &owner, size));
    // SAFETY: the blocks are that long.
    unsafe {
        (0..100).for_each(|i| large[0].add(i * 3 * 4096).write(1));
        large[1].write_bytes(1, 1 << 20);
    }
    rest(&a, &owner);
    a.trim(0, || true);
    blocks.iter().for_each(|&p| free(&a, &other, p));
    rest(&a, &other);
    a.trim(0, || true);
    assert_eq!(valid(&a).small, 0);
    // SAFETY: the record is readable.
    let kinds = || blocks.iter().map(|&p| unsafe { Record::at(p).kind() });
    assert!(kinds().all(|kind| kind != Kind::SLAB), "all slabs are released");
    free(&a, &owner, large[0]);
    assert_eq!(a.trim(0, || true).held, 100 * 4096);
}
