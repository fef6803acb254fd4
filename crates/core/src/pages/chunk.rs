//! The record that each chunk of an arena has, out of line, so that bookkeeping touches no page of a block.
//!
//! A record is 64 bytes, one cache line. All zero bytes are a record of [`Kind::NONE`]. What stands in it beside the
//! kind depends on the kind, and is typed where that is used: free ranges in `range.rs`, slabs in `blocks/slab_record.rs`,
//! large blocks in `blocks/large_record.rs`.
//!
//! **Invariant 1.** A [`Record`] is one of a chunk that was committed. Its memory is never unmapped, and every field is a
//! cell or an atomic for which any bytes are valid: so a record may be read at any time, and what is read may be a guess.
//!
//! **Invariant 2.** A plain field (a `Cell`) is used by the one who has the chunk: the owner's heap for a slab, the caller for
//! its block, the lock of the ranges for what is free. Others read it as a guess (`system/sync.rs`).

use crate::pages::layout::{self, ARENA_ALIGN};
use crate::system::remote::{Node, Remote};
use crate::system::sync::{AtomicU8, Ordering, guess};
use core::cell::{Cell, UnsafeCell};
use core::ptr::NonNull;

pub use crate::pages::layout::RECORD_BYTES;

/// What a chunk is. Invariant 12: inside a free range or a large block, only the first record (and the last one of a
/// free range) has a kind; all others are [`Kind::NONE`]. So a pointer into the middle is never taken for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Kind(pub u8);

impl Kind {
    /// Inside a range, or never used.
    pub const NONE: Kind = Kind(0);
    /// First chunk of a free range.
    pub const FREE: Kind = Kind(1);
    /// Last chunk of a free range of more than one chunk.
    pub const FREE_END: Kind = Kind(2);
    /// A slab.
    pub const SLAB: Kind = Kind(3);
    /// First chunk of a large block.
    pub const LARGE: Kind = Kind(4);
    /// Holds heaps, or is lost.
    pub const HEAPS: Kind = Kind(5);
    /// First chunk of a large block in the cache of a heap: free, but the heap's.
    pub const CACHED: Kind = Kind(6);
    /// First chunk of a range that waits for the purger, and is not handed out before it is clean.
    pub const DROPPED: Kind = Kind(7);
    /// First chunk of a large block of the reentrant reserve.
    pub const REENTRANT: Kind = Kind(8);
    /// First chunk of a large block that a reentrant call freed, and that waits for a call that may take locks.
    pub const DEFERRED: Kind = Kind(9);
}

/// State of the OS pages of a free range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Every byte is known to read as zero.
    Clean = 0,
    /// Anything may be there.
    Dirty = 1,
}

impl State {
    /// The state in a byte of a record: any byte but 0 says that anything may be there.
    pub(crate) const fn from_byte(byte: u8) -> Self {
        if byte == 0 { State::Clean } else { State::Dirty }
    }
}

/// The memory of a record: what all kinds have at the same place.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Chunk {
    /// The holder of a chunk changes it, also under no lock, while others look at the kinds of their neighbours under the
    /// lock of the ranges.
    kind: AtomicU8,
    /// Size class of the slab that is here, or was here last; 0 for a large block.
    class: Cell<u8>,
    by_kind: [UnsafeCell<u8>; 22],
    next: Cell<Option<Record>>,
    prev: Cell<Option<Record>>,
    owner_or_bytes: UnsafeCell<usize>,
    /// Slab: the frees of other threads that the owner has not seen. Deferred block: its link.
    remote: Remote<Chunk>,
}

const _: () = assert!(size_of::<Chunk>() == RECORD_BYTES, "the arena gives each record 64 bytes");
/// Where the owner of a slab and the usable bytes of a large block stand.
pub(crate) const OWNER_OR_BYTES: usize = core::mem::offset_of!(Chunk, owner_or_bytes);
/// Where the fields of a kind may stand, from here to the links.
pub(crate) const BY_KIND: usize = core::mem::offset_of!(Chunk, by_kind);
pub(crate) const LINKS: usize = core::mem::offset_of!(Chunk, next);

/// A yes or no in a record: any byte is valid.
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

/// What a record holds for one kind.
///
/// # Safety
/// `repr(C, align(64))` of 64 bytes, made of cells and atomics for which any bytes are valid, and nothing but padding at the
/// places of the kind, the class, the links and the remote part.
pub(crate) unsafe trait View {}

