//! The blocks of reentrant calls: slabs and large blocks in the annex (`pages/annex.rs`), taken and freed without a lock.
//!
//! - A slab here is an ordinary slab to all who free its blocks: the page map knows its class, the record says that no heap
//!   owns it (`owner`). It was carved whole; a block is free exactly when its remote bit is set. So a free is what every free
//!   to another thread's slab is, and malloc takes the bit back. The slab's count starts so high that no free finds it 0, so
//!   it is on no pending stack.
//! - Slabs of a class are in a list that is only pushed to; they stay slabs. The purger gives the memory of one back whose
//!   blocks are all free: it takes them all meanwhile.
//! - A large block here has the kind [`Kind::NESTED`](crate::pages::chunk::Kind::NESTED). Its free gives the memory back and
//!   then the chunks, so what is claimed reads as zero unless it is a slab.

use crate::CHUNK;
use crate::Heap;
use crate::blocks::class::{self, CLASSES};
use crate::blocks::{record, slab};
use crate::pages::arena::Arenas;
use crate::pages::chunk::Chunk;
use crate::pages::layout;
use crate::pages::page_map::PageMap;
use crate::system::os::Run;
use crate::system::remote::DoubleFree;
use crate::system::sync::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// What its address stands for.
static OWNER: AtomicU8 = AtomicU8::new(0);

/// The owner of the annex's slabs: an address that is no heap's, and that is never looked behind.
pub(crate) fn owner() -> *mut Heap {
    (&raw const OWNER).cast_mut().cast()
}

/// What lies in the annex.
#[derive(Debug)]
pub struct Annexed {
    /// The newest slab of each class, and the one that had a free block last.
    slabs: [AtomicPtr<Chunk>; CLASSES],
    recent: [AtomicPtr<Chunk>; CLASSES],
    /// Slabs, large blocks and their usable bytes.
    pub(crate) slab_count: AtomicUsize,
    pub(crate) large_blocks: AtomicUsize,
    pub(crate) large_bytes: AtomicUsize,
}

impl Annexed {
    /// Nothing.
    pub const fn new() -> Self {
        Annexed {
            slabs: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
            recent: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
            slab_count: AtomicUsize::new(0),
            large_blocks: AtomicUsize::new(0),
            large_bytes: AtomicUsize::new(0),
        }
    }

    /// A block of a slab of `class` that has one free. Linear in the slabs of the class, mostly one.
    pub(crate) fn take_block(&self, class: usize) -> Option<*mut u8> {
        let recent = self.recent[class].load(Ordering::Acquire);
        // SAFETY: slabs of the annex stay slabs.
        let found = unsafe { take_from(recent, class) };
        found.or_else(|| {
            self.slabs_of(class).find_map(|c| {
                // SAFETY: as above.
                let p = unsafe { take_from(c, class) }?;
                // Release, here and in `make_slab`, pairs with the Acquire of whoever loads the pointer: the record is set up.
                self.recent[class].store(c, Ordering::Release);
                Some(p)
            })
        })
    }

    /// Makes the chunk of `c` a slab of `class` and returns its first block.
    ///
    /// # Safety
    /// The chunk must be the caller's, from [`Annex::take`].
    pub(crate) unsafe fn make_slab(&self, arenas: &Arenas, map: &PageMap, c: *mut Chunk, class: usize) -> *mut u8 {
        let capacity = class::capacity(class);
        // SAFETY: the chunk and so its record and bits are the caller's until it is in the list; remote bits are zero.
        unsafe {
            slab::set_up(arenas, c, class, owner(), false);
            (*c).carved = capacity;
            (*c).used = capacity;
            for word in 0..capacity.div_ceil(64) as usize {
                let blocks = (capacity as usize - word * 64).min(64);
                // The first block is the caller's.
                let mask = (u64::MAX >> (64 - blocks)) & !u64::from(word == 0);
                // Relaxed: the exchange below shows it.
                record::remote_word(c, word).store(mask, Ordering::Relaxed);
            }
            (*c).remote.set_apart(capacity - 1);
            map.set(layout::chunk(c), class);
            self.slab_count.fetch_add(1, Ordering::Relaxed);
            let head = &self.slabs[class];
            let mut next = head.load(Ordering::Relaxed);
            loop {
                (*c).next = next;
                // Release: see `take_block`.
                match head.compare_exchange_weak(next, c, Ordering::Release, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(now) => next = now,
                }
            }
        }
        self.recent[class].store(c, Ordering::Release);
        layout::chunk(c)
    }

    /// Gives the memory of the slab `c` back to the system if all its blocks are free, and it was not given back since one
    /// was taken; returns the bytes. Whoever allocates meanwhile finds no block there. An error if the program freed one of
    /// the free blocks once more meanwhile. `purge` does it: false if the system refuses. `masks` is room for the bits of
    /// the blocks, which is not on the stack, as that may be short.
    pub(crate) fn purge_slab(
        &self,
        c: *mut Chunk,
        masks: &mut [u64; layout::BITS_BYTES / 8],
        purge: impl FnOnce(Run) -> bool,
    ) -> Result<usize, DoubleFree> {
        // SAFETY: slabs of the annex stay slabs; those of its blocks that are taken here are ours.
        unsafe {
            let capacity = class::capacity(usize::from((*c).class));
            // Relaxed, here and in `take_from`: the bits order it.
            if (*c).remote.apart() != capacity || (*c).clean.load(Ordering::Relaxed) != 0 {
                return Ok(0);
            }
            let words = capacity.div_ceil(64) as usize;
            let mut taken = 0;
            for (word, mask) in masks[..words].iter_mut().enumerate() {
                *mask = (*c).remote.take_all(record::remote_word(c, word));
                taken += mask.count_ones();
            }
            let purged = taken == capacity && purge(Run { start: layout::chunk(c), len: CHUNK });
            (*c).clean.store(u16::from(purged), Ordering::Relaxed);
            for (word, &mask) in masks[..words].iter().enumerate().filter(|(_, mask)| **mask != 0) {
                (*c).remote.free(record::remote_word(c, word), mask)?;
            }
            Ok(if purged { CHUNK } else { 0 })
        }
    }

    /// The slabs of `class`, newest first.
    pub(crate) fn slabs_of(&self, class: usize) -> impl Iterator<Item = *mut Chunk> {
        let mut c = self.slabs[class].load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let here = c;
            if here.is_null() {
                return None;
            }
            // SAFETY: a slab in the list has a record, whose link never changes.
            c = unsafe { (*here).next };
            Some(here)
        })
    }
}

impl Default for Annexed {
    fn default() -> Self {
        Self::new()
    }
}

/// A free block of the slab `c`, or `None`. Null has none.
///
/// # Safety
/// `c` must be null or a slab of the annex, of `class`.
unsafe fn take_from(c: *mut Chunk, class: usize) -> Option<*mut u8> {
    // SAFETY: a slab of the annex stays one; addresses stay inside the chunk.
    unsafe {
        if c.is_null() || (*c).remote.apart() == 0 {
            return None;
        }
        (0..class::capacity(class).div_ceil(64) as usize).find_map(|word| {
            let bit = (*c).remote.take(record::remote_word(c, word))?;
            if (*c).clean.load(Ordering::Relaxed) != 0 {
                (*c).clean.store(0, Ordering::Relaxed);
            }
            Some(layout::chunk(c).add((word * 64 + bit as usize) * class::SIZE[class] as usize))
        })
    }
}
