//! The purger: gives free memory back to the system if it was not used again for a while.
//!
//! It goes through the ages of all chunks (`age.rs`), takes what is due out of the free ranges, one batch at a time,
//! gives the batch back while it holds no lock that an allocating thread could wait for, and returns it to the free
//! ranges, now clean. Never more than a batch is on its way.
//!
//! The purger is a helper thread, which is started when enough memory waits and ends when none does (`helper.rs`,
//! `helping.rs`). If there can be none, the threads that free memory do its work, a small batch each time
//! (`INLINE_BYTES`). A program of which little free memory waits (`START_CHUNKS`) has neither.
//!
//! Cost: a tick reads one byte for each chunk in use. The lock of the ranges is held for some microseconds at a time,
//! whatever the number of bytes.

use crate::back::Back;
use crate::back::batch::{BATCH_BYTES, BATCH_CUTS, Batch, Due, Keep, Walk};
use crate::back::measure::Held;
use crate::blocks::heap;
use crate::blocks::heap::Mine;
use crate::pages::age;
use crate::pages::chunk::{Kind, Record};
use crate::pages::growth::AREA;
use crate::pages::notes::Came;
use crate::pages::range::Ranges;
use crate::pages::{FREED, tables};
use crate::system::os::Run;
use crate::system::policy::Purge;
use crate::system::sync::Ordering;
use crate::system::time::{Term, passed};
use crate::{CHUNK, CHUNK_SHIFT, Heap, Os};

/// Maximum bytes of a batch that a thread purges where there can be no helper: some 100 us. The simulation has little
/// memory, so its limits are lower, here and below.
const INLINE_BYTES: usize = if cfg!(neap_sim) { 256 << 10 } else { 2 << 20 };
/// Maximum number of huge pages that such a batch has a part of: a millisecond.
const INLINE_CUTS: usize = if cfg!(neap_sim) { 1 } else { 4 };
/// Maximum number of chunks that are looked at under one hold of the lock, and of runs that are taken or given back.
/// Some microseconds: as long as a thread that waits for the lock spins.
const LOOK: usize = if cfg!(neap_sim) { 16 } else { 1024 };
const HOLD_RUNS: usize = if cfg!(neap_sim) { 2 } else { 8 };
/// Number of spins between two holds of the lock, so that other threads get it.
const LEAVE: usize = if cfg!(neap_sim) { 1 } else { 16 };
/// Number of ticks after which refused holes are tried again.
const HOLES_AGAIN: u64 = 64;
/// Number of ticks without work after which the purger ends.
const IDLE_TICKS: u32 = if cfg!(neap_sim) { 1 } else { 5 };

/// What the purger does after a tick.
#[derive(Debug)]
pub(crate) enum Tick {
    /// Another tick.
    Again,
    /// Another tick at once: this one has used up its time.
    Cut,
    /// It ends, unless more has come since.
    Idle(Came),
    /// It ends: nothing is ever purged.
    Off,
}

impl<O: Os> Back<O> {
    /// Gives all free memory back to the system at once, until `go_on`, which is called after each handshake and each
    /// batch, returns false. Returns the bytes. `mine` is the heap that the call uses, whose caches are emptied as well,
    /// or [`Mine::none`].
    #[cold]
    pub(crate) fn purge_all(&self, mine: Mine<'_>, go_on: &mut dyn FnMut() -> bool) -> usize {
        self.drain();
        let due = Due { lazy: true, ..self.due(0, BATCH_BYTES) };
        self.with_batch(|_| self.empty_caches(true, mine, go_on));
        let bytes = self.purge_due(mine, due, &mut Walk::new(), go_on);
        let of_reentrant_calls = self.with_batch(|work| {
            self.purge_tables();
            self.retract();
            self.purge_reentrant(work, None)
        });
        bytes + of_reentrant_calls
    }

