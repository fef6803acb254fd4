//! Free blocks that the allocator counts as used: in fastbins, and in the caches of threads.
//!
//! Links of these lists are stored plain up to 2.31; since 2.32 they are combined with the address at which they are
//! stored. Each link shows which it is, because only one reading gives the address of a chunk in this heap.

use super::walk::Area;
use crate::Memory;
use crate::window::{copy, peek, word};
use std::ops::Range;

/// Limit on chunks of fastbins.
const FAST: usize = 4 << 20;
/// Largest chunk of a fastbin.
const FAST_LARGEST: u64 = 0xb0;
/// Limit on the blocks of one size in one cache.
const LONGEST: usize = 1 << 16;

/// The memory of a heap's arenas, in order.
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    pub fn new(areas: &[Area]) -> Self {
        let mut ranges: Vec<_> = areas.iter().map(|area| area.range.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        Ranges(ranges)
    }

    /// Whether `address` is in an area and aligned as chunks are.
    fn has(&self, address: u64) -> bool {
        let after = self.0.partition_point(|range| range.start <= address);
        address.is_multiple_of(16) && after.checked_sub(1).is_some_and(|at| address < self.0[at].end)
    }

    /// The chunk to which the link stored at `at` leads.
    fn follow(&self, raw: u64, at: u64) -> Option<u64> {
        [raw ^ (at >> 12), raw].into_iter().find(|address| self.has(*address))
    }
}

/// The chunks of fastbins, by address, and whether these are all.
pub fn fastbins(memory: &dyn Memory, heads: &[u64], ranges: &Ranges) -> (Vec<u64>, bool) {
    let (mut chunks, mut page) = (Vec::new(), Near::new(memory));
    let mut are_all = true;
    for &head in heads {
        // A list that changed while it was read may be circular: then a remembered chunk comes again.
        let (mut chunk, mut remembered, mut steps) = (head, 0, 0_u32);
        while ranges.has(chunk) && chunk != remembered {
            let Some((size, link)) = page.chunk(chunk) else { break };
            if chunks.len() == FAST || !(0x20..=FAST_LARGEST).contains(&(size & !7)) {
                are_all = false;
                break;
            }
            chunks.push(chunk);
            steps += 1;
            if steps.is_power_of_two() {
                remembered = chunk;
            }
            chunk = ranges.follow(link, chunk + 16).unwrap_or(0);
        }
    }
    chunks.sort_unstable();
    let all = chunks.len();
    chunks.dedup();
    are_all &= all == chunks.len();
    (chunks, are_all)
}

/// The piece that was read last. Lists often lead to near chunks, because blocks are freed in the order of their
/// addresses. A jump reads one OS page; reads next to the last piece become larger and larger.
struct Near<'m> {
    memory: &'m dyn Memory,
    start: u64,
    length: u64,
    bytes: Vec<u8>,
}

impl<'m> Near<'m> {
    /// Bytes of a read after a jump, and of the largest read.
    const LEAST: u64 = 4096;
    const MOST: u64 = 64 << 10;

    fn new(memory: &'m dyn Memory) -> Self {
        Near { memory, start: 0, length: Self::LEAST, bytes: Vec::new() }
    }

    /// The size field and the first link of a chunk.
    fn chunk(&mut self, at: u64) -> Option<(u64, u64)> {
        if !(self.start..self.start + self.bytes.len() as u64).contains(&at) {
            self.read(at)?;
        }
        let offset = (at - self.start) as usize;
        let size = word(&self.bytes, offset + 8)?;
        let link = word(&self.bytes, offset + 16).or_else(|| peek(self.memory, at + 16))?;
        Some((size, link))
    }

    /// Reads a piece around `at`.
    fn read(&mut self, at: u64) -> Option<()> {
        let page = at & !(Self::LEAST - 1);
        let end = self.start + self.bytes.len() as u64;
        let (is_above, is_below) = (page == end, page + Self::LEAST == self.start);
        self.length = if is_above || is_below { (2 * self.length).min(Self::MOST) } else { Self::LEAST };
        // Below the last piece: the new one ends with this page.
        let start = if is_below { (page + Self::LEAST).saturating_sub(self.length) } else { page };
        for (start, length) in [(start, self.length), (page, Self::LEAST)] {
            self.start = start;
            self.bytes.resize(length as usize, 0);
            if copy(self.memory, start, &mut self.bytes) {
                return Some(());
            }
            self.length = Self::LEAST;
        }
        self.bytes.clear();
        None
    }
}

/// The cache of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// The chunk that holds it.
    pub chunk: u64,
    /// Bytes of that chunk.
    pub bytes: u64,
    /// Chunks in it: address and size.
    pub chunks: Vec<(u64, u64)>,
}

/// The form of caches in a version.
struct Shape {
    /// Bytes of the chunk that holds a cache; 16 more if the rest would be too small for a chunk.
    chunk: u64,
    /// Number of sizes: first a 16-bit number for each, then a link for each.
    sizes: usize,
    /// How many of them have blocks of exactly one size.
    exact: usize,
    /// Whether the numbers count blocks, instead of free places.
    are_counts: bool,
}

const SHAPES: [Shape; 2] = [
    // 2.30 to 2.41
    Shape { chunk: 0x290, sizes: 64, exact: 64, are_counts: true },
    // Since 2.42
    Shape { chunk: 0x300, sizes: 76, exact: 64, are_counts: false },
];

