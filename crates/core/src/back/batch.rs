//! The purger's batch: the memory that it gives back at a time, the criteria for what is due, and the position of its
//! walk. See `purge.rs`.

use crate::Heap;
use crate::blocks::holes::{self, Hole};
use crate::pages::age;
use crate::pages::arena::Arenas;
use crate::pages::chunk::{RECORD_BYTES, Record};
use crate::pages::growth;
use crate::pages::range::Ranges;
use crate::pages::release::MOST_RUNS;
use crate::system::os::Run;

/// Maximum number of slabs in a batch; one barrier serves all. The simulation has few slabs.
pub(crate) const SLABS: usize = if cfg!(neap_sim) { 3 } else { 16 };

const _: () = assert!(SLABS <= 32, "`Back::punch` has a bit for each");
const _: () =
    assert!(Batch::RUNS <= MOST_RUNS && SLABS * holes::MOST_RUNS <= MOST_RUNS, "`Sent` has a bit for each run");

/// A slab with free memory that is due, and the heap that owned it when the purger found it.
pub(crate) type DueSlab = (Record, &'static Heap);

/// Maximum bytes of a batch. Purging them takes less than a millisecond where no huge pages are split; a thread that
/// needs more address space may have to wait for the kernel that long.
pub(crate) const BATCH_BYTES: usize = if cfg!(neap_sim) { 512 << 10 } else { 4 << 20 };

/// Maximum number of huge pages of which a batch has a part, or one more: the system splits each in some 300 us, and
/// forks wait for the end of the batch. In all they take as long as a slice of `promote.rs`.
pub(crate) const BATCH_CUTS: usize = if cfg!(neap_sim) { 2 } else { 16 };

/// A position in the table of ages, and what the walk has counted so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) arena: usize,
    pub(crate) index: usize,
    /// The free range that the walk was last in. A hint: the range may no longer exist.
    pub(crate) range: Option<Record>,
    /// Chunks that wait but are not due yet, or are kept.
    pub(crate) waiting: usize,
    /// Slabs that were due.
    pub(crate) slabs: usize,
    /// Chunks taken out of free ranges, and bytes of holes given back.
    pub(crate) purged: usize,
    pub(crate) punched: usize,
}

impl Walk {
    /// A walk at its beginning.
    pub(crate) const fn new() -> Self {
        Walk { arena: 0, index: 0, range: None, waiting: 0, slabs: 0, purged: 0, punched: 0 }
    }

    /// Returns the first record of the dirty free range that `c` lies in, and the length of that range. `c` must lie in
    /// one. In a long range the walk releases the lock between two parts, and the way back from `c` would be long; so
    /// the walk remembers the range. A record of kind `FREE` in the used part is always the first of a range. (Where an
    /// arena was retracted meanwhile, its records may have gone, too.)
    pub(crate) fn range_of(&mut self, arenas: &Arenas, r: &Ranges, c: Record) -> (Record, usize) {
        // True if the range that begins at `first` includes `c`.
        let holds = |first: &Record| {
            r.is_free(arenas, *first)
                && first.address() <= c.address()
                && c.address() - first.address() < r.look_at(*first).0 * RECORD_BYTES
        };
        let first = self.range.filter(holds).unwrap_or_else(|| r.start_of(c));
        self.range = Some(first);
        (first, r.look_at(first).0)
    }
}

/// How much waiting memory stays although it is due: free chunks, and slabs with holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) chunks: usize,
    pub(crate) slabs: usize,
}

/// Criteria for what is to be purged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) now: u8,
    /// Minimum number of epochs that must have passed.
    pub(crate) ticks: u8,
    /// Also what was purged lazily or refused before ([`age::LAZY`]).
    pub(crate) lazy: bool,
    /// Includes holes in slabs.
    pub(crate) slabs: bool,
    /// Includes free ranges; false: holes only.
    pub(crate) ranges: bool,
    /// What stays although it is due.
    pub(crate) keep: Keep,
    /// Maximum bytes in a batch.
    pub(crate) bytes: usize,
    /// Maximum number of huge pages of which a batch has a part, see [`BATCH_CUTS`].
    pub(crate) cuts: usize,
}

impl Due {
    /// Whether memory of that age is due. Without branches, so that the compiler can test many ages in one instruction.
    #[inline(always)]
    pub(crate) fn is(self, age: u8) -> bool {
        let (waits, lazy) = (age != age::NONE, age == age::LAZY);
        (lazy & self.lazy) | (waits & !lazy & (age::passed(age, self.now) >= self.ticks))
    }

    /// Returns the index of the first age that is due, or `ages.len()`.
    pub(crate) fn first_of(self, ages: &[u8]) -> usize {
        const AT_ONCE: usize = 64;
        let any = |ages: &&[u8]| ages.iter().fold(false, |any, &age| any | self.is(age));
        let before = ages.chunks(AT_ONCE).take_while(|ages| !any(ages)).count() * AT_ONCE;
        let rest = ages.get(before..).unwrap_or_default();
        ages.len() - rest.len() + rest.iter().take_while(|&&age| !self.is(age)).count()
    }
}

/// Memory on its way to the system. Slabs that may have holes are only listed here; [`Punch`] has their holes.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) runs: [Run; Batch::RUNS],
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    /// Slabs that may have holes.
    pub(crate) slabs: [Option<DueSlab>; SLABS],
    pub(crate) slab_count: usize,
    /// Number of places, each as long as a huge page, of which the batch has a part, and the last of them.
    cuts: usize,
    last_cut: usize,
}

