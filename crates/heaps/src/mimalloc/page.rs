//! mimalloc's pages, of all versions: blocks of one size, and those of them that other threads have freed.

use crate::Memory;
use crate::data::read;
use crate::window::{peek, word};

/// Unit of pages, in bytes.
pub const SLICE: u64 = 64 << 10;
/// Limit on the bytes of records at the front of an arena.
pub const FRONT: u64 = 256 << 20;

/// Blocks of one size.
pub struct Page {
    pub start: u64,
    pub block: u64,
    pub used: u64,
    pub reserved: u64,
    /// The first block of the list of those that other threads have freed; the lowest bits are flags.
    pub freed: u64,
}

impl Page {
    /// The blocks that other threads have freed. Those of builds with encoded lists are not known.
    pub fn freed_by_others(&self, memory: &dyn Memory) -> u64 {
        /// Pages of at most this many bytes are read as a whole.
        const WHOLE: u64 = 512 << 10;
        // Of old records only the end of the blocks is known exactly.
        let end = self.start.saturating_add(self.block.saturating_mul(self.reserved));
        let area = self.start & !(SLICE - 1)..end;
        // Version 2 puts the first one on a list of the heap, and sets a flag until the owner takes it from there.
        let (mut block, first) = (self.freed & !3, u64::from(self.freed & 3 == 2).min(self.used));
        let mut count = first;
        if !area.contains(&block) {
            return if block == 0 { count } else { 0 };
        }
        let bytes = if area.end - area.start <= WHOLE { read(memory, area.clone()) } else { Vec::new() };
        while block != 0 && count < self.used {
            if !area.contains(&block) || !block.is_multiple_of(8) {
                return first;
            }
            count += 1;
            let next = if bytes.is_empty() { peek(memory, block) } else { word(&bytes, (block - area.start) as usize) };
            block = next.unwrap_or(0);
        }
        count
    }
}
