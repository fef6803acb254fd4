//! The allocator as a whole: which layer serves a request. The fast paths are in [`Heap`]; what is here runs when
//! they give up.

use crate::arena::Arenas;
use crate::chunk::{Chunk, Kind};
use crate::class;
use crate::figures::{Publisher, Use};
use crate::fork::Forks;
use crate::harden::Guards;
use crate::heap::Block;
use crate::huge::Huge;
use crate::life::Registry;
use crate::misuse::{self, Call};
use crate::page_map::PageMap;
use crate::policy::{Policy, Purge};
use crate::purge::Purger;
use crate::range::{Ranges, Taken};
use crate::remote::Pending;
use crate::sync::{AtomicBool, AtomicU8, AtomicUsize, Locked, Ordering};
use crate::zero::Habits;
use crate::{CHUNK, CHUNK_SHIFT, Heap, Os, age, holes, slab};

/// Largest request: PTRDIFF_MAX, so that the difference of two pointers into a block fits.
pub const MAX_SIZE: usize = isize::MAX as usize;
/// Zeroed blocks from this size on are taken past the cache where that saves clearing them.
const ZEROED_PAST_CACHE: usize = 2048;

/// The allocator. A process has one; tests have many.
#[derive(Debug)]
pub struct Allocator<O: Os> {
    /// From address to size class.
    pub map: PageMap,
    /// The system.
    pub os: O,
    /// What users chose.
    pub policy: Policy,
    page_size: AtomicUsize,
    /// Orphans at present; a hint.
    pub(crate) orphans: AtomicUsize,
    /// Large blocks that are apart, see `apart.rs`.
    pub(crate) apart: AtomicUsize,
    /// Bytes of all huge blocks.
    pub(crate) huge_bytes: AtomicUsize,
    pub(crate) purger: Purger,
    pub(crate) habits: Habits,
    pub(crate) publisher: Publisher,
    /// Why heaps are watched: a bit for each [`crate::watch::Reason`].
    pub(crate) watched: AtomicU8,
    /// Inaccessible OS pages, see `harden.rs`.
    pub guards: Guards,
    /// Mean bytes between two samples; 0: none are taken.
    pub(crate) sample_interval: AtomicUsize,
    /// Forks that are under way.
    pub(crate) forks: Forks,
    pub(crate) registry: Locked<Registry>,
    pub(crate) huge: Huge,
    /// Large blocks that nested calls freed, see `nested.rs`.
    pub(crate) deferred: Pending<Chunk>,
    /// There are heaps that a fork left.
    pub(crate) left: AtomicBool,
    /// This is the child of a fork in a nested call, whose other threads may have left anything half changed.
    pub(crate) stranded: AtomicBool,
    pub(crate) ranges: Locked<Ranges>,
    /// The address ranges that memory comes from.
    pub arenas: Arenas,
}

/// A block that neap does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

impl<O: Os> Allocator<O> {
    /// An allocator that has asked the system for nothing yet.
    pub const fn new(os: O) -> Self {
        Allocator {
            map: PageMap::new(),
            os,
            policy: Policy::new(),
            page_size: AtomicUsize::new(0),
            orphans: AtomicUsize::new(0),
            apart: AtomicUsize::new(0),
            huge_bytes: AtomicUsize::new(0),
            purger: Purger::new(),
            habits: Habits::new(),
            publisher: Publisher::new(),
            watched: AtomicU8::new(0),
            guards: Guards::new(),
            sample_interval: AtomicUsize::new(0),
            forks: Forks::new(),
            registry: Locked::new(Registry::new()),
            huge: Huge::new(),
            deferred: Pending::new(),
            left: AtomicBool::new(false),
            stranded: AtomicBool::new(false),
            ranges: Locked::new(Ranges::new()),
            arenas: Arenas::new(),
        }
    }

