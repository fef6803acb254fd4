//! The record of a large block: its length, and its special properties.

use crate::CHUNK;
use crate::blocks::class;
use crate::pages::chunk::{BY_KIND, Flag, Gap, Kind, LINKS, OWNER_OR_BYTES, RECORD_BYTES, Record, State, View};
use crate::pages::owned::Owned;
use crate::system::seen;
use crate::system::sync::{AtomicU8, AtomicUsize, Ordering, peek_cell};
use core::cell::Cell;

#[repr(C, align(64))]
#[derive(Debug)]
struct LargeRecord {
    _kind_and_class: Gap<BY_KIND>,
    /// The [`State`] of the chunks after those that the block ever used.
    behind: Cell<u8>,
    /// The OS page after it is a guard.
    guarded: Flag,
    /// It is a sample, see `sampler.rs`.
    sample: Flag,
    /// In a heap's cache: the epoch since which it waits, see [`crate::pages::age`].
    since: Cell<u8>,
    /// It may be mapped unlike its neighbours, see `apart.rs`. Atomic, as several threads of the program may change the
    /// same block.
    apart: AtomicU8,
    /// Of a sample: the class of the small block that it replaces; 0 if it replaces none.
    like: Cell<u8>,
    /// Number of chunks.
    len: Cell<u32>,
    /// Number of chunks at the front that it ever used.
    carved: Cell<u32>,
    /// Of a sample that is a large block only for that: where its block would lie otherwise; else 0.
    place: Cell<usize>,
    _links: Gap<{ OWNER_OR_BYTES - LINKS }>,
    /// Usable bytes. Atomic, as other threads read them.
    bytes: AtomicUsize,
    _remote: Gap<{ RECORD_BYTES - OWNER_OR_BYTES - size_of::<usize>() }>,
}

const _: () = assert!(core::mem::offset_of!(LargeRecord, bytes) == OWNER_OR_BYTES, "observers look there");
const _: () = assert!(core::mem::offset_of!(LargeRecord, _links) == LINKS, "the gap is where the links are");

// SAFETY: 64 bytes of cells and atomics, with padding where the trait requires it (asserted above).
unsafe impl View for LargeRecord {}

/// A large block of which no other thread uses more than the atomic fields: one of the caller's, live or just freed, or
/// one in the cache of a heap that is [`Mine`](crate::blocks::heap::Mine). Having it proves that, and that the record
/// is a large block's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large(Record);

/// Usable bytes of the large block of `c`. Approximate if it is not the caller's.
#[inline]
pub(crate) fn bytes(c: Record) -> usize {
    // Relaxed, as all uses: the holder of the block orders them.
    c.view::<LargeRecord>().bytes.load(Ordering::Relaxed)
}

/// Number of chunks of the large block of `c`, for other threads: approximate.
#[inline]
pub(crate) fn len_roughly(c: Record, in_miri: u32) -> usize {
    peek_cell(&c.view::<LargeRecord>().len, in_miri) as usize
}

/// Epoch since which the cached block of `c` waits, for other threads: approximate.
#[inline]
pub(crate) fn since_roughly(c: Record, in_miri: u8) -> u8 {
    peek_cell(&c.view::<LargeRecord>().since, in_miri)
}

/// The fields of a copy of a large block's record, for an observer in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenLarge {
    /// It is a sample.
    pub sample: bool,
    /// Of a sample that is a large block only for that: where its block would lie otherwise; else 0.
    pub place: u64,
}

impl SeenLarge {
    /// Where the fields lie.
    pub(crate) const LAYOUT: [usize; 2] =
        [core::mem::offset_of!(LargeRecord, sample), core::mem::offset_of!(LargeRecord, place)];
}

impl From<&[u8; RECORD_BYTES]> for SeenLarge {
    fn from(record: &[u8; RECORD_BYTES]) -> Self {
        let [sample, place] = Self::LAYOUT;
        SeenLarge { sample: record[sample] != 0, place: seen::word(record, place) }
    }
}

impl Large {
    /// Returns the large block of `c`.
    ///
    /// # Safety
    /// `c` must be the record of a large block, and what the type proves must be true.
    #[inline(always)]
    pub(crate) unsafe fn of(c: Record) -> Self {
        Large(c)
    }

