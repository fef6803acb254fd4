//! Remote frees: how a thread frees blocks of a slab that another thread owns, without a lock.
//!
//! A slab has one bit for each block that another thread freed and the owner has not collected, and a [`Remote`] in its
//! record. A heap has a [`Pending`] stack of the slabs that have such bits.
//!
//! 1. The freeing thread sets the bit, then adds 1 to `count`. If `count` was 0, it pushes the slab on the stack of the
//!    owner, and touches neither slab nor record afterwards.
//! 2. The owner takes the whole stack; for each slab it sets `count` to 0, then takes the bits.
//!
//! Invariant 20: a slab is on a stack (or about to be pushed) exactly while its `count` is not 0, and never twice. The
//! owner may see a bit before its count: `balance = counts taken - bits taken` is negative then. Invariant 10: a slab
//! is released only at balance 0, when no freeing thread is between the two halves of step 1.
//!
//! Cost: two atomic operations for each group of blocks whose bits share a word, one more for the first free since the
//! owner collected. Model-checked in `tests/loom`.

use crate::system::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The part of a slab's record that other threads write when they free its blocks.
#[repr(C)]
#[derive(Debug)]
pub struct Remote<T> {
    count: AtomicU32,
    next: AtomicPtr<T>,
}

/// The count of a slab of the reentrant reserve that has no free block: so far from 0 that it never reaches 0.
const APART: u32 = 1 << 31;

/// A record with a [`Remote`] in it.
pub trait Node: Sized {
    /// Returns the remote part of the record `node`. It makes no reference to the whole record, as the owner writes the
    /// other fields.
    ///
    /// # Safety
    /// `node` must be a valid record for as long as the reference is used.
    unsafe fn remote<'a>(node: *const Self) -> &'a Remote<Self>;
}

/// The slabs of a heap with remote frees that the owner has not collected: a stack on which any thread pushes, and
/// which the owner takes whole.
#[cfg_attr(loom, derive(Default))]
#[derive(Debug)]
pub struct Pending<T> {
    head: AtomicPtr<T>,
}

/// The error of a block that is freed a second time.
#[derive(Debug, PartialEq, Eq)]
pub struct DoubleFree;

