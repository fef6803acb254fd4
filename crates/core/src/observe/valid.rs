//! Checks the whole allocator, for tests: every record, list, cache and page map entry against the equations that the
//! other modules state. Linear in the number of all these; no other thread may use the allocator meanwhile.

use crate::back::Back;
use crate::blocks::class::{self, CLASSES};
use crate::blocks::heap::{self, Block, FORKED, Mine, NO_ROOM};
use crate::blocks::large_record::{self, Large};
use crate::blocks::reentrant_blocks;
use crate::blocks::registry::{COMMON, LOST, ORPHAN, OWNED, Registry};
use crate::blocks::slab_record::{self, OwnSlab, remote_word, words};
use crate::observe::Observed;
use crate::pages::chunk::{Kind, RECORD_BYTES, Record, State};
use crate::pages::layout::{ARENA_ALIGN, BITS_BYTES, FEW_WORDS};
use crate::pages::notes::{DEFERRED, SHARED};
use crate::pages::range::Ranges;
use crate::pages::{START_CHUNKS, age};
use crate::system::policy::Purge;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// How much to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Records, lists and sums.
    Records,
    /// Also each bit of each slab, and that the bits of all other chunks are zero.
    Bits,
}

/// A violated equation, and the address of the record, heap or block that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The equation.
    pub what: &'static str,
    /// The address, or 0.
    pub at: usize,
}

/// Numbers counted by the checks.
///
/// Equation: `small + cached + remote` is the sum of `used` over all slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Live blocks of slabs.
    pub small: usize,
    /// Blocks in caches.
    pub cached: usize,
    /// Blocks that another thread freed and the owner has not collected.
    pub remote: usize,
    /// Live large blocks, those of the reentrant reserve included.
    pub large: usize,
    /// Large blocks in caches.
    pub cached_large: usize,
    /// Dropped chunks that wait for the purger.
    pub dropped_chunks: usize,
    /// Live huge blocks.
    pub huge: usize,
    /// Large blocks that reentrant calls freed, and that no slow path has freed for them yet.
    pub deferred: usize,
    /// Slabs, without those of the reentrant reserve.
    pub slabs: usize,
    /// Slabs of the reentrant reserve. Their blocks are included in the other numbers.
    pub reentrant_slabs: usize,
    /// Chunks that hold heaps.
    pub heap_chunks: usize,
    /// Heaps, orphans included, but not the common heap.
    pub heaps: usize,
    /// Chunks in free ranges: clean, dirty.
    pub free_chunks: [usize; 2],
    /// Chunks in dirty free ranges that were purged lazily, or that the system refused to take.
    pub lazy_chunks: usize,
    /// Chunks that are not free.
    pub taken_chunks: usize,
    /// OS pages of slabs that read as zero and hold no used block.
    pub clean_pages: usize,
    /// Large blocks that are apart, see `apart.rs`.
    pub apart: usize,
}

/// Numbers of slabs according to the lists, to compare with those according to the records.
#[derive(Default, PartialEq, Eq)]
struct Listed {
    in_bins: usize,
    /// Slabs that heaps count, see [`crate::grow`].
    counted: usize,
    pending: usize,
    cached_large: usize,
}

/// An error if an equation does not hold.
fn check(holds: bool, what: &'static str, at: usize) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(Invalid { what, at }) }
}

/// Position of a walk over the records: the range that it is in, and what lies before that.
#[derive(Default)]
struct Walk {
    last: Option<Record>,
    /// First record of the range, and number of its chunks still to come.
    first: Option<Record>,
    left: usize,
    /// State of the free range that ends just before this record, if one does.
    free_before: Option<State>,
}

impl<O: Os> Observed<O> {
    /// Whether every structure is as its documentation says.
    ///
    /// # Safety
    /// No other thread may use the allocator meanwhile.
    pub unsafe fn is_valid(&self) -> bool {
        // SAFETY: the caller guarantees what `validate` demands.
        unsafe { self.validate(Depth::Bits) }.is_ok()
    }

    /// Checks every structure, and counts.
    ///
    /// # Safety
    /// No other thread may use the allocator meanwhile.
    pub unsafe fn validate(&self, depth: Depth) -> Result<Census, Invalid> {
        let mut census = Census::default();
        let mut listed = Listed::default();
        self.registry.with(&self.os, |r| self.check_heaps(r, &mut census, &mut listed))?;
        self.check_reentrant(&mut census)?;
        census.huge = self.huge.count();
        check(self.huge.is_valid(), "huge: slots are blocks, and apart", 0)?;
        self.ranges.with(&self.os, |r| self.check_chunks(r, depth, &mut census, &listed))?;
        Ok(census)
    }

