//! The way between caches and slabs: refill, flush, and what comes back from other threads.
//!
//! A heap's bin of a class is the list of its slabs that have free blocks. A refill takes recycled blocks from the
//! slabs at its front, or carves fresh ones from one; a flush gives blocks back, slab by slab. Slabs without a used
//! block are released at once.

use crate::blocks::heap::{Block, first, most};
use crate::blocks::registry::{ORPHAN, OWNED};
use crate::blocks::slab::{self, Taken, Written};
use crate::blocks::{Blocks, class, grow, holes, misuse, record};
use crate::pages::age;
use crate::pages::chunk::{Chunk, Kind};
use crate::pages::held::Use;
use crate::pages::layout;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// Orphans that a refill looks at.
const ORPHAN_PROBES: usize = 8;

impl Heap {
    /// After [`Heap::pop`] failed: fills the cache from the slabs and returns a block, or null if there is no memory.
    ///
    /// # Safety
    /// The heap must be the caller's, and have caches; the last call on the cache was a `pop` that failed.
    #[cold]
    pub(crate) unsafe fn refill<O: Os>(heap: *mut Heap, a: &Blocks<O>, class: usize) -> *mut u8 {
        // SAFETY: the heap is the caller's.
        unsafe {
            let nothing = &raw mut (*heap).nothing;
            // Undo what `pop` did to the tag.
            (*(*heap).head[class]).tag ^= Block::TAG;
            if (*heap).head[class] != nothing {
                misuse::corrupted(a, (*heap).head[class].cast(), class);
            }
            let want = u32::from((*heap).cap[class] / 2).max(1);
            let mut taken = Taken::new();
            Self::take_blocks(heap, a, class, want, &mut taken);
            if taken.count == 0 {
                return a.malloc_stranded(class);
            }
            (*heap).flow.take(class, taken.count);
            (*taken.last).link = nothing;
            (*heap).head[class] = taken.first;
            (*heap).room[class] -= taken.count as i32;
            Self::grow_cap(heap, a, class);
            Self::pop(heap, class, Block::untag)
        }
    }

    /// Takes up to `want` blocks out of slabs: this heap's, an orphan's, or a new one.
    unsafe fn take_blocks<O: Os>(heap: *mut Heap, a: &Blocks<O>, class: usize, want: u32, taken: &mut Taken) {
        // SAFETY: the heap is the caller's.
        unsafe {
            if !(*heap).pending.is_empty() {
                Self::collect(heap, a);
            }
            if (*heap).bins[class].head.is_null()
                && (a.take_from_orphans(class, want, taken) || Self::new_slab(heap, a, class).is_null())
            {
                return;
            }
            Self::take_from_bin(heap, a, class, want, taken);
        }
    }

    /// Takes up to `want` blocks out of the slabs in the bin: recycled ones of several slabs, or fresh ones of one.
    ///
    /// # Safety
    /// The heap must be the caller's.
    pub(crate) unsafe fn take_from_bin<O: Os>(
        heap: *mut Heap,
        a: &Blocks<O>,
        class: usize,
        want: u32,
        taken: &mut Taken,
    ) {
        // SAFETY: the heap and so the slabs in its bins are the caller's.
        unsafe {
            loop {
                let c = (*heap).bins[class].head;
                if c.is_null() {
                    return;
                }
                if let Err(Written(block)) = slab::take_recycled(c, want, a.page_size(), taken) {
                    misuse::written(a, block.cast(), class);
                }
                if taken.count == 0 {
                    slab::carve(c, want, a.page_size(), taken);
                    return Self::unlist_if_full(heap, c);
                }
                Self::unlist_if_full(heap, c);
                if taken.count == want || (*c).listed {
                    return;
                }
            }
        }
    }

    /// Whether the next block of `class` that is not in the cache needs a new slab, unless other threads freed some.
    ///
    /// # Safety
    /// The heap must be the caller's.
    pub(crate) unsafe fn has_no_slab(heap: *mut Heap, class: usize) -> bool {
        // SAFETY: the heap is the caller's.
        unsafe { (*heap).bins[class].head.is_null() }
    }

    #[inline]
    pub(crate) unsafe fn unlist_if_full(heap: *mut Heap, c: *mut Chunk) {
        // SAFETY: the slab is the heap's.
        unsafe {
            if slab::is_full(c) && (*c).listed {
                (*heap).bins[usize::from((*c).class)].remove(c);
                (*c).listed = false;
            }
        }
    }

