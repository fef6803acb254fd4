//! The side tables of free memory go back to the system too.
//!
//! A GiB of small blocks has up to 18 MiB of records and bits (`arena.rs`), which mean nothing once it is free and clean:
//! inside a free range all entries are zero, or may be. So the purger takes long clean ranges out of the lists, gives the
//! OS pages of their entries back, under no lock, and makes the ranges free again. The first and the last record of a
//! range stay, as does every OS page that neighbours share.
//!
//! What huge pages left in the range goes back with them: a block that ends inside a huge page has all of it touched,
//! and takes only its own part along when it is freed (`dense.rs`).
//!
//! Cost: some 30 system calls at most, when a GiB was freed in all or the program has come to rest.

use crate::pages::Pages;
use crate::pages::chunk::Record;
use crate::pages::layout::{BEFORE_AGES, BEFORE_BITS, BITS_BYTES, FEW_BYTES, RECORD_BYTES};
use crate::system::os::Run;
use crate::{CHUNK, Os};

/// Chunks of a range whose entries are worth a look: 16 MiB, some 4 OS pages of records.
pub(crate) const LONG: usize = (16 << 20) / CHUNK;
/// Ranges that are taken out of the lists at a time, longest first.
const AT_ONCE: usize = 16;
/// Chunks that must have been freed since the last time when the program rests; where it does not, [`crate::pages::FREED`].
pub(crate) const FREED_AT_REST: usize = (64 << 20) / CHUNK;

/// The tables, by what lies in front of them and what an entry has. Records first, of which two stay.
const TABLES: [(usize, usize); 5] = [
    (0, RECORD_BYTES),
    (RECORD_BYTES, FEW_BYTES),
    (BEFORE_BITS, BITS_BYTES),
    (BEFORE_BITS + BITS_BYTES, BITS_BYTES),
    (BEFORE_AGES, 1),
];

/// The OS pages that hold nothing but entries of chunks `from..to` in the table behind `before` bytes for each of the
/// `chunks` of the arena at `base`.
fn pages(base: usize, chunks: usize, table: (usize, usize), from: usize, to: usize, page: usize) -> Option<Run> {
    let (before, entry) = table;
    let start = base + before * chunks;
    let (first, end) = ((start + from * entry).next_multiple_of(page), (start + to * entry) & !(page - 1));
    (first < end).then(|| Run { start: core::ptr::with_exposed_provenance_mut(first), len: end - first })
}

impl<O: Os> Pages<O> {
    /// Gives the side tables of long free ranges back; returns the bytes that they could have held. The batch lock must
    /// be held: who forks finds no range on its way.
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
            // SAFETY: the range is ours, and all its entries but two records may be zero.
            bytes += unsafe { self.purge_entries(c, len, huge) };
            self.ranges.with(&self.os, |r| r.put_back_clean(&self.arenas, c, len));
        }
        bytes
    }

    /// Gives the entries of a range back, and where there are huge pages the range too; returns the bytes of the entries.
    ///
    /// # Safety
    /// The chunks must be the caller's, clean and in no list.
    unsafe fn purge_entries(&self, c: Record, len: usize, huge: bool) -> usize {
        let (base, index, chunks) = self.arenas.place(c);
        let mut runs = [Run::EMPTY; TABLES.len()];
        let mut count = 0;
        if huge {
            // SAFETY: the range is clean and the caller's.
            unsafe { self.release_uncounted(c.start(), len * CHUNK) };
        }
        for (i, &table) in TABLES.iter().enumerate() {
            let ends = usize::from(i == 0);
            if let Some(run) = pages(base, chunks, table, index + ends, index + len - ends, self.page_size()) {
                runs[count] = run;
                count += 1;
            }
        }
        // SAFETY: these OS pages are committed, and zero is what they may hold.
        unsafe { self.release_runs(&runs[..count], false) }.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an OS page that holds an entry of a neighbour, or one that is left out.
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