    /// First use; under the lock of the registry.
    pub(crate) fn set_up(&self) {
        self.page_size.store(self.os.page_size(), Ordering::Relaxed);
        // The arena first: how much address space it gets tells whether the map may have its share.
        // SAFETY: `with` holds the lock.
        if self.ranges.with(&self.os, |_| unsafe { self.arenas.set_up(&self.os) }) {
            self.map.set_up(&self.os);
        }
        // Not before: a block of the annex that the page map does not know would be lost to it.
        self.ranges.with(&self.os, |_| self.arenas.open_annex());
    }

    /// The present epoch: the age of memory that is freed now.
    #[inline]
    pub fn epoch(&self) -> u8 {
        self.purger.epoch()
    }

    /// Bytes of an OS page.
    #[inline]
    pub fn page_size(&self) -> usize {
        self.page_size.load(Ordering::Relaxed)
    }

    /// `size` rounded up to whole OS pages.
    #[inline]
    pub(crate) fn whole_pages(&self, size: usize) -> usize {
        let page = self.page_size();
        (size + page - 1) & !(page - 1)
    }

    /// Gives back what waits where a limit of the process's own leaves no room for `len` chunks. Called under no lock.
    #[inline]
    pub(crate) fn make_room(&self, len: usize) {
        if self.policy.has_own_limit() && !self.ranges.with(&self.os, |r| self.is_allowed(r, len, true)) {
            self.purge();
        }
    }

    /// Takes `len` chunks, aligned to `align` bytes, for `what`, and marks the first with its kind.
    pub(crate) fn take_chunks(&self, len: usize, align: usize, what: Use) -> Option<Taken> {
        self.ranges.with(&self.os, |r| {
            // Where the process is stranded the ranges may be half changed, and this is the call that a handler interrupted.
            if self.is_stranded() || !self.is_allowed(r, len, false) {
                return None;
            }
            // SAFETY: `with` holds the lock.
            let taken = unsafe { r.take(&self.os, &self.arenas, &self.map, len, align) }?;
            // SAFETY: the chunks are ours.
            unsafe { (*taken.first).kind.set(what.kind()) };
            r.held.take(what, (taken.dirty.1 - taken.dirty.0) * CHUNK);
            self.note_news(r);
            if self.note_fresh(r.fresh_chunks, r.waiting()) {
                r.fresh_chunks = 0;
            }
            Some(taken)
        })
    }

    /// Frees the parts `(first record, chunks, age)` that `parts` returns, if any, which were used for `what`; it is
    /// called under the lock.
    ///
    /// # Safety
    /// As [`Ranges::give`], for each part.
    pub(crate) unsafe fn give_chunks<const N: usize>(
        &self,
        what: Use,
        parts: impl FnOnce() -> Option<[(*mut Chunk, usize, u8); N]>,
    ) -> bool {
        self.ranges.with(&self.os, |r| {
            let parts = parts();
            // As in `take_chunks`: what is freed is lost.
            if let Some(parts) = parts
                && !self.is_stranded()
            {
                r.held.give(what);
                // SAFETY: as the caller promises; `with` holds the lock.
                unsafe { self.give_parts(r, parts) };
            }
            self.note_given(r);
            parts.is_some()
        })
    }

    /// Frees the parts `(first record, chunks, age)`.
    ///
    /// # Safety
    /// As [`Ranges::give`], for each part.
    #[inline]
    pub(crate) unsafe fn give_parts<const N: usize>(&self, r: &mut Ranges, parts: [(*mut Chunk, usize, u8); N]) {
        for (c, len, since) in parts {
            if len > 0 {
                // SAFETY: as the caller promises.
                unsafe { r.give(&self.arenas, c, len, since) };
            }
        }
    }

    /// Notes what there is to note when chunks were freed. The lock of the ranges is held.
    #[inline]
    pub(crate) fn note_given(&self, r: &mut Ranges) {
        self.note_waiting(r.waiting());
        self.note_freed(r);
        self.note_news(r);
    }

