//! Asks the system how much memory it holds for neap. Only the system knows which OS pages of blocks a program left
//! untouched, and which OS pages after the last block of a slab were never written.
//!
//! It scans all that may hold memory, 4.5 ms for 1.1 GiB of small blocks, so it is for reports on request. The lock is
//! held only to read the bounds of the arenas. Approximate, because other threads may allocate and free meanwhile.

use crate::observe::Observed;
use crate::pages::arena::{Arenas, UnderLock};
use crate::pages::page_map::PageMap;
use crate::pages::reserve::TABLES;
use crate::system::os::Run;
use crate::system::sync::Ordering;
use crate::{CHUNK_SHIFT, Os};
use core::ops::Range;

/// Bytes of OS pages that hold memory or are swapped out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// In chunks of arenas: blocks, waiting free memory between them, heaps.
    pub arenas: u64,
    /// In side tables, the page map, and the table of huge blocks.
    pub tables: u64,
    /// In huge blocks.
    pub huge: u64,
}

impl Resident {
    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.arenas + self.tables + self.huge
    }
}

/// The addresses of an arena that may hold memory.
pub(crate) struct Bounds {
    /// The committed parts of the side tables.
    pub tables: [Range<usize>; TABLES],
    /// The committed chunks.
    pub chunks: Range<usize>,
    /// The reentrant reserve, parts of which may be committed; empty while no block uses it.
    pub reentrant_reserve: Range<usize>,
    /// All chunks of the arena, as indexes into the page map.
    pub numbers: Range<usize>,
}

impl<O: Os> Observed<O> {
    /// Returns how much memory the system holds for neap; `None` if it cannot say. Not included is what lies outside of
    /// all mappings of blocks and tables: the library's own data, the helper's stack, the counters page.
    pub fn resident(&self) -> Option<Resident> {
        let mut resident = Resident::default();
        let mut arena = 0;
        while let Some(bounds) = self.ranges.with(&self.os, |r| self.arenas.bounds(r.lock(), arena, self.page_size())) {
            for table in bounds.tables.iter().filter(|table| !table.is_empty()) {
                resident.tables += self.held_in(table)?;
            }
            resident.arenas += self.held_in(&bounds.chunks)? + self.held_in(&bounds.reentrant_reserve)?;
            if let Some(entries) = self.map_entries(&self.map, &bounds.numbers) {
                resident.tables += self.held_in(&entries)?;
            }
            arena += 1;
        }
        let mut known = true;
        self.huge.for_each_mapping(|p, bytes, is_block| {
            let held = self.held_in(&(p.addr()..p.addr() + bytes));
            known &= held.is_some();
            *(if is_block { &mut resident.huge } else { &mut resident.tables }) += held.unwrap_or(0);
        });
        known.then_some(resident)
    }

    /// Returns the OS pages of the page map that have the entries of these chunks.
    fn map_entries(&self, map: &PageMap, chunks: &Range<usize>) -> Option<Range<usize>> {
        let page = self.page_size();
        let start = map.entry(chunks.start)?.addr() & !(page - 1);
        Some(start..(start + chunks.len()).next_multiple_of(page))
    }

    /// Returns how much memory a range of whole OS pages of neap's holds, if the system can say.
    fn held_in(&self, range: &Range<usize>) -> Option<u64> {
        let (mut held, mut from) = (0, range.start);
        while from < range.end {
            let mut runs = [Run::EMPTY; 32];
            let at = core::ptr::with_exposed_provenance_mut(from);
            // SAFETY: the range is neap's, and is only asked about. A huge block that another thread unmaps meanwhile
            // makes the answer wrong, and nothing else.
            let touched = unsafe { self.os.touched(at, range.end - from, &mut runs) }.filter(|t| t.looked > 0)?;
            held += runs[..touched.runs].iter().map(|run| run.len as u64).sum::<u64>();
            from += touched.looked;
        }
        Some(held)
    }
}

impl Arenas {
    /// Returns what of arena `i` may hold memory; `None` after the last arena.
    fn bounds(&self, lock: &UnderLock, i: usize, page: usize) -> Option<Bounds> {
        let (first, _) = self.used(lock, i)?;
        let (base, _, chunks) = self.place(first);
        let parts = self.parts(lock, i, page);
        let is_used = i == 0 && self.reentrant_reserve.used.load(Ordering::Relaxed) > 0;
        let reentrant_reserve = if is_used { parts[TABLES + 1].clone() } else { 0..0 };
        let tables = core::array::from_fn(|table| {
            // Two tables may share an OS page.
            let before = if table == 0 { 0 } else { parts[table - 1].end };
            parts[table].start.max(before)..parts[table].end
        });
        let numbers = base >> CHUNK_SHIFT..(base >> CHUNK_SHIFT) + chunks;
        Some(Bounds { tables, chunks: parts[TABLES].clone(), reentrant_reserve, numbers })
    }
}
