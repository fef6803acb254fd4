//! Huge pages where they are proven to pay: in ranges that were found densely touched.
//!
//! A huge page is 512 faults in one, but 2 MiB of memory for the first byte that is touched. So a range may have huge
//! pages only after a block there was found touched all over when it was freed. Where memory goes back at once
//! (`purge=eager`), this is most of what such a block costs; under other policies memory is reused before it faults
//! again, and nothing is marked.
//!
//! Each mark may be a mapping of its own: there are at most `MOST_MARKS`, and neighbouring ones are one.

use crate::pages::Pages;
use crate::pages::arena::Arenas;
use crate::pages::layout::{ARENA_ALIGN, HUGE_PAGE, HUGE_WORDS, SIDE_BYTES};
use crate::system::os::Run;
use crate::system::sync::{AtomicU64, Ordering};
use crate::{CHUNK_SHIFT, Os};
use core::ops::Range;

/// Ranges that may be marked in the life of a process.
const MOST_MARKS: usize = 4096;
/// A range is dense if all but one OS page in so many is touched.
const DENSE: usize = 16;

impl Arenas {
    /// The words of the bits for huge pages, and the bits of `from..to` (addresses in an arena) as indexes. `None` for a
    /// short arena, which has none.
    fn huge_bits(&self, from: usize, to: usize) -> Option<(&[AtomicU64; HUGE_WORDS], Range<usize>)> {
        let base = from & !(ARENA_ALIGN - 1);
        let chunks = self.chunks_at(base);
        if chunks << CHUNK_SHIFT != ARENA_ALIGN {
            return None;
        }
        let bits = core::ptr::with_exposed_provenance::<[AtomicU64; HUGE_WORDS]>(base + chunks * SIDE_BYTES);
        // SAFETY: this part of a long arena's side tables is committed with the ages, and never goes.
        let bits = unsafe { &*bits };
        Some((bits, (from - base) / HUGE_PAGE..(to - base) / HUGE_PAGE))
    }

    /// Whether all of `from..to`, whole huge pages of an arena, may have huge pages.
    pub(crate) fn is_huge(&self, from: usize, to: usize) -> bool {
        let Some((bits, mut range)) = self.huge_bits(from, to) else { return true };
        // Relaxed, here and below: a bit stands for itself.
        range.all(|i| bits[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 != 0)
    }

    /// Notes that it may.
    fn set_huge(&self, from: usize, to: usize) {
        let Some((bits, range)) = self.huge_bits(from, to) else { return };
        range.for_each(|i| {
            bits[i / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
        });
    }
}

impl<O: Os> Pages<O> {
    /// Lets the range have huge pages if it is densely touched.
    ///
    /// # Safety
    /// The range must be committed and the caller's, and hold nothing that is needed.
    #[cold]
    pub(crate) unsafe fn mark_if_dense(&self, p: *mut u8, len: usize) {
        let from = p.addr().next_multiple_of(HUGE_PAGE);
        let to = (p.addr() + len) & !(HUGE_PAGE - 1);
        if from >= to || self.page_size() != 4096 || self.arenas.is_huge(from, to) {
            return;
        }
        let mut runs = [Run::EMPTY; 16];
        // SAFETY: as the caller promises.
        unsafe {
            let Some(found) = self.os.touched(p, len, &mut runs) else { return };
            let touched: usize = runs[..found.runs].iter().map(|r| r.len).sum();
            if found.looked == len && touched >= len - len / DENSE {
                let start = p.wrapping_add(from - p.addr());
                let may = self.ranges.with(&self.os, |r| {
                    r.marks += 1;
                    r.marks <= MOST_MARKS
                });
                if may {
                    // No other thread marks a part of it, as it is the caller's.
                    self.arenas.set_huge(from, to);
                    self.os.allow_huge(start, to - from);
                }
            }
        }
    }
}
