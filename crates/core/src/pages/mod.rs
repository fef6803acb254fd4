//! Pages: what memory there is. Chunks of arenas are taken and given back here, in ranges, clean or dirty.
//!
//! This layer knows neither blocks nor heaps. What the layers above have to do because of what happened here is noted
//! (`notes.rs`).

pub mod age;
pub mod arena;
pub mod chunk;
pub mod commit;
pub mod demand;
pub mod dense;
pub mod held;
pub mod layout;
pub mod notes;
pub mod page_map;
pub mod place;
pub mod range;
pub mod reentrant_reserve;
pub mod release;
pub mod reserve;
pub mod space;
pub mod tables;

use crate::pages::arena::UnderLock;
use crate::pages::chunk::{Kind, Record};
use crate::pages::held::{News, Use};
use crate::pages::notes::{DEFERRED, GROWN, Notes, SHRUNK, TABLES, WANTED};
use crate::pages::range::{Ranges, Taken};
use crate::pages::space::Space;
use crate::system::helper::Who;
use crate::system::lock::Locked;
use crate::system::policy::{Limit, Purge};
use crate::system::sync::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use crate::{CHUNK, CHUNK_SHIFT, Os};
use core::ops::Deref;

/// Chunks that have to wait before a purger is wanted. The simulation has little memory, so its limits are lower.
pub(crate) const START_CHUNKS: usize = if cfg!(neap_sim) { 2 } else { (1 << 20) / CHUNK };
/// Chunks that were freed since the side tables were last looked at, from which on they are worth a look at any time.
pub(crate) const FREED: usize = (1 << 30) / CHUNK;
/// Where the helper's ticks are longer, slow paths tell observers as well.
const LONG_TICK_MS: u32 = 200;

/// Chunks that are given back: the first record, how many, and their age.
pub(crate) type Part = (Record, usize, u8);

/// The memory of a process, in chunks.
#[derive(Debug)]
pub struct Pages<O: Os> {
    space: Space<O>,
    pub(crate) ranges: Locked<Ranges>,
    pub(crate) notes: Notes,
    /// The present epoch, see `age.rs`.
    pub(crate) epoch: AtomicU8,
    /// Bytes of all huge blocks: mappings outside of arenas, which a limit of the process's own counts as well.
    pub(crate) huge_bytes: AtomicUsize,
    /// This is the child of a fork in a reentrant call, whose other threads may have left anything half changed.
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
    /// No memory yet.
    pub const fn new(os: O) -> Self {
        Pages {
            space: Space::new(os),
            ranges: Locked::new(Ranges::new()),
            notes: Notes::new(),
            epoch: AtomicU8::new(age::FIRST),
            huge_bytes: AtomicUsize::new(0),
            stranded: AtomicBool::new(false),
        }
    }

    /// First use; under the lock of the registry.
    pub(crate) fn set_up(&self) {
        self.look_up_page_size();
        // The arena first: how much address space it gets tells whether the map may have its share.
        if self.ranges.with(&self.os, |r| self.arenas.set_up(&self.os, r.lock())) {
            self.map.set_up(&self.os);
        }
        // Not before: a block of the reentrant reserve that the page map does not know would be lost to it.
        self.ranges.with(&self.os, |r| self.arenas.open_reentrant_reserve(r.lock()));
    }

