//! The purger: gives free memory back to the system when it was not used again for a while.
//!
//! It goes through the ages of all chunks (`age.rs`), takes what is due out of the free ranges, a batch at a time, gives
//! that back without holding any lock that an allocating thread could wait for, and makes it free again, now clean.
//! Memory on its way is never more than a batch.
//!
//! Who is the purger: a helper thread, which is started when enough waits and ends when nothing does (`helper.rs`,
//! `helping.rs`); where there can be none, the threads that free memory, a small batch each time
//! (`INLINE_BYTES`). A program of which little free memory waits (`START_CHUNKS`) has neither.
//!
//! Cost: a tick looks at one byte for each chunk in use. The lock of the ranges is held for some microseconds at a time,
//! whatever the bytes.

use crate::arena::Arenas;
use crate::batch::{BATCH_BYTES, Batch, Due, Keep, Sent, Walk, Work};
use crate::chunk::{Chunk, Kind};
use crate::os::Run;
use crate::policy::Purge;
use crate::pressure::FRESH_CHUNKS;
use crate::range::Ranges;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Locked, Ordering};
use crate::{Allocator, CHUNK, CHUNK_SHIFT, Heap, Os, age, tables};

/// Free memory waits for so many ticks: what was freed just before one waits a tick less than the delay, at most.
pub(crate) const DELAY_TICKS: u8 = 5;
/// So much has to wait before a purger is asked for. The simulation has little memory, so its limits are lower, here and
/// below.
pub(crate) const START_CHUNKS: usize = if cfg!(neap_sim) { 2 } else { (1 << 20) / CHUNK };
/// So many slabs have to come to wait.
const START_SLABS: usize = if cfg!(neap_sim) { 4 } else { 64 };
/// So much the caches and shelves of all threads may hold before they are looked at: more than those of three busy
/// threads.
const MOST_CACHED: usize = if cfg!(neap_sim) { 256 << 10 } else { 16 << 20 };
/// Most bytes that a thread purges for others, where no helper can: some 100 us.
const INLINE_BYTES: usize = if cfg!(neap_sim) { 256 << 10 } else { 2 << 20 };
/// Chunks that are looked at under one hold of the lock, and runs that are taken or given back: some microseconds, as
/// long as a thread that wants the lock spins.
const LOOK: usize = if cfg!(neap_sim) { 16 } else { 1024 };
const HOLD_RUNS: usize = if cfg!(neap_sim) { 2 } else { 8 };
/// How long the lock is left alone after that, in spins, so that others get it.
const LEAVE: usize = if cfg!(neap_sim) { 1 } else { 16 };
/// Ticks without anything to do until the purger ends.
const IDLE_TICKS: u32 = if cfg!(neap_sim) { 1 } else { 5 };
/// Ticks after which holes are tried again that were refused.
const HOLES_AGAIN: u64 = 64;
/// Ticks after which a helper is asked for again, where there could be none.
pub(crate) const RETRY_TICKS: u32 = 10;
/// Ticks are at least so many milliseconds apart.
const SHORTEST_TICK: u32 = 10;
/// A note to look at the memory limit: much memory was taken that was clean, or much more waits.
pub(crate) const LIMIT: u8 = 1;
/// A note to look at the side tables: much was freed that does not wait for a purger.
const TABLES: u8 = 2;
/// A note that a nested call left something to do, see `nested.rs`.
const DEFERRED: u8 = 4;

