//! The allocator as a whole: which layer serves a request, and what is done of the notes that the layers leave. The fast
//! paths are in [`Heap`]; what is here runs when they give up. `port.rs` has the calls that take a heap by its address.

use crate::blocks::heap::{Block, Mine};
use crate::blocks::large::MAX_LARGE;
use crate::blocks::misuse::Call;
use crate::blocks::zero::Habits;
use crate::blocks::{Blocks, class};
use crate::observe::Observed;
use crate::pages::chunk::Record;
use crate::pages::notes::{DEFERRED, LIMIT, TABLES, WANTED};
use crate::system::policy::Purge;
use crate::{CHUNK, Heap, Os};
use core::ops::Deref;

pub use crate::MAX_SIZE;
pub use crate::blocks::Foreign;

/// Zeroed blocks from this size on are taken past the cache where that saves clearing them.
const ZEROED_PAST_CACHE: usize = 2048;

/// The allocator. A process has one; tests have many.
#[derive(Debug)]
pub struct Allocator<O: Os> {
    observed: Observed<O>,
}

impl<O: Os> Deref for Allocator<O> {
    type Target = Observed<O>;

    #[inline(always)]
    fn deref(&self) -> &Observed<O> {
        &self.observed
    }
}

impl<O: Os> Allocator<O> {
    /// An allocator that has asked the system for nothing yet.
    pub const fn new(os: O) -> Self {
        Allocator { observed: Observed::new(os) }
    }

    /// Does what lower layers noted. The last thing that a slow path does, under no lock.
    #[inline]
    pub fn settle(&self) {
        if self.notes.is_any() {
            self.settle_notes();
        }
    }

    #[cold]
    fn settle_notes(&self) {
        if self.is_stranded() {
            // All of it uses what another thread may have left half changed.
            return;
        }
        let notes = self.notes.take(DEFERRED | LIMIT | TABLES);
        if notes & DEFERRED != 0 {
            self.drain();
        }
        if notes & LIMIT != 0 {
            self.check_limit();
        }
        if notes & TABLES != 0 {
            self.with_batch(|_| self.purge_tables());
        }
        // Behind the others, which may leave this note.
        if self.notes.take(WANTED) != 0 && self.policy.purge() != Purge::Never {
            self.poke();
        }
        self.publish_news();
    }

    /// Gives back what waits where a limit of the process's own leaves no room for `len` chunks. Called under no lock.
    #[inline]
    fn make_room(&self, len: usize) {
        if !self.has_room(len) {
            self.purge();
        }
    }

    /// A block of at least `size` bytes, whatever the fast path said. Null if there is no memory.
    pub(crate) fn take(&self, heap: Mine<'_>, size: usize) -> *mut u8 {
        if size > class::MAX_SMALL {
            return self.take_whole_pages(heap, size, CHUNK, false);
        }
        self.take_class(heap, class::of(size))
    }

    /// A block of `class`.
    fn take_class(&self, heap: Mine<'_>, class: usize) -> *mut u8 {
        if heap.caches_class(class) {
            // SAFETY: the heap has a cache for the class.
            let p = unsafe { Heap::pop(heap.id(), class, Block::untag) };
            // SAFETY: that was the last call on the cache.
            return if p.is_null() { unsafe { self.refill(heap, class) } } else { p };
        }
        match self.take_one(heap, class) {
            Some((p, true)) => p,
            // SAFETY: the block is new.
            Some((p, false)) => unsafe { Blocks::<O>::untagged(p) },
            None => core::ptr::null_mut(),
        }
    }

    /// After [`Heap::pop`] failed: a block of `class` from the slabs, which fill the cache. Null if there is no memory.
    ///
    /// # Safety
    /// Nothing may have happened to the cache since.
    pub(crate) unsafe fn refill(&self, heap: Mine<'_>, class: usize) -> *mut u8 {
        self.make_room_for_slab(heap, class);
        // SAFETY: as the caller promises.
        let p = unsafe { heap.refill(self, class) };
        self.settle();
        p
    }

