//! Holes: OS pages of a slab on which no block is used. They go back to the system when no block was freed to the slab
//! for a while.
//!
//! Bookkeeping does not touch the free blocks of a slab, so their memory can go and come back as zero. But no block may
//! be handed out while its OS page is on its way (invariant 11). So the purger
//! 1. takes the blocks of such OS pages (`take`), in a handshake with the owner of the slab (`handshake.rs`), or under
//!    the lock of the registry for an orphan's slab;
//! 2. gives the OS pages back, under no lock but the batch lock;
//! 3. marks them as clean, and frees the blocks as any other thread would (`system/remote.rs`), so no second handshake
//!    is needed.
//!
//! An OS page stays clean until one of its blocks is taken (`OwnSlab::dirty`). calloc does not clear what lies on clean
//! ones.

use crate::CHUNK;
use crate::blocks::class;
use crate::blocks::slab::pages;
use crate::blocks::slab_record::{OwnSlab, words};
use crate::pages::chunk::Record;
use crate::pages::layout::BITS_BYTES;
use crate::system::claims::parts;
use crate::system::os::Run;
use crate::system::sync::Ordering;

/// Maximum number of runs of a slab's OS pages: every other one.
pub const MOST_RUNS: usize = 8;
/// Maximum number of words of a slab's free bits.
const WORDS: usize = BITS_BYTES / 8;

const _: () = assert!(CHUNK / 4096 <= 16, "a slab's record has a bit for each OS page of a chunk");

/// OS pages of a slab on their way to the system, and the blocks that were taken for it. Those blocks count as used, so
/// they pin the slab until they are freed.
#[derive(Clone, Copy, Debug)]
pub struct Hole {
    /// The slab and its class. `None`: nothing is on its way.
    slab: Option<(Record, usize)>,
    /// A bit for each OS page.
    pub(crate) pages: u16,
    /// A bit for each block. Words after the last block of the slab are not valid.
    blocks: [u64; WORDS],
}

impl Hole {
    /// No OS pages on their way.
    pub const NONE: Hole = Hole { slab: None, pages: 0, blocks: [0; WORDS] };

    /// Returns the slab, its class, and the words of block bits that its class uses.
    pub(crate) fn blocks(&self) -> Option<(Record, usize, &[u64])> {
        self.slab.map(|(c, class)| (c, class, &self.blocks[..words(class)]))
    }

    /// Returns the block bits as work space.
    pub(crate) fn room(&mut self) -> &mut [u64; WORDS] {
        &mut self.blocks
    }

    /// Writes the OS pages as runs; returns the number of runs, at most [`MOST_RUNS`].
    pub fn runs(&self, page: usize, runs: &mut [Run]) -> usize {
        let (mut left, mut count) = (u32::from(self.pages), 0);
        let chunk = self.slab.map_or(core::ptr::null_mut(), |(c, _)| c.start());
        while left != 0 {
            let first = left.trailing_zeros();
            let len = (left >> first).trailing_ones();
            runs[count] = Run { start: chunk.wrapping_add(first as usize * page), len: len as usize * page };
            count += 1;
            left &= !(((1 << len) - 1) << first);
        }
        count
    }
}

/// Takes the blocks of all OS pages of the slab that hold no used block and may hold memory, into `hole`. False if
/// there are none.
///
/// The blocks that are taken count as used, so they pin the slab while its OS pages are on their way. An OS page after
/// the last block has no block. It goes back together with others, never alone: without a pin, the chunk could be freed
/// and used again before the system purges it.
#[cold]
pub(crate) fn take(slab: OwnSlab, page: usize, hole: &mut Hole) -> bool {
    let class = slab.class();
    let (size, capacity) = (class::SIZE[class] as usize, class::capacity(class) as usize);
    let carved = slab.carved() as usize;
    let bits = slab.bits();
    // By whole words, as the owner's next call waits meanwhile.
    let are_free = |from: usize, to: usize| parts(from, to.min(carved)).all(|(w, m)| bits[w].get() & m == m);
    // OS pages that read as zero already: purged ones, and uncarved ones of a slab that was clean.
    let mut clean = slab.clean().load(Ordering::Relaxed);
    let unused = (carved * size).div_ceil(page);
    if slab.is_zeroed() {
        clean |= pages(0, CHUNK, page) & (u32::MAX << unused) as u16;
    }
    // Without the last OS page if it is a guard.
    let end = CHUNK / page - usize::from(slab.is_guarded());
    (hole.slab, hole.pages) = (Some((slab.chunk(), class)), 0);
    hole.blocks[..bits.len()].fill(0);
    let mut pinned = false;
    for k in 0..end {
        // Blocks that lie there, at least in part.
        let (first, behind) = (k * page / size, ((k + 1) * page).div_ceil(size).min(capacity));
        if clean >> k & 1 == 0 && are_free(first, behind) {
            hole.pages |= 1 << k;
            pinned |= first < behind;
            parts(first, behind).for_each(|(word, mask)| hole.blocks[word] |= mask);
        }
    }
    if !pinned {
        return false;
    }
    carve_rest(slab, capacity, clean);
    for (bits, mask) in bits.iter().zip(&hole.blocks) {
        bits.set(bits.get() & !mask);
        slab.add_used(mask.count_ones() as i32);
    }
    debug_assert!(slab.is_valid());
    true
}

/// Marks all uncarved blocks as carved and free, so that the owner does not carve them meanwhile.
fn carve_rest(slab: OwnSlab, capacity: usize, clean: u16) {
    let (bits, carved) = (slab.bits(), slab.carved() as usize);
    for (word, mask) in parts(carved, capacity) {
        bits[word].set(bits[word].get() | mask);
    }
    slab.set_hint(slab.hint().min((carved / 64).min(255)));
    slab.set_carved(capacity as u32);
    slab.clean().fetch_or(clean, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches runs that are joined or cut wrongly.
    #[test]
    fn runs_of_pages() {
        let mut runs = [Run::EMPTY; 16];
        for (pages, want) in [(0b1u16, 1), (0b1011, 2), (0xFFFF, 1), (0x5555, 8), (0x8000, 1)] {
            let hole = Hole { pages, ..Hole::NONE };
            let n = hole.runs(4096, &mut runs);
            assert_eq!(n, want, "{pages:#b}");
            let sum: usize = runs[..n].iter().map(|r| r.len / 4096).sum();
            assert_eq!(sum as u32, pages.count_ones());
        }
    }
}
