//! Free ranges: neighbouring chunks that are not in use. They are joined and cut here, and keep their state.
//!
//! Each free range is wholly clean (known to be zero) or wholly dirty; neighbours of the same state are joined at once
//! (invariant 13). Ranges of one state are in lists by length: one list for each length below `EXACT`, then four for
//! each doubling. A bit set has a bit for each list that is not empty. Taking and freeing take constant time: at most
//! `PROBES` entries of a list are examined, and `MOST_PROBES` of the lists whose ranges may not fit.
//!
//! Policy: dirty before clean before never used, so that memory is reused while it is warm and resident. If no dirty
//! range is long enough, the next choice is one that is long enough together with its clean neighbours.
//!
//! The age of a dirty chunk says since when it waits (`age.rs`); `back/purge.rs` takes those that have waited long
//! enough.

use crate::pages::age;
use crate::pages::arena::{Arenas, UnderLock};
use crate::pages::chunk::{Gap, Kind, LINKS, List, RECORD_BYTES, Record, State, View};
use crate::pages::demand::Demand;
use crate::pages::growth::Growth;
use crate::pages::held::Held;
use crate::pages::space::Space;
use crate::system::policy::HugePages;
use crate::{CHUNK, Os};
use core::cell::Cell;

/// Lengths in chunks below which each length has a list of its own.
const EXACT: usize = 32;
/// Number of lists for each state.
pub(crate) const LISTS: usize = EXACT + 4 * 16;
/// Limit on the entries of a list that are examined, and on those of all lists whose ranges may not fit.
const PROBES: usize = 8;
const MOST_PROBES: usize = 64;
/// Length in chunks from which on a clean range starts at a multiple of 2 MiB. Then it shares no page table of the
/// kernel with the memory in front of it, so the kernel need not search that table when it looks for touched pages of
/// the range.
const LONG: usize = (64 << 20) / CHUNK;
const LONG_ALIGN: usize = (2 << 20) / CHUNK;
/// Limit on the free ranges that a block grows into at once.
const MOST_RANGES: usize = 4;
/// Cost of a chunk of clean memory (its page faults), in copied chunks.
const FAULT_COST: usize = 4;
/// Maximum length in chunks of a block that is copied where it could be moved or grow into clean memory.
pub(crate) const MOST_COPIED: usize = (16 << 20) / CHUNK;
/// Limit on the dirty ranges that are examined together with their neighbours.
const JOIN_PROBES: usize = 4;

/// The record of the first chunk of a free or dropped range, and of the last one of a free range (only `len`).
#[repr(C, align(64))]
#[derive(Debug)]
struct FreeRecord {
    _kind_and_class: Gap<2>,
    /// A [`State`].
    state: Cell<u8>,
    _unused: Gap<5>,
    /// Number of chunks in the range.
    len: Cell<u32>,
    _more: Gap<{ RECORD_BYTES - 12 }>,
}

const _: () = assert!(core::mem::offset_of!(FreeRecord, _more) <= LINKS, "no field may overlap the links of the list");

// SAFETY: as the trait requires; the padding is not read.
unsafe impl View for FreeRecord {}

impl FreeRecord {
    fn of(c: Record) -> &'static FreeRecord {
        c.view()
    }
}

/// Length of the free or dropped range that starts with `c`; exact under the lock of the ranges, else a hint.
#[inline]
fn len_of(c: Record) -> usize {
    FreeRecord::of(c).len.get() as usize
}

fn state_of(c: Record) -> State {
    State::from_byte(FreeRecord::of(c).state.get())
}

