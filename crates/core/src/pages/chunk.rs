//! The record of a chunk. Each chunk of an arena has one, out of line, so that bookkeeping touches no OS page of a
//! block.
//!
//! A record is 64 bytes, one cache line. All zero bytes are a record of [`Kind::NONE`]. Its other fields depend on the
//! kind. Each kind has a type for them: free ranges in `range.rs`, slabs in `blocks/slab_record.rs`, large blocks in
//! `blocks/large_record.rs`.
//!
//! **Invariant 1.** A [`Record`] is one of a chunk that was committed. Its memory is never unmapped, and every field is
//! a cell or an atomic for which any bytes are valid. So any thread may read a record at any time; the value may be out
//! of date.
//!
//! **Invariant 2.** A plain field (a `Cell`) is used by the *holder* of the chunk: the heap that owns a slab, the
//! caller that has a block, the holder of the lock of the ranges for a free chunk. Other threads read it as a hint
//! (`system/sync.rs`).

use crate::pages::layout::{self, ARENA_ALIGN};
use crate::system::remote::{Node, Remote};
use crate::system::seen;
use crate::system::sync::{AtomicU8, Ordering, peek_cell};
use core::cell::{Cell, UnsafeCell};
use core::ptr::NonNull;

pub use crate::pages::layout::RECORD_BYTES;

/// The use of a chunk. Invariant 12: inside a free range or a large block, only the first record (and the last one of a
/// free range) has a kind; all others are [`Kind::NONE`]. So a pointer into the middle is never taken for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Kind(pub u8);

impl Kind {
    /// Inside a range or a large block, or never used.
    pub const NONE: Kind = Kind(0);
    /// First chunk of a free range.
    pub const FREE: Kind = Kind(1);
    /// Last chunk of a free range of more than one chunk.
    pub const FREE_END: Kind = Kind(2);
    /// A slab.
    pub const SLAB: Kind = Kind(3);
    /// First chunk of a large block.
    pub const LARGE: Kind = Kind(4);
    /// Holds heaps, or is lost: never free again.
    pub const HEAPS: Kind = Kind(5);
    /// First chunk of a large block in the cache of a heap: a free block that the heap keeps.
    pub const CACHED: Kind = Kind(6);
    /// First chunk of a dropped range: it waits for the purger, and is not handed out before it is clean.
    pub const DROPPED: Kind = Kind(7);
    /// First chunk of a large block of the reentrant reserve.
    pub const REENTRANT: Kind = Kind(8);
    /// First chunk of a large block that a reentrant call freed: a later call that may take locks frees its chunks.
    pub const DEFERRED: Kind = Kind(9);
}

/// State of the OS pages of a free range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Every byte is known to read as zero.
    Clean = 0,
    /// The bytes may have any value.
    Dirty = 1,
}

impl State {
    /// Decodes a byte of a record; every value except 0 means dirty.
    pub(crate) const fn from_byte(byte: u8) -> Self {
        if byte == 0 { State::Clean } else { State::Dirty }
    }
}

/// The memory of a record: the fields that have the same place for all kinds.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Chunk {
    /// The holder of the chunk changes it, also without a lock, while other threads read the kinds of neighbouring
    /// chunks under the lock of the ranges.
    kind: AtomicU8,
    /// Size class of the slab in this chunk, or of the last one; 0 for a large block.
    class: Cell<u8>,
    /// Fields that only one kind has.
    by_kind: [UnsafeCell<u8>; 22],
    next: Cell<Option<Record>>,
    prev: Cell<Option<Record>>,
    /// Slab: its owner. Large block: its usable bytes.
    owner_or_bytes: UnsafeCell<usize>,
    /// Slab: the remote frees that the owner has not collected. Deferred block: its link.
    remote: Remote<Chunk>,
}

const _: () = assert!(size_of::<Chunk>() == RECORD_BYTES, "the arena gives each record 64 bytes");
/// Offset of the owner of a slab and of the usable bytes of a large block.
pub(crate) const OWNER_OR_BYTES: usize = core::mem::offset_of!(Chunk, owner_or_bytes);
/// Offset of the fields that only one kind has; they end at [`LINKS`].
pub(crate) const BY_KIND: usize = core::mem::offset_of!(Chunk, by_kind);
/// Offset of the links of lists.
pub(crate) const LINKS: usize = core::mem::offset_of!(Chunk, next);

/// A boolean in a record: any byte is valid, every value except 0 is true.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Flag(Cell<u8>);

impl Flag {
    #[inline(always)]
    pub(crate) fn get(&self) -> bool {
        self.0.get() != 0
    }

    #[inline(always)]
    pub(crate) fn set(&self, yes: bool) {
        self.0.set(yes.into());
    }
}

