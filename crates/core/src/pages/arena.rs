//! Arenas: reserved address ranges (`layout.rs`), committed from the front as memory is needed (`commit.rs`). Look-ups
//! by address take no lock.

use crate::pages::chunk::Record;
use crate::pages::commit::{self, Step};
use crate::pages::layout::{
    ADDRESS_BITS, ARENA_ALIGN, ARENA_SHIFT, MAX_ARENAS, MIN_ARENA, RECORD_BYTES, SIDE_BYTES, SLOTS, age_address, at,
    first_chunk, longest, split,
};
use crate::pages::page_map::PageMap;
use crate::pages::place::{is_pressed, reserve, share};
use crate::pages::reentrant_reserve::{self, ReentrantReserve};
use crate::system::os::Moved;
use crate::system::seen;
use crate::system::sync::{AtomicBool, AtomicU8, AtomicUsize, Ordering, peek_cell};
use crate::{CHUNK, CHUNK_SHIFT, Os};
use core::cell::Cell;
use core::mem::offset_of;

/// One arena. Chunks `first..frontier` have been used; chunks `frontier..committed` may be used without a system call.
///
/// `len` and `first` are set before a slot refers to the arena. The other cells are used under the lock of the ranges.
/// There is no exclusive reference to an arena, as look-ups may have shared ones at any time.
#[derive(Debug, Default)]
pub struct Arena {
    base: AtomicUsize,
    len: Cell<usize>,
    /// Index of the first chunk after the side tables.
    first: Cell<usize>,
    /// Index of the first chunk that was never used.
    frontier: Cell<usize>,
    /// Index of the first chunk that is not committed. Changes under the lock of the ranges; read without a lock
    /// ([`Arenas::contains`]).
    committed: AtomicUsize,
    /// Index of the first chunk that was not taken into use ([`Os::begin_use`]): between `frontier` and `committed`.
    begun: Cell<usize>,
    /// Limit of the frontier, an index: the start of the reentrant reserve, or of the part that was given back
    /// (`reserve.rs`).
    pub(crate) end: Cell<usize>,
    /// True if the part that was never used was given back.
    pub(crate) released: Cell<bool>,
    /// True if the system limits how much may be committed: there is a limit on writable memory, or a step was refused.
    pub(crate) scarce: AtomicBool,
    /// True if huge pages were allowed in it (`huge=always`), false if they were forbidden (`dense.rs`,
    /// `huge_area.rs`).
    huge: Cell<Option<bool>>,
}

impl Arena {
    const fn new() -> Self {
        Arena {
            base: AtomicUsize::new(0),
            len: Cell::new(0),
            first: Cell::new(0),
            frontier: Cell::new(0),
            committed: AtomicUsize::new(0),
            begun: Cell::new(0),
            end: Cell::new(0),
            released: Cell::new(false),
            scarce: AtomicBool::new(false),
            huge: Cell::new(None),
        }
    }

    #[inline]
    pub(crate) fn base(&self) -> usize {
        // Acquire pairs with the Release in `Arenas::add`: a thread that sees the base sees the arena's other fields.
        self.base.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn chunks(&self) -> usize {
        self.len.get() >> CHUNK_SHIFT
    }

    /// Whether the chunk of that index and its record may be used.
    #[inline(always)]
    fn has_committed(&self, index: usize) -> bool {
        index >= self.first.get() && index < self.committed()
    }

    /// Index of the first chunk after the side tables.
    pub(crate) fn first(&self) -> usize {
        self.first.get()
    }

    /// Index of the first chunk that was not taken into use.
    pub(crate) fn begun(&self) -> usize {
        self.begun.get()
    }

    /// Makes the chunks that were never used come into use again.
    pub(crate) fn begin_again(&self) {
        self.begun.set(self.frontier.get());
    }

    /// Whether the arena has the greatest length, so that most of it is never used.
    pub(crate) fn is_long(&self) -> bool {
        self.len.get() == ARENA_ALIGN
    }
}

/// The fields of a copy of an arena, for an observer in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenArena {
    /// Its address.
    pub base: u64,
    /// Number of its chunks.
    pub chunks: u64,
    /// Index of the first chunk after the side tables.
    pub first: u64,
    /// Index of the first chunk that was never used.
    pub frontier: u64,
    /// Index of the first chunk that is not committed.
    pub committed: u64,
    /// Index of the first chunk of the reentrant reserve; `chunks` where there is none.
    pub reserve: u64,
}

