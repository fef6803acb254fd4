//! Free ranges: neighbouring chunks that nobody uses, joined and cut with their state kept.
//!
//! Each free range is wholly clean (known zero) or wholly dirty; neighbours of one state are joined at once.
//! Ranges of one state hang in lists by length: one list for each length below `EXACT`, then four for each
//! doubling, with a bit set of the lists that hold any. Taking and freeing are constant time: at most `PROBES`
//! entries of a list are looked at.
//!
//! Policy: dirty before clean before never used, so that memory is reused while it is warm and resident.

use crate::arena::Arenas;
use crate::chunk::{Chunk, Kind, List, State};
use crate::page_map::PageMap;
use crate::{CHUNK, Os};

const EXACT: usize = 32;
const LISTS: usize = EXACT + 4 * 16;
const PROBES: usize = 8;

/// The free ranges of all arenas. Used under its lock (see [`crate::Allocator`]).
#[derive(Debug)]
pub struct Ranges {
    lists: [[List; LISTS]; 2],
    filled: [u128; 2],
    /// Chunks in free ranges, by state.
    pub free_chunks: [usize; 2],
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
const fn list_of(len: usize) -> usize {
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
        Ranges { lists: [const { [const { List::new() }; LISTS] }; 2], filled: [0; 2], free_chunks: [0; 2] }
    }

    /// Puts a free range into its list and marks its ends. It must not touch a free range of the same state.
    unsafe fn insert(&mut self, c: *mut Chunk, len: usize, state: State) {
        // SAFETY: the range is the caller's; its first and last records are valid.
        unsafe {
            (*c).kind = Kind::FREE;
            (*c).state = state;
            (*c).len = len as u32;
            if len > 1 {
                let end = c.add(len - 1);
                (*end).kind = Kind::FREE_END;
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
            (*c.add(len - 1)).kind = Kind::NONE;
            (*c).kind = Kind::NONE;
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
    pub unsafe fn take<O: Os>(
        &mut self,
        os: &O,
        arenas: &Arenas,
        map: &PageMap,
        len: usize,
        align: usize,
    ) -> Option<(*mut Chunk, State)> {
        let align = (align / CHUNK).max(1);
        for state in [State::Dirty, State::Clean] {
            // SAFETY: the lock is held.
            unsafe {
                if let Some(c) = self.find(len + align - 1, state) {
                    let have = (*c).len as usize;
                    let skip = (Arenas::chunk(c).addr() / CHUNK).wrapping_neg() & (align - 1);
                    if skip > 0 {
                        self.insert(c, skip, state);
                    }
                    if have > skip + len {
                        self.insert(c.add(skip + len), have - skip - len, state);
                    }
                    return Some((c.add(skip), state));
                }
            }
        }
        // SAFETY: the lock is held; chunks at the frontier are clean and nobody's. An arena starts at a multiple
        // of ARENA_ALIGN, so that aligned indexes are aligned addresses.
        unsafe {
            let c = arenas.extend(os, map, len, align, |c, skipped| self.give(arenas, c, skipped, State::Clean))?;
            Some((c, State::Clean))
        }
    }

    /// Makes `len` chunks free, joined with free neighbours of the same state.
    ///
    /// # Safety
    /// The lock must be held; the chunks must be nobody's, and their records have no kind, nor be in a list.
    pub unsafe fn give(&mut self, arenas: &Arenas, c: *mut Chunk, len: usize, state: State) {
        let (mut start, mut total) = (c, len);
        // SAFETY: the lock is held; neighbours are looked at only inside the used part of the same arena.
        unsafe {
            let after = c.add(len);
            if arenas.in_use(after) && (*after).kind == Kind::FREE && (*after).state == state {
                total += (*after).len as usize;
                self.remove(after);
            }
            let before = c.sub(1);
            if arenas.in_use(before) {
                let first = match (*before).kind {
                    Kind::FREE => before,
                    Kind::FREE_END => c.sub((*before).len as usize),
                    _ => c,
                };
                if first != c && (*first).state == state {
                    total += (*first).len as usize;
                    start = first;
                    self.remove(first);
                }
            }
            self.insert(start, total, state);
        }
    }

    /// Lengthens the range that ends before `after` by `len` chunks, from a free range there or from the frontier.
    ///
    /// # Safety
    /// The lock must be held; `after` must be the record behind a range of the caller's.
    pub unsafe fn extend<O: Os>(
        &mut self,
        os: &O,
        arenas: &Arenas,
        map: &PageMap,
        after: *mut Chunk,
        len: usize,
    ) -> Option<State> {
        // SAFETY: the lock is held.
        unsafe {
            if arenas.in_use(after) {
                if (*after).kind != Kind::FREE || ((*after).len as usize) < len {
                    return None;
                }
                let (have, state) = ((*after).len as usize, (*after).state);
                self.remove(after);
                if have > len {
                    self.insert(after.add(len), have - len, state);
                }
                return Some(state);
            }
            arenas.of(after.sub(1)).extend_at(os, map, after, len).then_some(State::Clean)
        }
    }

    /// Gives the memory of all dirty ranges back to the system; returns the bytes.
    ///
    /// # Safety
    /// The lock must be held.
    pub unsafe fn purge<O: Os>(&mut self, os: &O, arenas: &Arenas) -> usize {
        let mut bytes = 0;
        let mut kept = List::new();
        while self.filled[State::Dirty as usize] != 0 {
            let list = self.filled[State::Dirty as usize].trailing_zeros() as usize;
            let c = self.lists[State::Dirty as usize][list].head;
            // SAFETY: the range is free and committed.
            unsafe {
                let len = (*c).len as usize;
                self.remove(c);
                if os.purge(Arenas::chunk(c), len * CHUNK) {
                    bytes += len * CHUNK;
                    self.give(arenas, c, len, State::Clean);
                } else {
                    (*c).len = len as u32;
                    kept.push(c);
                }
            }
        }
        while !kept.head.is_null() {
            // SAFETY: these are the ranges that could not be purged.
            unsafe {
                let c = kept.head;
                kept.remove(c);
                let len = (*c).len as usize;
                self.give(arenas, c, len, State::Dirty);
            }
        }
        bytes
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
                        let ends = len == 1 || ((*end).kind == Kind::FREE_END && (*end).len as usize == len);
                        if (*c).kind != Kind::FREE || (*c).state as usize != state || list_of(len) != i || !ends {
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
    fn lists_are_ordered() {
        for len in 1..1 << 20 {
            let list = list_of(len);
            assert!(list >= list_of(len - 1).min(list), "{len}");
            assert!(list < LISTS && list >= list_of(len - 1));
        }
    }
}
