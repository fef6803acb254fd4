//! Slabs: a chunk cut into blocks of one class, with one bit for each free block, out of line.
//!
//! A block is in one of four states: live, in a heap's cache (both count as `used`), free (its bit is set), or never
//! carved (beyond `carved`), see invariant 9. Carving goes from the front and stops at OS page borders, so that a slab
//! of which few blocks are needed touches few OS pages. Blocks are handed out lowest address first; those of a hardened
//! slab (`harden.rs`) in random order.

use crate::CHUNK;
use crate::blocks::class;
use crate::blocks::free_block::{Block, Free, Link};
use crate::blocks::slab_record::{FreeBits, OwnSlab, remote_word, words};
use crate::pages::owned::Owned;
use crate::system::remote::{DoubleFree, take_bits};
use crate::system::sync::Ordering;

const _: () = assert!(CHUNK / class::MIN_BLOCK / 64 <= 256, "`hint` holds a word index in a byte");

/// A list of blocks that is being built: linked and tagged, and within each slab in the order of addresses.
#[derive(Debug)]
pub struct Taken {
    /// The first block.
    pub first: Link,
    /// The last block, whose link the caller sets.
    pub last: Option<Free>,
    /// Number of blocks in the list.
    pub count: u32,
}

impl Taken {
    /// Makes an empty list.
    pub const fn new() -> Self {
        Taken { first: Link::NONE, last: None, count: 0 }
    }

    /// Appends `block`.
    #[inline(always)]
    pub(crate) fn push(&mut self, block: Free) {
        block.set_tag(Block::TAG);
        match self.last {
            None => self.first = block.as_link(),
            Some(last) => last.set_link(block.as_link()),
        }
        self.last = Some(block);
        self.count += 1;
    }
}

/// Blocks of one slab that share a word of its bits.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The index of the word.
    pub word: usize,
    /// A bit for each block.
    pub mask: u64,
}

impl Batch {
    /// Makes an empty batch.
    #[inline(always)]
    pub const fn new() -> Self {
        Batch { word: 0, mask: 0 }
    }

    /// Whether block `i` shares the word of the batch; true if the batch is empty.
    #[inline(always)]
    pub fn fits(&self, i: u32) -> bool {
        self.mask == 0 || self.word == i as usize / 64
    }

    /// Adds block `i`.
    #[inline(always)]
    pub fn add(&mut self, i: u32) {
        self.word = i as usize / 64;
        self.mask |= 1 << (i % 64);
    }
}

/// Blocks on their way back to a slab: their bits are set, and [`Returning::finish`] counts them.
#[derive(Debug)]
#[must_use = "without `finish` the blocks are free and counted as used"]
pub struct Returning {
    slab: OwnSlab,
    bits: FreeBits,
    hint: usize,
    count: u32,
}

impl Returning {
    /// Marks block `i` as free. It must be in no cache. An error if it is free already.
    #[inline(always)]
    pub fn add(&mut self, i: u32) -> Result<(), DoubleFree> {
        let word = i as usize / 64;
        let (bits, bit) = (self.bits.word(word), 1u64 << (i % 64));
        let free = bits.get();
        if free & bit != 0 {
            return Err(DoubleFree);
        }
        bits.set(free | bit);
        self.hint = self.hint.min(word);
        self.count += 1;
        Ok(())
    }

    /// Counts the blocks as free in the record of the slab. Returns their number.
    #[inline(always)]
    pub fn finish(self) -> u32 {
        self.slab.add_used(-(self.count as i32));
        self.slab.set_hint(self.hint);
        self.count
    }
}

/// The error of a free block that the program has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written(pub Free);

/// Returns a bit for each OS page on which bytes `offset..offset + size` of a chunk lie.
#[inline]
pub(crate) fn pages(offset: usize, size: usize, page: usize) -> u16 {
    let (first, last) = (offset / page, (offset + size - 1) / page);
    ((2u32 << last) - (1 << first)) as u16
}

impl OwnSlab {
    /// Returns the memory of its chunk. The caller must not use parts that have live blocks.
    pub(crate) fn bytes(self) -> Owned {
        // SAFETY: the chunk of a slab is committed (invariant 16), and `OwnSlab` proves that free blocks are the
        // holder's; the callers use parts without live blocks.
        unsafe { Owned::of(self.chunk().start(), CHUNK) }
    }

    /// Returns the block at `offset`, which the caller has taken out of the slab, or is about to take.
    #[inline(always)]
    fn block_at(self, offset: usize) -> Free {
        // SAFETY: `OwnSlab` proves that a free block of the slab is the holder's, as `Free` demands.
        unsafe { Free::of(self.chunk().start().wrapping_add(offset)) }
    }

