//! Gives reserved address space back when it becomes limited.
//!
//! If a program limits its address space while it runs (RLIMIT_AS), reservations that were never used count too, and
//! the system would refuse every mapping of the program itself.
//!
//! A long arena keeps its committed part; the rest is unmapped, and the arena ends there. Later arenas are as long as
//! the limit allows (`arena.rs`), so from then on the system enforces the limit. Reservations are given back
//! - when the port learns that a limit was set ([`Pages::give_reservations_back`]), and
//! - when a long arena would grow under a limit that leaves little (`is_pressed`): another process may have set it.
//!
//! The page map is given back only where the port knows that no other thread can read it.

use crate::pages::Pages;
use crate::pages::arena::{Arena, Arenas, UnderLock};
use crate::pages::chunk::Record;
use crate::pages::layout::{self, ARENA_ALIGN, HUGE_BYTES, MAX_ARENAS, RECORD_BYTES};
use crate::pages::place::{LITTLE, is_pressed};
use crate::system::sync::Ordering;
use crate::{CHUNK, CHUNK_SHIFT, Os};
use core::ops::Range;

/// Number of parts of an arena that may be committed, in the order of addresses, each possibly empty: the records of
/// the chunks in use and of the reentrant reserve; the bits of the reserve; the bits of the chunks in use with the ages
/// and the bits for huge pages; the chunks in use; the chunks of the reserve.
pub(crate) const PARTS: usize = 6;
/// Number of the [`PARTS`] that are side tables: the first ones.
pub(crate) const TABLES: usize = 4;

impl Arenas {
    /// Reserves the first arena; false where address space is limited, so that the caller makes no other reservations.
    pub(crate) fn set_up<O: Os>(&self, os: &O, lock: &UnderLock) -> bool {
        self.add(os, lock, 1) && !self.is_limited(lock)
    }

    /// Whether address space is limited: the first arena is not a long one, or parts of arenas were given back.
    pub(crate) fn is_limited(&self, lock: &UnderLock) -> bool {
        // Relaxed: written under the lock.
        !self.nth(lock, 0).is_long() || self.released.load(Ordering::Relaxed)
    }

    /// The [`PARTS`] of arena `i`, as addresses.
    pub(crate) fn parts(&self, lock: &UnderLock, i: usize, page: usize) -> [Range<usize>; PARTS] {
        let arena = self.nth(lock, i);
        let (base, chunks) = (arena.base(), arena.chunks());
        let (tables, used) = (chunks.ilog2() as u8, arena.first()..arena.committed());
        let reserve = if i == 0 { self.reentrant_reserve.in_use(chunks) } else { chunks..chunks };
        let down = |at: usize| at & !(page - 1);
        let part = |from: usize, to: usize, of: &Range<usize>| {
            let from = base + down(from);
            if of.is_empty() { from..from } else { from..base + to.next_multiple_of(page) }
        };
        let entries = |entry: usize, of: &Range<usize>| part(of.start * entry, of.end * entry, of);
        let lowest = |of: &Range<usize>| layout::lowest_bits(tables, of.end);
        let first = arena.first() * CHUNK;
        [
            entries(RECORD_BYTES, &used),
            entries(RECORD_BYTES, &reserve),
            part(lowest(&reserve), layout::end_of_tile(tables, reserve.start), &reserve),
            base + down(lowest(&used))..base + first,
            entries(CHUNK, &used),
            entries(CHUNK, &reserve),
        ]
    }

    /// Whether the system limits how much may be committed. A hint.
    pub(crate) fn is_scarce(&self) -> bool {
        // Relaxed: a hint.
        self.arenas().iter().any(|arena| arena.scarce.load(Ordering::Relaxed))
    }

    /// To be called where writable memory is limited to `limit` bytes: see [`Arena::end_where_limited`].
    pub(crate) fn note_data_limit<O: Os>(&self, os: &O, lock: &UnderLock, limit: usize) {
        (0..self.count()).for_each(|i| self.nth(lock, i).end_where_limited(os, limit));
    }

    /// The chunk before the frontier of arena `i`, if it has one.
    pub(crate) fn last_used(&self, lock: &UnderLock, i: usize) -> Option<Record> {
        let (first, used) = self.used(lock, i)?;
        (used > 0).then(|| first.after(used - 1))
    }