    /// Checks the reentrant reserve and its blocks.
    fn check_reentrant(&self, census: &mut Census) -> Result<(), Invalid> {
        let (reserve, reentrant_blocks) = (&self.arenas.reentrant_reserve, &self.reentrant_blocks);
        let (mut chunks, mut used) = (0, 0);
        for class in 1..CLASSES {
            for c in reentrant_blocks.slabs_of(class) {
                let (at, capacity) = (c.address(), class::capacity(class));
                let kind = c.kind() == Kind::SLAB && c.class() == class;
                check(
                    kind && heap::owner(c) == reentrant_blocks::owner(),
                    "a slab of the reentrant reserve has its class and owner",
                    at,
                )?;
                check(reserve.is_claimed(c), "a slab of the reentrant reserve is claimed", at)?;
                let mapped = !self.map.is_complete() || self.map.class(c.start()) == class;
                check(mapped, "the page map has the slab's class", at)?;
                let slab = slab_at_rest(c);
                check((slab.used(), slab.carved()) == (capacity, capacity), "it was carved whole", at)?;
                let bits = (0..words(class)).map(|word| remote_word(c, class, word));
                let free: u32 = bits.map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
                check(c.remote().apart() == free, "count == bits set", at)?;
                (chunks, used) = (chunks + 1, used + (capacity - free) as usize);
            }
        }
        census.reentrant_slabs = chunks;
        // Blocks in caches are subtracted in `check_chunks`.
        census.small = used;
        let (mut blocks, mut bytes, mut claimed) = (0, 0, true);
        reserve.for_each(Kind::REENTRANT, |c| {
            let (len, usable) = (large_record::len_roughly(c, 1), large_record::bytes(c));
            (blocks, bytes, chunks) = (blocks + 1, bytes + usable, chunks + len);
            claimed &= (0..len).all(|i| reserve.is_claimed(c.after(i)));
        });
        check(claimed, "a large block of the reentrant reserve is claimed whole", 0)?;
        reserve.for_each(Kind::HEAPS, |_| chunks += 1);
        census.large += blocks;
        let counted = [
            &reentrant_blocks.slab_count,
            &reentrant_blocks.large_blocks,
            &reentrant_blocks.large_bytes,
            &reserve.used,
        ];
        let counted = counted.map(|n| n.load(Ordering::Relaxed));
        check(counted == [census.reentrant_slabs, blocks, bytes, chunks], "the reentrant reserve is counted", 0)
    }

