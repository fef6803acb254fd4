//! Batches of the purger, and the helper. Each model was seen to fail when the protocol was broken as its comment says
//! ("Fails if").
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use neap_loom::purge::{Memory, Purger};

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 10_000;
    model.check(f);
}

fn spawn<T: Sync + Send + 'static>(shared: &Arc<T>, f: impl FnOnce(&T) + 'static) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || f(&shared))
}

/// One thread allocates and frees while the purger has a batch: no thread uses memory on its way to the system, and
/// clean memory is zero.
///
/// Fails if: the chunk stays in its list while it is purged; it is given back before it is purged.
#[test]
fn batch_and_use() {
    check(|| {
        let memory = Arc::new(Memory::default());
        let purger = spawn(&memory, Memory::purge);
        memory.use_once();
        memory.use_once();
        purger.join().unwrap();
        assert!(memory.use_once(), "the chunk is lost");
    });
}

/// The process forks while one thread purges a batch, and another thread begins one.
///
/// Fails if: fork does not take the batch lock, or takes it after the lock of the ranges.
#[test]
fn batch_and_fork() {
    check(|| {
        let memory = Arc::new(Memory::default());
        let threads = [spawn(&memory, Memory::purge), spawn(&memory, Memory::purge)];
        memory.fork();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(memory.use_once(), "the chunk is lost");
    });
}

/// The helper ends while threads free memory: nothing waits in the end, and no two helpers use the stack at a time.
///
/// Fails if: the helper does not check for waiting memory after it has resigned, or only before; a thread that frees
/// memory does not load the state of the helper, or does so before the memory waits; a helper that resigns counts as
/// the purger; the last step is no compare-exchange; leaving the note is not a release, or taking it not an acquire.
#[test]
fn resign_and_free() {
    check(|| {
        let purger = Purger::with_helper();
        let shared = purger.clone();
        let thread = thread::spawn(move || Purger::free(&shared));
        Purger::free(&purger);
        thread.join().unwrap();
        assert_eq!(purger.end(), 0, "memory waits without a purger");
    });
}

/// A call excludes the helper while memory is freed: no helper runs during the call, and one purges what waits
/// afterwards.
///
/// Fails if: a start does not check for such calls after it has stored `STARTING`, or not again after `KEPT`, or does
/// so by a plain load; a helper that ends because of the call stores `NONE`; the end of the call asks for no helper.
/// Not modelled: a call whose wait brought nothing, and which ends while the helper resigns.
#[test]
fn stop_and_free() {
    check(|| {
        let purger = Purger::with_helper();
        let shared = purger.clone();
        let thread = thread::spawn(move || Purger::without_helper(&shared));
        Purger::free(&purger);
        thread.join().unwrap();
        assert_eq!(purger.end(), 0, "memory waits without a purger");
    });
}

/// Two calls exclude the helper, and one may end while a start of the helper sees the other.
///
/// Fails if: a start gives up because of calls that have ended since.
#[test]
fn two_stops() {
    check(|| {
        let purger = Purger::with_helper();
        let shared = purger.clone();
        let thread = thread::spawn(move || Purger::without_helper(&shared));
        Purger::without_helper(&purger);
        thread.join().unwrap();
        assert_eq!(purger.end(), 0, "memory waits without a purger");
    });
}