/// Bytes of a record that do not belong to the kind of a view. Other threads may write them meanwhile; `UnsafeCell`, as
/// a reference to it asserts nothing about its contents.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Gap<const N: usize>(UnsafeCell<[u8; N]>);

/// The fields of a record of one kind.
///
/// # Safety
/// The type must be `repr(C, align(64))` and have 64 bytes, of cells and atomics for which any bytes are valid, with a
/// [`Gap`] at the offsets of the kind, the class, the links and the remote part, and no other padding.
pub(crate) unsafe trait View {}

/// A reference to the record of a chunk that was committed, see invariant 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Record(NonNull<Chunk>);

impl Record {
    /// The record of the chunk at `p`.
    ///
    /// # Safety
    /// `p` must lie in a committed part of an arena.
    #[inline(always)]
    pub unsafe fn at(p: *const u8) -> Record {
        // SAFETY: `p` lies in a committed part of an arena, so its record is committed too (invariant 1).
        unsafe { Self::from_address(layout::record_address(p.addr())) }
    }

    /// The record of the chunk at `p`; `None` unless `contains`, which must be true only if `p` lies in a committed
    /// part of an arena.
    #[inline(always)]
    pub(crate) fn find(p: usize, contains: bool) -> Option<Record> {
        // SAFETY: not null, as `contains` says.
        contains.then(|| unsafe { Self::from_address(layout::record_address(p)) })
    }

    /// The record whose memory lies at `address`.
    ///
    /// # Safety
    /// It must be that of a committed chunk.
    #[inline(always)]
    pub unsafe fn from_address(address: usize) -> Record {
        // SAFETY: the caller's promise: no record lies at address 0.
        Record(unsafe { NonNull::new_unchecked(layout::at(address)) })
    }

    /// The record at a pointer, or `None` for null.
    ///
    /// # Safety
    /// A pointer that is not null must come from [`Record::as_ptr`].
    #[inline]
    pub(crate) unsafe fn from_ptr(c: *mut Chunk) -> Option<Record> {
        NonNull::new(c).map(Record)
    }

    /// The memory of the record.
    #[inline]
    pub(crate) fn as_ptr(self) -> *mut Chunk {
        self.0.as_ptr()
    }

    #[inline(always)]
    fn cells(&self) -> &Chunk {
        // SAFETY: invariant 1. A shared reference to cells and atomics asserts nothing about their contents.
        unsafe { self.0.as_ref() }
    }

    /// The record with the fields of one kind. `'static`, as records are never unmapped.
    #[inline(always)]
    pub(crate) fn view<T: View>(self) -> &'static T {
        const { assert!(size_of::<T>() == RECORD_BYTES && align_of::<T>() == align_of::<Chunk>()) }
        // SAFETY: invariant 1, and the contract of `View`.
        unsafe { self.0.cast().as_ref() }
    }

    /// Address of the record.
    #[inline(always)]
    pub fn address(self) -> usize {
        self.0.addr().get()
    }

    /// Address of the first byte of the chunk.
    #[inline(always)]
    pub fn start(self) -> *mut u8 {
        layout::at(layout::chunk_address(self.address()))
    }

    /// The record of the chunk `n` chunks further on. That chunk must be committed too: the caller stays inside a
    /// range, or calls `Arenas::in_use` before it reads the record.
    #[inline(always)]
    pub fn after(self, n: usize) -> Record {
        let there = self.0.as_ptr().wrapping_add(n);
        debug_assert!((there.addr() ^ self.address()) < ARENA_ALIGN, "a record of the same arena");
        // SAFETY: not null, as it lies in the same arena's table or behind it.
        Record(unsafe { NonNull::new_unchecked(there) })
    }

    /// The record of the chunk `n` chunks before this one, as with [`Record::after`].
    #[inline(always)]
    pub fn before(self, n: usize) -> Record {
        self.after(n.wrapping_neg())
    }

    /// Number of chunks from `first` to this one.
    #[inline]
    pub(crate) fn distance(self, first: Record) -> usize {
        (self.address() - first.address()) / RECORD_BYTES
    }

    /// The kind of the chunk.
    #[inline(always)]
    pub fn kind(self) -> Kind {
        // Relaxed, here and below: a kind orders nothing. The holder of the chunk reads the current value. So does the
        // holder of the lock of the ranges for FREE, FREE_END and NONE, as chunks are freed and taken only under it.
        Kind(self.cells().kind.load(Ordering::Relaxed))
    }

    /// Sets the kind; by the holder of the chunk.
    #[inline(always)]
    pub(crate) fn set_kind(self, kind: Kind) {
        self.cells().kind.store(kind.0, Ordering::Relaxed);
    }

    /// Changes the kind from `from` to `to` in one step; false if it was not `from`.
    pub(crate) fn change_kind(self, from: Kind, to: Kind) -> bool {
        // AcqRel pairs with itself: of two threads that change the kind, the second sees what the first did. Relaxed
        // for failure: the caller does nothing then.
        self.cells().kind.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Size class of the slab in this chunk, or of the last one; by the holder of the chunk.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        usize::from(self.cells().class.get())
    }

    /// [`Record::class`] for other threads: a hint.
    #[inline]
    pub(crate) fn class_roughly(self, in_miri: usize) -> usize {
        usize::from(peek_cell(&self.cells().class, in_miri as u8))
    }

    /// Sets the class; by the holder of the chunk.
    #[inline]
    pub(crate) fn set_class(self, class: usize) {
        self.cells().class.set(class as u8);
    }

    /// The next record of the list that this one is in; by the holder of the list.
    #[inline(always)]
    pub(crate) fn next(self) -> Option<Record> {
        self.cells().next.get()
    }

    /// [`Record::next`] for other threads: a hint.
    pub(crate) fn next_roughly(self) -> Option<Record> {
        peek_cell(&self.cells().next, None)
    }

    /// Sets the link to the next record, in a list that is linked one way.
    #[inline(always)]
    pub(crate) fn set_next(self, next: Option<Record>) {
        self.cells().next.set(next);
    }

    /// The previous record of the list that this one is in; by the holder of the list.
    pub(crate) fn prev(self) -> Option<Record> {
        self.cells().prev.get()
    }

    /// The part that other threads write when they free blocks of the slab.
    #[inline(always)]
    pub fn remote(&self) -> &Remote<Chunk> {
        &self.cells().remote
    }
}

