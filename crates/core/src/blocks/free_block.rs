//! Free blocks: their contents while they are in a cache (tag and link), and the tokens for them.

use crate::CHUNK;
use crate::blocks::class;
use crate::pages::chunk::Record;
use core::ptr::NonNull;

/// The contents of a block while it is in a cache (invariant 8).
#[repr(C)]
#[derive(Debug)]
pub struct Block {
    /// [`Block::TAG`].
    pub tag: u32,
    pub(crate) unused: u32,
    /// The next block of the cache; its end is the heap's `nothing`.
    pub link: *mut Block,
}

const _: () = assert!(size_of::<Block>() <= class::MIN_BLOCK, "a free block holds tag and link");

impl Block {
    /// First word of a block in a cache. It is not a small number, not ASCII, and not a likely half of an address.
    pub const TAG: u32 = 0xF4EE_B10C;

    /// Does `tag ^= TAG`; returns whether it was the tag. One instruction and a branch, if the compiler combines them.
    #[inline(always)]
    #[expect(clippy::not_unsafe_ptr_arg_deref, reason = "an unsafe function is no FnOnce, which Heap::malloc takes")]
    pub fn untag(block: *mut Block) -> bool {
        // SAFETY: `Heap::pop` alone calls it, for a block in a cache of the caller's heap or the end of that cache.
        unsafe {
            (*block).tag ^= Block::TAG;
            (*block).tag == 0
        }
    }
}

/// A block of a slab that only the holder uses: in a cache of a heap that is [`Mine`](crate::blocks::heap::Mine), on
/// its way there, taken out of an [`OwnSlab`](crate::blocks::slab_record::OwnSlab), or passed by the program. Having it
/// proves that, and that its slab is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free(NonNull<Block>);

impl Free {
    /// Returns a token for the block at `p`.
    ///
    /// # Safety
    /// What the type proves must be true for as long as the token is used.
    #[inline(always)]
    pub(crate) unsafe fn of(p: *mut u8) -> Self {
        // SAFETY: the caller passes a block, and no block lies at null.
        Free(unsafe { NonNull::new_unchecked(p.cast()) })
    }

    /// Returns the address of its first byte.
    #[inline(always)]
    pub fn start(self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    /// Returns the record of its slab.
    #[inline(always)]
    pub(crate) fn record(self) -> Record {
        // SAFETY: `Free` proves that the slab is not released, so its chunk is committed, as `Record` demands.
        unsafe { Record::at(self.start()) }
    }

    /// Returns its index in its slab, of `class`.
    #[inline(always)]
    pub(crate) fn index(self, class: usize) -> u32 {
        class::index(self.start(), class)
    }

    /// Returns its first word.
    #[inline(always)]
    pub(crate) fn tag(self) -> u32 {
        // SAFETY: `Free` proves that only the holder uses the block, which has room for tag and link.
        unsafe { (*self.0.as_ptr()).tag }
    }

    /// Changes its first word.
    #[inline(always)]
    pub(crate) fn set_tag(self, tag: u32) {
        // SAFETY: `Free` proves that only the holder uses the block, which has room for tag and link.
        unsafe { (*self.0.as_ptr()).tag = tag }
    }

    /// Returns its link: what comes after it in its cache, if it has the tag.
    #[inline(always)]
    pub(crate) fn link(self) -> Link {
        // SAFETY: `Free` proves that only the holder uses the block, which has room for tag and link.
        Link(unsafe { (*self.0.as_ptr()).link })
    }

    /// Changes its link.
    #[inline(always)]
    pub(crate) fn set_link(self, link: Link) {
        // SAFETY: `Free` proves that only the holder uses the block, which has room for tag and link.
        unsafe { (*self.0.as_ptr()).link = link.0 }
    }

    /// Returns the link that leads to it.
    #[inline(always)]
    pub(crate) fn as_link(self) -> Link {
        Link(self.0.as_ptr())
    }

    /// Reads the tag of a block whose OS page may have gone back to the system. Writes to the block first: if the first
    /// access were a read, the next write would fault once more.
    #[inline]
    pub(crate) fn tag_behind_write(self) -> u32 {
        let block = self.0.as_ptr();
        // SAFETY: `Free` proves that only the holder uses the block, which has room for tag and link.
        unsafe {
            (&raw mut (*block).link).write_volatile(core::ptr::null_mut());
            (&raw const (*block).tag).read_volatile()
        }
    }

    /// Removes the tag that it may still have from its time in a cache, so that its free does not look like a double
    /// free. Returns the address of the block.
    #[inline(always)]
    pub(crate) fn untagged(self) -> *mut u8 {
        if self.tag() == Block::TAG {
            self.set_tag(0);
        }
        self.start()
    }
}

/// The head of a cache, or the link of a tagged block in it: leads to the next block of the cache, or to its end
/// (invariant 8). Having it proves that, unless the program wrote to a free block and left its tag as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(*mut Block);

impl Link {
    /// A link that leads nowhere.
    pub(crate) const NONE: Link = Link(core::ptr::null_mut());

    /// Returns the link `p`, which must be the head of a cache, or its end.
    #[inline(always)]
    pub(in crate::blocks) fn at(p: *mut Block) -> Self {
        Link(p)
    }

    /// Returns the address to which it leads.
    #[inline(always)]
    pub(crate) fn ptr(self) -> *mut Block {
        self.0
    }

    /// Returns the block to which it leads, or `None` if that is `end`, the end of the cache.
    #[inline(always)]
    pub(crate) fn block(self, end: Link) -> Option<Free> {
        if self == end { None } else { NonNull::new(self.0).map(Free) }
    }

    /// Returns the block to which it leads if that lies in the same slab as `first`. The end of a cache lies in no
    /// slab.
    #[inline(always)]
    pub(crate) fn block_beside(self, first: Free) -> Option<Free> {
        let beside = (self.0.addr() ^ first.start().addr()) < CHUNK;
        // SAFETY: `Link` proves that it leads to a block in the same cache, which is the holder's like `first`. It is
        // not null, as no slab is the first chunk of the address space.
        beside.then(|| unsafe { Free::of(self.0.cast()) })
    }
}
