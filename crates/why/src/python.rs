//! Finds pools of CPython's own allocator in nameless memory by their headers.

use crate::memory::Process;
use neap_account::model::Kind;
use neap_account::python::{HEADER, POOLS, pool};
use neap_account::seen::{Claim, Mapping, Piece, Seen};
use std::ops::Range;

/// Headers in one read.
const AT_ONCE: usize = 1024;
/// The size of the smallest arenas.
const LEAST: u64 = 256 << 10;

/// Claims the pools of a process that has CPython.
pub fn read(seen: &mut Seen, memory: &Process) {
    let is_python = |mapping: &Mapping| {
        let name = mapping.name.rsplit('/').next().unwrap_or("");
        mapping.inode != 0 && (name.starts_with("python") || name.starts_with("libpython"))
    };
    if !seen.mappings.iter().any(is_python) {
        return;
    }
    let may_be = |mapping: &&Mapping| {
        mapping.is_nameless() && mapping.write && mapping.bytes() >= LEAST && mapping.figures.rss > 0
    };
    let mut taken: Vec<Range<u64>> =
        seen.heaps.iter().flat_map(|heap| heap.pieces.iter().map(|piece| piece.range.clone())).collect();
    taken.sort_by_key(|range| range.start);
    // A process has one CPython, which has pools of one size.
    let found = POOLS.into_iter().map(|size| {
        let mut found = Found { size, pieces: Vec::new(), live: 0, free: 0 };
        seen.mappings.iter().filter(may_be).for_each(|mapping| found.search(memory, mapping, &taken));
        found
    });
    let Some(best) = found.into_iter().find(|found| found.live > 0) else { return };
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let resident = best.pieces.iter().map(|piece| piece.resident).sum();
    seen.claims.push(Claim {
        owner: "CPython, pools of small objects".into(),
        note: Some(format!("{} live, {} free in pools", mib(best.live), mib(best.free))),
        pieces: best.pieces,
        shares: vec![(Kind::RuntimeHeap, resident)],
        rest: Kind::RuntimeHeap,
    });
}

struct Found {
    size: u64,
    pieces: Vec<Piece>,
    live: u64,
    free: u64,
}

/// Whether an address is in one of `ranges`, which are in order and do not overlap.
fn has(ranges: &[Range<u64>], address: u64) -> bool {
    let next = ranges.partition_point(|range| range.end <= address);
    ranges.get(next).is_some_and(|range| range.start <= address)
}

impl Found {
    /// Adds the pools of a mapping. Only what may be a header is read. `taken` is in order.
    fn search(&mut self, memory: &Process, mapping: &Mapping, taken: &[Range<u64>]) {
        let mut fronts = Vec::new();
        for region in memory.regions(mapping.range.clone()).into_iter().filter(|region| !region.swapped) {
            let (first, end) = (region.range.start.next_multiple_of(self.size), region.range.end);
            let whole = (first..end).step_by(self.size as usize).take_while(|address| end - address >= self.size);
            let addresses: Vec<u64> = whole.filter(|address| !has(taken, *address)).collect();
            for addresses in addresses.chunks(AT_ONCE) {
                memory.copy_each(addresses, HEADER, &mut fronts);
                for (address, front) in addresses.iter().zip(fronts.as_chunks::<HEADER>().0) {
                    let Some(pool) = pool(*address, self.size, front) else { continue };
                    self.add(mapping, *address);
                    self.live += pool.live;
                    self.free += pool.free;
                }
            }
        }
    }

    /// Adds a pool; neighbours in one mapping are one piece.
    fn add(&mut self, mapping: &Mapping, address: u64) {
        match self
            .pieces
            .last_mut()
            .filter(|last| last.range.end == address && mapping.range.contains(&last.range.start))
        {
            Some(last) => {
                last.range.end += self.size;
                last.resident += self.size;
            }
            None => self.pieces.push(Piece { range: address..address + self.size, resident: self.size }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches addresses at the ends of ranges that count as the other side.
    #[test]
    fn ranges_have_addresses() {
        let ranges = [10..20, 20..30, 40..50];
        let inside: Vec<u64> = (0..60).filter(|address| has(&ranges, *address)).collect();
        assert_eq!(inside, (10..30).chain(40..50).collect::<Vec<u64>>());
        assert!(!has(&[], 5));
    }
}
