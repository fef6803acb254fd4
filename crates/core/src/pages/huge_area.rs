//! Huge areas: where growth is proven, slabs get their memory 2 MiB at a time, as one huge page.
//!
//! The faults of a huge page's OS pages cost some ten times as much as the huge page itself, and walks of its memory
//! miss the TLB less. But its first byte makes all of it resident. So an area is filled only if the program will
//! probably use all of it soon:
//! - the program *grows again*: it held that much more at some time before (`peak_chunks`);
//! - or it *grows on*: it holds [`PROVEN`] times as much, and no free memory.
//!
//! Only slabs have areas: they are filled with blocks. What a program leaves untouched of a large block would become
//! resident. And only a heap that holds many full slabs of the class gets one (`blocks/grow.rs`): slabs of many threads
//! that hold little each are sparse.
//!
//! An area becomes a dirty free range, from which slabs are made. So what turns out not to be needed goes back like all
//! free memory. Bound: areas add one part in `PROVEN` to what the program held at its peak, for the time that free
//! memory waits.
//!
//! Elsewhere in the arena huge pages are forbidden from then on ([`Os::set_huge`]): the system would put them where
//! holes were given back.

use crate::pages::Pages;
use crate::pages::chunk::Record;
use crate::pages::layout::HUGE_PAGE;
use crate::pages::notes::FRESH_CHUNKS;
use crate::pages::owned::Owned;
use crate::pages::range::Ranges;
use crate::system::policy::{HugePages, Purge};
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Length of an area in bytes, and in chunks.
pub(crate) const BYTES: usize = if cfg!(neap_sim) { 4 * CHUNK } else { HUGE_PAGE };
pub(crate) const AREA: usize = BYTES / CHUNK;
/// Number of areas that the process must hold before it gets one more than it ever had.
pub(crate) const PROVEN: usize = if cfg!(neap_sim) { 2 } else { 32 };
/// Number of slabs that are made without an area after the system had no huge page.
const PAUSE: u32 = 64;

/// Chunks of one area, taken from the clean ranges, which are the holder's alone, and read as zero.
#[derive(Debug)]
pub(crate) struct Area(Record);

impl<O: Os> Pages<O> {
    /// Fills an area if the next slab shall come from one. The caller has shown that it fills slabs (`grow.rs`).
    #[inline]
    pub(crate) fn make_area(&self) {
        if matches!(self.policy.huge(), HugePages::Adaptive | HugePages::Advised)
            && let Some(area) = self.ranges.with(&self.os, |r| self.take_area(r))
        {
            self.fill_area(area);
        }
    }

    /// Takes an area out of the clean ranges, where growth is proven and no dirty memory is free.
    fn take_area(&self, r: &mut Ranges) -> Option<Area> {
        // As in `take_chunks`.
        if self.is_stranded() || r.has_dirty() {
            return None;
        }
        let again = r.footprint() + AREA <= r.peak_chunks;
        let grows_on = r.footprint() >= PROVEN * AREA;
        if !(again || grows_on) || !self.may_fill(r) {
            return None;
        }
        if r.area_pause > 0 {
            r.area_pause -= 1;
            return None;
        }
        let taken = r.take_clean(self, AREA, AREA)?;
        self.arenas.set_huge(&self.os, r.lock(), taken.first, false);
        Some(Area(taken.first))
    }

    /// Whether areas may be filled now.
    fn may_fill(&self, r: &Ranges) -> bool {
        // `room`: as for slabs that are populated (`blocks/grow.rs`). Relaxed: approximate.
        self.os.has_huge_pages(true)
            && self.notes.room.load(Ordering::Relaxed) / CHUNK >= FRESH_CHUNKS
            && self.policy.purge() != Purge::Eager
            && self.page_size() == 4096
            && !self.policy.harden()
            && !self.arenas.is_limited(r.lock())
            && self.is_allowed(r, AREA, true)
    }

    /// Fills an area, and frees it.
    #[cold]
    fn fill_area(&self, area: Area) {
        let c = area.0;
        // SAFETY: the chunks are committed (invariant 16), and `Area` proves that only the holder uses them.
        let memory = unsafe { Owned::of(c.start(), BYTES) };
        // SAFETY: `Owned` proves that the memory is committed and that only the holder uses it, and `Area` that it reads
        // as zero.
        let done = unsafe { self.os.populate_huge(memory.start(), memory.len()) };
        self.ranges.with(&self.os, |r| {
            if !self.is_stranded() {
                r.area_pause = if done { 0 } else { PAUSE };
                // Also where the system had no huge page: a part may be resident.
                r.give(&self.arenas, c, AREA, self.epoch());
                self.note_waiting(r.waiting());
            }
        });
    }
}
