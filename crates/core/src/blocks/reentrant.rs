//! Reentrant calls: those in a signal handler that interrupted another call of the same thread.
//!
//! The interrupted call may hold any lock, and may have left the thread's heap half changed. It goes on only when the
//! reentrant call returns. So a reentrant call uses no heap, takes no lock and waits for no thread (invariant 26;
//! `docs/signals.md` has the whole argument).
//!
//! | call | does |
//! |---|---|
//! | malloc, calloc, aligned | takes a block of the reentrant reserve; where that is full, a mapping of its own |
//! | free of a small block | makes a remote free (`remote.rs`) |
//! | free of a large block | marks it [`Kind::DEFERRED`] and pushes it on a stack, which the next slow path empties |
//! | free of a large block of the reentrant reserve, or a huge block | frees it at once |
//! | realloc | resizes in place, or takes a new block, copies and frees |
//! | usable size | reads page map and record |
//!
//! A reentrant free leaves a note for what it cannot do, and `Blocks::drain` does it in the next slow path of any
//! thread (`settle`) or at the next tick.

use crate::blocks::apart::Renewed;
use crate::blocks::free_block::{Block, Free};
use crate::blocks::given::{Given, Small};
use crate::blocks::heap::Mine;
use crate::blocks::large_record::Large;
use crate::blocks::misuse::{self, Call};
use crate::blocks::registry::{LEFT, LOST, OWNED};
use crate::blocks::{Blocks, Foreign, class, slab, slab_record};
use crate::pages::chunk::{Kind, Record, State};
use crate::system::sync::Ordering;
use crate::{CHUNK, MAX_SIZE, Os};

impl<O: Os> Blocks<O> {
    /// malloc in a reentrant call: returns at least `size` bytes aligned to `align`, a power of two; zeroed if `zero`.
    /// Null if there is no memory. Does not check the process's own limit.
    #[cold]
    pub fn malloc_reentrant(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_SIZE - CHUNK || align > MAX_SIZE {
            return core::ptr::null_mut();
        }
        let p = match class::of_aligned(size, align) {
            Some(class) => self.malloc_small_reentrant(class),
            None => self.malloc_large_reentrant(size, align),
        };
        if p.is_null() {
            // A new mapping reads as zero.
            return self.huge.map(self, size, align);
        }
        if zero && size <= class::MAX_SMALL {
            // A large block of the reserve is clean.
            // SAFETY: the block is new, so it is the caller's alone, and its class has at least `size` bytes.
            unsafe { p.write_bytes(0, size) };
        }
        p
    }

    /// Returns a block of `class` for a call that finds none in its heap if the process is stranded: a handler that
    /// interrupted the call has forked, and this is the child, which takes blocks only as reentrant calls do. Otherwise
    /// null.
    #[cold]
    pub(crate) fn malloc_stranded(&self, class: usize) -> *mut u8 {
        if !self.is_stranded() {
            return core::ptr::null_mut();
        }
        let size = class::SIZE[class] as usize;
        // The caller may rely on the alignment of its class: the largest power of two that divides the size.
        self.malloc_reentrant(size, 1 << size.trailing_zeros(), false)
    }

    /// [`Blocks::malloc_stranded`] that returns a token.
    pub(crate) fn take_stranded(&self, class: usize) -> Option<Free> {
        let p = self.malloc_stranded(class);
        // SAFETY: the block is new, so it is the caller's alone, as `Free` demands.
        (!p.is_null()).then(|| unsafe { Free::of(p) })
    }

    /// Returns a block of `class` of the reentrant reserve (invariant 27), or null if that is full.
    fn malloc_small_reentrant(&self, class: usize) -> *mut u8 {
        let p = match self.reentrant_blocks.take_block(class) {
            Some(p) => p,
            None => match self.arenas.reentrant_reserve.take(&self.os, &self.map, 1, 1) {
                Some(c) => self.reentrant_blocks.make_slab(&self.arenas, &self.map, c, class),
                None => return core::ptr::null_mut(),
            },
        };
        self.stray.take_shared(class);
        // SAFETY: its remote bit was set and this call cleared it, so the block is the caller's alone (invariant 27).
        unsafe { Free::of(p) }.untagged()
    }

    /// Returns a large block of the reentrant reserve, or null if that is full.
    fn malloc_large_reentrant(&self, size: usize, align: usize) -> *mut u8 {
        let bytes = size.max(1).next_multiple_of(self.os.page_size());
        let len = bytes.div_ceil(CHUNK);
        let Some(c) = self.arenas.reentrant_reserve.take(&self.os, &self.map, len, align.div_ceil(CHUNK)) else {
            return core::ptr::null_mut();
        };
        // Earlier blocks there left their kinds: only the first record may have one (invariant 12).
        (1..len).for_each(|i| c.after(i).set_kind(Kind::NONE));
        let block = Large::set_up(c, len, len, bytes, State::Clean);
        block.set_kind(Kind::REENTRANT);
        self.reentrant_blocks.large_blocks.fetch_add(1, Ordering::Relaxed);
        self.reentrant_blocks.large_bytes.fetch_add(bytes, Ordering::Relaxed);
        block.start()
    }

