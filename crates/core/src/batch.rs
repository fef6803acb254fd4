//! What the purger takes at a time, and how it finds it: see `purge.rs`.

use crate::os::Run;
use crate::{age, visit};

/// Bytes of a batch, at most: less than a millisecond of purging, as a thread that needs more address space may have to
/// wait for the kernel that long.
pub(crate) const BATCH_BYTES: usize = 4 << 20;

/// A place in the table of ages, and what was seen on the way there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    pub(crate) arena: usize,
    pub(crate) index: usize,
    /// Chunks that wait but are not due.
    pub(crate) waiting: usize,
    /// Slabs that were due.
    pub(crate) slabs: usize,
    /// Chunks that were taken out of free ranges, and bytes of the holes that went back.
    pub(crate) purged: usize,
    pub(crate) punched: usize,
}

/// Free chunks that wait, and slabs whose free memory waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) chunks: usize,
    pub(crate) slabs: usize,
}

/// What is to be purged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) now: u8,
    /// Epochs that must have passed.
    pub(crate) ticks: u8,
    /// Also what the system was told of already.
    pub(crate) lazy: bool,
    /// Also holes in slabs.
    pub(crate) slabs: bool,
    /// Free ranges; without them, holes alone.
    pub(crate) ranges: bool,
    /// What is to stay although it is due.
    pub(crate) keep: Keep,
    /// Most bytes in a batch.
    pub(crate) bytes: usize,
}

impl Due {
    pub(crate) fn is(self, age: u8) -> bool {
        match age {
            age::NONE => false,
            age::LAZY => self.lazy,
            age => age::passed(age, self.now) >= self.ticks,
        }
    }
}

/// Memory on its way to the system.
pub(crate) struct Batch {
    pub(crate) runs: [Run; Batch::RUNS],
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    /// Slabs to look for holes in.
    pub(crate) slabs: [visit::Due; visit::SLABS],
    pub(crate) slab_count: usize,
}

impl Batch {
    /// Runs of a batch, at most.
    pub(crate) const RUNS: usize = 64;

    pub(crate) fn new() -> Self {
        let nothing = (core::ptr::null_mut(), core::ptr::null_mut());
        Batch { runs: [Run::EMPTY; Self::RUNS], count: 0, bytes: 0, slabs: [nothing; visit::SLABS], slab_count: 0 }
    }

    pub(crate) fn push(&mut self, run: Run) {
        self.runs[self.count] = run;
        self.count += 1;
        self.bytes += run.len;
    }

    pub(crate) fn is_full(&self, due: Due) -> bool {
        self.count == Self::RUNS || self.bytes >= due.bytes || self.slab_count == visit::SLABS
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs[..self.count]
    }
}
