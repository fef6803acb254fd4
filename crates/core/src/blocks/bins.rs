//! The way between caches and slabs: refill, flush, and what comes back from other threads.
//!
//! A heap's bin of a class is the list of its slabs that have free blocks. A refill takes recycled blocks from the
//! slabs at its front, or carves fresh ones from one; a flush gives blocks back, slab by slab. Slabs without a used
//! block are released at once.

use crate::blocks::heap::{self, Block, Mine, first, most};
use crate::blocks::registry::{ORPHAN, OWNED};
use crate::blocks::slab::{self, Taken, Written};
use crate::blocks::slab_record::{self, OwnSlab, remote_word};
use crate::blocks::{Blocks, class, grow, misuse};
use crate::pages::age;
use crate::pages::chunk::{Kind, Record};
use crate::pages::held::Use;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// Orphans that a refill looks at.
const ORPHAN_PROBES: usize = 8;

impl Mine<'_> {
    /// After [`Heap::pop`] failed: fills the cache from the slabs and returns a block, or null if there is no memory.
    ///
    /// # Safety
    /// The heap must have caches; the last call on the cache was a `pop` that failed.
    #[cold]
    pub(crate) unsafe fn refill<O: Os>(self, a: &Blocks<O>, class: usize) -> *mut u8 {
        let (head, nothing) = (self.head(class), self.nothing());
        // Undo what `pop` did to the tag.
        // SAFETY: the head of a cache is a block or `nothing`.
        unsafe { (*head.get()).tag ^= Block::TAG };
        if head.get() != nothing {
            misuse::corrupted(a, head.get().cast(), class);
        }
        let want = u32::from(self.cap(class) / 2).max(1);
        let mut taken = Taken::new();
        self.take_blocks(a, class, want, &mut taken);
        if taken.count == 0 {
            return a.malloc_stranded(class);
        }
        self.flow.take(class, taken.count);
        // SAFETY: the blocks that were taken are the heap's.
        unsafe { (*taken.last).link = nothing };
        head.set(taken.first);
        self.add_room(class, -(taken.count as i32));
        self.grow_cap(a, class);
        // SAFETY: as the caller promises.
        unsafe { Heap::pop(self.id(), class, Block::untag) }
    }

    /// Takes up to `want` blocks out of slabs: this heap's, an orphan's, or a new one.
    fn take_blocks<O: Os>(self, a: &Blocks<O>, class: usize, want: u32, taken: &mut Taken) {
        if !self.pending.is_empty() {
            self.collect(a);
        }
        if self.first_slab(class).is_none()
            && (a.take_from_orphans(class, want, taken) || self.new_slab(a, class).is_none())
        {
            return;
        }
        self.take_from_bin(a, class, want, taken);
    }

    /// Takes up to `want` blocks out of the slabs in the bin: recycled ones of several slabs, or fresh ones of one.
    fn take_from_bin<O: Os>(self, a: &Blocks<O>, class: usize, want: u32, taken: &mut Taken) {
        while let Some(slab) = self.first_slab(class) {
            match slab.take_recycled(want, a.page_size(), taken) {
                Ok(0) => {}
                Ok(pages) => self.flow.take_clean(pages),
                Err(Written(block)) => misuse::written(a, block.cast(), class),
            }
            if taken.count == 0 {
                slab.carve(want, a.page_size(), taken);
                return self.unlist_if_full(slab);
            }
            self.unlist_if_full(slab);
            if taken.count == want || slab.is_listed() {
                return;
            }
        }
    }

    /// Takes the slab out of its bin if it has no free block any more.
    #[inline(always)]
    pub(crate) fn unlist_if_full(self, slab: OwnSlab) {
        if slab.is_full() && slab.is_listed() {
            self.unlist(slab);
        }
    }

    /// One block straight from the slabs, past the cache; true if it is known to read as zero. For heaps without
    /// caches, and for zeroed blocks that are worth not touching.
    pub(crate) fn take_one<O: Os>(self, a: &Blocks<O>, class: usize) -> Option<(*mut u8, bool)> {
        if !self.pending.is_empty() {
            self.collect(a);
        }
        let Some(slab) = self.first_slab(class).or_else(|| self.new_slab(a, class)) else {
            let p = a.malloc_stranded(class);
            return (!p.is_null()).then_some((p, false));
        };
        let hardened = slab_record::is_hardened(slab.chunk());
        let taken = if hardened { a.take_hardened(self, slab) } else { slab.take_one(a.page_size()) };
        self.unlist_if_full(slab);
        taken.map(|(p, zero, pages)| {
            self.flow.take(class, 1);
            if pages > 0 {
                self.flow.take_clean(pages);
            }
            (p, zero)
        })
    }

    /// A new slab in the bin, or `None` if there is no memory.
    fn new_slab<O: Os>(self, a: &Blocks<O>, class: usize) -> Option<OwnSlab> {
        let taken = a.take_chunks(1, CHUNK, Use::Slab)?;
        let (c, clean) = (taken.first, taken.is_clean());
        // Its bits are zero, as `OwnSlab::wipe` left them or as never used.
        let slab = OwnSlab::set_up(&a.arenas, c, class, self.id().cast(), clean);
        if a.policy.harden() {
            a.harden_slab(slab, clean);
        }
        a.count_slab(self, slab, clean);
        // SAFETY: the chunk is committed, and this heap's.
        unsafe { a.map.set(c.start(), class) };
        self.list(slab);
        Some(slab)
    }

    /// Lets the cache of `class` grow towards its greatest size.
    fn grow_cap<O: Os>(self, a: &Blocks<O>, class: usize) {
        let more = (self.cap(class) * 2).min(most(class)) - self.cap(class);
        if more != 0 {
            self.set_cap(class, self.cap(class) + more);
            a.note_room(usize::from(more) * class::SIZE[class] as usize);
        }
    }

    /// Takes the room back that caches have come to have, so that what they can hold unseen is little again. They must be
    /// empty.
    pub(crate) fn shrink_caps<O: Os>(self, a: &Blocks<O>) {
        let less: usize = (1..class::CLASSES).map(|class| self.shrink_cap(class)).sum();
        a.notes.forget_room(less + self.large.uncount_room());
    }

    /// [`Mine::shrink_caps`] for one class, whose cache is empty; returns the bytes.
    pub(crate) fn shrink_cap(self, class: usize) -> usize {
        let more = self.cap(class).saturating_sub(first(class));
        if more > 0 {
            self.set_cap(class, self.cap(class) - more);
        }
        usize::from(more) * class::SIZE[class] as usize
    }

    /// Puts a block into a cache that was found full: the cache grows, or gives all but its newest quarter back.
    ///
    /// # Safety
    /// The heap must have caches; `p` must be a block of `class` that is the caller's to free.
    pub(crate) unsafe fn free_full<O: Os>(self, a: &Blocks<O>, p: *mut u8, class: usize) {
        self.grow_cap(a, class);
        if self.room(class) < 1 {
            self.flush(a, class, usize::from(self.cap(class) / 4));
        }
        let (block, head) = (p.cast::<Block>(), self.head(class));
        // SAFETY: as the caller promises.
        unsafe {
            (*block).tag = Block::TAG;
            (*block).link = head.get();
        }
        head.set(block);
        self.add_room(class, -1);
    }

    /// Gives all blocks of a cache but the newest `keep` back to their slabs. The heap must have caches.
    pub(crate) fn flush<O: Os>(self, a: &Blocks<O>, class: usize, keep: usize) {
        let nothing = self.nothing();
        let mut from = self.head(class).as_ptr();
        // SAFETY: blocks in the cache are the heap's; the list ends at `nothing`.
        let mut block = unsafe {
            for _ in 0..keep {
                if *from == nothing {
                    return;
                }
                if (**from).tag != Block::TAG {
                    misuse::corrupted(a, (*from).cast(), class);
                }
                from = &raw mut (**from).link;
            }
            core::mem::replace(&mut *from, nothing)
        };
        let mut count = 0;
        while block != nothing {
            // SAFETY: as above.
            let (next, n) = unsafe { self.flush_run(a, class, block) };
            debug_assert!(next == nothing || a.arenas.contains(next.cast()));
            block = next;
            count += n;
        }
        self.add_room(class, count);
        self.flow.give(class, count.cast_unsigned());
    }

    /// Gives the blocks from `first` on back, as long as they lie in one slab; returns the next block and how many
    /// went.
    ///
    /// # Safety
    /// `first` must be a block that was in this heap's cache of `class`, with the rest of the list behind it.
    #[inline(always)]
    unsafe fn flush_run<O: Os>(self, a: &Blocks<O>, class: usize, first: *mut Block) -> (*mut Block, i32) {
        // SAFETY: blocks in caches lie in slabs.
        let (c, local) = unsafe { self.slab_of(first.cast()) };
        let (mut block, mut count) = (first, 0);
        let mut batch = slab::Batch::new();
        // One comparison for "the end" and for "another slab": the end lies in no slab.
        while (block.addr() ^ first.addr()) < CHUNK {
            // SAFETY: as the caller promises.
            let (tag, link) = unsafe { ((*block).tag, (*block).link) };
            if tag != Block::TAG {
                misuse::corrupted(a, block.cast(), class);
            }
            let i = slab::index(block.cast(), class);
            if !batch.fits(i) {
                give(a, c, local, class, batch);
                batch = slab::Batch::new();
            }
            batch.add(i);
            block = link;
            count += 1;
        }
        give(a, c, local, class, batch);
        if let Some(slab) = local {
            self.after_give(a, slab);
        }
        (block, count)
    }

    /// The record of the slab that holds the block at `p`, and the slab itself if this heap owns it.
    ///
    /// # Safety
    /// `p` must be a block of a slab, live or in a cache.
    #[inline(always)]
    unsafe fn slab_of(self, p: *const u8) -> (Record, Option<OwnSlab>) {
        // SAFETY: as the caller promises, so the slab exists; one that this heap owns is the holder's.
        unsafe {
            let c = Record::at(p);
            (c, (heap::owner(c) == self.id()).then(|| OwnSlab::of(c)))
        }
    }

    /// Gives the block at `p` back to its slab at once.
    ///
    /// # Safety
    /// `p` must be a block of `class` that is the caller's to free.
    pub(crate) unsafe fn give_one<O: Os>(self, a: &Blocks<O>, p: *mut u8, class: usize) {
        // SAFETY: as the caller promises.
        let (c, local) = unsafe { self.slab_of(p) };
        let mut batch = slab::Batch::new();
        batch.add(slab::index(p, class));
        give(a, c, local, class, batch);
        if let Some(slab) = local {
            self.after_give(a, slab);
        }
        if self.id() == Heap::none() {
            // A name stands for threads without a heap, and is no heap of any of them.
            a.stray.give_shared(class);
        } else {
            self.flow.give(class, 1);
        }
    }

    /// Takes the remote frees of all pending slabs.
    #[cold]
    pub(crate) fn collect<O: Os>(self, a: &Blocks<O>) {
        // SAFETY: the heap's pending slabs are the holder's; one that was taken is on no stack.
        unsafe {
            self.pending.take(|c| {
                let Some(c) = Record::from_ptr(c) else { return };
                let slab = OwnSlab::of(c);
                if slab.collect().is_err() {
                    misuse::double_free_seen_late(a, c);
                }
                if !slab.is_full() {
                    self.after_give(a, slab);
                }
            });
        }
    }

    /// Whether the slab is the last one in its bin with free blocks, of a class that has no cache or hardened: then it
    /// stays when it is empty, so that a block that is allocated and freed over and over does not take a new slab each
    /// time. Not so once the heap is an orphan: no thread would look at it again.
    #[inline]
    fn is_last(self, slab: OwnSlab) -> bool {
        let class = slab.class();
        let uncached = self.is_cached() && !self.caches_class(class);
        (uncached || slab_record::is_hardened(slab.chunk()))
            && self.first_slab(class).is_none_or(|first| first == slab && slab.is_listed() && self.has_one_slab(class))
            && self.state.load(Ordering::Relaxed) == OWNED
    }

    /// Releases the empty slabs that stayed, see `is_last`.
    pub(crate) fn release_last<O: Os>(self, a: &Blocks<O>) {
        for class in 1..class::CLASSES {
            if let Some(slab) = self.first_slab(class)
                && slab.is_released()
            {
                self.unlist(slab);
                a.release_slab(self, slab);
            }
        }
    }

    /// A slab of this heap was the first in its bin, and is not any more.
    fn leave_behind<O: Os>(self, a: &Blocks<O>, slab: OwnSlab) {
        // One that stayed when it was empty is the last one no more.
        if slab.is_released() {
            self.unlist(slab);
            a.release_slab(self, slab);
        } else if grow::is_left_behind(slab) && slab.wait(a.epoch()) {
            a.note_slab();
        }
    }

    /// After blocks came back to a slab of this heap: lists it, or releases it when it is empty.
    #[inline(always)]
    fn after_give<O: Os>(self, a: &Blocks<O>, slab: OwnSlab) {
        if slab.is_released() && !self.is_last(slab) {
            if slab.is_listed() {
                self.unlist(slab);
            }
            a.release_slab(self, slab);
            return;
        }
        if !slab.is_listed() {
            self.list(slab);
            if let Some(next) = self.slab_behind(slab) {
                self.leave_behind(a, next);
            }
        }
        if slab.wait(a.epoch()) {
            a.note_slab();
        }
    }
}

