//! Nested calls: those in a signal handler that interrupted another call of the same thread. The interrupted call may
//! hold any lock, and may have changed the thread's heap half. So a nested call uses no heap, takes no lock and waits
//! for nobody: whatever it interrupted goes on when it returns (`docs/signals.md` has the whole argument).
//!
//! | call | does |
//! |---|---|
//! | malloc, calloc, aligned | a block of the annex (`annex.rs`); where that is full, a mapping of its own |
//! | free of a small block | what every free to another thread's slab is (`remote.rs`) |
//! | free of a large block | marks it [`Kind::DEFERRED`] and pushes it on a stack, which any thread's next slow path empties |
//! | free of a block of the annex, or a huge one | at once |
//! | realloc | in place, or a new block, a copy, a free |
//! | usable size | reads page map and record |
//!
//! What a nested free cannot do it notes, and `Blocks::drain` does it in the next slow path (`settle`) or tick.

use crate::blocks::apart::Renewed;
use crate::blocks::heap::Block;
use crate::blocks::misuse::{self, Call};
use crate::blocks::registry::{LEFT, LOST, ORPHAN, OWNED};
use crate::blocks::{Blocks, Foreign, class, record, slab};
use crate::pages::chunk::{Chunk, Kind, State};
use crate::pages::layout;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, MAX_SIZE, Os};

