//! Purges the side tables of free memory.
//!
//! A GiB of small blocks has up to 18 MiB of records and bits (`layout.rs`), which are not needed once the GiB is free
//! and clean: inside a free range all entries may be zero. So the purger takes long clean ranges out of the lists,
//! gives the OS pages of their entries back without the lock of the ranges, and puts the ranges back. The first and the
//! last record of a range stay, as does every OS page that has entries of neighbours.
//!
//! The range itself is purged once more where huge pages may have left memory in it: a block that ends inside a huge
//! page makes the kernel populate the whole of it, but only the block's own part goes back when it is freed
//! (`dense.rs`).
//!
//! Cost: at most some 30 system calls, after a GiB was freed in all or when the program rests.

use crate::pages::Pages;
use crate::pages::chunk::Record;
use crate::pages::layout::{self, BITS_BYTES, RECORD_BYTES, TILE, first_chunk};
use crate::system::os::Run;
use crate::{CHUNK, Os};

/// Minimum length in chunks of a range whose entries are purged: 16 MiB, with some 4 OS pages of records.
pub(crate) const LONG: usize = (16 << 20) / CHUNK;
/// Number of ranges that are taken out of the lists at a time, longest first.
const AT_ONCE: usize = 16;
/// Minimum number of chunks freed since the last purge of tables, where the program rests; else it is
/// [`crate::pages::FREED`].
pub(crate) const FREED_AT_REST: usize = (64 << 20) / CHUNK;

/// Number of runs of OS pages of the side tables of one range.
const RUNS: usize = 7;

/// The OS pages that hold only entries of chunks `from..to`, of the arena at `base` of `chunks` chunks, as runs, some
/// of them empty:
///
/// - the records, except the first and the last;
/// - the bits of whole tiles;
/// - the free bits and the remote bits in the tiles in which the chunks begin and end. The few bits stay there, as
///   those of a tile share an OS page;
/// - the ages.
fn pages(base: usize, chunks: usize, from: usize, to: usize, page: usize) -> [Run; RUNS] {
    let run = |start: usize, end: usize| {
        let (start, end) = ((base + start).next_multiple_of(page), (base + end) & !(page - 1));
        Run { start: core::ptr::with_exposed_provenance_mut(start), len: end.saturating_sub(start) }
    };
    let (tables, first) = (chunks.ilog2() as u8, first_chunk(chunks));
    let ages = layout::ages(tables);
    let [begin, end] = [(from - first).next_multiple_of(TILE), (to - first) / TILE * TILE].map(|n| n + first);
    // The free bits and the remote bits of chunks `a..b` of one tile. They lie in the reverse order of the chunks.
    let free = |a: usize, b: usize| {
        if a >= b {
            return [Run::EMPTY; 2];
        }
        let [low, high] = [b - 1, a].map(|index| layout::bits(tables, index, false));
        [low..high + BITS_BYTES, layout::remote_bits(low, false)..layout::remote_bits(high, false) + BITS_BYTES]
            .map(|bits| run(bits.start, bits.end))
    };
    let ([begin_free, begin_remote], [end_free, end_remote]) = (free(from, begin.min(to)), free(end.max(from), to));
    [
        run((from + 1) * RECORD_BYTES, (to - 1) * RECORD_BYTES),
        run(layout::lowest_bits(tables, end), if begin < end { layout::end_of_tile(tables, begin) } else { 0 }),
        begin_free,
        begin_remote,
        end_free,
        end_remote,
        run(ages + from, ages + to),
    ]
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
            self.has_marks()
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
        if huge {
            // SAFETY: the caller passes chunks of its own that are committed and clean, so their contents are not
            // needed.
            unsafe { self.release_uncounted(c.start(), len * CHUNK) };
        }
        let (mut runs, mut count) = ([Run::EMPTY; RUNS], 0);
        for run in pages(base, chunks, index, index + len, self.page_size()).into_iter().filter(|run| run.len > 0) {
            runs[count] = run;
            count += 1;
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
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn pages_of_entries() {
        const CHUNKS: usize = 1 << 20;
        let (base, tables, first) = (1 << 36, CHUNKS.ilog2() as u8, first_chunk(CHUNKS));
        // The first and the last byte of each entry of a chunk, except for the few bits.
        let entries = |index: usize| {
            let free = layout::bits(tables, index, false);
            let starts = [(index * RECORD_BYTES, RECORD_BYTES), (layout::ages(tables) + index, 1)];
            let bits = [free, layout::remote_bits(free, false)].map(|at| (at, BITS_BYTES));
            starts.into_iter().chain(bits).map(move |(at, len)| (base + at, base + at + len - 1))
        };
        for (from, to) in [(0, 256), (1, 257), (7, 320), (63, 500), (64, 320), (64, 8256), (100, 9000)] {
            let runs = pages(base, CHUNKS, first + from, first + to, 4096);
            let is_purged = |at: usize| runs.iter().any(|run| at.wrapping_sub(run.start.addr()) < run.len);
            for index in (0..from).chain(to..to + 200) {
                let few = base + layout::bits(tables, first + index, true);
                assert!(entries(first + index).all(|(low, high)| !is_purged(low) && !is_purged(high)), "{index}");
                assert!(!is_purged(few), "{index}");
            }
            for index in [from, to - 1] {
                assert!(!is_purged(base + (first + index) * RECORD_BYTES), "the ends of a range stay");
            }
            // At most an OS page at either end stays of each table.
            let (mut all, mut purged) = (0, 0);
            for index in from..to {
                for (low, high) in entries(first + index) {
                    all += high + 1 - low;
                    purged += if is_purged(low) { high + 1 - low } else { 0 };
                }
            }
            assert!(all - purged <= 8 * 4096, "{from}..{to}: {purged} of {all}");
        }
    }
}
