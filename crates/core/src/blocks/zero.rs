//! Makes memory zero for calloc: clears what may be other than zero, and no more.
//!
//! Memory that was never used, or that was purged, is clean and needs no clearing (invariant 6). For a dirty range of
//! chunks, neap asks the system which OS pages hold memory at all ([`Os::touched`]); it clears only those, and the
//! others stay untouched. The question costs about a microsecond, which replaces the clearing of the block. For a block
//! of a slab the question costs more than clearing: there each OS page is read, and cleared unless it is zero. Reading
//! costs up to twice as much as clearing. So blocks of a class whose blocks come back written (`Look`) are cleared at
//! once.
//!
//! For two kinds of programs the question costs too much, so neap keeps a `Habit` for each size of ranges:
//! - A program that writes each block whole: nearly every OS page holds memory, so neap skips the question (a quarter
//!   of the cost of clearing). Samples of a few OS pages (`looks_zero`) show when the program changes its habit.
//! - A program that wrote its block once, and leaves it alone from then on: the OS pages stay resident, are zero, and
//!   would be cleared again each time. So a block whose samples are zero is dropped without a question: it goes back to
//!   the system, and the next calloc of it costs nothing. If a block of that size is then found written whole, dropping
//!   was wrong, because page faults cost four times as much as clearing: dropping pauses for a number of blocks that
//!   doubles each time.

use crate::blocks::class;
use crate::pages::Pages;
use crate::pages::owned::Owned;
use crate::pages::range::{LISTS, Taken, list_of};
use crate::system::os::Run;
use crate::system::policy::Purge;
use crate::system::sync::{AtomicU8, AtomicU64, Ordering};
use crate::{CHUNK, Os};

/// Number of runs that one question asks for.
const RUNS: usize = 16;
/// Number of OS pages that [`looks_zero`] reads.
const SAMPLES: usize = 16;
/// A range is dense if more than one part in this many of it holds memory.
const DENSE: usize = 2;
/// Minimum length of a part of a sparse range that is dropped, not cleared, if it was left alone: a system call costs
/// as much as clearing this many bytes.
const WORTH_DROPPING: usize = 64 << 10;
/// Longest pause in dropping, in dense blocks.
const LONGEST_PAUSE: u8 = 63;

/// The history of blocks of one size, in one byte: whether they came back dense (bit 7), whether the last one was
/// dropped (bit 6), and for how many more dense blocks dropping pauses (bits 0 to 5).
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

/// The history of the blocks of one class, in one byte: how many of the next ones are cleared without a look (bits 0 to
/// 4), and how often in a row a look found a block written (bits 5 to 7). After each such look twice as many are
/// cleared without one, up to 31. So a program that begins to leave its blocks untouched pays for less than a megabyte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Look {
    without: u8,
    written: u8,
}

impl Look {
    /// Maximum of `written`.
    const MOST: u8 = 5;

    const fn from_byte(b: u8) -> Self {
        Look { without: b & 0x1f, written: b >> 5 }
    }

    const fn byte(self) -> u8 {
        self.written << 5 | self.without
    }

    /// After a look, which found that more than half of a block was `written`.
    fn after(self, written: bool) -> Self {
        let written = if written { (self.written + 1).min(Self::MOST) } else { 0 };
        Look { without: (1 << written) - 1, written }
    }
}

/// The habits for all sizes (lengths of ranges, in the classes of `range.rs`), and for the classes of small blocks that
/// have OS pages of their own.
#[derive(Debug)]
pub struct Habits {
    looks: [AtomicU8; class::CLASSES - class::FIRST_PAGED],
    of: [AtomicU8; LISTS],
    /// The length of the last pause in dropping.
    pause: [AtomicU8; LISTS],
    /// Bytes that were cleared, and bytes that did not need clearing.
    pub(crate) cleared: AtomicU64,
    pub(crate) skipped: AtomicU64,
}