/// The purger's state, readable without a lock.
#[derive(Debug)]
pub struct Purger {
    /// The present epoch, see `age.rs`.
    epoch: AtomicU8,
    /// A purger was asked for since nothing waited: copied to the child of a fork, for which it is all that is known of
    /// the parent's.
    pub(crate) asked: AtomicBool,
    /// Clock of the last tick.
    pub(crate) last: AtomicU64,
    /// Ticks so far.
    ticks: AtomicU64,
    /// More waits than may: the helper was woken before its time.
    pub(crate) flood: AtomicBool,
    /// Slabs that came to wait so far.
    slabs: AtomicUsize,
    /// Bytes that the caches and shelves of all heaps may hold, without what each cache may from the beginning.
    cached: AtomicUsize,
    /// Bytes given back so far.
    pub(crate) purged: AtomicU64,
    /// [`Allocator::settle`] has something to do: memory waits and nobody is the purger.
    wanted: AtomicBool,
    /// Most bytes that may wait, as last looked up.
    pub(crate) most: AtomicUsize,
    /// What else it has to do: [`LIMIT`], [`TABLES`], [`DEFERRED`].
    pub(crate) notes: AtomicU8,
    /// Chunks that waited when the limit was last looked at, and what was left of it then, in bytes; 0: not known.
    looked: AtomicUsize,
    pub(crate) room: AtomicUsize,
    /// Clock from which on holes need not wait for their time where memory is short.
    pub(crate) sweep_from: AtomicU64,
    /// Ticks in a row that found nothing; where there can be no helper, ticks since one was asked for.
    pub(crate) idle: AtomicU32,
    /// All holes that were due in some tick were refused: they are left alone for a while.
    refused: AtomicBool,
    /// Ranges that were refused are tried again: by the next helper, once, as what locked them may be over.
    pub(crate) again: AtomicBool,
    /// OS pages of holes that were used again, as of the last tick.
    pub(crate) reused: AtomicU64,
    /// How long the program had run at the last tick, in microseconds, and idle ticks in a row.
    pub(crate) ran: AtomicU64,
    pub(crate) quiet: AtomicU32,
    /// Held while memory is on its way to the system. Taken before all other locks; fork waits for it, so that
    /// nothing is on its way in the child.
    pub(crate) batch: Locked<Work>,
}

impl Purger {
    /// Nobody is the purger.
    pub const fn new() -> Self {
        Purger {
            epoch: AtomicU8::new(age::FIRST),
            asked: AtomicBool::new(false),
            last: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            flood: AtomicBool::new(false),
            slabs: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            purged: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            most: AtomicUsize::new(usize::MAX),
            notes: AtomicU8::new(0),
            looked: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            sweep_from: AtomicU64::new(0),
            idle: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            again: AtomicBool::new(false),
            reused: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            quiet: AtomicU32::new(0),
            batch: Locked::new(Work::new()),
        }
    }

    /// The present epoch: the age of what is freed now.
    #[inline]
    pub fn epoch(&self) -> u8 {
        // Relaxed: memory that gets an age that is one too old or too young is purged a tick earlier or later.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Holes that were due were refused. Relaxed, at each use: one thread at a time is the purger.
    pub(crate) fn note_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Holes that were refused are tried again.
    pub(crate) fn forget_refused(&self) {
        self.refused.store(false, Ordering::Relaxed);
    }

    /// Ticks so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// What came to wait, other than chunks: slabs so far, and whether caches may hold much.
    pub(crate) fn came(&self) -> (usize, bool) {
        (self.slabs.load(Ordering::SeqCst), self.cached.load(Ordering::SeqCst) >= MOST_CACHED)
    }

    /// Much was freed that does not wait for a purger.
    pub(crate) fn note_tables(&self) {
        self.notes.fetch_or(TABLES, Ordering::Relaxed);
    }

    /// Whether the next slow path does what nested calls left. For tests.
    pub(crate) fn is_drained_later(&self) -> bool {
        self.notes.load(Ordering::Relaxed) & DEFERRED != 0
    }

    /// A nested call left something to do.
    pub(crate) fn note_deferred(&self) {
        // Release pairs with the Acquire of `settle_notes`: who takes the note sees what it is about.
        self.notes.fetch_or(DEFERRED, Ordering::Release);
    }
}

impl Default for Purger {
    fn default() -> Self {
        Self::new()
    }
}

impl<O: Os> Allocator<O> {
    /// Gives all free memory in dirty ranges back to the system, at once; returns the bytes.
    #[cold]
    pub fn purge(&self) -> usize {
        self.purge_with(Heap::none())
    }