    /// Frees a large block of the reentrant reserve. Does not return if it is free already.
    pub(crate) fn free_large_reentrant(&self, block: Large) {
        let (len, bytes) = (block.len(), block.bytes());
        // It keeps the kind FREE until the chunk is used again, so that a second free is recognised. Of two threads
        // that free the block, one finds it free.
        if !block.chunk().change_kind(Kind::REENTRANT, Kind::FREE) {
            misuse::not_a_block(self, Call::Free, block.start());
        }
        self.reentrant_blocks.large_blocks.fetch_sub(1, Ordering::Relaxed);
        self.reentrant_blocks.large_bytes.fetch_sub(bytes, Ordering::Relaxed);
        match self.renew_apart(block) {
            Renewed::Clean => {}
            Renewed::Usable => self.release_or_clear(block.memory(len * CHUNK)),
            Renewed::Lost => return self.arenas.reentrant_reserve.lose(len),
        }
        self.arenas.reentrant_reserve.give(block.chunk(), len);
    }

    /// free in a reentrant call.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, NULL, or foreign.
    #[cold]
    pub unsafe fn free_reentrant(&self, p: *mut u8) -> Result<(), Foreign> {
        // SAFETY: the caller passes a block of its own, NULL, or a foreign pointer, as `Given` demands.
        let given = unsafe { Given::of(p) };
        if let Some(small) = self.small(Call::Free, given) {
            self.check_reentrant(Call::Free, small);
            self.free_small_reentrant(small);
        } else if let Some(c) = self.arenas.record(p) {
            self.free_chunks_reentrant(given, c);
        } else if !p.is_null() && !self.huge.free(self, given) {
            return Err(Foreign);
        }
        Ok(())
    }

    /// Frees a small block as [`Blocks::give_remote`] does, but leaves a note where the owner is an orphan: this thread
    /// may hold the lock of the registry (invariant 26).
    fn free_small_reentrant(&self, small: Small) {
        let (c, class) = (small.record(), small.class());
        let mut batch = slab::Batch::new();
        batch.add(small.index());
        if slab_record::is_hardened(c) {
            // Clears it as `Blocks::wipe` does, which may make system calls.
            small.bytes().clear();
        }
        match c.remote().free(slab_record::remote_word(c, class, batch.word), batch.mask) {
            Err(_) => misuse::freed(self, Call::Free, small.start(), class),
            Ok(false) => {}
            Ok(true) => {
                if self.push_pending(c).is_some() {
                    self.note_deferred();
                }
            }
        }
        self.stray.give_shared(class);
    }

    /// Frees the large block at `given`, whose record is `c`, if it is one of the reentrant reserve. Defers another one
    /// to a call that may take locks.
    fn free_chunks_reentrant(&self, given: Given, c: Record) {
        let block = self.large_block(Call::Free, given, c);
        if self.arenas.reentrant_reserve.holds(given.ptr()) {
            return self.free_large_reentrant(block);
        }
        if !c.change_kind(Kind::LARGE, Kind::DEFERRED) {
            misuse::not_a_block(self, Call::Free, given.ptr());
        }
        if self.is_stranded() {
            // No later call of a stranded process frees it, so at least its memory goes back.
            self.discard(block);
        }
        // SAFETY: this call changed the kind to DEFERRED, so the record is on no other stack, and its link is unused.
        unsafe { self.deferred.push(c.as_ptr()) };
        self.note_deferred();
    }

    /// Does what reentrant calls deferred: frees large blocks, and collects remote frees of orphans. Also does what a
    /// fork deferred: abandons heaps. Called under no lock, in a call that is not reentrant.
    #[cold]
    pub(crate) fn drain(&self) {
        if self.is_stranded() {
            // Orphans and free ranges may be half changed.
            return;
        }
        self.abandon_left();
        if !self.deferred.is_empty() {
            // SAFETY: the thread that takes the stack has its nodes alone. Each is the record of a large block that was
            // freed, which `Large` allows.
            unsafe {
                self.deferred.take(|c| {
                    if let Some(c) = Record::from_ptr(c) {
                        c.set_kind(Kind::LARGE);
                        self.release_large(Large::of(c), State::Dirty);
                    }
                });
            }
        }
        if self.orphans.load(Ordering::Relaxed) != 0 {
            let pending = |orphan: &Mine<'_>| !orphan.pending.is_empty();
            self.registry.with(&self.os, |r| r.orphans().filter(pending).for_each(|orphan| orphan.collect(self)));
        }
    }

