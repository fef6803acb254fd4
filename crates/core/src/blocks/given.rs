//! Tokens for what a program passes to free, realloc and malloc_usable_size, and for the kind of block that it is.

use crate::CHUNK;
use crate::blocks::class;
use crate::blocks::free_block::Free;
use crate::blocks::large_record::Large;
use crate::pages::chunk::{Kind, Record};
use crate::pages::owned::Owned;

/// A pointer that the program passed to the current call. Having it proves what C demands of the program: it is a live
/// block of the caller's, NULL, or foreign. A live block keeps its slab, or its record as a large block, and no other
/// thread uses its bytes. The checks of `misuse.rs` find most programs that break this rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given(*mut u8);

impl Given {
    /// Returns a token for `p`.
    ///
    /// # Safety
    /// What the type proves must be true for as long as the token is used.
    #[inline(always)]
    pub(crate) unsafe fn of(p: *mut u8) -> Self {
        Given(p)
    }

    /// Returns the pointer.
    #[inline(always)]
    pub(crate) fn ptr(self) -> *mut u8 {
        self.0
    }

    /// Returns the large block there, if `c`, the record of its chunk, says that one of a kind that `is` accepts starts
    /// there.
    #[inline(always)]
    fn large_if(self, c: Record, is: impl FnOnce(Kind) -> bool) -> Option<Large> {
        debug_assert_eq!(c.start().addr(), self.0.addr() & !(CHUNK - 1));
        let starts = self.0.addr() & (CHUNK - 1) == 0 && is(c.kind());
        // SAFETY: the record is a large block's, so `Given` proves that the block is the caller's, as `Large` demands.
        starts.then(|| unsafe { Large::of(c) })
    }

    /// Returns the large block there, if `c`, the record of its chunk, says that one starts there.
    #[inline]
    pub(crate) fn large(self, c: Record) -> Option<Large> {
        self.large_if(c, |kind| matches!(kind, Kind::LARGE | Kind::REENTRANT))
    }

    /// Like [`Given::large`], but `None` for a block of the reentrant reserve.
    #[inline(always)]
    pub(crate) fn ordinary_large(self, c: Record) -> Option<Large> {
        self.large_if(c, |kind| kind == Kind::LARGE)
    }
}

/// A block of a slab, with its size class: one that the program passed, or a new one. Having it proves what [`Free`]
/// proves. (If the program breaks the rule of [`Given`], the block may be free: `Blocks::check_block` finds that.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    block: Free,
    class: usize,
}

impl Small {
    /// Returns `block`, which must be of `class`, with its class.
    #[inline(always)]
    pub(crate) fn new(block: Free, class: usize) -> Self {
        debug_assert!(class::is_start(block.start().addr() & (CHUNK - 1), class), "a block of its class");
        Small { block, class }
    }

    /// Returns it without its class.
    #[inline(always)]
    pub(crate) fn block(self) -> Free {
        self.block
    }

    /// Returns its size class.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        self.class
    }

    /// Returns its size in bytes.
    #[inline(always)]
    pub(crate) fn size(self) -> usize {
        class::SIZE[self.class] as usize
    }

    /// Returns the address of its first byte.
    #[inline(always)]
    pub(crate) fn start(self) -> *mut u8 {
        self.block.start()
    }

    /// Returns the record of its slab.
    #[inline(always)]
    pub(crate) fn record(self) -> Record {
        self.block.record()
    }

    /// Returns its index in its slab.
    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.block.index(self.class)
    }

    /// Returns its bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> Owned {
        // SAFETY: `Free` proves that only the holder uses the block.
        unsafe { Owned::of(self.start(), self.size()) }
    }
}