impl<O: Os> Blocks<O> {
    /// malloc in a nested call: at least `size` bytes aligned to `align`, a power of two; zeroed if asked for. Null if
    /// there is no memory. A limit that the process has for itself is not looked at.
    #[cold]
    pub fn malloc_nested(&self, size: usize, align: usize, zero: bool) -> *mut u8 {
        if size > MAX_SIZE - CHUNK || align > MAX_SIZE {
            return core::ptr::null_mut();
        }
        let p = match class::of_aligned(size, align) {
            Some(class) => self.malloc_small_nested(class),
            None => self.malloc_large_nested(size, align),
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
    /// and this is the child, which is stranded: it uses no chunks of others, so the block is that of a nested call.
    #[cold]
    pub(crate) fn malloc_stranded(&self, class: usize) -> *mut u8 {
        if !self.is_stranded() {
            return core::ptr::null_mut();
        }
        let size = class::SIZE[class] as usize;
        // Blocks of a class are aligned to what divides their size: the caller may count on that.
        self.malloc_nested(size, 1 << size.trailing_zeros(), false)
    }

    fn malloc_small_nested(&self, class: usize) -> *mut u8 {
        let annex = &self.arenas.annex;
        let p = match self.annexed.take_block(class) {
            Some(p) => p,
            None => match annex.take(&self.os, &self.map, 1, 1) {
                // SAFETY: the chunk is new, and ours.
                Some(c) => unsafe { self.annexed.make_slab(&self.arenas, &self.map, c, class) },
                None => return core::ptr::null_mut(),
            },
        };
        self.stray.take_shared(class);
        // SAFETY: the block is ours.
        unsafe { Self::untagged(p) }
    }

    fn malloc_large_nested(&self, size: usize, align: usize) -> *mut u8 {
        let annex = &self.arenas.annex;
        let bytes = size.max(1).next_multiple_of(self.os.page_size());
        let len = bytes.div_ceil(CHUNK);
        let Some(c) = annex.take(&self.os, &self.map, len, align.div_ceil(CHUNK)) else {
            return core::ptr::null_mut();
        };
        // SAFETY: the chunks are ours.
        unsafe {
            // Earlier blocks left their kinds.
            (1..len).for_each(|i| (*c.add(i)).kind.set(Kind::NONE));
            (*c).state = State::Clean;
            (*c).class = 0;
            Chunk::set_apart(c, false);
            (*c).len = len as u32;
            (*c).carved = len as u32;
            Chunk::set_bytes(c, bytes);
            (*c).kind.set(Kind::NESTED);
        }
        self.annexed.large_blocks.fetch_add(1, Ordering::Relaxed);
        self.annexed.large_bytes.fetch_add(bytes, Ordering::Relaxed);
        layout::chunk(c)
    }

    /// Frees the large block of the annex at `p`, or says what is wrong with it. `p` must lie in the annex.
    ///
    /// # Safety
    /// If `p` is a large block, it must be the caller's.
    pub(crate) unsafe fn free_annexed(&self, p: *mut u8) {
        let (annex, c) = (&self.arenas.annex, layout::record(p));
        // SAFETY: records of the annex's committed part are readable; of two that free the block one comes second.
        unsafe {
            let (len, bytes) = ((*c).len as usize, Chunk::bytes(c));
            // A free one keeps this kind until the chunk is used again, so that a second free is told from a wild one.
            if p.addr() & (CHUNK - 1) != 0 || !Chunk::change_kind(c, Kind::NESTED, Kind::FREE) {
                misuse::not_a_block(self, Call::Free, p);
            }
            self.annexed.large_blocks.fetch_sub(1, Ordering::Relaxed);
            self.annexed.large_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match self.renew_apart(c) {
                Renewed::Clean => {}
                Renewed::Usable => self.release_or_clear(p, len * CHUNK),
                Renewed::Lost => return annex.lose(len),
            }
            annex.give(c, len);
        }
    }

    /// free in a nested call.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, NULL, or foreign.
    #[cold]
    pub unsafe fn free_nested(&self, p: *mut u8) -> Result<(), Foreign> {
        // SAFETY: as the caller promises, here and below.
        unsafe {
            if let Some(class) = self.small_class(p) {
                self.check_nested(Call::Free, p, class);
                self.free_small_nested(p, class);
            } else if p.is_null() {
            } else if self.arenas.annex.holds(p) {
                self.free_annexed(p);
            } else if self.arenas.contains(p) {
                self.defer(p);
            } else if !self.huge.free(self, p) {
                return Err(Foreign);
            }
        }
        Ok(())
    }

    /// What [`Heap::give_remote`] does, but for orphans: the lock that stands in for their owner may be this thread's.
    unsafe fn free_small_nested(&self, p: *mut u8, class: usize) {
        let c = layout::record(p);
        let mut batch = slab::Batch::new();
        batch.add(slab::index(p, class));
        // SAFETY: the block was live, so its slab exists; only its remote part is written.
        unsafe {
            if Self::is_hardened(c) {
                // As `Blocks::wipe`, which may ask the system.
                p.write_bytes(0, class::SIZE[class] as usize);
            }
            match (*c).remote.free(record::remote_word(c, batch.word), batch.mask) {
                Err(_) => misuse::freed(self, Call::Free, p, class),
                Ok(false) => {}
                Ok(true) => {
                    let owner = record::owner(c);
                    (*owner).pending.push(c);
                    self.note_slab();
                    // SeqCst: as in `Heap::give_remote`.
                    if (*owner).state.load(Ordering::SeqCst) == ORPHAN {
                        self.note_deferred();
                    }
                }
            }
        }
        self.stray.give_shared(class);
    }

    /// Puts the large block at `p` aside for a call that may take locks.
    unsafe fn defer(&self, p: *mut u8) {
        let c = layout::record(p);
        // SAFETY: the record is readable; if it is a large block's, that is the caller's.
        unsafe {
            if p.addr() & (CHUNK - 1) != 0 || !Chunk::change_kind(c, Kind::LARGE, Kind::DEFERRED) {
                misuse::not_a_block(self, Call::Free, p);
            }
            let bytes = Chunk::bytes(c);
            if self.is_stranded() && self.os.purge(p, bytes) {
                // No later call frees it, so at least its memory goes back.
                self.notes.count_purged(bytes);
            }
            // A large block's record has no other use for its link.
            self.deferred.push(c);
        }
        self.note_deferred();
    }

    /// Does what nested calls left: frees large blocks, and takes in what they freed into orphans. And what a fork left:
    /// abandons heaps. Under no lock, in a call that is not nested.
    #[cold]
    pub(crate) fn drain(&self) {
        if self.is_stranded() {
            // Orphans may be half changed, and ranges.
            return;
        }
        self.abandon_left();
        if !self.deferred.is_empty() {
            // SAFETY: whoever takes the stack has it alone; each block on it was freed.
            unsafe {
                self.deferred.take(|c| {
                    (*c).kind.set(Kind::LARGE);
                    self.free_large(layout::chunk(c));
                });
            }
        }
        if self.orphans.load(Ordering::Relaxed) != 0 {
            self.registry.with(&self.os, |r| {
                let mut heap = r.orphans;
                while !heap.is_null() {
                    // SAFETY: orphans are guarded by this lock.
                    unsafe {
                        if !(*heap).pending.is_empty() {
                            Heap::collect(heap, self);
                        }
                        heap = (*heap).next_orphan;
                    }
                }
            });
        }
    }

    /// Does not return unless `p`, in a slab of `class`, is a block that is not free in its slab. A block that is in a
    /// cache is not found here: caches may be half changed. It is found when it comes back from there.
    unsafe fn check_nested(&self, call: Call, p: *mut u8, class: usize) {
        // SAFETY: `p` lies in a slab of this class, whose record and bits are readable.
        unsafe {
            if !class::is_start(p.addr() & (CHUNK - 1), class) {
                misuse::interior(self, call, p, class);
            }
            if slab::is_free(layout::record(p), p) {
                misuse::freed(self, call, p, class);
            }
        }
    }

    /// `Allocator::usable_size` in a nested call.
    ///
    /// # Safety
    /// `p` must be a block of the caller's, or foreign.
    pub unsafe fn usable_size_nested(&self, call: Call, p: *mut u8) -> Option<usize> {
        if let Some(class) = self.small_class(p) {
            // SAFETY: `p` lies in a slab of this class.
            unsafe { self.check_nested(call, p, class) };
            return Some(class::SIZE[class] as usize);
        }
        if self.arenas.contains(p) {
            // SAFETY: the record is that of a large block.
            return Some(unsafe { Chunk::bytes(self.large_record(call, p)) });
        }
        self.huge.bytes(p)
    }

    /// realloc in a nested call: see `Allocator::realloc`.
    ///
    /// # Safety
    /// `p` must be a block of the caller's with usable size `old`.
    pub unsafe fn realloc_nested(&self, p: *mut u8, old: usize, size: usize) -> *mut u8 {
        if self.fits_in_place(old, size) {
            return p;
        }
        let new = self.malloc_nested(size, class::MIN_BLOCK, false);
        if new.is_null() {
            // To shrink is never refused.
            return if size <= old { p } else { new };
        }
        // SAFETY: both blocks have the bytes that are copied; the old one's life ends.
        unsafe {
            new.copy_from_nonoverlapping(p, old.min(size));
            let _ = self.free_nested(p);
        }
        new
    }

    /// Live blocks of the annex, and their bytes; blocks in caches count as well.
    pub(crate) fn live_in_annex(&self) -> (usize, usize) {
        let annex = &self.annexed;
        let large = [&annex.large_blocks, &annex.large_bytes].map(|n| n.load(Ordering::Relaxed));
        (1..class::CLASSES).fold((large[0], large[1]), |sum, class| {
            let blocks: usize = annex
                .slabs_of(class)
                // SAFETY: slabs of the annex stay slabs.
                .map(|c| (class::capacity(class) - unsafe { (*c).remote.apart() }) as usize)
                .sum();
            (sum.0 + blocks, sum.1 + blocks * class::SIZE[class] as usize)
        })
    }

    /// A nested call ends its thread, whose heap may be half changed: nobody uses it any more. (A handler that does
    /// this, where POSIX does not allow it, also leaves locked what the interrupted call had locked.)
    ///
    /// # Safety
    /// `heap` must be the calling thread's, out of its seat.
    pub unsafe fn lose(&self, heap: *mut Heap) {
        // SAFETY: heaps are never unmapped.
        unsafe {
            (*heap).state.store(LOST, Ordering::SeqCst);
            (*heap).seat.store(core::ptr::null_mut(), Ordering::SeqCst);
        }
    }

    /// In the child of a fork: abandons the heaps of other threads that are whole.
    fn abandon_left(&self) {
        // Relaxed: what is left is found under the lock.
        if !self.left.load(Ordering::Relaxed) || !self.left.swap(false, Ordering::Relaxed) {
            return;
        }
        let next = || {
            self.registry.with(&self.os, |r| {
                let mut heap = r.all;
                // SAFETY: heaps are never unmapped; one that is left is the finder's.
                unsafe {
                    while !heap.is_null() && (*heap).state.load(Ordering::Relaxed) != LEFT {
                        heap = (*heap).next;
                    }
                    if !heap.is_null() {
                        (*heap).state.store(OWNED, Ordering::Relaxed);
                    }
                }
                heap
            })
        };
        loop {
            let heap = next();
            if heap.is_null() {
                return;
            }
            // SAFETY: the heap is ours, since its state changed.
            unsafe { self.abandon(heap) };
        }
    }

    /// Checks the stack of deferred blocks; returns how many there are. For tests.
    pub(crate) fn check_deferred(&self) -> Option<usize> {
        let (mut count, mut marked) = (0, true);
        // SAFETY: nobody else uses the allocator.
        unsafe {
            self.deferred.for_each(|c| {
                count += 1;
                marked &= (*c).kind.get() == Kind::DEFERRED;
            });
        }
        marked.then_some(count)
    }
}

const _: () = assert!(align_of::<Block>() <= class::MIN_BLOCK, "blocks of the annex are aligned as all are");