    /// Checks registry, bins, pending stacks and caches.
    fn check_heaps(&self, r: &Registry, census: &mut Census, listed: &mut Listed) -> Result<(), Invalid> {
        let mut orphans = 0;
        for heap in r.heaps() {
            let heap = heap_at_rest(heap);
            let at = heap.id().addr();
            census.heaps += usize::from(heap.id() != r.common);
            let c = self.arenas.record(heap.id().cast());
            check(c.is_some_and(|c| c.kind() == Kind::HEAPS), "a heap lies in a chunk of heaps", at)?;
            let cached = self.check_caches(heap)?;
            census.cached += cached;
            let kept = heap.large.check();
            check(kept.is_some(), "large blocks in a cache are marked and counted", at)?;
            listed.cached_large += kept.unwrap_or(0);
            let state = heap.state.load(Ordering::Relaxed);
            if state == ORPHAN {
                orphans += 1;
                check(cached == 0, "an orphan's caches are empty", at)?;
                let seen = heap.pending.is_empty() || self.notes.has(DEFERRED);
                check(seen, "an orphan has no frees that were not seen", at)?;
            }
            let is_common = heap.id() == r.common;
            check(is_common == (state == COMMON), "the common heap is known", at)?;
            let seen = !is_common || heap.pending.is_empty() || self.notes.has(SHARED);
            check(seen && (!is_common || cached == 0), "the common heap has no cache, and frees leave a note", at)?;
            let slot = heap.slot.load(Ordering::Relaxed);
            check(slot.is_null() || state == OWNED, "a heap with a slot has a thread", at)?;
            if let Some(slot) = self.slot_of(&heap) {
                let held = slot.heap.load(Ordering::Relaxed);
                check(held == heap.id() || held == FORKED.heap(), "no heap is parked at rest", at)?;
                let whole = heap.whole.get();
                check(!whole || held == FORKED.heap(), "a heap that is whole waits for its thread", at)?;
                check(!Back::<O>::is_busy(slot), "no thread is in the middle of a call", at)?;
            }
            for class in 0..CLASSES {
                listed.in_bins += self.check_bin(heap, class)?;
            }
            listed.counted += heap.slabs.iter().map(|count| count.get() as usize).sum::<usize>();
            let mut wrong = false;
            // SAFETY: the heap is the caller's, see `heap_at_rest`.
            unsafe {
                heap.pending.for_each(|c| {
                    listed.pending += 1;
                    let slab = Record::from_ptr(c).and_then(|c| heap.slab(c));
                    wrong |= slab.is_none_or(|slab| slab.chunk().remote().counted() == 0);
                });
            }
            check(!wrong, "pending slabs are the heap's and have a count", at)?;
        }
        let listed = r.orphans().take(orphans + 1).try_fold(0, |count, orphan| {
            let state = orphan.state.load(Ordering::Relaxed);
            check(state == ORPHAN, "heaps in the list of orphans are orphans", orphan.id().addr()).map(|()| count + 1)
        })?;
        check(listed == orphans, "the list of orphans has each orphan, and ends", 0)?;
        check(self.heaps.load(Ordering::Relaxed) == census.heaps, "heaps are counted", 0)?;
        check(self.orphans.load(Ordering::Relaxed) == orphans, "orphans are counted", 0)
    }

    /// Checks the caches of one heap; returns the number of blocks in them.
    fn check_caches(&self, heap: Mine<'_>) -> Result<usize, Invalid> {
        let (mut sum, end, at) = (0, heap.end(), heap.id().addr());
        // SAFETY: the block at the end of the caches is part of the heap.
        check(unsafe { (*end.ptr()).tag } != Block::TAG, "the end of a cache is not tagged", at)?;
        check(heap.room(0) == NO_ROOM, "class 0 has no room", at)?;
        for class in 1..CLASSES {
            let first = heap.first(class);
            if !heap.caches_class(class) {
                check(heap.room(class) == NO_ROOM, "a heap without caches has no room", at)?;
                check(first.block(end).is_none(), "a heap without caches has no blocks", at)?;
                continue;
            }
            let count = i32::from(heap.cap(class)) - heap.room(class);
            check(count >= 0, "cap - room is not negative", at)?;
            check(heap.cached_blocks(class).count() == count as usize, "cap - room == tagged blocks in the list", at)?;
            for block in heap.cached_blocks(class) {
                let at = block.start().addr();
                let outside = Invalid { what: "a cached block lies in an arena", at };
                let c = self.arenas.record(block.start()).ok_or(outside)?;
                let fits = c.kind() == Kind::SLAB && c.class() == class;
                check(fits, "a cached block lies in a slab of its class", at)?;
                let whole = (at & (CHUNK - 1)).is_multiple_of(class::SIZE[class] as usize);
                check(whole, "a cached block starts where a block starts", at)?;
                let free = slab_record::is_free(c, class, block.index(class));
                check(!free, "a cached block is not free in its slab", at)?;
            }
            sum += count as usize;
        }
        Ok(sum)
    }

    /// Checks one bin; returns the number of slabs in it.
    fn check_bin(&self, heap: Mine<'_>, class: usize) -> Result<usize, Invalid> {
        let (mut count, mut before) = (0, None);
        let mut next = heap.first_slab(class);
        while let Some(slab) = next {
            let c = slab.chunk();
            let fits = heap.slab(c) == Some(slab) && slab.class() == class;
            check(fits, "a slab in a bin has its class and owner", c.address())?;
            check(slab.is_listed(), "a slab in a bin is listed", c.address())?;
            check(c.prev() == before, "a bin is linked both ways", c.address())?;
            count += 1;
            (before, next) = (Some(c), heap.slab_behind(slab));
        }
        Ok(count)
    }