    /// Makes the chunks from `record` to the frontier of arena `i`, which are in no list, chunks that were never used,
    /// and takes back what was committed there and behind it. False if the system refuses, if nothing is committed
    /// there, or if the arena would have no chunk in use; then nothing changes.
    ///
    /// # Safety
    /// The chunks must hold nothing that is needed, and read as zero.
    pub(crate) unsafe fn retract<O: Os>(&self, os: &O, lock: &UnderLock, i: usize, record: Record) -> bool {
        let (base, index, _) = self.place(record);
        let arena = self.nth(lock, i);
        let len = (arena.committed() - index) << CHUNK_SHIFT;
        if index == arena.first() || len == 0 {
            // The first step commits what later ones do not.
            return false;
        }
        // SAFETY: the range is committed, and the caller passes chunks that hold nothing that is needed.
        let done = unsafe { os.uncommit(layout::at(base + (index << CHUNK_SHIFT)), len) };
        if done {
            // Their side tables stay committed.
            arena.end_at(index);
        }
        done
    }

    /// Gives back the parts of long arenas that were never committed. Each arena only once, as other code may use the
    /// addresses from then on.
    pub(crate) fn give_back<O: Os>(&self, os: &O, lock: &UnderLock) {
        for i in 0..self.count() {
            let arena = self.nth(lock, i);
            if !arena.is_long() || arena.released.get() {
                continue;
            }
            arena.released.set(true);
            arena.end.set(arena.committed());
            if i == 0 {
                self.reentrant_reserve.cut();
            }
            // Relaxed: read under the lock.
            self.released.store(true, Ordering::Relaxed);
            let parts = self.parts(lock, i, os.page_size());
            each_gap(arena.base()..arena.base() + ARENA_ALIGN, &parts, &mut |gap| {
                // SAFETY: nothing here is committed or will be: the arena and the reentrant reserve end before it.
                unsafe { os.unreserve(layout::at(gap.start), gap.len()) };
            });
        }
    }

    /// Indexes of chunks of arena `i`: those that were taken into use; those of the reentrant reserve; of these, those
    /// that are committed.
    fn used_chunks(&self, lock: &UnderLock, i: usize) -> [Range<usize>; 3] {
        let (arena, reserve) = (self.nth(lock, i), &self.reentrant_reserve);
        let chunks = arena.chunks();
        let [whole, committed] =
            if i == 0 { [reserve.in_use(chunks), reserve.committed_span(chunks)] } else { [0..0, 0..0] };
        [arena.first()..arena.begun(), whole, committed]
    }

    /// The chunks `of` of arena `i`, and their entries in the side tables, as addresses.
    #[cold]
    #[inline(never)]
    fn parts_of(&self, lock: &UnderLock, i: usize, page: usize, of: &Range<usize>) -> [Range<usize>; 4] {
        let (base, tables) = (self.nth(lock, i).base(), self.nth(lock, i).chunks().ilog2() as u8);
        let (from, to) = (of.start, of.end);
        if of.is_empty() {
            return [const { 0..0 }; 4];
        }
        let part = |from: usize, to: usize| base + (from & !(page - 1))..base + to.next_multiple_of(page);
        [
            part(from * RECORD_BYTES, to * RECORD_BYTES),
            part(layout::lowest_bits(tables, to), layout::end_of_tile(tables, from)),
            part(layout::ages(tables) + from, layout::ages(tables) + to),
            part(from * CHUNK, to * CHUNK),
        ]
    }

    /// Calls `visit` with each part of the arenas' reservations that was not taken into use, see [`Pages::each_unused`].
    fn each_unused(&self, lock: &UnderLock, page: usize, visit: &mut dyn FnMut(Range<usize>, bool)) {
        for i in 0..self.count() {
            let arena = self.nth(lock, i);
            let (base, first) = (arena.base(), arena.base() + arena.first() * CHUNK);
            let [used, reserve, committed] = self.used_chunks(lock, i).map(|of| self.parts_of(lock, i, page, &of));
            let mut taken = [const { 0..0 }; 9];
            taken[..4].clone_from_slice(&used);
            taken[4..8].clone_from_slice(&reserve);
            if arena.is_long() {
                // The bits for huge pages belong to no chunk.
                taken[8] = (first - HUGE_BYTES) & !(page - 1)..first;
            }
            if arena.released.get() {
                let parts = self.parts(lock, i, page);
                parts.into_iter().for_each(|part| each_gap(part, &taken, &mut |gap| visit(gap, true)));
            } else {
                each_gap(base..base + arena.chunks() * CHUNK, &taken, &mut |gap| visit(gap, true));
            }
            taken[4..8].clone_from_slice(&committed);
            reserve.into_iter().for_each(|part| each_gap(part, &taken, &mut |gap| visit(gap, false)));
        }
    }
}

