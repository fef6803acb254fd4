//! What publication keeps: how often it was done because of less chunks in use, and the totals at the last fork.

use crate::system::sync::{AtomicU32, AtomicU64, Ordering};

/// Less chunks in use are published so many times in so many milliseconds: there are programs whose use goes up and down
/// with each call.
const MOST_SHRUNK: u32 = 64;
const SHRUNK_MS: u64 = 10;

/// The state of publication.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Clock of the first publication of these milliseconds because of less chunks in use, and their number.
    since: AtomicU64,
    shrunk: AtomicU32,
    /// The totals at the last fork.
    pub(crate) base: [AtomicU64; 3],
}

impl Publisher {
    pub(crate) const fn new() -> Self {
        Publisher { since: AtomicU64::new(0), shrunk: AtomicU32::new(0), base: [const { AtomicU64::new(0) }; 3] }
    }

    /// Whether there were few publications because of less chunks in use. A count that is wrong by some does no harm.
    pub(crate) fn may_shrink(&self, now: u64) -> bool {
        if now.wrapping_sub(self.since.load(Ordering::Relaxed)) >= SHRUNK_MS {
            self.since.store(now, Ordering::Relaxed);
            self.shrunk.store(0, Ordering::Relaxed);
        }
        self.shrunk.fetch_add(1, Ordering::Relaxed) < MOST_SHRUNK
    }
}
