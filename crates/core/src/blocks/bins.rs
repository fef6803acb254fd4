//! Moves blocks between caches and slabs: refill, flush, and collecting remote frees.
//!
//! A heap's bin of a class is the list of its slabs that have free blocks (invariant 9). A refill takes recycled blocks
//! from the slabs at its front, or carves fresh ones from one; a flush gives blocks back, slab by slab. Slabs without a
//! used block are released at once (invariant 10), but for a few that are needed again soon (`Mine::is_last`).

use crate::blocks::free_block::{Block, Free, Link};
use crate::blocks::given::Small;
use crate::blocks::heap::{self, Mine, first, most};
use crate::blocks::registry::{COMMON, ORPHAN, OWNED};
use crate::blocks::slab::{self, Taken, Written};
use crate::blocks::slab_record::{self, OwnSlab, remote_word};
use crate::blocks::{Blocks, class, grow, misuse};
use crate::pages::age;
use crate::pages::chunk::{Kind, Record};
use crate::pages::held::Use;
use crate::pages::notes::SHARED;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// Maximum number of orphans that a refill checks.
const ORPHAN_PROBES: usize = 8;
/// Limit on the blocks of the heap's own slabs that a full cache gives back at once, in steps: one for each block, and
/// [`TURN`] for each slab. So the call of free that finds the cache full is short: it gives back 8 blocks of 8 slabs,
/// or 64 of one.
const STEPS: u32 = 64;
/// What a slab costs beyond its blocks, in steps: its record and its bits are in no cache of the processor.
const TURN: u32 = 7;

