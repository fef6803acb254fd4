//! Commit: reserved chunks become usable, in steps, with their entries in the side tables and in the page map.
//!
//! A step is six system calls that change mappings. They wait for the page faults of other threads, and page faults for
//! them: milliseconds, if the system takes the processor away from one of those. So there are few: some 12 for the first
//! half GiB. Steps are made under the lock of the ranges, each once: a second call would give access once more to what is
//! in use by then, also to OS pages from which the program has taken it (guards, code).

use crate::pages::layout::{
    ARENA_ALIGN, BEFORE_AGES, BEFORE_BITS, BITS_BYTES, FEW_BYTES, HUGE_BYTES, RECORD_BYTES, SIDE_BYTES,
};
use crate::pages::page_map::PageMap;
use crate::{CHUNK, CHUNK_SHIFT, Os};

/// First step in chunks; in the simulation, which has little memory, all steps are shorter. It is shorter than a huge page
/// (2 MiB), so that where the system hands out huge pages unasked (THP=always), a small program gets none.
const FIRST_STEP: usize = if cfg!(neap_sim) { 8 } else { (3 << 19) >> CHUNK_SHIFT };
/// A program that comes to its third step is none of the small ones: it is so long at least.
const THIRD_STEP: usize = if cfg!(neap_sim) { 8 } else { (16 << 20) >> CHUNK_SHIFT };
/// Later steps: as much again as is committed, up to so many chunks; from eight times that on an eighth of it, up to
/// [`LAST_STEP`]. What is committed and not used costs nothing, but where writable memory is limited (all that is asked
/// for is what is needed, if a step is refused), or where the program locks all memory.
const DOUBLE_STEP: usize = if cfg!(neap_sim) { 12 } else { (64 << 20) >> CHUNK_SHIFT };
const LAST_STEP: usize = (1 << 30) >> CHUNK_SHIFT;

/// Chunks of the step after `committed` ones.
pub(crate) fn step(committed: usize) -> usize {
    match committed {
        c if c < 2 * FIRST_STEP => FIRST_STEP,
        c => c.clamp(THIRD_STEP, DOUBLE_STEP).max((c / 8).min(LAST_STEP)),
    }
}

/// A step of an arena: chunks `from..to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Start of the arena.
    pub base: usize,
    /// Chunks of the arena.
    pub chunks: usize,
    /// It is the first step.
    pub fresh: bool,
    /// Index of the first chunk that is not committed.
    pub from: usize,
    /// Index behind the last chunk to commit.
    pub to: usize,
}

impl Step {
    /// Makes the step; false if the system refuses.
    ///
    /// # Safety
    /// The step must lie in an arena, and chunks before `from` be committed.
    pub(crate) unsafe fn make<O: Os>(&self, os: &O, map: &PageMap) -> bool {
        let (base, page, chunks) = (self.base, os.page_size(), self.chunks);
        let at = core::ptr::with_exposed_provenance_mut::<u8>;
        // The OS page at which the last step ended is committed already.
        let pages = |table: usize, entry: usize| {
            let from = table + self.from * entry;
            let from = if self.fresh { from & !(page - 1) } else { from.next_multiple_of(page) };
            (from, (table + self.to * entry).next_multiple_of(page))
        };
        let part = |table: usize, entry: usize| {
            let (from, to) = pages(table, entry);
            // SAFETY: the part lies in the reservation. Two tables may share an OS page, which does no harm.
            from >= to || unsafe { os.commit(at(base + from), to - from) }
        };
        // The ages and the bits for huge pages are few: all at once. Not what lies between them and the first chunk: it
        // can be a GiB, which counts where writable memory is limited, and is filled where the program locks all memory.
        let ages = (chunks * BEFORE_AGES) & !(page - 1);
        let bits = if chunks << CHUNK_SHIFT == ARENA_ALIGN { HUGE_BYTES } else { 0 };
        let end_of_ages = (chunks * SIDE_BYTES + bits).next_multiple_of(page);
        // SAFETY: this part lies in the reservation.
        (!self.fresh || unsafe { os.commit(at(base + ages), end_of_ages - ages) })
            && part(0, RECORD_BYTES)
            && part(chunks * RECORD_BYTES, FEW_BYTES)
            && part(chunks * BEFORE_BITS, BITS_BYTES)
            && part(chunks * (BEFORE_BITS + BITS_BYTES), BITS_BYTES)
            && {
                let (from, to) = pages(base >> CHUNK_SHIFT, 1);
                // SAFETY: these entries are the arena's.
                from >= to || unsafe { map.commit(os, from, to) }
            }
            && part(0, CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches steps that are many, or that hold far more than is used.
    #[test]
    fn steps_are_few() {
        let (mut committed, mut steps) = (0, 0);
        while committed < (512 << 20) >> CHUNK_SHIFT {
            let step = step(committed);
            assert!(step <= committed.max(THIRD_STEP) && step >= FIRST_STEP, "{step} after {committed}");
            (committed, steps) = (committed + step, steps + 1);
        }
        assert!(steps <= 12, "{steps}");
        assert_eq!(step(1 << 20), LAST_STEP);
    }
}
