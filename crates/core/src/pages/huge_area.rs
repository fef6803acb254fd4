//! Huge areas: if growth is proven, chunks get their memory 2 MiB at a time, as one huge page.
//!
//! A page fault of a huge page costs a tenth of the 512 faults that it replaces, and its memory misses the TLB less.
//! But its first byte makes all of it resident. So an area is filled only if the program will probably use all of it
//! soon:
//! - the program holds, or held before, as much as [`LEAST`] areas, and the heap that needs a slab [`LEAST_IN_SLABS`];
//! - it took as much as an area in small pages lately, within the time that free memory waits, and the system says that
//!   nearly all of that memory is in use ([`Os::is_dense`]).
//!
//! One proof allows a few areas, one for each [`SHARE`] that the program holds or held. Then as much as an area is
//! taken in small pages again, as a sample for the next proof.
//!
//! An area becomes a dirty free range, from which slabs and large blocks up to half an area are made. Unused parts go
//! back like all free memory. Bound: at most one area is free at a time for each thread that fills areas, and areas are
//! at most one part in `SHARE` of what the program holds or held since the last proof.
//!
//! In the rest of the arena huge pages are forbidden from then on ([`Os::set_huge`]), because the system would put them
//! into holes that were given back.

use crate::pages::Pages;
use crate::pages::chunk::{Record, State};
use crate::pages::growth::{AREA, BYTES};
use crate::pages::held::Use;
use crate::pages::layout;
use crate::pages::notes::{FRESH_CHUNKS, LIMIT};
use crate::pages::owned::Owned;
use crate::pages::range::Ranges;
use crate::system::policy::{HugePages, Purge};
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// A program must hold, or have held, as much memory as this many areas before it gets one. So the free part of an area
/// is at most some 2 % of its memory.
const LEAST: usize = if cfg!(neap_sim) { 2 } else { 48 };
/// A heap that needs a slab must hold as much memory in slabs as this many areas.
pub(crate) const LEAST_IN_SLABS: usize = if cfg!(neap_sim) { 2 } else { 4 };
/// A proof allows one area for each of this many that the program holds, or held.
const SHARE: usize = if cfg!(neap_sim) { 2 } else { 4 };
/// Limit on the areas after a proof.
const MOST: usize = 16;
/// If the system had no huge page to give, the next question waits for the memory of this many areas.
const PAUSE: usize = 8;

/// What has to be done before chunks are taken from the clean ranges.
#[derive(Debug)]
pub(crate) enum Step {
    /// Find out whether this memory is in use; then this many areas may be filled.
    Ask(Sample, usize),
    /// Fill this area.
    Fill(Area),
}

/// As many chunks as an area has, which the program has probably taken in small pages. All of them lie in an arena and
/// were committed; some may be lost. Other threads may use them.
#[derive(Debug)]
pub(crate) struct Sample(Record);

/// The chunks of one area, taken from the clean ranges. They are the holder's alone, and read as zero.
#[derive(Debug)]
pub(crate) struct Area(Record);

impl<O: Os> Pages<O> {
    /// Returns what has to be done before `len` chunks, aligned to `align` bytes, are taken for the use `what`.
    #[inline]
    pub(crate) fn next_step(&self, r: &mut Ranges, len: usize, align: usize, what: Use) -> Option<Step> {
        let asked_for = matches!(self.policy.huge(), HugePages::Adaptive | HugePages::Advised);
        // A block of calloc may be left untouched.
        let fills = matches!(what, Use::Slab { of_many: true } | Use::Large { zero: false, .. });
        // Longer blocks, and those that are aligned to more than an area, may not fit into one.
        (asked_for && fills && r.growth.is_due() && len <= AREA / 2 && align <= BYTES)
            .then(|| self.step_of_growth(r, len, align))
            .flatten()
    }

    #[cold]
    fn step_of_growth(&self, r: &mut Ranges, len: usize, align: usize) -> Option<Step> {
        let size = r.footprint().max(r.peak_chunks) / AREA;
        if r.has_for(len, align, State::Dirty) || size < LEAST || !self.may_fill(r) {
            return None;
        }
        if r.growth.areas > 0 {
            r.growth.areas -= 1;
            let first = r.take_clean(self, AREA, AREA)?.first;
            self.arenas.set_huge(&self.os, r.lock(), first, false);
            return Some(Step::Fill(Area(first)));
        }
        let waited = r.growth.ask(self.os.clock());
        let soon = self.policy.purge() == Purge::Never || waited <= u64::from(self.policy.delay());
        soon.then(|| self.sample(r)).flatten().map(|sample| Step::Ask(sample, (size / SHARE).min(MOST)))
    }

    /// As many chunks as an area has, the last of which was taken last in small pages.
    fn sample(&self, r: &Ranges) -> Option<Sample> {
        let last = r.growth.last?;
        let (_, index, chunks) = self.arenas.place(last);
        (index >= layout::first_chunk(chunks) + AREA).then(|| Sample(last.before(AREA - 1)))
    }

    /// Whether areas may be filled now.
    fn may_fill(&self, r: &Ranges) -> bool {
        // What was left below the limit when it was last read; 0: it was not read yet. Relaxed: approximate.
        let room = self.notes.room.load(Ordering::Relaxed);
        if room == 0 {
            self.notes.leave(LIMIT);
        }
        room / CHUNK >= FRESH_CHUNKS
            && self.policy.purge() != Purge::Eager
            && self.page_size() == 4096
            && !self.policy.harden()
            && !self.arenas.is_limited(r.lock())
            && self.is_allowed(r, AREA, true)
    }

    /// Makes a step.
    #[cold]
    pub(crate) fn make(&self, step: Step) {
        match step {
            Step::Ask(sample, areas) => self.ask(&sample, areas),
            Step::Fill(area) => self.fill(&area),
        }
    }

    fn ask(&self, sample: &Sample, areas: usize) {
        // SAFETY: `Sample` proves that the range lies in an arena; the answer may be wrong where parts are lost.
        let dense = unsafe { self.os.is_dense(sample.0.start(), BYTES) };
        self.ranges.with(&self.os, |r| r.growth.areas = if dense { areas } else { 0 });
    }

    /// Fills an area, and frees it.
    fn fill(&self, area: &Area) {
        let c = area.0;
        // SAFETY: the chunks are committed (invariant 16), and `Area` proves that only the holder uses them.
        let memory = unsafe { Owned::of(c.start(), BYTES) };
        // SAFETY: `Owned` proves that the memory is committed and that only the holder uses it; `Area` proves that it
        // reads as zero.
        let done = unsafe { self.os.populate_huge(memory.start(), memory.len()) };
        self.ranges.with(&self.os, |r| {
            if !self.is_stranded() {
                if !done {
                    (r.growth.areas, r.growth.wait) = (0, PAUSE * AREA);
                }
                // Also where the system had no huge page: a part may be resident.
                r.give(&self.arenas, c, AREA, self.epoch());
                self.note_waiting(r.waiting());
            }
        });
    }
}
