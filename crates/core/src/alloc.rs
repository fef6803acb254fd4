//! The allocator as a whole: chooses the layer that serves a request, and does what the layers noted. The fast paths
//! are in [`crate::Heap`]; the calls here are the slow paths, for when a fast path fails.

use crate::back::trim::Trimmed;
use crate::blocks::Blocks;
use crate::blocks::class;
use crate::blocks::free_block::{Block, Free};
use crate::blocks::given::{Given, Small};
use crate::blocks::heap::Mine;
use crate::blocks::large::MAX_LARGE;
use crate::blocks::large_record::Large;
use crate::blocks::misuse::Call;
use crate::observe::Observed;
use crate::observe::outside::Places;
use crate::pages::chunk::Record;
use crate::pages::notes::{DEFERRED, LIMIT, TABLES, WANTED};
use crate::system::policy::Purge;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};
use core::mem::offset_of;
use core::ops::Deref;

pub use crate::MAX_SIZE;
pub use crate::blocks::Foreign;

/// Size from which a zeroed block bypasses the cache where that saves clearing it.
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
    /// Offset of a byte from the start of the allocator. Another process stores a number other than 0 there to make
    /// this process call [`Os::requested`] at the end of its next slow path.
    pub const REQUEST_AT: usize = offset_of!(Self, observed) + Observed::<O>::REQUEST_AT;
    /// Offset of two counts of 16 bits from the start of the allocator, in which the kernel counts the readers of two
    /// probes. While one of them is not 0, each slow path ends with a call of [`Os::requested`].
    pub const READERS_AT: usize = offset_of!(Self, observed) + Observed::<O>::READERS_AT;

    /// Where an observer in another process finds the structures of the heap, see [`crate::observe::outside`].
    pub const PLACES: Places = Observed::<O>::PLACES;

    /// Makes an allocator that has made no system call yet.
    pub const fn new(os: O) -> Self {
        Allocator { observed: Observed::new(os) }
    }

    /// The counts of readers ([`Allocator::READERS_AT`]).
    pub fn readers(&self) -> [u16; 2] {
        self.notes.readers()
    }

    /// Does what lower layers noted. The last step of a slow path, under no lock (invariant 23).
    #[inline]
    pub fn settle(&self) {
        if self.notes.is_any() {
            self.settle_notes();
        }
    }

    #[cold]
    fn settle_notes(&self) {
        if self.is_stranded() {
            // The notes concern structures that another thread may have left half changed.
            return;
        }
        let request = self.notes.take_request();
        if (request || self.readers() != [0, 0]) && self.os.requested(request) {
            self.update_watch_everywhere();
        }
        self.collect_common_soon();
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
        // Last, as the steps above may leave this note.
        if self.notes.take(WANTED) != 0 && self.policy.purge() != Purge::Never {
            self.poke();
        }
        self.publish_news();
    }

    /// Purges waiting memory where the process's own limit leaves no room for `len` chunks. Called under no lock.
    #[inline]
    fn make_room(&self, len: usize) {
        if !self.has_room(len) {
            self.purge();
        }
    }

    /// Returns a block of at least `size` bytes, also where the fast path would serve it. Null if there is no memory.
    #[inline]
    pub fn malloc(&self, heap: Mine<'_>, size: usize) -> *mut u8 {
        if size > class::MAX_SMALL {
            return self.take_whole_pages(heap, size, CHUNK, false);
        }
        self.take_class(heap, class::of(size))
    }

    /// Returns a block of `class`, or null if there is no memory.
    #[inline]
    fn take_class(&self, heap: Mine<'_>, class: usize) -> *mut u8 {
        if heap.caches_class(class) {
            let p = heap.pop(class);
            return if p.is_null() { self.refill(heap, class) } else { p };
        }
        self.take_past_cache(heap, class)
    }

    /// The same, past the cache. Not inlined, so that the way through the cache saves no registers.
    #[inline(never)]
    fn take_past_cache(&self, heap: Mine<'_>, class: usize) -> *mut u8 {
        match self.take_one(heap, class) {
            Some((block, true)) => block.start(),
            Some((block, false)) => block.untagged(),
            None => self.take_one_again(heap, class),
        }
    }

    /// Takes one block past the cache after there was no memory; null if there is still none.
    #[cold]
    #[inline(never)]
    fn take_one_again(&self, heap: Mine<'_>, class: usize) -> *mut u8 {
        let taken = if self.recover_for_slab(heap, class) { self.take_one(heap, class) } else { None };
        taken.map_or(core::ptr::null_mut(), |(block, _)| block.untagged())
    }

    /// Right after a [`Mine::pop`] that failed: fills the cache from the slabs and returns a block of `class`. Null if
    /// there is no memory.
    fn refill(&self, heap: Mine<'_>, class: usize) -> *mut u8 {
        self.make_room_for_slab(heap, class);
        let p = heap.refill(self, class);
        self.settle();
        if p.is_null() { self.refill_again(heap, class) } else { p }
    }

    /// [`Allocator::refill`] after there was no memory.
    #[cold]
    #[inline(never)]
    fn refill_again(&self, heap: Mine<'_>, class: usize) -> *mut u8 {
        if !self.recover_for_slab(heap, class) {
            return core::ptr::null_mut();
        }
        // A refill follows a `pop` that failed: this one does, as the cache is empty.
        let mut p = heap.pop(class);
        if p.is_null() {
            p = heap.refill(self, class);
            self.settle();
        }
        p
    }

    /// Takes one block from the slabs, past the cache; true if it is known to read as zero. `None` if there is no
    /// memory.
    fn take_one(&self, heap: Mine<'_>, class: usize) -> Option<(Free, bool)> {
        self.make_room_for_slab(heap, class);
        let taken = heap.take_one(self, class);
        self.settle();
        taken
    }

    /// Calls `make_room` where the heap has no slab of `class` with free blocks.
    #[inline]
    fn make_room_for_slab(&self, heap: Mine<'_>, class: usize) {
        if self.policy.has_own_limit() && heap.first_slab(class).is_none() {
            self.make_room(1);
        }
    }

    /// Returns a large or huge block, or null if there is no memory.
    pub(crate) fn take_whole_pages(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        let p = self.malloc_cached_large(heap, size.max(1), align, zero);
        if p.is_null() { self.malloc_fresh(heap, size, align, zero) } else { p }
    }

    /// Returns a large block of at least `size` bytes, or a huge one, past the cache of the caller's `heap`. Null if
    /// there is no memory, not even after a purge where that may help (`join_parts`).
    #[inline(never)]
    pub fn malloc_fresh(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_SIZE - CHUNK {
            return core::ptr::null_mut();
        }
        let mut is_joined = false;
        loop {
            self.make_room(size.div_ceil(CHUNK));
            if self.is_tight() {
                // Other threads shall find what this one frees.
                self.give_up_large_cache(heap);
            }
            let p = self.huge.malloc_scarce(self, size, align);
            let large = || self.malloc_large(size, align, 0, zero).map(Large::start);
            let p = if p.is_null() { large().unwrap_or_else(|| self.huge.malloc(self, size, align)) } else { p };
            // See `malloc_stranded`.
            let p = if p.is_null() && self.is_stranded() { self.malloc_reentrant(size, align, zero) } else { p };
            self.settle();
            if !p.is_null() || is_joined || !self.join_parts(heap, size) {
                return p;
            }
            is_joined = true;
        }
    }

    /// After the system refused memory, in a call that uses `heap`: waits until nothing is on its way to the system,
    /// and gives what all heaps have in their caches to the slabs and the free ranges.
    #[cold]
    #[inline(never)]
    fn recover(&self, heap: Mine<'_>) {
        self.with_batch(|_| self.empty_caches(true, heap, &mut || true));
        self.settle();
    }

    /// [`Allocator::recover`]; returns whether the heap may get a block of `class` now.
    #[cold]
    fn recover_for_slab(&self, heap: Mine<'_>, class: usize) -> bool {
        self.recover(heap);
        let has_blocks = heap.first_slab(class).is_some() || !heap.pending.is_empty();
        // Relaxed: only a count.
        has_blocks || self.orphans.load(Ordering::Relaxed) != 0 || self.has_in_parts(1)
    }

    /// [`Blocks::acquire`] that tries once more if there is no memory.
    pub fn acquire(&self, cached: bool) -> Option<Mine<'static>> {
        let heap = Blocks::acquire(self, cached);
        if heap.is_some() || !self.recover_for_slab(Mine::none(), 0) {
            return heap;
        }
        Blocks::acquire(self, cached)
    }

    /// Makes one range of free neighbours by a purge, although some were dirty, on their way to the system, or in
    /// caches. If the free ranges have too few chunks in all for `size` bytes, returns false.
    #[cold]
    #[inline(never)]
    fn join_parts(&self, heap: Mine<'_>, size: usize) -> bool {
        if size > self.arenas.usable_bytes() {
            return false;
        }
        self.recover(heap);
        let enough = self.has_in_parts(size.div_ceil(CHUNK));
        if enough {
            self.purge_with(heap);
        }
        enough
    }

    /// Returns a block whose first `size` bytes are zero, or null if there is no memory.
    pub fn calloc(&self, heap: Mine<'_>, size: usize) -> *mut u8 {
        if size > class::MAX_SMALL {
            return self.take_whole_pages(heap, size, CHUNK, true);
        }
        let class = class::of(size);
        if class >= class::FIRST_PAGED && heap.caches_class(class) {
            heap.flush_all(self, class);
            self.notes.forget_room(heap.shrink_cap(class));
            heap.uncache_class(class);
        }
        if size >= ZEROED_PAST_CACHE && heap.cache_is_empty(class) {
            let Some((block, zero)) = self.take_one(heap, class) else { return self.calloc_again(heap, size, class) };
            let bytes = Small::new(block, class).bytes().part(0, size);
            let cleared = if zero { 0 } else { self.habits.clear_block(self, bytes, class) };
            heap.flow.zeroed(cleared, size - cleared);
            return block.start();
        }
        self.cleared(heap, self.take_class(heap, class), size)
    }

    /// [`Allocator::calloc`] of a block of `class` after there was no memory.
    #[cold]
    #[inline(never)]
    fn calloc_again(&self, heap: Mine<'_>, size: usize, class: usize) -> *mut u8 {
        self.cleared(heap, self.take_one_again(heap, class), size)
    }

    /// Clears `size` bytes of a new block, if there is one.
    #[inline(always)]
    fn cleared(&self, heap: Mine<'_>, p: *mut u8, size: usize) -> *mut u8 {
        if !p.is_null() {
            heap.flow.zeroed(size, 0);
            // SAFETY: the block is new, so it is the caller's alone, and has at least `size` bytes.
            unsafe { p.write_bytes(0, size) };
        }
        p
    }

    /// Returns a block aligned to `align`, a power of two, or null if there is no memory.
    pub fn malloc_aligned(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        if align <= class::MIN_BLOCK {
            return if zero { self.calloc(heap, size) } else { self.malloc(heap, size) };
        }
        match class::of_aligned(size, align) {
            None => self.take_whole_pages(heap, size, align.max(CHUNK), zero),
            Some(class) if zero => self.calloc(heap, class::SIZE[class] as usize),
            Some(class) => self.take_class(heap, class),
        }
    }

    /// Returns a block that is marked as a sample until it is freed. Null if there is no memory, or if no arena can
    /// hold the block: then the caller allocates one that is not a sample.
    pub fn malloc_sample(&self, heap: Mine<'_>, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_LARGE {
            return core::ptr::null_mut();
        }
        let place = self.usual_place(heap, size, align);
        let p = self.take_whole_pages(heap, size, align.max(CHUNK), zero);
        if p.is_null() {
            return p;
        }
        // SAFETY: the block is new, so it is a live block of the caller's, as `Given` demands.
        let given = unsafe { Given::of(p) };
        let Some(c) = self.arenas.record(p) else {
            let _ = self.free_given(heap, given, None);
            return core::ptr::null_mut();
        };
        let block = self.large_block(Call::Free, given, c);
        block.set_sample_of(size);
        block.set_place(place);
        p
    }

    /// Returns where a small block would lie if it were no sample: takes a block, and gives it back. Null for a large
    /// block, or if there is no memory.
    fn usual_place(&self, heap: Mine<'_>, size: usize, align: usize) -> *mut u8 {
        let Some(class) = class::of_aligned(size, align) else { return core::ptr::null_mut() };
        let p = self.take_class(heap, class);
        // SAFETY: the heap is the caller's, as `Mine` proves; the block is new, so it is a live block of the caller's.
        if !p.is_null() && unsafe { !Heap::free(heap.id(), &self.map, p) } {
            // SAFETY: as above.
            let _ = unsafe { self.free_after_miss(heap, p) };
        }
        p
    }

    /// Marks the block at `p`, which is new and of `size` requested bytes, as a sample until it is freed. False if only
    /// a copy can be a sample, as it is no large block.
    ///
    /// # Safety
    /// `p` must be a block of the caller's.
    pub unsafe fn mark(&self, p: *mut u8, size: usize) -> bool {
        // SAFETY: the caller passes a live block of its own, as `Given` demands.
        let given = unsafe { Given::of(p) };
        let large = self.arenas.record(p).and_then(|c| given.large(c));
        large.inspect(|block| block.set_sample_of(size)).is_some()
    }

    /// Frees the block at `given`, where `small` is [`Blocks::small`] of it.
    fn free_given(&self, heap: Mine<'_>, given: Given, small: Option<Small>) -> Result<(), Foreign> {
        if let Some(small) = small {
            self.check_block(heap, Call::Free, small);
            if heap.caches_class(small.class()) {
                heap.free_full(self, small);
            } else {
                self.wipe(small);
                heap.give_one(self, small);
            }
        } else if let Some(c) = self.arenas.record(given.ptr()) {
            if !self.cache_large(heap, given, c) {
                self.free_large(self.large_block(Call::Free, given, c));
            }
        } else if given.ptr().is_null() {
            return Ok(());
        } else if !self.huge.free(self, given) {
            return Err(Foreign);
        }
        self.settle();
        Ok(())
    }

    /// Returns the size of the block at `p` if page map and tag prove that it is a live small block. They do not where
    /// heaps have no caches, as a block gets its tag in a cache.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, or foreign.
    #[inline(always)]
    pub unsafe fn quick_size(&self, p: *mut u8) -> Option<usize> {
        let class = self.map.class(p);
        // SAFETY: the page map has size classes only (invariant 14). Without this each table is checked.
        unsafe { core::hint::assert_unchecked(class < class::CLASSES) };
        // SAFETY: a class other than 0 says that `p` lies in a slab (invariant 14), so it is not foreign but a block of
        // the caller's, as `Free` demands.
        let live = class != 0
            && !self.watches_everything()
            && class::is_start(p.addr() & (CHUNK - 1), class)
            && unsafe { Free::of(p) }.tag() != Block::TAG;
        live.then(|| class::SIZE[class] as usize)
    }

    /// Returns the usable bytes of the block at `p`, constant for its life; `None` if it is no block of neap's. `call`
    /// is what the program called.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, or foreign.
    pub unsafe fn usable_size(&self, heap: Mine<'_>, call: Call, p: *mut u8) -> Option<usize> {
        // SAFETY: the caller passes a block of its own, or a foreign pointer, as `Given` demands.
        let given = unsafe { Given::of(p) };
        if let Some(small) = self.small(call, given) {
            self.check_block(heap, call, small);
            return Some(small.size());
        }
        self.large_or_huge_bytes(call, given)
    }

    /// Resizes the block at `p`, whose usable size is `old`, to at least `size` bytes. Null if there is no memory;
    /// then the block is as it was.
    ///
    /// # Safety
    /// `p` must be a block of the caller's with usable size `old`.
    pub unsafe fn realloc(&self, heap: Mine<'_>, p: *mut u8, old: usize, size: usize) -> *mut u8 {
        if self.fits_in_place(old, size) {
            return p;
        }
        // SAFETY: the caller passes a block of its own, as `Given` demands.
        let given = unsafe { Given::of(p) };
        if old > class::MAX_SMALL
            && size > class::MAX_SMALL
            && let Some(new) = self.resize_whole_pages(given, old, size)
        {
            return new;
        }
        let new = self.malloc(heap, size);
        if new.is_null() {
            // A block that shrinks can stay as it is.
            return if size <= old { p } else { new };
        }
        // SAFETY: both are blocks of the caller's, `p` of `old` bytes and `new` of at least `size`, and do not overlap
        // (invariant 4).
        unsafe { new.copy_from_nonoverlapping(p, old.min(size)) };
        let _ = self.free_given(heap, given, self.small(Call::Realloc, given));
        new
    }

    /// Resizes a large or huge block of `old` bytes in place, or moves it without a copy where that is cheaper.
    fn resize_whole_pages(&self, given: Given, old: usize, size: usize) -> Option<*mut u8> {
        let Some(c) = self.arenas.record(given.ptr()) else {
            let moved = self.huge.resize(self, given, size);
            return (!moved.is_null()).then_some(moved);
        };
        let block = self.large_block(Call::Realloc, given, c);
        let new = if self.resize_large(block, size) {
            Some(given.ptr())
        } else if size > old {
            // A block of the reentrant reserve always moves. To shrink it the caller copies it, as the new block of
            // `move_large` must be the longer one.
            self.move_large(block, old, size)
        } else {
            return None;
        };
        self.settle();
        new
    }

    /// Does the rest of malloc after [`crate::Heap::malloc`] failed for `size`; the heap must be as that call left it.
    #[inline]
    pub fn malloc_after_miss(&self, heap: Mine<'_>, size: usize) -> *mut u8 {
        // If the heap is on the fast path and the size is in the table, `pop` ran and failed.
        if size <= class::MAX_TABLE && heap.is_fast() {
            return self.refill(heap, class::of(size));
        }
        self.malloc(heap, size)
    }

    /// A block of `size` bytes, right after [`crate::Heap::malloc_between_samples`] found the cache empty.
    pub fn malloc_past_cache(&self, heap: Mine<'_>, size: usize) -> *mut u8 {
        let class = class::of(size);
        if heap.caches_class(class) {
            return self.refill(heap, class);
        }
        heap.undo_pop(class);
        self.take_class(heap, class)
    }

    /// After [`crate::Heap::malloc`] failed: counts `size` requested bytes in a heap whose allocations are watched, and
    /// returns whether their block is to be a sample.
    pub fn is_due_after_miss(&self, heap: Mine<'_>, size: usize) -> bool {
        // On the fast path `pop` may have changed the head of a cache: `malloc_after_miss` undoes that.
        !heap.is_fast() && self.is_due_for_sample(heap, size)
    }

    /// Frees `p` after [`crate::Heap::free`] failed for it.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, NULL, or foreign.
    pub unsafe fn free_after_miss(&self, heap: Mine<'_>, p: *mut u8) -> Result<(), Foreign> {
        // SAFETY: the caller passes a block of its own, NULL, or a foreign pointer, as `Given` demands.
        let given = unsafe { Given::of(p) };
        let small = self.small(Call::Free, given);
        heap.undo_free(self.map.class(p));
        self.free_given(heap, given, small)
    }

    /// After [`crate::Heap::free`] failed: frees `p` if it is a large block, the heap's own cache has room for it and
    /// nothing has to be noted, so that there is nothing to settle: the usual case. Otherwise returns false and does
    /// nothing. The heap must not be watched.
    ///
    /// # Safety
    /// As [`Allocator::free_after_miss`].
    #[inline(always)]
    pub unsafe fn free_to_cache_after_miss(&self, heap: Mine<'_>, p: *mut u8) -> bool {
        // SAFETY: the caller passes a block of its own, NULL, or a foreign pointer, as `Given` demands.
        self.cache_large_after_miss(heap, unsafe { Given::of(p) })
    }

    /// Frees `p`, any kind of block.
    ///
    /// # Safety
    /// As [`Allocator::free_after_miss`].
    pub unsafe fn free(&self, heap: Mine<'_>, p: *mut u8) -> Result<(), Foreign> {
        // SAFETY: the caller passes a block of its own, NULL, or a foreign pointer, as `Given` demands.
        let given = unsafe { Given::of(p) };
        self.free_given(heap, given, self.small(Call::Free, given))
    }

    /// Removes the caches of a heap: from now on its calls take their slow paths.
    pub fn drop_caches(&self, heap: Mine<'_>) {
        self.drop_caches_of(heap);
        self.settle();
    }

    /// Ends a thread's use of its heap: gives caches and remote frees back to the slabs, and makes the heap an orphan.
    /// The thread must not use it again.
    pub fn abandon(&self, heap: Mine<'_>) {
        self.abandon_heap(heap);
        self.settle();
    }

    /// Makes a heap adopt the watch mode and the interval of samples, if it has others. It must not be one that was
    /// borrowed for a call. Called under no lock, and not between a fast path that failed and its slow path.
    pub fn follow(&self, heap: Mine<'_>) {
        if heap.watch.get() != self.watch() {
            self.update_watch(heap);
        }
        heap.sampler.follow(self.sample_interval());
        self.settle();
    }

    /// Prepares the heap of a thread that will be idle: gives its caches back to the slabs and its large blocks to the
    /// free ranges, and collects the blocks that other threads freed. The memory then goes as the policy says.
    pub fn rest(&self, heap: Mine<'_>) {
        self.empty_heap(heap);
        self.settle();
    }

    /// Makes all heaps adopt the watch mode. Called under no lock, by a thread whose own heap has adopted it already.
    pub fn apply_watch_mode(&self) {
        self.update_watch_everywhere();
        self.settle();
    }

    /// Gives all free memory back to the system at once. Returns the number of bytes.
    #[cold]
    pub fn purge(&self) -> usize {
        self.purge_with(Mine::none())
    }

    /// [`Allocator::purge`] by a thread in a call that uses its heap `mine`, whose caches go as well.
    #[cold]
    pub fn purge_with(&self, mine: Mine<'_>) -> usize {
        let bytes = self.purge_all(mine, &mut || true);
        self.settle();
        self.publish();
        bytes
    }

    /// Gives free memory back to the system until `keep` bytes are left in free ranges, or until `go_on`, which is
    /// called after each heap and each batch, returns false. Called under no lock.
    pub fn trim(&self, keep: usize, go_on: impl FnMut() -> bool) -> Trimmed {
        self.trim_with(Mine::none(), keep, go_on)
    }

    /// [`Allocator::trim`] by a thread in a call that uses its heap `mine`, or [`Mine::none`].
    pub fn trim_with(&self, mine: Mine<'_>, keep: usize, go_on: impl FnMut() -> bool) -> Trimmed {
        let done = self.trim_all(mine, keep, go_on);
        self.settle();
        self.publish();
        done
    }

    /// Returns the kind of the chunk of `p`, or `None` if it has no record that may be read. For tests.
    pub fn kind_at(&self, p: *const u8) -> Option<crate::pages::chunk::Kind> {
        self.arenas.record(p).map(Record::kind)
    }
}