    /// [`Allocator::purge`] by a thread in a call that uses its heap `mine`, whose caches go as well.
    #[cold]
    pub fn purge_with(&self, mine: *mut Heap) -> usize {
        self.drain();
        let due = Due { lazy: true, ..self.due(0, BATCH_BYTES) };
        self.with_batch(|_| self.empty_caches(true, mine));
        let bytes = self.purge_due(mine, due, &mut Walk::new(), usize::MAX);
        let annexed = self.with_batch(|work| {
            self.purge_tables();
            self.purge_annex(work, None)
        });
        self.settle();
        self.publish();
        bytes + annexed
    }

    /// [`Allocator::tick`], of which `None` says that the helper has resigned, and has to leave.
    #[cold]
    pub(crate) fn round(&self) -> Option<u32> {
        let Some(_flight) = self.fly(core::ptr::null()) else { return Some(self.tick_length()) };
        let next = self.purge_old();
        if next.is_some() {
            // The caches of idle threads may have left notes.
            self.settle();
        }
        self.publish();
        next
    }

    #[cold]
    fn purge_old(&self) -> Option<u32> {
        // 0 before the first use, when nothing can wait.
        if self.page_size() == 0 || self.policy.purge() == Purge::Never {
            self.os.helper().resign();
            return None;
        }
        self.drain();
        // A helper that was woken before its time looks at what is urgent; time has not gone by for the rest.
        let in_time = self.time_is_up();
        if in_time {
            self.forget_old_demand();
            self.next_epoch();
            self.with_batch(|work| self.purge_annex(work, None));
            if self.purger.ticks.load(Ordering::Relaxed).is_multiple_of(HOLES_AGAIN) {
                self.purger.refused.store(false, Ordering::Relaxed);
            }
        }
        self.purger.flood.store(false, Ordering::Relaxed);
        let before = self.purger.came();
        let mut walk = Walk::new();
        let cached = in_time && self.with_batch(|_| self.empty_caches(false, Heap::none()));
        let ticks = self.urgency();
        let slabs = !self.purger.refused.load(Ordering::Relaxed);
        // Relaxed: one thread calls this. Of a lazy purge the system was told; nothing was refused there.
        let lazy = self.purger.again.swap(false, Ordering::Relaxed) && self.policy.purge() != Purge::Lazy;
        let due = Due { keep: self.keep(ticks, in_time), slabs, lazy, ..self.due(ticks, BATCH_BYTES) };
        let begun = self.os.clock();
        let bytes = self.purge_due(Heap::none(), due, &mut walk, usize::MAX);
        if ticks == 0 {
            self.note_sweep(begun);
        }
        if walk.punched > 0 {
            self.purger.refused.store(false, Ordering::Relaxed);
        }
        self.ranges.with(&self.os, |r| {
            r.demand.purged(walk.purged);
            r.holes.purged(walk.punched / self.page_size());
            r.holes.still_waits(walk.slabs);
        });
        let rests = bytes == 0 && walk.waiting == 0;
        let freed = self.ranges.with(&self.os, |r| r.freed_chunks);
        if freed >= if rests { tables::FREED_AT_REST } else { tables::FREED } {
            self.with_batch(|_| self.purge_tables());
        }
        // A fork cut it short: the next tick looks again.
        if !rests || cached || self.is_forking() {
            self.purger.idle.store(0, Ordering::Relaxed);
            return Some(self.tick_length());
        }
        if !in_time {
            // The caches were not looked at. That is no sign of work: with short ticks and a coarse clock it comes often.
            return Some(self.tick_length());
        }
        // Relaxed: one thread calls this.
        if self.purger.idle.fetch_add(1, Ordering::Relaxed) < IDLE_TICKS || !self.resign(before) {
            return Some(self.tick_length());
        }
        None
    }

    /// Milliseconds from one tick to the next.
    pub fn tick_length(&self) -> u32 {
        (self.policy.delay() / u32::from(DELAY_TICKS)).max(SHORTEST_TICK)
    }

    /// Whether a tick has passed since the epoch last went on, or nearly: clocks are coarse.
    pub(crate) fn time_is_up(&self) -> bool {
        let passed = self.os.clock().saturating_sub(self.purger.last.load(Ordering::Relaxed));
        passed >= u64::from(self.tick_length() - self.tick_length() / 8)
    }

