//! The blocks of reentrant calls: slabs and large blocks in the reentrant reserve (`pages/reentrant_reserve.rs`), taken and freed without a lock.
//!
//! - A slab here is an ordinary slab to all who free its blocks: the page map knows its class, the record says that no heap
//!   owns it (`owner`). It was carved whole; a block is free exactly when its remote bit is set. So a free is what every free
//!   to another thread's slab is, and malloc takes the bit back. The slab's count starts so high that no free finds it 0, so
//!   it is on no pending stack.
//! - Slabs of a class are in a list that is only pushed to; they stay slabs. The purger gives the memory of one back whose
//!   blocks are all free: it takes them all meanwhile.
//! - A large block here has the kind [`Kind::REENTRANT`](crate::pages::chunk::Kind::REENTRANT). Its free gives the memory back and
//!   then the chunks, so what is claimed reads as zero unless it is a slab.

use crate::blocks::class::{self, CLASSES};
use crate::blocks::heap::Name;
use crate::blocks::slab_record::{OwnSlab, clean_pages, remote_word, words};
use crate::pages::arena::Arenas;
use crate::pages::chunk::{Chunk, Record};
use crate::pages::layout::BITS_BYTES;
use crate::pages::owned::Owned;
use crate::pages::page_map::PageMap;
use crate::system::remote::DoubleFree;
use crate::system::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::{CHUNK, Heap};

/// The owner of the reentrant reserve's slabs: an address that is no thread's heap.
pub(crate) fn owner() -> *mut Heap {
    OWNER.heap()
}

static OWNER: Name = Name::new();

/// What lies in the reentrant reserve.
#[derive(Debug)]
pub struct ReentrantBlocks {
    /// The newest slab of each class.
    slabs: [AtomicPtr<Chunk>; CLASSES],
    /// Slabs, large blocks and their usable bytes.
    pub(crate) slab_count: AtomicUsize,
    pub(crate) large_blocks: AtomicUsize,
    pub(crate) large_bytes: AtomicUsize,
}

impl ReentrantBlocks {
    /// Nothing.
    pub const fn new() -> Self {
        ReentrantBlocks {
            slabs: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
            slab_count: AtomicUsize::new(0),
            large_blocks: AtomicUsize::new(0),
            large_bytes: AtomicUsize::new(0),
        }
    }

    /// A block of a slab of `class` that has one free. Linear in the slabs of the class, mostly one.
    pub(crate) fn take_block(&self, class: usize) -> Option<*mut u8> {
        self.slabs_of(class).find_map(|c| take_from(c, class))
    }

    /// Makes the caller's chunk of `c`, from
    /// [`ReentrantReserve::take`](crate::pages::reentrant_reserve::ReentrantReserve::take), a slab of `class`. Returns its
    /// first block.
    pub(crate) fn make_slab(&self, arenas: &Arenas, map: &PageMap, c: Record, class: usize) -> *mut u8 {
        let capacity = class::capacity(class);
        // Its bits are zero, and it is the caller's until it is in the list.
        let slab = OwnSlab::set_up(arenas, c, class, owner().cast(), false);
        slab.set_carved(capacity);
        slab.add_used(capacity as i32);
        for word in 0..words(class) {
            let blocks = (capacity as usize - word * 64).min(64);
            // The first block is the caller's.
            let mask = (u64::MAX >> (64 - blocks)) & !u64::from(word == 0);
            // Relaxed: the exchange below shows it.
            remote_word(c, class, word).store(mask, Ordering::Relaxed);
        }
        c.remote().set_apart(capacity - 1);
        map.set(c, class);
        self.slab_count.fetch_add(1, Ordering::Relaxed);
        let head = &self.slabs[class];
        let mut next = head.load(Ordering::Relaxed);
        loop {
            // SAFETY: as in `slabs_of`.
            c.set_next(unsafe { Record::from_ptr(next) });
            // Release pairs with the Acquire in `slabs_of`: the record is set up.
            match head.compare_exchange_weak(next, c.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => next = now,
            }
        }
        c.start()
    }

    /// Gives the memory of the slab of `c` back to the system if all its blocks are free, and it was not given back since one
    /// was taken; returns the bytes. Who allocates meanwhile finds no block there. An error if the program freed one of
    /// the free blocks once more meanwhile. `purge` does it: false if the system refuses. `masks` is room for the bits of
    /// the blocks, which is not on the stack, as that may be short.
    pub(crate) fn purge_slab(
        c: Record,
        masks: &mut [u64; BITS_BYTES / 8],
        purge: impl FnOnce(Owned) -> bool,
    ) -> Result<usize, DoubleFree> {
        let class = c.class();
        let (capacity, words, clean) = (class::capacity(class), words(class), clean_pages(c));
        // Relaxed, here and in `take_from`: the bits order it.
        if c.remote().apart() != capacity || clean.load(Ordering::Relaxed) != 0 {
            return Ok(0);
        }
        let mut taken = 0;
        for (word, mask) in masks[..words].iter_mut().enumerate() {
            *mask = c.remote().take_all(remote_word(c, class, word));
            taken += mask.count_ones();
        }
        // SAFETY: all blocks of the slab are the caller's now, so no thread uses its memory.
        let purged = taken == capacity && purge(unsafe { Owned::of(c.start(), CHUNK) });
        clean.store(u16::from(purged), Ordering::Relaxed);
        for (word, &mask) in masks[..words].iter().enumerate().filter(|(_, mask)| **mask != 0) {
            c.remote().free(remote_word(c, class, word), mask)?;
        }
        Ok(if purged { CHUNK } else { 0 })
    }

    /// The slabs of `class`, newest first.
    pub(crate) fn slabs_of(&self, class: usize) -> impl Iterator<Item = Record> {
        // SAFETY: what is stored there is a record of a slab of the reentrant reserve; such slabs stay slabs.
        let first = unsafe { Record::from_ptr(self.slabs[class].load(Ordering::Acquire)) };
        // The link of a slab in the list never changes.
        core::iter::successors(first, |c| c.next())
    }
}

/// A free block of the slab of `c`, which lies in the reentrant reserve.
fn take_from(c: Record, class: usize) -> Option<*mut u8> {
    if c.remote().apart() == 0 {
        return None;
    }
    (0..words(class)).find_map(|word| {
        let bit = c.remote().take(remote_word(c, class, word))?;
        let clean = clean_pages(c);
        if clean.load(Ordering::Relaxed) != 0 {
            clean.store(0, Ordering::Relaxed);
        }
        Some(c.start().wrapping_add((word * 64 + bit as usize) * class::SIZE[class] as usize))
    })
}
