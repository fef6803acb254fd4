//! What is held of the memory that is due (`pages/demand.rs`), and when it is held no longer.

use crate::Os;
use crate::back::Back;
use crate::back::batch::Keep;
use crate::pages::age::DELAY_TICKS;
use crate::pages::demand::WINDOW_TICKS;
use crate::system::sync::Ordering;

/// A program that ran for less than this share of a tick was idle in it, and memory is held through so few idle ticks.
const IDLE_SHARE: u64 = 20;
const QUIET_TICKS: u32 = 3;

impl<O: Os> Back<O> {
    /// What to hold of the memory that is due, because the program takes as much again: nothing where memory is urgently
    /// needed elsewhere, and nothing while the program is idle.
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
        self.let_go();
        Keep::default()
    }

    /// Forgets what was purged before the last tick if that is a window ago: nobody counted the time meanwhile, as there
    /// was no purger.
    pub(crate) fn forget_old_demand(&self) {
        let passed = self.os.clock().saturating_sub(self.purger.last.load(Ordering::Relaxed));
        if passed >= u64::from(WINDOW_TICKS) * u64::from(self.tick_length()) {
            self.let_go();
        }
    }

    fn let_go(&self) {
        self.ranges.with(&self.os, |r| {
            r.demand.let_go();
            r.holes.let_go();
        });
    }

    /// OS pages of holes that blocks were taken on again since the last call.
    fn reused_holes(&self) -> usize {
        let sum = self.all_heaps().fold(0_u64, |sum, heap| sum.wrapping_add(heap.flow.clean_pages()));
        // Relaxed: one thread calls this.
        sum.wrapping_sub(self.purger.reused.swap(sum, Ordering::Relaxed)) as usize
    }

    /// Whether the program has hardly run for some ticks. Asked only while memory is held.
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
