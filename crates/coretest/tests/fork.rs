//! What the core does in the child of a fork. There is no child process here: the handlers run as they would in one,
//! and other threads' heaps are not used afterwards.

use neap_core::Heap;
use neap_core::fork::Begin;
use neap_core::heap::{Mine, ThreadSlot};
use neap_core::lock::Lock;
use neap_core::misuse::Call as Asker;
use neap_core::valid::Depth;
use neap_coretest::calls::{Shared, free, malloc, system, thread, valid};
use neap_coretest::{Call, Config, Fake, Moment, Owner};
use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Catches free memory that stays in a child although it allocates, and much free memory that stays in an idle child.
#[test]
fn what_waits_in_the_child_goes_back() {
    for (much, at_once) in [(8 << 20, 0), (40 << 20, 1)] {
        let a = system(Config { purger: true, ..Config::default() });
        let mine = thread(&a);
        let asked = || a.os.faults.count(Call::StartPurger);
        let block = malloc(&a, &mine, much);
        free(&a, &mine, block);
        assert_eq!(asked(), 1);
        assert_eq!(mine.fork_begin(&a), Begin::Ready);
        mine.fork_child(&a);
        assert_eq!(asked(), 1 + at_once, "{much} bytes");
        // A slow path.
        malloc(&a, &mine, 3000);
        assert_eq!(asked(), 2, "{much} bytes");
        mine.abandon(&a);
    }
}

/// Catches a child, in the middle of another fork of its thread, that starts a helper at once: that takes a lock which
/// the child does not have yet, and ended the process with an internal error.
#[test]
fn a_fork_in_a_fork_starts_no_helper() {
    let a = system(Config { purger: true, ..Config::default() });
    let mine = thread(&a);
    let asked = || a.os.faults.count(Call::StartPurger);
    let block = malloc(&a, &mine, 40 << 20);
    free(&a, &mine, block);
    assert_eq!((mine.fork_begin(&a), mine.fork_begin_again(&a)), (Begin::Ready, Begin::Ready));
    mine.fork_child_in_fork(&a);
    assert_eq!(asked(), 1);
    assert!(mine.try_with(&a, |_| ()).is_none(), "the thread is in the middle of a fork still");
    a.fork_parent();
    assert_eq!(asked(), 2, "behind the other fork");
    mine.abandon(&a);
}

/// Makes some blocks: in the thread's caches, small and large, and live ones.
fn work(a: &Shared, owner: &Owner) -> Vec<*mut u8> {
    let blocks: Vec<_> =
        (0..400).map(|i| malloc(a, owner, if i % 40 == 1 { 40_000 } else { [40, 900, 7000][i % 3] })).collect();
    let (freed, kept): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 3 != 0);
    freed.into_iter().for_each(|(_, p)| free(a, owner, p));
    kept.into_iter().map(|(_, p)| p).collect()
}

/// Catches memory of other threads that a child loses although they were in no call, or uses although they were in one.
#[test]
fn idle_heaps_are_whole() {
    let a = system(Config::default());
    let (mine, idle, busy) = (thread(&a), thread(&a), thread(&a));
    let kept = [&mine, &idle, &busy].map(|owner| work(&a, owner));
    busy.with(&a, |_| {
        assert_eq!(mine.fork_begin(&a), Begin::Ready);
        mine.fork_child(&a);
    });
    let before = valid(&a);
    assert!(before.cached > 0 && before.cached_large > 0, "{before:?}");
    // The child's first slow path.
    free(&a, &mine, malloc(&a, &mine, 5 << 20));
    let after = valid(&a);
    assert!(after.cached < before.cached && after.cached_large < before.cached_large, "{before:?} {after:?}");
    // The live blocks are unchanged; all can be freed.
    assert_eq!((before.small, before.large), (after.small, after.large));
    kept.into_iter().flatten().for_each(|p| free(&a, &mine, p));
    valid(&a);
    let next = thread(&a);
    assert_eq!(next.heap(), idle.heap(), "the next thread adopts the heap that was left");
    let other = thread(&a);
    assert_ne!(other.heap(), busy.heap(), "a heap that may be half changed is used no more");
}

