//! The lock that sleeps in the kernel. Both models were seen to fail when any acquire or release of `lock.rs` was
//! relaxed, when `release` woke no thread, and when a thread that had slept left `HELD` instead of `WAITED`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use neap_loom::system::lock::Lock;
use neap_loom::system::os::Futex;

/// A number that the lock guards; loom reports two threads that use it at the same time.
struct Counter {
    lock: Lock,
    os: Futex,
    value: UnsafeCell<u32>,
}

// SAFETY: the value is used under the lock, which loom checks.
unsafe impl Sync for Counter {}
// SAFETY: as above.
unsafe impl Send for Counter {}

fn count(threads: usize, times: u32, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let counter = Arc::new(Counter { lock: Lock::new(), os: Futex::default(), value: UnsafeCell::new(0) });
        let run = move |counter: &Counter| {
            for _ in 0..times {
                let _guard = counter.lock.lock(&counter.os);
                // SAFETY: the lock is held.
                counter.value.with_mut(|v| unsafe { *v += 1 });
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || run(&counter))
            })
            .collect();
        run(&counter);
        others.into_iter().for_each(|t| t.join().unwrap());
        // SAFETY: no other thread is left.
        counter.value.with(|v| assert_eq!(unsafe { *v }, threads as u32 * times));
    });
}

/// One thread holds the lock at a time, and no thread sleeps for ever.
#[test]
fn two_threads() {
    count(2, 2, 4);
}

/// The same with a third thread: two threads may sleep, and each release wakes one.
#[test]
fn three_threads() {
    count(3, 1, 3);
}
