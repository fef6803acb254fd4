//! Visits to another thread's heap. Each model was seen to fail when the protocol was broken as its comment says ("Fails
//! if").
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use neap_loom::visit::Seated;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// The thread calls while another one visits: one at a time uses the heap, and nobody sleeps for ever.
///
/// Fails if: either half of the barrier is missing; the thread loads its heap before it says that it is busy; the
/// visitor does not look at `busy`, or looks before it parks; leaving or giving the heap back is not a release, or
/// looking at `busy` or at the thread slot not an acquire; the visitor wakes nobody.
#[test]
fn calls_and_visits() {
    check(|| {
        let has_slot = Arc::new(Seated::default());
        let visitor = {
            let has_slot = has_slot.clone();
            thread::spawn(move || u32::from(has_slot.visit()) + u32::from(has_slot.visit()))
        };
        has_slot.call(|| ());
        has_slot.call(|| ());
        let visits = visitor.join().unwrap();
        // SAFETY: no other thread is left.
        has_slot.heap.with(|uses| unsafe { assert_eq!(*uses, 2 + visits) });
    });
}

/// The thread ends while another one visits: the visit ends first, or finds no heap.
///
/// Fails if: the thread takes its heap out of the thread slot without looking whether it was parked since, or that look is
/// not an acquire; the heap goes on to
/// name the thread slot; naming it no more is not under the lock that the visitor parks under.
#[test]
fn end_and_visit() {
    check(|| {
        let has_slot = Arc::new(Seated::default());
        let visitor = {
            let has_slot = has_slot.clone();
            thread::spawn(move || has_slot.visit())
        };
        has_slot.end();
        visitor.join().unwrap();
        assert!(!has_slot.visit(), "the thread is gone");
    });
}