    /// Does not return if `small` is free in its slab. Does not search caches, which may be half changed: a block in a
    /// cache is found when it comes back from there.
    fn check_reentrant(&self, call: Call, small: Small) {
        if slab_record::is_free(small.record(), small.class(), small.index()) {
            misuse::freed(self, call, small.start(), small.class());
        }
    }

    /// `Allocator::usable_size` in a reentrant call.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, or foreign.
    pub unsafe fn usable_size_reentrant(&self, call: Call, p: *mut u8) -> Option<usize> {
        // SAFETY: the caller passes a block of its own, or a foreign pointer, as `Given` demands.
        let given = unsafe { Given::of(p) };
        if let Some(small) = self.small(call, given) {
            self.check_reentrant(call, small);
            return Some(small.size());
        }
        self.large_or_huge_bytes(call, given)
    }

    /// Returns the usable bytes of the large or huge block at `given`; `None` if it is no block of neap's.
    pub(crate) fn large_or_huge_bytes(&self, call: Call, given: Given) -> Option<usize> {
        match self.arenas.record(given.ptr()) {
            Some(c) => Some(self.large_block(call, given, c).bytes()),
            None => self.huge.bytes(given.ptr()),
        }
    }

    /// realloc in a reentrant call: see `Allocator::realloc`.
    ///
    /// # Safety
    /// `p` must be a block of the caller's with usable size `old`.
    pub unsafe fn realloc_reentrant(&self, p: *mut u8, old: usize, size: usize) -> *mut u8 {
        if self.fits_in_place(old, size) {
            return p;
        }
        let new = self.malloc_reentrant(size, class::MIN_BLOCK, false);
        if new.is_null() {
            // A block that shrinks can stay as it is.
            return if size <= old { p } else { new };
        }
        // SAFETY: both are blocks of the caller's, `p` of `old` bytes and `new` of at least `size`, and do not overlap
        // (invariant 4). `p` is not used afterwards.
        unsafe {
            new.copy_from_nonoverlapping(p, old.min(size));
            let _ = self.free_reentrant(p);
        }
        new
    }

    /// Returns the number of live blocks of the reentrant reserve, and their bytes; blocks in caches count as live.
    pub(crate) fn live_reentrant(&self) -> (usize, usize) {
        let all = &self.reentrant_blocks;
        let large = (all.large_blocks.load(Ordering::Relaxed), all.large_bytes.load(Ordering::Relaxed));
        (1..class::CLASSES).fold(large, |(blocks, bytes), class| {
            let live = |c: Record| (class::capacity(class) - c.remote().apart()) as usize;
            let small: usize = all.slabs_of(class).map(live).sum();
            (blocks + small, bytes + small * class::SIZE[class] as usize)
        })
    }

    /// Gives up the heap of a thread that ends in a reentrant call: the heap may be half changed, so it is never used
    /// again. (POSIX does not allow a handler to end its thread in such a place; locks of the interrupted call stay
    /// locked, too.)
    pub fn lose(&self, heap: Mine<'_>) {
        heap.state.store(LOST, Ordering::SeqCst);
        heap.slot.store(core::ptr::null_mut(), Ordering::SeqCst);
    }

    /// In the child of a fork: abandons the heaps of other threads that are whole.
    fn abandon_left(&self) {
        // Relaxed: the lock orders what is read below.
        if !self.left.load(Ordering::Relaxed) || !self.left.swap(false, Ordering::Relaxed) {
            return;
        }
        for heap in self.all_heaps() {
            // Relaxed: the lock orders it where it counts.
            let is_left = || heap.state.load(Ordering::Relaxed) == LEFT;
            let take = || {
                let left = is_left();
                if left {
                    heap.state.store(OWNED, Ordering::Relaxed);
                }
                left
            };
            if is_left() && self.registry.with(&self.os, |_| take()) {
                // SAFETY: the heap's thread does not exist in this process, and this thread changed the state under the
                // lock, so no other thread uses the heap, as `Mine` demands.
                self.abandon_heap(unsafe { Mine::of_ref(heap) });
            }
        }
    }

    /// Returns the number of deferred blocks, or `None` if one of them has another kind. For tests, while no other
    /// thread uses the allocator.
    pub(crate) fn check_deferred(&self) -> Option<usize> {
        let (mut count, mut marked) = (0, true);
        // SAFETY: no other thread uses the allocator, so the stack does not change.
        unsafe {
            self.deferred.for_each(|c| {
                count += 1;
                marked &= Record::from_ptr(c).is_some_and(|c| c.kind() == Kind::DEFERRED);
            });
        }
        marked.then_some(count)
    }
}

const _: () =
    assert!(align_of::<Block>() <= class::MIN_BLOCK, "blocks of the reentrant reserve are aligned as all are");
