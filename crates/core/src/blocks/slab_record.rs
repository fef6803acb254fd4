//! The record of a slab: its owner, its counts of blocks, and where its bits are.
//!
//! Invariant 9: `used + (free bits) == carved <= capacity`; `used` counts the blocks in caches as well.

use crate::CHUNK;
use crate::blocks::class;
use crate::pages::age;
use crate::pages::arena::Arenas;
use crate::pages::chunk::{BY_KIND, Flag, Gap, Kind, LINKS, OWNER_OR_BYTES, RECORD_BYTES, Record, View};
use crate::pages::layout;
use crate::system::seen;
use crate::system::sync::{AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering, peek, peek_cell};
use core::cell::Cell;

#[repr(C, align(64))]
#[derive(Debug)]
struct SlabRecord {
    _kind_and_class: Gap<BY_KIND>,
    /// True if OS pages that were never carved hold no memory, and so read as zero.
    zeroed: Flag,
    /// True if it is in its heap's bin, the list of slabs with free blocks.
    listed: Flag,
    /// Index of a word of the free bits: no lower word has a bit set.
    hint: Cell<u8>,
    /// True if its last OS page is a guard, see `harden.rs`.
    guarded: Flag,
    /// Remote frees counted minus remote bits taken (`remote.rs`); the slab may be released only at 0 (invariant 10).
    balance: Cell<i16>,
    /// Hardened slabs: number of withheld blocks, plus 1; other slabs: 0.
    hardened: Cell<u32>,
    /// Number of blocks at the front that are carved: each is used, or free with a bit.
    carved: Cell<u16>,
    /// Number of blocks that are live or in a cache.
    used: Cell<u16>,
    /// A bit for each OS page that reads as zero, as no block on it was handed out since it was purged, or ever. The
    /// purger sets bits while it holds all blocks there, and the owner clears them.
    clean: AtomicU16,
    /// `log2` of the number of chunks of its arena, from which the place of its age follows.
    tables: Cell<u8>,
    /// A copy of its age, beside the other fields that a free uses (`Mine::after_give`), if it was listed when it got
    /// that age and still is, and is not hardened; otherwise `age::NONE`.
    up_to_date: Cell<u8>,
    /// Offset of its free bits from the base of its arena.
    bits: Cell<u32>,
    _links: Gap<{ OWNER_OR_BYTES - LINKS }>,
    /// The heap that owns it, for its whole life. Atomic, as a handshake reads it before it knows whose slab it is.
    owner: AtomicPtr<()>,
    _remote: Gap<{ RECORD_BYTES - OWNER_OR_BYTES - size_of::<usize>() }>,
}

const _: () = assert!(core::mem::offset_of!(SlabRecord, owner) == OWNER_OR_BYTES, "observers look there");
const _: () = assert!(core::mem::offset_of!(SlabRecord, _links) == LINKS, "the gap is where the links are");

// SAFETY: 64 bytes of cells and atomics, with padding where the trait requires it (asserted above).
unsafe impl View for SlabRecord {}

/// A slab whose plain fields and free bits no other thread uses now (invariant 2): one of a heap that is
/// [`Mine`](crate::blocks::heap::Mine), or a new one. Having it proves that, that the record is a slab's, and that the
/// slab's free blocks are the holder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnSlab(Record);

/// Returns the address of the heap that owns the slab (`heap::owner` has the type). Relaxed: the load orders nothing. A
/// thread that has a block of the slab, or its heap, got it after the store of the owner; a handshake has neither, and
/// reads the owner again when it has the heap (invariant 22).
#[inline]
pub(crate) fn owner(c: Record) -> *mut () {
    c.view::<SlabRecord>().owner.load(Ordering::Relaxed)
}

/// Returns the address of the first word of the free bits of the slab of `c`; it does not change while it is a slab.
#[inline(always)]
fn free_bits(c: Record) -> usize {
    layout::split(c.address()).0 + c.view::<SlabRecord>().bits.get() as usize
}

/// Returns word `word` of the remote bits of the slab of `c`, of `class`.
#[inline]
pub fn remote_word<'a>(c: Record, class: usize, word: usize) -> &'a AtomicU64 {
    debug_assert!(word < words(class));
    let at = layout::remote_bits(free_bits(c), class >= class::FIRST_FEW) + 8 * word;
    // SAFETY: the word lies in the slab's remote bits: side tables are committed with the chunk and never unmapped
    // (invariant 1).
    unsafe { &*layout::at::<AtomicU64>(at) }
}

/// Returns the age of the slab of `c`, see [`crate::pages::age`].
pub fn slab_age<'a>(c: Record) -> &'a AtomicU8 {
    let at = layout::age_address(c.address(), c.view::<SlabRecord>().tables.get());
    // SAFETY: each chunk has an age; side tables are committed with the chunk and never unmapped (invariant 1).
    unsafe { &*layout::at::<AtomicU8>(at) }
}