    /// The present epoch: the age of memory that is freed now.
    #[inline]
    pub fn epoch(&self) -> u8 {
        // Relaxed: memory that gets an age that is one too old or too young is purged a tick earlier or later.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Milliseconds from one tick to the next.
    pub fn tick_length(&self) -> u32 {
        age::tick_length(self.policy.delay())
    }

    /// Whether this is the child of a fork in a reentrant call, whose other threads may have left anything half changed:
    /// then all further calls are to be reentrant ones.
    #[inline]
    pub fn is_stranded(&self) -> bool {
        self.stranded.load(Ordering::Relaxed)
    }

    /// Takes `len` chunks, aligned to `align` bytes, for `what`, and marks the first with its kind.
    pub(crate) fn take_chunks(&self, len: usize, align: usize, what: Use) -> Option<Taken> {
        self.ranges.with(&self.os, |r| {
            // Where the process is stranded the ranges may be half changed, and this is the call that a handler interrupted:
            // it gets a block of the reentrant reserve (`malloc_stranded`).
            if self.is_stranded() || !self.is_allowed(r, len, false) {
                return None;
            }
            let taken = r.take(&self.space, len, align)?;
            taken.first.set_kind(what.kind());
            r.held.take(what, (taken.dirty.1 - taken.dirty.0) * CHUNK);
            self.note_news(r);
            if self.notes.note_fresh(r.fresh_chunks, r.waiting()) {
                r.fresh_chunks = 0;
            }
            Some(taken)
        })
    }

    /// Frees the caller's chunks, in the parts that `parts` returns, if any, which were used for `what`; it is called under
    /// the lock. Whether there were any.
    pub(crate) fn give_chunks<const N: usize>(
        &self,
        what: Use,
        parts: impl FnOnce(&UnderLock) -> Option<[Part; N]>,
    ) -> bool {
        self.ranges.with(&self.os, |r| {
            let parts = parts(r.lock());
            // As in `take_chunks`: what is freed is lost.
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

    /// Frees the caller's chunks.
    #[inline]
    pub(crate) fn give_parts<const N: usize>(&self, r: &mut Ranges, parts: [Part; N]) {
        for (c, len, since) in parts {
            if len > 0 {
                r.give(&self.arenas, c, len, since);
            }
        }
    }

    /// The caller's chunks that were used for `what` are lost, as the system does not make all of them accessible again:
    /// they count as those that hold heaps, which stay.
    #[cold]
    pub(crate) fn lose_chunks(&self, c: Record, len: usize, what: Use) {
        self.ranges.with(&self.os, |r| {
            r.held.give(what);
            self.mark_lost(r.lock(), c, len);
        });
    }

    /// Marks chunks of the caller's that are lost.
    pub(crate) fn mark_lost(&self, lock: &UnderLock, c: Record, len: usize) {
        age::set(&self.arenas, lock, c, len, age::NONE);
        (0..len).for_each(|i| c.after(i).set_kind(Kind::HEAPS));
    }

    /// Notes what there is to note when chunks were freed. The lock of the ranges is held.
    #[inline]
    pub(crate) fn note_given(&self, r: &mut Ranges) {
        self.note_waiting(r.waiting());
        // Where memory goes back at once there is no purger.
        if r.freed_chunks >= FREED && !self.has_helper() {
            self.notes.leave(TABLES);
        }
        self.note_news(r);
    }

    /// Memory was freed, and so many chunks wait now. The lock of the ranges is held.
    #[inline]
    pub(crate) fn note_waiting(&self, chunks: usize) {
        if chunks < START_CHUNKS {
            return;
        }
        self.notes.look_at_waiting(chunks);
        // `has_helper` is sequentially consistent: see `helper.rs`.
        // Relaxed: a look at a limit of before wakes the helper once too often, or lets memory wait for the next tick.
        if !self.has_helper() || chunks * CHUNK > self.notes.most.load(Ordering::Relaxed) {
            self.want();
        }
    }

    /// A slab has free memory that waits, and had none before.
    #[inline]
    pub(crate) fn note_slab(&self) {
        if self.notes.slab_waits() && !self.has_helper() {
            self.want();
        }
    }

    /// A cache may hold so many bytes more than before.
    #[cold]
    pub(crate) fn note_room(&self, bytes: usize) {
        if self.notes.add_room(bytes) && !self.has_helper() {
            self.want();
        }
    }

    /// A reentrant call or a fork left something to do.
    pub(crate) fn note_deferred(&self) {
        self.notes.leave(DEFERRED);
    }

    /// Chunks were taken or given back. The lock of the ranges is held.
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

    /// Notes that there has to be a purger, or that it has to be woken.
    pub(crate) fn want(&self) {
        if self.policy.purge() != Purge::Never {
            self.notes.leave(WANTED);
        }
    }

    /// Whether a helper thread will see to what is freed now.
    #[cfg_attr(neap_sim, track_caller)]
    pub(crate) fn has_helper(&self) -> bool {
        self.os.helper().who() == Who::Helper
    }

    /// Whether a cache of large blocks that has come to `chunks` is to be noted: where there is no purger, as soon as that is enough for one,
    /// and always where the threads that free memory do its work.
    #[inline(always)]
    pub(crate) fn must_note_cache(&self, chunks: usize) -> bool {
        // A purger that comes or goes meanwhile looks at all caches, or is asked for by the next block.
        match self.os.helper().who_roughly() {
            Who::Helper => false,
            Who::None => chunks >= START_CHUNKS,
            Who::Inline => true,
        }
    }

    /// Has the helper look before its time, once until it has.
    pub(crate) fn wake_helper(&self) {
        if !self.notes.flood.swap(true, Ordering::Relaxed) {
            self.os.helper().wake_up(&self.os);
        }
    }

    /// Whether the process may take `more` chunks: a limit of its own counts all that is taken, and free dirty
    /// memory where `dirty` says so.
    pub(crate) fn is_allowed(&self, r: &Ranges, more: usize, dirty: bool) -> bool {
        let Limit::Bytes(limit) = self.policy.limit() else { return true };
        let huge = self.huge_bytes.load(Ordering::Relaxed).div_ceil(CHUNK);
        let more = more.saturating_add(self.arenas.reentrant_reserve.used.load(Ordering::Relaxed));
        (if dirty { r.footprint() } else { r.taken_chunks() }).saturating_add(more).saturating_add(huge)
            <= limit / CHUNK
    }

    /// Whether `len` more chunks fit into a limit of the process's own without giving back what waits.
    #[inline]
    pub(crate) fn has_room(&self, len: usize) -> bool {
        !self.policy.has_own_limit() || self.ranges.with(&self.os, |r| self.is_allowed(r, len, true))
    }

    /// Bytes in free ranges: dirty, clean.
    pub fn free_bytes(&self) -> (usize, usize) {
        self.ranges.with(&self.os, |r| (r.free_chunks[1] << CHUNK_SHIFT, r.free_chunks[0] << CHUNK_SHIFT))
    }
}