    /// One tick: gives back what is due, until `term` is over.
    #[cold]
    pub(crate) fn purge_old(&self, term: Term) -> Tick {
        let mut go_on = || !term.is_over(self.os.clock());
        // 0 before the first use, when no memory can wait.
        if self.page_size() == 0 || self.policy.purge() == Purge::Never {
            return Tick::Off;
        }
        self.drain();
        // If the helper was woken early, it gives back only what is urgent: for ages and other counts of ticks no time
        // has passed.
        let in_time = self.time_is_up();
        if in_time {
            self.forget_old_demand();
            self.next_epoch();
            self.with_batch(|work| self.purge_reentrant(work, None));
            if self.purger.ticks.load(Ordering::Relaxed).is_multiple_of(HOLES_AGAIN) {
                self.purger.set_refused(false);
            }
        }
        self.notes.flood.store(false, Ordering::Relaxed);
        // Read before the checks below: what comes during them is new to `resign`.
        let before = self.notes.came();
        if in_time {
            self.promote();
        }
        let mut walk = Walk::new();
        let cached = in_time && self.with_batch(|_| self.empty_caches(false, Mine::none(), &mut go_on));
        let ticks = self.urgency();
        let slabs = !self.purger.refused.load(Ordering::Relaxed);
        // Relaxed: one thread calls this. Under a lazy policy the age LAZY stands for chunks that were purged lazily,
        // and there is nothing to try again.
        let lazy = self.purger.again.swap(false, Ordering::Relaxed) && self.policy.purge() != Purge::Lazy;
        let due = Due { keep: self.keep(ticks, in_time), slabs, lazy, ..self.due(ticks, BATCH_BYTES) };
        let begun = self.os.clock();
        let bytes = self.purge_due(Mine::none(), due, &mut walk, &mut go_on);
        if ticks == 0 {
            self.note_sweep(begun);
        }
        if walk.punched > 0 {
            self.purger.set_refused(false);
        }
        self.ranges.with(&self.os, |r| {
            r.demand.purged(walk.purged);
            r.holes.purged(walk.punched / self.page_size());
            r.holes.still_waits(walk.slabs);
        });
        let rests = bytes == 0 && walk.waiting == 0;
        let freed = self.ranges.with(&self.os, |r| r.freed_chunks);
        if freed >= if rests { tables::FREED_AT_REST } else { FREED } {
            self.with_batch(|_| self.purge_tables());
        }
        if bytes > 0 {
            self.with_batch(|_| self.retract());
        }
        // A fork may have cut the tick short: the next one goes on.
        if !rests || cached || self.is_forking() || self.purger.promotion.is_due() {
            self.purger.idle.store(0, Ordering::Relaxed);
            return if go_on() { Tick::Again } else { Tick::Cut };
        }
        // If not in time, the caches were not checked. `idle` is not reset then, as that is no sign of work: with short
        // ticks and a coarse clock it is frequent. Relaxed: one thread calls this.
        if in_time && self.purger.idle.fetch_add(1, Ordering::Relaxed) >= IDLE_TICKS {
            return Tick::Idle(before);
        }
        Tick::Again
    }

    /// Whether a tick, or nearly one, has passed since the epoch last advanced: clocks are coarse.
    pub(crate) fn time_is_up(&self) -> bool {
        passed(self.os.clock(), self.purger.last.load(Ordering::Relaxed))
            >= u64::from(self.tick_length() - self.tick_length() / 8)
    }

    /// Advances the epoch, and the clocks of the ticks.
    pub(crate) fn next_epoch(&self) {
        self.epoch.store(age::next(self.epoch()), Ordering::Relaxed);
        self.purger.ticks.fetch_add(1, Ordering::Relaxed);
        self.purger.last.store(self.os.clock(), Ordering::Relaxed);
    }

    /// Returns the criteria for a purge of what has waited for `ticks` epochs, in batches of `bytes`. Holes are
    /// included only if these are batches of full size.
    pub(crate) fn due(&self, ticks: u8, bytes: usize) -> Due {
        let slabs = bytes == BATCH_BYTES;
        let cuts = match self.os.has_huge_pages(false) {
            true if slabs => BATCH_CUTS,
            true => INLINE_CUTS,
            false => usize::MAX,
        };
        Due { now: self.epoch(), ticks, lazy: false, slabs, ranges: true, keep: Keep::default(), bytes, cuts }
    }