impl SeenArena {
    /// Where the fields of an arena lie in it, and those of all arenas: the number, the arenas, their length, the
    /// address of the reentrant reserve.
    pub(crate) const LAYOUT: [usize; 9] = [
        offset_of!(Arena, base),
        offset_of!(Arena, len),
        offset_of!(Arena, first),
        offset_of!(Arena, frontier),
        offset_of!(Arena, committed),
        offset_of!(Arenas, count),
        offset_of!(Arenas, arenas),
        size_of::<Arena>(),
        offset_of!(Arenas, reentrant_reserve) + ReentrantReserve::BASE_AT,
    ];
    /// Length of a copy of all arenas.
    pub const BYTES: usize = size_of::<Arenas>();

    /// The arenas of a copy of all.
    pub fn all(copy: &[u8]) -> impl Iterator<Item = SeenArena> {
        let [base, len, first, frontier, committed, count, arenas, size, reserve] = Self::LAYOUT;
        let reserve = seen::word(copy, reserve);
        (0..(seen::word(copy, count) as usize).min(MAX_ARENAS)).map(move |i| {
            let word = |at: usize| seen::word(copy, arenas + i * size + at);
            let (base, chunks) = (word(base), word(len) >> CHUNK_SHIFT);
            let reserve = reserve.wrapping_sub(base) >> CHUNK_SHIFT;
            SeenArena {
                base,
                chunks,
                first: word(first).min(chunks),
                frontier: word(frontier).min(chunks),
                committed: word(committed).min(chunks),
                reserve: reserve.min(chunks),
            }
        })
    }
}

/// Proof that the lock of the ranges is held: it is part of the structure that the lock guards.
#[derive(Debug)]
pub struct UnderLock(());

impl UnderLock {
    /// For `Ranges` alone.
    pub(crate) const fn new() -> Self {
        UnderLock(())
    }
}

/// All arenas. Look-ups take no lock; `add` and `extend` are called under the lock of the ranges. The fields that a
/// program with one arena writes are at the front and at the end, so that they lie on few OS pages.
#[repr(C)]
#[derive(Debug)]
pub struct Arenas {
    count: AtomicUsize,
    /// True if reservations were given back, as address space is limited.
    pub(crate) released: AtomicBool,
    /// For each possible base: the number of the arena there, plus 1.
    slots: [AtomicU8; SLOTS],
    arenas: [Arena; MAX_ARENAS],
    /// The end of the first arena, for reentrant calls.
    pub(crate) reentrant_reserve: ReentrantReserve,
}

// SAFETY: an arena's base, length and first chunk are written before `count` and `slots` refer to it, and never change;
// `committed` is atomic; the other fields are used under the lock of the ranges.
unsafe impl Sync for Arenas {}

const _: () = assert!(MAX_ARENAS < 256, "slots hold the arena's number in a byte");

impl Arenas {
    /// A set without arenas.
    pub const fn new() -> Self {
        Arenas {
            arenas: [const { Arena::new() }; MAX_ARENAS],
            count: AtomicUsize::new(0),
            released: AtomicBool::new(false),
            reentrant_reserve: ReentrantReserve::new(),
            slots: [const { AtomicU8::new(0) }; SLOTS],
        }
    }

    /// Number of bytes of all committed chunks, whether they hold memory or not. The reentrant reserve does not count.
    pub(crate) fn usable_bytes(&self) -> usize {
        self.arenas().iter().map(|arena| (arena.committed() - arena.first()) << CHUNK_SHIFT).sum()
    }

    /// Whether `p` lies in the used part of an arena. Constant time.
    #[inline]
    pub fn contains(&self, p: *const u8) -> bool {
        let Some(arena) = self.arena_at(p) else { return false };
        arena.has_committed(Self::index(p)) || self.reentrant_reserve.holds(p)
    }

    /// The record of the chunk at `p`, if that lies in the used part of an arena.
    #[inline]
    pub fn record(&self, p: *const u8) -> Option<Record> {
        Record::find(p.addr(), self.contains(p))
    }

    /// [`Arenas::record`] but for the reentrant reserve, with fewer instructions.
    #[inline(always)]
    pub(crate) fn ordinary_record(&self, p: *const u8) -> Option<Record> {
        Record::find(p.addr(), self.arena_at(p).is_some_and(|arena| arena.has_committed(Self::index(p))))
    }

