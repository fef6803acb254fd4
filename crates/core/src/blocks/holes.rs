//! Holes: OS pages of a slab on which no block is used. They go back to the system when the slab has been left alone
//! for a while.
//!
//! Free blocks of a slab are not touched by bookkeeping, so their memory can go and come back as zero. What must not
//! happen is that a block is handed out while its OS page is on its way. So the purger
//! 1. takes the blocks of such OS pages, while it visits the owner's heap (`visit.rs`) or holds the lock that stands in
//!    for an orphan's owner ([`take`]);
//! 2. gives the OS pages back, under no lock;
//! 3. notes them as clean, and frees the blocks as any other thread would (`system/remote.rs`): nothing new is needed
//!    for their way back, and the owner need not be visited again.
//!
//! A clean OS page stays so until one of its blocks is taken ([`dirty`]); calloc need not clear what lies on clean ones.

use crate::CHUNK;
use crate::blocks::{class, record};
use crate::pages::chunk::Chunk;
use crate::pages::layout::{self, BITS_BYTES};
use crate::system::claims::parts;
use crate::system::os::Run;
use crate::system::sync::Ordering;

/// Runs of a slab's OS pages, at most: every other one.
pub const MOST_RUNS: usize = 8;
/// Words of a slab's free bits, at most.
const WORDS: usize = BITS_BYTES / 8;

const _: () = assert!(CHUNK / 4096 <= 16, "`Chunk::clean` has a bit for each OS page of a chunk");

/// OS pages of a slab on their way, and the blocks that were taken for it.
#[derive(Clone, Copy, Debug)]
pub struct Hole {
    /// The slab.
    pub slab: *mut Chunk,
    /// A bit for each OS page.
    pub pages: u16,
    /// A bit for each block. Words behind the last block of the slab mean nothing.
    pub blocks: [u64; WORDS],
}

impl Hole {
    /// Nothing on its way.
    pub const NONE: Hole = Hole { slab: core::ptr::null_mut(), pages: 0, blocks: [0; WORDS] };

    /// The words of the slab's bits that have a block.
    ///
    /// # Safety
    /// The slab must be one still.
    pub unsafe fn blocks(&self) -> &[u64] {
        // SAFETY: as the caller promises.
        let class = usize::from(unsafe { (*self.slab).class });
        &self.blocks[..class::capacity(class).div_ceil(64) as usize]
    }

    /// The OS pages, as runs; returns how many, at most [`MOST_RUNS`].
    pub fn runs(&self, page: usize, runs: &mut [Run]) -> usize {
        let (mut left, mut count) = (u32::from(self.pages), 0);
        while left != 0 {
            let first = left.trailing_zeros();
            let len = (left >> first).trailing_ones();
            let start = layout::chunk(self.slab).wrapping_add(first as usize * page);
            runs[count] = Run { start, len: len as usize * page };
            count += 1;
            left &= !(((1 << len) - 1) << first);
        }
        count
    }
}

/// The bits of the OS pages that bytes `offset..offset + size` of a chunk lie on.
#[inline]
pub(crate) fn pages(offset: usize, size: usize, page: usize) -> u16 {
    let (first, last) = (offset / page, (offset + size - 1) / page);
    ((2u32 << last) - (1 << first)) as u16
}

/// A block of a slab of `c` is taken: its OS pages are clean no more. Whether they all were.
///
/// # Safety
/// The slab must be the caller's heap's.
#[inline]
pub unsafe fn dirty(c: *mut Chunk, offset: usize, size: usize, page: usize) -> bool {
    // SAFETY: the slab is the caller's.
    let clean = unsafe { &(*c).clean };
    // Relaxed: the bits of this block's OS pages were set before the block came back, which is ordered by its bit.
    let bits = clean.load(Ordering::Relaxed);
    if bits == 0 {
        return false;
    }
    let touched = pages(offset, size, page);
    // Relaxed: other bits may be set meanwhile, which is why this is one step.
    clean.fetch_and(!touched, Ordering::Relaxed);
    bits & touched == touched
}