/// The free ranges of all arenas. A reference to it proves that the lock of the ranges is held, see
/// [`crate::pages::Pages`].
#[derive(Debug)]
pub struct Ranges {
    lock: UnderLock,
    /// The lists, by state and length.
    lists: [[List; LISTS]; 2],
    /// A bit for each list that is not empty, by state.
    filled: [u128; 2],
    /// Number of chunks in free ranges, by state.
    pub free_chunks: [usize; 2],
    /// Number of dirty chunks of age [`age::LAZY`], which do not wait; it may be too high.
    pub lazy_chunks: usize,
    /// Number of clean or never used chunks taken since the memory limit was last read.
    pub fresh_chunks: usize,
    /// Demand for chunks of free ranges.
    pub(crate) demand: Demand,
    /// Demand for holes of slabs.
    pub(crate) holes: Demand,
    /// Number of chunks freed since the side tables were last purged, see `tables.rs`.
    pub(crate) freed_chunks: usize,
    /// Number of chunks that are not free, including those on their way to the system.
    taken_chunks: usize,
    /// Peak of the footprint.
    pub(crate) peak_chunks: usize,
    /// What was taken in small pages, for `huge_area.rs`.
    pub(crate) growth: Growth,
    /// Ranges of the kind [`Kind::DROPPED`].
    dropped: List,
    /// Number of chunks in dropped ranges.
    pub(crate) dropped_chunks: usize,
    /// Sums over the taken chunks.
    pub held: Held,
}

/// The result of a take: chunks that are the caller's now.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Record of the first chunk.
    pub first: Record,
    /// Those that are not known to be zero: from the first index up to the second.
    pub dirty: (usize, usize),
}

impl Taken {
    /// Whether all chunks are known to be zero.
    pub fn is_clean(&self) -> bool {
        self.dirty.0 == self.dirty.1
    }
}

// SAFETY: the records in the lists are used only under the lock that guards this structure.
unsafe impl Send for Ranges {}

const _: () = assert!(LISTS <= 128, "`filled` has a bit for each list");

/// The list for ranges of `len` chunks. All ranges of a later list are longer than all of an earlier one.
#[inline]
pub(crate) const fn list_of(len: usize) -> usize {
    if len < EXACT {
        return len;
    }
    let log = len.ilog2() as usize;
    let list = EXACT + (log - 5) * 4 + ((len >> (log - 2)) & 3);
    if list < LISTS { list } else { LISTS - 1 }
}

/// Number of chunks from `c` to the next one that starts at a multiple of `align` chunks.
#[inline]
fn skip(c: Record, align: usize) -> usize {
    (c.start().addr() / CHUNK).wrapping_neg() & (align - 1)
}

impl Ranges {
    /// No free range.
    pub const fn new() -> Self {
        Ranges {
            lock: UnderLock::new(),
            lists: [const { [const { List::new() }; LISTS] }; 2],
            filled: [0; 2],
            free_chunks: [0; 2],
            lazy_chunks: 0,
            fresh_chunks: 0,
            demand: Demand::new(),
            holes: Demand::new(),
            freed_chunks: 0,
            taken_chunks: 0,
            peak_chunks: 0,
            growth: Growth::new(),
            dropped: List::new(),
            dropped_chunks: 0,
            held: Held::new(),
        }
    }

    /// Proof that the lock is held.
    #[inline]
    pub fn lock(&self) -> &UnderLock {
        &self.lock
    }

    /// Puts a free range into its list and marks its ends. No neighbour may be a free range of the same state.
    fn insert(&mut self, c: Record, len: usize, state: State) {
        c.set_kind(Kind::FREE);
        let record = FreeRecord::of(c);
        record.state.set(state as u8);
        record.len.set(len as u32);
        if len > 1 {
            let end = c.after(len - 1);
            end.set_kind(Kind::FREE_END);
            FreeRecord::of(end).len.set(len as u32);
        }
        let list = list_of(len);
        self.lists[state as usize][list].push(c);
        self.filled[state as usize] |= 1 << list;
        self.free_chunks[state as usize] += len;
    }

    /// Takes a free range out of its list and clears its marks; returns its length.
    fn remove(&mut self, c: Record) -> usize {
        let (len, state) = (len_of(c), state_of(c) as usize);
        let list = list_of(len);
        self.lists[state][list].remove(c);
        if self.lists[state][list].head().is_none() {
            self.filled[state] &= !(1 << list);
        }
        c.after(len - 1).set_kind(Kind::NONE);
        c.set_kind(Kind::NONE);
        self.free_chunks[state] -= len;
        len
    }

