//! A count of the memory that moved blocks gave back, see `realloc.rs`.

use crate::pages::age;
use crate::system::sync::{AtomicU8, AtomicUsize, Ordering};

/// Memory that went back to the system in the last ticks because moved blocks were freed, less the blocks that were
/// copied instead of moved for that reason. All values are hints: a thread may overwrite what another one counts.
#[derive(Debug)]
pub(crate) struct Returned {
    chunks: AtomicUsize,
    /// The epoch in which the last block was freed.
    since: AtomicU8,
}

impl Returned {
    pub(crate) const fn new() -> Self {
        Returned { chunks: AtomicUsize::new(0), since: AtomicU8::new(age::NONE) }
    }

    /// The number of chunks in the epoch `now`. What was returned long ago does not count: it would no longer wait.
    fn chunks(&self, now: u8) -> usize {
        // Relaxed, here and below: hints.
        let since = self.since.load(Ordering::Relaxed);
        let waits = since != age::NONE && age::passed(since, now) < age::DELAY_TICKS;
        if waits { self.chunks.load(Ordering::Relaxed) } else { 0 }
    }

    /// Counts a block that is freed.
    pub(crate) fn add(&self, chunks: usize, now: u8) {
        self.chunks.store(self.chunks(now) + chunks, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
    }

    /// Takes `chunks` of them for a block that grows; false if there are fewer.
    pub(crate) fn take(&self, chunks: usize, now: u8) -> bool {
        let left = self.chunks(now).checked_sub(chunks);
        left.is_some_and(|left| {
            self.chunks.store(left, Ordering::Relaxed);
            true
        })
    }
}
