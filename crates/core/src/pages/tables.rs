//! Purges the side tables of free memory.
//!
//! A GiB of small blocks has up to 18 MiB of records and bits (`layout.rs`), which are not needed once the GiB is free
//! and clean: inside a free range all entries may be zero. So the purger takes long clean ranges out of the lists,
//! gives the OS pages of their entries back without a lock, and puts the ranges back. The first and the last record of
//! a range stay, as does every OS page that has entries of neighbours.
//!
//! The range itself is purged once more where huge pages may have left memory in it: a block that ends inside a huge
//! page makes the kernel populate the whole of it, but only the block's own part goes back when it is freed
//! (`dense.rs`).
//!
//! Cost: at most some 30 system calls, after a GiB was freed in all or when the program rests.

use crate::pages::Pages;
use crate::pages::chunk::Record;
use crate::pages::layout::{BEFORE_AGES, BEFORE_BITS, BITS_BYTES, FEW_BYTES, RECORD_BYTES};
use crate::system::os::Run;
use crate::{CHUNK, Os};

/// Minimum length in chunks of a range whose entries are purged: 16 MiB, with some 4 OS pages of records.
pub(crate) const LONG: usize = (16 << 20) / CHUNK;
/// Number of ranges that are taken out of the lists at a time, longest first.
const AT_ONCE: usize = 16;
/// Minimum of chunks freed since the last purge of tables, where the program rests; else it is [`crate::pages::FREED`].
pub(crate) const FREED_AT_REST: usize = (64 << 20) / CHUNK;

/// The side tables: bytes per chunk of the tables in front, and bytes of an entry. Records first, of which two stay.
const TABLES: [(usize, usize); 5] = [
    (0, RECORD_BYTES),
    (RECORD_BYTES, FEW_BYTES),
    (BEFORE_BITS, BITS_BYTES),
    (BEFORE_BITS + BITS_BYTES, BITS_BYTES),
    (BEFORE_AGES, 1),
];

/// The OS pages that hold only entries of chunks `from..to` in one of [`TABLES`] of the arena at `base`, which has
/// `chunks` chunks; `None` if there are none.
fn pages(base: usize, chunks: usize, table: (usize, usize), from: usize, to: usize, page: usize) -> Option<Run> {
    let (before, entry) = table;
    let start = base + before * chunks;
    let (first, end) = ((start + from * entry).next_multiple_of(page), (start + to * entry) & !(page - 1));
    (first < end).then(|| Run { start: core::ptr::with_exposed_provenance_mut(first), len: end - first })
}

impl<O: Os> Pages<O> {
    /// Purges the side tables of long free ranges; returns the number of bytes purged. The caller holds the batch lock,
    /// so that a fork finds no range out of the lists.
    #[cold]
    pub(crate) fn purge_tables(&self) -> usize {
        let mut ranges = [None; AT_ONCE];
        let huge = self.ranges.with(&self.os, |r| {
            r.freed_chunks = 0;
            for range in &mut ranges {
                *range = r.take_long_clean(LONG, |c| self.arenas.is_long(c));
                if range.is_none() {
                    break;
                }
            }
            r.marks > 0
        });
        let mut bytes = 0;
        for (c, len) in ranges.into_iter().flatten() {
            // SAFETY: the range was taken out of the lists, so it is this thread's; it is clean.
            bytes += unsafe { self.purge_entries(c, len, huge) };
            self.ranges.with(&self.os, |r| r.put_back_clean(&self.arenas, c, len));
        }
        bytes
    }

    /// Purges the entries of a range, and if `huge` the range too; returns the number of bytes of entries purged.
    ///
    /// # Safety
    /// The chunks must be the caller's, clean and in no list.
    unsafe fn purge_entries(&self, c: Record, len: usize, huge: bool) -> usize {
        let (base, index, chunks) = self.arenas.place(c);
        let mut runs = [Run::EMPTY; TABLES.len()];
        let mut count = 0;
        if huge {
            // SAFETY: the caller passes chunks of its own that are committed and clean, so their contents are not
            // needed.
            unsafe { self.release_uncounted(c.start(), len * CHUNK) };
        }
        for (i, &table) in TABLES.iter().enumerate() {
            let ends = usize::from(i == 0);
            if let Some(run) = pages(base, chunks, table, index + ends, index + len - ends, self.page_size()) {
                runs[count] = run;
                count += 1;
            }
        }
        // SAFETY: these OS pages are committed, and hold only entries that may be zero.
        unsafe { self.release_runs(&runs[..count], false) }.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a purge of an OS page that holds an entry of a neighbour, and an OS page that is left out.
    #[test]
    fn pages_of_entries() {
        let run = |from, to| pages(1 << 36, 1 << 20, TABLES[0], from, to, 4096).map(|r| (r.start.addr(), r.len));
        assert_eq!(run(0, 63), None);
        assert_eq!(run(0, 64), Some((1 << 36, 4096)));
        assert_eq!(run(1, 64), None);
        assert_eq!(run(1, 200), Some(((1 << 36) + 4096, 2 * 4096)));
        let ages = pages(1 << 36, 1 << 20, TABLES[4], 4096, 3 * 4096, 4096).map(|r| (r.start.addr(), r.len));
        assert_eq!(ages, Some(((1 << 36) + (BEFORE_AGES << 20) + 4096, 2 * 4096)));
    }
}
