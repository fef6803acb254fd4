//! Free ranges: neighbouring chunks that nobody uses, joined and cut with their state kept.
//!
//! Each free range is wholly clean (known zero) or wholly dirty; neighbours of one state are joined at once.
//! Ranges of one state hang in lists by length: one list for each length below `EXACT`, then four for each
//! doubling, with a bit set of the lists that hold any. Taking and freeing are constant time: at most `PROBES`
//! entries of a list are looked at.
//!
//! Policy: dirty before clean before never used, so that memory is reused while it is warm and resident. Where no dirty
//! range is long enough, one that is long enough together with its clean neighbours is next.
//!
//! Since when each dirty chunk waits says its age (`age.rs`); `purge.rs` takes what has waited long enough.

use crate::pages::age;
use crate::pages::arena::Arenas;
use crate::pages::chunk::{Chunk, Kind, List, State};
use crate::pages::demand::Demand;
use crate::pages::held::Held;
use crate::pages::layout;
use crate::pages::space::Space;
use crate::{CHUNK, Os};

const EXACT: usize = 32;
/// Lists of one state.
pub(crate) const LISTS: usize = EXACT + 4 * 16;
const PROBES: usize = 8;
/// Chunks from which on a clean range starts at a multiple of 2 MiB: the kernel's last page table before it is not its
/// own then, and need not be searched when the kernel is asked what of it is touched.
const LONG: usize = (64 << 20) / CHUNK;
const LONG_ALIGN: usize = (2 << 20) / CHUNK;
/// Dirty ranges that are looked at together with their neighbours.
const JOIN_PROBES: usize = 4;

/// The free ranges of all arenas. Used under its lock (see [`crate::pages::Pages`]).
#[derive(Debug)]
pub struct Ranges {
    lists: [[List; LISTS]; 2],
    filled: [u128; 2],
    /// Chunks in free ranges, by state.
    pub free_chunks: [usize; 2],
    /// Dirty chunks that the system was told of already ([`age::LAZY`]), at most; they do not wait.
    pub lazy_chunks: usize,
    /// Chunks that were clean or never used, taken since the last look at the memory limit.
    pub fresh_chunks: usize,
    /// What was purged and is taken again: chunks of free ranges, and holes of slabs.
    pub(crate) demand: Demand,
    pub(crate) holes: Demand,
    /// Chunks that were freed since the side tables were last looked at, see `tables.rs`.
    pub(crate) freed_chunks: usize,
    /// Chunks that are not free, those on their way to the system included.
    taken_chunks: usize,
    /// The greatest footprint so far.
    pub(crate) peak_chunks: usize,
    /// Ranges that were marked for huge pages, see `dense.rs`.
    pub(crate) marks: usize,
    /// Ranges of the kind [`Kind::DROPPED`], and how many chunks they have.
    dropped: List,
    pub(crate) dropped_chunks: usize,
    /// What those hold.
    pub held: Held,
}

/// Chunks that were taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Record of the first.
    pub first: *mut Chunk,
    /// Which of them may hold anything: from this index up to the next.
    pub dirty: (usize, usize),
}

impl Taken {
    /// Whether all read as zero.
    pub fn is_clean(&self) -> bool {
        self.dirty.0 == self.dirty.1
    }
}

// SAFETY: the records are reached under the lock that guards this structure.
unsafe impl Send for Ranges {}

const _: () = assert!(LISTS <= 128, "`filled` has a bit for each list");

impl Default for Ranges {
    fn default() -> Self {
        Self::new()
    }
}

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

impl Ranges {
    /// No range.
    pub const fn new() -> Self {
        Ranges {
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
            marks: 0,
            dropped: List::new(),
            dropped_chunks: 0,
            held: Held::new(),
        }
    }

    /// Puts a free range into its list and marks its ends. It must not touch a free range of the same state.
    unsafe fn insert(&mut self, c: *mut Chunk, len: usize, state: State) {
        // SAFETY: the range is the caller's; its first and last records are valid.
        unsafe {
            (*c).kind.set(Kind::FREE);
            (*c).state = state;
            (*c).len = len as u32;
            if len > 1 {
                let end = c.add(len - 1);
                (*end).kind.set(Kind::FREE_END);
                (*end).len = len as u32;
            }
            let list = list_of(len);
            self.lists[state as usize][list].push(c);
            self.filled[state as usize] |= 1 << list;
        }
        self.free_chunks[state as usize] += len;
    }

