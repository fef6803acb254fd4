//! The model of the blocks that are live.

use crate::{finding, pattern};
use std::collections::BTreeMap;

/// Limits on the live blocks and their bytes.
const MOST_BLOCKS: usize = 1000;
const MOST_BYTES: usize = 8 << 20;

/// A live block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its address.
    pub p: *mut u8,
    /// Its usable bytes.
    pub usable: usize,
    /// Identifies the block's contents.
    pub id: u64,
    /// The bytes that have these contents.
    pub written: usize,
    /// The thread that allocated it.
    pub owner: usize,
}

impl Block {
    /// Checks that the block holds what was written into it.
    pub fn check(&self) {
        // SAFETY: the block is live.
        if let Some(offset) = unsafe { pattern::first_wrong(self.p, self.usable, self.written, self.id) } {
            finding(&format!("contents of a live block of {} bytes changed at offset {offset:#x}", self.usable));
        }
    }
}

/// All blocks that are live.
///
/// Invariant: `addresses` has each of `list`, and none overlaps another; `bytes` is the sum of their usable sizes.
#[derive(Default)]
pub struct Blocks {
    list: Vec<Block>,
    /// Start and end of each block.
    addresses: BTreeMap<usize, usize>,
    bytes: usize,
    ids: u64,
}

impl Blocks {
    /// An identifier for a new block's contents, different from all others.
    pub fn new_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Takes a block of a thread that is `wanted`, the first one from `pick` on.
    pub fn take_if(&mut self, pick: u64, wanted: impl Fn(usize) -> bool) -> Option<Block> {
        let count = self.list.len();
        if count == 0 {
            return None;
        }
        let first = pick as usize % count;
        let found = (0..count).map(|i| (first + i) % count).find(|&i| wanted(self.list[i].owner))?;
        let block = self.list.swap_remove(found);
        self.addresses.remove(&block.p.addr());
        self.bytes -= block.usable;
        Some(block)
    }

    /// Adds a block.
    pub fn add(&mut self, block: Block) {
        let (from, to) = (block.p.addr(), block.p.addr() + block.usable);
        let before = self.addresses.range(..to).next_back();
        if let Some((&other, &end)) = before.filter(|&(_, &end)| end > from) {
            finding(&format!("a block at {from:#x} (+ {:#x}) overlaps {other:#x} to {end:#x}", block.usable));
        }
        self.addresses.insert(from, to);
        self.bytes += block.usable;
        self.list.push(block);
    }

    /// Whether the limits are reached.
    pub fn is_full(&self) -> bool {
        self.list.len() >= MOST_BLOCKS || self.bytes >= MOST_BYTES
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Checks that all blocks hold what was written into them.
    pub fn check_all(&self) {
        self.list.iter().for_each(Block::check);
    }
}