    /// One block straight from the slabs; true if it is known to read as zero. `None` if there is no memory.
    fn take_one(&self, heap: Mine<'_>, class: usize) -> Option<(*mut u8, bool)> {
        self.make_room_for_slab(heap, class);
        let taken = heap.take_one(self, class);
        self.settle();
        taken
    }

    /// `make_room` where the heap has no slab of `class` with free blocks.
    fn make_room_for_slab(&self, heap: Mine<'_>, class: usize) {
        if self.policy.has_own_limit() && heap.first_slab(class).is_none() {
            self.make_room(1);
        }
    }

    /// A large or huge block.
    pub(crate) fn take_whole_pages(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        if align == CHUNK {
            let p = self.malloc_cached_large(heap, size.max(1), zero);
            if !p.is_null() {
                return p;
            }
        }
        self.malloc_fresh(size, align, zero)
    }

    /// A large block of at least `size` bytes, or a huge one, past the heap's cache. Null if there is no memory.
    #[inline(never)]
    pub fn malloc_fresh(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_SIZE - CHUNK {
            return core::ptr::null_mut();
        }
        self.make_room(size.div_ceil(CHUNK));
        let p = match self.malloc_large(size, align, 0, zero) {
            Some(block) => block.start(),
            None => self.huge.malloc(self, size, align),
        };
        // See `malloc_stranded`.
        let p = if p.is_null() && self.is_stranded() { self.malloc_reentrant(size, align, zero) } else { p };
        self.settle();
        p
    }

    /// A block whose first `size` bytes are zero. Null if there is no memory.
    pub(crate) fn take_zeroed(&self, heap: Mine<'_>, size: usize) -> *mut u8 {
        if size > class::MAX_SMALL {
            return self.take_whole_pages(heap, size, CHUNK, true);
        }
        let class = class::of(size);
        if class >= class::FIRST_PAGED && heap.caches_class(class) {
            heap.flush(self, class, 0);
            self.notes.forget_room(heap.shrink_cap(class));
            heap.uncache_class(class);
        }
        if size >= ZEROED_PAST_CACHE && heap.cache_is_empty(class) {
            let Some((p, zero)) = self.take_one(heap, class) else { return core::ptr::null_mut() };
            // SAFETY: the block is new.
            let cleared = if zero { 0 } else { unsafe { Habits::clear_block(self, p, size, class) } };
            heap.flow.zeroed(cleared, size - cleared);
            return p;
        }
        let p = self.take_class(heap, class);
        if !p.is_null() {
            heap.flow.zeroed(size, 0);
            // SAFETY: the block is new, and has so many bytes.
            unsafe { p.write_bytes(0, size) };
        }
        p
    }

    /// A block aligned to `align`, a power of two. Null if there is no memory.
    pub(crate) fn take_aligned(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        if align <= class::MIN_BLOCK {
            return if zero { self.take_zeroed(heap, size) } else { self.take(heap, size) };
        }
        match class::of_aligned(size, align) {
            None => self.take_whole_pages(heap, size, align.max(CHUNK), zero),
            Some(class) if zero => self.take_zeroed(heap, class::SIZE[class] as usize),
            Some(class) => self.take_class(heap, class),
        }
    }

    /// A block that is known as a sample until it is freed. Null if there is no memory, or if no arena can hold it: then
    /// the block is not to be a sample.
    pub(crate) fn take_sample(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_LARGE {
            return core::ptr::null_mut();
        }
        let p = self.take_whole_pages(heap, size, align.max(CHUNK), zero);
        // SAFETY: the block is new, and the caller's.
        unsafe {
            if p.is_null() || !self.arenas.contains(p) {
                if !p.is_null() {
                    let _ = self.put(heap, p, None);
                }
                return core::ptr::null_mut();
            }
            self.large_block(Call::Free, p).set_sample(true);
        }
        p
    }