/// Returns the bits of the OS pages of the slab that read as zero.
#[inline]
pub(crate) fn clean_pages<'a>(c: Record) -> &'a AtomicU16 {
    &c.view::<SlabRecord>().clean
}

/// Returns the number of words of free bits that a slab of `class` uses.
#[inline(always)]
pub(crate) fn words(class: usize) -> usize {
    class::capacity(class).div_ceil(64) as usize
}

/// Whether the block with index `i` is free in the slab of `c` (not in a cache). A hint unless the slab is the
/// caller's.
#[inline]
pub(crate) fn is_free(c: Record, class: usize, i: u32) -> bool {
    let (word, mask) = (i as usize / 64, 1u64 << (i % 64));
    let record = c.view::<SlabRecord>();
    let at = free_bits(c) + 8 * word;
    // SAFETY: the word lies in the slab's free bits: side tables are committed with the chunk and never unmapped
    // (invariant 1).
    let own = unsafe { peek(layout::at::<u64>(at), 0) };
    (own | remote_word(c, class, word).load(Ordering::Relaxed)) & mask != 0
        || i >= peek_cell(&record.carved, u16::MAX).into()
}

/// Returns the numbers of used and carved blocks of the slab of `c`. For other threads: a hint.
pub(crate) fn seen(c: Record) -> (u32, u32) {
    let record = c.view::<SlabRecord>();
    (peek_cell(&record.used, 0).into(), peek_cell(&record.carved, 0).into())
}

/// Whether the slab of `c`, in an arena of `1 << tables` chunks, knows where its age and its bits are. For tests.
pub(crate) fn knows_tables(c: Record, tables: u8) -> bool {
    let (base, index) = layout::split(c.address());
    let bits = base + layout::bits(tables, index, c.class() >= class::FIRST_FEW);
    c.view::<SlabRecord>().tables.get() == tables && free_bits(c) == bits
}

/// Returns word `word` of the free bits and of the remote bits of a chunk of any kind, of the few bits if `few`, in an
/// arena of `1 << tables` chunks. For tests, while no thread uses the chunk.
pub(crate) fn bits_of_any(c: Record, tables: u8, few: bool, word: usize) -> (u64, u64) {
    let (base, index) = layout::split(c.address());
    let free = base + layout::bits(tables, index, few);
    // SAFETY: side tables are committed with the chunk and never unmapped (invariant 1).
    unsafe {
        let remote = layout::at::<AtomicU64>(layout::remote_bits(free, few)).add(word);
        (layout::at::<u64>(free).add(word).read(), (*remote).load(Ordering::Relaxed))
    }
}

/// Whether the slab of `c` is hardened; constant for its life.
#[inline]
pub(crate) fn is_hardened(c: Record) -> bool {
    c.view::<SlabRecord>().hardened.get() != 0
}

/// The fields of a copy of a slab's record, for an observer in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenSlab {
    /// Number of blocks at the front that are carved: each is used, or free with a bit.
    pub carved: u32,
    /// Offset of its free bits from the base of its arena.
    pub free_bits: u64,
    /// Offset of its remote bits.
    pub remote_bits: u64,
    /// Number of words of either that it uses.
    pub words: usize,
}

impl SeenSlab {
    /// Where the fields lie.
    pub(crate) const LAYOUT: [usize; 2] =
        [core::mem::offset_of!(SlabRecord, carved), core::mem::offset_of!(SlabRecord, bits)];

    /// The fields of a copy of the record of a slab of `class`, which must be a class other than 0.
    pub fn of(record: &[u8; RECORD_BYTES], class: usize) -> Self {
        let [carved, bits] = Self::LAYOUT;
        let free = u32::from_ne_bytes(seen::bytes(record, bits)) as usize;
        SeenSlab {
            carved: u32::from(u16::from_ne_bytes(seen::bytes(record, carved))).min(class::capacity(class)),
            free_bits: free as u64,
            remote_bits: layout::remote_bits(free.max(CHUNK), class >= class::FIRST_FEW) as u64,
            words: words(class),
        }
    }
}

/// The free bits of an [`OwnSlab`], and so proves the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeBits {
    at: usize,
}

impl FreeBits {
    /// Returns a word of them: that of a block of the slab.
    #[inline(always)]
    pub(crate) fn word(self, word: usize) -> &'static Cell<u64> {
        debug_assert!(8 * word < layout::BITS_BYTES);
        // SAFETY: side tables are committed with the chunk and never unmapped (invariant 1), and having the bits proves
        // that no other thread uses them.
        unsafe { &*layout::at::<Cell<u64>>(self.at + 8 * word) }
    }
}

impl OwnSlab {
    /// Returns a token for the slab of `c`.
    ///
    /// # Safety
    /// What the type proves must be true for as long as the token is used.
    #[inline(always)]
    pub unsafe fn of(c: Record) -> Self {
        OwnSlab(c)
    }