    /// Checks every record of every arena.
    fn check_chunks(&self, ranges: &Ranges, depth: Depth, census: &mut Census, listed: &Listed) -> Result<(), Invalid> {
        let (mut walk, mut seen, mut used, mut result) = (Walk::default(), Listed::default(), 0, Ok(()));
        self.arenas.for_each(ranges.lock(), |c| {
            if result.is_ok() {
                result = self.check_chunk(ranges, &mut walk, c, depth, census);
                if c.kind() == Kind::SLAB {
                    let slab = slab_at_rest(c);
                    used += (slab.used() - slab.withheld()) as usize;
                    seen.in_bins += usize::from(slab.is_listed());
                    seen.counted += 1;
                    seen.pending += usize::from(c.remote().counted() != 0);
                }
            }
        });
        result?;
        check(walk.left == 0, "the last range ends at the frontier", 0)?;
        check(seen.in_bins == listed.in_bins, "every listed slab is in a bin", 0)?;
        check(seen.counted == listed.counted, "heaps count their slabs", 0)?;
        check(seen.pending == listed.pending, "every slab with a count is pending", 0)?;
        check(census.free_chunks == ranges.free_chunks, "free ranges are counted", 0)?;
        check(ranges.is_valid(), "free ranges are in their lists", 0)?;
        check(census.cached_large == listed.cached_large, "every cached large block is in a cache", 0)?;
        self.check_sums(ranges, census)?;
        check(census.apart == self.apart.load(Ordering::Relaxed), "blocks apart are counted", 0)?;
        check(self.check_deferred() == Some(census.deferred), "deferred blocks are on their stack", 0)?;
        let seen = census.deferred == 0 || self.notes.has(DEFERRED);
        check(seen, "deferred blocks are freed by the next slow path", 0)?;
        let gone = census.cached + census.remote;
        let used = used + census.small;
        check(used >= gone, "used counts live, cached and remotely freed blocks", 0)?;
        census.small = used - gone;
        Ok(())
    }

    /// Compares the counts of the ranges with what was found, and checks that waiting memory has a purger.
    fn check_sums(&self, ranges: &Ranges, census: &Census) -> Result<(), Invalid> {
        let dirty = ranges.free_chunks[State::Dirty as usize];
        check(ranges.footprint() - dirty == census.taken_chunks, "taken chunks are counted", 0)?;
        check(ranges.lazy_chunks >= census.lazy_chunks, "lazily purged chunks are counted", 0)?;
        check(ranges.dropped_chunks == census.dropped_chunks, "dropped chunks are counted", 0)?;
        let waiting = ranges.waiting() - ranges.dropped_chunks;
        check(waiting + ranges.lazy_chunks == dirty, "dirty chunks wait, or were purged lazily", 0)?;
        let may_wait = self.policy.purge() == Purge::Never || self.is_purged();
        check(self.os.helper().is_valid(), "no helper is kept away for a call that has ended", 0)?;
        check(ranges.waiting() < START_CHUNKS || may_wait, "much memory that waits has a purger", 0)
    }

    /// Checks the age of a chunk of the range that starts with `first`.
    fn check_age(&self, r: &Ranges, first: Record, c: Record, census: &mut Census) -> Result<(), Invalid> {
        let (kind, age) = (first.kind(), age::of(&self.arenas, c).load(Ordering::Relaxed));
        let free = kind == Kind::FREE;
        census.lazy_chunks += usize::from(age == age::LAZY);
        census.taken_chunks += usize::from(!free);
        if kind == Kind::SLAB {
            return check(age != age::LAZY, "only free ranges are purged lazily", c.address());
        }
        let waits = free && r.look_at(first).1 == State::Dirty;
        check((age != age::NONE) == waits, "chunks of dirty free ranges have an age, others have none", c.address())
    }