    /// Takes a free range out of its list and wipes its marks.
    unsafe fn remove(&mut self, c: *mut Chunk) {
        // SAFETY: `c` starts a free range.
        unsafe {
            let (len, state) = ((*c).len as usize, (*c).state as usize);
            let list = list_of(len);
            self.lists[state][list].remove(c);
            if self.lists[state][list].head.is_null() {
                self.filled[state] &= !(1 << list);
            }
            (*c.add(len - 1)).kind.set(Kind::NONE);
            (*c).kind.set(Kind::NONE);
            self.free_chunks[state] -= len;
        }
    }

    /// A free range of at least `len` chunks and of `state`, out of its list; longer ones are not cut yet.
    unsafe fn find(&mut self, len: usize, state: State) -> Option<*mut Chunk> {
        let list = list_of(len);
        let mut filled = self.filled[state as usize] >> list << list;
        if list >= EXACT && filled & (1 << list) != 0 {
            // Lengths differ in this list: look at some.
            let mut c = self.lists[state as usize][list].head;
            for _ in 0..PROBES {
                if c.is_null() {
                    break;
                }
                // SAFETY: records in the list are valid.
                unsafe {
                    if (*c).len as usize >= len {
                        self.remove(c);
                        return Some(c);
                    }
                    c = (*c).next;
                }
            }
            filled &= !(1 << list);
        }
        if filled == 0 {
            return None;
        }
        let c = self.lists[state as usize][filled.trailing_zeros() as usize].head;
        // SAFETY: the list is not empty; only the last list mixes lengths that could be too short.
        unsafe {
            if ((*c).len as usize) < len {
                return None;
            }
            self.remove(c);
        }
        Some(c)
    }

    /// Takes `len` chunks, aligned to `align` bytes (a power of two). Their records have no kind yet.
    ///
    /// # Safety
    /// The lock must be held.
    pub unsafe fn take<O: Os>(&mut self, space: &Space<O>, len: usize, align: usize) -> Option<Taken> {
        let align = (align / CHUNK).max(1);
        // SAFETY: the lock is held.
        unsafe {
            if let Some(c) = self.find(len + align - 1, State::Dirty) {
                self.taken_chunks += len;
                let first = self.cut(&space.arenas, c, len, align, State::Dirty);
                self.demand.still_waits(self.waiting());
                return Some(Taken { first, dirty: (0, len) });
            }
            if align == 1
                && let Some(taken) = self.take_joined(space, len)
            {
                self.taken_chunks += len;
                self.demand.still_waits(self.waiting());
                return Some(taken);
            }
            let align = if len >= LONG { align.max(LONG_ALIGN) } else { align };
            self.take_clean(space, len, align)
        }
    }

    /// [`Ranges::take`], of chunks that read as zero.
    ///
    /// # Safety
    /// The lock must be held; `align` counts chunks.
    pub unsafe fn take_clean<O: Os>(&mut self, space: &Space<O>, len: usize, align: usize) -> Option<Taken> {
        // SAFETY: the lock is held; chunks at the frontier are clean and nobody's. An arena starts at a multiple
        // of ARENA_ALIGN, so that aligned indexes are aligned addresses.
        let first = unsafe {
            match self.find(len + align - 1, State::Clean) {
                Some(c) => self.cut(&space.arenas, c, len, align, State::Clean),
                None => space.arenas.extend(&space.os, &space.map, len, align, |c, skipped| {
                    self.free(&space.arenas, c, skipped, age::NONE)
                })?,
            }
        };
        self.note_fresh(len);
        self.taken_chunks += len;
        Some(Taken { first, dirty: (0, 0) })
    }