/// Holes on their way to the system, and the work space for giving them back.
#[derive(Debug)]
pub(crate) struct Punch {
    /// Holes that were taken. Each due slab is taken at most once, so there is room for all.
    pub(crate) holes: [Hole; SLABS],
    pub(crate) count: usize,
    /// Runs of their OS pages. Those of hole `i` end at `ends[i]`.
    pub(crate) runs: [Run; SLABS * holes::MOST_RUNS],
    pub(crate) ends: [usize; SLABS],
    /// Heaps to make a handshake with.
    pub(crate) owners: [Option<&'static Heap>; SLABS],
}

/// Work space of the thread that holds the batch lock. Not on the stack: any thread may have to purge, and its stack
/// may be as small as 16 KiB.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) batch: Batch,
    pub(crate) punch: Punch,
    /// Buffer for the result of [`crate::Os::touched`].
    pub(crate) touched: [Run; Work::TOUCHED],
}

// SAFETY: the pointers are used under the batch lock, under the rules of `handshake.rs` and `holes.rs`, by any thread.
unsafe impl Send for Work {}

impl Work {
    /// Maximum number of runs that one call of [`crate::Os::touched`] returns.
    const TOUCHED: usize = 16;

    pub(crate) const fn new() -> Self {
        Work {
            batch: Batch::new(),
            punch: Punch {
                holes: [Hole::NONE; SLABS],
                count: 0,
                runs: [Run::EMPTY; SLABS * holes::MOST_RUNS],
                ends: [0; SLABS],
                owners: [None; SLABS],
            },
            touched: [Run::EMPTY; Work::TOUCHED],
        }
    }
}

impl Batch {
    /// Maximum number of runs in a batch.
    pub(crate) const RUNS: usize = if cfg!(neap_sim) { 8 } else { 64 };

    pub(crate) const fn new() -> Self {
        let (runs, slabs) = ([Run::EMPTY; Self::RUNS], [None; SLABS]);
        Batch { runs, count: 0, bytes: 0, slabs, slab_count: 0, cuts: 0, last_cut: 0 }
    }

    /// Empties the batch.
    pub(crate) fn clear(&mut self) {
        (self.count, self.bytes, self.slab_count) = (0, 0, 0);
        (self.cuts, self.last_cut) = (0, 0);
    }

    /// Adds a run.
    pub(crate) fn push(&mut self, run: Run) {
        self.runs[self.count] = run;
        self.count += 1;
        self.bytes += run.len;
        self.note_cut(run.start.addr());
        self.note_cut(run.start.addr() + run.len);
    }

    /// Adds a slab, which may have holes. `None`, a slab that is being released, takes a place as well.
    pub(crate) fn push_slab(&mut self, slab: Option<DueSlab>) {
        self.slabs[self.slab_count] = slab;
        self.slab_count += 1;
        if let Some((c, _)) = slab {
            // Holes lie inside of a slab.
            self.note_cut(c.start().addr() + 1);
        }
    }

    /// Counts the place, as long as a huge page, in which a part of the batch begins or ends at the address `at`. The
    /// walk is in the order of addresses, so what lies in one place is seen one after the other.
    fn note_cut(&mut self, at: usize) {
        let place = at / growth::BYTES;
        if !at.is_multiple_of(growth::BYTES) && place != self.last_cut {
            self.last_cut = place;
            self.cuts += 1;
        }
    }

    /// Whether it has as many runs, bytes, slabs or parts of huge pages as it may.
    pub(crate) fn is_full(&self, due: Due) -> bool {
        self.count == Self::RUNS || self.bytes >= due.bytes || self.slab_count == SLABS || self.cuts >= due.cuts
    }

    /// Returns the runs.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an age that is skipped, or taken though it is not due, when many are looked at together.
    #[test]
    fn the_first_that_is_due() {
        let keep = Keep::default();
        for (now, ticks, lazy) in [(10, 5, false), (10, 5, true), (3, 5, false), (10, 0, true)] {
            let bytes = BATCH_BYTES;
            let due = Due { now, ticks, lazy, slabs: true, ranges: true, keep, bytes, cuts: BATCH_CUTS };
            let is = |age: u8| match age {
                age::NONE => false,
                age::LAZY => lazy,
                age => age::passed(age, now) >= ticks,
            };
            // Each look at 200 ages is some 20,000 steps to Miri.
            for other in (0..=255).step_by(if cfg!(miri) { 85 } else { 1 }) {
                assert_eq!(due.is(other), is(other), "{other} {due:?}");
                for at in [0, 1, 63, 64, 65, 199] {
                    let mut ages = [age::NONE; 200];
                    ages[at] = other;
                    assert_eq!(due.first_of(&ages), if is(other) { at } else { 200 });
                    assert_eq!(due.first_of(&ages[..at]), at);
                }
            }
        }
    }

    /// Catches dropped chunks, which go in any case, among those that may go while others have to stay.
    #[test]
    fn what_may_go() {
        let mut r = Ranges::new();
        (r.free_chunks, r.lazy_chunks, r.dropped_chunks) = ([7, 100], 10, 30);
        assert_eq!((r.waiting(), r.beyond(0)), (120, usize::MAX));
        assert_eq!((r.beyond(60), r.beyond(90), r.beyond(95)), (30, 0, 0));
    }
}
