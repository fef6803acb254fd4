//! Ranges that may have huge pages: those in which a freed block was densely touched, and with `huge=thp` those of
//! large blocks.
//!
//! A huge page saves 511 page faults, but the first byte touched costs 2 MiB of memory. So a range may have huge pages
//! only after a block there was found to be touched nearly everywhere when it was freed. Where memory goes back at once
//! (`purge=eager`, or a block from `mmap_threshold` on), page faults are most of the cost of such a block. Other memory
//! is reused before it faults again, and is not marked.
//!
//! With `huge=thp` the program is known to touch its large blocks, so they are marked when they are made. In the rest
//! of the arena huge pages are forbidden from then on, because the system would fill memory that went back. For the
//! same reason, when a part of a marked huge page goes back, its mark is removed and huge pages are forbidden there.
//!
//! Each marked range may be a mapping of its own, so there are at most `MOST_MARKS`; neighbouring ones share a mapping.

use crate::pages::Pages;
use crate::pages::arena::Arenas;
use crate::pages::chunk::Record;
use crate::pages::layout::{self, ARENA_ALIGN, HUGE_BYTES, HUGE_PAGE, HUGE_WORDS};
use crate::pages::owned::Owned;
use crate::system::os::Run;
use crate::system::policy::HugePages;
use crate::system::sync::{AtomicU64, Ordering};
use crate::{CHUNK_SHIFT, Os};
use core::ops::Range;

/// Limit on the ranges that are marked. They are counted as they are made, and again where the count reaches the limit.
const MOST_MARKS: usize = 4096;
/// A range is dense if at most one OS page in this many is untouched.
const DENSE: usize = 16;

impl Arenas {
    /// The bits for huge pages of an arena, and the indexes of those of `from..to` (addresses in the arena). `None` for
    /// a short arena, which has none.
    fn huge_bits(&self, from: usize, to: usize) -> Option<(&[AtomicU64; HUGE_WORDS], Range<usize>)> {
        let base = from & !(ARENA_ALIGN - 1);
        let chunks = self.chunks_at(base);
        if chunks << CHUNK_SHIFT != ARENA_ALIGN {
            return None;
        }
        let end = base + (layout::first_chunk(chunks) << CHUNK_SHIFT);
        let bits = core::ptr::with_exposed_provenance::<[AtomicU64; HUGE_WORDS]>(end - HUGE_BYTES);
        // SAFETY: this part of a long arena's side tables is committed with the ages, and is never unmapped.
        let bits = unsafe { &*bits };
        Some((bits, (from - base) / HUGE_PAGE..(to - base) / HUGE_PAGE))
    }

