//! The layout of glibc's structures, and how they are found without symbols.
//!
//! `struct malloc_state` (an arena) has its `bins` two words after `top`, and an empty bin points to the word two
//! before it. The last bin is for no size and always empty; the others may all have chunks. So an arena is recognised
//! by 127 pairs of addresses, of which the last points to itself. [`LAYOUTS`] has the differences between versions; the
//! memory shows which row fits.

use crate::window::word;

/// Pairs of words: the unsorted list and the bins.
const BINS: usize = 127;
/// A bin is a pair of words.
const PAIR: usize = 16;

/// Offsets in `struct malloc_state`, one row for each shape that it has had.
pub struct Layout {
    flags: usize,
    /// Where the heads of fastbins are, and how many.
    pub fastbins: (usize, usize),
    top: usize,
    bins: usize,
    next: usize,
    system: usize,
    /// Bytes of the structure.
    pub size: u64,
}

/// On x86-64 and other processors with words of 64 bits and blocks aligned to 16.
pub const LAYOUTS: [Layout; 2] = [
    // 2.27 to 2.42
    Layout { flags: 4, fastbins: (16, 10), top: 96, bins: 112, next: 2160, system: 2184, size: 2200 },
    // 2.43: without fastbins
    Layout { flags: 4, fastbins: (0, 0), top: 8, bins: 24, next: 2072, system: 2096, size: 2112 },
];

/// An arena as it was read.
#[derive(Clone, Debug)]
pub struct State {
    pub address: u64,
    pub flags: u32,
    pub fastbins: Vec<u64>,
    pub top: u64,
    /// The address of `top` itself.
    pub top_at: u64,
    /// Free chunks that the bins point to.
    pub chunks: Vec<u64>,
    pub next: u64,
    /// Bytes that it has from the system.
    pub system: u64,
}

impl Layout {
    /// Reads an arena at `address` from its bytes; none if they cannot be one.
    pub fn read(&self, bytes: &[u8], address: u64) -> Option<State> {
        let bins = bytes.get(self.bins..self.bins + BINS * PAIR)?;
        let mut chunks = Vec::new();
        for bin in 0..BINS {
            let itself = address.checked_add((self.bins + bin * PAIR) as u64)?.checked_sub(PAIR as u64)?;
            let links = [word(bins, bin * PAIR)?, word(bins, bin * PAIR + 8)?];
            // While a bin gets its first chunk or loses its last, one link may already be changed.
            if bin == BINS - 1 && links != [itself; 2] || !links.into_iter().all(is_chunk) {
                return None;
            }
            chunks.extend(links.into_iter().filter(|chunk| *chunk != itself));
        }
        let (top, top_at) = (word(bytes, self.top)?, address.checked_add(self.top as u64)?);
        let fastbins: Vec<u64> = (0..self.fastbins.1).map_while(|bin| word(bytes, self.fastbins.0 + 8 * bin)).collect();
        let are_chunks = fastbins.iter().all(|chunk| *chunk == 0 || is_chunk(*chunk));
        let is_arena = are_chunks && is_chunk(top);
        let (next, system) = (word(bytes, self.next)?, word(bytes, self.system)?);
        let flags = word(bytes, self.flags & !7).map(|word| (word >> (8 * (self.flags & 7))) as u32)?;
        (is_arena && next != 0 && next.is_multiple_of(8) && system != 0 && system < 1 << 47 && flags < 16)
            .then_some(State { address, flags, fastbins, top, top_at, chunks, next, system })
    }

    /// All candidates for arenas in `bytes`, which are at `start`.
    pub fn search(&self, bytes: &[u8], start: u64) -> Vec<State> {
        let last = self.bins + (BINS - 1) * PAIR;
        let places = (last..bytes.len().saturating_sub(PAIR - 1)).step_by(8);
        let is_empty = |at: &usize| {
            let itself = start.wrapping_add(*at as u64).wrapping_sub(PAIR as u64);
            word(bytes, *at) == Some(itself) && word(bytes, at + 8) == Some(itself)
        };
        let state = |at: usize| self.read(bytes.get(at - last..)?, start.checked_add((at - last) as u64)?);
        places.filter(is_empty).filter_map(state).collect()
    }
}

fn is_chunk(address: u64) -> bool {
    address.is_multiple_of(8) && (1 << 12..1 << 56).contains(&address)
}

/// Settings of a copy of glibc (`struct malloc_par`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many blocks have a mapping of their own.
    pub mmapped: u64,
    /// Bytes of those mappings.
    pub mmapped_bytes: u64,
    /// The first address that was taken by brk; 0 if none was.
    pub base: u64,
    /// Blocks that the cache of a thread may hold of one size.
    pub cache: u64,
}

impl Settings {
    /// Finds them in the data of a copy of glibc. They are recognised by the settings of the caches of threads at their
    /// end (64 sizes, the largest size, the number of blocks), and by the limit of mappings before them.
    pub fn search(bytes: &[u8]) -> Option<Settings> {
        const SIZES: u64 = 64;
        (0..bytes.len().saturating_sub(48)).step_by(8).find_map(|at| {
            let field = |offset: usize| word(bytes, at + offset);
            let largest = field(32)?;
            let are_cache = field(24)? == SIZES && (24..=1 << 23).contains(&largest) && field(40)? <= 65535;
            let (mmapped_bytes, most, base) = (field(0)?, field(8)?, field(16)?);
            if !are_cache || mmapped_bytes > most || !mmapped_bytes.is_multiple_of(4096) || base >= 1 << 56 {
                return None;
            }
            let number = |back: usize| {
                let place = at.checked_sub(back)?;
                Some(u64::from(u32::from_le_bytes(bytes.get(place..place + 4)?.try_into().ok()?)))
            };
            // Numbers of mappings: now, limit, most so far. Since 2.35 (huge pages) one more int precedes them.
            [16, 20].into_iter().find_map(|back| {
                let (now, limit, most) = (number(back)?, number(back - 4)?, number(back - 8)?);
                let fits = now <= most && most <= limit.max(now) && limit >= 1 && (now == 0) == (mmapped_bytes == 0);
                fits.then_some(Settings { mmapped: now, mmapped_bytes, base, cache: field(40)? })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches arenas that are not found if nearly all bins have chunks, and bins that change while they are read.
    #[test]
    fn full_bins() {
        const AT: usize = 0x7000;
        for layout in &LAYOUTS {
            for full in [0, 60, BINS - 1] {
                let mut bytes = vec![0; layout.size as usize];
                let mut set = |at: usize, value: usize| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                for bin in 0..BINS {
                    let (at, chunk) = (layout.bins + bin * PAIR, 0x10_0000 + 64 * bin);
                    let itself = AT + at - PAIR;
                    // The last full bin is just losing its only chunk.
                    set(at, if bin + 1 < full { chunk } else { itself });
                    set(at + 8, if bin < full { chunk } else { itself });
                }
                set(layout.top, 0x20_0000);
                set(layout.next, AT);
                set(layout.system, 0x20_0000);
                let mut data = vec![0; 40];
                data.extend(&bytes);
                data.extend([0; 40]);
                let found = layout.search(&data, AT as u64 - 40);
                let [state] = &found[..] else { panic!("{full} full bins: {found:?}") };
                let chunks = 2 * full - usize::from(full > 0);
                assert_eq!((state.address, state.next, state.chunks.len()), (AT as u64, AT as u64, chunks));
            }
        }
    }
}
