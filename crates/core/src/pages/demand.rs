//! Computes how much free memory the purger keeps for a running program, from what the program took again soon after a
//! purge.
//!
//! An OS page that is purged and needed again costs a purge and a page fault. A program that fills and empties the same
//! megabytes every few seconds, at intervals longer than free memory waits, would pay both each time. So the allocator
//! counts the memory that the program takes from clean memory within a *window* after a purge, the *regret*, and from
//! then on keeps that much more of the free memory. It stops keeping what was not needed for two windows, and keeps
//! nothing while the program is idle or memory is short: see `back/hold.rs`.
//!
//! There is one `Demand` for the chunks of free ranges, and one for holes in slabs. The latter counts OS pages, and
//! keeps as many slabs as if each page were in a slab of its own, since the number of holes of a slab is known only in
//! a handshake with its owner. So it may keep more than the regret, for two windows at most.
//!
//! Equation: `keep == sum of regrets - what was not needed`, since the last [`Demand::reset`]. `keep` grows by exactly
//! what was missing, so it stops at the difference between the most and the least that the program uses in a cycle.

/// Number of ticks of a window: 10 s where free memory waits for half a second.
pub(crate) const WINDOW_TICKS: u32 = 100;
/// Memory that was not needed stays kept if it is less than one part in this many of `keep`, as cycles differ.
const SPARE: usize = 8;

/// The demand for one kind of free memory. Guarded by the lock of the ranges. All numbers except the ticks are chunks,
/// or OS pages of holes.
#[derive(Debug)]
pub struct Demand {
    /// The purger leaves this much waiting memory.
    keep: usize,
    /// What was purged in this window and in the one before, and was not taken again yet.
    gone: [usize; 2],
    /// What was taken from clean memory since the last tick.
    fresh: usize,
    /// Minimum that waited in this window, and in the one before.
    low: [usize; 2],
    /// Number of ticks since this window began.
    ticks: u32,
}

impl Demand {
    /// A demand that keeps nothing.
    pub const fn new() -> Self {
        Demand { keep: 0, gone: [0; 2], fresh: 0, low: [usize::MAX, 0], ticks: 0 }
    }

    /// Counts memory that was taken from clean memory.
    #[inline]
    pub fn take_clean(&mut self, count: usize) {
        self.fresh += count;
    }

    /// Notes that `count` still waits after some was taken.
    #[inline]
    pub fn still_waits(&mut self, count: usize) {
        self.low[0] = self.low[0].min(count);
    }

    /// Counts memory that the purger gave back because it had waited long enough.
    pub fn purged(&mut self, count: usize) {
        self.gone[0] += count;
    }

    /// Counts a tick: adds the regret since the last one to `keep`, and ends the window when it is over.
    pub fn tick(&mut self) {
        let fresh = core::mem::take(&mut self.fresh);
        let regret = fresh.min(self.gone[0] + self.gone[1]);
        let old = regret.min(self.gone[1]);
        self.gone = [self.gone[0] - (regret - old), self.gone[1] - old];
        self.keep += regret;
        self.ticks += 1;
        if self.ticks >= WINDOW_TICKS {
            let idle = self.low[0].min(self.low[1]).min(self.keep);
            self.keep -= if idle >= self.keep / SPARE { idle } else { 0 };
            *self =
                Demand { keep: self.keep, gone: [0, self.gone[0]], low: [usize::MAX, self.low[0]], ..Demand::new() };
        }
    }

    /// The amount of waiting memory to keep.
    pub fn keep(&self) -> usize {
        self.keep
    }

    /// Forgets everything, and keeps nothing. What is purged for that reason is no regret when it is taken again: the
    /// program was idle.
    pub fn reset(&mut self) {
        *self = Demand::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a program that needs `cycle(tick)` chunks, and a purger for which all waiting memory is due. Returns
    /// what was taken from clean memory, and what waits in the end.
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

    /// A load of 160 chunks for 8 ticks, every 30 ticks; else of 10.
    fn pulse(t: usize) -> usize {
        if t % 30 < 8 { 160 } else { 10 }
    }

    /// Catches memory that is purged in each cycle of a program, and more memory kept than a cycle needs.
    #[test]
    fn cycles_are_learned() {
        let mut d = Demand::new();
        run(&mut d, 90, pulse);
        assert_eq!(d.keep, 150);
        let (fresh, _) = run(&mut d, 3000, |t| pulse(t + 90));
        // The first cycle takes clean memory; no later one does.
        assert_eq!((fresh, d.keep), (160, 150));
    }

    /// Catches memory that is kept although the program no longer needs it.
    #[test]
    fn what_is_not_needed_goes() {
        let mut d = Demand::new();
        let (_, waiting) = run(&mut d, 320, pulse);
        assert_eq!((d.keep, waiting), (150, 150));
        let (_, waiting) = run(&mut d, 320 + 3 * WINDOW_TICKS as usize, |t| if t < 320 { pulse(t) } else { 10 });
        assert_eq!((d.keep, waiting), (0, 0));
    }

    /// Catches regret that is counted for a program that only grows, or only frees.
    #[test]
    fn growth_is_no_regret() {
        let mut d = Demand::new();
        run(&mut d, 500, |t| t * 10);
        assert_eq!(d.keep, 0);
        run(&mut d, 500, |t| 5000 - t * 10);
        assert_eq!(d.keep, 0);
        d.reset();
        d.tick();
        assert_eq!(d.keep, 0);
    }

    /// Catches regret that is counted for memory that was purged long ago.
    #[test]
    fn old_purges_are_forgotten() {
        let mut d = Demand::new();
        d.purged(100);
        (0..2 * WINDOW_TICKS).for_each(|_| d.tick());
        d.take_clean(100);
        d.tick();
        assert_eq!(d.keep, 0);
    }

    /// Catches more regret than was purged, and regret that is counted twice for the same purge.
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

    /// Catches a spare other than an eighth, and memory that is released after a single window.
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
