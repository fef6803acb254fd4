//! Zeroed memory: clear what may be other than zero, and no more.
//!
//! Memory that was never used, or that was purged, is clean: nothing is done. Of a dirty range of chunks the system is
//! asked which OS pages hold memory at all ([`Os::touched`]); only those are cleared, and the others stay untouched. That
//! costs about a microsecond and not the clearing of the block. Of a block of a slab that costs more than clearing it;
//! there each OS page is read, and cleared unless it is zero.
//!
//! Two kinds of programs would pay too much for the question, so each size of ranges keeps a `Habit`:
//! - one that writes its blocks whole each time: then nearly every OS page is there, and the question (a quarter of what
//!   clearing costs) is left out. A look at a few OS pages (`looks_zero`) tells when it stops to do so;
//! - one that wrote its block once, and then leaves it alone: the OS pages stay, zero, and would be cleared again each
//!   time. So a block that comes back as it was cleared, by the same look, is dropped without a question: it goes back to
//!   the system, and the next calloc of it costs nothing. If a block of that size is then found written whole, dropping
//!   was wrong, as faults cost four times what clearing costs: it is not tried again for a number of times that doubles
//!   each time.

use crate::blocks::class;
use crate::pages::Pages;
use crate::pages::owned::Owned;
use crate::pages::range::{LISTS, Taken, list_of};
use crate::system::os::Run;
use crate::system::policy::Purge;
use crate::system::sync::{AtomicU8, AtomicU64, Ordering};
use crate::{CHUNK, Os};

/// Runs that are asked for at once.
const RUNS: usize = 16;
/// OS pages that [`looks_zero`] looks at.
const SAMPLES: usize = 16;
/// A range is dense if so much of it holds memory: a half.
const DENSE: usize = 2;
/// Part of a sparse range that is dropped, not cleared, if it was left alone: a call costs what clearing so much does.
const WORTH_DROPPING: usize = 64 << 10;
/// Longest pause in dropping.
const LONGEST_PAUSE: u8 = 63;

/// What blocks of one size did, in one byte: whether they came back dense (bit 7), whether the last one was dropped
/// (bit 6), and for how many dense ones dropping pauses (bits 0 to 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Habit {
    dense: bool,
    dropped: bool,
    pause: u8,
}

impl Habit {
    const fn from_byte(b: u8) -> Self {
        Habit { dense: b & 0x80 != 0, dropped: b & 0x40 != 0, pause: b & 0x3f }
    }

    const fn byte(self) -> u8 {
        (self.dense as u8) << 7 | (self.dropped as u8) << 6 | self.pause
    }
}

/// The habits of all sizes, the lengths of ranges as `range.rs` sorts them, and the length of the last pause.
#[derive(Debug)]
pub struct Habits {
    of: [AtomicU8; LISTS],
    pause: [AtomicU8; LISTS],
    /// Bytes cleared, and bytes that did not have to be.
    pub(crate) cleared: AtomicU64,
    pub(crate) skipped: AtomicU64,
}

