//! Memory that a process maps at several addresses: Rss counts it for each of them.

use crate::memory::Process;
use neap_account::seen::{Mapping, Seen};
use std::collections::BTreeMap;
use std::ops::Range;

/// Least number of new parts before they are joined.
const MANY: usize = 1 << 12;

/// Adds the bytes that are counted again, for each shared file or memory file.
pub fn read(seen: &mut Seen, memory: &Process) {
    let mut files: BTreeMap<((u32, u32), u64), Vec<&Mapping>> = BTreeMap::new();
    for mapping in seen.mappings.iter().filter(|of| of.shared && of.inode != 0 && of.figures.rss > 0) {
        files.entry((mapping.device, mapping.inode)).or_default().push(mapping);
    }
    let mut repeated = Vec::new();
    for mappings in files.values().filter(|mappings| mappings.len() > 1) {
        let again = again(mappings.iter().map(|mapping| parts(mapping, memory)));
        if again > 0 {
            repeated.push((mappings[0].range.start, again));
        }
    }
    seen.repeated = repeated;
}

/// The parts of the file that are resident in a mapping.
fn parts(mapping: &Mapping, memory: &Process) -> Vec<Range<u64>> {
    let at = |address: u64| mapping.offset.saturating_add(address.saturating_sub(mapping.range.start));
    let resident = memory.regions(mapping.range.clone()).into_iter().filter(|region| !region.swapped);
    resident.map(|region| at(region.range.start)..at(region.range.end)).collect()
}

/// The length of all parts together, minus the length that they cover. The memory used is bounded by that coverage and
/// one list, because a file may be mapped thousands of times.
fn again(lists: impl Iterator<Item = Vec<Range<u64>>>) -> u64 {
    let (mut again, mut joined, mut parts) = (0, 0, Vec::new());
    for list in lists {
        parts.extend(list);
        // Not after each list, because joining goes through all parts.
        if parts.len() > 2 * joined + MANY {
            again += join(&mut parts);
            joined = parts.len();
        }
    }
    again + join(&mut parts)
}

/// Joins parts that overlap or touch; returns by how much that shortens them.
fn join(parts: &mut Vec<Range<u64>>) -> u64 {
    let mut again = 0;
    parts.sort_by_key(|part| part.start);
    parts.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            again += next.end.min(last.end) - next.start;
            last.end = last.end.max(next.end);
        }
        joins
    });
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches wrong sums of parts that overlap partly, are inside others, or only touch.
    #[test]
    fn what_overlaps_counts_again() {
        let of = |parts: &[(u64, u64)]| again(parts.iter().map(|&(start, end)| std::iter::once(start..end).collect()));
        assert_eq!((of(&[(0, 4), (4, 8)]), of(&[(0, 8), (2, 4), (6, 10)]), of(&[(5, 7), (5, 7), (5, 7)])), (0, 4, 4));
        assert_eq!(of(&[]), 0);
    }

    /// Catches parts that are lost or counted again when many lists are joined in between.
    #[test]
    fn many_lists() {
        const PARTS: u64 = 5000;
        let list = || (0..PARTS).map(|at| 2 * at..2 * at + 1).collect::<Vec<_>>();
        assert_eq!(again((0..100).map(|_| list())), 99 * PARTS);
        let mut parts = [list(), list()].concat();
        assert_eq!((join(&mut parts), parts), (PARTS, list()));
    }
}
