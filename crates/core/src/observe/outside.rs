//! What an observer in another process reads of a heap: where the structures are, and what their copies say.
//!
//! The observer copies memory and does not stop the process, so a copy may be torn; any bytes are valid. It has to know
//! the same structures: it compares [`LAYOUT`], a number that identifies the version of all structures that are read
//! here.

use crate::blocks::class::{self, CLASSES};
use crate::blocks::free_block::Block;
use crate::blocks::heap::CACHE_BLOCKS;
use crate::pages::layout;
use crate::system::seen;
use crate::{CHUNK, Heap, MAX_SIZE};
use core::mem::offset_of;

pub use crate::blocks::huge::SeenHuge;
pub use crate::blocks::large_record::SeenLarge;
pub use crate::blocks::slab_record::SeenSlab;
pub use crate::pages::arena::SeenArena;
pub use crate::pages::chunk::{Kind, RECORD_BYTES, Seen};

/// Where the structures lie, from the start of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// All arenas, of [`SeenArena::BYTES`].
    pub arenas: usize,
    /// A word: the address of the newest heap, of [`SeenHeap::BYTES`].
    pub heaps: usize,
    /// The huge blocks, of [`SeenHuge::BYTES`].
    pub huge: usize,
}

/// The fields of a copy of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenHeap {
    /// First block of the cache of each class.
    pub first: [u64; CLASSES],
    /// The next heap in the list of all; 0: none.
    pub next: u64,
}

impl SeenHeap {
    /// Where the fields lie, and where those of a block in a cache lie.
    const LAYOUT: [usize; 4] = [Heap::SEEN_AT[0], Heap::SEEN_AT[1], offset_of!(Block, tag), offset_of!(Block, link)];
    /// Length of a copy.
    pub const BYTES: usize = size_of::<Heap>();
    /// Length of a copy of the front of a block.
    pub const BLOCK_BYTES: usize = size_of::<Block>();
    /// Maximum number of blocks in the cache of a class.
    pub const MOST: usize = CACHE_BLOCKS;

    /// The fields of a copy.
    pub fn of(copy: &[u8]) -> Self {
        let [head, next, ..] = Self::LAYOUT;
        let first = core::array::from_fn(|class| seen::word(copy, head + class * size_of::<usize>()));
        SeenHeap { first, next: seen::word(copy, next) }
    }

    /// Returns the address of the next block, if the copy of the front of a block says that it is in a cache. The end
    /// of a cache does not say that.
    pub fn behind(block: &[u8]) -> Option<u64> {
        let [.., tag, link] = Self::LAYOUT;
        (u32::from_ne_bytes(seen::bytes(block, tag)) == Block::TAG).then(|| seen::word(block, link))
    }
}

/// Increase this when the meaning of a field changes.
const MEANING: usize = 1;

/// Identifies the structures: a library in which they differ has another number.
pub const LAYOUT: u64 = {
    let sums = [
        seen::sum(&Seen::LAYOUT),
        seen::sum(&SeenSlab::LAYOUT),
        seen::sum(&SeenLarge::LAYOUT),
        seen::sum(&SeenArena::LAYOUT),
        seen::sum(&SeenHeap::LAYOUT),
        seen::sum(&SeenHuge::LAYOUT),
    ];
    let shapes = [MEANING, CHUNK, MAX_SIZE, CLASSES, class::SIZE[CLASSES - 1] as usize, layout::SIDE_BYTES];
    let (mut sum, mut i) = (seen::sum(&shapes), 0);
    while i < sums.len() {
        sum = seen::sum(&[sum as usize, sums[i] as usize]);
        i += 1;
    }
    sum
};
