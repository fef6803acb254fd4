//! The structures that reentrant calls share with other calls: chunks of the reentrant reserve, its slabs, and blocks
//! whose free is deferred. See `pages/reentrant_reserve.rs`, `blocks/reentrant_blocks.rs` and `blocks/reentrant.rs` of
//! the core; change both together.

use crate::system::claims::Claims;
use crate::system::remote::{DoubleFree, Node, Pending, Remote};
use crate::system::sync::{AtomicU32, AtomicU64, Ordering};
use loom::cell::UnsafeCell;

/// Number of bits of a [`Row`]: the last two of a word and the first two of the next.
pub const BITS: usize = 4;
/// Number of bits in front of them.
const BEFORE: usize = 62;

/// Some chunks of the reentrant reserve, and their contents.
#[derive(Debug)]
pub struct Row {
    claims: Claims<2>,
    chunks: [UnsafeCell<u32>; BITS],
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Row {}
// SAFETY: as above.
unsafe impl Send for Row {}

impl Default for Row {
    fn default() -> Self {
        let claims = Claims::new();
        assert_eq!(claims.claim(BEFORE, 1, 0, BEFORE), Some(0));
        Row { claims, chunks: std::array::from_fn(|_| UnsafeCell::new(0)) }
    }
}

impl Row {
    /// Takes `n` chunks, which no other thread uses from now on: `ReentrantReserve::take`.
    pub fn take(&self, n: usize) -> Option<usize> {
        let first = self.claims.claim(n, 1, 0, BEFORE + BITS)? - BEFORE;
        self.touch(first, n);
        Some(first)
    }

    /// Gives `n` chunks back: `ReentrantReserve::give`.
    pub fn give(&self, first: usize, n: usize) {
        self.touch(first, n);
        self.claims.release(first + BEFORE, n);
    }

    fn touch(&self, first: usize, n: usize) {
        for chunk in &self.chunks[first..first + n] {
            // SAFETY: loom checks the access.
            chunk.with_mut(|c| unsafe { *c += 1 });
        }
    }
}

/// Number of blocks of a slab of the reentrant reserve in these models. Their bits are in one word.
pub const BLOCKS: usize = 2;

/// A slab of the reentrant reserve.
#[derive(Debug)]
pub struct Slab {
    remote: Remote<Slab>,
    bits: AtomicU64,
    blocks: [UnsafeCell<u32>; BLOCKS],
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Slab {}
// SAFETY: as above.
unsafe impl Send for Slab {}

impl Slab {
    /// A slab in which the blocks of the mask `free` are free.
    pub fn new(free: u64) -> Self {
        let remote = Remote::new();
        remote.set_apart(free.count_ones());
        Slab { remote, bits: AtomicU64::new(free), blocks: std::array::from_fn(|_| UnsafeCell::new(0)) }
    }

    /// Takes a block: `ReentrantBlocks::take_block`.
    pub fn malloc(&self) -> Option<usize> {
        let block = self.remote.take(&self.bits)? as usize;
        self.touch(block);
        Some(block)
    }

    /// Frees a block, as any thread may: `Blocks::give_remote`.
    pub fn free(&self, block: usize) -> Result<(), DoubleFree> {
        self.touch(block);
        assert!(!self.remote.free(&self.bits, 1 << block)?, "a slab of the reentrant reserve is on no stack");
        Ok(())
    }

    /// Number of free blocks by the count, and by the bits.
    pub fn free_blocks(&self) -> (u32, u32) {
        (self.remote.apart(), self.bits.load(Ordering::Relaxed).count_ones())
    }

    fn touch(&self, block: usize) {
        // SAFETY: loom checks the access.
        self.blocks[block].with_mut(|b| unsafe { *b += 1 });
    }
}

/// Kinds of a [`Large`].
const LARGE: u32 = 4;
const DEFERRED: u32 = 9;
const FREE: u32 = 1;

/// The record of a large block.
#[derive(Debug)]
pub struct Large {
    kind: AtomicU32,
    remote: Remote<Large>,
    block: UnsafeCell<u32>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Large {}
// SAFETY: as above.
unsafe impl Send for Large {}

impl Default for Large {
    fn default() -> Self {
        Large { kind: AtomicU32::new(LARGE), remote: Remote::new(), block: UnsafeCell::new(0) }
    }
}

impl Node for Large {
    unsafe fn remote<'a>(node: *const Large) -> &'a Remote<Large> {
        // SAFETY: as the caller promises.
        unsafe { &(*node).remote }
    }
}

impl Large {
    /// Changes the kind in one step: `Record::change_kind`.
    fn change(&self, from: u32, to: u32) -> bool {
        self.kind.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether its chunks were freed.
    pub fn is_free(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == FREE
    }
}

/// The stack of blocks whose free is deferred.
#[derive(Debug, Default)]
pub struct Deferred {
    stack: Pending<Large>,
}

impl Deferred {
    /// Defers the free of a block, `Blocks::defer`: false if the block is free already.
    pub fn defer(&self, large: &Large) -> bool {
        // The last use of the block by the handler.
        // SAFETY: loom checks the access.
        large.block.with_mut(|b| unsafe { *b += 1 });
        self.defer_untouched(large)
    }

    /// [`Deferred::defer`] by a handler that does not have the block: a double free.
    pub fn defer_untouched(&self, large: &Large) -> bool {
        if !large.change(LARGE, DEFERRED) {
            return false;
        }
        // SAFETY: the thread that changed the kind pushes the block, which lives as long as the model.
        unsafe { self.stack.push(core::ptr::from_ref(large).cast_mut()) };
        true
    }

    /// Frees the blocks on the stack: `Blocks::drain`.
    pub fn drain(&self) {
        // SAFETY: no other thread has the blocks of a stack that this thread took.
        unsafe {
            self.stack.take(|large| {
                let large = &*large;
                assert!(large.change(DEFERRED, LARGE), "a block on the stack is deferred");
                // The core frees the chunks under the lock of the ranges.
                large.block.with_mut(|b| *b += 1);
                assert!(large.change(LARGE, FREE), "a block is freed once");
            });
        }
    }
}