impl Mine<'_> {
    /// Right after a [`Mine::pop`] that failed: fills the cache from the slabs and returns a block, or null if there is
    /// no memory.
    #[cold]
    pub(crate) fn refill<O: Os>(self, a: &Blocks<O>, class: usize) -> *mut u8 {
        self.undo_pop(class);
        if let Some(block) = self.first(class).block(self.end()) {
            misuse::corrupted(a, block.start(), class);
        }
        let want = u32::from(self.cap(class) / 2).max(1);
        let mut taken = Taken::new();
        self.take_blocks(a, class, want, &mut taken);
        let Some(last) = taken.last else { return a.malloc_stranded(class) };
        self.flow.take(class, taken.count);
        last.set_link(self.end());
        self.set_first(class, taken.first);
        self.add_room(class, -(taken.count as i32));
        self.grow_cap(a, class);
        self.pop(class)
    }

    /// Takes up to `want` blocks out of slabs: this heap's, the common heap's, an orphan's, or a new one.
    fn take_blocks<O: Os>(self, a: &Blocks<O>, class: usize, want: u32, taken: &mut Taken) {
        if !self.pending.is_empty() {
            self.collect(a);
        }
        if self.first_slab(class).is_none()
            && (self.take_common(a, class, taken)
                || a.take_from_orphans(class, want, taken)
                || self.new_slab(a, class).is_none())
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
                Err(Written(block)) => misuse::written(a, block.start(), class),
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

    /// Removes the slab from its bin if it has no free block left.
    #[inline(always)]
    pub(crate) fn unlist_if_full(self, slab: OwnSlab) {
        if slab.is_full() && slab.is_listed() {
            self.unlist(slab);
        }
    }

    /// Takes one block from the slabs, past the cache; true if it is known to read as zero. For heaps without caches,
    /// and for zeroed blocks that are long enough that not touching them saves time.
    pub(crate) fn take_one<O: Os>(self, a: &Blocks<O>, class: usize) -> Option<(Free, bool)> {
        if !self.pending.is_empty() {
            self.collect(a);
        }
        if self.first_slab(class).is_none()
            && let Some(taken) = self.take_one_common(a, class)
        {
            return Some(taken);
        }
        let Some((block, zero, _)) = self.take_untouched(a, class) else {
            return a.take_stranded(class).map(|block| (block, false));
        };
        self.flow.take(class, 1);
        Some((block, zero))
    }

    /// Takes one block out of this heap's slabs, or a new one, without touching it. Returns what
    /// [`OwnSlab::take_one`] does, and counts clean OS pages only.
    #[inline(always)]
    pub(crate) fn take_untouched<O: Os>(self, a: &Blocks<O>, class: usize) -> Option<(Free, bool, u32)> {
        let slab = self.first_slab(class).or_else(|| self.new_slab(a, class))?;
        let hardened = slab_record::is_hardened(slab.chunk());
        let taken = if hardened { a.take_hardened(self, slab) } else { slab.take_one(a.page_size()) };
        self.unlist_if_full(slab);
        if let Some((.., pages @ 1..)) = taken {
            self.flow.take_clean(pages);
        }
        taken
    }

    /// Makes a new slab in the bin, or returns `None` if there is no memory.
    fn new_slab<O: Os>(self, a: &Blocks<O>, class: usize) -> Option<OwnSlab> {
        let taken = a.take_chunks(1, CHUNK, Use::Slab { of_many: self.holds_many() })?;
        let c = taken.first;
        // The slab may never need all of what an earlier block has left there.
        let clean = taken.is_clean() || (a.is_tight() && a.release(taken.memory(1)));
        // Its bits are zero: `OwnSlab::wipe` left them so, or they were never used.
        let slab = OwnSlab::set_up(&a.arenas, c, class, self.id().cast(), clean);
        if a.policy.harden() {
            a.harden_slab(slab, clean);
        }
        a.count_slab(self, slab, clean);
        a.map.set(slab.chunk(), class);
        self.list(slab);
        Some(slab)
    }

    /// Doubles the cache of `class`, up to its maximum size.
    pub(crate) fn grow_cap<O: Os>(self, a: &Blocks<O>, class: usize) {
        let more = (self.cap(class) * 2).min(most(class)) - self.cap(class);
        if more != 0 {
            self.set_cap(class, self.cap(class) + more);
            a.note_room(usize::from(more) * class::SIZE[class] as usize);
        }
    }

    /// Shrinks all caches, which must be empty, to their first size, so that an idle thread can hold little memory
    /// (invariant 25).
    pub(crate) fn shrink_caps<O: Os>(self, a: &Blocks<O>) {
        let less: usize = (1..class::CLASSES).map(|class| self.shrink_cap(class)).sum();
        a.notes.forget_room(less + self.large.uncount_room());
    }

    /// [`Mine::shrink_caps`] for one class, whose cache must be empty. Returns the number of bytes by which it shrank.
    pub(crate) fn shrink_cap(self, class: usize) -> usize {
        let more = self.cap(class).saturating_sub(first(class));
        if more > 0 {
            self.set_cap(class, self.cap(class) - more);
        }
        usize::from(more) * class::SIZE[class] as usize
    }

    /// Puts a block, which must not be free, into a cache that was found full. The cache grows, or gives its newest
    /// blocks back: few if they are of this heap's slabs ([`STEPS`]), but up to three quarters of the cache if they are
    /// of other heaps' slabs, because each change of those costs both threads. The heap must have a cache for the
    /// block's class.
    pub(crate) fn free_full<O: Os>(self, a: &Blocks<O>, small: Small) {
        let (block, class) = (small.block(), small.class());
        self.grow_cap(a, class);
        if self.room(class) < 1 {
            let cap = u32::from(self.cap(class));
            self.flush(a, class, cap - cap / 4, STEPS);
        }
        block.set_tag(Block::TAG);
        block.set_link(self.first(class));
        self.set_first(class, block.as_link());
        self.add_room(class, -1);
    }

    /// Gives all blocks of a cache back to their slabs. The heap must have caches.
    pub(crate) fn flush_all<O: Os>(self, a: &Blocks<O>, class: usize) {
        self.flush(a, class, u32::MAX, u32::MAX);
    }

    /// Gives the newest blocks of a cache back to their slabs, until those were `most`, or those of this heap's slabs
    /// took `steps` (see [`STEPS`]). Blocks of other heaps' slabs may be a few more. The heap must have caches.
    fn flush<O: Os>(self, a: &Blocks<O>, class: usize, most: u32, steps: u32) {
        let (mut link, mut left, mut count, now) = (self.first(class), steps, 0, a.epoch());
        while left > 0
            && count < most
            && let Some(first) = link.block(self.end())
        {
            debug_assert!(a.arenas.contains(first.start()));
            let n;
            match self.slab_of(first) {
                (c, _) if slab_record::is_hardened(c) => (link, n) = self.flush_hardened(a, class, first),
                (_, Some(slab)) => {
                    (link, n) = self.flush_own(a, class, first, left.min(most - count), slab, now);
                    left = left.saturating_sub(n + TURN);
                }
                (c, None) => (link, n) = Self::flush_remote(a, class, first, most - count, c),
            };
            count += n;
        }
        self.set_first(class, link);
        self.add_room(class, count as i32);
        self.flow.give(class, count);
    }

    /// Gives the blocks from `first` on, which were in the heap's cache of `class`, back as long as they lie in `slab`,
    /// at most `most`. Returns the link to the next block, and the number of blocks that were given back. `now` is the
    /// epoch.
    #[inline(always)]
    fn flush_own<O: Os>(
        self,
        a: &Blocks<O>,
        class: usize,
        first: Free,
        most: u32,
        slab: OwnSlab,
        now: u8,
    ) -> (Link, u32) {
        let (mut returning, mut left) = (slab.give(), most);
        let link = for_each_beside(a, class, first, |i| {
            if left == 0 {
                return false;
            }
            if returning.add(i).is_err() {
                misuse::double_free_seen_late(a, slab.chunk());
            }
            left -= 1;
            true
        });
        let count = returning.finish();
        self.after_give(a, slab, now);
        (link, count)
    }

    /// [`Mine::flush_own`] where another heap owns the slab of `c`. Blocks that share a word of its bits go back
    /// together, also beyond `most`.
    #[inline(never)]
    fn flush_remote<O: Os>(a: &Blocks<O>, class: usize, first: Free, most: u32, c: Record) -> (Link, u32) {
        let (mut batch, mut count) = (slab::Batch::new(), 0);
        let link = for_each_beside(a, class, first, |i| {
            if !batch.fits(i) {
                if count >= most {
                    return false;
                }
                a.give_remote(c, class, batch);
                batch = slab::Batch::new();
            }
            batch.add(i);
            count += 1;
            true
        });
        a.give_remote(c, class, batch);
        (link, count)
    }

    /// [`Mine::flush_own`] of one block of a hardened slab, which must come back as zeroes. Such blocks are in caches
    /// only until the heap follows `harden=on`.
    #[cold]
    fn flush_hardened<O: Os>(self, a: &Blocks<O>, class: usize, block: Free) -> (Link, u32) {
        if block.tag() != Block::TAG {
            misuse::corrupted(a, block.start(), class);
        }
        let (link, small) = (block.link(), Small::new(block, class));
        a.wipe(small);
        self.give_back(a, small);
        (link, 1)
    }

    /// Returns the record of the slab of `block`, and the slab itself if this heap owns it.
    #[inline(always)]
    fn slab_of(self, block: Free) -> (Record, Option<OwnSlab>) {
        let c = block.record();
        // SAFETY: `Free` proves that the record is a slab's, and `Mine` that a slab of this heap is the holder's.
        (c, (heap::owner(c) == self.id()).then(|| unsafe { OwnSlab::of(c) }))
    }

    /// Gives a block back to its slab at once.
    #[inline]
    pub(crate) fn give_one<O: Os>(self, a: &Blocks<O>, small: Small) {
        let class = small.class();
        self.give_back(a, small);
        if self.id() == Heap::none() {
            // The name stands for all threads without a heap: it has no counters of its own.
            a.stray.give_shared(class);
        } else {
            self.flow.give(class, 1);
        }
    }

    /// [`Mine::give_one`], which counts the block, without the count.
    #[inline(always)]
    fn give_back<O: Os>(self, a: &Blocks<O>, small: Small) {
        let (c, local) = self.slab_of(small.block());
        let Some(slab) = local else {
            let mut batch = slab::Batch::new();
            batch.add(small.index());
            return a.give_remote(c, small.class(), batch);
        };
        let mut returning = slab.give();
        if returning.add(small.index()).is_err() {
            misuse::double_free_seen_late(a, c);
        }
        returning.finish();
        self.after_give(a, slab, a.epoch());
    }

    /// Collects the remote frees of all pending slabs.
    #[cold]
    pub(crate) fn collect<O: Os>(self, a: &Blocks<O>) {
        // SAFETY: the pending slabs are slabs of this heap (invariant 20), which are the holder's, as `Mine` proves; a
        // slab that was taken is on no stack.
        unsafe {
            self.pending.take(|c| {
                let Some(c) = Record::from_ptr(c) else { return };
                let slab = OwnSlab::of(c);
                if slab.collect().is_err() {
                    misuse::double_free_seen_late(a, c);
                }
                if !slab.is_full() {
                    self.after_give(a, slab, a.epoch());
                }
            });
        }
    }

    /// Whether the slab is the last one with free blocks in its bin, and is hardened or of a class without a cache.
    /// Then it stays when it is empty: otherwise a block that is allocated and freed over and over would take a new
    /// slab each time. False for an orphan, as no thread would release the slab later.
    #[inline]
    fn is_last(self, slab: OwnSlab) -> bool {
        let class = slab.class();
        let uncached = self.is_cached() && !self.caches_class(class);
        (uncached || slab_record::is_hardened(slab.chunk()))
            && self.first_slab(class).is_none_or(|first| first == slab && slab.is_listed() && self.has_one_slab(class))
            && self.state.load(Ordering::Relaxed) == OWNED
    }

    /// Releases the empty slabs that stayed because of `is_last`.
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

    /// Handles a slab that was the first in its bin until another one was put before it.
    fn leave_behind<O: Os>(self, a: &Blocks<O>, slab: OwnSlab) {
        // An empty slab stayed because of `is_last`, which is no longer true.
        if slab.is_released() {
            self.unlist(slab);
            a.release_slab(self, slab);
        } else if grow::has_uncarved_memory(slab) && slab.set_age(a.epoch()) {
            a.note_slab();
        }
    }

    /// After blocks came back to a slab of this heap in the epoch `now`: lists the slab, or releases it if it is empty.
    #[inline(always)]
    fn after_give<O: Os>(self, a: &Blocks<O>, slab: OwnSlab, now: u8) {
        if !slab.is_up_to_date(now) || slab.used() == 0 {
            self.update(a, slab, now);
        }
    }

    /// [`Mine::after_give`] where something may change.
    fn update<O: Os>(self, a: &Blocks<O>, slab: OwnSlab, now: u8) {
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
        if slab.set_age(now) {
            a.note_slab();
        }
    }
}

