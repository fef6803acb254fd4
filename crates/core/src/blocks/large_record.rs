//! The record of a large block: how long it is, and what is special about it.

use crate::pages::chunk::{BY_KIND, Flag, Kind, LINKS, OWNER_OR_BYTES, RECORD_BYTES, Record, State, View};
use crate::system::sync::{AtomicU8, AtomicUsize, Ordering, guess};
use core::cell::Cell;

#[repr(C, align(64))]
#[derive(Debug)]
struct LargeRecord {
    _kind_and_class: [u8; BY_KIND],
    /// A [`State`]: that of the chunks behind those that the block ever used.
    behind: Cell<u8>,
    /// The OS page behind it is a guard.
    guarded: Flag,
    /// It is a sample, see `sampler.rs`.
    sample: Flag,
    /// In the cache of a heap: since when it waits, see [`crate::pages::age`].
    since: Cell<u8>,
    /// It may be mapped unlike its neighbours, see `apart.rs`. Several threads of the program may change the same block.
    apart: AtomicU8,
    _unused: u8,
    /// Chunks.
    len: Cell<u32>,
    /// Chunks at the front that it ever used.
    carved: Cell<u32>,
    _links: [u8; OWNER_OR_BYTES - LINKS + 8],
    /// Usable bytes. Atomic, as others look at them.
    bytes: AtomicUsize,
    _remote: [u8; RECORD_BYTES - OWNER_OR_BYTES - size_of::<usize>()],
}

const _: () = assert!(core::mem::offset_of!(LargeRecord, bytes) == OWNER_OR_BYTES, "observers look there");
const _: () = assert!(core::mem::offset_of!(LargeRecord, _links) <= LINKS, "the links are the list's");

// SAFETY: as the trait asks.
unsafe impl View for LargeRecord {}

/// A large block that no other thread uses but for what is atomic: the caller's, live or just freed, or one in the cache of a
/// heap that is [`Mine`](crate::blocks::heap::Mine). Having it proves that, and that the record is a large block's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large(Record);

/// Usable bytes of the large block of `c`. A guess where it is not the caller's.
#[inline]
pub(crate) fn bytes(c: Record) -> usize {
    // Relaxed, as all uses: the bytes of a block are its holder's.
    c.view::<LargeRecord>().bytes.load(Ordering::Relaxed)
}

/// Chunks of the large block of `c`, for other threads: a guess.
#[inline]
pub(crate) fn len_roughly(c: Record, in_miri: u32) -> usize {
    guess(&c.view::<LargeRecord>().len, in_miri) as usize
}

/// Since when the cached block of `c` waits, for other threads: a guess.
#[inline]
pub(crate) fn since_roughly(c: Record, in_miri: u8) -> u8 {
    guess(&c.view::<LargeRecord>().since, in_miri)
}

impl Large {
    /// The large block of `c`.
    ///
    /// # Safety
    /// `c` must be the record of a large block, and what the type proves be true.
    #[inline(always)]
    pub(crate) unsafe fn of(c: Record) -> Self {
        Large(c)
    }

    /// Makes the caller's `len` chunks from `c` on a large block of `bytes` usable bytes, in `carved` chunks; those behind are
    /// in the state `behind`. The kind is the caller's to set.
    pub(crate) fn set_up(c: Record, len: usize, carved: usize, bytes: usize, behind: State) -> Self {
        let block = Large(c);
        let record = block.record();
        record.behind.set(behind as u8);
        record.guarded.set(false);
        record.sample.set(false);
        record.apart.store(0, Ordering::Relaxed);
        record.len.set(len as u32);
        record.carved.set(carved as u32);
        // The class of an earlier slab: `misuse.rs` takes it for the size of what was here last.
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

    /// Usable bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> usize {
        bytes(self.0)
    }

    #[inline(always)]
    pub(crate) fn set_bytes(self, bytes: usize) {
        self.record().bytes.store(bytes, Ordering::Relaxed);
    }

    /// Chunks.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.record().len.get() as usize
    }

    pub(crate) fn set_len(self, len: usize) {
        self.record().len.set(len as u32);
    }

    /// Chunks at the front that it ever used.
    #[inline(always)]
    pub(crate) fn carved(self) -> usize {
        self.record().carved.get() as usize
    }

    #[inline(always)]
    pub(crate) fn set_carved(self, chunks: usize) {
        self.record().carved.set(chunks as u32);
    }

    /// The state of the chunks behind those that it ever used.
    #[inline]
    pub(crate) fn behind(self) -> State {
        State::from_byte(self.record().behind.get())
    }

    pub(crate) fn set_behind(self, state: State) {
        self.record().behind.set(state as u8);
    }

    /// Whether the OS page behind it is a guard.
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

    /// In the cache of a heap: since when it waits.
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
        // Relaxed, here and below: who changes it has the block, as has who looks.
        self.record().apart.load(Ordering::Relaxed) != 0
    }

    /// Sets [`Large::is_apart`]; whether it was so before.
    pub(crate) fn set_apart(self, apart: bool) -> bool {
        self.record().apart.swap(apart.into(), Ordering::Relaxed) != 0
    }

    /// Its kind from now on.
    #[inline(always)]
    pub(crate) fn set_kind(self, kind: Kind) {
        self.0.set_kind(kind);
    }
}
