//! The record of a slab: who owns it, what of it is in use, and where its bits are.
//!
//! Invariant 9: `used + (free bits) == carved <= capacity`; `used` counts the blocks in caches as well.

use crate::blocks::class;
use crate::pages::arena::Arenas;
use crate::pages::chunk::{BY_KIND, Flag, Kind, LINKS, OWNER_OR_BYTES, RECORD_BYTES, Record, View};
use crate::pages::layout::{self, BEFORE_AGES, BEFORE_BITS, BITS_BYTES, FEW_BYTES, FEW_WORDS};
use crate::system::sync::{AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering, peek, peek_cell};
use core::cell::Cell;

#[repr(C, align(64))]
#[derive(Debug)]
struct SlabRecord {
    _kind_and_class: [u8; BY_KIND],
    /// OS pages that were never carved hold no memory, and so read as zero.
    zeroed: Flag,
    /// It is in its heap's list of slabs with free blocks.
    listed: Flag,
    /// No word of the free bits below this one has a bit set.
    hint: Cell<u8>,
    /// Its last OS page is a guard, see `harden.rs`.
    guarded: Flag,
    /// Remote frees counted less remote bits seen; the slab may be released at 0 only.
    balance: Cell<i16>,
    /// 1 more than the blocks that are withheld of a hardened slab; other slabs: 0.
    hardened: Cell<u32>,
    /// Blocks at the front that were handed out at least once.
    carved: Cell<u16>,
    /// Blocks that are live or in a cache.
    used: Cell<u16>,
    /// A bit for each OS page that reads as zero, as no block on it was handed out since it was purged. Bits are set by the
    /// purger while all blocks there are its own, and cleared by the owner.
    clean: AtomicU16,
    /// `log2` of the chunks of its arena, which says where the side tables lie.
    tables: Cell<u8>,
    _unused: u8,
    _links: [u8; OWNER_OR_BYTES - LINKS],
    /// The heap that owns it, for its whole life. Atomic, as a visitor looks at the owner before it knows whose it is.
    owner: AtomicPtr<()>,
    _remote: [u8; RECORD_BYTES - OWNER_OR_BYTES - size_of::<usize>()],
}

const _: () = assert!(core::mem::offset_of!(SlabRecord, owner) == OWNER_OR_BYTES, "observers look there");
const _: () = assert!(core::mem::offset_of!(SlabRecord, _links) <= LINKS, "the links are the list's");

// SAFETY: as the trait asks.
unsafe impl View for SlabRecord {}

/// A slab whose plain fields and free bits no other thread uses now: one of a heap that is [`Mine`](crate::blocks::heap::Mine),
/// or a new one. Having it proves that, and that the record is a slab's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnSlab(Record);

/// The owner of the slab, of which only the address means something here: `heap.rs` knows whose it is. Relaxed: the owner
/// orders nothing. Who has a block of the slab, or uses its heap, got it by a
/// way that orders the store before; a visitor who has neither confirms what it sees (`handshake.rs`).
#[inline]
pub(crate) fn owner(c: Record) -> *mut () {
    c.view::<SlabRecord>().owner.load(Ordering::Relaxed)
}

/// The words of the slab's bits, of free blocks or of remotely freed ones: address of the first. Its class and tables do not
/// change while it is a slab.
#[inline(always)]
fn bits_at(c: Record, class: usize, tables: u8, remote: bool) -> usize {
    let n = usize::from(remote);
    if class >= class::FIRST_FEW {
        return layout::entry(c.address(), tables, RECORD_BYTES, FEW_BYTES) + n * 8 * FEW_WORDS;
    }
    layout::entry(c.address(), tables, BEFORE_BITS + n * BITS_BYTES, BITS_BYTES)
}