    /// Takes recycled blocks until `out` has `want`, or there are no more. Returns the number of OS pages that were
    /// clean before and no longer are. An error if the program has written a block whose OS page was purged since it
    /// was freed, or has freed it once more.
    #[inline(always)]
    pub fn take_recycled(self, want: u32, page: usize, out: &mut Taken) -> Result<u32, Written> {
        if self.used() == self.carved() {
            return Ok(0);
        }
        // Relaxed: of OS pages with free blocks only the holder of the slab clears a bit, and no thread sets one. So if
        // no bit is set now, none will be while the blocks are taken.
        let clean = self.clean().load(Ordering::Relaxed);
        if clean != 0 {
            return self.take_from_clean(clean, want, page, out);
        }
        self.take_free(want, out, |_, _| ());
        Ok(0)
    }

    /// [`OwnSlab::take_recycled`] where OS pages of the slab read as zero: blocks on them must read as zero too. The
    /// tag, which shows a write in other blocks, went back with the OS page.
    #[cold]
    fn take_from_clean(self, clean: u16, want: u32, page: usize, out: &mut Taken) -> Result<u32, Written> {
        let mut written = Ok(0);
        let size = class::SIZE[self.class()] as usize;
        self.take_free(want, out, |offset, block| {
            self.dirty(offset, size, page);
            if clean & pages(offset, 1, page) != 0 && block.tag_behind_write() != 0 {
                written = Err(Written(block));
            }
        });
        written.map(|_| (clean & !self.clean().load(Ordering::Relaxed)).count_ones())
    }

    /// Takes free blocks until `out` has `want`, or there are no more. Calls `f` with the offset of each block, and the
    /// block, before it is tagged.
    #[inline(always)]
    fn take_free(self, want: u32, out: &mut Taken, mut f: impl FnMut(usize, Free)) {
        let size = class::SIZE[self.class()] as usize;
        let before = out.count;
        let bits = self.bits();
        let mut word = self.hint();
        while word < bits.len() && out.count < want {
            let mut free = bits[word].get();
            while free != 0 && out.count < want {
                let i = word * 64 + free.trailing_zeros() as usize;
                free &= free - 1;
                let block = self.block_at(i * size);
                f(i * size, block);
                out.push(block);
            }
            bits[word].set(free);
            if free == 0 {
                word += 1;
            }
        }
        self.set_hint(word.min(bits.len() - 1));
        self.add_used((out.count - before) as i32);
    }

    /// Carves fresh blocks until `out` has `want`, up to the end of an OS page, but at least one if there is any.
    pub fn carve(self, want: u32, page: usize, out: &mut Taken) {
        let class = self.class();
        let size = class::SIZE[class] as usize;
        let start = self.carved() as usize * size;
        // The end of the OS page in which the first of them ends.
        let border = (start + size).next_multiple_of(page);
        let fit = ((border - start) / size) as u32;
        let n = fit.min(class::capacity(class) - self.carved()).min(want - out.count);
        for i in 0..n as usize {
            out.push(self.block_at(start + i * size));
        }
        self.set_carved(self.carved() + n);
        self.add_used(n as i32);
    }

    /// Takes one block without touching it. Returns the block, whether it is known to read as zero, and an estimate of
    /// the number of OS pages that were clean before and no longer are: 1 if all OS pages of a recycled block were,
    /// else 0.
    pub fn take_one(self, page: usize) -> Option<(Free, bool, u32)> {
        let size = class::SIZE[self.class()] as usize;
        if self.used() < self.carved() {
            let bits = self.bits();
            for (word, bits) in bits.iter().enumerate().skip(self.hint()) {
                let free = bits.get();
                if free != 0 {
                    bits.set(free & (free - 1));
                    self.set_hint(word);
                    self.add_used(1);
                    let offset = (word * 64 + free.trailing_zeros() as usize) * size;
                    let clean = self.dirty(offset, size, page);
                    return Some((self.block_at(offset), clean, clean.into()));
                }
            }
        }
        if self.carved() < class::capacity(self.class()) {
            let block = self.block_at(self.carved() as usize * size);
            self.set_carved(self.carved() + 1);
            self.add_used(1);
            return Some((block, self.is_zeroed(), 0));
        }
        None
    }

    /// Makes all blocks of a new slab free, except the last `withheld`, which stay used permanently. If `clean`, the
    /// whole slab reads as zero and holds no memory: marks the OS pages that no withheld block reaches as clean.
    pub(crate) fn carve_all(self, withheld: u32, clean: bool, page: usize) {
        let class = self.class();
        let free = (class::capacity(class) - withheld) as usize;
        for (word, bits) in self.bits().iter().enumerate().take(free.div_ceil(64)) {
            bits.set(u64::MAX >> (64 - (free - word * 64).min(64)));
        }
        self.set_carved(class::capacity(class));
        self.add_used(withheld as i32);
        self.set_hardened(Some(withheld));
        if clean {
            let size = class::SIZE[class] as usize;
            let end = if withheld > 0 { free * size / page * page } else { CHUNK };
            // Relaxed: no other thread uses the slab yet.
            self.clean().store(pages(0, end, page), Ordering::Relaxed);
        }
    }

