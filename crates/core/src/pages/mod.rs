//! The layer of pages: which memory the process has. Layers above take chunks of arenas here and give them back, in
//! ranges, clean or dirty.
//!
//! This layer does not depend on blocks or heaps. Where a change here causes work for a layer above, this layer leaves
//! a note (`notes.rs`).

pub mod age;
pub mod arena;
pub mod chunk;
pub mod commit;
pub mod demand;
pub mod dense;
pub(crate) mod growth;
pub mod held;
pub(crate) mod huge_area;
pub mod layout;
pub mod notes;
pub(crate) mod owned;
pub mod page_map;
pub mod place;
mod prefault;
pub mod range;
pub mod reentrant_reserve;
pub mod release;
pub mod reserve;
pub mod space;
pub mod tables;
mod take;

use crate::pages::arena::UnderLock;
use crate::pages::chunk::{Kind, Record};
use crate::pages::held::{News, Use};
use crate::pages::notes::{DEFERRED, GROWN, Notes, SHRUNK, TABLES, WANTED};
use crate::pages::range::Ranges;
use crate::pages::space::Space;
use crate::system::helper::Who;
use crate::system::lock::Locked;
use crate::system::policy::{HugePages, Limit, Purge};
use crate::system::sync::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use crate::system::time::passed;
use crate::{CHUNK, CHUNK_SHIFT, Os};
use core::ops::Deref;

/// Minimum number of waiting chunks before a purger is requested. The simulation has little memory, so its limits are
/// lower.
pub(crate) const START_CHUNKS: usize = if cfg!(neap_sim) { 2 } else { (1 << 20) / CHUNK };
/// Minimum number of chunks freed between two purges of side tables while the program is busy.
pub(crate) const FREED: usize = (1 << 30) / CHUNK;
/// Where the ticks of the helper are longer than this, slow paths publish figures as well.
const LONG_TICK_MS: u32 = 200;

/// Milliseconds without a sign of the helper after which the threads that free memory do a part of its work, if at least
/// `LATE_CHUNKS` wait.
const LATE_MS: u64 = 500;
const LATE_CHUNKS: usize = if cfg!(neap_sim) { 4 } else { (4 << 20) / CHUNK };

/// Chunks to give back: the record of the first, their number, and their age.
pub(crate) type Part = (Record, usize, u8);

/// The memory of a process, in chunks.
#[derive(Debug)]
pub struct Pages<O: Os> {
    space: Space<O>,
    pub(crate) ranges: Locked<Ranges>,
    pub(crate) notes: Notes,
    /// The current epoch, see `age.rs`.
    pub(crate) epoch: AtomicU8,
    /// Bytes of all huge blocks: mappings outside of arenas, which count against the limit for this process.
    pub(crate) huge_bytes: AtomicUsize,
    /// Number of ranges that were marked for huge pages, see `dense.rs`.
    marks: AtomicUsize,
    /// True in the child of a fork that was made in a reentrant call: other threads of the parent may have left any
    /// structure half changed.
    pub(crate) stranded: AtomicBool,
}

impl<O: Os> Deref for Pages<O> {
    type Target = Space<O>;

    #[inline(always)]
    fn deref(&self) -> &Space<O> {
        &self.space
    }
}

impl<O: Os> Pages<O> {
    /// See `Allocator::REQUEST_AT`.
    pub(crate) const REQUEST_AT: usize = core::mem::offset_of!(Self, notes) + Notes::REQUEST_AT;
    /// See `Allocator::READERS_AT`.
    pub(crate) const READERS_AT: usize = core::mem::offset_of!(Self, notes) + Notes::READERS_AT;

    /// Where an observer in another process finds the arenas.
    pub(crate) const ARENAS_AT: usize = core::mem::offset_of!(Self, space) + Space::<O>::ARENAS_AT;

    /// A process that has taken no memory yet.
    pub const fn new(os: O) -> Self {
        Pages {
            space: Space::new(os),
            ranges: Locked::new(Ranges::new()),
            notes: Notes::new(),
            epoch: AtomicU8::new(age::FIRST),
            huge_bytes: AtomicUsize::new(0),
            marks: AtomicUsize::new(0),
            stranded: AtomicBool::new(false),
        }
    }