    /// Gives the chunk of an empty slab back.
    ///
    /// # Safety
    /// The slab must be the caller's, in no list, and [`slab::is_released`].
    pub(crate) unsafe fn release_slab(&self, c: *mut Chunk) {
        // SAFETY: the slab is the caller's.
        unsafe {
            slab::wipe(c);
            Self::uncount_slab(c);
            if !self.soften_slab(c) {
                self.map.set(Arenas::chunk(c), 0);
                self.discard_lost(Arenas::chunk(c), CHUNK - self.page_size());
                return self.lose_chunks(c, 1, Use::Slab);
            }
            let p = Arenas::chunk(c);
            self.map.set(p, 0);
            let clean = holes::is_clean(c, self.page_size());
            let since = if clean { age::NONE } else { self.age_of_freed(p, CHUNK) };
            self.give_chunks(Use::Slab, || {
                (*c).kind.set(Kind::NONE);
                // A visitor of this heap may hold the record from before, and must not take the next owner's slab for it.
                Chunk::set_owner(c, core::ptr::null_mut());
                // An age that the slab had would stay with a clean chunk.
                age::set(&self.arenas, c, 1, age::NONE);
                Some([(c, 1, since)])
            });
        }
    }

    /// The age of memory that is freed now; purged first, and so clean, where the policy says so.
    ///
    /// # Safety
    /// The range must be committed, the caller's, and hold nothing that is needed.
    pub(crate) unsafe fn age_of_freed(&self, p: *mut u8, len: usize) -> u8 {
        if self.policy.purge() != Purge::Eager && len < self.policy.mmap_threshold() {
            return self.purger.epoch();
        }
        // SAFETY: as the caller promises.
        unsafe {
            self.mark_if_dense(p, len);
            if !self.os.purge(p, len) {
                return self.purger.epoch();
            }
        }
        self.note_purged(len);
        age::NONE
    }

    /// malloc for a heap of the caller's, whatever its fast path said. Null if there is no memory.
    ///
    /// # Safety
    /// `heap` must be the caller's (not [`Heap::none`]). If [`Heap::malloc`] was called for this request, it was the
    /// last call on the heap.
    pub unsafe fn malloc(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        if size > class::MAX_SMALL {
            // SAFETY: the heap is the caller's.
            return unsafe { self.malloc_whole_pages(heap, size, CHUNK, false) };
        }
        // SAFETY: the heap is the caller's.
        unsafe { self.malloc_class(heap, class::of(size)) }
    }

    /// [`Heap::malloc`] failed for `size`, in a heap of the caller's: the rest of malloc.
    ///
    /// # Safety
    /// As said: nothing may have happened to the heap since.
    #[inline]
    pub unsafe fn malloc_after_miss(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        // SAFETY: the heap is the caller's. On the fast path, with a size of the table, `pop` ran and failed.
        unsafe {
            if size <= class::MAX_TABLE && Heap::is_fast(heap) {
                return Heap::refill(heap, self, class::of(size));
            }
            self.malloc(heap, size)
        }
    }

    unsafe fn malloc_class(&self, heap: *mut Heap, class: usize) -> *mut u8 {
        // SAFETY: the heap is the caller's.
        unsafe {
            if Heap::caches_class(heap, class) {
                return Heap::malloc_class(heap, self, class);
            }
            match Heap::take_one(heap, self, class) {
                Some((p, true)) => p,
                Some((p, false)) => Self::untagged(p),
                None => core::ptr::null_mut(),
            }
        }
    }

    /// Wipes the tag that a recycled block may still have from its time in a cache, so that its free does not
    /// look like a second one.
    pub(crate) unsafe fn untagged(p: *mut u8) -> *mut u8 {
        // SAFETY: the block is new to the caller, and at least MIN_BLOCK long.
        unsafe {
            let block = p.cast::<Block>();
            if (*block).tag == Block::TAG {
                (*block).tag = 0;
            }
        }
        p
    }

    pub(crate) unsafe fn malloc_whole_pages(&self, heap: *mut Heap, size: usize, align: usize, zero: bool) -> *mut u8 {
        if align == CHUNK {
            // SAFETY: the heap is the caller's.
            let p = unsafe { self.malloc_shelved(heap, size.max(1), zero) };
            if !p.is_null() {
                return p;
            }
        }
        self.malloc_fresh(size, align, zero)
    }

