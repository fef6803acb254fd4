//! Makes reserved chunks usable, in steps, with their entries in the side tables and in the page map.
//!
//! There are two kinds of steps. Long ones commit memory (`make`). Short ones take committed memory into use (`begin`),
//! so that little unused memory is in core dumps, or is locked where the program locks all its memory.
//!
//! A step takes four system calls that change mappings; the first takes three, because its bits, the ages and its
//! chunks are adjacent (`layout.rs`). These calls wait for page faults of other threads, and page faults wait for them:
//! for milliseconds, if a thread loses the processor in the middle. So there are few steps: up to 12 for the first half
//! GiB. Steps are made under the lock of the ranges, each only once (invariant 16): a second call would restore access
//! to memory in use, also to OS pages whose access the program has changed (guards, code).
//!
//! Where the system limits what is committed, steps are short, and free chunks at the end of an arena are taken back
//! (`Pages::retract`), so that the program gets that memory in other ways. A later step commits them again; their side
//! tables stay committed.

use crate::pages::layout::{self, HUGE_BYTES, LONG, RECORD_BYTES, first_chunk};
use crate::pages::page_map::PageMap;
use crate::system::os::Run;
use crate::{CHUNK_SHIFT, Os};

/// First step in chunks. It is shorter than a huge page (2 MiB), so that a small program gets none where the system
/// uses huge pages for all memory (THP=always). In the simulation, which has little memory, all steps are shorter.
const FIRST_STEP: usize = if cfg!(neap_sim) { 8 } else { (3 << 19) >> CHUNK_SHIFT };
/// Minimum of the third step and of later ones: a program that needs a third one is not small.
const THIRD_STEP: usize = if cfg!(neap_sim) { 8 } else { (16 << 20) >> CHUNK_SHIFT };
/// Limit of the steps that double the committed memory. Once eight times that is committed, a step is an eighth of it,
/// up to [`LAST_STEP`]. Committed memory that is not used costs nothing, except where the program locks all memory or
/// where writable memory is limited; if the system refuses a step, the next try is just as long as needed.
const DOUBLE_STEP: usize = if cfg!(neap_sim) { 12 } else { (64 << 20) >> CHUNK_SHIFT };
const LAST_STEP: usize = (1 << 30) >> CHUNK_SHIFT;
/// Where writable memory is limited (RLIMIT_DATA), a step is at most one part in this many of the limit.
const LIMITED_STEP: usize = 256;
/// Limit on the steps whose memory comes from the pool of huge pages, in chunks: it is populated under the lock.
pub(crate) const POOL_STEP: usize = if cfg!(neap_sim) { 8 } else { (16 << 20) >> CHUNK_SHIFT };

/// Length in chunks of the step in which memory comes into use ([`Os::begin_use`]) after `begun` chunks. It is short:
/// what is in use is locked where the program locks all its memory, and is part of core dumps.
pub(crate) fn step_in_use(begun: usize) -> usize {
    (begun / 8).clamp(FIRST_STEP, LAST_STEP)
}

/// Length in chunks of the step after `committed` chunks.
pub(crate) fn step(committed: usize) -> usize {
    match committed {
        c if c < 2 * FIRST_STEP => FIRST_STEP,
        c => c.clamp(THIRD_STEP, DOUBLE_STEP).max((c / 8).min(LAST_STEP)),
    }
}

/// The limit on writable memory in bytes (RLIMIT_DATA), if there is one.
pub(crate) fn data_limit<O: Os>(os: &O) -> Option<usize> {
    if os.looks_for_limits() { os.data_limit() } else { None }
}

/// Limit on the length in chunks of a step, where writable memory is limited to `limit` bytes.
pub(crate) fn limited_step(limit: usize) -> usize {
    (limit / LIMITED_STEP) >> CHUNK_SHIFT
}