    pub(crate) fn next_epoch(&self) {
        self.purger.epoch.store(age::next(self.purger.epoch()), Ordering::Relaxed);
        self.purger.ticks.fetch_add(1, Ordering::Relaxed);
        self.purger.last.store(self.os.clock(), Ordering::Relaxed);
    }

    pub(crate) fn due(&self, ticks: u8, bytes: usize) -> Due {
        let slabs = bytes == BATCH_BYTES;
        Due { now: self.purger.epoch(), ticks, lazy: false, slabs, ranges: true, keep: Keep::default(), bytes }
    }

    /// Memory was freed, and so many chunks wait now. The lock of the ranges is held.
    #[inline]
    pub(crate) fn note_waiting(&self, chunks: usize) {
        if chunks < START_CHUNKS {
            return;
        }
        // Relaxed, here and below: the lock orders it.
        let looked = self.purger.looked.load(Ordering::Relaxed);
        if chunks >= looked + FRESH_CHUNKS {
            self.purger.looked.store(chunks, Ordering::Relaxed);
            self.note_limit(chunks);
        } else if chunks + FRESH_CHUNKS < looked {
            self.purger.looked.store(chunks, Ordering::Relaxed);
        }
        // `has_helper` is sequentially consistent: see `helper.rs`.
        // Relaxed: a look at a limit of before wakes the helper once too often, or lets memory wait for the next tick.
        if !self.has_helper() || chunks * CHUNK > self.purger.most.load(Ordering::Relaxed) {
            self.want();
        }
    }

    /// Notes that somebody has to be the purger, or to be woken.
    pub(crate) fn want(&self) {
        if self.policy.purge() != Purge::Never {
            // Release pairs with the Acquire in `settle_notes`: whoever takes the note sees who the purger is at least as
            // late as here.
            self.purger.wanted.store(true, Ordering::Release);
        }
    }

    /// Does what was noted while locks were held. The last thing that a slow path does, under no lock.
    #[inline]
    pub fn settle(&self) {
        // Relaxed, here and below: a note that is seen late is seen by the next slow path.
        let noted = self.purger.wanted.load(Ordering::Relaxed) || self.purger.notes.load(Ordering::Relaxed) != 0;
        if noted || self.publisher.has_news() || self.arenas.is_low() {
            self.settle_notes();
        }
    }

    #[cold]
    fn settle_notes(&self) {
        if self.arenas.is_low() {
            self.commit_ahead();
        }
        // Acquire: see `note_deferred`.
        let notes = self.purger.notes.swap(0, Ordering::Acquire);
        if notes & DEFERRED != 0 {
            self.drain();
        }
        if notes & LIMIT != 0 {
            self.mind_limit();
        }
        if notes & TABLES != 0 {
            self.with_batch(|_| self.purge_tables());
        }
        // Acquire: see `note_waiting`.
        if self.purger.wanted.swap(false, Ordering::Acquire) && self.policy.purge() != Purge::Never {
            self.poke();
        }
        self.tell_news();
    }

    /// The share of a thread that frees memory, where there can be no helper: all of it where more waits than may.
    pub(crate) fn purge_inline(&self) {
        let ticks = self.urgency();
        let batches = if ticks == 0 { usize::MAX } else { 1 };
        self.purge_due(Heap::none(), self.due(ticks, INLINE_BYTES), &mut Walk::new(), batches);
    }

    /// Purges what is due, from the place of `walk` on, in at most `batches` batches; returns the bytes.
    #[cold]
    pub(crate) fn purge_due(&self, mine: *mut Heap, due: Due, walk: &mut Walk, batches: usize) -> usize {
        let (mut bytes, mut done) = (0, 0);
        loop {
            let more = self.with_batch(|work| {
                let more = self.fill(walk, due, &mut work.batch);
                if work.batch.count > 0 {
                    bytes += self.send(&work.batch, due.lazy);
                    done += 1;
                }
                if work.batch.slab_count > 0 {
                    let punched = self.punch(mine, work, None);
                    walk.punched += punched;
                    bytes += punched;
                }
                more
            });
            if !more || done == batches {
                return bytes;
            }
        }
    }