    /// Makes the caller's `len` chunks from `c` on a large block of `bytes` usable bytes, in `carved` chunks; the
    /// chunks after those have the state `behind`. The caller sets the kind.
    pub(crate) fn set_up(c: Record, len: usize, carved: usize, bytes: usize, behind: State) -> Self {
        let block = Large(c);
        let record = block.record();
        record.behind.set(behind as u8);
        record.guarded.set(false);
        record.sample.set(false);
        record.place.set(0);
        record.apart.store(0, Ordering::Relaxed);
        record.len.set(len as u32);
        record.carved.set(carved as u32);
        // Forgets the class of an earlier slab: `misuse.rs` would take it for the size of the last block here
        // (invariant 17).
        c.set_class(0);
        block.set_bytes(bytes);
        block
    }

    /// Its record.
    #[inline(always)]
    pub(crate) fn chunk(self) -> Record {
        self.0
    }

    #[inline(always)]
    fn record(self) -> &'static LargeRecord {
        self.0.view()
    }

    /// Its first byte.
    #[inline(always)]
    pub(crate) fn start(self) -> *mut u8 {
        self.0.start()
    }

    /// Its memory: the first `len` bytes of its chunks.
    #[inline]
    pub(crate) fn memory(self, len: usize) -> Owned {
        debug_assert!(len <= self.len() * CHUNK);
        // SAFETY: the chunks of a large block are committed, and the holder's.
        unsafe { Owned::of(self.start(), len) }
    }

    /// Usable bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> usize {
        bytes(self.0)
    }

    #[inline(always)]
    pub(crate) fn set_bytes(self, bytes: usize) {
        self.record().bytes.store(bytes, Ordering::Relaxed);
    }

    /// Number of chunks.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.record().len.get() as usize
    }

    pub(crate) fn set_len(self, len: usize) {
        self.record().len.set(len as u32);
    }

    /// Number of chunks at the front that it ever used.
    #[inline(always)]
    pub(crate) fn carved(self) -> usize {
        self.record().carved.get() as usize
    }

    #[inline(always)]
    pub(crate) fn set_carved(self, chunks: usize) {
        self.record().carved.set(chunks as u32);
    }

    /// State of the chunks after those that it ever used.
    #[inline]
    pub(crate) fn behind(self) -> State {
        State::from_byte(self.record().behind.get())
    }

    pub(crate) fn set_behind(self, state: State) {
        self.record().behind.set(state as u8);
    }

    /// Whether the OS page after it is a guard.
    #[inline]
    pub(crate) fn is_guarded(self) -> bool {
        self.record().guarded.get()
    }

    pub(crate) fn set_guarded(self, guarded: bool) {
        self.record().guarded.set(guarded);
    }

    /// Whether it is a sample.
    #[inline]
    pub(crate) fn is_sample(self) -> bool {
        self.record().sample.get()
    }

    #[inline]
    pub(crate) fn set_sample(self, sample: bool) {
        self.record().sample.set(sample);
    }

    /// Makes it a sample of `size` requested bytes.
    pub(crate) fn set_sample_of(self, size: usize) {
        let like = if size <= class::MAX_SMALL { class::of(size) } else { 0 };
        self.record().like.set(like as u8);
        // An earlier sample may have left its place, and a cache has kept it.
        self.record().place.set(0);
        self.set_sample(true);
    }

    /// Of a sample: the usable bytes that the block would have if it were no sample.
    pub(crate) fn ordinary_bytes(self) -> usize {
        match self.record().like.get() {
            0 => self.bytes(),
            like => class::SIZE[usize::from(like)] as usize,
        }
    }

    /// Notes where the block of a sample would lie otherwise, for observers.
    pub(crate) fn set_place(self, place: *mut u8) {
        self.record().place.set(place.addr());
    }

    /// In a heap's cache: the epoch since which it waits.
    pub(crate) fn since(self) -> u8 {
        self.record().since.get()
    }

    #[inline]
    pub(crate) fn set_since(self, age: u8) {
        self.record().since.set(age);
    }

    /// Whether it may be mapped unlike its neighbours.
    #[inline]
    pub(crate) fn is_apart(self) -> bool {
        // Relaxed, here and below: the thread that changes it has the block, as has the thread that reads it.
        self.record().apart.load(Ordering::Relaxed) != 0
    }

    /// Sets [`Large::is_apart`]; returns the value before.
    pub(crate) fn set_apart(self, apart: bool) -> bool {
        self.record().apart.swap(apart.into(), Ordering::Relaxed) != 0
    }

    /// Sets its kind.
    #[inline(always)]
    pub(crate) fn set_kind(self, kind: Kind) {
        self.0.set_kind(kind);
    }
}
