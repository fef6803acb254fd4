//! Checks of the whole allocator, for tests: every record, list, cache and map entry against the equations that the
//! other modules state. Linear in all that there is; nobody else may use the allocator meanwhile.

use crate::blocks::class::{self, CLASSES};
use crate::blocks::heap::{Block, NO_ROOM, Seat};
use crate::blocks::registry::{ORPHAN, OWNED, Registry};
use crate::blocks::{Blocks, record, slab};
use crate::observe::Observed;
use crate::pages::chunk::{Chunk, Kind, State};
use crate::pages::layout::{self, ARENA_ALIGN, BITS_BYTES, FEW_WORDS};
use crate::pages::notes::DEFERRED;
use crate::pages::range::Ranges;
use crate::pages::{START_CHUNKS, age};
use crate::system::policy::Purge;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Records, lists and sums.
    Records,
    /// Also each bit of each slab, and the zero bits of all other chunks.
    Bits,
}

/// What is wrong, and the address of the record, heap or block that shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The equation that does not hold.
    pub what: &'static str,
    /// Where.
    pub at: usize,
}

/// What there is, counted on the way.
///
/// Equation: `small + cached + remote` is the sum of `used` over all slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Live blocks of slabs.
    pub small: usize,
    /// Blocks in caches.
    pub cached: usize,
    /// Blocks that another thread freed and the owner has not seen.
    pub remote: usize,
    /// Live large blocks, those of the annex included.
    pub large: usize,
    /// Large blocks on shelves.
    pub shelved: usize,
    /// Chunks that were dropped and wait for the purger.
    pub dropped_chunks: usize,
    /// Live huge blocks.
    pub huge: usize,
    /// Large blocks that nested calls freed, and that wait.
    pub deferred: usize,
    /// Slabs, without those of the annex.
    pub slabs: usize,
    /// Slabs of the annex, whose blocks count as all others do.
    pub annexed_slabs: usize,
    /// Chunks that hold heaps.
    pub heap_chunks: usize,
    /// Heaps, orphans included.
    pub heaps: usize,
    /// Chunks in free ranges: clean, dirty.
    pub free_chunks: [usize; 2],
    /// Dirty ones of which the system was told already.
    pub lazy_chunks: usize,
    /// Chunks that are not free.
    pub taken_chunks: usize,
    /// OS pages of slabs that hold no used block and read as zero.
    pub clean_pages: usize,
    /// Large blocks that are apart, see `apart.rs`.
    pub apart: usize,
}

/// What the lists say about slabs, to compare with what the records say.
#[derive(Default, PartialEq, Eq)]
struct Listed {
    in_bins: usize,
    /// Those that heaps count, see [`crate::grow`].
    counted: usize,
    pending: usize,
    shelved: usize,
}

fn check(holds: bool, what: &'static str, at: usize) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(Invalid { what, at }) }
}

/// Where a walk over the records is: in which range, and what lay before it.
struct Walk {
    last: *const Chunk,
    /// First record of the range, and how many of its chunks are still to come.
    first: *const Chunk,
    left: usize,
    /// State of the free range that ends just before, if one does.
    free_before: Option<State>,
}