    /// Makes the caller's chunk of `c`, whose free bits and remote bits must be zero, a slab of `class` without a used
    /// block.
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
        record.up_to_date.set(age::NONE);
        // Relaxed: no other thread uses the slab yet.
        record.clean.store(0, Ordering::Relaxed);
        let (tables, index) = (arenas.tables(c), layout::split(c.address()).1);
        record.tables.set(tables);
        record.bits.set(layout::bits(tables, index, class >= class::FIRST_FEW) as u32);
        record.owner.store(owner, Ordering::Relaxed);
        c.set_kind(Kind::SLAB);
        slab
    }

    /// Returns its record.
    #[inline(always)]
    pub fn chunk(self) -> Record {
        self.0
    }

    #[inline(always)]
    fn record(self) -> &'static SlabRecord {
        self.0.view()
    }

    /// Returns its size class.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        self.0.class()
    }

    /// Returns its free bits, a bit for each block.
    #[inline(always)]
    pub(crate) fn bits(self) -> &'static [Cell<u64>] {
        let class = self.class();
        let at = free_bits(self.0);
        // SAFETY: side tables are committed with the chunk and never unmapped (invariant 1), and `OwnSlab` proves that
        // no other thread uses the free bits.
        unsafe { core::slice::from_raw_parts(layout::at(at), words(class)) }
    }

    /// Returns the place of its free bits.
    #[inline(always)]
    pub(crate) fn free_bits(self) -> FreeBits {
        FreeBits { at: free_bits(self.0) }
    }

    /// Returns the number of blocks that are live or in a cache.
    #[inline(always)]
    pub fn used(self) -> u32 {
        self.record().used.get().into()
    }

    /// Adds `n` to the number of used blocks.
    #[inline(always)]
    pub(crate) fn add_used(self, n: i32) {
        self.record().used.set((self.used() as i32 + n) as u16);
    }

    /// Returns the number of blocks at the front that are carved: each is used, or free with a bit.
    #[inline(always)]
    pub fn carved(self) -> u32 {
        self.record().carved.get().into()
    }

    #[inline(always)]
    pub(crate) fn set_carved(self, n: u32) {
        self.record().carved.set(n as u16);
    }

    /// Returns the index of a word of the free bits: no lower word has a bit set.
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

    /// Whether it is in its heap's bin.
    #[inline]
    pub(crate) fn is_listed(self) -> bool {
        self.record().listed.get()
    }

    #[inline]
    pub(crate) fn set_listed(self, listed: bool) {
        self.record().listed.set(listed);
        self.record().up_to_date.set(age::NONE);
    }

    /// Whether blocks came back in the epoch `now` to a slab that is listed since then, and not hardened. So nothing
    /// changes when more come back, unless it is empty then.
    #[inline(always)]
    pub(crate) fn is_up_to_date(self, now: u8) -> bool {
        self.record().up_to_date.get() == now
    }

    /// Whether `up_to_date` is what its doc says. For tests, of a slab that is in use.
    pub(crate) fn knows_age(self) -> bool {
        let (age, copy) = (slab_age(self.0).load(Ordering::Relaxed), self.record().up_to_date.get());
        copy == age::NONE || (copy == age && self.is_listed() && !is_hardened(self.0))
    }

    /// Sets its age to the epoch `now`; `age::NONE`: nothing waits. True if it had no age before.
    #[inline]
    pub(crate) fn set_age(self, now: u8) -> bool {
        let age = slab_age(self.0);
        // Release pairs with the Acquire in `Back::look`: a thread that sees the age sees that this is a slab. Relaxed:
        // only the holder of a slab changes its age.
        let first = age.load(Ordering::Relaxed) == age::NONE;
        age.store(now, Ordering::Release);
        let stays = self.is_listed() && !is_hardened(self.0);
        self.record().up_to_date.set(if stays { now } else { age::NONE });
        first
    }

    /// Returns the number of remote frees counted minus remote bits taken.
    #[inline]
    pub(crate) fn balance(self) -> i16 {
        self.record().balance.get()
    }

    pub(crate) fn add_balance(self, n: i16) {
        self.record().balance.set(self.balance() + n);
    }

    /// Returns the number of blocks that are never handed out, see `harden.rs`.
    #[inline]
    pub(crate) fn withheld(self) -> u32 {
        self.record().hardened.get().saturating_sub(1)
    }

    /// Makes it a hardened slab that withholds the given number of blocks, or an ordinary slab.
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

    /// Removes its owner, as it is being released: a handshake may have found the record before, and must not take the
    /// next slab there for this heap's.
    pub(crate) fn disown(self) {
        // Relaxed: see `owner`.
        self.record().owner.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// Returns the bits of the OS pages that read as zero.
    #[inline]
    pub(crate) fn clean(self) -> &'static AtomicU16 {
        &self.record().clean
    }
}
