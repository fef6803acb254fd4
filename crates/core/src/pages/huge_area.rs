//! Huge areas: where growth is proven, the allocator has the system give memory 2 MiB at a time, as one huge page.
//!
//! The faults of a huge page's OS pages cost some ten times as much as the huge page itself, and walks of its memory
//! miss the TLB less. But its first byte makes all of it resident. So an area is filled only if the program will
//! probably use all of it soon:
//! - the program *grows again*: it held that much more at some time before (`peak_chunks`);
//! - for slabs also if it *grows on*: it holds [`PROVEN`] times as much, and no free memory.
//!
//! Slabs are filled with blocks. The memory of large blocks is filled only if that which went back last was densely
//! touched.
//!
//! For slabs and for blocks shorter than an area, a whole area becomes a dirty free range, from which they are made. So
//! what turns out not to be needed goes back like all free memory. Bound: areas add one part in `PROVEN` to what the
//! program held at its peak, for the time that free memory waits. Longer blocks are filled when they are made.
//!
//! Elsewhere in the arena huge pages are forbidden from then on ([`Os::forbid_huge`]): the system would put them where
//! holes were given back.

use crate::pages::Pages;
use crate::pages::chunk::Record;
use crate::pages::held::Use;
use crate::pages::layout::HUGE_PAGE;
use crate::pages::notes::FRESH_CHUNKS;
use crate::pages::owned::Owned;
use crate::pages::range::Ranges;
use crate::system::policy::{HugePages, Purge};
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Length of an area in bytes, and in chunks.
const BYTES: usize = if cfg!(neap_sim) { 4 * CHUNK } else { HUGE_PAGE };
pub(crate) const AREA: usize = BYTES / CHUNK;
/// Number of areas that the process must hold before it gets one more than it ever had.
pub(crate) const PROVEN: usize = if cfg!(neap_sim) { 2 } else { 32 };
/// Maximum number of areas of a large block that are filled when it is made, which takes less than a millisecond.
const AT_ONCE: usize = 8;
/// Number of slabs and large blocks that are made without an area after the system had no huge page.
const PAUSE: u32 = 64;

/// Chunks of one area, taken from the clean ranges, which are the holder's alone.
#[derive(Debug)]
pub(crate) struct Area(Record);

impl<O: Os> Pages<O> {
    /// Takes an area out of the clean ranges, if what is to be taken shall come from one.
    #[inline]
    pub(crate) fn take_area(&self, r: &mut Ranges, len: usize, align: usize, what: Use) -> Option<Area> {
        let again = r.footprint() + AREA <= r.peak_chunks;
        let grows = match what {
            Use::Slab => again || r.footprint() >= PROVEN * AREA,
            Use::Large { .. } => again && r.was_dense && len < AREA && align == CHUNK && r.waiting() < AREA,
            Use::Heaps => false,
        };
        if !grows || r.has_dirty(len) || !self.may_fill(r) {
            return None;
        }
        let taken = r.take_clean(self, AREA, AREA)?;
        self.arenas.forbid_huge(&self.os, r.lock(), taken.first);
        Some(Area(taken.first))
    }

    /// Whether areas may be filled now.
    #[cold]
    fn may_fill(&self, r: &mut Ranges) -> bool {
        // `room`: as for slabs that are populated (`blocks/grow.rs`). Relaxed: approximate.
        self.policy.huge() != HugePages::Off
            && self.os.has_huge_pages()
            && self.notes.room.load(Ordering::Relaxed) / CHUNK >= FRESH_CHUNKS
            && self.policy.purge() != Purge::Eager
            && self.page_size() == 4096
            && !self.policy.harden()
            && !self.is_stranded()
            && !self.arenas.is_limited(r.lock())
            && self.is_allowed(r, AREA, true)
            && !r.pauses_areas()
    }

    /// Fills an area, and frees it.
    #[cold]
    pub(crate) fn fill_area(&self, area: Area) {
        let c = area.0;
        // SAFETY: the chunks are committed (invariant 16), and `Area` proves that only the holder uses them.
        let done = self.fill(unsafe { Owned::of(c.start(), BYTES) });
        self.ranges.with(&self.os, |r| {
            if !self.is_stranded() {
                r.area_pause = if done { 0 } else { PAUSE };
                // Also where the system had no huge page: a part may be resident.
                r.give(&self.arenas, c, AREA, self.epoch());
                self.note_waiting(r.waiting());
            }
        });
    }

    /// Whether the next block of `len` chunks, of which no part is resident, is to be filled by [`Pages::fill_large`].
    pub(crate) fn is_to_be_filled(&self, len: usize) -> bool {
        len >= AREA
            && self.ranges.with(&self.os, |r| {
                let again = r.was_dense && r.footprint() + len <= r.peak_chunks;
                again && !r.has_dirty(len) && self.may_fill(r)
            })
    }

    /// Fills the first areas of a new large block.
    #[cold]
    pub(crate) fn fill_large(&self, block: Record, memory: Owned) {
        self.ranges.with(&self.os, |r| self.arenas.forbid_huge(&self.os, r.lock(), block));
        let start = memory.start().addr();
        let from = start.next_multiple_of(BYTES) - start;
        let areas = (from..memory.len()).step_by(BYTES).take(AT_ONCE).filter(|at| at + BYTES <= memory.len());
        let done = areas.map(|at| memory.part(at, at + BYTES)).all(|area| self.fill(area));
        self.ranges.with(&self.os, |r| r.area_pause = if done { 0 } else { PAUSE });
    }

    /// Has the system give a huge page to an area.
    fn fill(&self, area: Owned) -> bool {
        // SAFETY: `Owned` proves that the memory is committed and that only the holder uses it.
        unsafe { self.os.populate_huge(area.start(), area.len()) }
    }

    /// Notes whether memory that is about to go back is densely touched.
    #[cold]
    pub(crate) fn note_density(&self, mut memory: impl Iterator<Item = Owned>) {
        if self.policy.huge() != HugePages::Off && self.os.has_huge_pages() {
            let dense = memory.all(|memory| self.is_dense(memory));
            self.ranges.with(&self.os, |r| r.was_dense = dense);
        }
    }
}