impl Node for Chunk {
    unsafe fn remote<'a>(c: *const Chunk) -> &'a Remote<Chunk> {
        // SAFETY: the caller's promise. The reference covers no other field, which the owner may write meanwhile.
        unsafe { &(*c).remote }
    }
}

/// The fields of a copy of a record, for an observer in another process. Only the fields of its `kind` mean something.
/// Any bytes are valid: the copy may be torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The kind of the chunk.
    pub kind: Kind,
    /// Size class of the slab.
    pub class: u8,
    /// Usable bytes of the large block.
    pub bytes: u64,
}

impl From<&[u8; RECORD_BYTES]> for Seen {
    fn from(record: &[u8; RECORD_BYTES]) -> Self {
        let [kind, class, bytes] = Seen::LAYOUT;
        Seen { kind: Kind(record[kind]), class: record[class], bytes: seen::word(record, bytes) }
    }
}

impl Seen {
    /// Where the fields lie.
    pub(crate) const LAYOUT: [usize; 3] =
        [core::mem::offset_of!(Chunk, kind), core::mem::offset_of!(Chunk, class), OWNER_OR_BYTES];
}

/// A list of records, newest first. All zero bytes are an empty list. Invariant: a record is in at most one list, that
/// of the holder of its chunk.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct List {
    head: Cell<Option<Record>>,
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        List { head: Cell::new(None) }
    }

    /// The first record.
    #[inline(always)]
    pub(crate) fn head(&self) -> Option<Record> {
        self.head.get()
    }

    /// Inserts `c`, which must be in no list, at the front.
    pub(crate) fn push(&self, c: Record) {
        let cells = c.cells();
        cells.next.set(self.head.get());
        cells.prev.set(None);
        if let Some(head) = self.head.get() {
            head.cells().prev.set(Some(c));
        }
        self.head.set(Some(c));
    }

    /// Removes `c`, which must be in this list.
    pub(crate) fn remove(&self, c: Record) {
        let (next, prev) = (c.next(), c.prev());
        match prev {
            None => self.head.set(next),
            Some(prev) => prev.set_next(next),
        }
        if let Some(next) = next {
            next.cells().prev.set(prev);
        }
    }

    /// Iterates over the records, first to last. Meanwhile only the links behind the current record may change.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Record> {
        core::iter::successors(self.head(), |c| c.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an observer that reads a field elsewhere than it is.
    #[test]
    fn a_copy_has_the_fields() {
        let mut record = [0xFF; RECORD_BYTES];
        record[core::mem::offset_of!(Chunk, kind)] = Kind::LARGE.0;
        record[core::mem::offset_of!(Chunk, class)] = 7;
        record[OWNER_OR_BYTES..][..8].copy_from_slice(&100_000_u64.to_ne_bytes());
        assert_eq!(Seen::from(&record), Seen { kind: Kind::LARGE, class: 7, bytes: 100_000 });
    }
}
