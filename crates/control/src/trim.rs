//! Gives memory back on request.

use core::time::Duration;
use neap_core::trim::Trimmed;
use neap_sys::{clock, global::NEAP, thread};

/// Gives all free memory back to the system except `keep` bytes: free ranges that wait, the caches of all threads, and
/// the free OS pages of slabs. With a `budget` it ends at most one step after that time; a step is one heap, or a batch
/// of at most 4 MiB. Other threads wait for at most one step. Does nothing in a signal handler that interrupted malloc
/// or free.
pub fn trim(keep: usize, budget: Option<Duration>) -> Trimmed {
    let now = || clock::read(libc::CLOCK_MONOTONIC).unwrap_or_default();
    let start = now();
    // If the clock goes back, the budget is used up.
    let go_on = || budget.is_none_or(|budget| now().checked_sub(start).is_some_and(|passed| passed < budget));
    thread::in_call(|heap| NEAP.trim_with(heap, keep, go_on)).unwrap_or_default()
}

/// Says that the calling thread will be idle: other threads can use what its caches had, or it goes back to the system
/// as the policy says.
pub fn rest() {
    thread::rest();
}