    /// Checks one record. `walk` is the position before it.
    fn check_chunk(
        &self,
        r: &Ranges,
        walk: &mut Walk,
        c: Record,
        depth: Depth,
        census: &mut Census,
    ) -> Result<(), Invalid> {
        let at = c.address();
        let adjacent =
            walk.last.is_some_and(|last| last.address() + RECORD_BYTES == at && (last.address() ^ at) < ARENA_ALIGN);
        walk.last = Some(c);
        if self.map.is_complete() {
            let class = if c.kind() == Kind::SLAB { c.class() } else { 0 };
            check(self.map.class(c.start()) == class, "the page map has the slab's class or 0", at)?;
        }
        if depth == Depth::Bits {
            self.check_bits(c, census)?;
        } else if c.kind() == Kind::SLAB {
            let balance = slab_at_rest(c).balance();
            census.remote += (c.remote().counted() as i32 + i32::from(balance)) as usize;
        }
        if let Some(first) = walk.first.filter(|_| walk.left > 0) {
            check(adjacent, "a range lies in one arena", first.address())?;
            self.check_age(r, first, c, census)?;
            walk.left -= 1;
            if walk.left == 0 && first.kind() == Kind::FREE {
                return check(c.kind() == Kind::FREE_END, "a free range has an end", at);
            }
            return check(c.kind() == Kind::NONE, "the inside of a range has no kind", at);
        }
        let free_before = walk.free_before.take().filter(|_| adjacent);
        (walk.first, walk.left) = (Some(c), 0);
        self.check_age(r, c, c, census)?;
        match c.kind() {
            Kind::FREE => {
                let (len, state) = r.look_at(c);
                check(free_before != Some(state), "free neighbours of one state are joined", at)?;
                check(len > 0, "a free range is not empty", at)?;
                walk.free_before = Some(state);
                walk.left = len - 1;
                census.free_chunks[state as usize] += len;
            }
            Kind::LARGE | Kind::CACHED | Kind::DEFERRED => {
                let block = large_at_rest(c);
                let (len, carved, bytes) = (block.len(), block.carved(), block.bytes());
                check(carved <= len && bytes <= carved * CHUNK, "bytes <= carved <= len", at)?;
                check(bytes > 0 && bytes.is_multiple_of(self.page_size()), "bytes are whole OS pages", at)?;
                walk.left = len - 1;
                census.large += usize::from(c.kind() == Kind::LARGE);
                census.deferred += usize::from(c.kind() == Kind::DEFERRED);
                census.cached_large += usize::from(c.kind() == Kind::CACHED);
                census.apart += usize::from(block.is_apart());
            }
            Kind::SLAB => {
                let slab = slab_at_rest(c);
                census.slabs += 1;
                check(slab.is_listed() != slab.is_full(), "a slab is listed unless full", at)?;
                let stays = slab.class() >= class::FIRST_PAGED || slab_record::is_hardened(c);
                check(stays || !slab.is_released(), "an empty slab is released", at)?;
                // SAFETY: an owner is a heap, or a name.
                let lost =
                    unsafe { Heap::at(heap::owner(c)) }.is_some_and(|heap| heap.state.load(Ordering::Relaxed) == LOST);
                check(lost || slab.knows_age(), "a slab's copy of its age is right", at)?;
            }
            Kind::HEAPS => census.heap_chunks += 1,
            Kind::DROPPED => {
                let len = r.look_at(c).0;
                walk.left = len - 1;
                census.dropped_chunks += len;
            }
            _ => return check(false, "every chunk lies in a range of a known kind", at),
        }
        Ok(())
    }

    /// Checks the free bits and remote bits of one chunk. Those of chunks that are not slabs are checked as well: they
    /// must be zero.
    fn check_bits(&self, c: Record, census: &mut Census) -> Result<(), Invalid> {
        let at = c.address();
        let slab = (c.kind() == Kind::SLAB).then(|| slab_at_rest(c));
        let tables = self.arenas.tables(c);
        let carved = slab.map_or(0, |slab| slab.carved() as usize);
        let mut remote_count = 0;
        let few = (0..FEW_WORDS).map(|word| (true, word));
        for (few, word) in few.chain((0..BITS_BYTES / 8).map(|word| (false, word))) {
            let (free, remote) = slab_record::bits_of_any(c, tables, few, word);
            let here = slab.is_some_and(|slab| few == (slab.class() >= class::FIRST_FEW));
            let below = if here { carved.saturating_sub(word * 64).min(64) as u32 } else { 0 };
            let allowed = u64::MAX.checked_shr(64 - below).unwrap_or(0);
            check((free | remote) & !allowed == 0, "only blocks that were carved have bits", at)?;
            check(free & remote == 0, "a block is freed once", at)?;
            remote_count += remote.count_ones() as i32;
        }
        let Some(slab) = slab else { return Ok(()) };
        check(slab_record::knows_tables(c, tables), "a slab knows where its bits are", at)?;
        check(slab.is_valid(), "used + free bits == carved <= capacity", at)?;
        let due = c.remote().counted() as i32 + i32::from(slab.balance());
        check(due == remote_count, "count + balance == remote bits", at)?;
        check(slab.balance() <= 0, "frees are counted behind their bits", at)?;
        census.remote += remote_count as usize;
        self.check_clean_pages(slab, census)
    }