    /// Cuts `len` chunks, aligned to `align` chunks, out of the free range `c` that is in no list any more.
    unsafe fn cut(&mut self, arenas: &Arenas, c: *mut Chunk, len: usize, align: usize, state: State) -> *mut Chunk {
        // SAFETY: the range is long enough, and the caller's.
        unsafe {
            let have = (*c).len as usize;
            let skip = (layout::chunk(c).addr() / CHUNK).wrapping_neg() & (align - 1);
            if skip > 0 {
                self.insert(c, skip, state);
            }
            if have > skip + len {
                self.insert(c.add(skip + len), have - skip - len, state);
            }
            self.forget_ages(arenas, c.add(skip), len, state);
            c.add(skip)
        }
    }

    /// Nothing waits any more in chunks that were taken.
    unsafe fn forget_ages(&mut self, arenas: &Arenas, c: *mut Chunk, len: usize, state: State) {
        if state == State::Clean {
            return;
        }
        // SAFETY: the lock is held, and the chunks are the caller's.
        unsafe {
            if self.lazy_chunks > 0 {
                let ages = core::slice::from_raw_parts(arenas.ages(c), len);
                let lazy = ages.iter().filter(|&&a| a == age::LAZY).count();
                self.lazy_chunks = self.lazy_chunks.saturating_sub(lazy);
            }
            age::set(arenas, c, len, age::NONE);
        }
    }

    /// Takes `len` chunks made of a dirty range and its clean neighbours, at least an eighth of them dirty: so a
    /// program whose blocks grow goes on in the memory that it has.
    unsafe fn take_joined<O: Os>(&mut self, space: &Space<O>, len: usize) -> Option<Taken> {
        let mut filled = self.filled[State::Dirty as usize];
        for _ in 0..JOIN_PROBES {
            let list = filled.checked_ilog2()? as usize;
            filled &= !(1 << list);
            // SAFETY: the lock is held; a filled list has a head, and its neighbours' records are readable.
            unsafe {
                let c = self.lists[State::Dirty as usize][list].head;
                if ((*c).len as usize) < len / 8 {
                    return None;
                }
                if let Some(taken) = self.join(space, c, len) {
                    return Some(taken);
                }
            }
        }
        None
    }

    /// Takes `len` chunks that contain the dirty range `c`, if its clean neighbours or the frontier have the rest.
    unsafe fn join<O: Os>(&mut self, space: &Space<O>, c: *mut Chunk, len: usize) -> Option<Taken> {
        // SAFETY: the lock is held; free neighbours of a dirty range are clean, as equal ones are joined.
        unsafe {
            let (have, after) = ((*c).len as usize, c.add((*c).len as usize));
            let missing = len - have;
            if self.take_after(space, after, missing).is_some() {
                self.remove(c);
                self.forget_ages(&space.arenas, c, have, State::Dirty);
                self.note_fresh(missing);
                return Some(Taken { first: c, dirty: (0, have) });
            }
            // All of the right neighbour, and the end of the left one.
            let before = Self::start_of_free(&space.arenas, c.sub(1))?;
            let free = (*before).len as usize;
            let right =
                if space.arenas.in_use(after) && (*after).kind.get() == Kind::FREE { (*after).len as usize } else { 0 };
            // A right neighbour that is long enough alone was taken above.
            let left = missing - right;
            if free < left {
                return None;
            }
            self.remove(c);
            self.forget_ages(&space.arenas, c, have, State::Dirty);
            if right > 0 {
                self.remove(after);
            }
            self.remove(before);
            if free > left {
                self.insert(before, free - left, State::Clean);
            }
            self.note_fresh(missing);
            Some(Taken { first: c.sub(left), dirty: (left, left + have) })
        }
    }

    /// First record of the free range that ends with `last`, if one does.
    unsafe fn start_of_free(arenas: &Arenas, last: *mut Chunk) -> Option<*mut Chunk> {
        // SAFETY: the lock is held.
        unsafe {
            if !arenas.in_use(last) {
                return None;
            }
            match (*last).kind.get() {
                Kind::FREE => Some(last),
                Kind::FREE_END => Some(last.sub((*last).len as usize - 1)),
                _ => None,
            }
        }
    }