    /// A large block of at least `size` bytes, or a huge one, past the shelf. Null if there is no memory.
    #[inline(never)]
    pub fn malloc_fresh(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_SIZE - CHUNK {
            return core::ptr::null_mut();
        }
        self.make_room(size.div_ceil(CHUNK));
        let mut p = self.malloc_large(size, align, 0, zero);
        if p.is_null() {
            p = self.malloc_huge(size, align);
        }
        self.settle();
        p
    }

    /// A block whose first `size` bytes are zero. Null if there is no memory.
    ///
    /// # Safety
    /// As [`Allocator::malloc`].
    pub unsafe fn calloc(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        if size > class::MAX_SMALL {
            // SAFETY: the heap is the caller's.
            return unsafe { self.malloc_whole_pages(heap, size, CHUNK, true) };
        }
        // SAFETY: the heap is the caller's; the block is new and has `size` bytes.
        unsafe {
            let class = class::of(size);
            if class >= class::FIRST_PAGED && Heap::caches_class(heap, class) {
                Heap::flush(heap, self, class, 0);
                self.forget_room(Heap::shrink_cap(heap, class));
                Heap::uncache_class(heap, class);
            }
            if size >= ZEROED_PAST_CACHE && Heap::cache_is_empty(heap, class) {
                return match Heap::take_one(heap, self, class) {
                    None => core::ptr::null_mut(),
                    Some((p, zero)) => {
                        let cleared = if zero { 0 } else { self.clear_block(p, size, class) };
                        (*heap).flow.zeroed(cleared, size - cleared);
                        p
                    }
                };
            }
            let p = self.malloc_class(heap, class);
            if !p.is_null() {
                (*heap).flow.zeroed(size, 0);
                p.write_bytes(0, size);
            }
            p
        }
    }

    /// A block aligned to `align`, a power of two. Null if there is no memory.
    ///
    /// # Safety
    /// As [`Allocator::malloc`].
    pub unsafe fn malloc_aligned(&self, heap: *mut Heap, size: usize, align: usize, zero: bool) -> *mut u8 {
        // SAFETY: the heap is the caller's; a new block has `size` bytes.
        unsafe {
            if align <= class::MIN_BLOCK {
                return if zero { self.calloc(heap, size) } else { self.malloc(heap, size) };
            }
            let Some(class) = class::of_aligned(size, align) else {
                return self.malloc_whole_pages(heap, size, align.max(CHUNK), zero);
            };
            if zero {
                return self.calloc(heap, class::SIZE[class] as usize);
            }
            self.malloc_class(heap, class)
        }
    }

    /// free for a heap of the caller's, after [`Heap::free`] failed for it.
    ///
    /// # Safety
    /// `heap` must be the caller's (not [`Heap::none`]); `p` must be a block of the caller's, NULL, or foreign.
    pub unsafe fn free_after_miss(&self, heap: *mut Heap, p: *mut u8) -> Result<(), Foreign> {
        let class = self.map.class(p);
        // SAFETY: the heap is the caller's.
        unsafe { Heap::undo_free(heap, class) };
        let class = if class != 0 { Some(class) } else { self.small_class(p) };
        // SAFETY: as the caller promises.
        unsafe { self.free_of(heap, p, class) }
    }

    /// free for a heap of the caller's, whatever kind of block it is.
    ///
    /// # Safety
    /// As [`Allocator::free_after_miss`].
    pub unsafe fn free(&self, heap: *mut Heap, p: *mut u8) -> Result<(), Foreign> {
        // SAFETY: as the caller promises.
        unsafe { self.free_of(heap, p, self.small_class(p)) }
    }