    /// Checks the OS pages that a slab calls clean.
    fn check_clean_pages(&self, slab: OwnSlab, census: &mut Census) -> Result<(), Invalid> {
        let (page, clean, class) = (self.page_size(), slab.clean().load(Ordering::Relaxed), slab.class());
        let (size, capacity) = (class::SIZE[class] as usize, class::capacity(class) as usize);
        // Not `slab_record::is_free`, which is approximate, as others may write meanwhile.
        let word =
            |i: usize| slab.bits()[i / 64].get() | remote_word(slab.chunk(), class, i / 64).load(Ordering::Relaxed);
        let is_free = |i: usize| word(i) >> (i % 64) & 1 != 0 || i >= slab.carved() as usize;
        for k in (0..16).filter(|k| clean >> k & 1 != 0) {
            let at = slab.chunk().address();
            check(k * page < CHUNK, "a clean OS page lies in its slab", at)?;
            let (first, last) = (k * page / size, ((k + 1) * page - 1) / size);
            let unused = (first..=last.min(capacity - 1)).all(is_free);
            check(unused, "no block of a clean OS page is used", at)?;
            census.clean_pages += 1;
        }
        Ok(())
    }

    /// Calls `f` with start and length of all memory that is known to read as zero: clean free ranges, parts of slabs
    /// and large blocks that were not used yet, clean OS pages of slabs, and unused parts of arenas. Without guards,
    /// which cannot be read.
    ///
    /// # Safety
    /// No other thread may use the allocator meanwhile.
    pub unsafe fn for_each_clean(&self, mut f: impl FnMut(*const u8, usize)) {
        let page = self.page_size();
        self.ranges.with(&self.os, |r| {
            self.arenas.for_each(r.lock(), |c| {
                let p = c.start().cast_const();
                let (from, to) = known_zero(r, c, page);
                if from < to {
                    f(p.wrapping_add(from), to - from);
                }
                if c.kind() == Kind::SLAB {
                    let slab = slab_at_rest(c);
                    let clean = slab.clean().load(Ordering::Relaxed);
                    // The last OS page of a slab may be a guard.
                    let pages = CHUNK / page - usize::from(slab.is_guarded());
                    for k in (0..pages).filter(|k| clean >> k & 1 != 0) {
                        f(p.wrapping_add(k * page), page);
                    }
                }
            });
            self.arenas.for_each_unused(r.lock(), &mut f);
        });
    }
}

/// Returns the bounds, as offsets, of what is known to read as zero in the chunks of the record, at rest: because it
/// was never used, or because it is free and clean.
fn known_zero(r: &Ranges, c: Record, page: usize) -> (usize, usize) {
    match c.kind() {
        Kind::FREE if r.look_at(c).1 == State::Clean => (0, r.look_at(c).0 * CHUNK),
        Kind::LARGE | Kind::CACHED | Kind::DEFERRED => {
            let block = large_at_rest(c);
            let used = block.carved() * CHUNK;
            match (block.behind(), block.is_guarded()) {
                (State::Dirty, _) => (0, 0),
                (State::Clean, true) => (used.max(block.bytes() + page), block.len() * CHUNK),
                (State::Clean, false) => (used, block.len() * CHUNK),
            }
        }
        Kind::SLAB => {
            let slab = slab_at_rest(c);
            let used = slab.carved() as usize * class::SIZE[slab.class()] as usize;
            let end = CHUNK - usize::from(slab.is_guarded()) * page;
            if slab.is_zeroed() { (used, end) } else { (0, 0) }
        }
        _ => (0, 0),
    }
}

/// Returns the slab of `c`. Invariant of this file: no other thread uses the allocator, as the callers of its public
/// functions promise.
fn slab_at_rest(c: Record) -> OwnSlab {
    // SAFETY: no other thread uses the slab.
    unsafe { OwnSlab::of(c) }
}

/// Returns the large block of `c`; see `slab_at_rest`.
fn large_at_rest(c: Record) -> Large {
    // SAFETY: no other thread uses the block.
    unsafe { Large::of(c) }
}

/// Returns the heap as the caller's; see `slab_at_rest`.
fn heap_at_rest(heap: &Heap) -> Mine<'_> {
    // SAFETY: no other thread uses the heap.
    unsafe { Mine::of_ref(heap) }
}