    /// Whether all of `from..to` is marked for huge pages; true for a short arena, which is never marked. Both
    /// addresses are multiples of a huge page.
    pub(crate) fn is_huge(&self, from: usize, to: usize) -> bool {
        let Some((bits, mut range)) = self.huge_bits(from, to) else { return true };
        // Relaxed, here and below: a bit orders nothing else.
        range.all(|i| bits[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 != 0)
    }

    /// Whether the huge page at `page`, an address in an arena, is marked.
    fn has_mark(&self, page: usize) -> bool {
        self.huge_bits(page, page).is_some() && self.is_huge(page, page + HUGE_PAGE)
    }

    /// Marks `from..to` for huge pages. Returns whether a neighbour is marked.
    fn mark_huge(&self, from: usize, to: usize) -> bool {
        let Some((bits, range)) = self.huge_bits(from, to) else { return false };
        let has = |i: usize| bits.get(i / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (i % 64) & 1 != 0);
        let joins = range.start.checked_sub(1).is_some_and(has) || has(range.end);
        range.for_each(|i| {
            bits[i / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
        });
        joins
    }

    /// Number of ranges that are marked.
    fn marked_ranges(&self) -> usize {
        let bits = self.arenas().iter().filter_map(|arena| self.huge_bits(arena.base(), arena.base()));
        let starts = |(bits, _): (&[AtomicU64; HUGE_WORDS], _)| {
            let (mut starts, mut before) = (0, 0);
            for word in bits {
                let word = word.load(Ordering::Relaxed);
                starts += (word & !(word << 1 | before)).count_ones() as usize;
                before = word >> 63;
            }
            starts
        };
        bits.map(starts).sum()
    }

    /// Removes the marks of `from..to`, multiples of a huge page.
    fn unmark_huge(&self, from: usize, to: usize) {
        let Some((bits, range)) = self.huge_bits(from, to) else { return };
        for i in range {
            if bits[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 != 0 {
                bits[i / 64].fetch_and(!(1 << (i % 64)), Ordering::Relaxed);
            }
        }
    }
}

/// The part of `memory` that is whole huge pages.
fn whole_pages(memory: Owned) -> Owned {
    let start = memory.start().addr();
    let end = start + memory.len();
    memory.part(start.next_multiple_of(HUGE_PAGE) - start, (end & !(HUGE_PAGE - 1)).saturating_sub(start))
}

impl<O: Os> Pages<O> {
    /// Marks memory that is freed for huge pages if it is densely touched.
    #[cold]
    pub(crate) fn mark_if_dense(&self, memory: Owned) {
        let len = memory.len();
        if !self.may_mark(whole_pages(memory)) {
            return;
        }
        let mut runs = [Run::EMPTY; 16];
        let Some(runs) = self.touched_runs(memory, &mut runs) else { return };
        if runs.iter().map(|run| run.len).sum::<usize>() < len - len / DENSE {
            return;
        }
        self.mark(whole_pages(memory));
    }

    /// Marks the memory of a new large block, or of one that has grown, where option `huge` says so.
    #[inline]
    pub(crate) fn mark_large(&self, memory: Owned) {
        if memory.len() >= HUGE_PAGE && self.policy.huge() == HugePages::Thp {
            self.mark_by_option(whole_pages(memory));
        }
    }

    #[cold]
    fn mark_by_option(&self, whole: Owned) {
        if self.os.has_huge_pages(false) && self.may_mark(whole) {
            // SAFETY: the memory lies in an arena of the long kind, as it can be marked.
            let first = unsafe { Record::at(whole.start()) };
            self.ranges.with(&self.os, |r| {
                if !self.arenas.is_limited(r.lock()) {
                    self.arenas.set_huge(&self.os, r.lock(), first, false);
                }
            });
            self.mark(whole);
        }
    }

    /// Removes the marks of huge pages of which `memory`, which was mapped again, has a part.
    #[inline]
    pub(crate) fn unmark(&self, memory: Owned) {
        if self.has_marks() {
            let start = memory.start().addr();
            let end = start + memory.len();
            self.arenas.unmark_huge(start & !(HUGE_PAGE - 1), end.next_multiple_of(HUGE_PAGE));
        }
    }

    /// Forbids huge pages where a part of one went back: the system would fill that part again.
    #[inline]
    pub(crate) fn unmark_cut(&self, runs: &[Run]) {
        if self.has_marks() {
            for run in runs {
                let ends = [run.start.addr(), run.start.addr() + run.len];
                let cut = ends.into_iter().filter(|end| !end.is_multiple_of(HUGE_PAGE));
                cut.for_each(|end| self.forbid_huge(end & !(HUGE_PAGE - 1)));
            }
        }
    }

    /// Removes the mark of a huge page, and forbids it, if it is marked.
    #[cold]
    fn forbid_huge(&self, page: usize) {
        if self.arenas.has_mark(page) && self.may_divide() {
            self.arenas.unmark_huge(page, page + HUGE_PAGE);
            // A marked range may be two now.
            self.marks.fetch_add(1, Ordering::Relaxed);
            // SAFETY: a marked huge page lies in the chunks of an arena.
            unsafe { self.os.set_huge(layout::at(page), HUGE_PAGE, false) };
        }
    }

    /// Whether a range was ever marked.
    pub(crate) fn has_marks(&self) -> bool {
        self.marks.load(Ordering::Relaxed) > 0
    }

    /// Whether there may be one more marked range.
    fn may_divide(&self) -> bool {
        // Relaxed: several threads may exceed the limit by a few.
        let marks = self.marks.load(Ordering::Relaxed);
        if marks < MOST_MARKS {
            return true;
        }
        // Ranges were joined and unmarked since the last count.
        let now = self.arenas.marked_ranges().max(1);
        let fewer = now <= MOST_MARKS / 2;
        if fewer {
            let _ = self.marks.compare_exchange(marks, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        fewer
    }

    /// Whether `whole` has huge pages, can be marked, and is not marked throughout.
    fn may_mark(&self, whole: Owned) -> bool {
        let from = whole.start().addr();
        whole.len() > 0 && self.page_size() == 4096 && !self.arenas.is_huge(from, from + whole.len())
    }

    /// Marks whole huge pages, and lets the system use huge pages there.
    fn mark(&self, whole: Owned) {
        if self.may_divide() {
            // No other thread marks a part of it at the same time, as it is the holder's.
            if !self.arenas.mark_huge(whole.start().addr(), whole.start().addr() + whole.len()) {
                self.marks.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: `Owned` proves that the memory is committed.
            unsafe { self.os.allow_huge(whole.start(), whole.len()) };
        }
    }
}
