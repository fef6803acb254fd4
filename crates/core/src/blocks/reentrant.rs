//! Reentrant calls: those in a signal handler that interrupted another call of the same thread. The interrupted call may
//! hold any lock, and may have changed the thread's heap half. So a reentrant call uses no heap, takes no lock and waits
//! for nobody: whatever it interrupted goes on when it returns (`docs/signals.md` has the whole argument).
//!
//! | call | does |
//! |---|---|
//! | malloc, calloc, aligned | a block of the reentrant reserve (`reentrant_reserve.rs`); where that is full, a mapping of its own |
//! | free of a small block | what every free to another thread's slab is (`remote.rs`) |
//! | free of a large block | marks it [`Kind::DEFERRED`] and pushes it on a stack, which any thread's next slow path empties |
//! | free of a block of the reentrant reserve, or a huge one | at once |
//! | realloc | in place, or a new block, a copy, a free |
//! | usable size | reads page map and record |
//!
//! What a reentrant free cannot do it notes, and `Blocks::drain` does it in the next slow path (`settle`) or tick.

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
    /// malloc in a reentrant call: at least `size` bytes aligned to `align`, a power of two; zeroed if asked for. Null if
    /// there is no memory. A limit that the process has for itself is not looked at.
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
            // Zeroed.
            return self.huge.map(self, size, align);
        }
        if zero && size <= class::MAX_SMALL {
            // SAFETY: the block is new, and at least so long. A large one is clean.
            unsafe { p.write_bytes(0, size) };
        }
        p
    }

    /// A block of `class` for a call that finds none in its heap. Null, unless a handler that interrupted the call has forked
    /// and this is the child, which is stranded: it uses no chunks of others, so the block is that of a reentrant call.
    #[cold]
    pub(crate) fn malloc_stranded(&self, class: usize) -> *mut u8 {
        if !self.is_stranded() {
            return core::ptr::null_mut();
        }
        let size = class::SIZE[class] as usize;
        // Blocks of a class are aligned to what divides their size: the caller may count on that.
        self.malloc_reentrant(size, 1 << size.trailing_zeros(), false)
    }

    /// [`Blocks::malloc_stranded`] as a token.
    pub(crate) fn take_stranded(&self, class: usize) -> Option<Free> {
        let p = self.malloc_stranded(class);
        // SAFETY: the block is new, and at least so long.
        (!p.is_null()).then(|| unsafe { Free::of(p) })
    }

    fn malloc_small_reentrant(&self, class: usize) -> *mut u8 {
        let p = match self.reentrant_blocks.take_block(class) {
            Some(p) => p,
            None => match self.arenas.reentrant_reserve.take(&self.os, &self.map, 1, 1) {
                Some(c) => self.reentrant_blocks.make_slab(&self.arenas, &self.map, c, class),
                None => return core::ptr::null_mut(),
            },
        };
        self.stray.take_shared(class);
        // SAFETY: the block is ours.
        unsafe { Free::of(p) }.untagged()
    }

    fn malloc_large_reentrant(&self, size: usize, align: usize) -> *mut u8 {
        let bytes = size.max(1).next_multiple_of(self.os.page_size());
        let len = bytes.div_ceil(CHUNK);
        let Some(c) = self.arenas.reentrant_reserve.take(&self.os, &self.map, len, align.div_ceil(CHUNK)) else {
            return core::ptr::null_mut();
        };
        // Earlier blocks left their kinds.
        (1..len).for_each(|i| c.after(i).set_kind(Kind::NONE));
        let block = Large::set_up(c, len, len, bytes, State::Clean);
        block.set_kind(Kind::REENTRANT);
        self.reentrant_blocks.large_blocks.fetch_add(1, Ordering::Relaxed);
        self.reentrant_blocks.large_bytes.fetch_add(bytes, Ordering::Relaxed);
        block.start()
    }

    /// Frees a large block of the reentrant reserve, or says what is wrong with it.
    pub(crate) fn free_large_reentrant(&self, block: Large) {
        let (len, bytes) = (block.len(), block.bytes());
        // A free one keeps this kind until the chunk is used again, so that a second free is told from a wild one. Of two
        // that free the block one comes second.
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
        // SAFETY: as the caller promises.
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

    /// What [`Blocks::give_remote`] does, but for orphans: the lock that stands in for their owner may be this thread's.
    fn free_small_reentrant(&self, small: Small) {
        let (c, class) = (small.record(), small.class());
        let mut batch = slab::Batch::new();
        batch.add(small.index());
        if slab_record::is_hardened(c) {
            // As `Blocks::wipe`, which may ask the system.
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

    /// Frees the large block at `given`, whose record is `c`: one of the reentrant reserve here, another by a call that may take
    /// locks.
    fn free_chunks_reentrant(&self, given: Given, c: Record) {
        let block = self.large_block(Call::Free, given, c);
        if self.arenas.reentrant_reserve.holds(given.ptr()) {
            return self.free_large_reentrant(block);
        }
        if !c.change_kind(Kind::LARGE, Kind::DEFERRED) {
            misuse::not_a_block(self, Call::Free, given.ptr());
        }
        if self.is_stranded() {
            // No later call frees it, so at least its memory goes back.
            let _ = self.release(block.memory(block.bytes()));
        }
        // SAFETY: a large block's record has no other use for its link.
        unsafe { self.deferred.push(c.as_ptr()) };
        self.note_deferred();
    }

    /// Does what reentrant calls left: frees large blocks, and takes in what they freed into orphans. And what a fork left:
    /// abandons heaps. Under no lock, in a call that is not reentrant.
    #[cold]
    pub(crate) fn drain(&self) {
        if self.is_stranded() {
            // Orphans may be half changed, and ranges.
            return;
        }
        self.abandon_left();
        if !self.deferred.is_empty() {
            // SAFETY: who takes the stack has it alone; each block on it was freed.
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

    /// Does not return if `small` is free in its slab. A block that is in a cache is not found here: caches may be half
    /// changed. It is found when it comes back from there.
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
        // SAFETY: as the caller promises.
        let given = unsafe { Given::of(p) };
        if let Some(small) = self.small(call, given) {
            self.check_reentrant(call, small);
            return Some(small.size());
        }
        self.large_or_huge_bytes(call, given)
    }

    /// Usable bytes of the large or huge block at `given`; `None` if neap does not know it.
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
            // To shrink is never refused.
            return if size <= old { p } else { new };
        }
        // SAFETY: both blocks have the bytes that are copied; the old one's life ends.
        unsafe {
            new.copy_from_nonoverlapping(p, old.min(size));
            let _ = self.free_reentrant(p);
        }
        new
    }

    /// Live blocks of the reentrant reserve, and their bytes; blocks in caches count as well.
    pub(crate) fn live_reentrant(&self) -> (usize, usize) {
        let all = &self.reentrant_blocks;
        let large = (all.large_blocks.load(Ordering::Relaxed), all.large_bytes.load(Ordering::Relaxed));
        (1..class::CLASSES).fold(large, |(blocks, bytes), class| {
            let live = |c: Record| (class::capacity(class) - c.remote().apart()) as usize;
            let small: usize = all.slabs_of(class).map(live).sum();
            (blocks + small, bytes + small * class::SIZE[class] as usize)
        })
    }

    /// A reentrant call ends its thread, whose heap may be half changed: it is not used any more. (A handler that does
    /// this, where POSIX does not allow it, also leaves locked what the interrupted call had locked.)
    pub fn lose(&self, heap: Mine<'_>) {
        heap.state.store(LOST, Ordering::SeqCst);
        heap.slot.store(core::ptr::null_mut(), Ordering::SeqCst);
    }

    /// In the child of a fork: abandons the heaps of other threads that are whole.
    fn abandon_left(&self) {
        // Relaxed: what is left is found under the lock.
        if !self.left.load(Ordering::Relaxed) || !self.left.swap(false, Ordering::Relaxed) {
            return;
        }
        let next = || {
            self.registry.with(&self.os, |r| {
                let heap = r.heaps().find(|heap| heap.state.load(Ordering::Relaxed) == LEFT)?;
                heap.state.store(OWNED, Ordering::Relaxed);
                Some(heap)
            })
        };
        while let Some(heap) = next() {
            // SAFETY: the heap is ours since its state changed: its thread is gone.
            self.abandon_heap(unsafe { Mine::of_ref(heap) });
        }
    }

    /// Checks the stack of deferred blocks; returns how many there are. For tests.
    pub(crate) fn check_deferred(&self) -> Option<usize> {
        let (mut count, mut marked) = (0, true);
        // SAFETY: nobody else uses the allocator.
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