    /// One block straight from the slabs, past the cache; true if it is known to read as zero. For heaps without
    /// caches, and for zeroed blocks that are worth not touching.
    ///
    /// # Safety
    /// The heap must be the caller's.
    pub(crate) unsafe fn take_one<O: Os>(heap: *mut Heap, a: &Blocks<O>, class: usize) -> Option<(*mut u8, bool)> {
        // SAFETY: the heap is the caller's.
        unsafe {
            if !(*heap).pending.is_empty() {
                Self::collect(heap, a);
            }
            let mut c = (*heap).bins[class].head;
            if c.is_null() {
                c = Self::new_slab(heap, a, class);
                if c.is_null() {
                    let p = a.malloc_stranded(class);
                    return (!p.is_null()).then_some((p, false));
                }
            }
            let hardened = Blocks::<O>::is_hardened(c);
            let taken = if hardened { a.take_hardened(heap, c) } else { slab::take_one(c, a.page_size()) };
            (*heap).flow.take(class, u32::from(taken.is_some()));
            Self::unlist_if_full(heap, c);
            taken
        }
    }

    /// A new slab in the bin, or null if there is no memory.
    unsafe fn new_slab<O: Os>(heap: *mut Heap, a: &Blocks<O>, class: usize) -> *mut Chunk {
        // SAFETY: the chunk is nobody's else; its bits are zero, as `slab::wipe` left them or as never used.
        unsafe {
            let Some(taken) = a.take_chunks(1, CHUNK, Use::Slab) else {
                return core::ptr::null_mut();
            };
            let c = taken.first;
            slab::set_up(&a.arenas, c, class, heap, taken.is_clean());
            if a.policy.harden() {
                a.harden_slab(c, taken.is_clean());
            }
            a.count_slab(heap, c, taken.is_clean());
            a.map.set(layout::chunk(c), class);
            (*heap).bins[class].push(c);
            (*c).listed = true;
            c
        }
    }

    /// Lets the cache of `class` grow towards its greatest size.
    unsafe fn grow_cap<O: Os>(heap: *mut Heap, a: &Blocks<O>, class: usize) {
        // SAFETY: the heap is the caller's.
        unsafe {
            let cap = ((*heap).cap[class] * 2).min(most(class));
            let more = cap - (*heap).cap[class];
            if more != 0 {
                (*heap).room[class] += i32::from(more);
                (*heap).cap[class] = cap;
                a.note_room(usize::from(more) * class::SIZE[class] as usize);
            }
        }
    }

    /// Takes the room back that caches and shelf have come to have, so that what they can hold unseen is little again.
    ///
    /// # Safety
    /// The heap must be the caller's and have caches, and they be empty.
    pub(crate) unsafe fn shrink_caps<O: Os>(heap: *mut Heap, a: &Blocks<O>) {
        // SAFETY: as the caller promises.
        let less: usize = (1..class::CLASSES).map(|class| unsafe { Self::shrink_cap(heap, class) }).sum();
        // SAFETY: the heap is the caller's.
        a.notes.forget_room(less + unsafe { (*heap).shelf.uncount_room() });
    }

    /// [`Heap::shrink_caps`] for one class, whose cache is empty; returns the bytes.
    ///
    /// # Safety
    /// As that.
    pub(crate) unsafe fn shrink_cap(heap: *mut Heap, class: usize) -> usize {
        // SAFETY: the heap is the caller's.
        unsafe {
            let more = (*heap).cap[class].saturating_sub(first(class));
            (*heap).cap[class] -= more;
            (*heap).room[class] -= i32::from(more);
            usize::from(more) * class::SIZE[class] as usize
        }
    }

    /// Puts a block into a cache that was found full: the cache grows, or gives all but its newest quarter back.
    ///
    /// # Safety
    /// The heap must be the caller's and have caches; `p` must be a block of `class` that is nobody's.
    pub(crate) unsafe fn free_full<O: Os>(heap: *mut Heap, a: &Blocks<O>, p: *mut u8, class: usize) {
        // SAFETY: the heap is the caller's.
        unsafe {
            Self::grow_cap(heap, a, class);
            if (*heap).room[class] < 1 {
                let keep = (*heap).cap[class] / 4;
                Self::flush(heap, a, class, usize::from(keep));
            }
            let block = p.cast::<Block>();
            (*block).tag = Block::TAG;
            (*block).link = (*heap).head[class];
            (*heap).head[class] = block;
            (*heap).room[class] -= 1;
        }
    }

    /// Gives all blocks of a cache but the newest `keep` back to their slabs.
    ///
    /// # Safety
    /// The heap must be the caller's and have caches.
    pub(crate) unsafe fn flush<O: Os>(heap: *mut Heap, a: &Blocks<O>, class: usize, keep: usize) {
        // SAFETY: the heap is the caller's; the list ends at `nothing`.
        unsafe {
            let nothing = &raw mut (*heap).nothing;
            let mut from = &raw mut (*heap).head[class];
            for _ in 0..keep {
                if *from == nothing {
                    return;
                }
                if (**from).tag != Block::TAG {
                    misuse::corrupted(a, (*from).cast(), class);
                }
                from = &raw mut (**from).link;
            }
            let mut block = *from;
            *from = nothing;
            let mut count = 0;
            while block != nothing {
                let (next, n) = Self::flush_run(heap, a, class, block, nothing);
                block = next;
                count += n;
            }
            (*heap).room[class] += count;
            (*heap).flow.give(class, count.cast_unsigned());
        }
    }

