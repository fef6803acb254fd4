//! Memory that a process maps at several addresses: Rss counts it at each of them.

use crate::memory::Process;
use neap_account::seen::{Mapping, Seen};
use std::collections::BTreeMap;
use std::ops::Range;

/// Adds what is counted again of each shared file or memory file.
pub fn read(seen: &mut Seen, memory: &Process) {
    let mut files: BTreeMap<((u32, u32), u64), Vec<&Mapping>> = BTreeMap::new();
    for mapping in seen.mappings.iter().filter(|of| of.shared && of.inode != 0 && of.figures.rss > 0) {
        files.entry((mapping.device, mapping.inode)).or_default().push(mapping);
    }
    let mut repeated = Vec::new();
    for mappings in files.values().filter(|mappings| mappings.len() > 1) {
        let mut parts: Vec<Range<u64>> = mappings.iter().flat_map(|mapping| parts(mapping, memory)).collect();
        let again = again(&mut parts);
        if again > 0 {
            repeated.push((mappings[0].range.start, again));
        }
    }
    seen.repeated = repeated;
}

/// The parts of its file that are resident in a mapping.
fn parts(mapping: &Mapping, memory: &Process) -> Vec<Range<u64>> {
    let at = |address: u64| mapping.offset.saturating_add(address.saturating_sub(mapping.range.start));
    let resident = memory.regions(mapping.range.clone()).into_iter().filter(|region| !region.swapped);
    resident.map(|region| at(region.range.start)..at(region.range.end)).collect()
}

/// By how much the parts are longer together than what they cover.
fn again(parts: &mut [Range<u64>]) -> u64 {
    parts.sort_unstable_by_key(|part| part.start);
    let (mut again, mut end) = (0, 0);
    for part in parts {
        again += part.end.min(end).saturating_sub(part.start);
        end = end.max(part.end);
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches parts that overlap in part, lie in others, or only touch.
    #[test]
    fn what_overlaps_counts_again() {
        let of = |parts: &[(u64, u64)]| again(&mut parts.iter().map(|&(start, end)| start..end).collect::<Vec<_>>());
        assert_eq!((of(&[(0, 4), (4, 8)]), of(&[(0, 8), (2, 4), (6, 10)]), of(&[(5, 7), (5, 7), (5, 7)])), (0, 4, 4));
        assert_eq!(of(&[]), 0);
    }
}