impl<O: Os> Observed<O> {
    /// Whether every structure is as its documentation says.
    ///
    /// # Safety
    /// No other thread may use the allocator meanwhile.
    pub unsafe fn is_valid(&self) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.validate(Depth::Bits) }.is_ok()
    }

    /// Checks every structure and counts what there is.
    ///
    /// # Safety
    /// No other thread may use the allocator meanwhile.
    pub unsafe fn validate(&self, depth: Depth) -> Result<Census, Invalid> {
        let mut census = Census::default();
        let mut listed = Listed::default();
        self.registry.with(&self.os, |r| {
            // SAFETY: nobody else uses the allocator.
            unsafe { self.check_heaps(r, &mut census, &mut listed) }
        })?;
        // SAFETY: nobody else uses the allocator.
        unsafe { self.check_annex(&mut census) }?;
        census.huge = self.huge.count();
        check(self.huge.is_valid(), "huge: slots are blocks, and apart", 0)?;
        self.ranges.with(&self.os, |r| {
            // SAFETY: nobody else uses the allocator, and the lock is held.
            unsafe { self.check_chunks(r, depth, &mut census, &listed) }
        })?;
        Ok(census)
    }

    /// The annex, and what nested calls left.
    unsafe fn check_annex(&self, census: &mut Census) -> Result<(), Invalid> {
        let (here, annexed) = (&self.arenas.annex, &self.annexed);
        let (mut chunks, mut used) = (0, 0);
        for class in 1..CLASSES {
            for c in annexed.slabs_of(class) {
                // SAFETY: slabs of the annex stay slabs, and are at rest.
                unsafe {
                    let at = c.addr();
                    let capacity = class::capacity(class);
                    let kind = (*c).kind.get() == Kind::SLAB && usize::from((*c).class) == class;
                    check(
                        kind && record::owner(c) == crate::blocks::annexed::owner(),
                        "a slab of the annex is one",
                        at,
                    )?;
                    check(here.is_claimed(c), "a slab of the annex is claimed", at)?;
                    let mapped = !self.map.is_complete() || self.map.class(layout::chunk(c)) == class;
                    check(mapped, "the page map has the slab's class", at)?;
                    check((*c).used == capacity && (*c).carved == capacity, "it was carved whole", at)?;
                    let words = (0..capacity.div_ceil(64) as usize).map(|word| record::remote_word(c, word));
                    let free: u32 = words.map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
                    check((*c).remote.apart() == free, "count == bits set", at)?;
                    (chunks, used) = (chunks + 1, used + (capacity - free) as usize);
                }
            }
        }
        census.annexed_slabs = chunks;
        // Those in caches are subtracted below.
        census.small = used;
        let (mut blocks, mut bytes, mut claimed) = (0, 0, true);
        here.for_each_large(|c| {
            // SAFETY: the record is at rest.
            let (len, usable) = unsafe { ((*c).len as usize, Chunk::bytes(c)) };
            (blocks, bytes, chunks) = (blocks + 1, bytes + usable, chunks + len);
            claimed &= (0..len).all(|i| here.is_claimed(c.wrapping_add(i)));
        });
        check(claimed, "a large block of the annex is claimed whole", 0)?;
        census.large += blocks;
        let counted = [&annexed.slab_count, &annexed.large_blocks, &annexed.large_bytes, &here.used];
        let counted = counted.map(|n| n.load(Ordering::Relaxed));
        check(counted == [census.annexed_slabs, blocks, bytes, chunks], "the annex is counted", 0)
    }

    /// Registry, bins, pending stacks and caches.
    unsafe fn check_heaps(&self, r: &Registry, census: &mut Census, listed: &mut Listed) -> Result<(), Invalid> {
        let (mut heap, mut orphans) = (r.all, 0);
        while !heap.is_null() {
            let at = heap.addr();
            // SAFETY: heaps are never unmapped; as the caller promises, nobody changes them.
            unsafe {
                census.heaps += 1;
                check((*layout::record(heap.cast())).kind.get() == Kind::HEAPS, "a heap lies in a chunk of heaps", at)?;
                let cached = self.check_caches(heap)?;
                census.cached += cached;
                let shelved = (*heap).shelf.check();
                check(shelved.is_some(), "a shelf's blocks are shelved and counted", at)?;
                listed.shelved += shelved.unwrap_or(0);
                let state = (*heap).state.load(Ordering::Relaxed);
                if state == ORPHAN {
                    orphans += 1;
                    check(cached == 0, "an orphan's caches are empty", at)?;
                    let seen = (*heap).pending.is_empty() || self.notes.has(DEFERRED);
                    check(seen, "an orphan has no frees that were not seen", at)?;
                }
                let seat = (*heap).seat.load(Ordering::Relaxed);
                check(seat.is_null() || state == OWNED, "a heap with a seat has a thread", at)?;
                if let Some(seat) = self.seat_of(heap) {
                    check((*seat).heap.load(Ordering::Relaxed) == heap, "no heap is parked at rest", at)?;
                    check(
                        (*seat).busy.load(Ordering::Relaxed) == Seat::IDLE,
                        "no thread is in the middle of a call",
                        at,
                    )?;
                }
                for class in 0..CLASSES {
                    listed.in_bins += self.check_bin(heap, class)?;
                }
                listed.counted += (*heap).slabs.iter().sum::<u32>() as usize;
                let mut wrong = false;
                (*heap).pending.for_each(|c| {
                    listed.pending += 1;
                    wrong |= (*c).kind.get() != Kind::SLAB || record::owner(c) != heap || (*c).remote.counted() == 0;
                });
                check(!wrong, "pending slabs are the heap's and have a count", at)?;
                heap = (*heap).next;
            }
        }
        let mut orphan = r.orphans;
        for _ in 0..orphans {
            check(!orphan.is_null(), "every orphan is in the list of orphans", 0)?;
            // SAFETY: as above.
            unsafe {
                let state = (*orphan).state.load(Ordering::Relaxed);
                check(state == ORPHAN, "heaps in the list of orphans are orphans", orphan.addr())?;
                orphan = (*orphan).next_orphan;
            }
        }
        check(orphan.is_null(), "the list of orphans ends", orphan.addr())?;
        check(self.orphans.load(Ordering::Relaxed) == orphans, "orphans are counted", 0)
    }

    /// The caches of one heap; returns the blocks in them.
    unsafe fn check_caches(&self, heap: *mut Heap) -> Result<usize, Invalid> {
        let mut sum = 0;
        // SAFETY: the heap is at rest; lists of a heap with caches end at `nothing`.
        unsafe {
            let nothing = &raw mut (*heap).nothing;
            check((*nothing).tag != Block::TAG, "the end of a cache is not tagged", heap.addr())?;
            check((*heap).room[0] == NO_ROOM, "class 0 has no room", heap.addr())?;
            for class in 1..CLASSES {
                let mut block = (*heap).head[class];
                if !Heap::caches_class(heap, class) {
                    check((*heap).room[class] == NO_ROOM, "a heap without caches has no room", heap.addr())?;
                    check(block.is_null() || block == nothing, "a heap without caches has no blocks", heap.addr())?;
                    continue;
                }
                let count = i32::from((*heap).cap[class]) - (*heap).room[class];
                check(count >= 0, "cap - room is not negative", heap.addr())?;
                for _ in 0..count {
                    check(block != nothing, "cap - room == blocks in the list", heap.addr())?;
                    check(self.arenas.contains(block.cast()), "a cached block lies in an arena", block.addr())?;
                    let c = layout::record(block.cast());
                    let fits = (*c).kind.get() == Kind::SLAB && usize::from((*c).class) == class;
                    check(fits, "a cached block lies in a slab of its class", block.addr())?;
                    let offset = block.addr() & (CHUNK - 1);
                    let whole = offset.is_multiple_of(class::SIZE[class] as usize);
                    check(whole, "a cached block starts where a block starts", block.addr())?;
                    check((*block).tag == Block::TAG, "a cached block is tagged", block.addr())?;
                    let free = slab::is_free(c, block.cast());
                    check(!free, "a cached block is not free in its slab", block.addr())?;
                    block = (*block).link;
                }
                check(block == nothing, "cap - room == blocks in the list", heap.addr())?;
                sum += count as usize;
            }
        }
        Ok(sum)
    }

    /// One bin; returns the slabs in it.
    unsafe fn check_bin(&self, heap: *mut Heap, class: usize) -> Result<usize, Invalid> {
        let mut count = 0;
        // SAFETY: the heap is at rest; records in a list are valid.
        unsafe {
            let (mut c, mut before) = ((*heap).bins[class].head, core::ptr::null_mut());
            while !c.is_null() {
                let fits =
                    (*c).kind.get() == Kind::SLAB && usize::from((*c).class) == class && record::owner(c) == heap;
                check(fits, "a slab in a bin has its class and owner", c.addr())?;
                check((*c).listed, "a slab in a bin is listed", c.addr())?;
                check((*c).prev == before, "a bin is linked both ways", c.addr())?;
                count += 1;
                (before, c) = (c, (*c).next);
            }
        }
        Ok(count)
    }

    /// Every record of every arena.
    unsafe fn check_chunks(
        &self,
        ranges: &Ranges,
        depth: Depth,
        census: &mut Census,
        listed: &Listed,
    ) -> Result<(), Invalid> {
        let none = core::ptr::null();
        let mut walk = Walk { last: none, first: none, left: 0, free_before: None };
        let (mut seen, mut used, mut result) = (Listed::default(), 0, Ok(()));
        self.arenas.for_each(|c| {
            if result.is_ok() {
                // SAFETY: records of used chunks are readable, and at rest.
                result = unsafe { self.check_chunk(&mut walk, c, depth, census) };
                // SAFETY: as above.
                unsafe {
                    if (*c).kind.get() == Kind::SLAB {
                        used += (*c).used as usize - Chunk::withheld(c) as usize;
                        seen.in_bins += usize::from((*c).listed);
                        seen.counted += usize::from(usize::from((*c).class) < class::FIRST_PAGED);
                        seen.pending += usize::from((*c).remote.counted() != 0);
                    }
                }
            }
        });
        result?;
        check(walk.left == 0, "the last range ends at the frontier", walk.first.addr())?;
        check(seen.in_bins == listed.in_bins, "every listed slab is in a bin", 0)?;
        check(seen.counted == listed.counted, "heaps count their slabs", 0)?;
        check(seen.pending == listed.pending, "every slab with a count is pending", 0)?;
        check(census.free_chunks == ranges.free_chunks, "free ranges are counted", 0)?;
        // SAFETY: the lock is held.
        check(unsafe { ranges.is_valid() }, "free ranges are in their lists", 0)?;
        check(census.shelved == listed.shelved, "every shelved block is on a shelf", 0)?;
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

    /// What the ranges count against what was found, and that what waits has a purger.
    fn check_sums(&self, ranges: &Ranges, census: &Census) -> Result<(), Invalid> {
        let dirty = ranges.free_chunks[State::Dirty as usize];
        check(ranges.footprint() - dirty == census.taken_chunks, "taken chunks are counted", 0)?;
        check(ranges.lazy_chunks >= census.lazy_chunks, "lazily purged chunks are counted", 0)?;
        check(ranges.dropped_chunks == census.dropped_chunks, "dropped chunks are counted", 0)?;
        let waiting = ranges.waiting() - ranges.dropped_chunks;
        check(waiting + ranges.lazy_chunks == dirty, "dirty chunks wait, or were purged lazily", 0)?;
        let seen_to = self.policy.purge() == Purge::Never || self.is_purged();
        check(self.os.helper().is_valid(), "no helper is kept away for a call that has ended", 0)?;
        check(ranges.waiting() < START_CHUNKS || seen_to, "much memory that waits has a purger", 0)
    }

    /// The age of a chunk of the range that starts with `first`.
    unsafe fn check_age(&self, first: *const Chunk, c: *const Chunk, census: &mut Census) -> Result<(), Invalid> {
        let at = c.addr();
        // SAFETY: the record is readable, and at rest as the table of ages is.
        let (kind, state, age) = unsafe { ((*first).kind.get(), (*first).state, self.arenas.ages(c).read()) };
        let free = kind == Kind::FREE;
        census.lazy_chunks += usize::from(age == age::LAZY);
        census.taken_chunks += usize::from(!free);
        if kind == Kind::SLAB {
            return check(age != age::LAZY, "only free ranges are purged lazily", at);
        }
        let waits = free && state == State::Dirty;
        check((age != age::NONE) == waits, "chunks of dirty free ranges have an age, others have none", at)
    }

    unsafe fn check_chunk(
        &self,
        walk: &mut Walk,
        c: *const Chunk,
        depth: Depth,
        census: &mut Census,
    ) -> Result<(), Invalid> {
        let at = c.addr();
        let adjacent = walk.last == c.wrapping_sub(1) && (walk.last.addr() ^ c.addr()) < ARENA_ALIGN;
        walk.last = c;
        // SAFETY: the record is readable and at rest, and so is that of the range's start.
        unsafe {
            if self.map.is_complete() {
                let class = if (*c).kind.get() == Kind::SLAB { usize::from((*c).class) } else { 0 };
                check(self.map.class(layout::chunk(c)) == class, "the page map has the slab's class or 0", at)?;
            }
            if depth == Depth::Bits {
                self.check_bits(c, census)?;
            } else if (*c).kind.get() == Kind::SLAB {
                census.remote += ((*c).remote.counted() as i32 + i32::from((*c).balance)) as usize;
            }
            if walk.left > 0 {
                check(adjacent, "a range lies in one arena", walk.first.addr())?;
                self.check_age(walk.first, c, census)?;
                walk.left -= 1;
                if walk.left == 0 && (*walk.first).kind.get() == Kind::FREE {
                    return check((*c).kind.get() == Kind::FREE_END, "a free range has an end", at);
                }
                return check((*c).kind.get() == Kind::NONE, "the inside of a range has no kind", at);
            }
            let free_before = walk.free_before.take().filter(|_| adjacent);
            (walk.first, walk.left) = (c, 0);
            self.check_age(c, c, census)?;
            match (*c).kind.get() {
                Kind::FREE => {
                    check(free_before != Some((*c).state), "free neighbours of one state are joined", at)?;
                    check((*c).len > 0, "a free range is not empty", at)?;
                    walk.free_before = Some((*c).state);
                    walk.left = (*c).len as usize - 1;
                    census.free_chunks[(*c).state as usize] += (*c).len as usize;
                }
                Kind::LARGE | Kind::SHELVED | Kind::DEFERRED => {
                    let (len, carved, bytes) = ((*c).len as usize, (*c).carved as usize, Chunk::bytes(c));
                    check(carved <= len && bytes <= carved * CHUNK, "bytes <= carved <= len", at)?;
                    check(bytes > 0 && bytes.is_multiple_of(self.page_size()), "bytes are whole OS pages", at)?;
                    walk.left = len - 1;
                    census.large += usize::from((*c).kind.get() == Kind::LARGE);
                    census.deferred += usize::from((*c).kind.get() == Kind::DEFERRED);
                    census.shelved += usize::from((*c).kind.get() == Kind::SHELVED);
                    census.apart += usize::from(Chunk::is_apart(c));
                }
                Kind::SLAB => {
                    census.slabs += 1;
                    check((*c).listed != slab::is_full(c), "a slab is listed unless full", at)?;
                    let stays = usize::from((*c).class) >= class::FIRST_PAGED;
                    let stays = stays || Blocks::<O>::is_hardened(c);
                    check(stays || !slab::is_released(c), "an empty slab is released", at)?;
                }
                Kind::HEAPS => census.heap_chunks += 1,
                Kind::DROPPED => {
                    walk.left = (*c).len as usize - 1;
                    census.dropped_chunks += (*c).len as usize;
                }
                _ => return check(false, "every chunk lies in a range of a known kind", at),
            }
        }
        Ok(())
    }

    /// The free bits and remote bits of one chunk.
    unsafe fn check_bits(&self, c: *const Chunk, census: &mut Census) -> Result<(), Invalid> {
        let at = c.addr();
        // SAFETY: the bits of used chunks are committed, and at rest.
        unsafe {
            let is_slab = (*c).kind.get() == Kind::SLAB;
            // The bits of other chunks are looked at as well: they must be zero. Their records need not say where.
            if is_slab {
                check((*c).tables == self.arenas.tables(c), "a slab knows where its bits are", at)?;
            } else {
                (*c.cast_mut()).tables = self.arenas.tables(c);
            }
            let carved = if is_slab { (*c).carved as usize } else { 0 };
            let mut remote_count = 0;
            let few = (0..FEW_WORDS).map(|word| (true, word));
            for (few, word) in few.chain((0..BITS_BYTES / 8).map(|word| (false, word))) {
                let (free, remote) = record::bits_in(c, few);
                let (free, remote) = (free.add(word).read(), (*remote.add(word)).load(Ordering::Relaxed));
                let carved = if few == record::has_few(c) { carved } else { 0 };
                let below = carved.saturating_sub(word * 64).min(64) as u32;
                let allowed = u64::MAX.checked_shr(64 - below).unwrap_or(0);
                check((free | remote) & !allowed == 0, "only blocks that were carved have bits", at)?;
                check(free & remote == 0, "a block is freed once", at)?;
                remote_count += remote.count_ones() as i32;
            }
            if is_slab {
                check(slab::is_valid(c), "used + free bits == carved <= capacity", at)?;
                let due = (*c).remote.counted() as i32 + i32::from((*c).balance);
                check(due == remote_count, "count + balance == remote bits", at)?;
                check((*c).balance <= 0, "frees are counted behind their bits", at)?;
                census.remote += remote_count as usize;
                self.check_clean_pages(c, census)?;
            }
        }
        Ok(())
    }

    /// The OS pages that a slab calls clean.
    unsafe fn check_clean_pages(&self, c: *const Chunk, census: &mut Census) -> Result<(), Invalid> {
        // SAFETY: the slab and its bits are at rest.
        unsafe {
            let (page, clean) = (self.page_size(), (*c).clean.load(Ordering::Relaxed));
            let class = usize::from((*c).class);
            let (size, capacity) = (class::SIZE[class] as usize, class::capacity(class) as usize);
            // Not `slab::is_free`, which only guesses, as others may write meanwhile.
            let word = |i: usize| {
                record::free_bits(c).add(i / 64).read() | record::remote_word(c, i / 64).load(Ordering::Relaxed)
            };
            let is_free = |i: usize| word(i) >> (i % 64) & 1 != 0 || i >= (*c).carved as usize;
            for k in (0..16).filter(|k| clean >> k & 1 != 0) {
                check(k * page < CHUNK, "a clean OS page lies in its slab", c.addr())?;
                let (first, last) = (k * page / size, ((k + 1) * page - 1) / size);
                let unused = (first..=last.min(capacity - 1)).all(is_free);
                check(unused, "no block of a clean OS page is used", c.addr())?;
                census.clean_pages += 1;
            }
        }
        Ok(())
    }

    /// Calls `visit` with start and length of everything that is known to read as zero: clean free ranges, what
    /// slabs and large blocks have not used yet, OS pages of slabs that went back, and what arenas have not used.
    /// Guards are left out, which cannot be read.
    ///
    /// # Safety
    /// No other thread may use the allocator meanwhile.
    pub unsafe fn for_each_clean(&self, mut visit: impl FnMut(*const u8, usize)) {
        let page = self.page_size();
        self.ranges.with(&self.os, |_| {
            self.arenas.for_each(|c| {
                let p = layout::chunk(c).cast_const();
                // SAFETY: records of used chunks are readable, and at rest.
                let (from, to) = unsafe { known_zero(c, page) };
                if from < to {
                    visit(p.wrapping_add(from), to - from);
                }
                // SAFETY: as above.
                let clean =
                    unsafe { if (*c).kind.get() == Kind::SLAB { (*c).clean.load(Ordering::Relaxed) } else { 0 } };
                // The last OS page of a slab may be a guard.
                // SAFETY: as above.
                let pages = CHUNK / page - usize::from(unsafe { Chunk::is_apart(c) });
                for k in (0..pages).filter(|k| clean >> k & 1 != 0) {
                    visit(p.wrapping_add(k * page), page);
                }
            });
            self.arenas.for_each_unused(&mut visit);
        });
    }
}

/// From where to where the chunks of the record are known to read as zero because nothing of them was ever used, or
/// because they are free and clean.
///
/// # Safety
/// The record must be readable, and at rest.
unsafe fn known_zero(c: *mut Chunk, page: usize) -> (usize, usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let (len, carved) = ((*c).len as usize * CHUNK, (*c).carved as usize);
        match (*c).kind.get() {
            Kind::FREE if (*c).state == State::Clean => (0, len),
            Kind::LARGE if (*c).zeroed && (*c).state == State::Clean => {
                ((carved * CHUNK).max(Chunk::bytes(c) + page), len)
            }
            Kind::LARGE | Kind::SHELVED | Kind::DEFERRED if (*c).state == State::Clean => (carved * CHUNK, len),
            Kind::SLAB if (*c).zeroed => {
                let size = class::SIZE[usize::from((*c).class)] as usize;
                (carved * size, CHUNK - usize::from(Chunk::is_apart(c)) * page)
            }
            _ => (0, 0),
        }
    }
}
