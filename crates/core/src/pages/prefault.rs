//! Prefault: memory that was never used becomes resident before it is needed.
//!
//! The chunks stay free and clean: they read as zero, and the next allocations take them, because clean ranges are used
//! before chunks that were never used. Nothing waits there, so the purger has nothing to give back: what the program
//! does not use stays resident. What it uses and frees is like other memory.

use crate::pages::Pages;
use crate::pages::age;
use crate::pages::owned::Owned;
use crate::system::os::Memory;
use crate::{CHUNK, Os};

impl<O: Os> Pages<O> {
    /// Makes `bytes` of memory, rounded up to whole chunks, resident for later allocations. Returns the number of
    /// bytes: 0 before the first use, if the memory cannot be taken, and if less than that is left (the system would
    /// end this process or another one). Called under no lock.
    pub fn prefault(&self, bytes: usize) -> usize {
        let (chunks, page) = (bytes.div_ceil(CHUNK), self.page_size());
        let is_left = |memory: Memory| memory.used.saturating_add(bytes) <= memory.limit;
        if chunks == 0 || page == 0 || !self.os.memory().is_none_or(is_left) {
            return 0;
        }
        let taken = self.ranges.with(&self.os, |r| {
            let may = !self.is_stranded() && self.is_allowed(r, chunks, true);
            if may { r.take_clean(&self.space, chunks, 1) } else { None }
        });
        let Some(taken) = taken else { return 0 };
        // SAFETY: the chunks were taken from the ranges, so they are committed, and this call's until it gives them
        // back.
        let memory = unsafe { Owned::of(taken.first.start(), chunks * CHUNK) };
        // SAFETY: the memory is the holder's.
        if !unsafe { self.os.populate(memory.start(), memory.len()) } {
            memory.touch(page);
        }
        self.ranges.with(&self.os, |r| r.give(&self.arenas, taken.first, chunks, age::NONE));
        memory.len()
    }
}