/// The cache of a thread in the chunk at `at`, if it is one. `places` is the number of blocks of one size that it may
/// hold, if that is known.
pub fn cache(memory: &dyn Memory, at: u64, ranges: &Ranges, places: Option<u64>) -> Option<Cache> {
    let size = peek(memory, at + 8)? & !7;
    let shape = SHAPES.iter().find(|shape| size == shape.chunk || size == shape.chunk + 16)?;
    // A chunk's memory includes the first word of the next chunk.
    let mut bytes = vec![0; shape.chunk as usize - 8];
    if !copy(memory, at + 16, &mut bytes) {
        return None;
    }
    let number = |bin: usize| bytes.get(2 * bin..2 * bin + 2).map(|two| u64::from(two[0]) | u64::from(two[1]) << 8);
    let link = |bin: usize| word(&bytes, 2 * shape.sizes + 8 * bin);
    // First the check that needs no further read: each size has blocks and a link, or neither.
    let (mut holds, mut wrong) = (0, 0);
    for bin in 0..shape.sizes {
        let (number, link) = (number(bin)?, link(bin)?);
        let fits = if shape.are_counts { (number != 0) == (link != 0) } else { number <= places.unwrap_or(65535) };
        wrong += u32::from(!fits);
        // One size may be changing now.
        if wrong > 1 || link != 0 && !(ranges.has(link.wrapping_sub(16)) || is_mmapped(memory, link)) {
            return None;
        }
        holds += usize::from(link != 0);
    }
    // An empty cache looks like any block of zeros, or of one small number.
    let is_new = !shape.are_counts && (0..shape.sizes).all(|bin| number(bin) == places && number(bin) != Some(0));
    if holds == 0 && !is_new {
        return None;
    }
    let mut cache = Cache { chunk: at, bytes: size, chunks: Vec::new() };
    for bin in 0..shape.sizes {
        let most = if shape.are_counts { number(bin)? as usize } else { places.map_or(LONGEST, |most| most as usize) };
        let before = cache.chunks.len();
        let mut block = link(bin)?;
        while block != 0 && cache.chunks.len() - before < most {
            let (chunk, Some(field)) = (block.wrapping_sub(16), peek(memory, block.wrapping_sub(8))) else { break };
            let (size, is_first) = (field & !7, cache.chunks.len() == before);
            let fits = bin >= shape.exact || size == 32 + 16 * bin as u64;
            if !fits {
                // The first block of a size must fit if this is a cache; later ones may have changed.
                if is_first {
                    return None;
                }
                break;
            }
            cache.chunks.push((chunk, size));
            let raw = peek(memory, block).unwrap_or(0);
            let own = || [raw ^ (block >> 12), raw].into_iter().find(|next| *next != 0 && is_mmapped(memory, *next));
            block = ranges.follow(raw, block).or_else(own).unwrap_or(0);
        }
    }
    Some(cache)
}

/// Whether `block` may be one with a mapping of its own: caches hold such blocks too, since 2.42.
fn is_mmapped(memory: &dyn Memory, block: u64) -> bool {
    block.is_multiple_of(16) && peek(memory, block.wrapping_sub(8)).is_some_and(|size| size & 7 == 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Run, Unreadable};

    /// Memory in pieces: start and contents.
    struct Pieces(Vec<(u64, Vec<u8>)>);

    impl Memory for Pieces {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
            let inside = |(start, bytes): &&(u64, Vec<u8>)| (*start..*start + bytes.len() as u64).contains(&address);
            let (start, bytes) = self.0.iter().find(inside).ok_or(Unreadable)?;
            let rest = &bytes[(address - start) as usize..];
            into.copy_from_slice(rest.get(..into.len()).ok_or(Unreadable)?);
            Ok(())
        }

        fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
            into.push(Run { range, swapped: false });
        }
    }

    /// Catches blocks with mappings of their own that are in a cache (since glibc 2.42) and of which only the first one
    /// is found, so that the rest counts as live.
    #[test]
    fn blocks_with_mappings_are_in_caches() {
        let (arena, first) = (0x5000_0000, 0x7f00_0000_0000);
        let mut chunk = vec![0; 0x310];
        let mut put = |at: usize, bytes: &[u8]| chunk[at..at + bytes.len()].copy_from_slice(bytes);
        put(8, &0x301u64.to_ne_bytes());
        (0..76).for_each(|bin| put(16 + 2 * bin, &16u16.to_ne_bytes()));
        put(16 + 2 * 76 + 8 * 70, &(first + 16u64).to_ne_bytes());
        // Three of them, one at the front of each mapping; the links are combined with the places where they are.
        let block = |number: u64| {
            let (at, next) = (first + number * 0x20_0000, first + (number + 1) * 0x20_0000 + 16);
            let mut bytes = vec![0; 0x1000];
            bytes[8..16].copy_from_slice(&0x4_1002u64.to_ne_bytes());
            let link = (at + 16) >> 12 ^ if number < 2 { next } else { 0 };
            bytes[16..24].copy_from_slice(&link.to_ne_bytes());
            (at, bytes)
        };
        let memory = Pieces(vec![(arena, chunk), block(0), block(1), block(2)]);
        let whole = arena..arena + 0x310;
        let ranges = Ranges(vec![whole]);
        let found = cache(&memory, arena, &ranges, Some(16)).expect("a cache");
        assert_eq!(found.chunks, [0, 1, 2].map(|number| (first + number * 0x20_0000, 0x4_1000)));
        // They count as free, not as live.
        let amount = |blocks, bytes| super::super::Amount { blocks, bytes, resident: bytes };
        let mut all = super::super::mmapped::Blocks::default();
        all.live = amount(4, 0x10_4000);
        all.ranges = (0..4).map(|number| first + number * 0x20_0000..first + number * 0x20_0000 + 0x4_1000).collect();
        let chunks: Vec<u64> = found.chunks.iter().map(|(chunk, _)| *chunk).collect();
        assert_eq!((all.take(&memory, &chunks), all.live), (amount(3, 0xc_3000), amount(1, 0x4_1000)));
    }
}