    /// Purges the share of a thread that frees memory where there can be no helper: one batch of what is due, or all
    /// that waits if memory is short or more waits than may.
    pub(crate) fn purge_inline(&self) {
        let ticks = self.urgency();
        self.purge_due(Mine::none(), self.due(ticks, INLINE_BYTES), &mut Walk::new(), &mut || ticks == 0);
    }

    /// Purges what is due, from the position of `walk` on, until `go_on`, which is called after each batch, returns
    /// false. Returns the bytes.
    #[cold]
    pub(crate) fn purge_due(
        &self,
        mine: Mine<'_>,
        due: Due,
        walk: &mut Walk,
        go_on: &mut dyn FnMut() -> bool,
    ) -> usize {
        let mut bytes = 0;
        loop {
            let more = self.with_batch(|work| {
                let more = self.fill(walk, due, &mut work.batch);
                if work.batch.count > 0 {
                    bytes += self.send(&work.batch, due.lazy, None);
                }
                if work.batch.slab_count > 0 {
                    let punched = self.punch(mine, work, None);
                    walk.punched += punched;
                    bytes += punched;
                }
                more
            });
            if !more || !go_on() {
                return bytes;
            }
        }
    }

    /// Fills the batch with what is due, from the position of `walk` on. Returns true if there are more chunks to look
    /// at.
    #[cold]
    pub(crate) fn fill(&self, walk: &mut Walk, due: Due, batch: &mut Batch) -> bool {
        batch.clear();
        loop {
            let more = self.ranges.with(&self.os, |r| self.gather(r, walk, due, batch));
            Self::leave_lock();
            if !more || batch.is_full(due) {
                return more;
            }
        }
    }

    /// Gives a batch back to the system, and returns its runs to the free ranges. Returns the bytes given back. `now`:
    /// not lazily, whatever the policy. `held` as in [`Back::release_held`].
    #[cold]
    pub(crate) fn send(&self, batch: &Batch, now: bool, held: Option<Held<'_>>) -> usize {
        let lazily = !now && self.policy.purge() == Purge::Lazy;
        // SAFETY: the runs were taken out of free ranges, so no thread uses them.
        let done = unsafe { self.release_held(batch.runs(), lazily, held) };
        // What was not tried waits again, from now on. What was refused would be refused again, so it does not wait.
        let age = |i| match (done.went(i), done.was_refused(i)) {
            (true, _) if !lazily => age::NONE,
            (false, false) => self.epoch(),
            _ => age::LAZY,
        };
        for (n, runs) in batch.runs().chunks(HOLD_RUNS).enumerate() {
            if self.is_stranded() {
                break;
            }
            self.ranges.with(&self.os, |r| {
                for (i, run) in runs.iter().enumerate() {
                    // SAFETY: runs are chunks of arenas.
                    let c = unsafe { Record::at(run.start) };
                    r.give(&self.arenas, c, run.len >> CHUNK_SHIFT, age(n * HOLD_RUNS + i));
                }
                if done.tried < batch.count {
                    // Lazily purged chunks (`Due::lazy`) did not wait before, so there may be no purger yet.
                    self.note_waiting(r.waiting());
                }
            });
            Self::leave_lock();
        }
        done.bytes
    }

    /// Leaves time for other threads to take the lock of the ranges.
    pub(crate) fn leave_lock() {
        (0..LEAVE).for_each(|_| crate::system::sync::spin_loop());
    }