/// Catches a child of a process with one thread that gives up its own heap as half changed, and a child of one with
/// several threads that is not stranded.
#[test]
fn forks_in_handlers() {
    for others in [false, true] {
        let a = system(Config::default());
        let mine = thread(&a);
        let kept = work(&a, &mine);
        let other = others.then(|| thread(&a));
        mine.with(&a, |_| mine.fork_child_reentrant(&a));
        assert_eq!(a.is_stranded(), others);
        if !others {
            kept.into_iter().for_each(|p| free(&a, &mine, p));
            mine.abandon(&a);
            let census = valid(&a);
            assert_eq!((census.small, census.large, census.cached), (0, 0, 0), "{census:?}");
        }
        drop(other);
    }
}

/// Catches an interrupted call that gets no memory because its handler forked: it goes on in the child, which is
/// stranded, and may use nothing that another thread may have left half changed.
#[test]
fn interrupted_calls_get_memory_in_a_stranded_child() {
    type Call = fn(&Shared, Mine<'static>) -> (*mut u8, usize, usize);
    let calls: [Call; 8] = [
        |a, heap| (a.malloc(heap, 700), 700, 16),
        |a, heap| (a.malloc(heap, 30_000), 30_000, 16),
        |a, heap| (a.malloc(heap, 300_000), 300_000, 16),
        |a, heap| (a.malloc_aligned(heap, 900, 512, false), 900, 512),
        |a, heap| (a.malloc_aligned(heap, 10, 1 << 20, false), 10, 1 << 20),
        |a, heap| (a.calloc(heap, 700), 700, 16),
        |a, heap| (a.calloc(heap, 30_000), 30_000, 16),
        |a, heap| (a.calloc(heap, 300_000), 300_000, 16),
    ];
    for (n, call) in calls.into_iter().enumerate() {
        for cached in [true, false] {
            let a = system(Config::default());
            let (mine, _other) = (thread(&a), thread(&a));
            let before = malloc(&a, &mine, 200_000);
            mine.with(&a, |heap| {
                if !cached {
                    a.drop_caches(heap);
                }
                mine.fork_child_reentrant(&a);
                assert!(a.is_stranded());
                let (p, size, align) = call(&a, heap);
                assert!(!p.is_null() && p.addr().is_multiple_of(align), "call {n}, cached {cached}: {p:p}");
                // SAFETY: a new block, and one from before, which the interrupted call resizes: both are this thread's.
                unsafe {
                    if n >= 5 {
                        assert!((0..size).all(|i| p.add(i).read() == 0), "call {n}, cached {cached}");
                    }
                    p.write_bytes(0xA5, size);
                    before.write_bytes(0x5A, 200_000);
                    let old = a.usable_size(heap, Asker::Realloc, before).unwrap_or_default();
                    let moved = a.realloc(heap, before, old, 400_000);
                    assert!(!moved.is_null(), "call {n}, cached {cached}");
                    assert!((0..200_000).all(|i| moved.add(i).read() == 0x5A), "call {n}, cached {cached}");
                    assert!((0..size).all(|i| p.add(i).read() == 0xA5), "call {n}, cached {cached}");
                    // All calls from now on are reentrant ones.
                    assert!(a.free_reentrant(p).is_ok() && a.free_reentrant(moved).is_ok());
                }
            });
        }
    }
}

/// Catches a child that uses what another thread was changing in a call that no thread slot shows (its first, its last,
/// or a control by a thread that has no heap), and one that takes its own such call for another thread's.
#[test]
fn forks_in_handlers_beside_calls_without_a_heap() {
    for (mine_flies, other_flies) in [(false, false), (true, false), (false, true), (true, true)] {
        let a = system(Config::default());
        let mine = thread(&a);
        let other = other_flies.then(|| a.fly(core::ptr::null()));
        let fork = || mine.with(&a, |_| mine.fork_child_reentrant(&a));
        if mine_flies {
            mine.fly(&a, fork)
        } else {
            fork()
        }
        assert_eq!(a.is_stranded(), other_flies, "{mine_flies}");
        // No flight remains for which later forks would wait: each has ended, or stayed behind in the parent.
        core::mem::forget(other);
        mine.with(&a, |_| mine.fork_child_reentrant(&a));
        assert_eq!(a.is_stranded(), other_flies, "{mine_flies}");
    }
}

/// Catches a lock that stays taken after a fork in a handler that interrupted its holder, here another fork.
#[test]
fn locks_are_free_again() {
    let a = system(Config::default());
    let mine = thread(&a);
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    mine.fork_child_reentrant(&a);
    // Each of these takes one of the locks.
    let next = thread(&a);
    free(&a, &next, malloc(&a, &next, 1 << 20));
    a.purge();
    assert_ne!(next.heap(), Heap::none());
}

/// Catches a child that takes another thread's heap for its own, where the forking thread has none.
#[test]
fn a_thread_without_a_heap_forks() {
    let a = system(Config::default());
    let other = thread(&a);
    let kept = work(&a, &other);
    assert_eq!(a.fork_begin(core::ptr::null(), false, &mut a.fork_patience()), Begin::Ready);
    a.fork_child(core::ptr::null(), 0);
    assert!(!a.is_stranded() && !a.is_forking());
    let next = thread(&a);
    assert_ne!(next.heap(), other.heap(), "nothing was abandoned yet");
    // A slow path.
    free(&a, &next, malloc(&a, &next, 5 << 20));
    let adopter = thread(&a);
    assert_eq!(adopter.heap(), other.heap(), "the heap of the thread that stayed behind is adopted");
    kept.into_iter().for_each(|p| free(&a, &next, p));
    valid(&a);
}

/// Catches a child whose thread has neither heap nor slot and that takes another thread's heap for its own because that
/// one has no slot either.
#[test]
fn a_heap_without_a_slot_is_not_the_forking_threads() {
    let a = system(Config::default());
    let other = Owner::new(&a, true, false).expect("memory for a heap");
    let kept = work(&a, &other);
    assert_eq!(a.fork_begin(core::ptr::null(), false, &mut a.fork_patience()), Begin::Ready);
    a.fork_child(core::ptr::null(), 0);
    let next = thread(&a);
    kept.into_iter().for_each(|p| free(&a, &next, p));
    valid(&a);
}

/// Catches a batch that begins while a fork is in progress: a thread that waited long enough gets the lock, but must
/// not use it.
#[test]
fn no_batch_begins_during_a_fork() {
    let a = system(Config::default());
    let (mine, _other) = (thread(&a), thread(&a));
    free(&a, &mine, malloc(&a, &mine, 8 << 20));
    let purged = || [Call::Purge, Call::PurgeRuns, Call::PurgeLazily].map(|call| a.os.faults.count(call));
    let before = purged();
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    a.purge();
    assert_eq!(purged(), before);
    mine.fork_parent(&a);
    a.purge();
    assert_ne!(purged(), before);
}

/// Catches a stranded child that frees a block of an orphan by using the orphan, which another thread may have left
/// half changed.
#[test]
fn a_stranded_child_collects_for_no_orphan() {
    let a = system(Config::default());
    let (mine, _other) = (Owner::new(&a, false, true).expect("memory for a heap"), thread(&a));
    let orphan = thread(&a);
    let [p, _kept] = [(); 2].map(|()| malloc(&a, &orphan, 3000));
    orphan.abandon(&a);
    mine.with(&a, |heap| {
        mine.fork_child_reentrant(&a);
        assert!(a.is_stranded());
        // SAFETY: the heap is lent by its thread, whose call goes on; the block is this test's.
        unsafe { a.free(heap, p) }.expect("a block");
    });
    // SAFETY: no other thread uses the allocator.
    let error = unsafe { a.validate(Depth::Bits) }.expect_err("the free waits");
    assert_eq!(error.what, "an orphan has no frees that were not seen");
}

/// Catches a stranded child that touches a large block which the program has changed, and may have made inaccessible.
#[test]
fn a_stranded_child_leaves_changed_blocks_untouched() {
    let a = system(Config::default());
    let (mine, _other) = (thread(&a), thread(&a));
    let p = malloc(&a, &mine, 4 << 20);
    a.note_changed(p);
    mine.fork_child_reentrant(&a);
    assert!(a.is_stranded());
    let count = |call| a.os.faults.count(call);
    let before = (count(Call::Purge), count(Call::Renew));
    // SAFETY: the block is this test's.
    unsafe { a.free_reentrant(p) }.expect("a block");
    assert_eq!((count(Call::Purge), count(Call::Renew)), (before.0, before.1 + 1));
}

/// Catches a child that takes its own thread's heap for another thread's, and loses it or is stranded, where the heap
/// does not know its slot because the program has no pthread key left.
#[test]
fn a_thread_without_a_key_forks() {
    for reentrant in [false, true] {
        let a = system(Config::default());
        let heap = a.acquire(true).expect("memory for a heap");
        let slot = ThreadSlot::new(heap.id());
        let blocks: Vec<_> = (0..100).map(|_| a.malloc(heap, 100)).collect();
        // SAFETY: the blocks are this test's.
        blocks.into_iter().for_each(|p| unsafe { a.free(heap, p) }.expect("a block"));
        if reentrant {
            a.fork_child_reentrant(&raw const slot, 0, true);
        } else {
            assert_eq!(a.fork_begin(&raw const slot, false, &mut a.fork_patience()), Begin::Ready);
            a.fork_child(&raw const slot, 0);
        }
        assert!(!a.is_stranded() && a.figures().cached_blocks > 0);
        a.trim_with(heap, 0, || true);
        assert_eq!(a.figures().cached_blocks, 0, "reentrant: {reentrant}");
    }
}

/// Catches a fork that asks the system again about threads that made no call since the last one, and one that forgets
/// such a heap.
#[test]
fn idle_threads_are_parked_once() {
    let a = system(Config::default());
    let (mine, idle, busy) = (thread(&a), thread(&a), thread(&a));
    let kept = [&mine, &idle, &busy].map(|owner| work(&a, owner));
    let barriers = || a.os.faults.count(Call::Barrier);
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    mine.fork_parent(&a);
    let before = barriers();
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    assert_eq!(barriers(), before, "all other threads are parked still");
    mine.fork_parent(&a);
    // This one takes its heap back.
    free(&a, &busy, malloc(&a, &busy, 100));
    busy.with(&a, |_| {
        assert_eq!(mine.fork_begin(&a), Begin::Ready);
        assert_eq!(barriers(), before + 1);
        mine.fork_child(&a);
    });
    let before = valid(&a);
    // The child's first slow path.
    free(&a, &mine, malloc(&a, &mine, 5 << 20));
    let after = valid(&a);
    assert!(after.cached < before.cached, "{before:?} {after:?}");
    kept.into_iter().flatten().for_each(|p| free(&a, &mine, p));
    valid(&a);
    assert_eq!(thread(&a).heap(), idle.heap(), "the next thread adopts the heap that was left");
    assert_ne!(thread(&a).heap(), busy.heap(), "a heap that may be half changed is used no more");
}

/// Catches caches of a thread that stay because a fork, which has ended, took the heap out of its slot.
#[test]
fn a_trim_reaches_heaps_that_a_fork_has_parked() {
    let a = system(Config::default());
    let (mine, idle) = (thread(&a), thread(&a));
    let kept = [&mine, &idle].map(|owner| work(&a, owner));
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    mine.fork_parent(&a);
    assert!(a.figures().cached_blocks > 0);
    a.trim(0, || true);
    assert_eq!(a.figures().cached_blocks, 0);
    for (owner, blocks) in [&mine, &idle].into_iter().zip(kept) {
        blocks.into_iter().for_each(|p| free(&a, owner, p));
    }
    valid(&a);
}

/// Catches heaps that come back while another thread's fork is still under way, or that never do.
#[test]
fn forks_share_what_they_need() {
    let a = system(Config::default());
    let (one, two) = (thread(&a), thread(&a));
    let kept = [work(&a, &one), work(&a, &two)];
    assert_eq!(one.fork_begin(&a), Begin::Ready);
    // A second fork waits for the first one, for a while.
    let mut patience = a.fork_patience();
    let begin = |patience: &mut _| a.fork_begin(core::ptr::null(), false, patience);
    assert_eq!(begin(&mut patience), Begin::Later);
    while begin(&mut patience) == Begin::Later {
        assert!(patience.wait(&a.os), "it joins before its time is over");
    }
    // A fork in a handler of the first thread does not wait.
    assert_eq!(a.fork_begin(core::ptr::null(), true, &mut a.fork_patience()), Begin::Ready);
    for left in [true, true, false] {
        assert!(a.is_forking() && a.fly(core::ptr::null()).is_none());
        a.fork_parent();
        assert_eq!(a.is_forking(), left);
    }
    assert!(a.fly(core::ptr::null()).is_some());
    // Each thread slot holds its heap again.
    for (owner, blocks) in [&one, &two].into_iter().zip(kept) {
        blocks.into_iter().for_each(|p| free(&a, owner, p));
    }
    valid(&a);
}

/// Catches a thread that waits for seconds for a lock that the fork of a small process holds, and a child that takes
/// for whole what that thread may have been changing.
#[test]
fn a_lock_can_be_taken_from_a_fork() {
    for taken in [false, true] {
        let a = system(Config::default());
        let mine = thread(&a);
        work(&a, &mine);
        assert_eq!(mine.fork_begin(&a), Begin::Ready);
        if taken {
            // Takes the lock of the ranges.
            let begun = Instant::now();
            a.free_bytes();
            let waited = begun.elapsed().as_millis();
            assert!((50..2500).contains(&waited), "{waited} ms");
        }
        mine.fork_child(&a);
        assert_eq!(a.is_stranded(), taken);
        assert!(!a.is_forking());
    }
}

/// Catches a thread that waits for a lock as long as if the side tables of an arena were memory of the heap, while a
/// small process forks.
#[test]
fn the_fork_of_a_small_process_keeps_a_lock_for_a_short_time() {
    let wait = || {
        let a = system(Config::default());
        let mine = thread(&a);
        work(&a, &mine);
        assert_eq!(mine.fork_begin(&a), Begin::Ready);
        let begun = Instant::now();
        // Takes the lock of the ranges.
        a.free_bytes();
        begun.elapsed()
    };
    // The shortest of three, as other programs may have the processors.
    let waited = (0..3).map(|_| wait()).min().expect("a time");
    assert!(waited < Duration::from_millis(800), "{waited:?}");
}

/// Catches a fork that waits for ever for a lock that stays taken, or that takes it anyway.
#[test]
fn a_lock_may_not_come_free() {
    let (os, lock) = (Fake::new(Config::default()), Lock::new());
    let guard = lock.lock(&os);
    let begun = Instant::now();
    assert!(!lock.take_for_fork(&os, 30, 100));
    assert!(begun.elapsed().as_millis() >= 20);
    drop(guard);
    assert!(lock.take_for_fork(&os, 30, 100) && lock.is_forked());
    lock.release_for_fork(&os);
    assert!(!lock.is_forked());
}

/// Catches a heap of a thread in a call that the child takes for whole, and a heap whose thread ended during the fork
/// and that no thread ever adopts.
#[test]
fn a_thread_may_end_during_a_fork() {
    let a = system(Config::default());
    let (mine, ends) = (thread(&a), thread(&a));
    work(&a, &ends);
    let heap = ends.heap();
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    ends.end_during_fork(&a);
    a.fork_parent();
    // A slow path.
    free(&a, &mine, malloc(&a, &mine, 5 << 20));
    let next = thread(&a);
    assert_eq!(next.heap(), heap, "the next thread adopts it");
    valid(&a);
}

/// Catches a heap that the child takes for whole because its thread was in no call, although that thread ended before
/// the fork had the locks and another thread uses the heap.
#[test]
fn a_heap_may_change_hands_before_a_fork() {
    static A: LazyLock<&Shared> = LazyLock::new(|| Box::leak(system(Config::default())));
    thread_local!(static ENDS: Cell<Option<Owner>> = const { Cell::new(None) });
    let (mine, ends, busy) = (thread(&A), thread(&A), thread(&A));
    let heap = ends.heap();
    work(&A, &ends);
    ENDS.set(Some(ends));
    // The fork waits for the call of `busy`.
    A.os.set_within(Moment::Pause, || {
        ENDS.take().expect("it runs once").end_during_fork(&A);
        // The end of the call of `busy` abandons the heap; a thread whose first call began before the fork adopts it.
        A.settle();
        let next = thread(&A);
        work(&A, &next);
        core::mem::forget(next);
    });
    busy.with(&A, |_| assert_eq!(mine.fork_begin(&A), Begin::Ready));
    assert!(ENDS.take().is_none());
    mine.fork_child(&A);
    // The child's first slow path.
    free(&A, &mine, malloc(&A, &mine, 5 << 20));
    assert_ne!(thread(&A).heap(), heap, "a heap that may be half changed is used no more");
}

/// Catches a lock with two holders, and one that a fork keeps longer than it may, or does not keep at all.
#[test]
fn a_lock_has_one_holder() {
    let (os, lock) = (Fake::new(Config::default()), Lock::new());
    assert!(lock.try_take() && !lock.try_take());
    lock.release(&os);
    assert!(lock.try_take());
    lock.release(&os);
    assert!(lock.take_for_fork(&os, 0, 200) && !lock.try_take());
    let begun = Instant::now();
    lock.take(&os);
    let waited = begun.elapsed().as_millis();
    assert!((190..10_000).contains(&waited), "taken from the fork after {waited} ms");
    assert!(!lock.is_forked());
    lock.release(&os);
    assert!(lock.take_for_fork(&os, 0, 0) && lock.is_forked(), "a lock that may be taken at once is a fork's too");
}

/// Catches a fork that waits although no other thread is in a call, that makes no barrier for the others, or that waits
/// too long for those in a call.
#[test]
fn a_fork_waits_for_calls_alone() {
    let barriers = |a: &Shared| a.os.faults.count(Call::Barrier);
    let a = system(Config::default());
    let mine = thread(&a);
    mine.fly(&a, || ());
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    assert_eq!((a.os.paused(), barriers(&a)), (0, 0), "the only thread");
    mine.fork_parent(&a);
    let other = thread(&a);
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    assert_eq!((a.os.paused(), barriers(&a)), (0, 1), "the other one is idle");
    mine.fork_parent(&a);
    for flies in [true, false] {
        let before = a.os.paused();
        let fork = || assert_eq!(mine.fork_begin(&a), Begin::Ready);
        if flies {
            other.fly(&a, fork);
        } else {
            other.with(&a, |_| fork());
        }
        assert_eq!(a.os.paused() - before, 40, "ten looks, each after 4 us");
        mine.fork_parent(&a);
    }
    assert!(!a.is_forking());
    // No fork has begun: nothing ends.
    a.fork_parent();
    assert!(!a.is_forking() && a.fly(core::ptr::null()).is_some());
    let a = system(Config { missing: vec![Call::Barrier], ..Config::default() });
    let (mine, _other) = (thread(&a), thread(&a));
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    assert_eq!(a.os.paused(), 20, "in place of the barrier");
    mine.fork_parent(&a);
    valid(&a);
}

/// Catches a fork that does not wait for another one to end, or that waits for ever.
#[test]
fn forks_join_after_a_while() {
    let a = system(Config::default());
    let (first, _second) = (thread(&a), thread(&a));
    assert_eq!(first.fork_begin(&a), Begin::Ready);
    let mut patience = a.fork_patience();
    let mut begin = || a.fork_begin(core::ptr::null(), false, &mut patience);
    assert_eq!(begin(), Begin::Later);
    let mut patience = a.fork_patience();
    let before = a.os.paused();
    let begin = loop {
        match a.fork_begin(core::ptr::null(), false, &mut patience) {
            Begin::Later => assert!(patience.wait(&a.os)),
            begin => break begin,
        }
    };
    assert_eq!(begin, Begin::Ready);
    assert!((20_000..22_000).contains(&(a.os.paused() - before)), "{} us", a.os.paused() - before);
    a.fork_parent();
    assert!(a.is_forking(), "one of two has ended");
    a.fork_parent();
    assert!(!a.is_forking());
    valid(&a);
}

/// Catches the end of a thread that does not wait for a fork, or waits although there is none.
#[test]
fn ends_of_threads_wait_for_a_fork() {
    let a = system(Config::default());
    let (mine, other) = (thread(&a), thread(&a));
    let mut slot = neap_core::heap::ThreadSlot::new(other.heap());
    // SAFETY: no other thread uses this thread slot.
    assert!(unsafe { a.wait_for_fork(&raw mut slot) });
    assert_eq!(a.os.paused(), 0);
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    let before = a.os.paused();
    other.end_during_fork(&a);
    assert!((20_000..22_000).contains(&(a.os.paused() - before)), "{} us", a.os.paused() - before);
    mine.fork_parent(&a);
    valid(&a);
}

/// Catches totals of the parent that its child keeps, a large child whose figures are not published, and a small one
/// whose figures are.
#[test]
fn a_child_counts_anew() {
    for (chunks, shown) in [(120, 0), (134, 1)] {
        let a = system(Config::default());
        let mine = thread(&a);
        let p = malloc(&a, &mine, 8 << 20);
        free(&a, &mine, p);
        a.purge();
        free(&a, &mine, mine.with(&a, |heap| a.calloc(heap, 5000)));
        let totals = a.figures().totals;
        assert!(totals.purged > 0 && totals.skipped + totals.cleared > 0, "{totals:?}");
        malloc(&a, &mine, (chunks - 4) << 16);
        a.publish();
        let before = a.os.published();
        assert_eq!(mine.fork_begin(&a), Begin::Ready);
        mine.fork_child(&a);
        assert_eq!(a.figures().totals, Default::default());
        malloc(&a, &mine, 1 << 16);
        malloc(&a, &mine, 1 << 16);
        assert_eq!((a.os.published() - before).min(1), shown, "{chunks} chunks");
        mine.abandon(&a);
    }
}

/// Catches a child that records its thread under the parent's number: other threads would ask whether that one has
/// ended.
#[test]
fn a_child_knows_its_thread() {
    let a = system(Config::default());
    let mine = thread(&a);
    work(&a, &mine);
    assert_eq!(mine.fork_begin(&a), Begin::Ready);
    a.os.set_process(2);
    mine.fork_child(&a);
    a.os.end_threads_after(0);
    a.trim(0, || true);
    assert!(a.figures().cached_blocks > 0, "the heap of a thread of this process that has ended is left alone");
}

/// Waits up to ten seconds for a condition; whether it came true.
fn comes(what: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !what() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    what()
}

/// Catches a lock that is taken from a fork which is using what the lock guards.
#[test]
fn a_lock_in_use_is_kept() {
    static A: LazyLock<&Shared> = LazyLock::new(|| Box::leak(system(Config::default())));
    static TAKEN: AtomicBool = AtomicBool::new(false);
    static TOO_EARLY: AtomicBool = AtomicBool::new(false);
    let (mine, _other) = (thread(&A), thread(&A));
    A.os.set_within(Moment::Question, || {
        std::thread::spawn(|| {
            // Takes the lock of the registry.
            A.figures();
            TAKEN.store(true, Ordering::Release);
        });
        // Longer than a fork keeps a lock that others wait for.
        std::thread::sleep(Duration::from_millis(300));
        TOO_EARLY.store(TAKEN.load(Ordering::Acquire), Ordering::Release);
    });
    assert_eq!(mine.fork_begin(&A), Begin::Ready);
    assert!(!TOO_EARLY.load(Ordering::Acquire));
    mine.fork_parent(&A);
    assert!(comes(|| TAKEN.load(Ordering::Acquire)));
}
