//! Finds pools of CPython's own allocator in nameless memory by their headers.

use crate::memory::Process;
use neap_account::model::Kind;
use neap_account::python::{HEADER, POOLS, pool};
use neap_account::seen::{Claim, Mapping, Piece, Seen};
use std::ops::Range;

/// Bytes in one read.
const STEP: u64 = 1 << 20;
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
    let mut found = POOLS.map(|size| Found { size, pieces: Vec::new(), live: 0, free: 0 });
    for mapping in seen.mappings.iter().filter(may_be) {
        search(memory, mapping, &taken, &mut found);
    }
    let Some(best) = found.into_iter().max_by_key(|found| found.live + found.free).filter(|found| found.live > 0)
    else {
        return;
    };
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

/// Looks for pools of each size in a mapping. `taken` is in order.
fn search(memory: &Process, mapping: &Mapping, taken: &[Range<u64>], found: &mut [Found]) {
    let mut buffer = vec![0; STEP as usize];
    for region in memory.regions(mapping.range.clone()).into_iter().filter(|region| !region.swapped) {
        // The step is a multiple of each size of pool.
        let mut at = region.range.start & !(STEP - 1);
        while at < region.range.end {
            let place = at.max(region.range.start)..region.range.end.min(at + STEP);
            let part = &mut buffer[..(place.end - place.start) as usize];
            if memory.copy(place.start, part) {
                for found in found.iter_mut() {
                    found.pools(part, place.start, mapping, taken);
                }
            }
            at += STEP;
        }
    }
}

impl Found {
    /// Adds the pools in `bytes`, which are at address `start`.
    fn pools(&mut self, bytes: &[u8], start: u64, mapping: &Mapping, taken: &[Range<u64>]) {
        let first = start.next_multiple_of(self.size);
        let bytes = bytes.get((first - start) as usize..).unwrap_or_default();
        for (number, bytes) in bytes.chunks_exact(self.size as usize).enumerate() {
            let address = first + number as u64 * self.size;
            let Some(front) = bytes.first_chunk::<HEADER>() else { continue };
            let Some(pool) = pool(address, self.size, front) else { continue };
            if !has(taken, address) {
                self.add(mapping, address);
                self.live += pool.live;
                self.free += pool.free;
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
