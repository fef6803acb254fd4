//! How much memory the system holds for neap: it is asked, as nobody else knows what a program left untouched in its
//! blocks, and which OS pages behind the last block of a slab were never written.
//!
//! A scan of all that may hold memory: 4.5 ms for 1.1 GiB of small blocks. For reports that somebody asks for. The lock
//! is held for the bounds of the arenas only; what other threads do meanwhile makes it a guess.

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
    /// In chunks of arenas: blocks, what is free between them and waits, heaps.
    pub arenas: u64,
    /// Of side tables, of the page map, and of the list of huge blocks.
    pub tables: u64,
    /// Of huge blocks.
    pub huge: u64,
}

impl Resident {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.arenas + self.tables + self.huge
    }
}

/// The addresses of an arena that may hold memory.
pub(crate) struct Bounds {
    /// What is committed of side tables.
    pub tables: [Range<usize>; TABLES],
    /// Chunks that are committed.
    pub chunks: Range<usize>,
    /// The reentrant reserve, parts of which may be; empty where it was never used.
    pub reentrant_reserve: Range<usize>,
    /// All chunks, by their numbers.
    pub numbers: Range<usize>,
}

impl<O: Os> Observed<O> {
    /// How much memory the system holds for neap; `None` where it cannot tell. What lies outside of all mappings of
    /// blocks and tables is not in it: the library's own data, the helper's stack, the counters page.
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

    /// The OS pages of the page map that have the entries of these chunks.
    fn map_entries(&self, map: &PageMap, chunks: &Range<usize>) -> Option<Range<usize>> {
        let page = self.page_size();
        let start = map.entry(chunks.start)?.addr() & !(page - 1);
        Some(start..(start + chunks.len()).next_multiple_of(page))
    }

    /// How much memory whole OS pages of neap's hold, if the system can tell.
    fn held_in(&self, range: &Range<usize>) -> Option<u64> {
        let (mut held, mut from) = (0, range.start);
        while from < range.end {
            let mut runs = [Run::EMPTY; 32];
            let at = core::ptr::with_exposed_provenance_mut(from);
            // SAFETY: the range is neap's, and only how much it holds is asked. A huge block that another thread
            // unmaps meanwhile makes the answer wrong, and nothing else.
            let touched = unsafe { self.os.touched(at, range.end - from, &mut runs) }.filter(|t| t.looked > 0)?;
            held += runs[..touched.runs].iter().map(|run| run.len as u64).sum::<u64>();
            from += touched.looked;
        }
        Some(held)
    }
}

impl Arenas {
    /// What of arena `i` may hold memory; `None` behind the last arena.
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