/// A step of an arena: commits chunks `from..to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Address of the arena.
    pub base: usize,
    /// Number of chunks of the arena.
    pub chunks: usize,
    /// True if the chunks before `from` may not be committed: in the first step, and in a group of the reentrant
    /// reserve.
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
    /// The step must lie in an arena, and the chunks before `from` must be committed, unless `fresh`.
    pub(crate) unsafe fn make<O: Os>(&self, os: &O, map: &PageMap) -> bool {
        let (base, page, tables) = (self.base, os.page_size(), self.chunks.ilog2() as u8);
        let first = first_chunk(self.chunks);
        let (begins, lowest) = (self.from == first, |end| layout::lowest_bits(tables, end) & !(page - 1));
        // SAFETY: the part lies in the reservation of the arena. Two tables may share an OS page, which does no harm.
        let commit = |from: usize, to: usize| from >= to || unsafe { os.commit(layout::at(base + from), to - from) };
        // The OS page in which the last step ended is committed already.
        let entries = |table: usize, entry: usize| {
            let from = table + self.from * entry;
            let from = if self.fresh { from & !(page - 1) } else { from.next_multiple_of(page) };
            (from, (table + self.to * entry).next_multiple_of(page))
        };
        // All ages, and the bits for huge pages, are committed at once: they are short.
        let (ages, chunks) = (layout::ages(tables) & !(page - 1), first << CHUNK_SHIFT);
        let (records, classes) = (entries(0, RECORD_BYTES), entries(base >> CHUNK_SHIFT, 1));
        let end_of_bits = match self.fresh {
            true => layout::end_of_tile(tables, self.from).next_multiple_of(page),
            false => lowest(self.from),
        };
        commit(records.0, records.1)
            // SAFETY: these entries of the page map are those of the arena's chunks.
            && (classes.0 >= classes.1 || unsafe { map.commit(os, classes.0, classes.1) })
            && (begins || !self.fresh || commit(ages, chunks))
            && (begins || commit(lowest(self.to), end_of_bits))
            && commit(if begins { lowest(self.to) } else { self.from << CHUNK_SHIFT }, self.to << CHUNK_SHIFT)
    }

    /// Takes the chunks `from..to`, which are committed, into use, with their entries in the side tables and in the
    /// page map; false if the system refuses.
    ///
    /// # Safety
    /// The chunks must be committed, and those before `from` be in use already, unless `fresh`.
    pub(crate) unsafe fn begin<O: Os>(&self, os: &O, map: &PageMap) -> bool {
        let (base, page, tables) = (self.base, os.page_size(), self.chunks.ilog2() as u8);
        let run = |from: usize, to: usize| Run { start: layout::at(base + from), len: to.saturating_sub(from) };
        // The OS page in which the last entry lies is in use already.
        let entries = |table: usize, entry: usize| {
            let from = table + self.from * entry;
            let from = if self.fresh { from & !(page - 1) } else { from.next_multiple_of(page) };
            (from, (table + self.to * entry).next_multiple_of(page).max(from))
        };
        let (records, classes, ages) =
            (entries(0, RECORD_BYTES), entries(base >> CHUNK_SHIFT, 1), entries(layout::ages(tables), 1));
        let lowest = |end| layout::lowest_bits(tables, end) & !(page - 1);
        // The first bits and ages are neighbours.
        let begins = self.from == first_chunk(self.chunks);
        // The bits for huge pages lie right before the first chunk.
        let marks = if begins && self.chunks == LONG { HUGE_BYTES } else { 0 };
        let chunks = ((self.from << CHUNK_SHIFT) - marks) & !(page - 1);
        let end_of_bits = match self.fresh {
            _ if begins => ages.1,
            true => layout::end_of_tile(tables, self.from).next_multiple_of(page),
            false => lowest(self.from),
        };
        let parts = [
            run(chunks, self.to << CHUNK_SHIFT),
            run(records.0, records.1),
            run(lowest(self.to), end_of_bits),
            if begins { Run::EMPTY } else { run(ages.0, ages.1) },
        ];
        // SAFETY: the caller passes committed chunks, and their entries are committed with them.
        unsafe { os.begin_use(&parts, map.run(classes.0, classes.1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches too many steps, and steps far longer than what is in use.
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

    /// Catches unused memory that is much of what is in use.
    #[test]
    fn steps_into_use_are_short() {
        let (mut begun, mut steps) = (0, 0);
        while begun < (512 << 20) >> CHUNK_SHIFT {
            let step = step_in_use(begun);
            assert!(step <= FIRST_STEP.max(begun / 8));
            (begun, steps) = (begun + step, steps + 1);
        }
        assert!(steps <= 48, "{steps}");
    }
}