impl Habits {
    /// Nothing known.
    pub const fn new() -> Self {
        Habits {
            of: [const { AtomicU8::new(0) }; LISTS],
            pause: [const { AtomicU8::new(0) }; LISTS],
            cleared: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    // Relaxed, here and below: habits are guesses, which two threads may overwrite.
    fn get(&self, size: usize) -> Habit {
        Habit::from_byte(self.of[size].load(Ordering::Relaxed))
    }

    fn set(&self, size: usize, habit: Habit) {
        self.of[size].store(habit.byte(), Ordering::Relaxed);
    }

    /// A block that was dropped came back dense: twice as long a pause as last time.
    fn punish(&self, size: usize) -> u8 {
        let pause = (self.pause[size].load(Ordering::Relaxed) * 2 + 1).min(LONGEST_PAUSE);
        self.pause[size].store(pause, Ordering::Relaxed);
        pause
    }

    pub(crate) fn count(&self, cleared: usize, skipped: usize) {
        self.cleared.fetch_add(cleared as u64, Ordering::Relaxed);
        self.skipped.fetch_add(skipped as u64, Ordering::Relaxed);
    }
}

/// Whether a few OS pages of a range, evenly spread, are zero. A hint.
fn looks_zero(range: Owned, page: usize) -> bool {
    let pages = range.len() / page;
    let count = pages.min(SAMPLES);
    (0..count).all(|i| {
        let at = if count > 1 { (pages - 1) * i / (count - 1) } else { 0 } * page;
        range.part(at, at + page).is_zero()
    })
}

impl Habits {
    /// Makes `block`, whole OS pages of a new large block in the chunks of `taken`, zero. False if that is better done by
    /// another block: this one should be given back, and a clean one be taken.
    pub(crate) fn clear_large<O: Os>(&self, pages: &Pages<O>, block: Owned, taken: Taken) -> bool {
        let bytes = block.len();
        if pages.policy.zero_always() {
            block.clear();
            self.count(bytes, 0);
            return true;
        }
        let dirty = block.part(taken.dirty.0 * CHUNK, taken.dirty.1 * CHUNK);
        dirty.len() == 0 || self.clear(pages, dirty, list_of(bytes.div_ceil(CHUNK)))
    }

    /// Clears `block`, or its first bytes, of a slab of `class`, which may hold anything; returns how many bytes had to
    /// be. Untouched OS pages stay so: to look at one costs a fault, but no memory, as all that were only read are the
    /// same page of the kernel's. That is the price of the question once, and that of clearing from then on.
    pub(crate) fn clear_block<O: Os>(pages: &Pages<O>, block: Owned, class: usize) -> usize {
        if class < class::FIRST_PAGED || pages.policy.zero_always() {
            block.clear();
            return block.len();
        }
        let page = pages.page_size();
        let (mut at, mut cleared) = (0, 0);
        while at < block.len() {
            let part = block.part(at, at + page - block.start().addr().wrapping_add(at) % page);
            if !part.is_zero() {
                part.clear();
                cleared += part.len();
            }
            at += part.len();
        }
        cleared
    }

    /// Clears a dirty range as the habit of its size suggests; false to drop it.
    fn clear<O: Os>(&self, pages: &Pages<O>, range: Owned, size: usize) -> bool {
        let (len, mut habit) = (range.len(), self.get(size));
        if habit.dense {
            if !looks_zero(range, pages.page_size()) {
                habit.pause = habit.pause.saturating_sub(1);
                self.set(size, habit);
                self.count(len, 0);
                range.clear();
                return true;
            }
            if habit.pause == 0 && pages.policy.purge() != Purge::Never {
                self.set(size, Habit { dense: false, dropped: true, ..habit });
                self.count(0, len);
                return false;
            }
        }
        let rest = self.clear_touched(pages, range);
        habit.dense = rest.is_some();
        if habit.dense && habit.dropped {
            habit.pause = self.punish(size);
        }
        habit.dropped = false;
        self.set(size, habit);
        if let Some(rest) = rest {
            self.count(rest.len(), 0);
            rest.clear();
        }
        true
    }

    /// Clears the OS pages that hold memory, unless most of them do; returns what is still to be cleared then.
    fn clear_touched<O: Os>(&self, pages: &Pages<O>, range: Owned) -> Option<Owned> {
        let mut runs = [Run::EMPTY; RUNS];
        let mut rest = range;
        while rest.len() > 0 {
            // SAFETY: the range is the holder's.
            let Some(found) = (unsafe { pages.os.touched(rest.start(), rest.len(), &mut runs) }) else {
                return Some(rest);
            };
            let runs = &runs[..found.runs];
            let touched: usize = runs.iter().map(|r| r.len).sum();
            if touched > found.looked / DENSE && touched > range.len() / DENSE / 2 {
                return Some(rest);
            }
            for run in runs.iter().map(|&run| rest.run(run)) {
                // Resident and zero: cleared last time, and not written since.
                let idle = run.len() >= WORTH_DROPPING && pages.policy.purge() != Purge::Never;
                let goes = idle && looks_zero(run, pages.page_size());
                if !(goes && pages.release(run)) {
                    run.clear();
                }
            }
            self.count(touched, found.looked - touched);
            rest = rest.part(found.looked, rest.len());
            if found.looked == 0 {
                return Some(rest);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a habit that does not survive its byte.
    #[test]
    fn habits_fit_a_byte() {
        for b in 0..=255 {
            assert_eq!(Habit::from_byte(b).byte(), b);
        }
    }

    /// Catches pauses that do not grow, have no end, or are another size's.
    #[test]
    fn pauses_double() {
        let habits = Habits::new();
        let pauses: std::vec::Vec<u8> = (0..8).map(|_| habits.punish(3)).collect();
        assert_eq!(pauses, [1, 3, 7, 15, 31, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]);
        assert_eq!(habits.punish(4), 1);
    }

    /// Catches samples that miss the ends, or look behind the range.
    #[test]
    fn samples_are_spread() {
        for pages in if cfg!(miri) { [1, 2, 3, 4, 16, 17] } else { [1, 2, 15, 16, 17, 100] } {
            let mut range = std::vec![0u64; pages * 512];
            let len = pages * 4096;
            // SAFETY: the range is `len` bytes long.
            let zero = |range: &mut [u64]| looks_zero(unsafe { Owned::of(range.as_mut_ptr().cast(), len) }, 4096);
            assert!(zero(&mut range));
            for at in [0, pages * 512 - 1] {
                range[at] = 1;
                assert!(!zero(&mut range), "{pages} pages, word {at}");
                range[at] = 0;
            }
        }
    }
}
