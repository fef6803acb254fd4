//! Slabs and heaps: remote frees, the end of a heap's thread, and adoption. See `blocks/bins.rs` and `blocks/lives.rs`
//! of the core; change both together.

use crate::system::remote::{DoubleFree, Node, Pending, Remote, take_bits};
use crate::system::sync::{AtomicU32, AtomicU64, Ordering};
use core::sync::atomic::{AtomicBool, Ordering as Plain};
use loom::cell::UnsafeCell;
use loom::sync::Mutex;

/// A thread owns the heap.
pub const OWNED: u32 = 0;
/// The lock of the registry guards the heap.
pub const ORPHAN: u32 = 1;

/// Number of words of bits of a slab in these models: two, so that a thread may see one bit and not yet the other. Each
/// word has the bit of one block, and the block has the number of its word.
pub const WORDS: usize = 2;

/// The part of a slab that only its owner uses.
#[derive(Debug, Default)]
pub struct Own {
    /// The slab's free bits.
    pub free: [u64; WORDS],
    /// Number of live blocks.
    pub used: i32,
    /// Number of frees counted less number of bits taken.
    pub balance: i32,
}

/// A slab. Loom reports any two accesses to a cell that are not ordered.
#[derive(Debug)]
pub struct Slab {
    remote: Remote<Slab>,
    bits: [AtomicU64; WORDS],
    /// The owner's part.
    pub own: UnsafeCell<Own>,
    /// The contents of the blocks: the thread that frees a block writes them, and so does the next user of the block.
    contents: [UnsafeCell<u32>; WORDS],
    /// Each thread that uses the slab reads this; the thread that releases it writes.
    released: UnsafeCell<bool>,
    /// Whether the slab is on a stack. Not part of the protocol, so not one of loom's atomics.
    on_stack: AtomicBool,
}

impl Node for Slab {
    unsafe fn remote<'a>(node: *const Slab) -> &'a Remote<Slab> {
        // SAFETY: as the caller promises.
        unsafe { &(*node).remote }
    }
}

/// A heap.
#[derive(Debug)]
pub struct Heap {
    pending: Pending<Slab>,
    state: AtomicU32,
    registry: Mutex<()>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Slab {}
// SAFETY: as above.
unsafe impl Send for Slab {}

impl Slab {
    /// A slab with `used` live blocks.
    pub fn new(used: i32) -> Self {
        Slab {
            remote: Remote::new(),
            bits: std::array::from_fn(|_| AtomicU64::new(0)),
            own: UnsafeCell::new(Own { used, ..Own::default() }),
            contents: std::array::from_fn(|_| UnsafeCell::new(0)),
            released: UnsafeCell::new(false),
            on_stack: AtomicBool::new(false),
        }
    }

    /// Whether the slab was released.
    pub fn is_released(&self) -> bool {
        // SAFETY: loom checks the access.
        self.released.with(|r| unsafe { *r })
    }

    /// Allocates a block of this slab; for its owner.
    pub fn malloc(&self) {
        self.assert_alive();
        // SAFETY: loom checks the access.
        self.own.with_mut(|own| unsafe { (*own).used += 1 });
    }

    /// Number of live blocks; for the owner.
    pub fn used(&self) -> i32 {
        // SAFETY: loom checks the access.
        self.own.with(|own| unsafe { (*own).used })
    }

    fn assert_alive(&self) {
        assert!(!self.is_released(), "the slab is used after its release");
    }
}

impl Heap {
    /// A heap in `state`.
    pub fn new(state: u32) -> Self {
        Heap { pending: Pending::new(), state: AtomicU32::new(state), registry: Mutex::new(()) }
    }

    /// Frees `block` as another thread: `Blocks::give_remote` of the core.
    pub fn free(&self, slab: &Slab, block: usize) -> Result<(), DoubleFree> {
        slab.assert_alive();
        // The last use of the block by the freeing thread.
        // SAFETY: loom checks the access.
        slab.contents[block].with_mut(|c| unsafe { *c += 1 });
        self.free_untouched(slab, block)
    }

    /// [`Heap::free`] by a thread that does not have the block: a double free.
    pub fn free_untouched(&self, slab: &Slab, block: usize) -> Result<(), DoubleFree> {
        if slab.remote.free(&slab.bits[block], 1)? {
            slab.assert_alive();
            assert!(!slab.on_stack.swap(true, Plain::SeqCst), "a slab is pushed twice");
            // SAFETY: `Remote::free` returned true.
            unsafe { self.pending.push(core::ptr::from_ref(slab).cast_mut()) };
            // SeqCst pairs with the store in `abandon`.
            if self.state.load(Ordering::SeqCst) == ORPHAN {
                self.collect_orphan();
            }
        }
        Ok(())
    }

    /// Takes in the remote frees: `Mine::collect` of the core.
    ///
    /// # Safety
    /// The heap must be the caller's.
    pub unsafe fn collect(&self) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        // SAFETY: the heap is the caller's, so its slabs are.
        unsafe {
            self.pending.take(|slab| {
                let slab = &*slab;
                slab.on_stack.store(false, Plain::SeqCst);
                slab.own.with_mut(|own| {
                    let own = &mut *own;
                    let count = slab.remote.take_count() as i32;
                    let mut seen = 0;
                    for word in 0..WORDS {
                        let mask = take_bits(&slab.bits[word]);
                        if own.free[word] & mask != 0 {
                            result = Err(DoubleFree);
                        }
                        own.free[word] |= mask;
                        seen += mask.count_ones() as i32;
                        if mask != 0 {
                            // The next use of the block.
                            slab.contents[word].with_mut(|c| *c += 1);
                        }
                    }
                    own.balance += count - seen;
                    own.used -= seen;
                    if own.used == 0 && own.balance == 0 {
                        slab.released.with_mut(|r| *r = true);
                    }
                });
            });
        }
        result
    }

    /// Takes in the remote frees if the heap is an orphan: `Blocks::collect_orphan` of the core.
    pub fn collect_orphan(&self) {
        let _registry = self.registry.lock().unwrap();
        if self.state.load(Ordering::SeqCst) == ORPHAN {
            // SAFETY: the lock guards an orphan in place of an owner.
            unsafe { self.collect() }.expect("no double free");
        }
    }

    /// Makes the heap an orphan: `Blocks::abandon_heap` of the core.
    ///
    /// # Safety
    /// The heap must be the caller's, which must not use it afterwards.
    pub unsafe fn abandon(&self) {
        let _registry = self.registry.lock().unwrap();
        self.state.store(ORPHAN, Ordering::SeqCst);
        // SAFETY: the lock guards an orphan in place of an owner.
        unsafe { self.collect() }.expect("no double free");
    }

    /// Adopts the heap: `Blocks::acquire_heap` of the core for an orphan. The caller owns the heap afterwards.
    pub fn adopt(&self) {
        let _registry = self.registry.lock().unwrap();
        self.state.store(OWNED, Ordering::SeqCst);
    }
}
