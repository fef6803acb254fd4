//! The purger's state: clocks of its ticks, and what it works with.

use crate::back::batch::Work;
use crate::system::lock::Locked;
use crate::system::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The purger's state, readable without a lock.
#[derive(Debug)]
pub struct Purger {
    /// A purger was asked for since nothing waited: copied to the child of a fork, for which it is all that is known of
    /// the parent's.
    pub(crate) asked: AtomicBool,
    /// Clock of the last tick.
    pub(crate) last: AtomicU64,
    /// Ticks so far.
    pub(crate) ticks: AtomicU64,
    /// Clock from which on holes need not wait for their time where memory is short.
    pub(crate) sweep_from: AtomicU64,
    /// Ticks in a row that found nothing; where there can be no helper, ticks since one was asked for.
    pub(crate) idle: AtomicU32,
    /// All holes that were due in some tick were refused: they are left alone for a while.
    pub(crate) refused: AtomicBool,
    /// Ranges that were refused are tried again: by the next helper, once, as what locked them may be over.
    pub(crate) again: AtomicBool,
    /// OS pages of holes that were used again, as of the last tick.
    pub(crate) reused: AtomicU64,
    /// How long the program had run at the last tick, in microseconds, and idle ticks in a row.
    pub(crate) ran: AtomicU64,
    pub(crate) quiet: AtomicU32,
    /// The memory limit as last looked at, and what was used of it; 0: it was not, or there is none.
    pub(crate) limit: AtomicU64,
    pub(crate) used: AtomicU64,
    /// Held while memory is on its way to the system. Taken before all other locks; fork waits for it, so that
    /// nothing is on its way in the child.
    pub(crate) batch: Locked<Work>,
}

impl Purger {
    /// There is no purger.
    pub const fn new() -> Self {
        Purger {
            asked: AtomicBool::new(false),
            last: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            sweep_from: AtomicU64::new(0),
            idle: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            again: AtomicBool::new(false),
            reused: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            quiet: AtomicU32::new(0),
            limit: AtomicU64::new(0),
            used: AtomicU64::new(0),
            batch: Locked::new(Work::new()),
        }
    }

    /// Sets whether holes that were due were refused. Relaxed, at each use: one thread at a time is the purger.
    pub(crate) fn set_refused(&self, refused: bool) {
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// Ticks so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }
}

impl Default for Purger {
    fn default() -> Self {
        Self::new()
    }
}