    /// Gives the blocks from `block` on back, as long as they lie in one slab; returns the next block and how many
    /// went.
    #[inline(always)]
    unsafe fn flush_run<O: Os>(
        heap: *mut Heap,
        a: &Blocks<O>,
        class: usize,
        first: *mut Block,
        nothing: *mut Block,
    ) -> (*mut Block, i32) {
        // SAFETY: as `flush`; all blocks up to the next slab's are this list's.
        unsafe {
            let c = layout::record(first.cast());
            let local = record::owner(c) == heap;
            let (mut block, mut count) = (first, 0);
            let mut batch = slab::Batch::new();
            // One comparison for "the end" and for "another slab": the end lies in no slab.
            while (block.addr() ^ first.addr()) < CHUNK {
                if (*block).tag != Block::TAG {
                    misuse::corrupted(a, block.cast(), class);
                }
                let i = slab::index(block.cast(), class);
                if !batch.fits(i) {
                    Self::give(a, c, local, batch);
                    batch = slab::Batch::new();
                }
                batch.add(i);
                block = (*block).link;
                count += 1;
            }
            Self::give(a, c, local, batch);
            if local {
                Self::after_give(heap, a, c);
            }
            debug_assert!(block == nothing || a.arenas.contains(block.cast()));
            (block, count)
        }
    }

    /// Gives blocks back to the slab `c`: as its owner, who calls [`Heap::after_give`] afterwards, or as another.
    #[inline]
    unsafe fn give<O: Os>(a: &Blocks<O>, c: *mut Chunk, local: bool, batch: slab::Batch) {
        // SAFETY: the blocks were live or cached, so their slab exists.
        unsafe {
            if !local {
                Self::give_remote(a, c, batch);
            } else if slab::give(c, batch).is_err() {
                misuse::double_free_seen_late(a, c);
            }
        }
    }

    /// Gives blocks back to a slab of another heap.
    #[inline(never)]
    pub(crate) unsafe fn give_remote<O: Os>(a: &Blocks<O>, c: *mut Chunk, batch: slab::Batch) {
        // SAFETY: the blocks were live or cached, so their slab exists; only its remote part is written.
        unsafe {
            match (*c).remote.free(record::remote_word(c, batch.word), batch.mask) {
                Err(_) => misuse::double_free_seen_late(a, c),
                Ok(false) => {}
                Ok(true) => {
                    let owner = record::owner(c);
                    (*owner).pending.push(c);
                    a.note_slab();
                    // SeqCst pairs with the store in `Blocks::abandon`, see `Pending::push`.
                    if (*owner).state.load(Ordering::SeqCst) == ORPHAN {
                        a.collect_orphan(owner);
                    }
                }
            }
        }
    }