    /// Frees the block at `p`, where `class` is `small_class(p)`.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, NULL, or foreign.
    pub(crate) unsafe fn put(&self, heap: Mine<'_>, p: *mut u8, class: Option<usize>) -> Result<(), Foreign> {
        // SAFETY: as the caller promises, here and below.
        unsafe {
            match class {
                None if p.is_null() => return Ok(()),
                None if self.arenas.contains(p) => {
                    if !self.cache_large(heap, p) {
                        self.free_large(p);
                    }
                }
                None => return if self.huge.free(self, p) { Ok(()) } else { Err(Foreign) },
                Some(class) => {
                    self.check_block(heap, Call::Free, p, class);
                    if heap.caches_class(class) {
                        heap.free_full(self, p, class);
                    } else {
                        self.wipe(p, class);
                        heap.give_one(self, p, class);
                    }
                }
            }
        }
        self.settle();
        Ok(())
    }

    /// Size of the block at `p`, if a look at page map and tag is enough to know that it is a live small one. It is not
    /// where heaps have no caches, as blocks get their tags there.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, or foreign.
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

    /// Usable bytes of the block at `p`, constant for its life; `None` if neap does not know it. `call` is who asks.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, or foreign.
    pub(crate) unsafe fn size_of_block(&self, heap: Mine<'_>, call: Call, p: *mut u8) -> Option<usize> {
        // SAFETY: as the caller promises.
        unsafe {
            if let Some(class) = self.small_class(p) {
                self.check_block(heap, call, p, class);
                return Some(class::SIZE[class] as usize);
            }
            if self.arenas.contains(p) {
                return Some(self.large_block(call, p).bytes());
            }
        }
        self.huge.bytes(p)
    }

    /// Resizes the block at `p`, whose usable size is `old`, to at least `size` bytes. Null if there is no memory;
    /// then the block is as it was.
    ///
    /// # Safety
    /// `p` must be a block of the caller's with usable size `old`.
    pub(crate) unsafe fn resize(&self, heap: Mine<'_>, p: *mut u8, old: usize, size: usize) -> *mut u8 {
        if self.fits_in_place(old, size) {
            return p;
        }
        // SAFETY: as the caller promises, here and below.
        unsafe {
            if old > class::MAX_SMALL
                && size > class::MAX_SMALL
                && let Some(new) = self.resize_whole_pages(p, old, size)
            {
                return new;
            }
            let new = self.take(heap, size);
            if new.is_null() {
                // To shrink is never refused.
                return if size <= old { p } else { new };
            }
            new.copy_from_nonoverlapping(p, old.min(size));
            let _ = self.put(heap, p, self.small_class(p));
            new
        }
    }

    /// Resizes a large or huge block in place, or moves it without a copy where that is cheaper.
    ///
    /// # Safety
    /// As `resize`, for such a block.
    unsafe fn resize_whole_pages(&self, p: *mut u8, old: usize, size: usize) -> Option<*mut u8> {
        // SAFETY: as the caller promises.
        unsafe {
            if !self.arenas.contains(p) {
                let moved = self.huge.resize(self, p, size);
                return (!moved.is_null()).then_some(moved);
            }
            let block = self.large_block(Call::Realloc, p);
            let new = if self.resize_large(block, size) {
                Some(p)
            } else if size > old {
                // A block of the reentrant reserve stays where it is neither to grow nor to shrink; to shrink it is copied by the caller,
                // as `move_large` wants the longer block to be the new one.
                self.move_large(block, old, size)
            } else {
                return None;
            };
            self.settle();
            new
        }
    }

    /// Whether `p` lies in memory whose record may be looked at, and what it is. For tests.
    pub fn kind_at(&self, p: *const u8) -> Option<crate::pages::chunk::Kind> {
        self.arenas.record(p).map(Record::kind)
    }
}
