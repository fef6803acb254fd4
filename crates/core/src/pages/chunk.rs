//! The record that each chunk of an arena has, out of line, so that bookkeeping touches no page of a block.

use crate::system::remote::Remote;
use crate::system::sync::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, Ordering, peek};

/// What a chunk is. Invariant: inside a free range or a large block, only the first record (and the last one of a
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
    /// Holds heaps.
    pub const HEAPS: Kind = Kind(5);
    /// First chunk of a large block on the shelf of a heap: free, but the heap's.
    pub const SHELVED: Kind = Kind(6);
    /// First chunk of a range that waits for the purger, and that nobody gets before it is clean.
    pub const DROPPED: Kind = Kind(7);
    /// First chunk of a large block of the annex.
    pub const NESTED: Kind = Kind(8);
    /// First chunk of a large block that a nested call freed, and that waits for a call that may take locks.
    pub const DEFERRED: Kind = Kind(9);
}

/// The kind in a record. The holder of a chunk changes it, also under no lock, while others look at the kinds of their
/// neighbours under the lock of the ranges: so it is atomic.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicKind(AtomicU8);

impl AtomicKind {
    /// The kind.
    #[inline(always)]
    pub fn get(&self) -> Kind {
        // Relaxed, here and below: a kind orders nothing. What it says is true where the chunk is the caller's, and
        // FREE, FREE_END and NONE where the lock of the ranges is held, under which alone a chunk becomes free or is taken.
        Kind(self.0.load(Ordering::Relaxed))
    }

    /// Changes it.
    #[inline(always)]
    pub fn set(&self, kind: Kind) {
        self.0.store(kind.0, Ordering::Relaxed);
    }
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

/// The record of one chunk: 64 bytes, one cache line. All zero bytes are a record of [`Kind::NONE`].
///
/// Different threads write different fields of a record at the same time: the owner of a slab its plain fields, other threads
/// `remote`, the purger `clean`. So there is no reference to a record, only to atomic fields of it: records are used
/// through raw pointers, and functions take one instead of `self`.
///
/// Which fields mean something depends on `kind`:
/// - free range: `state`, `len`, `next`, `prev` (first chunk); `len` (last chunk);
/// - large block: `len` chunks, `bytes` usable, `carved` chunks at the front that it ever used, `apart`, `listed`;
/// - slab: `class`, `owner`, `carved`, `used`, `balance`, `hint`, `zeroed`, `listed`, `tables`, `next`, `prev`, `remote`.
///   Invariant: `used + (free bits) == carved <= capacity`, and `used` counts the blocks in caches as well.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Chunk {
    /// What this chunk is.
    pub kind: AtomicKind,
    /// Size class of the slab.
    pub class: u8,
    /// State of the free range.
    pub state: State,
    /// Slab: OS pages that were never carved hold no memory, and so read as zero. Large block: the OS page behind it is a
    /// guard.
    pub zeroed: bool,
    /// Slab: it is in its heap's list of slabs with free blocks. Large block: it is a sample, see `blocks/sampler.rs`.
    pub listed: bool,
    /// Slab: no word of the free bits below this one has a bit set. Shelved block: its age.
    pub hint: u8,
    /// Slab: remote frees counted less remote bits seen; a slab may be released at 0 only.
    pub balance: i16,
    /// Chunks in the range. Hardened slab: 1 more than the blocks that are withheld, see `harden.rs`; other slabs: 0.
    pub len: u32,
    /// Slab: blocks at the front that were handed out at least once. Large block: chunks at the front, likewise.
    pub carved: u32,
    /// Slab: blocks that are live or in a cache.
    pub used: u32,
    /// Slab: `log2` of the chunks of its arena, which says where the side tables lie.
    pub tables: u8,
    /// See [`Chunk::is_apart`].
    apart: AtomicBool,
    /// Slab: a bit for each OS page that reads as zero, as no block on it was handed out since it was purged. Bits are
    /// set by the purger while all blocks there are its own, and cleared by the owner.
    pub clean: AtomicU16,
    /// Next record of the list that this one is in, or null.
    pub next: *mut Chunk,
    /// Previous record of the list.
    pub prev: *mut Chunk,
    /// Slab: the heap that owns it, for its whole life. Large block: usable bytes, as an address. Atomic, as a visitor
    /// looks at the owner before it knows whose the chunk is.
    owner_or_bytes: AtomicPtr<()>,
    /// Slab: the frees of other threads that the owner has not seen.
    pub remote: Remote<Chunk>,
}

