//! Free blocks: what lies in one while it is in a cache, and the tokens for them.

use crate::CHUNK;
use crate::blocks::class;
use crate::pages::chunk::Record;
use core::ptr::NonNull;

/// What lies in a block while it is in a cache.
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
    /// First word of a block in a cache. No small number, no ASCII, no likely half of an address.
    pub const TAG: u32 = 0xF4EE_B10C;

    /// `tag ^= TAG`; whether it was the tag. One instruction and a branch, if the compiler sees it.
    #[inline(always)]
    #[expect(clippy::not_unsafe_ptr_arg_deref, reason = "an unsafe function is no FnOnce, which Heap::malloc takes")]
    pub fn untag(block: *mut Block) -> bool {
        // SAFETY: called by `Heap::pop` alone, for a block or the end of a cache.
        unsafe {
            (*block).tag ^= Block::TAG;
            (*block).tag == 0
        }
    }
}

/// A block of a slab that only the holder uses: in a cache of a heap that is [`Mine`](crate::blocks::heap::Mine), on its way
/// there, or out of a slab that is the holder's. Having it proves that, and that its slab is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free(NonNull<Block>);

impl Free {
    /// The block at `p`.
    ///
    /// # Safety
    /// What the type proves must be true for as long as the token is used.
    #[inline(always)]
    pub(crate) unsafe fn of(p: *mut u8) -> Self {
        // SAFETY: as the caller promises; no block lies at null.
        Free(unsafe { NonNull::new_unchecked(p.cast()) })
    }

    /// Its first byte.
    #[inline(always)]
    pub fn start(self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    /// The record of its slab.
    #[inline(always)]
    pub(crate) fn record(self) -> Record {
        // SAFETY: the token proves that the slab is there.
        unsafe { Record::at(self.start()) }
    }

    /// Its index in its slab, of `class`.
    #[inline(always)]
    pub(crate) fn index(self, class: usize) -> u32 {
        class::index(self.start(), class)
    }

    /// Its first word.
    #[inline(always)]
    pub(crate) fn tag(self) -> u32 {
        // SAFETY: what the token proves, here and below; a block holds tag and link.
        unsafe { (*self.0.as_ptr()).tag }
    }

    /// Changes its first word.
    #[inline(always)]
    pub(crate) fn set_tag(self, tag: u32) {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).tag = tag }
    }

    /// What comes behind it in its cache, if it has the tag.
    #[inline(always)]
    pub(crate) fn link(self) -> Link {
        // SAFETY: as above.
        Link(unsafe { (*self.0.as_ptr()).link })
    }

    /// Changes what comes behind it.
    #[inline(always)]
    pub(crate) fn set_link(self, link: Link) {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).link = link.0 }
    }

    /// The link that leads to it.
    #[inline(always)]
    pub(crate) fn as_link(self) -> Link {
        Link(self.0.as_ptr())
    }

    /// Reads the tag of a block whose OS page may have gone back to the system. Writes to the block first, as after a read
    /// a write would fault once more.
    #[inline]
    pub(crate) fn tag_behind_write(self) -> u32 {
        let block = self.0.as_ptr();
        // SAFETY: as above.
        unsafe {
            (&raw mut (*block).link).write_volatile(core::ptr::null_mut());
            (&raw const (*block).tag).read_volatile()
        }
    }

    /// Removes the tag that it may still have from its time in a cache, so that its free does not look like a second one.
    #[inline(always)]
    pub(crate) fn untagged(self) -> *mut u8 {
        if self.tag() == Block::TAG {
            self.set_tag(0);
        }
        self.start()
    }
}

/// What the head of a cache and the link of a tagged block in it hold: the next block of the cache, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(*mut Block);

impl Link {
    /// A link that leads nowhere yet.
    pub(crate) const NONE: Link = Link(core::ptr::null_mut());

    /// The link `p`.
    #[inline(always)]
    pub(in crate::blocks) fn at(p: *mut Block) -> Self {
        Link(p)
    }

    /// Where it leads.
    #[inline(always)]
    pub(crate) fn ptr(self) -> *mut Block {
        self.0
    }

    /// The block there, unless it is `end`, the end of the cache.
    #[inline(always)]
    pub(crate) fn block(self, end: Link) -> Option<Free> {
        if self == end { None } else { NonNull::new(self.0).map(Free) }
    }

    /// The block there, if it lies in the same slab as `first`. The end of a cache lies in no slab.
    #[inline(always)]
    pub(crate) fn block_beside(self, first: Free) -> Option<Free> {
        let beside = (self.0.addr() ^ first.start().addr()) < CHUNK;
        // SAFETY: not null, as the chunk of a block is not the first of the address space.
        beside.then(|| unsafe { Free::of(self.0.cast()) })
    }
}
