//! Where things are in glibc's structures, and how they are found without symbols.
//!
//! `struct malloc_state` (an arena) has its `bins` two words behind `top`, and an empty bin points to the word two before
//! it, so an arena is recognised by 127 pairs of which most point to themselves. What differs between versions stands in
//! [`LAYOUTS`]; which row fits is seen in memory.

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
        let (mut chunks, mut empty) = (Vec::new(), 0);
        for bin in 0..BINS {
            let itself = address.checked_add((self.bins + bin * PAIR) as u64)?.checked_sub(PAIR as u64)?;
            let (first, last) = (word(bins, bin * PAIR)?, word(bins, bin * PAIR + 8)?);
            if first == itself && last == itself {
                empty += 1;
            } else if is_chunk(first) && is_chunk(last) {
                chunks.extend([first, last].into_iter().filter(|chunk| *chunk != itself));
            } else {
                return None;
            }
        }
        let top = word(bytes, self.top)?;
        let fastbins: Vec<u64> = (0..self.fastbins.1).map_while(|bin| word(bytes, self.fastbins.0 + 8 * bin)).collect();
        let are_chunks = fastbins.iter().all(|chunk| *chunk == 0 || is_chunk(*chunk));
        // 62 bins are for sizes below 1 KiB; a heap has some sizes that were never free at that moment.
        let is_arena = empty >= 4 && are_chunks && is_chunk(top);
        let (next, system) = (word(bytes, self.next)?, word(bytes, self.system)?);
        let flags = word(bytes, self.flags & !7).map(|word| (word >> (8 * (self.flags & 7))) as u32)?;
        (is_arena && next != 0 && next.is_multiple_of(8) && system != 0 && system < 1 << 47 && flags < 16)
            .then_some(State { address, flags, fastbins, top, chunks, next, system })
    }

    /// All that may be arenas in `bytes`, which lie at `start`.
    pub fn search(&self, bytes: &[u8], start: u64) -> Vec<State> {
        let mut found: Vec<State> = Vec::new();
        // An empty bin: two words, each the address of the word two before the first. The first empty bin decides.
        let mut at = 0;
        while at + PAIR <= bytes.len() {
            let itself = start.wrapping_add(at as u64).wrapping_sub(PAIR as u64);
            if word(bytes, at) != Some(itself) || word(bytes, at + 8) != Some(itself) {
                at += 8;
                continue;
            }
            let state = (0..BINS).find_map(|bin| {
                let base = at.checked_sub(bin * PAIR)?.checked_sub(self.bins)?;
                self.read(bytes.get(base..)?, start.checked_add(base as u64)?)
            });
            at = match state {
                Some(state) => {
                    let end = (state.address - start + self.size) as usize;
                    found.push(state);
                    end.max(at + 8) & !7
                }
                None => at + 8,
            };
        }
        found
    }
}

fn is_chunk(address: u64) -> bool {
    address.is_multiple_of(8) && (1 << 12..1 << 56).contains(&address)
}

/// What the settings of a copy of glibc (`struct malloc_par`) tell.
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
    /// Looks for them in the data of a copy of glibc. They are recognised by the settings of the caches of threads, which
    /// come last: 64 sizes, the largest size, the number of blocks; and by the limit of mappings in front of them.
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
            // Numbers of mappings: now, limit, most so far. With huge pages (2.35) there is one more int in front.
            [16, 20].into_iter().find_map(|back| {
                let (now, limit, most) = (number(back)?, number(back - 4)?, number(back - 8)?);
                let fits = now <= most && most <= limit.max(now) && limit >= 1 && (now == 0) == (mmapped_bytes == 0);
                fits.then_some(Settings { mmapped: now, mmapped_bytes, base, cache: field(40)? })
            })
        })
    }
}
