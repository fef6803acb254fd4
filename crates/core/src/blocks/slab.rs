//! Slabs: a chunk cut into blocks of one class, with one bit for each free block, out of line.
//!
//! A block is in one of four places: live, in a heap's cache (both count as `used`), free (its bit is set), or
//! never carved (beyond `carved`). Carving goes from the front and stops at OS page borders, so that a slab of
//! which little is needed touches few pages. Blocks are handed out lowest address first.

use crate::CHUNK;
use crate::blocks::heap::{Block, Heap};
use crate::blocks::record::{free_bits, owner, remote_word, set_owner, slab_age};
use crate::blocks::{class, holes};
use crate::pages::age;
use crate::pages::arena::Arenas;
use crate::pages::chunk::{Chunk, Kind};
use crate::pages::layout;
use crate::system::remote::{DoubleFree, take_bits};
use crate::system::sync::{Ordering, peek};

const _: () = assert!(CHUNK / class::MIN_BLOCK / 64 <= 256, "`hint` holds a word index in a byte");

/// A list of blocks in the making: linked and tagged, lowest address first.
#[derive(Debug)]
pub struct Taken {
    /// First block, or null.
    pub first: *mut Block,
    /// Last block, whose link the caller sets.
    pub last: *mut Block,
    /// Blocks in the list.
    pub count: u32,
}

impl Taken {
    /// No block.
    pub const fn new() -> Self {
        Taken { first: core::ptr::null_mut(), last: core::ptr::null_mut(), count: 0 }
    }

    /// Appends the free block `b`.
    #[inline]
    unsafe fn push(&mut self, b: *mut Block) {
        // SAFETY: the block is free and the caller's.
        unsafe {
            (*b).tag = Block::TAG;
            if self.count == 0 {
                self.first = b;
            } else {
                (*self.last).link = b;
            }
        }
        self.last = b;
        self.count += 1;
    }
}

impl Default for Taken {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes the chunk of `c` a slab of `class` without any used block.
///
/// # Safety
/// The chunk must be the caller's, and its free bits and remote bits zero.
pub unsafe fn set_up(arenas: &Arenas, c: *mut Chunk, class: usize, owner: *mut Heap, zeroed: bool) {
    // SAFETY: the record is the caller's.
    unsafe {
        (*c).class = class as u8;
        (*c).zeroed = zeroed;
        (*c).listed = false;
        (*c).hint = 0;
        (*c).balance = 0;
        (*c).len = 0;
        Chunk::set_apart(c, false);
        (*c).carved = 0;
        (*c).used = 0;
        // Relaxed: the slab is nobody's else yet.
        (*c).clean.store(0, Ordering::Relaxed);
        (*c).tables = arenas.tables(c);
        set_owner(c, owner);
        (*c).kind.set(Kind::SLAB);
    }
}

/// Words of free bits that a slab of `class` uses.
#[inline]
fn words(class: usize) -> usize {
    class::capacity(class).div_ceil(64) as usize
}

/// Index of the block at `p` in its slab of `class`.
#[inline]
pub fn index(p: *const u8, class: usize) -> u32 {
    let offset = (p.addr() & (CHUNK - 1)) as u64;
    ((offset * u64::from(class::RECIPROCAL[class])) >> 32) as u32
}

/// Blocks of one slab that share a word of its bits.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Which word.
    pub word: usize,
    /// A bit for each block.
    pub mask: u64,
}

impl Batch {
    /// No block.
    #[inline]
    pub const fn new() -> Self {
        Batch { word: 0, mask: 0 }
    }

    /// Whether block `i` shares the word, if there is one yet.
    #[inline]
    pub fn fits(&self, i: u32) -> bool {
        self.mask == 0 || self.word == i as usize / 64
    }

