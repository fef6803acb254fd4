//! When figures are published: at each tick of a helper; otherwise when a program grows or shrinks by much.

use neap_core::policy::Purge;
use neap_coretest::calls::{Shared, free, malloc, rest, system, thread};
use neap_coretest::{Config, Owner};

const MIB: usize = 1 << 20;

fn with_thread(purger: bool) -> (Box<Shared>, Owner) {
    let a = system(Config { purger, ..Config::default() });
    let t = thread(&a);
    (a, t)
}

/// Catches stale figures while the program grows or shrinks by megabytes, and a program that publishes for each block.
#[test]
fn growth_is_published() {
    let (a, t) = with_thread(false);
    let small = malloc(&a, &t, 100);
    let most = malloc(&a, &t, 7 * MIB);
    assert_eq!(a.os.published(), 0, "a small program");
    let p = malloc(&a, &t, 3 * MIB);
    assert_eq!(a.os.published(), 1);
    for _ in 0..5 {
        malloc(&a, &t, 150_000);
    }
    assert_eq!(a.os.published(), 1, "less than a megabyte more");
    malloc(&a, &t, 150_000);
    assert_eq!(a.os.published(), 2, "a megabyte");
    // SAFETY: the heap is lent by its thread; the block is this test's.
    let p = t.with(&a, |heap| unsafe { a.realloc(heap, p, 3 * MIB, 5 * MIB) });
    assert_eq!(a.os.published(), 3, "a block that grew");
    free(&a, &t, p);
    assert_eq!(a.os.published(), 4, "much of it is free");
    free(&a, &t, small);
    assert_eq!(a.os.published(), 4);
    free(&a, &t, most);
    assert_eq!(a.os.published(), 5);
}

/// Catches a large program that publishes when it shrinks by less than an eighth.
#[test]
fn an_eighth_less_is_news() {
    let (a, t) = with_thread(false);
    // A thread that gives memory back publishes as well.
    a.policy.set_purge(Purge::Never);
    let mut blocks: Vec<_> = (0..80).map(|_| malloc(&a, &t, MIB)).collect();
    let before = a.os.published();
    blocks.drain(..9).for_each(|p| free(&a, &t, p));
    assert_eq!(a.os.published(), before);
    blocks.drain(..3).for_each(|p| free(&a, &t, p));
    assert_eq!(a.os.published(), before + 1);
}

/// Catches a program that grows and shrinks with each call and publishes each time, or stops publishing.
#[test]
fn ups_and_downs_are_few() {
    let (a, t) = with_thread(false);
    // A thread that gives memory back publishes as well.
    a.policy.set_purge(Purge::Never);
    let turns = |n: usize| {
        let before = a.os.published();
        for _ in 0..n {
            let p = malloc(&a, &t, 8 * MIB);
            free(&a, &t, p);
        }
        a.os.published() - before
    };
    assert_eq!(turns(100), 2 * 64 + 1, "64 times down, and so 65 times up");
    assert_eq!(turns(100), 0);
    a.os.advance(9);
    assert_eq!(turns(1), 0);
    a.os.advance(1);
    assert_eq!(turns(10), 2 * 10 - 1, "it was up");
}

/// Catches threads that publish although a helper does, and figures that are seconds old because its ticks are rare.
#[test]
fn a_helper_publishes() {
    let (a, t) = with_thread(true);
    let p = malloc(&a, &t, 8 * MIB);
    free(&a, &t, p);
    assert_eq!(a.figures().purger, 1, "it was asked for");
    let before = a.os.published();
    malloc(&a, &t, 8 * MIB);
    malloc(&a, &t, 8 * MIB);
    assert_eq!(a.os.published(), before);
    for tick in 1..4 {
        a.tick();
        assert_eq!((a.os.published(), a.figures().ticks), (before + tick, tick));
        a.os.advance(100);
    }
    a.policy.set_delay(1000);
    malloc(&a, &t, 8 * MIB);
    assert_eq!(a.os.published(), before + 3, "a look each 200 ms");
    a.policy.set_delay(1005);
    malloc(&a, &t, 8 * MIB);
    assert_eq!(a.os.published(), before + 4);
}

/// Catches stale figures where the threads that free memory are the purger.
#[test]
fn threads_that_purge_publish() {
    let (a, t) = with_thread(false);
    let p = malloc(&a, &t, 8 * MIB);
    free(&a, &t, p);
    assert_eq!(a.figures().purger, 2, "there is no helper");
    for _ in 0..5 {
        let before = a.os.published();
        a.os.advance(100);
        // Too small a change to be published.
        let p = malloc(&a, &t, 400_000);
        free(&a, &t, p);
        rest(&a, &t);
        assert_eq!(a.os.published(), before + 1);
    }
}
