//! Giving memory back when asked to.

use core::time::Duration;
use neap_core::trim::Trimmed;
use neap_sys::{global::NEAP, thread};

/// Time since some moment.
fn now() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `now`; this clock is always there, so errno is not touched.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// Gives all free memory back to the system but for `keep` bytes: what waits in free ranges, the caches of all threads,
/// and the free OS pages of slabs. With a `budget` it ends a step after so much time: a step is a heap, or a batch of at
/// most 4 MiB. Other threads wait for no longer than a step. Nothing in a signal handler that interrupted malloc or free.
pub fn trim(keep: usize, budget: Option<Duration>) -> Trimmed {
    let start = now();
    let go_on = || budget.is_none_or(|budget| now().saturating_sub(start) < budget);
    thread::in_call(|heap| NEAP.trim_with(heap, keep, go_on)).unwrap_or_default()
}

/// The calling thread will be idle: what it keeps at hand serves others now, or goes back to the system as the policy
/// says.
pub fn rest() {
    thread::rest();
}