    /// Fills the batch with what is due, from the place of `walk` on. True if there is more to look at.
    #[cold]
    pub(crate) fn fill(&self, walk: &mut Walk, due: Due, batch: &mut Batch) -> bool {
        batch.clear();
        loop {
            // SAFETY: `with` holds the lock.
            let more = self.ranges.with(&self.os, |r| unsafe { self.gather(r, walk, due, batch) });
            Self::leave_lock();
            if !more || batch.is_full(due) {
                return more;
            }
        }
    }

    /// Gives a batch back to the system, and makes it free again; returns the bytes that went.
    #[cold]
    pub(crate) fn send(&self, batch: &Batch, now: bool) -> usize {
        let lazily = !now && self.policy.purge() == Purge::Lazy;
        // SAFETY: the runs were taken out of free ranges, so they are nobody's.
        let done = unsafe { self.purge_each(batch.runs(), lazily) };
        // What was not tried waits once more; what was refused would be refused again.
        let age = |i| match (done.went(i), done.was_refused(i)) {
            (true, _) if !lazily => age::NONE,
            (false, false) => self.purger.epoch(),
            _ => age::LAZY,
        };
        for (n, runs) in batch.runs().chunks(HOLD_RUNS).enumerate() {
            if self.is_stranded() {
                break;
            }
            // SAFETY: `with` holds the lock; the runs are ours.
            self.ranges.with(&self.os, |r| unsafe {
                for (i, run) in runs.iter().enumerate() {
                    let since = age(n * HOLD_RUNS + i);
                    r.give(&self.arenas, Arenas::record(run.start), run.len >> CHUNK_SHIFT, since);
                }
                if done.tried < batch.count {
                    // It may not have waited before (`Due::lazy`), so that there is no purger.
                    self.note_waiting(r.waiting());
                }
            });
            Self::leave_lock();
        }
        self.note_purged(done.bytes);
        done.bytes
    }

    /// Gives runs back, also those behind one that the system refuses, unless it refuses all.
    ///
    /// # Safety
    /// As [`Os::purge_runs`], and [`Os::purge_lazily`] if `lazily`.
    pub(crate) unsafe fn purge_each(&self, runs: &[Run], lazily: bool) -> Sent {
        let mut sent = Sent::default();
        while sent.tried < runs.len() && sent.goes_on() {
            let left = &runs[sent.tried..];
            // SAFETY: as the caller promises.
            let done = unsafe {
                if lazily {
                    left.iter().take_while(|r| self.os.purge_lazily(r.start, r.len)).count()
                } else {
                    self.os.purge_runs(left)
                }
            };
            sent.add(&left[..done], done < left.len());
        }
        sent
    }

    /// Leaves the lock of the ranges to those who wait for it.
    fn leave_lock() {
        (0..LEAVE).for_each(|_| crate::sync::spin_loop());
    }