/// Gives blocks back to the slab of `c`: as its owner, who calls `Mine::after_give` afterwards, or as another.
#[inline(always)]
fn give<O: Os>(a: &Blocks<O>, c: Record, local: Option<OwnSlab>, class: usize, batch: slab::Batch) {
    match local {
        None => a.give_remote(c, class, batch),
        Some(slab) => {
            if slab.give(batch).is_err() {
                misuse::double_free_seen_late(a, c);
            }
        }
    }
}

impl<O: Os> Blocks<O> {
    /// Gives blocks of the caller's, which keep the slab of `c` one, back to it: the slab of another heap, of `class`.
    #[inline(never)]
    pub(crate) fn give_remote(&self, c: Record, class: usize, batch: slab::Batch) {
        match c.remote().free(remote_word(c, class, batch.word), batch.mask) {
            Err(_) => misuse::double_free_seen_late(self, c),
            Ok(false) => {}
            Ok(true) => {
                if let Some(orphan) = self.push_pending(c) {
                    self.collect_orphan(orphan);
                }
            }
        }
    }

    /// Pushes a slab with remote frees, of which [`Remote::free`](crate::system::remote::Remote::free) said so, on the stack of
    /// its owner. Returns the owner if it is an orphan, whose frees the caller has to see to. The slab may be gone by then.
    pub(crate) fn push_pending(&self, c: Record) -> Option<&'static Heap> {
        // SAFETY: an owner is a heap; the slab is on no stack, as `Remote::free` said.
        let owner = unsafe {
            let owner = Heap::at(heap::owner(c));
            owner.pending.push(c.as_ptr());
            owner
        };
        self.note_slab();
        // SeqCst pairs with the store in `Blocks::abandon_heap`, see `Pending::push`.
        (owner.state.load(Ordering::SeqCst) == ORPHAN).then_some(owner)
    }

    /// Takes in the remote frees of `heap` if it is an orphan (still).
    #[cold]
    fn collect_orphan(&self, heap: &Heap) {
        self.registry.with(&self.os, |_| {
            // Where the process is stranded, another thread may have left it half changed, here and below.
            if !self.is_stranded() && heap.state.load(Ordering::SeqCst) == ORPHAN {
                // SAFETY: an orphan is guarded by this lock.
                unsafe { Mine::of_ref(heap) }.collect(self);
            }
        });
    }

    /// Takes up to `want` blocks of `class` from the slabs of orphans; false if none was found.
    fn take_from_orphans(&self, class: usize, want: u32, taken: &mut Taken) -> bool {
        // Relaxed: a hint; the list is read under the lock.
        if self.orphans.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.registry.with(&self.os, |r| {
            for orphan in r.orphans().take(ORPHAN_PROBES).take_while(|_| !self.is_stranded()) {
                orphan.take_from_bin(self, class, want, taken);
                if taken.count > 0 {
                    break;
                }
            }
        });
        taken.count > 0
    }

    /// Gives the chunk of an empty slab of `heap` back, which is in no list and [`OwnSlab::is_released`].
    pub(crate) fn release_slab(&self, heap: Mine<'_>, slab: OwnSlab) {
        let (c, p) = (slab.chunk(), slab.chunk().start());
        slab.wipe();
        grow::uncount_slab(heap, slab);
        let whole = self.soften_slab(slab);
        // SAFETY: the chunk is committed and the caller's, and holds nothing that is needed.
        unsafe {
            self.map.set(p, 0);
            if !whole {
                let _ = self.release(p, CHUNK - self.page_size());
                return self.lose_chunks(c, 1, Use::Slab);
            }
        }
        let clean = slab.is_clean(self.page_size());
        // SAFETY: as above.
        let since = if clean { age::NONE } else { unsafe { self.age_of_freed(p, CHUNK) } };
        self.give_chunks(Use::Slab, |lock| {
            c.set_kind(Kind::NONE);
            slab.disown();
            // An age that the slab had would stay with a clean chunk.
            age::set(&self.arenas, lock, c, 1, age::NONE);
            Some([(c, 1, since)])
        });
    }

    /// Wipes the tag that a recycled block may still have from its time in a cache, so that its free does not
    /// look like a second one.
    ///
    /// # Safety
    /// The block must be the caller's.
    pub(crate) unsafe fn untagged(p: *mut u8) -> *mut u8 {
        // SAFETY: as the caller promises; a block is at least MIN_BLOCK long.
        unsafe {
            let block = p.cast::<Block>();
            if (*block).tag == Block::TAG {
                (*block).tag = 0;
            }
        }
        p
    }
}