    /// Makes `len` chunks free, joined with free neighbours of the same state. They wait since the epoch `since`, or
    /// are clean ([`age::NONE`]).
    ///
    /// # Safety
    /// The lock must be held; the chunks must be nobody's, and their records have no kind, nor be in a list.
    pub unsafe fn give(&mut self, arenas: &Arenas, c: *mut Chunk, len: usize, since: u8) {
        self.taken_chunks -= len;
        self.freed_chunks += len;
        // SAFETY: as the caller promises.
        unsafe { self.free(arenas, c, len, since) }
    }

    unsafe fn free(&mut self, arenas: &Arenas, c: *mut Chunk, len: usize, since: u8) {
        let (mut start, mut total, state) = (c, len, age::state(since));
        // SAFETY: the lock is held; neighbours are looked at only inside the used part of the same arena.
        unsafe {
            let after = c.add(len);
            if arenas.in_use(after) && (*after).kind.get() == Kind::FREE && (*after).state == state {
                total += (*after).len as usize;
                self.remove(after);
            }
            if let Some(first) = Self::start_of_free(arenas, c.sub(1))
                && (*first).state == state
            {
                total += (*first).len as usize;
                start = first;
                self.remove(first);
            }
            if since != age::NONE {
                age::set(arenas, c, len, since);
            }
            self.insert(start, total, state);
        }
        if since == age::LAZY {
            self.lazy_chunks += len;
        }
    }

    /// Lengthens the range that ends before `after` by `len` chunks, from a free range there or from the frontier.
    ///
    /// # Safety
    /// The lock must be held; `after` must be the record behind a range of the caller's.
    pub unsafe fn extend<O: Os>(&mut self, space: &Space<O>, after: *mut Chunk, len: usize) -> Option<State> {
        // SAFETY: as the caller promises.
        let state = unsafe { self.take_after(space, after, len) };
        self.taken_chunks += if state.is_some() { len } else { 0 };
        state
    }

    unsafe fn take_after<O: Os>(&mut self, space: &Space<O>, after: *mut Chunk, len: usize) -> Option<State> {
        // SAFETY: the lock is held.
        unsafe {
            if space.arenas.in_use(after) {
                if (*after).kind.get() != Kind::FREE || ((*after).len as usize) < len {
                    return None;
                }
                let (have, state) = ((*after).len as usize, (*after).state);
                self.remove(after);
                if have > len {
                    self.insert(after.add(len), have - len, state);
                }
                self.forget_ages(&space.arenas, after, len, state);
                return Some(state);
            }
            space.arenas.extend_at(&space.os, &space.map, after, len).then_some(State::Clean)
        }
    }

    /// Takes one of the longest clean ranges out of the lists, if it has at least `least` chunks and `wanted` says so.
    /// Until [`Ranges::put_back_clean`] it is free but nobody's.
    ///
    /// # Safety
    /// The lock must be held.
    pub(crate) unsafe fn take_long_clean(
        &mut self,
        least: usize,
        wanted: impl Fn(*const Chunk) -> bool,
    ) -> Option<(*mut Chunk, usize)> {
        let list = self.filled[State::Clean as usize].checked_ilog2()? as usize;
        let c = self.lists[State::Clean as usize][list].head;
        // SAFETY: the lock is held; a filled list has a head.
        unsafe {
            let len = (*c).len as usize;
            (len >= least && wanted(c)).then(|| {
                self.remove(c);
                (c, len)
            })
        }
    }