    /// Gives the block at `p` back to its slab at once.
    ///
    /// # Safety
    /// The heap must be the caller's; `p` must be a block of `class` that is nobody's.
    pub(crate) unsafe fn give_one<O: Os>(heap: *mut Heap, a: &Blocks<O>, p: *mut u8, class: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let c = layout::record(p);
            let local = record::owner(c) == heap;
            let mut batch = slab::Batch::new();
            batch.add(slab::index(p, class));
            Self::give(a, c, local, batch);
            if local {
                Self::after_give(heap, a, c);
            }
            if heap == Heap::none() {
                a.stray.give_shared(class);
            } else {
                (*heap).flow.give(class, 1);
            }
        }
    }

    /// Takes the remote frees of all pending slabs.
    ///
    /// # Safety
    /// The heap must be the caller's.
    #[cold]
    pub(crate) unsafe fn collect<O: Os>(heap: *mut Heap, a: &Blocks<O>) {
        // SAFETY: the heap and its slabs are the caller's; a slab that was taken is on no stack.
        unsafe {
            (*heap).pending.take(|c| {
                if slab::collect(c).is_err() {
                    misuse::double_free_seen_late(a, c);
                }
                if !slab::is_full(c) {
                    Self::after_give(heap, a, c);
                }
            });
        }
    }

    /// Whether the slab is the last one in its bin with free blocks, of a class that has no cache or hardened: then it
    /// stays when it is empty, so that a block that is allocated and freed over and over does not take a new slab each
    /// time. Not so once the heap is an orphan: nobody would look at it again.
    #[inline]
    unsafe fn is_last<O: Os>(heap: *mut Heap, c: *mut Chunk) -> bool {
        // SAFETY: the slab is the heap's.
        unsafe {
            let (class, next) = (usize::from((*c).class), (*c).next);
            let head = (*heap).bins[class].head;
            let uncached = Self::is_cached(heap) && !Self::caches_class(heap, class);
            (uncached || Blocks::<O>::is_hardened(c))
                && (head.is_null() || (head == c && (*c).listed && next.is_null()))
                && (*heap).state.load(Ordering::Relaxed) == OWNED
        }
    }

    /// Releases the empty slabs that stayed, see [`Heap::is_last`].
    ///
    /// # Safety
    /// The heap must be the caller's.
    pub(crate) unsafe fn release_last<O: Os>(heap: *mut Heap, a: &Blocks<O>) {
        for class in 1..class::CLASSES {
            // SAFETY: the heap and so the slabs in its bins are the caller's.
            unsafe {
                let c = (*heap).bins[class].head;
                if !c.is_null() && slab::is_released(c) {
                    (*heap).bins[class].remove(c);
                    a.release_slab(c);
                }
            }
        }
    }

    /// A slab of this heap was the first in its bin, and is not any more.
    unsafe fn leave_behind<O: Os>(heap: *mut Heap, a: &Blocks<O>, c: *mut Chunk) {
        // SAFETY: the slab is the heap's.
        unsafe {
            // One that stayed when it was empty is the last one no more.
            if slab::is_released(c) {
                (*heap).bins[usize::from((*c).class)].remove(c);
                a.release_slab(c);
            } else if grow::is_left_behind(c) && slab::wait(c, a.epoch()) {
                a.note_slab();
            }
        }
    }

    /// After blocks came back to a slab of this heap: lists it, or releases it when it is empty.
    #[inline]
    unsafe fn after_give<O: Os>(heap: *mut Heap, a: &Blocks<O>, c: *mut Chunk) {
        // SAFETY: the slab is the heap's.
        unsafe {
            if slab::is_released(c) && !Self::is_last::<O>(heap, c) {
                if (*c).listed {
                    (*heap).bins[usize::from((*c).class)].remove(c);
                }
                a.release_slab(c);
                return;
            }
            if !(*c).listed {
                (*heap).bins[usize::from((*c).class)].push(c);
                (*c).listed = true;
                let next = (*c).next;
                if !next.is_null() {
                    Self::leave_behind(heap, a, next);
                }
            }
            if slab::wait(c, a.epoch()) {
                a.note_slab();
            }
        }
    }
}

impl<O: Os> Blocks<O> {
    /// Takes in the remote frees of `heap` if it is an orphan (still).
    #[cold]
    pub(crate) fn collect_orphan(&self, heap: *mut Heap) {
        self.registry.with(&self.os, |_| {
            // Where the process is stranded, another thread may have left it half changed, here and below.
            // SAFETY: heaps are never unmapped; an orphan is guarded by this lock.
            unsafe {
                if !self.is_stranded() && (*heap).state.load(Ordering::SeqCst) == ORPHAN {
                    Heap::collect(heap, self);
                }
            }
        });
    }

    /// Takes up to `want` blocks of `class` from the slabs of orphans; false if none was found.
    pub(crate) fn take_from_orphans(&self, class: usize, want: u32, taken: &mut Taken) -> bool {
        // Relaxed: a hint; the list is read under the lock.
        if self.orphans.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.registry.with(&self.os, |r| {
            let mut heap = r.orphans;
            for _ in 0..ORPHAN_PROBES {
                if heap.is_null() || taken.count > 0 || self.is_stranded() {
                    break;
                }
                // SAFETY: orphans are guarded by this lock.
                unsafe {
                    Heap::take_from_bin(heap, self, class, want, taken);
                    heap = (*heap).next_orphan;
                }
            }
        });
        taken.count > 0
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
                self.map.set(layout::chunk(c), 0);
                let _ = self.release(layout::chunk(c), CHUNK - self.page_size());
                return self.lose_chunks(c, 1, Use::Slab);
            }
            let p = layout::chunk(c);
            self.map.set(p, 0);
            let clean = holes::is_clean(c, self.page_size());
            let since = if clean { age::NONE } else { self.age_of_freed(p, CHUNK) };
            self.give_chunks(Use::Slab, || {
                (*c).kind.set(Kind::NONE);
                // A visitor of this heap may hold the record from before, and must not take the next owner's slab for it.
                record::set_owner(c, core::ptr::null_mut());
                // An age that the slab had would stay with a clean chunk.
                age::set(&self.arenas, c, 1, age::NONE);
                Some([(c, 1, since)])
            });
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
}