/// Word `word` of the remote bits of the slab of `c`, of `class`.
#[inline]
pub fn remote_word<'a>(c: Record, class: usize, word: usize) -> &'a AtomicU64 {
    debug_assert!(word < words(class));
    let at = bits_at(c, class, c.view::<SlabRecord>().tables.get(), true) + 8 * word;
    // SAFETY: the word lies in the slab's remote bits, which are committed with the chunk and never unmapped.
    unsafe { &*layout::at::<AtomicU64>(at) }
}

/// The age of the slab of `c`, see [`crate::pages::age`].
pub fn slab_age<'a>(c: Record) -> &'a AtomicU8 {
    let at = layout::entry(c.address(), c.view::<SlabRecord>().tables.get(), BEFORE_AGES, 1);
    // SAFETY: as above.
    unsafe { &*layout::at::<AtomicU8>(at) }
}

/// The OS pages of the slab that read as zero.
#[inline]
pub(crate) fn clean_pages<'a>(c: Record) -> &'a AtomicU16 {
    &c.view::<SlabRecord>().clean
}

/// Words of free bits that a slab of `class` uses.
#[inline(always)]
pub(crate) fn words(class: usize) -> usize {
    class::capacity(class).div_ceil(64) as usize
}

/// Whether the block with index `i` is free in the slab of `c` (not in a cache). A hint unless the slab is the caller's.
pub(crate) fn is_free(c: Record, class: usize, i: u32) -> bool {
    let (word, mask) = (i as usize / 64, 1u64 << (i % 64));
    let record = c.view::<SlabRecord>();
    let at = bits_at(c, class, record.tables.get(), false) + 8 * word;
    // SAFETY: the word lies in the slab's bits, which are committed with the chunk and never unmapped.
    let own = unsafe { peek(layout::at::<u64>(at), 0) };
    (own | remote_word(c, class, word).load(Ordering::Relaxed)) & mask != 0
        || i >= peek_cell(&record.carved, u16::MAX).into()
}

/// Used and carved blocks of the slab of `c`, for other threads: a hint.
pub(crate) fn seen(c: Record) -> (u32, u32) {
    let record = c.view::<SlabRecord>();
    (peek_cell(&record.used, 0).into(), peek_cell(&record.carved, 0).into())
}

/// `log2` of the chunks of the arena of the slab of `c`.
pub(crate) fn tables(c: Record) -> u8 {
    c.view::<SlabRecord>().tables.get()
}

/// Word `word` of the free bits and of the remote bits that any chunk has in the table of few bits, or in the other tables.
/// For tests, at rest.
pub(crate) fn bits_of_any(c: Record, tables: u8, few: bool, word: usize) -> (u64, u64) {
    let class = if few { class::CLASSES - 1 } else { 1 };
    // SAFETY: the tables are committed with the chunk.
    unsafe {
        let at = |remote| layout::at::<u64>(bits_at(c, class, tables, remote)).add(word);
        (at(false).read(), (*at(true).cast::<AtomicU64>()).load(Ordering::Relaxed))
    }
}

/// Whether the slab of `c` is hardened; constant for its life.
#[inline]
pub(crate) fn is_hardened(c: Record) -> bool {
    c.view::<SlabRecord>().hardened.get() != 0
}

impl OwnSlab {
    /// The slab of `c`.
    ///
    /// # Safety
    /// `c` must be the record of a slab, and what the type proves be true.
    #[inline(always)]
    pub unsafe fn of(c: Record) -> Self {
        OwnSlab(c)
    }

    /// Makes the caller's chunk of `c`, whose free bits and remote bits are zero, a slab of `class` without any used block.
    pub(crate) fn set_up(arenas: &Arenas, c: Record, class: usize, owner: *mut (), zeroed: bool) -> Self {
        let slab = OwnSlab(c);
        c.set_class(class);
        let record = slab.record();
        record.zeroed.set(zeroed);
        record.listed.set(false);
        record.hint.set(0);
        record.balance.set(0);
        record.hardened.set(0);
        record.guarded.set(false);
        record.carved.set(0);
        record.used.set(0);
        // Relaxed: the slab is not known to others yet.
        record.clean.store(0, Ordering::Relaxed);
        record.tables.set(arenas.tables(c));
        record.owner.store(owner, Ordering::Relaxed);
        c.set_kind(Kind::SLAB);
        slab
    }