    /// The arena in whose reservation `p` lies.
    #[inline(always)]
    fn arena_at(&self, p: *const u8) -> Option<&Arena> {
        let a = p.addr();
        if a >> ADDRESS_BITS != 0 {
            return None;
        }
        // Acquire pairs with the Release in `add`: the arena is complete. A slot is set once; a thread that still reads
        // 0 has no block of that arena.
        // SAFETY: the slot index is below SLOTS.
        let slot = unsafe { self.slots.get_unchecked(a >> ARENA_SHIFT) }.load(Ordering::Acquire);
        // SAFETY: slots hold numbers of arenas, plus 1.
        (slot != 0).then(|| unsafe { self.arenas.get_unchecked(usize::from(slot) - 1) })
    }

    /// Index of the chunk at `p` in its arena.
    #[inline(always)]
    fn index(p: *const u8) -> usize {
        (p.addr() & (ARENA_ALIGN - 1)) >> CHUNK_SHIFT
    }

    /// Address of the age of the chunk of `record`; the ages of the chunks after it follow.
    #[inline]
    pub(crate) fn ages(&self, record: Record) -> *mut u8 {
        at(age_address(record.address(), self.tables(record)))
    }

    /// The place of the chunk of `record`: the start of the arena, the index of the chunk, and the number of chunks of
    /// the arena.
    pub(crate) fn place(&self, record: Record) -> (usize, usize, usize) {
        let (base, index) = split(record.address());
        (base, index, self.chunks_at(base))
    }

    /// Whether the arena of `record` is a long one, so that there is address space for chunks that do not fit now.
    pub(crate) fn is_long(&self, record: Record) -> bool {
        self.chunks_at(split(record.address()).0) << CHUNK_SHIFT == ARENA_ALIGN
    }

    /// `log2` of the chunks of the arena that `record` lies in. Its length is a power of two.
    pub(crate) fn tables(&self, record: Record) -> u8 {
        self.chunks_at(split(record.address()).0).ilog2() as u8
    }

    /// The number of the arena at an address, plus 1; 0 if there is none.
    #[inline]
    fn slot(&self, address: usize) -> u8 {
        // Acquire pairs with the Release in `add`: the arena is complete.
        self.slots[address >> ARENA_SHIFT].load(Ordering::Acquire)
    }

    /// Number of chunks of the arena at `base`, which must be the base of one.
    #[inline]
    pub(crate) fn chunks_at(&self, base: usize) -> usize {
        // The slot of an existing base refers to a complete arena.
        self.arenas[usize::from(self.slot(base)) - 1].chunks()
    }

    /// Whether `record` is below the frontier of its arena and not below its first chunk.
    #[inline]
    pub(crate) fn in_use(&self, _: &UnderLock, record: Record) -> bool {
        let (base, index) = split(record.address());
        let slot = self.slot(base);
        let arena = &self.arenas[usize::from(slot) - 1];
        slot != 0 && index >= arena.first.get() && index < arena.frontier.get()
    }

    /// [`Arenas::in_use`] without the lock: approximate, as the frontier may move meanwhile. For messages.
    pub(crate) fn in_use_roughly(&self, record: Record) -> bool {
        let (base, index) = split(record.address());
        let Some(arena) = usize::from(self.slot(base)).checked_sub(1).map(|i| &self.arenas[i]) else { return false };
        index >= arena.first.get() && index < peek_cell(&arena.frontier, usize::MAX)
    }

    /// The record of a chunk of arena `i`, by its index.
    fn nth_record(&self, i: usize, index: usize) -> Record {
        // SAFETY: the chunk is below the frontier and so committed; where no chunk was used yet, callers use only the
        // address of the record.
        unsafe { Record::from_address(self.arenas[i].base() + index * RECORD_BYTES) }
    }

    /// Calls `visit` with the record of every chunk that has been used.
    pub(crate) fn for_each(&self, lock: &UnderLock, mut visit: impl FnMut(Record)) {
        for (first, used) in (0..).map_while(|i| self.used(lock, i)) {
            (0..used).for_each(|index| visit(first.after(index)));
        }
    }