    /// [`Allocator::free`], where `class` is [`Allocator::small_class`].
    unsafe fn free_of(&self, heap: *mut Heap, p: *mut u8, class: Option<usize>) -> Result<(), Foreign> {
        let class = match class {
            Some(class) => class,
            None if p.is_null() => return Ok(()),
            None if self.arenas.contains(p) => {
                // SAFETY: as the caller promises.
                unsafe {
                    if !self.shelve(heap, p) {
                        self.free_large(p);
                    }
                }
                self.settle();
                return Ok(());
            }
            None => {
                // SAFETY: as the caller promises.
                return if unsafe { self.free_huge(p) } { Ok(()) } else { Err(Foreign) };
            }
        };
        // SAFETY: `p` lies in a slab of this class.
        unsafe {
            self.check_block(heap, Call::Free, p, class);
            if !Heap::caches_class(heap, class) {
                self.wipe(p, class);
                Heap::give_one(heap, self, p, class);
            } else {
                Heap::free_full(heap, self, p, class);
            }
        }
        self.settle();
        Ok(())
    }

    /// Does not return unless `p`, in a slab of `class`, is a block that is not free.
    unsafe fn check_block(&self, heap: *mut Heap, call: Call, p: *mut u8, class: usize) {
        // SAFETY: `p` lies in a slab of this class; once it is a block, its tag may be read.
        unsafe {
            if !class::is_start(p.addr() & (CHUNK - 1), class) {
                misuse::interior(self, call, p, class);
            }
            let untouched = class >= class::FIRST_PAGED && !Heap::caches_class(heap, class);
            let tagged = !untouched && (*p.cast::<Block>()).tag == Block::TAG;
            let free = if tagged { misuse::is_free(self, heap, p, class) } else { slab::is_free(Arenas::record(p), p) };
            if free {
                misuse::freed(self, call, p, class);
            }
        }
    }

    /// Size of the block at `p`, if a look at page map and tag is enough to know that it is a live small one. It is not
    /// where heaps have no caches, as blocks get their tags there.
    ///
    /// # Safety
    /// As [`Allocator::usable_size`].
    #[inline]
    pub unsafe fn quick_size(&self, p: *mut u8) -> Option<usize> {
        let class = self.map.class(p);
        // SAFETY: a class other than 0 says that `p` lies in a slab; once it is a block, its tag may be read.
        let live = class != 0
            && !self.watches_everything()
            && class::is_start(p.addr() & (CHUNK - 1), class)
            && unsafe { (*p.cast::<Block>()).tag } != Block::TAG;
        live.then(|| class::SIZE[class] as usize)
    }

    /// Class of the slab at `p`, also where the page map is missing.
    #[inline]
    pub(crate) fn small_class(&self, p: *const u8) -> Option<usize> {
        let class = self.map.class(p);
        if class != 0 {
            return Some(class);
        }
        if self.map.is_complete() || !self.arenas.contains(p) {
            return None;
        }
        let c = Arenas::record(p);
        // SAFETY: records of committed chunks are readable; that of a live block's slab does not change.
        unsafe { ((*c).kind.get() == Kind::SLAB).then(|| usize::from((*c).class)) }
    }

    /// Usable bytes of the block at `p`, constant for its life; `None` if neap does not know it. `call` is who asks.
    ///
    /// # Safety
    /// `heap` must be the caller's or [`Heap::none`]; `p` must be a block of the caller's, or foreign.
    pub unsafe fn usable_size(&self, heap: *mut Heap, call: Call, p: *mut u8) -> Option<usize> {
        if let Some(class) = self.small_class(p) {
            // SAFETY: `p` lies in a slab of this class.
            unsafe { self.check_block(heap, call, p, class) };
            return Some(class::SIZE[class] as usize);
        }
        if self.arenas.contains(p) {
            // SAFETY: the record is that of a large block.
            return Some(unsafe { Chunk::bytes(self.large_record(call, p)) });
        }
        self.huge_bytes(p)
    }

    /// Bytes in free ranges: dirty, clean.
    pub fn free_bytes(&self) -> (usize, usize) {
        self.ranges.with(&self.os, |r| (r.free_chunks[1] << CHUNK_SHIFT, r.free_chunks[0] << CHUNK_SHIFT))
    }
}
