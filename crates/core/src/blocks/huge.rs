//! Huge blocks: serves each request by a mapping of its own, where no arena can hold the block: above
//! [`crate::blocks::large::MAX_LARGE`], or if address space is limited.
//!
//! Their addresses and lengths are in slots, searched from the first: linear in the number of huge blocks, of which
//! there are few. Without a lock, so that reentrant calls may use them. A slot is null, `TAKEN` while its block is
//! made, resized or freed, or the address of a block. Of several threads that swap the address for `TAKEN`, one
//! succeeds, and only that one resizes or frees the block (invariant 32). Further tables of slots are mapped when
//! needed, and stay.

use crate::blocks::given::Given;
use crate::pages::Pages;
use crate::pages::chunk::State;
use crate::pages::range::Ranges;
use crate::system::seen;
use crate::system::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::{CHUNK, Os};
use core::mem::offset_of;

/// Minimum bytes of a huge block that is aligned to a chunk or less, except in reentrant calls: if arenas are
/// exhausted, smaller requests fail.
const MIN_HUGE: usize = 1 << 20;
/// Where the system limits what is committed, shorter blocks are huge too if they would waste at least one part in
/// `SCARCE` of their size, as long as there are fewer than `MOST_SCARCE` huge blocks.
const SCARCE: usize = 16;
const MOST_SCARCE: usize = 4096;
/// Number of slots that need no mapping.
const FIRST: usize = 32;
/// Number of slots of a table, which is a chunk long: whole OS pages of any size.
const SLOTS: usize = (CHUNK - size_of::<usize>()) / size_of::<Slot>();
/// Value of a slot that is neither free nor a block.
const TAKEN: *mut u8 = core::ptr::without_provenance_mut(1);

/// Slot for one huge block. All bytes zero: a free slot.
#[derive(Debug)]
struct Slot {
    p: AtomicPtr<u8>,
    /// Written while the slot is [`TAKEN`].
    bytes: AtomicUsize,
}

/// A table of more slots. All bytes zero: the last table, without blocks.
#[repr(C)]
#[derive(Debug)]
struct Table {
    next: *mut Table,
    slots: [Slot; SLOTS],
}

const _: () = assert!(size_of::<Table>() <= CHUNK, "a table has a mapping of a chunk's length");

/// The table at an address that [`Huge`] has, which is not null.
fn table_at<'a>(table: *mut Table) -> &'a Table {
    // SAFETY: tables are never unmapped, and their links never change.
    unsafe { &*table }
}

/// Copies of huge blocks' slots, for an observer in another process.
#[derive(Clone, Debug)]
pub struct SeenHuge<'a> {
    slots: &'a [u8],
    /// The next table of slots; 0: none.
    pub next: u64,
}

impl<'a> SeenHuge<'a> {
    /// Where the fields lie, and their lengths.
    pub(crate) const LAYOUT: [usize; 9] = [
        offset_of!(Huge, first),
        FIRST,
        offset_of!(Huge, more),
        offset_of!(Table, slots),
        SLOTS,
        offset_of!(Table, next),
        size_of::<Slot>(),
        offset_of!(Slot, p),
        offset_of!(Slot, bytes),
    ];
    /// Length of a copy of what is known without a table.
    pub const BYTES: usize = size_of::<Huge>();
    /// Length of a copy of a table, which is that of its mapping.
    pub const TABLE_BYTES: usize = CHUNK;

    /// The slots in a copy of what is known without a table.
    pub fn first(copy: &'a [u8]) -> Self {
        let [first, count, more, ..] = Self::LAYOUT;
        SeenHuge { slots: slots(copy, first, count), next: seen::word(copy, more) }
    }

    /// The slots in a copy of a table.
    pub fn table(copy: &'a [u8]) -> Self {
        let [.., table, count, next, _, _, _] = Self::LAYOUT;
        SeenHuge { slots: slots(copy, table, count), next: seen::word(copy, next) }
    }

    /// Address and length of each block.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let [.., p, bytes] = Self::LAYOUT;
        let all =
            self.slots.chunks_exact(size_of::<Slot>()).map(move |slot| (seen::word(slot, p), seen::word(slot, bytes)));
        all.filter(|&(at, bytes)| at > TAKEN.addr() as u64 && bytes > 0)
    }
}

fn slots(copy: &[u8], at: usize, count: usize) -> &[u8] {
    copy.get(at..at + count * size_of::<Slot>()).unwrap_or(&[])
}

/// All huge blocks.
#[derive(Debug)]
pub struct Huge {
    first: [Slot; FIRST],
    /// The newest table.
    more: AtomicPtr<Table>,
    count: AtomicUsize,
    /// Maximum number of blocks at one time so far, and maximum bytes.
    most_blocks: AtomicUsize,
    most_bytes: AtomicUsize,
}

// SAFETY: slots are atomic; a table's link is written before the table is published.
unsafe impl Sync for Huge {}