    /// Counts memory that went back.
    pub(crate) fn note_purged(&self, bytes: usize) {
        self.purger.purged.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Memory was put aside for the helper: it shall not wait for its next tick.
    pub(crate) fn note_dropped(&self) {
        self.wake_helper();
    }

    /// A slab has free memory that waits, and had none before.
    #[inline]
    pub(crate) fn note_slab(&self) {
        // SeqCst, here and in `has_helper`: see `helper.rs`.
        let slabs = self.purger.slabs.fetch_add(1, Ordering::SeqCst);
        if slabs % START_SLABS == START_SLABS - 1 && !self.has_helper() {
            self.want();
        }
    }

    /// A cache or a shelf may hold so many bytes more than before. Where all caches together may hold much, a purger has to
    /// look what they do hold once their threads are idle, as free has its fast path until they are full.
    #[cold]
    pub(crate) fn note_room(&self, bytes: usize) {
        // SeqCst: see `helper.rs`.
        let room = self.purger.cached.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if room >= MOST_CACHED && !self.has_helper() {
            self.want();
        }
    }

    /// Caches may hold so many bytes less.
    pub(crate) fn forget_room(&self, bytes: usize) {
        self.purger.cached.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes some of what is due out of the free ranges, from the place of `walk` on. True if there is more to look at.
    ///
    /// # Safety
    /// The lock of the ranges must be held.
    #[cold]
    pub(crate) unsafe fn gather(&self, r: &mut Ranges, walk: &mut Walk, due: Due, batch: &mut Batch) -> bool {
        if self.is_stranded() {
            // A handler interrupted the purge and forked: another thread may have left the ranges half changed.
            return false;
        }
        while due.ranges && batch.count < Batch::RUNS / 2 && batch.bytes < due.bytes {
            // SAFETY: the lock is held; what was put aside is the purger's.
            let dropped = unsafe { r.take_dropped((due.bytes - batch.bytes).div_ceil(CHUNK)) };
            let Some((c, len)) = dropped else { break };
            batch.push(Run { start: Arenas::chunk(c), len: len * CHUNK });
        }
        let mut left = LOOK;
        while let Some((first, used)) = self.arenas.used(walk.arena) {
            while walk.index < used {
                if left == 0 || batch.is_full(due) {
                    return true;
                }
                let had = batch.count;
                // SAFETY: the lock is held, and the index lies in the used part of the arena.
                let step = unsafe { self.look(r, first.add(walk.index), used - walk.index, walk, due, batch) };
                walk.index += step;
                left = left.saturating_sub(step.max((batch.count - had) * LOOK / HOLD_RUNS));
            }
            (walk.arena, walk.index) = (walk.arena + 1, 0);
        }
        false
    }

    /// Looks at the chunk `c` and those of its kind behind it, of which the arena has `most`; returns how many.
    #[cold]
    unsafe fn look(
        &self,
        r: &mut Ranges,
        c: *mut Chunk,
        most: usize,
        walk: &mut Walk,
        due: Due,
        batch: &mut Batch,
    ) -> usize {
        // SAFETY: the lock is held; ages of slabs are written by their owners, so they are read as atomics.
        unsafe {
            let ages = self.arenas.ages(c).cast::<AtomicU8>();
            // Acquire pairs with the Release of `slab::wait`: who sees a slab's age sees that it is a slab.
            let age = |i: usize| (*ages.add(i)).load(Ordering::Acquire);
            if age(0) == age::NONE {
                return (1..most.min(LOOK)).find(|&i| age(i) != age::NONE).unwrap_or(most.min(LOOK));
            }
            if (*c).kind.get() == Kind::SLAB {
                if !due.is(age(0)) {
                    walk.waiting += 1;
                    return 1;
                }
                walk.slabs += 1;
                if walk.slabs <= due.keep.slabs {
                    walk.waiting += 1;
                } else if due.slabs {
                    batch.slabs[batch.slab_count] = (c, Chunk::owner(c));
                    batch.slab_count += 1;
                }
                return 1;
            }
            // Every other chunk that waits lies in a dirty free range.
            let start = walk.start_of(c);
            let from = c.offset_from_unsigned(start);
            let left = (*start).len as usize - from;
            let seen = left.min(LOOK);
            // Ages of free ranges are written under the lock.
            let ages = |i: usize, len: usize| core::slice::from_raw_parts(self.arenas.ages(c.add(i)), len);
            let first = if due.ranges { due.first_of(ages(0, seen)) } else { seen };
            // What the system was told of does not wait.
            let told = |ages: &[u8]| ages.iter().filter(|&&age| age == age::LAZY).count();
            walk.waiting += first - if r.lazy_chunks > 0 { told(ages(0, first)) } else { 0 };
            if first == seen {
                return seen;
            }
            let most = (due.bytes - batch.bytes).div_ceil(CHUNK).min(left - first).min(r.beyond(due.keep.chunks));
            if most == 0 {
                walk.waiting += seen - first;
                return seen;
            }
            let len = ages(first, most).iter().take_while(|&&age| due.is(age)).count();
            r.take_out(&self.arenas, start, from + first, from + first + len);
            walk.purged += len;
            batch.push(Run { start: Arenas::chunk(c.add(first)), len: len * CHUNK });
            first + len
        }
    }
}