/// A record that may be used, see invariant 1.
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
        let address = layout::record_address(p.addr());
        // SAFETY: not null, as the caller promises.
        Record(unsafe { NonNull::new_unchecked(layout::at(address)) })
    }

    /// The record of the chunk at `p`, if `contains` says that it lies in a committed part of an arena.
    #[inline(always)]
    pub(crate) fn find(p: usize, contains: bool) -> Option<Record> {
        let address = layout::record_address(p);
        if contains { NonNull::new(layout::at(address)).map(Record) } else { None }
    }

    /// The record whose memory lies at `address`.
    ///
    /// # Safety
    /// It must be that of a committed chunk.
    #[inline]
    pub unsafe fn from_address(address: usize) -> Record {
        // SAFETY: not null, as the caller promises.
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

    /// Its memory.
    #[inline]
    pub(crate) fn as_ptr(self) -> *mut Chunk {
        self.0.as_ptr()
    }

    #[inline(always)]
    fn cells(&self) -> &Chunk {
        // SAFETY: invariant 1. A shared reference to cells and atomics claims nothing about their contents.
        unsafe { self.0.as_ref() }
    }

    /// What it holds as a record of that kind. Records are never unmapped.
    #[inline(always)]
    pub(crate) fn view<T: View>(self) -> &'static T {
        const { assert!(size_of::<T>() == RECORD_BYTES && align_of::<T>() == align_of::<Chunk>()) }
        // SAFETY: invariant 1, and what the trait promises.
        unsafe { self.0.cast().as_ref() }
    }

    /// Address of the record.
    #[inline(always)]
    pub fn address(self) -> usize {
        self.0.addr().get()
    }

    /// First byte of the chunk.
    #[inline(always)]
    pub fn start(self) -> *mut u8 {
        layout::at(layout::chunk_address(self.address()))
    }

    /// The record of the chunk that is `n` further on. It must be committed as well: the caller stays inside a range, or asks
    /// `Arenas::in_use` before it looks.
    #[inline(always)]
    pub fn after(self, n: usize) -> Record {
        let there = self.0.as_ptr().wrapping_add(n);
        debug_assert!((there.addr() ^ self.address()) < ARENA_ALIGN, "a record of the same arena");
        // SAFETY: not null, as it lies in the same arena's table or behind it.
        Record(unsafe { NonNull::new_unchecked(there) })
    }

    /// The same, backwards.
    #[inline(always)]
    pub fn before(self, n: usize) -> Record {
        self.after(n.wrapping_neg())
    }

    /// How many chunks it lies behind `first`.
    #[inline]
    pub(crate) fn distance(self, first: Record) -> usize {
        (self.address() - first.address()) / RECORD_BYTES
    }

    /// What the chunk is.
    #[inline(always)]
    pub fn kind(self) -> Kind {
        // Relaxed, here and below: a kind orders nothing. What it says is true where the chunk is the caller's, and
        // FREE, FREE_END and NONE where the lock of the ranges is held, under which alone a chunk becomes free or is taken.
        Kind(self.cells().kind.load(Ordering::Relaxed))
    }

    /// Says what the chunk is; by its holder.
    #[inline(always)]
    pub(crate) fn set_kind(self, kind: Kind) {
        self.cells().kind.store(kind.0, Ordering::Relaxed);
    }

    /// Changes the kind from one to another, in one step: false if it was not `from`.
    pub(crate) fn change_kind(self, from: Kind, to: Kind) -> bool {
        // AcqRel: of two that change it one comes second, and sees what the first did. Relaxed: then nothing is done.
        self.cells().kind.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Size class of the slab that is here or was here last; by the holder of the chunk.
    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        usize::from(self.cells().class.get())
    }

    /// [`Record::class`] for others: a guess.
    #[inline]
    pub(crate) fn class_roughly(self, in_miri: usize) -> usize {
        usize::from(guess(&self.cells().class, in_miri as u8))
    }

    /// Sets the class; by the holder of the chunk.
    #[inline]
    pub(crate) fn set_class(self, class: usize) {
        self.cells().class.set(class as u8);
    }

    /// The next record of the list that this one is in; by who has the list.
    #[inline(always)]
    pub(crate) fn next(self) -> Option<Record> {
        self.cells().next.get()
    }

    /// [`Record::next`] for other threads: a guess.
    pub(crate) fn next_roughly(self) -> Option<Record> {
        guess(&self.cells().next, None)
    }

    /// Sets the link of a list without links backwards.
    #[inline(always)]
    pub(crate) fn set_next(self, next: Option<Record>) {
        self.cells().next.set(next);
    }

    /// The record before this one in its list.
    pub(crate) fn prev(self) -> Option<Record> {
        self.cells().prev.get()
    }

    /// The part that freeing threads write.
    #[inline(always)]
    pub fn remote(&self) -> &Remote<Chunk> {
        &self.cells().remote
    }
}

impl Node for Chunk {
    unsafe fn remote<'a>(c: *const Chunk) -> &'a Remote<Chunk> {
        // SAFETY: as the caller promises. Other fields of the record may be written meanwhile.
        unsafe { &(*c).remote }
    }
}

/// What an observer of another process can tell from a copy of a record. Only what `kind` gives a meaning to means
/// something, and any bytes are one: the copy may be torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What the chunk is.
    pub kind: Kind,
    /// Size class of the slab.
    pub class: u8,
    /// Usable bytes of the large block.
    pub bytes: u64,
}

impl From<&[u8; RECORD_BYTES]> for Seen {
    fn from(record: &[u8; RECORD_BYTES]) -> Self {
        let mut bytes = [0; size_of::<usize>()];
        bytes.copy_from_slice(&record[OWNER_OR_BYTES..OWNER_OR_BYTES + size_of::<usize>()]);
        Seen {
            kind: Kind(record[core::mem::offset_of!(Chunk, kind)]),
            class: record[core::mem::offset_of!(Chunk, class)],
            bytes: usize::from_ne_bytes(bytes) as u64,
        }
    }
}

/// A list of records, newest first. All zero bytes are an empty list. Invariant: a record is in one list at a time, that of
/// the holder of its chunk.
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

    /// First record.
    #[inline(always)]
    pub(crate) fn head(&self) -> Option<Record> {
        self.head.get()
    }

    /// Puts `c`, which is in no list, first.
    pub(crate) fn push(&self, c: Record) {
        let cells = c.cells();
        cells.next.set(self.head.get());
        cells.prev.set(None);
        if let Some(head) = self.head.get() {
            head.cells().prev.set(Some(c));
        }
        self.head.set(Some(c));
    }

    /// Takes `c`, which is in this list, out.
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

    /// The records, first to last; links must not change meanwhile but behind the one that is looked at.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Record> {
        core::iter::successors(self.head(), |c| c.next())
    }
}