/// Tells the heap how many of the OS pages `was`, which were clean before blocks were taken, are not any more.
///
/// # Safety
/// As [`dirty`].
#[cold]
pub unsafe fn count_taken(c: *mut Chunk, was: u16) {
    // SAFETY: the slab and so its heap are the caller's. Relaxed: see `dirty`.
    unsafe {
        let now = (*c).clean.load(Ordering::Relaxed);
        (*record::owner(c)).flow.take_clean((was & !now).count_ones());
    }
}

/// Whether every OS page of the slab reads as zero.
///
/// # Safety
/// As [`dirty`].
pub unsafe fn is_clean(c: *const Chunk, page: usize) -> bool {
    // SAFETY: the slab is the caller's. Relaxed: see `dirty`.
    unsafe { (*c).clean.load(Ordering::Relaxed) == pages(0, CHUNK, page) }
}

/// Takes the blocks of all OS pages on which no block is used and that may hold memory, into `hole`. False if there are
/// none.
///
/// The blocks that are taken count as used, so the slab stays one until they are given back: they pin it while its OS
/// pages are on their way. An OS page behind the last block has none. It goes along with others, never alone: the chunk
/// could be freed, and be in use again, before the system does what it was asked for.
///
/// # Safety
/// The slab must be the caller's, as its owner's is: visited, or an orphan's under the lock of the registry.
#[cold]
pub unsafe fn take(c: *mut Chunk, page: usize, hole: &mut Hole) -> bool {
    // SAFETY: the slab is the caller's.
    unsafe {
        let class = usize::from((*c).class);
        let (size, capacity) = (class::SIZE[class] as usize, class::capacity(class) as usize);
        let carved = (*c).carved as usize;
        let bits = record::free_bits(c);
        // Whole words: the owner's next call waits meanwhile.
        let are_free = |from: usize, to: usize| parts(from, to.min(carved)).all(|(w, m)| bits.add(w).read() & m == m);
        // OS pages that read as zero already: purged ones, and those that were clean and are not carved yet.
        let mut clean = (*c).clean.load(Ordering::Relaxed);
        let unused = (carved * size).div_ceil(page);
        if (*c).zeroed {
            clean |= pages(0, CHUNK, page) & (u32::MAX << unused) as u16;
        }
        // The last one may be a guard.
        let end = CHUNK / page - usize::from(Chunk::is_apart(c));
        (hole.slab, hole.pages) = (c, 0);
        hole.blocks[..capacity.div_ceil(64)].fill(0);
        let mut pinned = false;
        for k in 0..end {
            // Blocks that lie there, in part at least.
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
        carve_rest(c, capacity, clean);
        for (word, mask) in hole.blocks.iter().enumerate().take(capacity.div_ceil(64)) {
            bits.add(word).write(bits.add(word).read() & !mask);
            (*c).used += mask.count_ones();
        }
        true
    }
}

/// Makes all blocks that were never carved free ones, so that the owner does not carve them meanwhile.
unsafe fn carve_rest(c: *mut Chunk, capacity: usize, clean: u16) {
    // SAFETY: the slab is the caller's.
    unsafe {
        let bits = record::free_bits(c);
        for (word, mask) in parts((*c).carved as usize, capacity) {
            bits.add(word).write(bits.add(word).read() | mask);
        }
        (*c).hint = (*c).hint.min(((*c).carved as usize / 64).min(255) as u8);
        (*c).carved = capacity as u32;
        (*c).clean.fetch_or(clean, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an OS page that is left out or taken too many where blocks lie across borders.
    #[test]
    fn pages_of_blocks() {
        assert_eq!(pages(0, 16, 4096), 1);
        assert_eq!(pages(4080, 32, 4096), 3);
        assert_eq!(pages(0, CHUNK, 4096), 0xFFFF);
        assert_eq!(pages(61440, 4096, 4096), 0x8000);
        assert_eq!(pages(CHUNK - 16, 16, CHUNK), 1);
    }

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