    /// Adds block `i`.
    #[inline]
    pub fn add(&mut self, i: u32) {
        self.word = i as usize / 64;
        self.mask |= 1 << (i % 64);
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes recycled blocks until `out` has `want`, or there are no more. An error if the program has written one whose OS
/// page was purged since it was freed, or has freed it once more.
///
/// # Safety
/// The slab must be the caller's heap's.
pub unsafe fn take_recycled(c: *mut Chunk, want: u32, page: usize, out: &mut Taken) -> Result<(), Written> {
    // SAFETY: the slab is the caller's. Of OS pages on which it has free blocks only this heap's caller clears and nobody
    // sets a bit. So Relaxed, and where there is none now, there is none meanwhile.
    unsafe {
        if (*c).used == (*c).carved {
            return Ok(());
        }
        let clean = (*c).clean.load(Ordering::Relaxed);
        if clean != 0 {
            return take_from_clean(c, clean, want, page, out);
        }
        take_free(c, want, out, |_, _| ());
    }
    Ok(())
}

/// A free block that the program used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written(pub *mut Block);

/// [`take_recycled`], where OS pages of the slab read as zero: blocks there must do so as well. The tag that told so
/// before went with the OS page.
#[cold]
unsafe fn take_from_clean(c: *mut Chunk, clean: u16, want: u32, page: usize, out: &mut Taken) -> Result<(), Written> {
    let mut written = Ok(());
    // SAFETY: as `take_recycled`; each block is free.
    unsafe {
        let size = class::SIZE[usize::from((*c).class)] as usize;
        take_free(c, want, out, |offset, block| {
            holes::dirty(c, offset, size, page);
            if clean & holes::pages(offset, 1, page) != 0 {
                // A write comes first: after a read it would fault once more.
                (&raw mut (*block).link).write_volatile(core::ptr::null_mut());
                if (&raw const (*block).tag).read_volatile() != 0 {
                    written = Err(Written(block));
                }
            }
        });
        holes::count_taken(c, clean);
    }
    written
}

/// Takes free blocks until `out` has `want`, or there are no more; each one and its offset are shown to `f` before it is
/// tagged.
#[inline(always)]
unsafe fn take_free(c: *mut Chunk, want: u32, out: &mut Taken, mut f: impl FnMut(usize, *mut Block)) {
    // SAFETY: the slab is the caller's, so its bits are; addresses stay inside the chunk.
    unsafe {
        let class = usize::from((*c).class);
        let size = class::SIZE[class] as usize;
        let chunk = layout::chunk(c);
        let before = out.count;
        let bits = free_bits(c);
        let mut word = usize::from((*c).hint);
        while word < words(class) && out.count < want {
            let mut free = bits.add(word).read();
            while free != 0 && out.count < want {
                let i = word * 64 + free.trailing_zeros() as usize;
                free &= free - 1;
                let block = chunk.add(i * size).cast();
                f(i * size, block);
                out.push(block);
            }
            bits.add(word).write(free);
            if free == 0 {
                word += 1;
            }
        }
        (*c).hint = word.min(words(class) - 1) as u8;
        (*c).used += out.count - before;
    }
}

/// Carves fresh blocks, up to the end of an OS page (but at least one, if there is any), until `out` has `want`.
///
/// # Safety
/// As [`take_recycled`].
pub unsafe fn carve(c: *mut Chunk, want: u32, page: usize, out: &mut Taken) {
    // SAFETY: the slab is the caller's; addresses stay inside the chunk.
    unsafe {
        let class = usize::from((*c).class);
        let size = class::SIZE[class] as usize;
        let left = class::capacity(class) - (*c).carved;
        if left == 0 {
            return;
        }
        let start = (*c).carved as usize * size;
        // Up to the end of the OS page that the first of them ends in.
        let border = (start + size).next_multiple_of(page);
        let fit = ((border - start) / size) as u32;
        let n = fit.min(left).min(want - out.count);
        let mut p = layout::chunk(c).add(start);
        for _ in 0..n {
            out.push(p.cast());
            p = p.wrapping_add(size);
        }
        (*c).carved += n;
        (*c).used += n;
    }
}

/// Takes one block without touching it; true if it is known to read as zero.
///
/// # Safety
/// As [`take_recycled`].
pub unsafe fn take_one(c: *mut Chunk, page: usize) -> Option<(*mut u8, bool)> {
    // SAFETY: as `take_recycled`.
    unsafe {
        let class = usize::from((*c).class);
        let size = class::SIZE[class] as usize;
        let chunk = layout::chunk(c);
        if (*c).used < (*c).carved {
            let bits = free_bits(c);
            for word in usize::from((*c).hint)..words(class) {
                let free = bits.add(word).read();
                if free != 0 {
                    bits.add(word).write(free & (free - 1));
                    (*c).hint = word as u8;
                    (*c).used += 1;
                    let offset = (word * 64 + free.trailing_zeros() as usize) * size;
                    let clean = holes::dirty(c, offset, size, page);
                    if clean {
                        // One OS page, as most have no more.
                        (*owner(c)).flow.take_clean(1);
                    }
                    return Some((chunk.add(offset), clean));
                }
            }
        }
        if (*c).carved < class::capacity(class) {
            let p = chunk.add((*c).carved as usize * size);
            (*c).carved += 1;
            (*c).used += 1;
            return Some((p, (*c).zeroed));
        }
        None
    }
}

/// Makes all blocks of a new slab free ones but the last `withheld`, which stay used for ever. `clean`: all of it reads as
/// zero and holds no memory, which is noted of the OS pages that no withheld block reaches.
///
/// # Safety
/// As [`take_recycled`]; nothing of the slab may be carved.
pub unsafe fn carve_all(c: *mut Chunk, withheld: u32, clean: bool, page: usize) {
    // SAFETY: the slab is the caller's, so its bits are.
    unsafe {
        let class = usize::from((*c).class);
        let free = (class::capacity(class) - withheld) as usize;
        let bits = free_bits(c);
        for word in 0..free.div_ceil(64) {
            bits.add(word).write(u64::MAX >> (64 - (free - word * 64).min(64)));
        }
        (*c).carved = class::capacity(class);
        (*c).used = withheld;
        (*c).len = withheld + 1;
        if clean {
            let size = class::SIZE[class] as usize;
            let end = if withheld > 0 { free * size / page * page } else { crate::CHUNK };
            // Relaxed: the slab is nobody's else yet.
            (*c).clean.store(holes::pages(0, end, page), Ordering::Relaxed);
        }
    }
}

/// Takes a free block chosen by a random number, without touching it; true if it is known to read as zero.
///
/// # Safety
/// As [`take_recycled`].
pub unsafe fn take_random(c: *mut Chunk, random: u64, page: usize) -> Option<(*mut u8, bool)> {
    // SAFETY: as `take_recycled`.
    unsafe {
        let class = usize::from((*c).class);
        let size = class::SIZE[class] as usize;
        let (bits, words) = (free_bits(c), words(class));
        // The high half chooses a word, the low bits a place in it.
        let first = ((random >> 32) as usize) % words;
        for word in (first..words).chain(0..first) {
            let free = bits.add(word).read();
            if free != 0 {
                let turn = (random & 63) as u32;
                let bit = (free.rotate_right(turn).trailing_zeros() + turn) & 63;
                bits.add(word).write(free & !(1 << bit));
                (*c).used += 1;
                let offset = (word * 64 + bit as usize) * size;
                return Some((layout::chunk(c).add(offset), holes::dirty(c, offset, size, page)));
            }
        }
        None
    }
}

/// Whether no block can be taken.
///
/// # Safety
/// As [`take_recycled`].
#[inline]
pub unsafe fn is_full(c: *const Chunk) -> bool {
    // SAFETY: the slab is the caller's.
    unsafe { (*c).used == (*c).carved && (*c).carved == class::capacity(usize::from((*c).class)) }
}

/// Whether the slab can be released: no block is used but those that are withheld, and no other thread is in the middle of
/// a free.
///
/// # Safety
/// As [`take_recycled`].
#[inline]
pub unsafe fn is_released(c: *const Chunk) -> bool {
    // SAFETY: the slab is the caller's.
    unsafe { (*c).used == Chunk::withheld(c) && (*c).balance == 0 }
}

/// Marks the blocks of `batch` as free.
///
/// # Safety
/// As [`take_recycled`]; the blocks must be used and in no cache.
#[inline]
pub unsafe fn give(c: *mut Chunk, batch: Batch) -> Result<(), DoubleFree> {
    let Batch { word, mask } = batch;
    // SAFETY: the slab is the caller's; the word lies in its bits.
    unsafe {
        let bits = free_bits(c).add(word);
        let free = bits.read();
        if free & mask != 0 {
            return Err(DoubleFree);
        }
        bits.write(free | mask);
        (*c).used -= mask.count_ones();
        (*c).hint = (*c).hint.min(word as u8);
    }
    Ok(())
}

/// Takes the frees of other threads into the slab's own bits.
///
/// # Safety
/// As [`take_recycled`]; the slab must be on no pending stack.
pub unsafe fn collect(c: *mut Chunk) -> Result<(), DoubleFree> {
    // SAFETY: the slab is the caller's.
    unsafe {
        let class = usize::from((*c).class);
        let count = (*c).remote.take_count() as i16;
        let mut seen = 0;
        for word in 0..words(class) {
            let mask = take_bits(remote_word(c, word));
            if mask != 0 {
                seen += mask.count_ones() as i16;
                give(c, Batch { word, mask })?;
            }
        }
        (*c).balance += count - seen;
    }
    Ok(())
}

/// Blocks came back to the slab: its free memory waits since the epoch `now`. True if none waited before.
///
/// # Safety
/// As [`take_recycled`].
#[inline]
pub unsafe fn wait(c: *const Chunk, now: u8) -> bool {
    // SAFETY: the slab is the caller's.
    let age = unsafe { slab_age(c) };
    // Release pairs with the Acquire in `Allocator::look`: who sees the age sees that this is a slab.
    let first = age.load(Ordering::Relaxed) == age::NONE;
    age.store(now, Ordering::Release);
    first
}

/// Wipes the free bits before the slab is released.
///
/// # Safety
/// As [`take_recycled`], and [`is_released`].
pub unsafe fn wipe(c: *mut Chunk) {
    // SAFETY: the slab is the caller's.
    unsafe {
        let used_words = (*c).carved.div_ceil(64) as usize;
        free_bits(c).write_bytes(0, used_words);
    }
}

/// Whether the block at `p` is free in the slab (not in a cache). A hint unless the slab is the caller's.
///
/// # Safety
/// `c` must be the record of a slab, `p` a block of it.
pub unsafe fn is_free(c: *const Chunk, p: *const u8) -> bool {
    // SAFETY: the record and its bits are readable at all times.
    unsafe {
        let i = index(p, usize::from((*c).class));
        let (word, mask) = (i as usize / 64, 1u64 << (i % 64));
        let own = peek(free_bits(c).add(word), 0);
        let remote = remote_word(c, word).load(Ordering::Relaxed);
        (own | remote) & mask != 0 || i >= peek(&raw const (*c).carved, u32::MAX)
    }
}

/// Checks the equation of the slab. For tests.
///
/// # Safety
/// As [`take_recycled`].
pub unsafe fn is_valid(c: *const Chunk) -> bool {
    // SAFETY: the slab is the caller's.
    unsafe {
        let class = usize::from((*c).class);
        let bits = free_bits(c);
        let free: u32 = (0..words(class)).map(|w| bits.add(w).read().count_ones()).sum();
        let below_hint = (0..usize::from((*c).hint)).all(|w| bits.add(w).read() == 0);
        (*c).used + free == (*c).carved && (*c).carved <= class::capacity(class) && below_hint
    }
}