    /// Makes a range free again that [`Ranges::take_long_clean`] took.
    ///
    /// # Safety
    /// The lock must be held; the range must be such a one.
    pub(crate) unsafe fn put_back_clean(&mut self, arenas: &Arenas, c: *mut Chunk, len: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.free(arenas, c, len, age::NONE) }
    }

    fn note_fresh(&mut self, chunks: usize) {
        self.fresh_chunks += chunks;
        self.demand.take_clean(chunks);
    }

    /// Dirty chunks that wait to be purged.
    pub fn waiting(&self) -> usize {
        self.free_chunks[State::Dirty as usize].saturating_sub(self.lazy_chunks) + self.dropped_chunks
    }

    /// How many of the dirty chunks may go where `keep` of those that wait are to stay.
    pub(crate) fn beyond(&self, keep: usize) -> usize {
        if keep == 0 {
            return usize::MAX;
        }
        (self.waiting() - self.dropped_chunks).saturating_sub(keep)
    }

    /// Chunks that are not free.
    pub fn taken_chunks(&self) -> usize {
        self.taken_chunks
    }

    /// Chunks that hold memory, or may: taken ones and dirty ones.
    pub fn footprint(&self) -> usize {
        self.taken_chunks + self.free_chunks[State::Dirty as usize]
    }

    /// Takes chunks `from..to` out of the free dirty range `c`, to be purged.
    ///
    /// # Safety
    /// The lock must be held; the chunks must lie in the range.
    pub unsafe fn take_out(&mut self, arenas: &Arenas, c: *mut Chunk, from: usize, to: usize) {
        // SAFETY: as the caller promises. What stays has neighbours that are not free.
        unsafe {
            let len = (*c).len as usize;
            self.remove(c);
            self.taken_chunks += to - from;
            if from > 0 {
                self.insert(c, from, State::Dirty);
            }
            if to < len {
                self.insert(c.add(to), len - to, State::Dirty);
            }
            self.forget_ages(arenas, c.add(from), to - from, State::Dirty);
        }
    }

    /// Puts `len` chunks that were taken aside, for the purger: nobody gets them before they are clean.
    ///
    /// # Safety
    /// The lock must be held; the chunks must be the caller's, and their records have no kind.
    pub unsafe fn drop_chunks(&mut self, c: *mut Chunk, len: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            (*c).kind.set(Kind::DROPPED);
            (*c).len = len as u32;
            self.dropped.push(c);
        }
        self.dropped_chunks += len;
    }

    /// Takes up to `most` chunks that were put aside.
    ///
    /// # Safety
    /// The lock must be held.
    pub unsafe fn take_dropped(&mut self, most: usize) -> Option<(*mut Chunk, usize)> {
        let c = self.dropped.head;
        if c.is_null() {
            return None;
        }
        // SAFETY: the lock is held; records in the list are valid.
        unsafe {
            let len = (*c).len as usize;
            self.dropped.remove(c);
            (*c).kind.set(Kind::NONE);
            let taken = len.min(most);
            self.dropped_chunks -= len;
            if taken < len {
                self.drop_chunks(c.add(taken), len - taken);
            }
            Some((c, taken))
        }
    }

    /// First record of the free range that `c` lies in, which must be one.
    ///
    /// # Safety
    /// The lock must be held.
    pub unsafe fn start_of(mut c: *mut Chunk) -> *mut Chunk {
        // SAFETY: the records of a range lie in one row, and its first has a kind of its own.
        unsafe {
            while (*c).kind.get() != Kind::FREE {
                c = if (*c).kind.get() == Kind::FREE_END { c.sub((*c).len as usize - 1) } else { c.sub(1) };
            }
        }
        c
    }

    /// Checks every list: kinds, lengths, states and sums. For tests.
    ///
    /// # Safety
    /// The lock must be held.
    pub unsafe fn is_valid(&self) -> bool {
        let mut sums = [0; 2];
        for (state, sum) in sums.iter_mut().enumerate() {
            for (i, list) in self.lists[state].iter().enumerate() {
                if list.head.is_null() == (self.filled[state] >> i & 1 == 1) {
                    return false;
                }
                let mut c = list.head;
                while !c.is_null() {
                    // SAFETY: records in a list are valid.
                    unsafe {
                        let len = (*c).len as usize;
                        let end = c.add(len - 1);
                        let ends = len == 1 || ((*end).kind.get() == Kind::FREE_END && (*end).len as usize == len);
                        if (*c).kind.get() != Kind::FREE || (*c).state as usize != state || list_of(len) != i || !ends {
                            return false;
                        }
                        *sum += len;
                        c = (*c).next;
                    }
                }
            }
        }
        sums == self.free_chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a list index that would hand out a range shorter than asked for.
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