/// Calls `f` with the index of each block of a cache of `class` from `first` on, as long as they lie in one slab and
/// `f` returns true. Returns the link to the first block that `f` did not take.
#[inline(always)]
fn for_each_beside<O: Os>(a: &Blocks<O>, class: usize, first: Free, mut f: impl FnMut(u32) -> bool) -> Link {
    let mut link = first.as_link();
    while let Some(block) = link.block_beside(first) {
        if block.tag() != Block::TAG {
            misuse::corrupted(a, block.start(), class);
        }
        if !f(block.index(class)) {
            break;
        }
        link = block.link();
    }
    link
}

impl<O: Os> Blocks<O> {
    /// Gives blocks of the caller's back to the slab of `c`, of `class`, which another heap owns. Until then the blocks
    /// keep it a slab.
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

    /// Pushes a slab with remote frees on the pending stack of its owner: the caller's
    /// [`Remote::free`](crate::system::remote::Remote::free) returned true. Returns the owner if it is an orphan, whose
    /// frees the caller has to collect (invariant 21). The slab may be released by then.
    pub(crate) fn push_pending(&self, c: Record) -> Option<&'static Heap> {
        // SAFETY: an owner is a heap, or a name. `Remote::free` returned true, so the slab is on no stack (invariant
        // 20).
        let owner = unsafe {
            let owner = Heap::at(heap::owner(c))?;
            owner.pending.push(c.as_ptr());
            owner
        };
        self.note_slab();
        // SeqCst pairs with the store in `Blocks::abandon_heap`, see `Pending::push`.
        match owner.state.load(Ordering::SeqCst) {
            ORPHAN => return Some(owner),
            COMMON => self.notes.leave(SHARED),
            _ => {}
        }
        None
    }

    /// Collects the remote frees of `heap` if it is still an orphan (invariant 22).
    #[cold]
    fn collect_orphan(&self, heap: &Heap) {
        self.registry.with(&self.os, |_| {
            // In a stranded process another thread may have left the heap half changed, here and below.
            if !self.is_stranded() && heap.state.load(Ordering::SeqCst) == ORPHAN {
                // SAFETY: `Mine` allows an orphan while the lock of the registry is held.
                unsafe { Mine::of_ref(heap) }.collect(self);
            }
        });
    }

    /// Takes up to `want` blocks of `class` from the slabs of orphans, or of the common heap: a crowd that has ended
    /// leaves both. False if none was found.
    fn take_from_orphans(&self, class: usize, want: u32, taken: &mut Taken) -> bool {
        // Relaxed: a hint; the list is read under the lock.
        if self.orphans.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.registry.with(&self.os, |r| {
            let common = r.common().filter(|_| !self.is_crowded());
            for orphan in common.into_iter().chain(r.orphans().take(ORPHAN_PROBES)).take_while(|_| !self.is_stranded())
            {
                orphan.take_from_bin(self, class, want, taken);
                if taken.count > 0 {
                    break;
                }
            }
        });
        taken.count > 0
    }

    /// Gives the chunk of an empty slab of `heap` back. The slab must be in no list, and [`OwnSlab::is_released`].
    pub(crate) fn release_slab(&self, heap: Mine<'_>, slab: OwnSlab) {
        let (c, bytes) = (slab.chunk(), slab.bytes());
        slab.wipe();
        grow::uncount_slab(heap, slab);
        let whole = self.soften_slab(slab);
        self.map.set(c, 0);
        if !whole {
            let _ = self.release(bytes.part(0, CHUNK - self.page_size()));
            return self.lose_chunks(c, 1, Use::A_SLAB);
        }
        let since = if slab.is_clean(self.page_size()) { age::NONE } else { self.age_of_freed(bytes) };
        self.give_chunks(Use::A_SLAB, |lock| {
            c.set_kind(Kind::NONE);
            slab.disown();
            // Otherwise a clean chunk would keep the age of the slab (invariant 15).
            age::set(&self.arenas, lock, c, 1, age::NONE);
            Some([(c, 1, since)])
        });
    }
}