    /// Its record.
    #[inline(always)]
    pub fn chunk(self) -> Record {
        self.0
    }

    #[inline(always)]
    fn record(self) -> &'static SlabRecord {
        self.0.view()
    }

    /// Its size class.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        self.0.class()
    }

    /// Its free bits, a bit for each block.
    #[inline(always)]
    pub(crate) fn bits(self) -> &'static [Cell<u64>] {
        let class = self.class();
        let at = bits_at(self.0, class, self.record().tables.get(), false);
        // SAFETY: the words of a slab's free bits are committed with the chunk, never unmapped, and this owner's.
        unsafe { core::slice::from_raw_parts(layout::at(at), words(class)) }
    }

    /// Blocks that are live or in a cache.
    #[inline(always)]
    pub fn used(self) -> u32 {
        self.record().used.get().into()
    }

    /// So many more blocks are used, or fewer.
    #[inline(always)]
    pub(crate) fn add_used(self, n: i32) {
        self.record().used.set((self.used() as i32 + n) as u16);
    }

    /// Blocks at the front that were handed out at least once.
    #[inline(always)]
    pub fn carved(self) -> u32 {
        self.record().carved.get().into()
    }

    #[inline(always)]
    pub(crate) fn set_carved(self, n: u32) {
        self.record().carved.set(n as u16);
    }

    /// No word of the free bits below this one has a bit set.
    #[inline(always)]
    pub(crate) fn hint(self) -> usize {
        self.record().hint.get().into()
    }

    #[inline(always)]
    pub(crate) fn set_hint(self, word: usize) {
        self.record().hint.set(word as u8);
    }

    /// Whether OS pages that were never carved read as zero.
    #[inline]
    pub(crate) fn is_zeroed(self) -> bool {
        self.record().zeroed.get()
    }

    pub(crate) fn set_zeroed(self, zeroed: bool) {
        self.record().zeroed.set(zeroed);
    }

    /// Whether it is in its heap's list of slabs with free blocks.
    #[inline]
    pub(crate) fn is_listed(self) -> bool {
        self.record().listed.get()
    }

    #[inline]
    pub(crate) fn set_listed(self, listed: bool) {
        self.record().listed.set(listed);
    }

    /// Remote frees counted less remote bits seen.
    #[inline]
    pub(crate) fn balance(self) -> i16 {
        self.record().balance.get()
    }

    pub(crate) fn add_balance(self, n: i16) {
        self.record().balance.set(self.balance() + n);
    }

    /// Blocks that are never handed out, see `harden.rs`.
    #[inline]
    pub(crate) fn withheld(self) -> u32 {
        self.record().hardened.get().saturating_sub(1)
    }

    /// Makes it a hardened slab that withholds so many blocks, or an ordinary one.
    pub(crate) fn set_hardened(self, withheld: Option<u32>) {
        self.record().hardened.set(withheld.map_or(0, |n| n + 1));
    }

    /// Whether its last OS page is a guard.
    #[inline]
    pub(crate) fn is_guarded(self) -> bool {
        self.record().guarded.get()
    }

    pub(crate) fn set_guarded(self, guarded: bool) {
        self.record().guarded.set(guarded);
    }

    /// It is about to be released, and has no owner any more: a visitor of the heap may hold the record from before, and
    /// must not take the next owner's slab for it.
    pub(crate) fn disown(self) {
        self.record().owner.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// The OS pages that read as zero.
    #[inline]
    pub(crate) fn clean(self) -> &'static AtomicU16 {
        &self.record().clean
    }
}
