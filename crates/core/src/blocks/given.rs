//! What a program passes to free, realloc and malloc_usable_size: which kind of block it is.

use crate::CHUNK;
use crate::blocks::class;
use crate::blocks::free_block::Free;
use crate::blocks::large_record::Large;
use crate::pages::chunk::{Kind, Record};
use crate::pages::owned::Owned;

/// A pointer that the program passed to the call that is served now. Having it proves what C asks of the program: it is a
/// live block of the caller's, NULL, or foreign. A live block keeps its slab, or its record as a large block, and no other
/// thread uses its bytes. The checks of `misuse.rs` find most programs that break the rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given(*mut u8);

impl Given {
    /// The pointer `p`.
    ///
    /// # Safety
    /// What the type proves must be true for as long as the token is used.
    #[inline(always)]
    pub(crate) unsafe fn of(p: *mut u8) -> Self {
        Given(p)
    }

    /// The pointer.
    #[inline(always)]
    pub(crate) fn ptr(self) -> *mut u8 {
        self.0
    }

    /// The large block there, if `c`, the record of its chunk, says that one starts there, of a kind that `is` accepts.
    #[inline(always)]
    fn large_if(self, c: Record, is: impl FnOnce(Kind) -> bool) -> Option<Large> {
        debug_assert_eq!(c.start().addr(), self.0.addr() & !(CHUNK - 1));
        let starts = self.0.addr() & (CHUNK - 1) == 0 && is(c.kind());
        // SAFETY: the record is a large block's, which is the caller's, as the token proves.
        starts.then(|| unsafe { Large::of(c) })
    }

    /// The large block there, if `c`, the record of its chunk, says that one starts there.
    #[inline]
    pub(crate) fn large(self, c: Record) -> Option<Large> {
        self.large_if(c, |kind| matches!(kind, Kind::LARGE | Kind::REENTRANT))
    }

    /// The same, but for blocks of the reentrant reserve.
    #[inline(always)]
    pub(crate) fn ordinary_large(self, c: Record) -> Option<Large> {
        self.large_if(c, |kind| kind == Kind::LARGE)
    }
}

/// A block of a slab, with its size class: one that the program passed, or a new one. Having it proves that the slab is there,
/// and that the block is the holder's. (One that the program passed may be free, before `Blocks::check_block`.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    block: Free,
    class: usize,
}

impl Small {
    /// The block of `class` that is `block`.
    #[inline(always)]
    pub(crate) fn new(block: Free, class: usize) -> Self {
        Small { block, class }
    }

    /// It as a free block.
    #[inline(always)]
    pub(crate) fn block(self) -> Free {
        self.block
    }

    /// Its size class.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        self.class
    }

    /// Its size.
    #[inline(always)]
    pub(crate) fn size(self) -> usize {
        class::SIZE[self.class] as usize
    }

    /// Its first byte.
    #[inline(always)]
    pub(crate) fn start(self) -> *mut u8 {
        self.block.start()
    }

    /// The record of its slab.
    #[inline(always)]
    pub(crate) fn record(self) -> Record {
        self.block.record()
    }

    /// Its index in its slab.
    #[inline(always)]
    pub(crate) fn index(self) -> u32 {
        self.block.index(self.class)
    }

    /// Its bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> Owned {
        // SAFETY: the block is the holder's.
        unsafe { Owned::of(self.start(), self.size()) }
    }
}