    /// Takes some of what is due out of the free ranges, from the position of `walk` on. Returns whether there are more
    /// chunks to look at.
    #[cold]
    fn gather(&self, r: &mut Ranges, walk: &mut Walk, due: Due, batch: &mut Batch) -> bool {
        if self.is_stranded() {
            // A handler interrupted the purge and forked; this is the child. Another thread may have left the ranges
            // half changed.
            return false;
        }
        while due.ranges && batch.count < Batch::RUNS / 2 && !batch.is_full(due) {
            let dropped = r.take_dropped((due.bytes - batch.bytes).div_ceil(CHUNK));
            let Some((c, len)) = dropped else { break };
            batch.push(Run { start: c.start(), len: len * CHUNK });
        }
        let mut left = LOOK;
        while let Some((first, used)) = self.arenas.used(r.lock(), walk.arena) {
            while walk.index < used {
                if left == 0 || batch.is_full(due) {
                    return true;
                }
                let had = batch.count;
                let step = self.look(r, first.after(walk.index), used - walk.index, walk, due, batch);
                walk.index += step;
                left = left.saturating_sub(step.max((batch.count - had) * LOOK / HOLD_RUNS));
            }
            (walk.arena, walk.index) = (walk.arena + 1, 0);
        }
        false
    }

    /// Looks at the chunk of `c` and at those of the same kind after it, of which the arena has `most`. Returns the
    /// number of chunks looked at.
    #[cold]
    fn look(&self, r: &mut Ranges, c: Record, most: usize, walk: &mut Walk, due: Due, batch: &mut Batch) -> usize {
        // Acquire pairs with the Release of `OwnSlab::set_age`: a thread that sees a slab's age sees that it is a slab.
        let age = |i: usize| age::of(&self.arenas, c.after(i)).load(Ordering::Acquire);
        if age(0) == age::NONE {
            return (1..most.min(LOOK)).find(|&i| age(i) != age::NONE).unwrap_or(most.min(LOOK));
        }
        if c.kind() == Kind::SLAB {
            if !due.is(age(0)) {
                walk.waiting += 1;
                return 1;
            }
            walk.slabs += 1;
            if walk.slabs <= due.keep.slabs {
                walk.waiting += 1;
            } else if due.slabs {
                // SAFETY: a slab's owner is a heap. A slab that is about to be released may have none.
                let owner = unsafe { Heap::at(heap::owner(c)) };
                batch.push_slab(owner.map(|owner| (c, owner)));
            }
            return 1;
        }
        // All other waiting chunks lie in dirty free ranges.
        let (start, len) = walk.range_of(&self.arenas, r, c);
        let from = c.distance(start);
        let left = len - from;
        let seen = left.min(LOOK);
        let ages = |i: usize, len: usize| age::ages(&self.arenas, r.lock(), c.after(i), len);
        let first = if due.ranges { due.first_of(ages(0, seen)) } else { seen };
        // Chunks with the age LAZY do not wait.
        let lazy = |ages: &[u8]| ages.iter().filter(|&&age| age == age::LAZY).count();
        walk.waiting += first - if r.lazy_chunks > 0 { lazy(ages(0, first)) } else { 0 };
        if first == seen {
            return seen;
        }
        let at = c.after(first);
        let room = (due.bytes - batch.bytes).div_ceil(CHUNK);
        // A part of a huge page that stays would cost a split, or a page table that keeps huge pages away from there.
        let most = if due.bytes == BATCH_BYTES { to_border(at, room) } else { room };
        let len = ages(first, most.min(left - first)).iter().take_while(|&&age| due.is(age)).count();
        let may_go = r.beyond(due.keep.chunks);
        let len = if len > may_go { to_border(at, may_go + 1).saturating_sub(AREA) } else { len };
        if len == 0 {
            walk.waiting += seen - first;
            return seen;
        }
        r.take_out(&self.arenas, start, from + first, from + first + len);
        walk.purged += len;
        batch.push(Run { start: at.start(), len: len * CHUNK });
        first + len
    }
}

/// The least number of chunks from `c` on that is at least `len` and ends where a huge page does.
fn to_border(c: Record, len: usize) -> usize {
    let index = c.start().addr() / CHUNK;
    (index + len).next_multiple_of(AREA) - index
}
