//! Handshakes with another thread's heap. Each model was seen to fail when the protocol was broken as its comment says
//! ("Fails if").
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use neap_loom::handshake::Thread;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// A thread makes calls while another one makes handshakes: one at a time uses the heap, and no thread sleeps for ever.
///
/// Fails if: either half of the barrier is missing; the thread loads its heap before it sets `busy`; the other thread
/// does not load `busy`, or does so before it parks the heap; the end of a call or of a handshake is not a release, or
/// the load of `busy` or of the thread slot not an acquire; the other thread does not wake the owner.
#[test]
fn calls_and_handshakes() {
    check(|| {
        let owner = Arc::new(Thread::default());
        let other = {
            let owner = owner.clone();
            thread::spawn(move || u32::from(owner.handshake()) + u32::from(owner.handshake()))
        };
        owner.call(|| ());
        owner.call(|| ());
        let handshakes = other.join().unwrap();
        // SAFETY: no other thread is left.
        owner.heap.with(|uses| unsafe { assert_eq!(*uses, 2 + handshakes) });
    });
}

/// A thread ends while another one makes a handshake: the handshake ends first, or finds no heap.
///
/// Fails if: the thread takes its heap out of the thread slot without a check whether it was parked since, or that
/// check is not an acquire; the heap still refers to the thread slot; the heap drops that reference without the lock
/// under which the other thread parks it.
#[test]
fn end_and_handshake() {
    check(|| {
        let owner = Arc::new(Thread::default());
        let other = {
            let owner = owner.clone();
            thread::spawn(move || owner.handshake())
        };
        owner.end();
        other.join().unwrap();
        assert!(!owner.handshake(), "the thread has ended");
    });
}