const _: () = assert!(size_of::<Chunk>() == RECORD_BYTES, "the arena gives each record 64 bytes");

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;

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
        const BYTES: usize = core::mem::offset_of!(Chunk, owner_or_bytes);
        let mut bytes = [0; size_of::<usize>()];
        bytes.copy_from_slice(&record[BYTES..BYTES + size_of::<usize>()]);
        Seen {
            kind: Kind(record[core::mem::offset_of!(Chunk, kind)]),
            class: record[core::mem::offset_of!(Chunk, class)],
            bytes: usize::from_ne_bytes(bytes) as u64,
        }
    }
}

impl Chunk {
    /// Changes the kind of the record `c` from one to another, in one step: false if it was not `from`.
    ///
    /// # Safety
    /// `c` must be a record.
    pub unsafe fn change_kind(c: *mut Chunk, from: Kind, to: Kind) -> bool {
        // SAFETY: the record is readable and writable.
        let kind = unsafe { &(*c).kind.0 };
        // AcqRel: of two that change it one comes second, and sees what the first did. Relaxed: then nothing is done.
        kind.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// What owns the slab: an address that means something to `blocks/slab.rs` alone.
    ///
    /// # Safety
    /// `c` must be a record; likewise below.
    #[inline]
    pub unsafe fn owner(c: *const Chunk) -> *mut () {
        // Relaxed, here and below: the owner orders nothing. Who has a block of the slab, or uses its heap, got it by a way
        // that orders the store before; a visitor who has neither confirms what it sees (`visit.rs`).
        // SAFETY: the record is readable, and this field atomic.
        unsafe { (*c).owner_or_bytes.load(Ordering::Relaxed) }
    }

    /// Sets the owner of a new slab, or none when the slab is released.
    ///
    /// # Safety
    /// The chunk of `c` must be the caller's.
    #[inline]
    pub unsafe fn set_owner(c: *mut Chunk, owner: *mut ()) {
        // SAFETY: as `owner`.
        unsafe { (*c).owner_or_bytes.store(owner, Ordering::Relaxed) }
    }

    /// Slab: its last OS page is a guard. Large block: it may be mapped unlike its neighbours, see `apart.rs`.
    ///
    /// # Safety
    /// `c` must be a record.
    #[inline]
    pub unsafe fn is_apart(c: *const Chunk) -> bool {
        // Relaxed, here and below: who changes it has the chunk, as has who looks.
        // SAFETY: the record is readable, and this field atomic.
        unsafe { (*c).apart.load(Ordering::Relaxed) }
    }

    /// Sets [`Chunk::is_apart`].
    ///
    /// # Safety
    /// The chunk of `c` must be the caller's.
    #[inline]
    pub unsafe fn set_apart(c: *mut Chunk, apart: bool) {
        // SAFETY: the record is readable, and this field atomic.
        unsafe { (*c).apart.store(apart, Ordering::Relaxed) }
    }

    /// Sets it; false if it was set before.
    ///
    /// # Safety
    /// The chunk of `c` must be the caller's.
    #[inline]
    pub unsafe fn mark_apart(c: *mut Chunk) -> bool {
        // SAFETY: the record is readable, and this field atomic.
        unsafe { !(*c).apart.swap(true, Ordering::Relaxed) }
    }

    /// Blocks of a slab that nobody ever gets, see `blocks/harden.rs`.
    ///
    /// # Safety
    /// The slab must be the caller's.
    #[inline]
    pub unsafe fn withheld(c: *const Chunk) -> u32 {
        // SAFETY: the slab is the caller's.
        unsafe { (*c).len }.saturating_sub(1)
    }

    /// Since when the shelved block waits, see `age.rs`. It has the place of a slab's hint.
    ///
    /// # Safety
    /// The block must be the caller's.
    #[inline]
    pub unsafe fn since(c: *const Chunk) -> u8 {
        // SAFETY: the block is the caller's.
        unsafe { (*c).hint }
    }

    /// [`Chunk::since`] for other threads: a guess.
    ///
    /// # Safety
    /// As [`Chunk::owner`].
    #[inline]
    pub unsafe fn since_roughly(c: *const Chunk, in_miri: u8) -> u8 {
        // SAFETY: the record is readable.
        unsafe { peek(&raw const (*c).hint, in_miri) }
    }

    /// Sets since when the shelved block waits.
    ///
    /// # Safety
    /// The block must be the caller's.
    #[inline]
    pub unsafe fn set_since(c: *mut Chunk, age: u8) {
        // SAFETY: the block is the caller's.
        unsafe { (*c).hint = age }
    }

    /// Usable bytes of the large block.
    ///
    /// # Safety
    /// As [`Chunk::owner`].
    #[inline]
    pub unsafe fn bytes(c: *const Chunk) -> usize {
        // Relaxed, here and below: the bytes of a block are its holder's; to others they are a guess.
        // SAFETY: as `owner`.
        unsafe { (*c).owner_or_bytes.load(Ordering::Relaxed) }.addr()
    }

    /// Sets the usable bytes of the large block.
    ///
    /// # Safety
    /// The block must be the caller's.
    #[inline]
    pub unsafe fn set_bytes(c: *mut Chunk, bytes: usize) {
        // SAFETY: as `owner`.
        unsafe { (*c).owner_or_bytes.store(core::ptr::without_provenance_mut(bytes), Ordering::Relaxed) }
    }
}

/// A list of records, newest first. All zero bytes are an empty list.
#[derive(Debug)]
#[repr(transparent)]
pub struct List {
    /// First record, or null.
    pub head: *mut Chunk,
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        List { head: core::ptr::null_mut() }
    }

