//! The structures that reentrant calls share with other threads. Each model was seen to fail when the protocol was
//! broken as its comment says ("Fails if").
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use neap_loom::reentrant::{Deferred, Large, Row, Slab};

/// Limit on the switches of a model away from a thread that could go on.
const PREEMPTIONS: usize = 3;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.max_branches = 10_000;
    model.check(f);
}

/// Two threads claim rows that overlap, over the border of two words, or else a single chunk, and give them back: no
/// chunk is used by both, and afterwards all are free.
///
/// Fails if: a claim does not check whether its bits were clear before; the second thread gives back bits of the first,
/// or keeps its bits in the word before; claiming is not an acquire, or releasing not a release.
#[test]
fn rows_are_apart() {
    check(|| {
        let row = Arc::new(Row::default());
        let threads = [3, 2].map(|n| {
            let row = row.clone();
            thread::spawn(move || {
                if let Some(first) = row.take(n) {
                    row.give(first, n);
                } else if let Some(first) = row.take(1) {
                    row.give(first, 1);
                }
            })
        });
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(row.take(4), Some(0), "all are free again");
    });
}

/// Reentrant mallocs and frees of the same slab by three threads: no block has two users, and none is lost.
///
/// Fails if: malloc does not check whether the bit was still set; taking a bit is not an acquire, or freeing not a
/// release.
#[test]
fn blocks_of_the_reserve() {
    check(|| {
        let slab = Arc::new(Slab::new(0b10));
        let threads = [false, true].map(|has_one| {
            let slab = slab.clone();
            thread::spawn(move || {
                if has_one {
                    slab.free(0).expect("no double free");
                }
                slab.malloc().map(|block| slab.free(block).expect("no double free"))
            })
        });
        let mine = slab.malloc();
        threads.into_iter().for_each(|t| {
            t.join().unwrap();
        });
        mine.into_iter().for_each(|block| slab.free(block).expect("no double free"));
        assert_eq!(slab.free_blocks(), (2, 2), "count == bits set");
    });
}

/// Handlers of two threads free a large block each while slow paths empty the stack: each block is freed once.
///
/// Fails if: the stack is not taken whole in one step; push is not a release, or take not an acquire.
#[test]
fn deferred_blocks_are_freed_once() {
    check(|| {
        let (deferred, blocks) = (Arc::new(Deferred::default()), [(); 2].map(|()| Arc::new(Large::default())));
        let threads = blocks.clone().map(|block| {
            let deferred = deferred.clone();
            thread::spawn(move || {
                assert!(deferred.defer(&block));
                deferred.drain();
            })
        });
        deferred.drain();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(blocks.iter().all(|block| block.is_free()));
    });
}

/// Two handlers free the same block: one of them finds the double free.
///
/// Fails if: the kind is not changed in one step.
#[test]
fn deferred_twice_is_seen() {
    check(|| {
        let (deferred, block) = (Arc::new(Deferred::default()), Arc::new(Large::default()));
        let other = {
            let (deferred, block) = (deferred.clone(), block.clone());
            thread::spawn(move || deferred.defer_untouched(&block))
        };
        let mine = deferred.defer_untouched(&block);
        assert!(mine != other.join().unwrap(), "one of the two comes second");
        deferred.drain();
        assert!(block.is_free());
    });
}