    /// The chunks of arena `i` that have been used: the record of the first, and their number. `None` behind the last
    /// arena.
    pub fn used(&self, _: &UnderLock, i: usize) -> Option<(Record, usize)> {
        if i >= self.count.load(Ordering::Relaxed) {
            return None;
        }
        let (first, frontier) = (self.arenas[i].first.get(), self.arenas[i].frontier.get());
        Some((self.nth_record(i, first), frontier - first))
    }

    /// Calls `visit` with start and length of the part of each arena that is committed and has never been used.
    pub(crate) fn for_each_unused(&self, _: &UnderLock, mut visit: impl FnMut(*const u8, usize)) {
        for i in 0..self.count.load(Ordering::Relaxed) {
            // The lock is held, so these do not change.
            let arena = &self.arenas[i];
            let (base, from, to) = (arena.base(), arena.frontier.get(), arena.committed());
            visit(at(base + (from << CHUNK_SHIFT)), (to - from) << CHUNK_SHIFT);
        }
    }

    /// Takes `n` chunks at the frontier of some arena, aligned to `align` chunks. Returns the gap that the alignment
    /// leaves in front, if any (record, chunks), and the record of the first chunk. All are clean. Adds an arena if
    /// none has room.
    pub(crate) fn extend<O: Os>(
        &self,
        os: &O,
        map: &PageMap,
        lock: &UnderLock,
        n: usize,
        align: usize,
    ) -> Option<(Option<(Record, usize)>, Record)> {
        let count = self.count.load(Ordering::Relaxed);
        let mut refused = false;
        let found = (0..count).rev().find_map(|i| match self.arenas[i].extend(os, map, lock, n, align) {
            Ok(found) => Some((i, found)),
            Err(why) => {
                refused |= why == Short::OfMemory;
                None
            }
        });
        let (i, (first, start)) = match found {
            Some(found) => found,
            // The system would refuse memory for another arena too: it would only take address space.
            None if refused => return None,
            // The new arena is the last one.
            None if self.add(os, lock, n + align) => (count, self.arenas[count].extend(os, map, lock, n, align).ok()?),
            None => return None,
        };
        let gap = (start > first).then(|| (self.nth_record(i, first), start - first));
        Some((gap, self.nth_record(i, start)))
    }

    /// Takes `n` chunks at the frontier of an arena if `record` is the chunk at the frontier, so that a range grows in
    /// place. The chunk before `record` must be in use.
    pub(crate) fn extend_at<O: Os>(&self, os: &O, map: &PageMap, lock: &UnderLock, record: Record, n: usize) -> bool {
        let i = usize::from(self.slot(record.before(1).address())) - 1;
        self.arenas[i].extend_at(os, map, lock, record, n)
    }

    /// All existing arenas.
    pub(crate) fn arenas(&self) -> &[Arena] {
        // Acquire pairs with the Release in `add`.
        &self.arenas[..self.count.load(Ordering::Acquire)]
    }

    /// Number of arenas.
    pub(crate) fn count(&self) -> usize {
        // Relaxed: a caller that uses an arena holds the lock, or has an address in it.
        self.count.load(Ordering::Relaxed)
    }

    /// Arena `i`, including the fields that need the lock.
    pub(crate) fn nth<'a>(&'a self, _: &'a UnderLock, i: usize) -> &'a Arena {
        &self.arenas[i]
    }

    /// Allows huge pages in the chunks of the arena of `record`, or forbids them in all of it: then it stays one
    /// mapping. (To forbid them, no part of the arena may have been unmapped: `is_limited`.)
    pub(crate) fn set_huge<O: Os>(&self, os: &O, _: &UnderLock, record: Record, allow: bool) {
        let (base, _, chunks) = self.place(record);
        let arena = &self.arenas[usize::from(self.slot(base)) - 1];
        if arena.huge.replace(Some(allow)) != Some(allow) {
            let (from, to) = if allow { (arena.first.get(), arena.end.get()) } else { (0, chunks) };
            // SAFETY: a part of the arena's reservation, or all of it.
            unsafe { os.set_huge(at(base + (from << CHUNK_SHIFT)), (to - from) << CHUNK_SHIFT, allow) };
        }
    }

    /// Opens the reentrant reserve. The page map must be set up, or known to be refused.
    pub(crate) fn open_reentrant_reserve(&self, lock: &UnderLock) {
        if let Some((first, _)) = self.used(lock, 0)
            && !self.nth(lock, 0).released.get()
        {
            let (base, _, chunks) = self.place(first);
            self.reentrant_reserve.open(base, chunks);
        }
    }