impl Huge {
    /// No huge blocks.
    pub const fn new() -> Self {
        Huge {
            first: [const { Slot { p: AtomicPtr::new(core::ptr::null_mut()), bytes: AtomicUsize::new(0) } }; FIRST],
            more: AtomicPtr::new(core::ptr::null_mut()),
            count: AtomicUsize::new(0),
            most_blocks: AtomicUsize::new(0),
            most_bytes: AtomicUsize::new(0),
        }
    }

    /// Returns the first slot for which `f` is true.
    fn find_slot(&self, mut f: impl FnMut(&Slot) -> bool) -> Option<&Slot> {
        if let Some(slot) = self.first.iter().find(|slot| f(slot)) {
            return Some(slot);
        }
        // Acquire pairs with the Release of `more_slots`: the table is linked.
        let mut table = self.more.load(Ordering::Acquire);
        while !table.is_null() {
            let slots = table_at(table);
            if let Some(slot) = slots.slots.iter().find(|slot| f(slot)) {
                return Some(slot);
            }
            table = slots.next;
        }
        None
    }

    /// Returns the slot of the block at `p`, after swapping `p` for `to`: [`TAKEN`], or `p` to leave it as it is.
    fn find(&self, p: *mut u8, to: *mut u8) -> Option<&Slot> {
        if self.count() == 0 || p.is_null() || p == TAKEN {
            return None;
        }
        // Acquire pairs with the Release of `map` and `resize`. Of two threads that free the block, one finds it.
        self.find_slot(|s| {
            s.p.load(Ordering::Relaxed) == p
                && s.p.compare_exchange(p, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes a slot, which is [`TAKEN`] then. `None` if there is no memory for more slots.
    fn reserve<O: Os>(&self, os: &O) -> Option<&Slot> {
        let take = |s: &Slot| {
            s.p.load(Ordering::Relaxed).is_null()
                // Acquire pairs with the Release of `free`: the last use of the slot is over.
                && s.p.compare_exchange(core::ptr::null_mut(), TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        self.find_slot(take).or_else(|| if self.more_slots(os) { self.find_slot(take) } else { None })
    }

    /// Maps a table of slots. False if there is no memory.
    fn more_slots<O: Os>(&self, os: &O) -> bool {
        let Some(table) = os.map(CHUNK, os.page_size()) else { return false };
        let table = table.cast::<Table>();
        let mut next = self.more.load(Ordering::Acquire);
        loop {
            // SAFETY: a fresh mapping of zeroes, long enough, and the caller's alone until the exchange.
            unsafe { (*table).next = next };
            match self.more.compare_exchange_weak(next, table, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => next = now,
            }
        }
    }

    /// Checks that no two blocks overlap, and that they are counted. For tests. Quadratic.
    pub(crate) fn is_valid(&self) -> bool {
        let (mut apart, mut count) = (true, 0);
        let range = |s: &Slot| (s.p.load(Ordering::Relaxed).addr(), s.bytes.load(Ordering::Relaxed));
        self.find_slot(|a| {
            let (p, bytes) = range(a);
            if p == 0 {
                return false;
            }
            count += 1;
            apart &= p != TAKEN.addr() && bytes > 0;
            self.find_slot(|b| {
                let (q, more) = range(b);
                apart &= core::ptr::eq(a, b) || q == 0 || p + bytes <= q || q + more <= p;
                false
            });
            false
        });
        apart && count == self.count()
    }

    /// Calls `f` with start and length of each mapping, and whether it is a block; otherwise it is a table of slots.
    pub(crate) fn for_each_mapping(&self, mut f: impl FnMut(*mut u8, usize, bool)) {
        self.find_slot(|s| {
            // Acquire pairs with the Release of `map` and `resize`: the length is seen.
            let p = s.p.load(Ordering::Acquire);
            if !p.is_null() && p != TAKEN {
                f(p, s.bytes.load(Ordering::Relaxed), true);
            }
            false
        });
        // Acquire pairs with the Release of `more_slots`.
        let mut table = self.more.load(Ordering::Acquire);
        while !table.is_null() {
            f(table.cast(), CHUNK, false);
            table = table_at(table).next;
        }
    }

    /// Updates the maxima: there are `blocks` of `bytes` now.
    fn note_most(&self, blocks: usize, bytes: usize) {
        // Relaxed: each number stands for itself.
        self.most_blocks.fetch_max(blocks, Ordering::Relaxed);
        self.most_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Maximum number of blocks at one time so far, and maximum bytes.
    pub(crate) fn most(&self) -> (usize, usize) {
        (self.most_blocks.load(Ordering::Relaxed), self.most_bytes.load(Ordering::Relaxed))
    }

    /// Number of huge blocks at present.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Huge {
    /// Returns a huge block, zeroed, or null if there is no memory.
    pub(crate) fn malloc<O: Os>(&self, pages: &Pages<O>, size: usize, align: usize) -> *mut u8 {
        // The memory of a huge block never comes from the pool.
        if (size < MIN_HUGE && align <= CHUNK) || pages.policy.pool_only() {
            return core::ptr::null_mut();
        }
        self.map_allowed(pages, size, align)
    }

    /// [`Huge::malloc`] of a block that would waste much of its chunks, where the system limits what is committed and
    /// no free range has room: a mapping takes just what it needs, and gives it back when it is freed. Null otherwise.
    pub(crate) fn malloc_scarce<O: Os>(&self, pages: &Pages<O>, size: usize, align: usize) -> *mut u8 {
        let chunks = size.div_ceil(CHUNK);
        let wasted = chunks * CHUNK - size;
        // A hardened block needs room for its guard.
        let may = self.count() < MOST_SCARCE && !pages.policy.pool_only() && !pages.policy.harden();
        // Stranded: the free ranges may be half changed.
        if !pages.arenas.is_scarce() || wasted < size / SCARCE || !may || pages.is_stranded() {
            return core::ptr::null_mut();
        }
        let has = |r: &Ranges| [State::Dirty, State::Clean].iter().any(|&state| r.has_for(chunks, align, state));
        if pages.ranges.with(&pages.os, |r| has(r)) {
            return core::ptr::null_mut();
        }
        self.map_allowed(pages, size, align)
    }

    /// [`Huge::map`] as far as the process's own limit allows.
    fn map_allowed<O: Os>(&self, pages: &Pages<O>, size: usize, align: usize) -> *mut u8 {
        if !pages.ranges.with(&pages.os, |r| pages.is_allowed(r, size.div_ceil(CHUNK), false)) {
            return core::ptr::null_mut();
        }
        self.map(pages, size, align)
    }

    /// Like [`Huge::malloc`], of any size, and regardless of the process's own limit. Takes no lock.
    pub(crate) fn map<O: Os>(&self, pages: &Pages<O>, size: usize, align: usize) -> *mut u8 {
        let page = pages.os.page_size();
        let Some(bytes) = size.max(1).checked_next_multiple_of(page) else {
            return core::ptr::null_mut();
        };
        let Some(slot) = self.reserve(&pages.os) else {
            return core::ptr::null_mut();
        };
        let p = pages.os.map(bytes, align.max(page)).unwrap_or(core::ptr::null_mut());
        if !p.is_null() {
            slot.bytes.store(bytes, Ordering::Relaxed);
            let blocks = self.count.fetch_add(1, Ordering::Relaxed) + 1;
            let all = pages.huge_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            self.note_most(blocks, all);
        }
        // Release pairs with the Acquire of `find`, which then sees the length; or of `reserve`, if the slot is free
        // again.
        slot.p.store(p, Ordering::Release);
        p
    }

    /// Usable bytes of the huge block at `p`, if there is one.
    pub(crate) fn bytes(&self, p: *mut u8) -> Option<usize> {
        self.find(p, p).map(|slot| slot.bytes.load(Ordering::Relaxed))
    }

    /// Frees the huge block at `given`; false if there is none.
    pub(crate) fn free<O: Os>(&self, pages: &Pages<O>, given: Given) -> bool {
        let p = given.ptr();
        let Some(slot) = self.find(p, TAKEN) else { return false };
        let bytes = slot.bytes.load(Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
        pages.huge_bytes.fetch_sub(bytes, Ordering::Relaxed);
        // Release pairs with the Acquire of `reserve`. Before the unmap, as others may get the address after it.
        slot.p.store(core::ptr::null_mut(), Ordering::Release);
        // At the limit on mappings the system may refuse to unmap, as that may need one more mapping. Then at least the
        // memory goes back.
        // SAFETY: the mapping is in no slot, so no other thread uses it.
        let _ = unsafe { pages.os.unmap(p, bytes) };
        true
    }

    /// Resizes the huge block at `given`, and moves its OS pages if needed. Returns null if that fails; then the block
    /// is unchanged.
    pub(crate) fn resize<O: Os>(&self, pages: &Pages<O>, given: Given, size: usize) -> *mut u8 {
        let p = given.ptr();
        let null = core::ptr::null_mut();
        let Some(bytes) = size.checked_next_multiple_of(pages.page_size()).filter(|&bytes| bytes >= MIN_HUGE) else {
            return null;
        };
        let more = bytes.saturating_sub(self.bytes(p).unwrap_or(0)).div_ceil(CHUNK);
        if !pages.ranges.with(&pages.os, |r| pages.is_allowed(r, more, false)) {
            return null;
        }
        // Taken during the move: others may get the old address as soon as the OS pages have moved.
        let Some(slot) = self.find(p, TAKEN) else { return null };
        let old = slot.bytes.load(Ordering::Relaxed);
        // SAFETY: a block in a slot is a mapping of `Os::map` (invariant 32), and the caller's, as `Given` proves.
        let moved = unsafe { pages.os.remap(p, old, bytes) };
        if moved.is_some() {
            // Relaxed, as all uses: a count. It wraps around if the block shrinks, which subtracts.
            let more = bytes.wrapping_sub(old);
            let all = pages.huge_bytes.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
            self.note_most(0, all);
            slot.bytes.store(bytes, Ordering::Relaxed);
        }
        // Release pairs with the Acquire of `find`: the length is seen.
        slot.p.store(moved.unwrap_or(p), Ordering::Release);
        moved.unwrap_or(null)
    }
}
