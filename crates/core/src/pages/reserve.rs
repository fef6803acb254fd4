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
use crate::pages::arena::{Arenas, UnderLock};
use crate::pages::chunk::Record;
use crate::pages::layout::{self, ARENA_ALIGN, MAX_ARENAS, RECORD_BYTES};
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

    /// The chunk before the frontier of arena `i`, if it has one.
    pub(crate) fn last_used(&self, lock: &UnderLock, i: usize) -> Option<Record> {
        let (first, used) = self.used(lock, i)?;
        (used > 0).then(|| first.after(used - 1))
    }

    /// Makes the chunks from `record` to the frontier of arena `i`, which are in no list, chunks that were never used,
    /// and takes back what was committed there and behind it. False if the system refuses, or if the arena would have no
    /// chunk in use; then nothing changes.
    ///
    /// # Safety
    /// The chunks must hold nothing that is needed, and read as zero.
    pub(crate) unsafe fn retract<O: Os>(&self, os: &O, lock: &UnderLock, i: usize, record: Record) -> bool {
        let (base, index, _) = self.place(record);
        let arena = self.nth(lock, i);
        let len = (arena.committed() - index) << CHUNK_SHIFT;
        if index == arena.first() {
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

    /// Indexes of the chunks of arena `i` that were taken into use, and of those of the reentrant reserve, which are
    /// `reserve` in the first arena.
    fn used_chunks(&self, lock: &UnderLock, i: usize, reserve: &Range<usize>) -> [Range<usize>; 2] {
        let arena = self.nth(lock, i);
        [arena.first()..arena.begun(), if i == 0 { reserve.clone() } else { 0..0 }]
    }

    /// What of arena `i` was taken into use, as addresses.
    #[cold]
    #[inline(never)]
    fn used_parts(&self, lock: &UnderLock, i: usize, page: usize, reserve: &Range<usize>) -> [Range<usize>; 8] {
        let (base, chunks) = (self.nth(lock, i).base(), self.nth(lock, i).chunks());
        let tables = chunks.ilog2() as u8;
        let of = self.used_chunks(lock, i, reserve);
        let part = |from: usize, to: usize| base + (from & !(page - 1))..base + to.next_multiple_of(page);
        core::array::from_fn(|n| {
            let (from, to) = (of[n / 4].start, of[n / 4].end);
            match n % 4 {
                _ if from == to => 0..0,
                0 => part(from * RECORD_BYTES, to * RECORD_BYTES),
                1 => part(layout::lowest_bits(tables, to), layout::end_of_tile(tables, from)),
                2 => part(layout::ages(tables) + from, layout::ages(tables) + to),
                _ => part(from * CHUNK, to * CHUNK),
            }
        })
    }

    /// Calls `visit` with each part of the arenas' reservations that was not taken into use.
    fn each_unused(&self, lock: &UnderLock, page: usize, reserve: &Range<usize>, visit: &mut dyn FnMut(Range<usize>)) {
        for i in 0..self.count() {
            let arena = self.nth(lock, i);
            let used = self.used_parts(lock, i, page, reserve);
            if arena.released.get() {
                self.parts(lock, i, page).into_iter().for_each(|part| each_gap(part, &used, visit));
            } else {
                each_gap(arena.base()..arena.base() + arena.chunks() * CHUNK, &used, visit);
            }
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
    /// Calls `visit` with each part of neap's reservations that was never in use, and is not taken into use meanwhile:
    /// the lock of the ranges is held, and the rest of the reentrant reserve claimed. `visit` must make no call that
    /// takes the lock.
    #[cold]
    pub fn each_unused(&self, visit: &mut dyn FnMut(Range<usize>)) {
        self.ranges.with(&self.os, |r| {
            let (arenas, lock) = (&self.arenas, r.lock());
            if arenas.count() > 0 {
                let chunks = arenas.nth(lock, 0).chunks();
                arenas.reentrant_reserve.with_rest_claimed(chunks, |reserve| self.visit_unused(lock, &reserve, visit));
            }
        });
    }

    /// [`Pages::each_unused`], where `reserve` are the chunks of the reentrant reserve that are or may come into use.
    fn visit_unused(&self, lock: &UnderLock, reserve: &Range<usize>, visit: &mut dyn FnMut(Range<usize>)) {
        let page = self.page_size();
        self.arenas.each_unused(lock, page, reserve, visit);
        let mut used = [const { 0..0 }; 2 * MAX_ARENAS];
        for i in 0..self.arenas.count() {
            let first = self.arenas.nth(lock, i).base() / CHUNK;
            let entries = self.arenas.used_chunks(lock, i, reserve).map(|of| {
                let run = self.map.run(first + of.start, first + of.end);
                let end = run.start.addr() + if of.is_empty() { 0 } else { run.len };
                run.start.addr() & !(page - 1)..end.next_multiple_of(page)
            });
            used[2 * i..2 * i + 2].clone_from_slice(&entries);
        }
        each_gap(self.map.addresses(), &used, visit);
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