    /// Takes a free block chosen by a random number, without touching it; true if it is known to read as zero.
    pub(crate) fn take_random(self, random: u64, page: usize) -> Option<(Free, bool)> {
        let size = class::SIZE[self.class()] as usize;
        let bits = self.bits();
        // The high half chooses a word, the low bits a place in it.
        let first = ((random >> 32) as usize) % bits.len();
        for word in (first..bits.len()).chain(0..first) {
            let free = bits[word].get();
            if free != 0 {
                let turn = (random & 63) as u32;
                let bit = (free.rotate_right(turn).trailing_zeros() + turn) & 63;
                bits[word].set(free & !(1 << bit));
                self.add_used(1);
                let offset = (word * 64 + bit as usize) * size;
                return Some((self.block_at(offset), self.dirty(offset, size, page)));
            }
        }
        None
    }

    /// Marks the OS pages of a block that is taken as no longer clean. Returns whether all of them were clean.
    #[inline]
    fn dirty(self, offset: usize, size: usize, page: usize) -> bool {
        // Relaxed: the bits of this block's OS pages were set before the block came back; its free bit orders that.
        let bits = self.clean().load(Ordering::Relaxed);
        if bits == 0 {
            return false;
        }
        let touched = pages(offset, size, page);
        // Relaxed, as above. Atomic, as another thread may set other bits meanwhile.
        self.clean().fetch_and(!touched, Ordering::Relaxed);
        bits & touched == touched
    }

    /// Whether every OS page of the slab reads as zero.
    pub(crate) fn is_clean(self, page: usize) -> bool {
        // Relaxed: see `dirty`.
        self.clean().load(Ordering::Relaxed) == pages(0, CHUNK, page)
    }

    /// Whether the slab has no free block, and all are carved.
    #[inline(always)]
    pub fn is_full(self) -> bool {
        self.used() == self.carved() && self.carved() == class::capacity(self.class())
    }

    /// Whether the slab can be released (invariant 10): the only used blocks are those that are withheld, and no other
    /// thread is in the middle of a free.
    #[inline(always)]
    pub fn is_released(self) -> bool {
        self.used() == self.withheld() && self.balance() == 0
    }

    /// Begins to give blocks back.
    #[inline(always)]
    pub fn give(self) -> Returning {
        Returning { slab: self, bits: self.free_bits(), hint: self.hint(), count: 0 }
    }

    /// Marks the blocks `mask` of `word` as free. They must be in no cache. An error if one of them is free already.
    fn give_word(self, word: usize, mask: u64) -> Result<(), DoubleFree> {
        let bits = self.free_bits().word(word);
        let free = bits.get();
        if free & mask != 0 {
            return Err(DoubleFree);
        }
        bits.set(free | mask);
        self.add_used(-(mask.count_ones() as i32));
        self.set_hint(self.hint().min(word));
        Ok(())
    }

    /// Moves the remote frees into the slab's own bits. The slab must be on no pending stack.
    pub fn collect(self) -> Result<(), DoubleFree> {
        let class = self.class();
        let count = self.chunk().remote().take_count() as i16;
        let mut seen = 0;
        for word in 0..words(class) {
            let mask = take_bits(remote_word(self.chunk(), class, word));
            if mask != 0 {
                seen += mask.count_ones() as i16;
                self.give_word(word, mask)?;
            }
        }
        self.add_balance(count - seen);
        Ok(())
    }

    /// Clears the free bits before the slab is released.
    pub(crate) fn wipe(self) {
        let used_words = self.carved().div_ceil(64) as usize;
        self.bits()[..used_words].iter().for_each(|bits| bits.set(0));
    }

    /// Whether invariant 9 holds, and `hint`. For tests.
    pub(crate) fn is_valid(self) -> bool {
        let bits = self.bits();
        let free: u32 = bits.iter().map(|bits| bits.get().count_ones()).sum();
        let below_hint = bits.iter().take(self.hint()).all(|bits| bits.get() == 0);
        self.used() + free == self.carved() && self.carved() <= class::capacity(self.class()) && below_hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an OS page too few or too many where blocks lie across borders.
    #[test]
    fn pages_of_blocks() {
        assert_eq!(pages(0, 16, 4096), 1);
        assert_eq!(pages(4080, 32, 4096), 3);
        assert_eq!(pages(0, CHUNK, 4096), 0xFFFF);
        assert_eq!(pages(61440, 4096, 4096), 0x8000);
        assert_eq!(pages(CHUNK - 16, 16, CHUNK), 1);
    }
}
