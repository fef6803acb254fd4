//! What an observer in another process reads of a heap: where the structures lie, and what their copies say.
//!
//! The observer copies memory and does not stop the process, so a copy may be torn; any bytes are valid. It has to know
//! the same structures: it compares [`LAYOUT`], a number that stands for all that is read here.

use crate::blocks::class::{self, CLASSES};
use crate::pages::layout;
use crate::system::seen;
use crate::{CHUNK, MAX_SIZE};

pub use crate::blocks::heap::SeenHeap;
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

/// Raise this when the same fields come to mean something else.
const MEANING: usize = 1;

/// A number that stands for the structures: another one in a library that has others.
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