impl<T> Remote<T> {
    /// No remote free. All zero bytes are the same value.
    pub fn new() -> Self {
        Remote { count: AtomicU32::new(0), next: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Does step 1 without the push: marks the blocks `mask` of `word` as freed. True if the caller must push the slab.
    pub fn free(&self, word: &AtomicU64, mask: u64) -> Result<bool, DoubleFree> {
        // Release pairs with the Acquire of `take_bits`: what the freeing thread did to the block comes before its
        // next use.
        if word.fetch_or(mask, Ordering::Release) & mask != 0 {
            return Err(DoubleFree);
        }
        // Release pairs with the Acquire of `take_count`: the thread that sees the count sees the bits. Acquire pairs
        // with its Release: the slab is pushed again only after the owner has read its link.
        Ok(self.count.fetch_add(mask.count_ones(), Ordering::AcqRel) == 0)
    }

    /// Number of frees counted and not taken; a hint, exact only while no thread frees.
    pub fn counted(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes the slab one *apart*: one of the reentrant reserve (`blocks/reentrant_blocks.rs`), in which a set bit is a
    /// free block. `free` blocks are free. The count starts so high that [`Remote::free`] never asks for a push. While
    /// no thread uses the slab, `apart() == bits set`.
    pub fn set_apart(&self, free: u32) {
        // Relaxed: no other thread uses the slab yet.
        self.count.store(APART + free, Ordering::Relaxed);
    }

    /// Number of free blocks of a slab apart; a hint, as bits and count do not change in one step.
    pub fn apart(&self) -> u32 {
        self.count.load(Ordering::Relaxed).saturating_sub(APART)
    }

    /// Takes a free block of `word` of a slab apart; returns the index of its bit.
    pub fn take(&self, word: &AtomicU64) -> Option<u32> {
        // Relaxed: the `fetch_and` below decides.
        let mut free = word.load(Ordering::Relaxed);
        while free != 0 {
            let bit = free & free.wrapping_neg();
            // Acquire pairs with the Release of `free`: what the freeing thread did to the block comes before.
            let before = word.fetch_and(!bit, Ordering::Acquire);
            if before & bit != 0 {
                // Relaxed: the count is a hint. It may be below APART for a moment, as `free` counts after it sets
                // bits.
                self.count.fetch_sub(1, Ordering::Relaxed);
                return Some(bit.trailing_zeros());
            }
            free = before;
        }
        None
    }

    /// Takes all free blocks of `word` of a slab apart, as a mask; [`Remote::free`] gives them back.
    pub fn take_all(&self, word: &AtomicU64) -> u64 {
        // Acquire and Relaxed: as in `take`.
        let mask = word.swap(0, Ordering::Acquire);
        self.count.fetch_sub(mask.count_ones(), Ordering::Relaxed);
        mask
    }

    /// Does the first half of step 2: returns the frees counted since the last call. From now on the slab may be pushed
    /// again.
    pub fn take_count(&self) -> u32 {
        // Acquire and Release: see `free`.
        self.count.swap(0, Ordering::AcqRel)
    }
}

/// Does the second half of step 2: takes the bits of one word.
pub fn take_bits(word: &AtomicU64) -> u64 {
    // Relaxed is enough for the test: the count of a bit missed here comes later.
    if word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // Acquire: see `Remote::free`.
    word.swap(0, Ordering::Acquire)
}

impl<T: Node> Pending<T> {
    /// Whether the stack is empty; a hint.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Pushes `node`.
    ///
    /// # Safety
    /// `node` must be valid until it is taken, and on no stack: the caller got `true` from [`Remote::free`].
    pub unsafe fn push(&self, node: *mut T) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is valid, and no other thread uses its link until the exchange succeeds.
            unsafe { T::remote(node).next.store(head, Ordering::Relaxed) };
            // SeqCst pairs with the store of the heap's state when its thread ends: either that thread sees this node,
            // or the caller sees the state afterwards (see `blocks/lives.rs`). It includes the Release that shows
            // `next` to the thread that takes the stack.
            match self.head.compare_exchange_weak(head, node, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the whole stack and calls `visit` with each node, after it was removed from the stack.
    ///
    /// # Safety
    /// The caller must have whatever `visit` needs: the heap, if `visit` uses the heap.
    pub unsafe fn take(&self, mut visit: impl FnMut(*mut T)) {
        // SeqCst: see `push`.
        let mut node = self.head.swap(core::ptr::null_mut(), Ordering::SeqCst);
        while !node.is_null() {
            // SAFETY: a pushed node is valid; its link is read before `visit` resets the count, after which
            // another thread may push it again.
            let next = unsafe { T::remote(node).next.load(Ordering::Relaxed) };
            visit(node);
            node = next;
        }
    }
}

impl<T: Node> Pending<T> {
    /// Calls `visit` with each node, and leaves them on the stack. For tests.
    ///
    /// # Safety
    /// Only the owner of the heap may call this.
    pub unsafe fn for_each(&self, mut visit: impl FnMut(*mut T)) {
        // Acquire pairs with the exchange in `push`: the links are there.
        let mut node = self.head.load(Ordering::Acquire);
        while !node.is_null() {
            visit(node);
            // SAFETY: a pushed node is valid, and only the caller could take it from the stack.
            node = unsafe { T::remote(node).next.load(Ordering::Relaxed) };
        }
    }
}

#[cfg(not(loom))]
impl<T> Pending<T> {
    /// An empty stack.
    pub const fn new() -> Self {
        Pending { head: AtomicPtr::new(core::ptr::null_mut()) }
    }
}

#[cfg(loom)]
impl<T> Pending<T> {
    /// An empty stack.
    pub fn new() -> Self {
        Pending { head: AtomicPtr::new(core::ptr::null_mut()) }
    }
}