    /// Returns a free range of `state` in which `len` chunks lie that start at a multiple of `align`.
    fn find(&self, len: usize, align: usize, state: State) -> Option<Record> {
        let fits = |c: &Record| skip(*c, align) + len <= len_of(*c);
        // All ranges of the lists from `sure` on fit. The lists before are examined as well: an aligned block that was
        // freed left a range that is just long enough.
        let (first, sure) = (list_of(len), list_of(len + align - 1) + 1);
        let mut filled = self.filled[state as usize] >> first << first;
        let mut left = MOST_PROBES;
        while filled != 0 {
            let list = filled.trailing_zeros() as usize;
            let probes = if list < sure { left.min(PROBES) } else { PROBES };
            let found = self.lists[state as usize][list].iter().take(probes).find(fits);
            if found.is_some() {
                return found;
            }
            left = left.saturating_sub(probes);
            filled &= filled - 1;
        }
        None
    }

    /// Takes `len` chunks, aligned to `align` bytes (a power of two). The caller sets the kinds of their records.
    pub fn take<O: Os>(&mut self, space: &Space<O>, len: usize, align: usize) -> Option<Taken> {
        let align = (align / CHUNK).max(1);
        let dirty = match self.find(len, align, State::Dirty) {
            Some(c) => Some(Taken { first: self.cut(&space.arenas, c, len, align), dirty: (0, len) }),
            None => self.take_joined(space, len, align),
        };
        if dirty.is_some() {
            self.taken_chunks += len;
            self.demand.still_waits(self.waiting());
            return dirty;
        }
        // With huge pages for large blocks a range starts where a huge page does, unless address space is limited.
        let thp = space.policy.huge() == HugePages::Thp && !space.arenas.is_limited(&self.lock);
        let long = if thp { LONG_ALIGN } else { LONG };
        self.take_clean(space, len, if len >= long { align.max(LONG_ALIGN) } else { align })
    }

    /// [`Ranges::take`] of chunks that read as zero; `align` is in chunks.
    pub fn take_clean<O: Os>(&mut self, space: &Space<O>, len: usize, align: usize) -> Option<Taken> {
        // Chunks at the frontier are clean and free. An arena starts at a multiple of ARENA_ALIGN, so aligned indexes
        // have aligned addresses.
        let first = match self.find(len, align, State::Clean) {
            Some(c) => self.cut(&space.arenas, c, len, align),
            None => {
                let (gap, first) = space.arenas.extend(&space.os, &space.map, &self.lock, len, align)?;
                if let Some((c, skipped)) = gap {
                    self.free(&space.arenas, c, skipped, age::NONE);
                }
                first
            }
        };
        if space.policy.huge() == HugePages::Always && space.os.has_huge_pages(false) {
            space.arenas.set_huge(&space.os, &self.lock, first, true);
        }
        self.growth.note_small(first, len);
        self.note_fresh(len);
        self.taken_chunks += len;
        Some(Taken { first, dirty: (0, 0) })
    }

    /// Takes `len` chunks, aligned to `align` chunks, out of the free range `c`; returns the first of them.
    fn cut(&mut self, arenas: &Arenas, c: Record, len: usize, align: usize) -> Record {
        let skip = skip(c, align);
        self.take_part(arenas, c, skip, skip + len);
        c.after(skip)
    }

    /// Takes the chunks `from..to` out of the free range `c`.
    fn take_part(&mut self, arenas: &Arenas, c: Record, from: usize, to: usize) {
        let state = state_of(c);
        // The parts that stay have no free neighbour of their state: the chunks between them are taken now.
        let len = self.remove(c);
        if from > 0 {
            self.insert(c, from, state);
        }
        if to < len {
            self.insert(c.after(to), len - to, state);
        }
        self.forget_ages(arenas, c.after(from), to - from, state);
    }

    /// Clears the ages of chunks that were taken from a range of `state`.
    fn forget_ages(&mut self, arenas: &Arenas, c: Record, len: usize, state: State) {
        if state == State::Clean {
            return;
        }
        if self.lazy_chunks > 0 {
            let lazy = age::ages(arenas, &self.lock, c, len).iter().filter(|&&a| a == age::LAZY).count();
            self.lazy_chunks = self.lazy_chunks.saturating_sub(lazy);
        }
        age::set(arenas, &self.lock, c, len, age::NONE);
    }

