//! State of publication: how often figures were published because fewer chunks are in use, and the totals at the last
//! fork.

use crate::system::sync::{AtomicU32, AtomicU64, Ordering};
use crate::system::time::passed;

/// Maximum number of publications within `SHRUNK_MS` because fewer chunks are in use: there are programs whose use goes
/// up and down with each call.
const MOST_SHRUNK: u32 = 64;
const SHRUNK_MS: u64 = 10;

/// The state of publication.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Time of the first publication in the current `SHRUNK_MS` because fewer chunks are in use, and their number.
    since: AtomicU64,
    shrunk: AtomicU32,
    /// The totals at the last fork.
    pub(crate) base: [AtomicU64; 3],
}

impl Publisher {
    pub(crate) const fn new() -> Self {
        Publisher { since: AtomicU64::new(0), shrunk: AtomicU32::new(0), base: [const { AtomicU64::new(0) }; 3] }
    }

    /// Whether figures may be published because fewer chunks are in use; counts that publication. A slightly wrong
    /// count does no harm.
    pub(crate) fn may_shrink(&self, now: u64) -> bool {
        if passed(now, self.since.load(Ordering::Relaxed)) >= SHRUNK_MS {
            self.since.store(now, Ordering::Relaxed);
            self.shrunk.store(0, Ordering::Relaxed);
        }
        self.shrunk.fetch_add(1, Ordering::Relaxed) < MOST_SHRUNK
    }
}
