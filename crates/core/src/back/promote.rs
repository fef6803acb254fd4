//! Promotion: memory that is in use and densely touched moves into huge pages (option `huge=adaptive`, `advised`).
//!
//! Huge areas (`pages/huge_area.rs`) have huge pages from the start. For other memory, above all long blocks, it is
//! known only later whether the program uses all of it. After the program took 16 MiB of clean memory (`FRESH_CHUNKS`)
//! the helper makes passes over the arenas, a second later and then less and less often. It asks the system to promote
//! each 2 MiB of which no memory waits ([`Os::promote`]).
//!
//! No contents change, so it does not matter which thread uses the memory meanwhile. If it is freed meanwhile, it is
//! dirty as before: it cannot be on its way to the system, because the batch lock is held. Only a thread that gives
//! memory back at once (`mmap_threshold`), or moves it, can leave a huge page where memory counts as clean; it stays
//! until the memory is used again.
//!
//! In a tick the helper promotes for 4 ms (`SLICE_US`), plus what the last huge page takes; forks and trims wait for
//! it. All ticks together take a part of the processor time that the program used ([`Os::promotion_time`]), so a
//! program that does little gains little. A pass waits for that budget, but not longer than it waited to begin.

use crate::back::Back;
use crate::pages::age;
use crate::pages::chunk::{Kind, Record};
use crate::pages::growth::{AREA, BYTES};
use crate::pages::range::Ranges;
use crate::system::policy::{HugePages, Purge};
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Milliseconds from growth to the first pass. Each wait is twice the one before, up to the longest: after that pass
/// there is none until the program grows again.
const FIRST_MS: u64 = 1000;
/// Microseconds of a tick that passes may take.
const SLICE_US: u32 = 4000;
/// Number of places that are looked at under one hold of the lock.
const LOOKS: usize = 64;

impl<O: Os> Back<O> {
    /// Does the next slice of a pass, if one is due.
    pub(crate) fn promote(&self) {
        let (state, now) = (&self.purger.promotion, self.os.clock());
        if !self.may_promote() {
            return state.end();
        }
        if self.notes.take_growth() && !(state.is_due() && state.wait.load(Ordering::Relaxed) == FIRST_MS) {
            state.set(now, FIRST_MS);
        }
        let (waited, wait) = (state.waited(now), state.wait.load(Ordering::Relaxed));
        if state.is_due() && waited >= wait && self.with_batch(|_| self.promote_slice(waited >= 2 * wait)) {
            state.set(now, 2 * wait);
        }
    }

    /// Whether memory may be promoted now.
    fn may_promote(&self) -> bool {
        matches!(self.policy.huge(), HugePages::Adaptive | HugePages::Advised)
            && self.os.has_huge_pages(true)
            && self.page_size() == 4096
            && self.policy.purge() != Purge::Eager
            && !self.policy.harden()
    }

    /// Promotes what a slice has time for. Returns whether the pass is over: it has looked at all places, the system
    /// cannot promote, or there is no time and the pass is `late`.
    fn promote_slice(&self, late: bool) -> bool {
        let (mut spent, most) = (0, self.os.promotion_time().min(SLICE_US));
        if most == 0 {
            return late;
        }
        while spent < most {
            let Some(c) = self.next_candidate() else { return true };
            // SAFETY: the chunks are committed (invariant 16), and not lost.
            let Some(took) = (unsafe { self.os.promote(c.start(), BYTES) }) else { return true };
            spent += took.max(1);
        }
        false
    }

    /// Returns the first chunk of the next place, as long as a huge page, in which no memory waits.
    fn next_candidate(&self) -> Option<Record> {
        loop {
            match self.ranges.with(&self.os, |r| (0..LOOKS).find_map(|_| self.look_for_candidate(r))) {
                Some(found) => return found,
                None => Self::leave_lock(),
            }
        }
    }

    /// Looks at the next place. `Some(None)`: there is none.
    fn look_for_candidate(&self, r: &mut Ranges) -> Option<Option<Record>> {
        let state = &self.purger.promotion;
        let (arena, chunk) = (state.arena.load(Ordering::Relaxed), state.chunk.load(Ordering::Relaxed));
        let Some((first, used)) = self.arenas.used(r.lock(), arena) else { return Some(None) };
        // Places are aligned; the used part of an arena may not be.
        let skip = first.start().addr().wrapping_neg() % BYTES / CHUNK;
        let from = chunk.max(skip);
        if from + AREA > used {
            state.arena.store(arena + 1, Ordering::Relaxed);
            state.chunk.store(0, Ordering::Relaxed);
            return None;
        }
        state.chunk.store(from + AREA, Ordering::Relaxed);
        let c = first.after(from);
        // Relaxed, also where a slab's owner changes the age meanwhile: a hint. Lost chunks have the kind HEAPS.
        let is_used =
            |c: Record| c.kind() != Kind::HEAPS && age::of(&self.arenas, c).load(Ordering::Relaxed) == age::NONE;
        (0..AREA).all(|i| is_used(c.after(i))).then_some(Some(c))
    }
}