    /// Takes `len` chunks, aligned to `align`, of a dirty range and its clean neighbours, at least an eighth of them
    /// dirty. So a program whose blocks grow reuses the memory that it has.
    fn take_joined<O: Os>(&mut self, space: &Space<O>, len: usize, align: usize) -> Option<Taken> {
        let least = (len / 8).max(1);
        let mut filled = self.filled[State::Dirty as usize];
        for _ in 0..JOIN_PROBES {
            let list = filled.checked_ilog2()? as usize;
            filled &= !(1 << list);
            let c = self.lists[State::Dirty as usize][list].head()?;
            if len_of(c) < least {
                return None;
            }
            let taken = self.join_behind(space, c, len, align, least);
            let taken = taken.or_else(|| self.join_before(&space.arenas, c, len, align, least));
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// Takes `len` chunks from the first aligned one of the dirty range `c` on, at least `least` of them dirty, if the
    /// clean range behind it, or the frontier, has the rest. A free neighbour of a dirty range is clean, as neighbours
    /// of the same state are joined.
    fn join_behind<O: Os>(
        &mut self,
        space: &Space<O>,
        c: Record,
        len: usize,
        align: usize,
        least: usize,
    ) -> Option<Taken> {
        let (have, skip) = (len_of(c), skip(c, align));
        let dirty = have.checked_sub(skip)?.min(len);
        let (after, behind) = (c.after(have), len - dirty);
        if dirty < least {
            return None;
        }
        if behind > 0 && !self.extend_at(space, after, behind) {
            if !self.is_free(&space.arenas, after) || len_of(after) < behind {
                return None;
            }
            self.take_part(&space.arenas, after, 0, behind);
        }
        self.take_part(&space.arenas, c, skip, skip + dirty);
        self.note_fresh(behind);
        Some(Taken { first: c.after(skip), dirty: (0, dirty) })
    }

    /// As [`Ranges::join_behind`], but begins with chunks of the clean range before `c`, as few as possible.
    fn join_before(&mut self, arenas: &Arenas, c: Record, len: usize, align: usize, least: usize) -> Option<Taken> {
        let have = len_of(c);
        let (before, after) = (self.start_of_free(arenas, c.before(1))?, c.after(have));
        let free = len_of(before);
        let right = if self.is_free(arenas, after) { len_of(after) } else { 0 };
        // Counted from the start of the range before: the last place that is long enough, then the last aligned one.
        let last = (free + have + right).checked_sub(len)?.min(free);
        let from = last - (last.checked_sub(skip(before, align))? & (align - 1));
        let dirty = (from + len).checked_sub(free)?.min(have);
        if dirty < least {
            return None;
        }
        let behind = len - (free - from) - dirty;
        if from < free {
            self.take_part(arenas, before, from, free);
        }
        self.take_part(arenas, c, 0, dirty);
        if behind > 0 {
            self.take_part(arenas, after, 0, behind);
        }
        self.note_fresh(len - dirty);
        Some(Taken { first: before.after(from), dirty: (free - from, free - from + dirty) })
    }

    /// Whether `c` starts a free range.
    pub(crate) fn is_free(&self, arenas: &Arenas, c: Record) -> bool {
        arenas.in_use(&self.lock, c) && c.kind() == Kind::FREE
    }

    /// First record of the free range that ends with `last`, if there is one.
    fn start_of_free(&self, arenas: &Arenas, last: Record) -> Option<Record> {
        if !arenas.in_use(&self.lock, last) {
            return None;
        }
        match last.kind() {
            Kind::FREE => Some(last),
            Kind::FREE_END => Some(last.before(len_of(last) - 1)),
            _ => None,
        }
    }

    /// Frees `len` chunks of the caller, and joins them with free neighbours of the same state. They wait since the
    /// epoch `since`, or are clean ([`age::NONE`]). Their records must have no kind, and be in no list.
    pub fn give(&mut self, arenas: &Arenas, c: Record, len: usize, since: u8) {
        self.taken_chunks -= len;
        self.freed_chunks += len;
        self.free(arenas, c, len, since);
    }

    fn free(&mut self, arenas: &Arenas, c: Record, len: usize, since: u8) {
        let (mut start, mut total, state) = (c, len, age::state(since));
        // Only neighbours in the used part of the same arena have records.
        let after = c.after(len);
        if self.is_free(arenas, after) && state_of(after) == state {
            total += self.remove(after);
        }
        if let Some(first) = self.start_of_free(arenas, c.before(1))
            && state_of(first) == state
        {
            total += self.remove(first);
            start = first;
        }
        if since != age::NONE {
            age::set(arenas, &self.lock, c, len, since);
        }
        self.insert(start, total, state);
        if since == age::LAZY {
            self.lazy_chunks += len;
        }
    }

    /// Takes the `len` chunks from `after` on, of free ranges or from the frontier, so that the caller's range in front
    /// grows. False if they are not free, or if it costs less to copy the `copied` chunks in front into a dirty range.
    pub fn extend<O: Os>(&mut self, space: &Space<O>, after: Record, len: usize, copied: usize) -> bool {
        let (mut c, mut left, mut clean, mut ranges) = (after, len, 0, 0);
        while left > 0 && ranges < MOST_RANGES && self.is_free(&space.arenas, c) {
            let part = len_of(c).min(left);
            clean += if state_of(c) == State::Clean { part } else { 0 };
            (c, left, ranges) = (c.after(part), left - part, ranges + 1);
        }
        if clean + left > copied / FAULT_COST && self.has_for_copy(copied + len) {
            return false;
        }
        if left > 0 && !self.extend_at(space, c, left) {
            return false;
        }
        let (mut c, mut left) = (after, len - left);
        while left > 0 {
            let part = len_of(c).min(left);
            self.take_part(&space.arenas, c, 0, part);
            (c, left) = (c.after(part), left - part);
        }
        self.taken_chunks += len;
        true
    }

    /// Takes the `len` chunks from `after` on if that is the frontier; false if it is not, or there is no memory.
    fn extend_at<O: Os>(&self, space: &Space<O>, after: Record, len: usize) -> bool {
        !space.arenas.in_use(&self.lock, after) && space.arenas.extend_at(&space.os, &space.map, &self.lock, after, len)
    }

    /// Whether there is a dirty range into which a block that grows to `len` chunks is better copied than moved. Up to
    /// [`MOST_COPIED`] chunks only, as the memory that the block leaves waits then.
    pub(crate) fn has_for_copy(&self, len: usize) -> bool {
        len <= MOST_COPIED && self.find(len, 1, State::Dirty).is_some()
    }

    /// Takes one of the longest clean ranges out of the lists, if it has at least `least` chunks and `wanted` accepts
    /// it. It is the caller's until [`Ranges::put_back_clean`].
    pub(crate) fn take_long_clean(&mut self, least: usize, wanted: impl Fn(Record) -> bool) -> Option<(Record, usize)> {
        let list = self.filled[State::Clean as usize].checked_ilog2()? as usize;
        let c = self.lists[State::Clean as usize][list].head()?;
        (len_of(c) >= least && wanted(c)).then(|| (c, self.remove(c)))
    }

    /// Takes the clean range that ends with `last` out of the lists, if there is one; returns its first chunk and length.
    pub(crate) fn take_clean_before(&mut self, arenas: &Arenas, last: Record) -> Option<(Record, usize)> {
        let c = self.start_of_free(arenas, last).filter(|&c| state_of(c) == State::Clean)?;
        Some((c, self.remove(c)))
    }

    /// Frees a range that [`Ranges::take_long_clean`] or [`Ranges::take_clean_before`] took.
    pub(crate) fn put_back_clean(&mut self, arenas: &Arenas, c: Record, len: usize) {
        self.free(arenas, c, len, age::NONE);
    }

    /// Counts clean chunks that were taken.
    fn note_fresh(&mut self, chunks: usize) {
        self.fresh_chunks += chunks;
        self.demand.take_clean(chunks);
    }

    /// Number of chunks that wait to be purged: dirty and dropped ones.
    pub fn waiting(&self) -> usize {
        self.free_chunks[State::Dirty as usize].saturating_sub(self.lazy_chunks) + self.dropped_chunks
    }

    /// Number of dirty chunks that may be purged if `keep` of those that wait have to stay; no limit if that is 0.
    pub(crate) fn beyond(&self, keep: usize) -> usize {
        if keep == 0 {
            return usize::MAX;
        }
        (self.waiting() - self.dropped_chunks).saturating_sub(keep)
    }

    /// Number of chunks that are not free.
    pub fn taken_chunks(&self) -> usize {
        self.taken_chunks
    }

    /// Number of chunks that may hold memory: taken ones and dirty ones.
    pub fn footprint(&self) -> usize {
        self.taken_chunks + self.free_chunks[State::Dirty as usize]
    }

    /// Takes chunks `from..to` out of the free dirty range `c`, to be purged.
    pub fn take_out(&mut self, arenas: &Arenas, c: Record, from: usize, to: usize) {
        self.taken_chunks += to - from;
        self.take_part(arenas, c, from, to);
    }

    /// Drops `len` chunks of the caller: they wait for the purger, and are not handed out before they are clean. Their
    /// records must have no kind.
    pub fn drop_chunks(&mut self, c: Record, len: usize) {
        c.set_kind(Kind::DROPPED);
        FreeRecord::of(c).len.set(len as u32);
        self.dropped.push(c);
        self.dropped_chunks += len;
    }

    /// Takes up to `most` dropped chunks.
    pub fn take_dropped(&mut self, most: usize) -> Option<(Record, usize)> {
        let c = self.dropped.head()?;
        let len = len_of(c);
        self.dropped.remove(c);
        c.set_kind(Kind::NONE);
        let taken = len.min(most);
        self.dropped_chunks -= len;
        if taken < len {
            self.drop_chunks(c.after(taken), len - taken);
        }
        Some((c, taken))
    }

    /// First record of the free range that `c` lies in; `c` must lie in one.
    pub fn start_of(&self, mut c: Record) -> Record {
        // The records of a range are neighbours, and only the first has the kind FREE.
        while c.kind() != Kind::FREE {
            c = c.before(if c.kind() == Kind::FREE_END { len_of(c) - 1 } else { 1 });
        }
        c
    }

    /// Whether a range of `state` has room for `len` chunks, aligned to `align` bytes.
    pub(crate) fn has_for(&self, len: usize, align: usize, state: State) -> bool {
        self.find(len, (align / CHUNK).max(1), state).is_some()
    }

    /// Length and state of the free range that starts with `c`, or length of the dropped range; `c` must start one.
    pub fn look_at(&self, c: Record) -> (usize, State) {
        (len_of(c), state_of(c))
    }

    /// Checks every list: kinds, lengths, states and sums. For tests.
    pub fn is_valid(&self) -> bool {
        let mut sums = [0; 2];
        for (state, sum) in sums.iter_mut().enumerate() {
            for (i, list) in self.lists[state].iter().enumerate() {
                if list.head().is_none() == (self.filled[state] >> i & 1 == 1) {
                    return false;
                }
                for c in list.iter() {
                    let len = len_of(c);
                    let end = c.after(len - 1);
                    let ends = len == 1 || (end.kind() == Kind::FREE_END && len_of(end) == len);
                    let fits = c.kind() == Kind::FREE && state_of(c) as usize == state && list_of(len) == i;
                    if !fits || !ends {
                        return false;
                    }
                    *sum += len;
                }
            }
        }
        sums == self.free_chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a list index with which a take could return a range that is too short.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn lists_are_ordered() {
        for len in 1..1 << 20 {
            let list = list_of(len);
            assert!(list >= list_of(len - 1).min(list), "{len}");
            assert!(list < LISTS && list >= list_of(len - 1));
        }
    }
}
