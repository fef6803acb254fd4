//! What a program takes again soon after it went back: so much free memory is held for it while it runs.
//!
//! A page that goes back and is needed again costs a purge and a page fault. A program that fills and empties the same
//! megabytes every few seconds, slower than free memory waits, would pay both each time. So the purger counts what is
//! taken from clean memory within a *window* after it gave memory back, the *regret*, and from then on leaves so much
//! more of the free memory as it is. What was not needed for two windows is held no longer, and nothing is held while
//! the program is idle or memory is short: see `back/hold.rs`.
//!
//! There is one `Demand` for the chunks of free ranges, and one for holes in slabs: that one counts OS pages, and holds
//! as many slabs as if each page lay on one of its own, since how many holes a slab has is known only when it is
//! visited. So it may hold more than was regretted, by slabs that stay as they are for two windows at most.
//!
//! Equation: `keep == regrets so far - what was not needed - what was let go`. `keep` grows by just what was missing,
//! so it stops at the difference between the most and the least that the program holds in a cycle.

/// Ticks of a window: 10 s where free memory waits for half a second.
pub(crate) const WINDOW_TICKS: u32 = 100;
/// Less than this share of what is held may be held in vain.
const SPARE: usize = 8;

/// Part of the free ranges, and under their lock. All numbers but the ticks are chunks, or OS pages of holes.
#[derive(Debug)]
pub struct Demand {
    /// What waits is not purged below this.
    keep: usize,
    /// Purged in this window and in the one before, and not taken again so far.
    gone: [usize; 2],
    /// Taken from clean memory since the last tick.
    fresh: usize,
    /// Least that waited in this window, and in the one before.
    low: [usize; 2],
    /// Ticks of this window so far.
    ticks: u32,
}

impl Demand {
    /// Nothing is held.
    pub const fn new() -> Self {
        Demand { keep: 0, gone: [0; 2], fresh: 0, low: [usize::MAX, 0], ticks: 0 }
    }

    /// So much was taken from clean memory.
    #[inline]
    pub fn take_clean(&mut self, count: usize) {
        self.fresh += count;
    }

    /// So much waits now that some was taken.
    #[inline]
    pub fn still_waits(&mut self, count: usize) {
        self.low[0] = self.low[0].min(count);
    }

    /// The purger gave so much back because its time was up.
    pub fn purged(&mut self, count: usize) {
        self.gone[0] += count;
    }

    /// A tick.
    pub fn tick(&mut self) {
        let fresh = core::mem::take(&mut self.fresh);
        let regret = fresh.min(self.gone[0] + self.gone[1]);
        let old = regret.min(self.gone[1]);
        self.gone = [self.gone[0] - (regret - old), self.gone[1] - old];
        self.keep += regret;
        self.ticks += 1;
        if self.ticks >= WINDOW_TICKS {
            let idle = self.low[0].min(self.low[1]).min(self.keep);
            // A little more than needed stays: cycles are not all the same.
            self.keep -= if idle >= self.keep / SPARE { idle } else { 0 };
            *self =
                Demand { keep: self.keep, gone: [0, self.gone[0]], low: [usize::MAX, self.low[0]], ..Demand::new() };
        }
    }

    /// How much to hold of what waits.
    pub fn keep(&self) -> usize {
        self.keep
    }

    /// Holds nothing any more. What goes back for that is no regret when it is needed: the program was idle.
    pub fn let_go(&mut self) {
        *self = Demand::new();
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that needs `cycle(tick)` chunks, and a purger for which everything that waits is due; what was taken
    /// from clean memory, and what waits in the end.
    fn run(d: &mut Demand, ticks: usize, cycle: impl Fn(usize) -> usize) -> (usize, usize) {
        let (mut live, mut waiting, mut fresh) = (0, 0, 0);
        for t in 0..ticks {
            let need = cycle(t);
            if need > live {
                let more = need - live;
                let warm = more.min(waiting);
                waiting -= warm;
                d.still_waits(waiting);
                d.take_clean(more - warm);
                fresh += more - warm;
            } else {
                waiting += live - need;
            }
            live = need;
            d.tick();
            if waiting > d.keep {
                d.purged(waiting - d.keep);
                waiting = d.keep;
            }
        }
        (fresh, waiting)
    }

    /// Every 30 ticks for 8 ticks.
    fn pulse(t: usize) -> usize {
        if t % 30 < 8 { 160 } else { 10 }
    }

    /// Catches memory that goes back in each cycle of a program, and more held than a cycle needs.
    #[test]
    fn cycles_are_learned() {
        let mut d = Demand::new();
        run(&mut d, 90, pulse);
        assert_eq!(d.keep, 150);
        let (fresh, _) = run(&mut d, 3000, |t| pulse(t + 90));
        // The model starts with nothing; after that no chunk is fresh.
        assert_eq!((fresh, d.keep), (160, 150));
    }

    /// Catches memory that is held though nobody needs it any more.
    #[test]
    fn what_is_not_needed_goes() {
        let mut d = Demand::new();
        let (_, waiting) = run(&mut d, 320, pulse);
        assert_eq!((d.keep, waiting), (150, 150));
        let (_, waiting) = run(&mut d, 320 + 3 * WINDOW_TICKS as usize, |t| if t < 320 { pulse(t) } else { 10 });
        assert_eq!((d.keep, waiting), (0, 0));
    }

    /// Catches growth that is taken for regret: a program that frees and never takes again, or only grows.
    #[test]
    fn growth_is_no_regret() {
        let mut d = Demand::new();
        run(&mut d, 500, |t| t * 10);
        assert_eq!(d.keep, 0);
        run(&mut d, 500, |t| 5000 - t * 10);
        assert_eq!(d.keep, 0);
        d.let_go();
        d.tick();
        assert_eq!(d.keep, 0);
    }

    /// Catches a regret that is counted for memory that went back long ago.
    #[test]
    fn old_purges_are_forgotten() {
        let mut d = Demand::new();
        d.purged(100);
        (0..2 * WINDOW_TICKS).for_each(|_| d.tick());
        d.take_clean(100);
        d.tick();
        assert_eq!(d.keep, 0);
    }

    /// Catches a regret for more than was purged, or for what was purged in the window before and taken again since.
    #[test]
    fn regrets_end_where_purges_do() {
        let mut d = Demand::new();
        let take = |d: &mut Demand, count| {
            d.take_clean(count);
            d.tick();
            d.keep
        };
        d.purged(10);
        assert_eq!([take(&mut d, 4), take(&mut d, 100), take(&mut d, 5)], [4, 10, 10]);
        let mut d = Demand::new();
        d.purged(10);
        (0..WINDOW_TICKS).for_each(|_| d.tick());
        d.purged(5);
        assert_eq!([take(&mut d, 12), take(&mut d, 9), take(&mut d, 9)], [12, 15, 15]);
    }

    /// Catches a spare that is not the documented part, and one that is found in a single window.
    #[test]
    fn an_eighth_is_spare() {
        let mut d = Demand::new();
        d.purged(80);
        d.take_clean(80);
        (0..WINDOW_TICKS).for_each(|_| d.tick());
        let mut window = |low: usize| {
            (0..WINDOW_TICKS).for_each(|_| {
                d.still_waits(low + 1);
                d.still_waits(low);
                d.tick();
            });
            d.keep
        };
        assert_eq!([9, 9, 10, 10, 70, 70].map(&mut window), [80, 80, 80, 70, 60, 0]);
    }
}
