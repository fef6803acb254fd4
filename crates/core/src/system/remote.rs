//! Remote frees: the only place where two threads meet without a lock.
//!
//! A slab has one bit for each block that another thread freed and the owner has not seen, and a [`Remote`] in its
//! record. A heap has a [`Pending`] stack of the slabs that have such bits.
//!
//! 1. The freeing thread sets the bit, then adds 1 to `count`. If `count` was 0, it pushes the slab on the stack
//!    of the owner, and touches neither slab nor record afterwards.
//! 2. The owner takes the whole stack; for each slab it sets `count` to 0, then takes the bits.
//!
//! So a slab is on a stack (or about to be pushed) exactly while its `count` is not 0, and never twice. The owner
//! may see a bit before its count; `balance = counts seen - bits seen` tells it. A slab may be released only at
//! balance 0: then no freeing thread is between the two halves of step 1.
//!
//! Cost: two atomic operations for each run of blocks that share a word, one more for the first since the owner
//! looked. Model-checked in `tests/loom`.

use crate::system::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The part of a slab's record that freeing threads write.
#[repr(C)]
#[derive(Debug)]
pub struct Remote<T> {
    count: AtomicU32,
    next: AtomicPtr<T>,
}

/// Where the count of a slab apart starts: far from 0 both ways, whatever is taken and freed.
const APART: u32 = 1 << 31;

/// A record with a [`Remote`] in it.
pub trait Node: Sized {
    /// The remote part of the record `node`. Not by a reference to the whole record, whose other fields its owner writes.
    ///
    /// # Safety
    /// `node` must be a record for as long as the reference is used.
    unsafe fn remote<'a>(node: *const Self) -> &'a Remote<Self>;
}

/// The slabs of a heap with remote frees that the owner has not seen: a stack that many push and one takes whole.
#[derive(Debug)]
pub struct Pending<T> {
    head: AtomicPtr<T>,
}

/// A block was freed a second time.
#[derive(Debug, PartialEq, Eq)]
pub struct DoubleFree;

impl<T> Remote<T> {
    /// Nothing freed. All zero bytes are the same.
    pub fn new() -> Self {
        Remote { count: AtomicU32::new(0), next: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Step 1 without the push: marks the blocks `mask` of `word` as freed. True if the caller must push the slab.
    pub fn free(&self, word: &AtomicU64, mask: u64) -> Result<bool, DoubleFree> {
        // Release pairs with the Acquire of `take_bits`: what the freeing thread did to the block comes before its
        // next use.
        if word.fetch_or(mask, Ordering::Release) & mask != 0 {
            return Err(DoubleFree);
        }
        // Release pairs with the Acquire of `take_count`: whoever sees the count sees the bits. Acquire pairs with its
        // Release: who pushes the slab again does so after the owner has read its link.
        Ok(self.count.fetch_add(mask.count_ones(), Ordering::AcqRel) == 0)
    }

    /// Frees counted and not taken; exact only while no thread frees. For tests.
    pub fn counted(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Makes the slab one apart, in the reentrant reserve (`reentrant_reserve.rs`), with `free` blocks free: a set bit is a free block, and the
    /// count starts so high that [`Remote::free`] never says to push it. Equation at rest: `apart() == bits set`.
    pub fn set_apart(&self, free: u32) {
        // Relaxed: the slab is nobody's else yet.
        self.count.store(APART + free, Ordering::Relaxed);
    }

    /// Free blocks of a slab apart; a hint, as bits and count do not change together.
    pub fn apart(&self) -> u32 {
        self.count.load(Ordering::Relaxed).saturating_sub(APART)
    }

    /// Takes a free block of `word` of a slab apart: the index of its bit.
    pub fn take(&self, word: &AtomicU64) -> Option<u32> {
        // Relaxed: the exchange below tells.
        let mut free = word.load(Ordering::Relaxed);
        while free != 0 {
            let bit = free & free.wrapping_neg();
            // Acquire pairs with the Release of `free`: what the freeing thread did to the block comes before.
            let before = word.fetch_and(!bit, Ordering::Acquire);
            if before & bit != 0 {
                // Relaxed: the count is a hint. It may be below APART for a moment, as its other half comes later.
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

    /// Step 2, first half: the frees counted since the last call. From now on the slab may be pushed again.
    pub fn take_count(&self) -> u32 {
        // Acquire and Release: see `free`.
        self.count.swap(0, Ordering::AcqRel)
    }
}

impl<T> Default for Remote<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Step 2, second half: the bits of one word.
pub fn take_bits(word: &AtomicU64) -> u64 {
    // Relaxed is enough for the test: a bit missed here has a count that is still to come.
    if word.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // Acquire: see `Remote::free`.
    word.swap(0, Ordering::Acquire)
}

impl<T: Node> Pending<T> {
    /// Whether anything was pushed; a hint.
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
            // SAFETY: the node is valid, and the caller's alone until the exchange succeeds.
            unsafe { T::remote(node).next.store(head, Ordering::Relaxed) };
            // SeqCst pairs with the store of the heap's state when its thread ends: either that thread sees this
            // node, or the caller sees the state afterwards (see `life.rs`). It contains the Release that shows
            // `next` to the taker.
            match self.head.compare_exchange_weak(head, node, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the whole stack and calls `visit` with each node, which is on no stack any more by then.
    ///
    /// # Safety
    /// Only the owner of the heap may call this, as far as `visit` needs the heap.
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
    /// Calls `visit` with each node on the stack, which stays as it is. For tests.
    ///
    /// # Safety
    /// Only the owner of the heap may call this.
    pub unsafe fn for_each(&self, mut visit: impl FnMut(*mut T)) {
        // Acquire pairs with the exchange in `push`: the links are there.
        let mut node = self.head.load(Ordering::Acquire);
        while !node.is_null() {
            visit(node);
            // SAFETY: a pushed node is valid, and stays on the stack meanwhile.
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

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self::new()
    }
}
