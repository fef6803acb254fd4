//! Decides how much of the due memory is held for the program (`pages/demand.rs`), and when it is no longer held.

use crate::Os;
use crate::back::Back;
use crate::back::batch::Keep;
use crate::pages::age::DELAY_TICKS;
use crate::pages::demand::WINDOW_TICKS;
use crate::system::sync::Ordering;
use crate::system::time::passed;

/// A program that ran for less than one part in `IDLE_SHARE` of a tick was idle in that tick. After `QUIET_TICKS` such
/// ticks no memory is kept.
const IDLE_SHARE: u64 = 20;
const QUIET_TICKS: u32 = 3;

impl<O: Os> Back<O> {
    /// Returns how much of the due memory to keep, because the program takes as much again. That is nothing while
    /// memory is urgently needed elsewhere, and while the program is idle.
    #[cold]
    pub(crate) fn keep(&self, ticks: u8, in_time: bool) -> Keep {
        let reused = if in_time { self.reused_holes() } else { 0 };
        let keep = self.ranges.with(&self.os, |r| {
            if in_time {
                r.holes.take_clean(reused);
                r.holes.tick();
                r.demand.tick();
            }
            Keep { chunks: r.demand.keep(), slabs: r.holes.keep() }
        });
        if keep == Keep::default() || (ticks == DELAY_TICKS && !self.is_idle_program(in_time)) {
            return keep;
        }
        self.forget_demand();
        Keep::default()
    }

    /// Forgets the demand if the last tick was a window ago or more: there was no purger that counted time meanwhile.
    pub(crate) fn forget_old_demand(&self) {
        let passed = passed(self.os.clock(), self.purger.last.load(Ordering::Relaxed));
        if passed >= u64::from(WINDOW_TICKS) * u64::from(self.tick_length()) {
            self.forget_demand();
        }
    }

    /// Keeps nothing from now on.
    fn forget_demand(&self) {
        self.ranges.with(&self.os, |r| {
            r.demand.reset();
            r.holes.reset();
        });
    }

    /// Number of clean OS pages of slabs on which blocks were taken since the last call.
    fn reused_holes(&self) -> usize {
        let sum = self.all_heaps().fold(0_u64, |sum, heap| sum.wrapping_add(heap.flow.clean_pages()));
        // Relaxed: one thread calls this.
        sum.wrapping_sub(self.purger.reused.swap(sum, Ordering::Relaxed)) as usize
    }

    /// Whether the program has hardly run for some ticks. Called only while memory is kept.
    fn is_idle_program(&self, in_time: bool) -> bool {
        // Relaxed, here and below: one thread calls this.
        if in_time {
            let Some(now) = self.os.run_time() else { return true };
            let ran = now.saturating_sub(self.purger.ran.swap(now, Ordering::Relaxed));
            let least = u64::from(self.tick_length()) * 1000 / IDLE_SHARE;
            let quiet = if ran < least { self.purger.quiet.load(Ordering::Relaxed) + 1 } else { 0 };
            self.purger.quiet.store(quiet, Ordering::Relaxed);
        }
        self.purger.quiet.load(Ordering::Relaxed) >= QUIET_TICKS
    }
}
