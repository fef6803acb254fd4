//! State of the purger: the clocks of its ticks, and its work space.

use crate::back::batch::Work;
use crate::system::lock::Locked;
use crate::system::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::system::time::passed;

/// State of the purger, readable without a lock.
#[derive(Debug)]
pub struct Purger {
    /// True if a purger was started since memory last stopped waiting. The child of a fork gets a copy, which is all
    /// that it knows of the parent's purger.
    pub(crate) asked: AtomicBool,
    /// Clock of the last tick.
    pub(crate) last: AtomicU64,
    /// Number of ticks so far.
    pub(crate) ticks: AtomicU64,
    /// Clock at the end of the last early purge of holes, and milliseconds until the next one, if memory is short.
    pub(crate) swept: AtomicU64,
    pub(crate) sweep_pause: AtomicU64,
    /// Number of ticks in a row without work; if there can be no helper, ticks since the last attempt to start one.
    pub(crate) idle: AtomicU32,
    /// The last helper that did not end in time when a call excluded it, by its thread number.
    pub(crate) late: AtomicU32,
    /// True if the system refused all holes that were due in a tick: holes are left alone for a while.
    pub(crate) refused: AtomicBool,
    /// True if the next helper has to try refused ranges again, once: the program may have unlocked them.
    pub(crate) again: AtomicBool,
    /// OS pages of holes that were used again, as of the last tick.
    pub(crate) reused: AtomicU64,
    /// Run time of the program at the last tick, in microseconds, and number of idle ticks in a row.
    pub(crate) ran: AtomicU64,
    pub(crate) quiet: AtomicU32,
    /// The memory limit as last read, and how much of it was used. 0: not read yet, or there is none.
    pub(crate) limit: AtomicU64,
    pub(crate) used: AtomicU64,
    /// Passes that put memory into huge pages.
    pub(crate) promotion: Promotion,
    /// Held while memory is on its way to the system. Taken before all other locks. fork waits for it, so that nothing
    /// is on its way in the child.
    pub(crate) batch: Locked<Work>,
}

impl Purger {
    /// State without a purger.
    pub const fn new() -> Self {
        Purger {
            asked: AtomicBool::new(false),
            last: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            sweep_pause: AtomicU64::new(0),
            idle: AtomicU32::new(0),
            late: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            again: AtomicBool::new(false),
            reused: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            quiet: AtomicU32::new(0),
            limit: AtomicU64::new(0),
            used: AtomicU64::new(0),
            promotion: Promotion::new(),
            batch: Locked::new(Work::new()),
        }
    }

    /// Sets whether holes that were due were refused. Relaxed, at each use: one thread at a time is the purger.
    pub(crate) fn set_refused(&self, refused: bool) {
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// Number of ticks so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }
}

/// Longest wait for a pass while the program does not grow, in milliseconds.
const LONGEST_WAIT_MS: u64 = 8000;

/// Where the passes of `promote.rs` are. Written by the purger alone, so all uses are relaxed.
#[derive(Debug)]
pub(crate) struct Promotion {
    /// Clock from which on the next pass waits, or the present one waited.
    since: AtomicU64,
    /// Milliseconds that this pass was set to wait; 0: there is none.
    pub(crate) wait: AtomicU64,
    /// The next place to look at: an arena, and a chunk in the used part of it.
    pub(crate) arena: AtomicUsize,
    pub(crate) chunk: AtomicUsize,
}

impl Promotion {
    pub(crate) const fn new() -> Self {
        Promotion {
            since: AtomicU64::new(0),
            wait: AtomicU64::new(0),
            arena: AtomicUsize::new(0),
            chunk: AtomicUsize::new(0),
        }
    }

    /// Sets the next pass to begin `wait` milliseconds after `now`. There is none if that is more than the longest
    /// wait.
    pub(crate) fn set(&self, now: u64, wait: u64) {
        self.since.store(now, Ordering::Relaxed);
        self.wait.store(if wait > LONGEST_WAIT_MS { 0 } else { wait }, Ordering::Relaxed);
        self.arena.store(0, Ordering::Relaxed);
        self.chunk.store(0, Ordering::Relaxed);
    }

    /// Whether there will be a pass.
    pub(crate) fn is_due(&self) -> bool {
        self.wait.load(Ordering::Relaxed) != 0
    }

    /// There is no pass from now on.
    pub(crate) fn end(&self) {
        self.wait.store(0, Ordering::Relaxed);
    }

    /// Milliseconds since the pass was set to wait.
    pub(crate) fn waited(&self, now: u64) -> u64 {
        passed(now, self.since.load(Ordering::Relaxed))
    }
}