impl Arena {
    /// Notes that writable memory is limited to `limit` bytes. The arena ends where it cannot grow further under that
    /// limit, and the ages of the chunks behind are taken back: those of a long arena have a MiB, which counts for the
    /// limit. If the limit is raised, other arenas follow.
    pub(crate) fn end_where_limited<O: Os>(&self, os: &O, limit: usize) {
        // Relaxed: a hint.
        self.scarce.store(true, Ordering::Relaxed);
        let (page, ages) = (os.page_size(), layout::ages(self.chunks().ilog2() as u8));
        let reached = self.committed().max(self.first() + limit.div_ceil(CHUNK));
        let from = (ages + reached).next_multiple_of(page);
        // In the first arena the reentrant reserve begins where other chunks end. Its ages stay.
        let to = (ages + self.end.get()) & !(page - 1);
        // SAFETY: the ages of chunks that are not committed: no thread uses them, and the arena ends before them.
        if from < to && unsafe { os.uncommit(layout::at(self.base() + from), to - from) } {
            self.end.set(from - ages);
        }
    }
}

/// Calls `visit` with each part of `whole` that is in none of `parts`.
#[cold]
#[inline(never)]
fn each_gap(whole: Range<usize>, parts: &[Range<usize>], visit: &mut dyn FnMut(Range<usize>)) {
    let mut from = whole.start;
    while from < whole.end {
        let behind = parts.iter().filter(|part| !part.is_empty() && part.end > from).min_by_key(|part| part.start);
        let part = behind.map_or(whole.end..whole.end, Clone::clone);
        let gap = from..part.start.clamp(from, whole.end);
        from = part.end;
        if !gap.is_empty() {
            visit(gap);
        }
    }
}

impl<O: Os> Pages<O> {
    /// Calls `visit` with each part of neap's reservations that was never in use, and whether it stays so until `visit`
    /// returns: a reentrant call, which takes no lock, may take parts of the reentrant reserve into use meanwhile.
    /// `visit` must not call the allocator: the lock of the ranges is held.
    #[cold]
    pub fn each_unused(&self, visit: &mut dyn FnMut(Range<usize>, bool)) {
        let page = self.page_size();
        self.ranges.with(&self.os, |r| {
            let lock = r.lock();
            self.arenas.each_unused(lock, page, visit);
            let mut used = [const { 0..0 }; 2 * MAX_ARENAS];
            let (mut reserve, mut committed) = (0..0, 0..0);
            for i in 0..self.arenas.count() {
                let first = self.arenas.nth(lock, i).base() / CHUNK;
                let entries = self.arenas.used_chunks(lock, i).map(|of| {
                    let run = self.map.run(first + of.start, first + of.end);
                    let end = run.start.addr() + if of.is_empty() { 0 } else { run.len };
                    run.start.addr() & !(page - 1)..end.next_multiple_of(page)
                });
                used[2 * i..2 * i + 2].clone_from_slice(&entries[..2]);
                if i == 0 {
                    [_, reserve, committed] = entries;
                }
            }
            each_gap(self.map.addresses(), &used, &mut |gap| visit(gap, true));
            // The reserve has the second place.
            used[1] = committed;
            each_gap(reserve, &used, &mut |gap| visit(gap, false));
        });
    }

    /// Takes all memory that no block ever had into use again, when it is needed: the process will lock all its memory
    /// from now on.
    pub fn begin_use_again(&self) {
        self.ranges.with(&self.os, |r| {
            for i in 0..self.arenas.count() {
                self.arenas.nth(r.lock(), i).begin_again();
            }
        });
    }

    /// Gives back reservations that are not used, if a limit on address space leaves little. Returns whether it did.
    pub fn give_reservations_back(&self) -> bool {
        self.ranges.with(&self.os, |r| {
            let pressed = is_pressed(&self.os);
            if pressed {
                self.arenas.give_back(&self.os, r.lock());
            }
            pressed
        })
    }

    /// Gives the page map back, if little address space is left: frees are slower from then on.
    ///
    /// # Safety
    /// No other thread may be in a call of the allocator, or begin one before this returns; nor may this thread be in a
    /// handler that interrupted a call.
    pub unsafe fn give_map_back(&self) {
        self.ranges.with(&self.os, |_| {
            if self.os.address_limit().is_some_and(|left| left < LITTLE) {
                // SAFETY: the caller guarantees that no other thread uses the page map.
                unsafe { self.map.give_back(&self.os) };
            }
        });
    }
}
