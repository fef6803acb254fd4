//! Pools of CPython's own allocator: found in nameless memory by the front of each pool.

use crate::memory::Process;
use neap_account::model::Kind;
use neap_account::python::{HEADER, POOLS, pool};
use neap_account::seen::{Claim, Mapping, Piece, Seen};
use std::ops::Range;

/// Bytes that are read at once.
const STEP: u64 = 1 << 20;
/// The smallest arenas that there are.
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
    let taken: Vec<Range<u64>> =
        seen.heaps.iter().flat_map(|heap| heap.pieces.iter().map(|piece| piece.range.clone())).collect();
    let found = POOLS.map(|size| {
        let mut found = Found { size, pieces: Vec::new(), live: 0, free: 0 };
        for mapping in seen.mappings.iter().filter(may_be) {
            found.mapping(memory, mapping, &taken);
        }
        found
    });
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

impl Found {
    fn mapping(&mut self, memory: &Process, mapping: &Mapping, taken: &[Range<u64>]) {
        let mut buffer = vec![0; STEP as usize];
        for region in memory.regions(mapping.range.clone()).into_iter().filter(|region| !region.swapped) {
            let mut at = region.range.start.next_multiple_of(self.size);
            while at + self.size <= region.range.end {
                let wanted = (region.range.end - at).min(STEP) / self.size * self.size;
                let part = &mut buffer[..wanted as usize];
                if wanted == 0 || !memory.copy(at, part) {
                    break;
                }
                for (number, bytes) in part.chunks(self.size as usize).enumerate() {
                    let address = at + number as u64 * self.size;
                    let Some(front) = bytes.first_chunk::<HEADER>() else { continue };
                    let known = taken.iter().any(|range| range.contains(&address));
                    if let Some(pool) = pool(address, self.size, front).filter(|_| !known) {
                        self.add(mapping, address);
                        self.live += pool.live;
                        self.free += pool.free;
                    }
                }
                at += wanted;
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
