//! The blocks of reentrant calls: slabs and large blocks in the reentrant reserve (`pages/reentrant_reserve.rs`), taken
//! and freed without a lock.
//!
//! - A slab here is an ordinary slab for all threads that free its blocks: the page map has its class, and its owner is
//!   a name (`owner`). All of it is carved at once; a block is free exactly when its remote bit is set (invariant 27).
//!   So each free is a remote free, and malloc clears the bit. The remote count starts so high that no free finds it 0,
//!   so the slab is on no pending stack.
//! - The slabs of a class are in a list to which slabs are only added; they stay slabs. The purger purges a slab whose
//!   blocks are all free, and takes all of them meanwhile.
//! - A large block here has the kind [`Kind::REENTRANT`](crate::pages::chunk::Kind::REENTRANT). Its free purges the
//!   memory before it gives up the chunks, so a chunk that is claimed reads as zero, unless it is a slab.

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

/// Returns the owner of the reentrant reserve's slabs: a [`Name`], which is no thread's heap.
pub(crate) fn owner() -> *mut Heap {
    OWNER.heap()
}

static OWNER: Name = Name::new();

/// The blocks of the reentrant reserve.
#[derive(Debug)]
pub struct ReentrantBlocks {
    /// The newest slab of each class.
    slabs: [AtomicPtr<Chunk>; CLASSES],
    /// Number of slabs, number of large blocks, and the usable bytes of the latter.
    pub(crate) slab_count: AtomicUsize,
    pub(crate) large_blocks: AtomicUsize,
    pub(crate) large_bytes: AtomicUsize,
}

impl ReentrantBlocks {
    /// Makes an empty set.
    pub const fn new() -> Self {
        ReentrantBlocks {
            slabs: [const { AtomicPtr::new(core::ptr::null_mut()) }; CLASSES],
            slab_count: AtomicUsize::new(0),
            large_blocks: AtomicUsize::new(0),
            large_bytes: AtomicUsize::new(0),
        }
    }

    /// Takes a block of a slab of `class`, or returns `None` if no slab has a free one. Linear in the slabs of the
    /// class, of which there is mostly one.
    pub(crate) fn take_block(&self, class: usize) -> Option<*mut u8> {
        self.slabs_of(class).find_map(|c| take_from(c, class))
    }

    /// Makes the caller's chunk of `c`, from
    /// [`ReentrantReserve::take`](crate::pages::reentrant_reserve::ReentrantReserve::take), a slab of `class`. Returns
    /// its first block.
    pub(crate) fn make_slab(&self, arenas: &Arenas, map: &PageMap, c: Record, class: usize) -> *mut u8 {
        let capacity = class::capacity(class);
        // Its bits are zero, and no other thread finds it before it is in the list.
        let slab = OwnSlab::set_up(arenas, c, class, owner().cast(), false);
        slab.set_carved(capacity);
        slab.add_used(capacity as i32);
        for word in 0..words(class) {
            let blocks = (capacity as usize - word * 64).min(64);
            // The first block is not free: the caller gets it.
            let mask = (u64::MAX >> (64 - blocks)) & !u64::from(word == 0);
            // Relaxed: the exchange below publishes it.
            remote_word(c, class, word).store(mask, Ordering::Relaxed);
        }
        c.remote().set_apart(capacity - 1);
        map.set(c, class);
        self.slab_count.fetch_add(1, Ordering::Relaxed);
        let head = &self.slabs[class];
        let mut next = head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the head of a list is null or the record of a slab of the reserve, which stays a slab.
            c.set_next(unsafe { Record::from_ptr(next) });
            // Release pairs with the Acquire in `slabs_of`: a thread that finds the slab sees its record and bits.
            match head.compare_exchange_weak(next, c.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => next = now,
            }
        }
        c.start()
    }

    /// Purges the slab of `c` by calling `purge`, if all its blocks are free and it is not clean already. Returns the
    /// number of bytes, which is 0 if `purge` returns false because the system refuses. Threads that allocate meanwhile
    /// find no free block there. An error if the program frees one of the free blocks once more meanwhile. The caller
    /// provides `masks`, room for the bits of the blocks, as its stack may be small.
    pub(crate) fn purge_slab(
        c: Record,
        masks: &mut [u64; BITS_BYTES / 8],
        purge: impl FnOnce(Owned) -> bool,
    ) -> Result<usize, DoubleFree> {
        let class = c.class();
        let (capacity, words, clean) = (class::capacity(class), words(class), clean_pages(c));
        // Relaxed, here and in `take_from`: the remote bits order the clean mark.
        if c.remote().apart() != capacity || clean.load(Ordering::Relaxed) != 0 {
            return Ok(0);
        }
        let mut taken = 0;
        for (word, mask) in masks[..words].iter_mut().enumerate() {
            *mask = c.remote().take_all(remote_word(c, class, word));
            taken += mask.count_ones();
        }
        // SAFETY: `taken == capacity` means that this call has all blocks of the slab (invariant 27).
        let purged = taken == capacity && purge(unsafe { Owned::of(c.start(), CHUNK) });
        clean.store(u16::from(purged), Ordering::Relaxed);
        for (word, &mask) in masks[..words].iter().enumerate().filter(|(_, mask)| **mask != 0) {
            c.remote().free(remote_word(c, class, word), mask)?;
        }
        Ok(if purged { CHUNK } else { 0 })
    }

    /// Returns the slabs of `class`, newest first.
    pub(crate) fn slabs_of(&self, class: usize) -> impl Iterator<Item = Record> {
        // Acquire pairs with the Release in `make_slab`.
        // SAFETY: the head of a list is null or the record of a slab of the reserve, which stays a slab.
        let first = unsafe { Record::from_ptr(self.slabs[class].load(Ordering::Acquire)) };
        // The link of a slab in the list never changes.
        core::iter::successors(first, |c| c.next())
    }
}

/// Takes a free block of the slab of `c`, which lies in the reentrant reserve.
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
