//! Remote frees. Each model was seen to fail when the protocol was broken as its comment says ("Fails if").
//!
//! One ordering is stronger than these models need: the load of the heap's state after a push may be relaxed, because
//! push and take exchange the same word.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use neap_loom::protocol::{Heap, ORPHAN, OWNED, Slab};

/// Limit on the switches of a model away from a thread that could go on.
const PREEMPTIONS: usize = 3;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.max_branches = 10_000;
    model.check(f);
}

/// Frees one block of each slab in a thread of its own.
fn freer(heap: &Arc<Heap>, slabs: &[&Arc<Slab>], block: usize) -> thread::JoinHandle<()> {
    let heap = heap.clone();
    let slabs: Vec<_> = slabs.iter().map(|&s| s.clone()).collect();
    thread::spawn(move || {
        for slab in slabs {
            heap.free(&slab, block).expect("no double free");
        }
    })
}

/// Two threads free blocks of a slab while the owner collects: no free is lost, the slab is not on the stack twice, and
/// it is released only when no thread is in the middle of a free.
///
/// Fails if: setting the bit is not a release, or taking it not an acquire; counting is not a release, or taking the
/// count not an acquire; the owner takes the bits before the count; a slab is released whatever its balance; every
/// free pushes; push is not a release, or take not an acquire.
#[test]
fn two_freers_and_owner() {
    check(|| {
        let (heap, slab) = (Arc::new(Heap::new(OWNED)), Arc::new(Slab::new(2)));
        let threads = [freer(&heap, &[&slab], 0), freer(&heap, &[&slab], 1)];
        // SAFETY: this thread owns the heap.
        unsafe { heap.collect() }.unwrap();
        // SAFETY: as above.
        unsafe { heap.collect() }.unwrap();
        threads.into_iter().for_each(|t| t.join().unwrap());
        // SAFETY: as above.
        unsafe { heap.collect() }.unwrap();
        // SAFETY: no other thread is left.
        slab.own.with(|own| unsafe { assert_eq!(((*own).used, (*own).balance), (0, 0)) });
        assert!(slab.is_released());
    });
}

/// Two threads push two slabs each: the stack loses none.
///
/// Fails if: the owner reads the link after it has reset the count; resetting the count is not a release, or counting
/// not an acquire.
#[test]
fn two_slabs() {
    check(|| {
        let heap = Arc::new(Heap::new(OWNED));
        let (a, b) = (Arc::new(Slab::new(2)), Arc::new(Slab::new(2)));
        let threads = [freer(&heap, &[&a, &b], 0), freer(&heap, &[&b, &a], 1)];
        // SAFETY: this thread owns the heap.
        unsafe { heap.collect() }.unwrap();
        threads.into_iter().for_each(|t| t.join().unwrap());
        // SAFETY: as above.
        unsafe { heap.collect() }.unwrap();
        assert!(a.is_released() && b.is_released());
    });
}

/// The owner ends while another thread frees: one of them collects the free.
///
/// Fails if: the owner collects before it makes the heap an orphan; the other thread does not load the state; push is
/// not an acquire, or take not a release.
#[test]
fn abandon_and_free() {
    check(|| {
        let (heap, slab) = (Arc::new(Heap::new(OWNED)), Arc::new(Slab::new(1)));
        let thread = freer(&heap, &[&slab], 0);
        // SAFETY: this thread owns the heap.
        unsafe { heap.abandon() };
        thread.join().unwrap();
        assert!(slab.is_released(), "no thread collected the free");
    });
}

/// The same with two threads that free.
///
/// Fails if: a thread that finds an orphan collects without the lock.
#[test]
fn abandon_and_two_frees() {
    check(|| {
        let (heap, slab) = (Arc::new(Heap::new(OWNED)), Arc::new(Slab::new(2)));
        let threads = [freer(&heap, &[&slab], 0), freer(&heap, &[&slab], 1)];
        // SAFETY: this thread owns the heap.
        unsafe { heap.abandon() };
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(slab.is_released(), "no thread collected the frees");
    });
}

/// A new owner adopts an orphan while another thread frees into it: the slab has one owner at any time, and the free is
/// collected in the end.
///
/// Fails if: the state is not loaded again under the lock; adoption takes no lock.
#[test]
fn adopt_and_free() {
    check(|| {
        let (heap, slab) = (Arc::new(Heap::new(ORPHAN)), Arc::new(Slab::new(2)));
        let thread = freer(&heap, &[&slab], 0);
        heap.adopt();
        slab.malloc();
        // SAFETY: this thread owns the heap now.
        unsafe { heap.collect() }.unwrap();
        thread.join().unwrap();
        // SAFETY: as above.
        unsafe { heap.collect() }.unwrap();
        assert_eq!(slab.used(), 2);
    });
}

/// A heap becomes an orphan and gets a new owner while another thread frees: the free is collected in the end.
#[test]
fn abandon_adopt_and_free() {
    check(|| {
        let (heap, slab) = (Arc::new(Heap::new(OWNED)), Arc::new(Slab::new(2)));
        let thread = freer(&heap, &[&slab], 0);
        // SAFETY: this thread owns the heap.
        unsafe { heap.abandon() };
        heap.adopt();
        slab.malloc();
        thread.join().unwrap();
        // SAFETY: this thread owns the heap again.
        unsafe { heap.collect() }.unwrap();
        assert_eq!(slab.used(), 2);
    });
}

/// Two threads free the same block: one free counts, and the thread or the owner finds that the other is a double free.
///
/// Fails if: the owner takes the bits before the count.
#[test]
fn double_free() {
    check(|| {
        let (heap, slab) = (Arc::new(Heap::new(OWNED)), Arc::new(Slab::new(2)));
        let threads = [0, 1].map(|_| {
            let (heap, slab) = (heap.clone(), slab.clone());
            thread::spawn(move || heap.free_untouched(&slab, 0).is_err())
        });
        // SAFETY: this thread owns the heap.
        let mut found = i32::from(unsafe { heap.collect() }.is_err());
        for t in threads {
            found += i32::from(t.join().unwrap());
        }
        // SAFETY: as above.
        found += i32::from(unsafe { heap.collect() }.is_err());
        assert_eq!(found, 1);
    });
}