    /// Puts `c` first.
    ///
    /// # Safety
    /// `c` must be a record in no list; the list must be the caller's alone.
    pub unsafe fn push(&mut self, c: *mut Chunk) {
        // SAFETY: records of the list are valid and the caller's alone.
        unsafe {
            (*c).next = self.head;
            (*c).prev = core::ptr::null_mut();
            if !self.head.is_null() {
                (*self.head).prev = c;
            }
        }
        self.head = c;
    }

    /// Takes `c` out.
    ///
    /// # Safety
    /// `c` must be in this list; the list must be the caller's alone.
    pub unsafe fn remove(&mut self, c: *mut Chunk) {
        // SAFETY: as `push`.
        unsafe {
            let (next, prev) = ((*c).next, (*c).prev);
            if prev.is_null() {
                self.head = next;
            } else {
                (*prev).next = next;
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
        }
    }
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl crate::system::remote::Node for Chunk {
    unsafe fn remote<'a>(c: *const Chunk) -> &'a Remote<Chunk> {
        // SAFETY: as the caller promises. Other fields of the record may be written meanwhile.
        unsafe { &(*c).remote }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a field that an observer reads at another place than its owner writes.
    #[test]
    fn an_observer_sees_what_the_owner_wrote() {
        // SAFETY: all zero bytes are a record.
        let mut record: Chunk = unsafe { core::mem::zeroed() };
        record.kind.set(Kind::LARGE);
        record.class = 7;
        // SAFETY: the record is this test's; it has that size, and every byte of it was written.
        let bytes = unsafe {
            Chunk::set_bytes(&raw mut record, 123_456);
            &*(&raw const record).cast::<[u8; RECORD_BYTES]>()
        };
        assert_eq!(Seen::from(bytes), Seen { kind: Kind::LARGE, class: 7, bytes: 123_456 });
    }
}
