//! Huge pages, only where they are known to pay: in ranges in which a freed block was densely touched.
//!
//! A huge page saves 511 page faults, but the first byte touched costs 2 MiB of memory. So a range may have huge pages
//! only after a block there was found to be touched nearly everywhere when it was freed. Where memory goes back at once
//! (`purge=eager`, or a block from `mmap_threshold` on), page faults are most of the cost of such a block. Other memory
//! is reused before it faults again, and is not marked.
//!
//! Each marked range may be a mapping of its own, so there are at most `MOST_MARKS`; neighbouring ones share a mapping.

use crate::pages::Pages;
use crate::pages::arena::Arenas;
use crate::pages::layout::{self, ARENA_ALIGN, HUGE_BYTES, HUGE_PAGE, HUGE_WORDS};
use crate::pages::owned::Owned;
use crate::system::os::Run;
use crate::system::sync::{AtomicU64, Ordering};
use crate::{CHUNK_SHIFT, Os};
use core::ops::Range;

/// Limit on the ranges that are marked in the life of a process.
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

    /// Marks `from..to` for huge pages.
    fn set_huge(&self, from: usize, to: usize) {
        let Some((bits, range)) = self.huge_bits(from, to) else { return };
        range.for_each(|i| {
            bits[i / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
        });
    }
}

impl<O: Os> Pages<O> {
    /// Marks memory that is freed for huge pages if it is densely touched.
    #[cold]
    pub(crate) fn mark_if_dense(&self, memory: Owned) {
        let (start, len) = (memory.start().addr(), memory.len());
        let from = start.next_multiple_of(HUGE_PAGE);
        let to = (start + len) & !(HUGE_PAGE - 1);
        if from >= to || self.page_size() != 4096 || self.arenas.is_huge(from, to) {
            return;
        }
        let mut runs = [Run::EMPTY; 16];
        let Some(runs) = self.touched_runs(memory, &mut runs) else { return };
        if runs.iter().map(|run| run.len).sum::<usize>() < len - len / DENSE {
            return;
        }
        let may = self.ranges.with(&self.os, |r| {
            r.marks += 1;
            r.marks <= MOST_MARKS
        });
        if may {
            // No other thread marks a part of it, as it is the holder's.
            self.arenas.set_huge(from, to);
            let whole = memory.part(from - start, to - start);
            // SAFETY: `Owned` proves that the memory is committed.
            unsafe { self.os.allow_huge(whole.start(), whole.len()) };
        }
    }
}