    /// Reserves one more arena with room for `n` chunks, as long as the system allows. False if it allows none.
    pub(crate) fn add<O: Os>(&self, os: &O, lock: &UnderLock, n: usize) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        if count == MAX_ARENAS || n > longest() {
            return false;
        }
        if count > 0 && is_pressed(os) {
            self.give_back(os, lock);
        }
        let need = (n * (CHUNK + SIDE_BYTES) + 2 * CHUNK).next_power_of_two().max(MIN_ARENA);
        let mut len = ARENA_ALIGN;
        if count > 0 && self.is_limited(lock) {
            len = share(os, need);
        }
        while len >= need {
            // Relaxed: written under the lock.
            let taken = |slot: usize| self.slots.get(slot).is_none_or(|slot| slot.load(Ordering::Relaxed) != 0);
            if let Some(base) = reserve(os, len, taken) {
                let chunks = len >> CHUNK_SHIFT;
                let first = first_chunk(chunks);
                // The lock is held, and no other thread can reach this arena yet.
                let arena = &self.arenas[count];
                arena.len.set(len);
                arena.first.set(first);
                arena.frontier.set(first);
                arena.begun.set(first);
                // Relaxed: the slot publishes it.
                arena.committed.store(first, Ordering::Relaxed);
                arena.end.set(chunks - if count == 0 { reentrant_reserve::share(chunks) } else { 0 });
                // Release pairs with the Acquire of `base`.
                arena.base.store(base, Ordering::Release);
                // Release pairs with the Acquire of `slot` and `arena_at`.
                self.slots[base >> ARENA_SHIFT].store(count as u8 + 1, Ordering::Release);
                self.count.store(count + 1, Ordering::Release);
                return true;
            }
            // The system refused, most likely because of a limit on address space.
            len = (len / 4).min(share(os, need));
        }
        false
    }
}

/// Why an arena cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Short {
    /// This arena has no room; another one may have.
    OfRoom,
    /// The system refuses more memory.
    OfMemory,
}

impl Arena {
    /// Takes `n` chunks at the frontier that start at a multiple of `align`. Returns the old frontier and the index of
    /// the first chunk.
    fn extend<O: Os>(
        &self,
        os: &O,
        map: &PageMap,
        lock: &UnderLock,
        n: usize,
        align: usize,
    ) -> Result<(usize, usize), Short> {
        let (first, start) = (self.frontier.get(), self.frontier.get().next_multiple_of(align));
        if start + n > self.end.get() {
            return Err(Short::OfRoom);
        }
        self.ready(os, map, lock, start + n)?;
        self.frontier.set(start + n);
        Ok((first, start))
    }

    /// Commits chunks up to index `end` at least, and takes them into use.
    fn ready<O: Os>(&self, os: &O, map: &PageMap, lock: &UnderLock, end: usize) -> Result<(), Short> {
        let from = self.begun();
        if end <= from {
            return Ok(());
        }
        self.commit(os, map, lock, end)?;
        let first = self.first();
        let step = from + commit::step_in_use(from - first);
        // What is exactly needed, if the system refuses to lock more.
        for to in [end.max(step).min(self.committed()), end] {
            let step = Step { fresh: from == first, from, to, ..self.step_from_here() };
            // SAFETY: the chunks are committed, and the caller holds the lock.
            if unsafe { step.begin(os, map) } {
                self.begun.set(to);
                return Ok(());
            }
        }
        Err(Short::OfMemory)
    }

    /// Commits chunks up to index `end` at least.
    fn commit<O: Os>(&self, os: &O, map: &PageMap, _: &UnderLock, end: usize) -> Result<(), Short> {
        if end <= self.committed() {
            return Ok(());
        }
        // Before its first step it was reserved just now, with a length that fits.
        let grows = self.committed() > self.first.get();
        if grows && self.is_long() && !self.released.get() && is_pressed(os) {
            return Err(Short::OfRoom);
        }
        let fits = |step: &Step| step.to >= end;
        let exact = Some(Step { to: end, ..self.step_from_here() });
        let long = self.step(os, end);
        if end > self.end.get() {
            // The arena has just ended before, because of a limit, which may be raised before this commits.
            return Err(Short::OfRoom);
        }
        let steps = long.filter(fits).into_iter().chain(exact).map(|step| self.whole_pool_pages(os, step));
        for step in steps {
            // SAFETY: the step lies in the arena, the caller holds the lock, and nothing of the step is in use.
            match unsafe { if step.make(os, map) { self.fill_from_pool(os, &step) } else { Err(Short::OfMemory) } } {
                // Relaxed: a hint.
                Err(Short::OfMemory) => self.scarce.store(true, Ordering::Relaxed),
                done => return done.map(|()| self.note_step(&step)),
            }
        }
        Err(Short::OfMemory)
    }