impl Habits {
    /// Makes habits without history.
    pub const fn new() -> Self {
        Habits {
            looks: [const { AtomicU8::new(0) }; class::CLASSES - class::FIRST_PAGED],
            of: [const { AtomicU8::new(0) }; LISTS],
            pause: [const { AtomicU8::new(0) }; LISTS],
            cleared: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    // Relaxed, here and below: a habit is a hint; one thread may overwrite what another stores.
    fn get(&self, size: usize) -> Habit {
        Habit::from_byte(self.of[size].load(Ordering::Relaxed))
    }

    fn set(&self, size: usize, habit: Habit) {
        self.of[size].store(habit.byte(), Ordering::Relaxed);
    }

    /// After a block that was dropped came back dense: returns a pause twice as long as the last one.
    fn next_pause(&self, size: usize) -> u8 {
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
    /// Makes `block`, whole OS pages of a new large block in the chunks of `taken`, zero. False if another block is
    /// cheaper: then the caller gives this one back and takes a clean one.
    pub(crate) fn clear_large<O: Os>(&self, pages: &Pages<O>, block: Owned, taken: Taken) -> bool {
        let bytes = block.len();
        if pages.policy.zero_always() {
            block.clear();
            self.count(bytes, 0);
            return true;
        }
        let dirty = block.part(taken.dirty.0 * CHUNK, taken.dirty.1 * CHUNK);
        if bytes <= class::MAX_SMALL {
            // A sample of a small block. The question would cost more than clearing, and the process may need to open a
            // file for it.
            dirty.clear();
            self.count(dirty.len(), 0);
            return true;
        }
        dirty.len() == 0 || self.clear(pages, dirty, list_of(bytes.div_ceil(CHUNK)))
    }

    /// Clears `block`, which is a block of a slab of `class` or the first bytes of one, and may hold anything. Returns
    /// the number of bytes that needed clearing. Untouched OS pages stay untouched: to read one costs a page fault but
    /// no memory, as the kernel maps its zero page there. The first time that costs as much as the question to the
    /// system, later as much as clearing.
    pub(crate) fn clear_block<O: Os>(&self, pages: &Pages<O>, block: Owned, class: usize) -> usize {
        if class < class::FIRST_PAGED || pages.policy.zero_always() {
            block.clear();
            return block.len();
        }
        let byte = &self.looks[class - class::FIRST_PAGED];
        let mut look = Look::from_byte(byte.load(Ordering::Relaxed));
        if look.without > 0 {
            look.without -= 1;
            byte.store(look.byte(), Ordering::Relaxed);
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
        let after = look.after(cleared > block.len() / DENSE);
        // Only where it changes: other threads read the cache line.
        if after != look {
            byte.store(after.byte(), Ordering::Relaxed);
        }
        cleared
    }

    /// Clears a dirty range as the habit of its size suggests; false if the caller is to drop the range instead.
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
            habit.pause = self.next_pause(size);
        }
        habit.dropped = false;
        self.set(size, habit);
        if let Some(rest) = rest {
            self.count(rest.len(), 0);
            rest.clear();
        }
        true
    }

    /// Clears the OS pages that hold memory. Stops if most of them do, and returns the rest, which is still to be
    /// cleared.
    fn clear_touched<O: Os>(&self, pages: &Pages<O>, range: Owned) -> Option<Owned> {
        let mut runs = [Run::EMPTY; RUNS];
        let mut rest = range;
        while rest.len() > 0 {
            // SAFETY: `Owned` proves that the range is committed, so it lies inside a reservation.
            let Some(found) = (unsafe { pages.os.touched(rest.start(), rest.len(), &mut runs) }) else {
                return Some(rest);
            };
            let runs = &runs[..found.runs];
            let touched: usize = runs.iter().map(|r| r.len).sum();
            if touched > found.looked / DENSE && touched > range.len() / DENSE / 2 {
                return Some(rest);
            }
            for run in runs.iter().map(|&run| rest.run(run)) {
                // A run that is resident and zero was cleared last time, and has not been written since.
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
            assert_eq!(Look::from_byte(b).byte(), b);
        }
        let mut look = Look::default();
        for without in [1, 3, 7, 15, 31, 31] {
            look = look.after(true);
            assert_eq!((look.without, Look::from_byte(look.byte())), (without, look));
        }
        assert_eq!(look.after(false), Look::default());
    }

    /// Catches pauses that do not grow, have no limit, or are shared by two sizes.
    #[test]
    fn pauses_double() {
        let habits = Habits::new();
        let pauses: std::vec::Vec<u8> = (0..8).map(|_| habits.next_pause(3)).collect();
        assert_eq!(pauses, [1, 3, 7, 15, 31, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]);
        assert_eq!(habits.next_pause(4), 1);
    }

    /// Catches samples that miss the ends, or read behind the range.
    #[test]
    fn samples_are_spread() {
        for pages in if cfg!(miri) { [1, 2, 3, 4, 16, 17] } else { [1, 2, 15, 16, 17, 100] } {
            let mut range = std::vec![0u64; pages * 512];
            let len = pages * 4096;
            // SAFETY: the range is this test's, and `len` bytes long.
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
