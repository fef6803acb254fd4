//! The allocator as a whole: which layer serves a request. The fast paths are in [`Heap`]; what is here runs when
//! they give up.

pub use crate::MAX_SIZE;
use crate::back::trim::Trimmed;
pub use crate::blocks::Foreign;
use crate::blocks::habits::Habits;
use crate::blocks::heap::Block;
use crate::blocks::large::MAX_LARGE;
use crate::blocks::misuse::Call;
use crate::blocks::{Blocks, class};
use crate::observe::Observed;
use crate::pages::chunk::Chunk;
use crate::pages::layout;
use crate::pages::notes::{DEFERRED, LIMIT, TABLES, WANTED};
use crate::system::policy::Purge;
use crate::{CHUNK, Heap, Os};
use core::ops::Deref;

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
        if self.notes.is_any() || self.arenas.is_low() {
            self.settle_notes();
        }
    }

    #[cold]
    fn settle_notes(&self) {
        if self.is_stranded() {
            // All of it uses what another thread may have left half changed.
            return;
        }
        if self.arenas.is_low() {
            self.commit_ahead();
        }
        let notes = self.notes.take(DEFERRED | LIMIT | TABLES);
        if notes & DEFERRED != 0 {
            self.drain();
        }
        if notes & LIMIT != 0 {
            self.mind_limit();
        }
        if notes & TABLES != 0 {
            self.with_batch(|_| self.purge_tables());
        }
        // Behind the others, which may leave this note.
        if self.notes.take(WANTED) != 0 && self.policy.purge() != Purge::Never {
            self.poke();
        }
        self.tell_news();
    }

    /// Gives back what waits where a limit of the process's own leaves no room for `len` chunks. Called under no lock.
    #[inline]
    fn make_room(&self, len: usize) {
        if !self.has_room(len) {
            self.purge();
        }
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
                return self.refill(heap, class::of(size));
            }
            self.malloc(heap, size)
        }
    }

    unsafe fn malloc_class(&self, heap: *mut Heap, class: usize) -> *mut u8 {
        // SAFETY: the heap is the caller's.
        unsafe {
            if Heap::caches_class(heap, class) {
                let p = Heap::pop(heap, class, Block::untag);
                return if p.is_null() { self.refill(heap, class) } else { p };
            }
            match self.take_one(heap, class) {
                Some((p, true)) => p,
                Some((p, false)) => Blocks::<O>::untagged(p),
                None => core::ptr::null_mut(),
            }
        }
    }

    /// After [`Heap::pop`] failed: a block of `class` from the slabs, which fill the cache. Null if there is no memory.
    unsafe fn refill(&self, heap: *mut Heap, class: usize) -> *mut u8 {
        // SAFETY: the heap is the caller's, and has caches.
        unsafe {
            self.make_room_for_slab(heap, class);
            let p = Heap::refill(heap, self, class);
            self.settle();
            p
        }
    }

    /// One block straight from the slabs; true if it is known to read as zero. `None` if there is no memory.
    unsafe fn take_one(&self, heap: *mut Heap, class: usize) -> Option<(*mut u8, bool)> {
        // SAFETY: the heap is the caller's.
        unsafe {
            self.make_room_for_slab(heap, class);
            let taken = Heap::take_one(heap, self, class);
            self.settle();
            taken
        }
    }

    /// [`Allocator::make_room`] where the heap has no slab of `class` with free blocks.
    unsafe fn make_room_for_slab(&self, heap: *mut Heap, class: usize) {
        // SAFETY: the heap is the caller's.
        if self.policy.has_own_limit() && unsafe { Heap::has_no_slab(heap, class) } {
            self.make_room(1);
        }
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
            p = self.huge.malloc(self, size, align);
        }
        if p.is_null() && self.is_stranded() {
            // See `malloc_stranded`.
            p = self.malloc_nested(size, align, zero);
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
                self.notes.forget_room(Heap::shrink_cap(heap, class));
                Heap::uncache_class(heap, class);
            }
            if size >= ZEROED_PAST_CACHE && Heap::cache_is_empty(heap, class) {
                return match self.take_one(heap, class) {
                    None => core::ptr::null_mut(),
                    Some((p, zero)) => {
                        let cleared = if zero { 0 } else { Habits::clear_block(self, p, size, class) };
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
                return if unsafe { self.huge.free(self, p) } { Ok(()) } else { Err(Foreign) };
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
        self.huge.bytes(p)
    }

    /// Resizes the block at `p`, whose usable size is `old`, to at least `size` bytes. Null if there is no memory;
    /// then the block is as it was.
    ///
    /// # Safety
    /// `heap` must be the caller's; `p` must be a block of the caller's with usable size `old`.
    pub unsafe fn realloc(&self, heap: *mut Heap, p: *mut u8, old: usize, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises, here and below.
        unsafe {
            if self.fits_in_place(old, size) {
                return p;
            }
            if old > class::MAX_SMALL && size > class::MAX_SMALL {
                if !self.arenas.contains(p) {
                    let moved = self.huge.resize(self, p, size);
                    if !moved.is_null() {
                        return moved;
                    }
                } else {
                    if self.resize_large(p, size) {
                        self.settle();
                        return p;
                    }
                    // A block of the annex stays where it is neither to grow nor to shrink; to shrink it is copied below, as
                    // `move_large` wants the longer block to be the new one.
                    if size > old {
                        let moved = self.move_large(p, old, size);
                        self.settle();
                        if !moved.is_null() {
                            return moved;
                        }
                    }
                }
            }
            let new = self.malloc(heap, size);
            if new.is_null() {
                // To shrink is never refused.
                return if size <= old { p } else { new };
            }
            new.copy_from_nonoverlapping(p, old.min(size));
            let _ = self.free(heap, p);
            new
        }
    }

    /// After [`Heap::malloc`] failed: a sample, if one is due in a heap that shows its allocations. Else null, and
    /// nothing has happened to the heap.
    ///
    /// # Safety
    /// As [`Allocator::malloc_after_miss`].
    pub unsafe fn sample_after_miss(&self, heap: *mut Heap, size: usize) -> *mut u8 {
        // SAFETY: the heap is the caller's. On the fast path a block may be half taken: that is for others to mend.
        unsafe {
            if Heap::is_fast(heap) || !self.is_sample(heap, size) {
                return core::ptr::null_mut();
            }
            self.malloc_sample(heap, size, CHUNK, false)
        }
    }

    /// A block that is known as a sample until it is freed. Null if there is no memory, or if no arena can hold it: then
    /// the block is not to be a sample.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub unsafe fn malloc_sample(&self, heap: *mut Heap, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_LARGE {
            return core::ptr::null_mut();
        }
        // SAFETY: the heap is the caller's; the record is that of the new block, which is the caller's.
        unsafe {
            let p = self.malloc_whole_pages(heap, size, align.max(CHUNK), zero);
            if p.is_null() || !self.arenas.contains(p) {
                if !p.is_null() {
                    let _ = self.free(heap, p);
                }
                return core::ptr::null_mut();
            }
            (*layout::record(p)).listed = true;
            p
        }
    }

    /// A heap for the calling thread, with caches or without, or null if there is no memory.
    pub fn acquire(&self, cached: bool) -> *mut Heap {
        self.observed.acquire(cached)
    }

    /// Takes the caches away from the caller's heap: from now on its calls take their slow paths.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub unsafe fn drop_caches(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        unsafe { self.observed.drop_caches(heap) };
        self.settle();
    }

    /// Ends a thread's use of its heap: caches and remote frees go back to the slabs, and it becomes an orphan.
    ///
    /// # Safety
    /// `heap` must be the caller's, who forgets it.
    pub unsafe fn abandon(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        unsafe { self.observed.abandon(heap) };
        self.settle();
    }

    /// Brings a heap to what heaps shall show, if it has not followed yet. Under no lock, and not between a fast path that
    /// failed and what comes after it.
    ///
    /// # Safety
    /// The heap must be the caller's, and not one that was borrowed for a call.
    pub unsafe fn follow(&self, heap: *mut Heap) {
        // SAFETY: as the caller promises.
        unsafe { self.observed.follow(heap) };
        self.settle();
    }

    /// Tells all heaps what they shall show. Called under no lock, by a thread whose own heap shows it already.
    pub fn tell_heaps(&self) {
        self.show_everywhere();
        self.settle();
    }

    /// The calling thread will be idle: its caches go back to the slabs, its large blocks to the free ranges, and the
    /// blocks that others freed come home. The memory then goes as the policy says.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub unsafe fn rest(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe { self.empty_heap(heap) };
        self.settle();
    }

    /// Gives all free memory in dirty ranges back to the system, at once; returns the bytes.
    #[cold]
    pub fn purge(&self) -> usize {
        self.purge_with(Heap::none())
    }

    /// [`Allocator::purge`] by a thread in a call that uses its heap `mine`, whose caches go as well.
    #[cold]
    pub fn purge_with(&self, mine: *mut Heap) -> usize {
        let bytes = self.purge_all(mine);
        self.settle();
        self.publish();
        bytes
    }

    /// Gives free memory back to the system until `keep` bytes are left in free ranges, or `go_on` says that it is
    /// enough: it is asked after each heap and each batch. Called under no lock.
    pub fn trim(&self, keep: usize, go_on: impl FnMut() -> bool) -> Trimmed {
        self.trim_with(Heap::none(), keep, go_on)
    }

    /// [`Allocator::trim`] by a thread in a call that uses its heap `mine`, or [`Heap::none`].
    pub fn trim_with(&self, mine: *mut Heap, keep: usize, go_on: impl FnMut() -> bool) -> Trimmed {
        let done = self.trim_all(mine, keep, go_on);
        self.settle();
        self.publish();
        done
    }
}