    /// The step up to the next border of pages of the pool, if memory comes from there.
    fn whole_pool_pages<O: Os>(&self, os: &O, step: Step) -> Step {
        let to = os.pool_page().map_or(step.to, |page| step.to.next_multiple_of(page >> CHUNK_SHIFT));
        Step { to: to.min(self.end.get()), ..step }
    }

    /// Takes the memory of a step from the pool. An error if the pool is used up and ordinary memory is not allowed, or
    /// if the addresses are lost.
    ///
    /// # Safety
    /// The step must be made, and nothing of it be in use.
    unsafe fn fill_from_pool<O: Os>(&self, os: &O, step: &Step) -> Result<(), Short> {
        let Some(page) = os.pool_page().map(|bytes| bytes >> CHUNK_SHIFT) else { return Ok(()) };
        let (from, to) = (step.from.next_multiple_of(page), step.to / page * page);
        if from >= to {
            return Ok(());
        }
        let start = at(self.base() + (from << CHUNK_SHIFT));
        // SAFETY: the caller passes a step of this arena that nothing uses.
        match unsafe { os.take_from_pool(start, (to - from) << CHUNK_SHIFT) } {
            // Other code has mapped something there: the arena ends here.
            Moved::Lost => {
                self.end.set(self.committed());
                self.released.set(true);
                Err(Short::OfRoom)
            }
            Moved::Not if os.pool_page().is_some() => Err(Short::OfMemory),
            Moved::Not | Moved::Done => Ok(()),
        }
    }

    /// The next commit step: to index `end`, or further; `None` if the whole arena is committed.
    fn step<O: Os>(&self, os: &O, end: usize) -> Option<Step> {
        let committed = self.committed();
        let most = if os.pool_page().is_some() { commit::POOL_STEP } else { usize::MAX };
        let limit = if committed > self.first.get() { commit::data_limit(os) } else { None };
        let limited = limit.map_or(most, |limit| {
            self.end_where_limited(os, limit);
            commit::limited_step(limit)
        });
        let step = commit::step(committed - self.first.get()).min(most).min(limited);
        let to = end.max(committed + step).min(self.end.get());
        (to > committed).then(|| Step { to, ..self.step_from_here() })
    }

    fn step_from_here(&self) -> Step {
        let committed = self.committed();
        let fresh = committed == self.first.get();
        Step { base: self.base(), chunks: self.chunks(), fresh, from: committed, to: committed }
    }

    /// Makes the chunks from `index` on chunks that were never used and are not committed.
    pub(crate) fn end_at(&self, index: usize) {
        self.frontier.set(index);
        self.begun.set(index.min(self.begun.get()));
        // Release: as in `note_step`. A thread that reads the old value finds the record of a chunk without a kind.
        self.committed.store(index, Ordering::Release);
    }

    /// Records that a step was made.
    fn note_step(&self, step: &Step) {
        // Release pairs with the Acquire of `committed`.
        self.committed.store(step.to, Ordering::Release);
    }

    /// Index of the first chunk that is not committed. It changes under the lock of the ranges.
    pub(crate) fn committed(&self) -> usize {
        // Acquire pairs with the Release in `note_step`: the step was made before.
        self.committed.load(Ordering::Acquire)
    }

    /// Takes `n` chunks at the frontier if `record` is the chunk at the frontier.
    fn extend_at<O: Os>(&self, os: &O, map: &PageMap, lock: &UnderLock, record: Record, n: usize) -> bool {
        let index = (record.address() - self.base()) / RECORD_BYTES;
        if index != self.frontier.get() || index + n > self.end.get() {
            return false;
        }
        if self.ready(os, map, lock, index + n).is_err() {
            return false;
        }
        self.frontier.set(self.frontier.get() + n);
        true
    }
}