    /// Reserves address space at the first use. The caller holds the lock of the registry.
    pub(crate) fn set_up(&self) {
        self.look_up_page_size();
        // The arena first: the length that it gets shows whether there is address space for the page map.
        if self.ranges.with(&self.os, |r| self.arenas.set_up(&self.os, r.lock())) {
            self.map.set_up(&self.os);
        }
        // After the page map, which must have an entry for each slab of the reentrant reserve.
        self.ranges.with(&self.os, |r| self.arenas.open_reentrant_reserve(r.lock()));
    }

    /// The current epoch: the age of memory that is freed now.
    #[inline]
    pub fn epoch(&self) -> u8 {
        // Relaxed: an age that is off by one makes a purge come one tick early or late.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Time between two ticks, in milliseconds.
    pub fn tick_length(&self) -> u32 {
        age::tick_length(self.policy.delay())
    }

    /// Whether this is the child of a fork that was made in a reentrant call. Other threads of the parent may have left
    /// any structure half changed, so all further calls must be reentrant ones.
    #[inline]
    pub fn is_stranded(&self) -> bool {
        self.stranded.load(Ordering::Relaxed)
    }

    /// Frees chunks of the caller that were used for `what`. `parts` runs under the lock and returns the chunks to
    /// free, or `None`. Returns whether there were any.
    pub(crate) fn give_chunks<const N: usize>(
        &self,
        what: Use,
        parts: impl FnOnce(&UnderLock) -> Option<[Part; N]>,
    ) -> bool {
        self.ranges.with(&self.os, |r| {
            let parts = parts(r.lock());
            // Stranded: as in `take_or_step`. The chunks are lost then.
            if let Some(parts) = parts
                && !self.is_stranded()
            {
                r.held.give(what);
                self.give_parts(r, parts);
            }
            self.note_given(r);
            parts.is_some()
        })
    }

    /// Frees chunks of the caller.
    #[inline]
    pub(crate) fn give_parts<const N: usize>(&self, r: &mut Ranges, parts: [Part; N]) {
        for (c, len, since) in parts {
            if len > 0 {
                r.give(&self.arenas, c, len, since);
            }
        }
    }

    /// Gives up chunks of the caller that were used for `what`, as the system refuses to make all of them accessible
    /// again. They count as chunks of heaps, which are never freed.
    #[cold]
    pub(crate) fn lose_chunks(&self, c: Record, len: usize, what: Use) {
        self.ranges.with(&self.os, |r| {
            r.held.give(what);
            self.mark_lost(r.lock(), c, len);
        });
    }

    /// Marks chunks of the caller as lost.
    pub(crate) fn mark_lost(&self, lock: &UnderLock, c: Record, len: usize) {
        age::set(&self.arenas, lock, c, len, age::NONE);
        (0..len).for_each(|i| c.after(i).set_kind(Kind::HEAPS));
    }

    /// Notes that the program took much clean memory: a helper may put it into huge pages (`back/promote.rs`).
    pub(crate) fn note_growth(&self) {
        if matches!(self.policy.huge(), HugePages::Adaptive | HugePages::Advised) && self.os.has_huge_pages(true) {
            self.notes.note_growth();
            if !self.has_helper() {
                self.want();
            }
        }
    }

    /// Leaves the notes that are due after chunks were freed. The caller holds the lock of the ranges.
    #[inline]
    pub(crate) fn note_given(&self, r: &mut Ranges) {
        self.note_waiting(r.waiting());
        // Without a helper (for example, where memory goes back at once) the slow paths purge the side tables.
        if r.freed_chunks >= FREED && !self.has_helper() {
            self.notes.leave(TABLES);
        }
        self.note_news(r);
    }

    /// Requests a purger where needed, after memory was freed; `chunks` wait now. The caller holds the lock of the
    /// ranges.
    #[inline]
    pub(crate) fn note_waiting(&self, chunks: usize) {
        if chunks < START_CHUNKS {
            return;
        }
        self.notes.look_at_waiting(chunks);
        // `has_helper` is sequentially consistent: see `helper.rs`.
        // Relaxed: an old limit wakes the helper once too often, or lets memory wait for the next tick.
        let is_wanted = !self.has_helper() || chunks * CHUNK > self.notes.most.load(Ordering::Relaxed);
        if is_wanted || (chunks >= LATE_CHUNKS && self.is_helper_late()) {
            self.want();
        }
    }

    /// Notes that a slab, which had no waiting memory, has some now.
    #[inline]
    pub(crate) fn note_slab(&self) {
        if self.notes.slab_waits() && !self.has_helper() {
            self.want();
        }
    }

    /// Notes that a cache may hold `bytes` more than before.
    #[cold]
    pub(crate) fn note_room(&self, bytes: usize) {
        if self.notes.add_room(bytes) && !self.has_helper() {
            self.want();
        }
    }

    /// Notes that a reentrant call or a fork left work to do.
    pub(crate) fn note_deferred(&self) {
        self.notes.leave(DEFERRED);
    }

    /// Leaves a note for observers, if enough chunks were taken or given back. The caller holds the lock of the ranges.
    #[inline]
    pub(crate) fn note_news(&self, r: &mut Ranges) {
        r.peak_chunks = r.peak_chunks.max(r.footprint());
        let news = match r.held.news(r.taken_chunks()) {
            News::None => return,
            News::Shrunk => SHRUNK,
            News::Grown => GROWN,
        };
        if !(self.has_helper() && self.tick_length() <= LONG_TICK_MS) {
            self.notes.leave(news);
        }
    }

    /// Notes that a purger has to be started or woken.
    pub(crate) fn want(&self) {
        if self.policy.purge() != Purge::Never {
            self.notes.leave(WANTED);
        }
    }

    /// Whether a helper thread will purge the memory that is freed now.
    #[cfg_attr(neap_sim, track_caller)]
    pub(crate) fn has_helper(&self) -> bool {
        self.os.helper().who() == Who::Helper
    }

    /// Notes that the helper runs, or is asked for.
    pub fn note_helper(&self) {
        // Relaxed, also below: a time that stands for itself.
        self.notes.helped.store(self.os.clock(), Ordering::Relaxed);
    }

    /// Whether the helper has not run for a while, although it looks around many times a second: it gets no processor.
    #[cold]
    pub(crate) fn is_helper_late(&self) -> bool {
        passed(self.os.clock(), self.notes.helped.load(Ordering::Relaxed)) >= LATE_MS
    }

    /// Whether the caller must note that its cache of large blocks holds `chunks` now. Without a purger: once that is
    /// enough to request one. Where the threads that free memory are the purger: always.
    #[inline(always)]
    pub(crate) fn must_note_cache(&self, chunks: usize) -> bool {
        // If a purger starts meanwhile, it looks at all caches; if it ends, the next cached block requests one.
        match self.os.helper().who_roughly() {
            Who::Helper => false,
            Who::None => chunks >= START_CHUNKS,
            Who::Inline => true,
        }
    }

    /// Wakes the helper early; does nothing if it was woken and has not looked yet.
    pub(crate) fn wake_helper(&self) {
        if !self.notes.flood.swap(true, Ordering::Relaxed) {
            self.os.helper().wake_up(&self.os);
        }
    }

    /// Whether the process may take `more` chunks. A limit for this process counts all taken memory, and free dirty
    /// memory if `dirty`.
    pub(crate) fn is_allowed(&self, r: &Ranges, more: usize, dirty: bool) -> bool {
        let Limit::Bytes(limit) = self.policy.limit() else { return true };
        let huge = self.huge_bytes.load(Ordering::Relaxed).div_ceil(CHUNK);
        let more = more.saturating_add(self.arenas.reentrant_reserve.used.load(Ordering::Relaxed));
        (if dirty { r.footprint() } else { r.taken_chunks() }).saturating_add(more).saturating_add(huge)
            <= limit / CHUNK
    }

    /// Whether `len` more chunks fit into the limit for this process without a purge of waiting memory.
    #[inline]
    pub(crate) fn has_room(&self, len: usize) -> bool {
        !self.policy.has_own_limit() || self.ranges.with(&self.os, |r| self.is_allowed(r, len, true))
    }

    /// Whether free ranges have `len` chunks, perhaps apart or after a purge, and the limit for this process allows to
    /// take them.
    pub(crate) fn has_in_parts(&self, len: usize) -> bool {
        self.ranges.with(&self.os, |r| {
            let free = r.free_chunks.iter().sum::<usize>() + r.dropped_chunks;
            free >= len && self.is_allowed(r, len, false)
        })
    }

    /// Bytes in free ranges: dirty ones, clean ones.
    pub fn free_bytes(&self) -> (usize, usize) {
        self.ranges.with(&self.os, |r| (r.free_chunks[1] << CHUNK_SHIFT, r.free_chunks[0] << CHUNK_SHIFT))
    }
}
