//! How the allocator uses its helper (`helper.rs`): when it asks for one, what a helper does all its life, and who gives
//! memory back where there is none.

use crate::batch::{BATCH_BYTES, Walk};
use crate::helper::{Answer, Leave, Who};
use crate::os::Onward;
use crate::policy::Purge;
use crate::purge::{RETRY_TICKS, START_CHUNKS};
use crate::sync::Ordering;
use crate::{Allocator, CHUNK, Heap, Os};

/// Chunks that have to wait in the child of a fork before it gets a purger at once: most children end soon, or call exec.
const FORKED_CHUNKS: usize = if cfg!(neap_sim) { 4 } else { (16 << 20) / CHUNK };
/// Chunks that have to wait before a thread gives them back that ends, or that ends the helper for good.
const END_CHUNKS: usize = if cfg!(neap_sim) { 4 } else { (16 << 20) / CHUNK };
/// Milliseconds from one look at what the helper may do ([`Os::onward`]) to the next, at most.
const LOOK_MS: u32 = 100;
/// Milliseconds that a call which wants no helper waits for the end of one: longer than its longest system call.
const PATIENCE_MS: u32 = 5000;
/// The same in a handler that interrupted another call.
const NESTED_PATIENCE_MS: u32 = 50;
/// How often a helper that has to end gives back what waits, where the program goes on freeing memory.
const FINISH_ROUNDS: usize = 8;

impl<O: Os> Allocator<O> {
    /// Whether a helper thread will see to what is freed now.
    #[cfg_attr(neap_sim, track_caller)]
    pub(crate) fn has_helper(&self) -> bool {
        self.os.helper().who() == Who::Helper
    }

    /// Whether a helper thread or the threads that free memory see to what waits. For tests.
    pub(crate) fn is_purged(&self) -> bool {
        self.os.helper().who() != Who::Nobody
    }

    /// Whether a shelf that has come to `chunks` is to be noted: where there is no purger, as soon as that is enough for one,
    /// and always where the threads that free memory do its work.
    #[inline(always)]
    pub(crate) fn minds(&self, chunks: u32) -> bool {
        // A purger that comes or goes meanwhile looks at all shelves, or is asked for by the next block.
        match self.os.helper().who_roughly() {
            Who::Helper => false,
            Who::Nobody => chunks as usize >= START_CHUNKS,
            Who::Inline => true,
        }
    }

    /// Asks for a helper, by which all that waits now is seen to, or where there can be none by the threads that free
    /// memory. `again`: also where none could be started before.
    #[cold]
    pub(crate) fn ask_for_helper(&self, again: bool) {
        self.purger.idle.store(0, Ordering::Relaxed);
        self.purger.forget_refused();
        // Relaxed: a hint for children.
        self.purger.asked.store(true, Ordering::Relaxed);
        if self.os.settle_helper().ask(&self.os, again) == Answer::Elsewhere {
            self.want();
        }
    }

    /// Whether the calling process may end at any time and leave the address space to its owner: it does no more than it
    /// has to.
    pub(crate) fn is_guest(&self) -> bool {
        self.os.settle_helper().is_owner(self.os.process()) == Some(false)
    }

    /// Makes sure that there is a purger, and that it is awake where more waits than may.
    #[cold]
    pub(crate) fn poke(&self) {
        match self.os.helper().who() {
            Who::Helper => self.wake_helper(),
            Who::Nobody => self.ask_for_helper(false),
            Who::Inline if self.is_guest() => self.want(),
            Who::Inline => {
                if self.time_is_up() {
                    self.next_epoch();
                    self.publisher.note();
                    // What was in the way may be gone: a limit, too many threads, a call that wants no helper.
                    if self.purger.idle.fetch_add(1, Ordering::Relaxed) >= RETRY_TICKS {
                        return self.ask_for_helper(true);
                    }
                }
                self.purge_inline();
            }
        }
    }

    /// A thread has given its heap up. Where the threads that free memory are the purger, those that are left may free none:
    /// so a thread does its share when it ends, and gives back all that waits where at most one other has a heap.
    #[cold]
    pub fn thread_ended(&self) {
        if self.os.helper().who_roughly() != Who::Inline || !self.much_waits() {
            return;
        }
        // Relaxed, twice: of two threads that end at the same time the later one counts both, as each has counted itself.
        let heaps = self.publisher.heaps.load(Ordering::Relaxed);
        // Other threads may make heaps and leave them between the two looks.
        let owned = heaps.saturating_sub(self.orphans.load(Ordering::Relaxed));
        if owned > 1 {
            return self.poke();
        }
        // All of it, however soon after the last time: there may be no other call. A program whose threads come and go one
        // after the other, with more than `END_CHUNKS` each time, pays 0.3 to 0.7 ms for each MiB, as for mappings.
        self.purge_all_due();
    }

    /// There will be no helper from now on, and the program may be idle: what waits goes at once, if it is much.
    #[cold]
    pub fn before_inline(&self) {
        if self.much_waits() {
            self.purge_all_due();
        }
    }

    fn much_waits(&self) -> bool {
        self.policy.purge() != Purge::Never
            && !self.is_guest()
            && self.ranges.with(&self.os, |r| r.waiting()) >= END_CHUNKS
    }

    fn purge_all_due(&self) {
        self.purge_due(Heap::none(), self.due(0, BATCH_BYTES), &mut Walk::new(), usize::MAX);
    }

    /// Has the helper look before its time, once until it has.
    pub(crate) fn wake_helper(&self) {
        if !self.purger.flood.swap(true, Ordering::Relaxed) {
            self.os.helper().wake_up(&self.os);
        }
    }

    /// What waits may have to go earlier than the helper thinks: it looks, or one is asked for if enough waits. Under no
    /// lock.
    #[cold]
    pub fn resume_purging(&self) {
        if self.is_purged() {
            self.os.helper().wake_up(&self.os);
        } else if self.policy.purge() != Purge::Never && self.ranges.with(&self.os, |r| r.waiting()) >= START_CHUNKS {
            self.poke();
        }
    }

    /// In the child of a fork, for whose parent a purger was asked: what waited there waits here too, and the parent gives
    /// back only its own. So the next slow path asks for a helper; where much waits, this does, as the child may be idle
    /// from now on.
    #[cold]
    pub(crate) fn purge_in_child(&self) {
        if self.policy.purge() != Purge::Never && self.ranges.with(&self.os, |r| r.waiting()) >= FORKED_CHUNKS {
            self.poke();
        } else {
            self.want();
        }
    }

    /// Runs `f` while there is no helper: it is ended first, and none is started meanwhile. Takes no lock. Where the
    /// helper does not end in `PATIENCE_MS`, `f` runs all the same. `ended` runs between the two, in a process that may have a
    /// helper.
    pub fn without_helper<R>(&self, ended: impl FnOnce(), f: impl FnOnce() -> R) -> R {
        self.keep_away(PATIENCE_MS, ended, f)
    }

    /// Runs `f`, which makes a child without the C library's handlers, while there is no helper: it would leave its locks
    /// behind in the child, which may count on a process of one thread. Takes no lock. `nested`: the call is a handler's
    /// that interrupted another one, for which the helper may wait; so it waits for `NESTED_PATIENCE_MS` at most.
    pub fn around_fork<R>(&self, nested: bool, f: impl FnOnce() -> R) -> R {
        self.keep_away(if nested { NESTED_PATIENCE_MS } else { PATIENCE_MS }, || (), f)
    }

    /// Ends the helper for good: the thread that calls this is about to end, and is the last one. `ended` as in
    /// [`Allocator::without_helper`].
    pub fn end_helper(&self, ended: impl FnOnce()) {
        if self.os.settle_helper().keep_away(&self.os, PATIENCE_MS).is_some() {
            ended();
        }
    }

    fn keep_away<R>(&self, patience: u32, ended: impl FnOnce(), f: impl FnOnce() -> R) -> R {
        let helper = self.os.settle_helper();
        let stop = helper.keep_away(&self.os, patience);
        if stop.is_some() {
            ended();
        }
        let result = f();
        if helper.end_stop(stop) {
            self.ask_for_helper(false);
        }
        result
    }

    /// One look at all that waits to go back to the system, and the purge of what is due. Returns in how many
    /// milliseconds to call it again, or `None` when nothing waits: then there is no helper any more. For a helper that is
    /// no thread of its own, see [`Allocator::help`].
    #[cold]
    pub fn tick(&self) -> Option<u32> {
        let helper = self.os.helper();
        helper.begin();
        let next = self.round();
        if next.is_some() || helper.take_leave(&helper.leave(false)) { next } else { Some(self.tick_length()) }
    }

    /// What a helper does all its life, until it wants to end: for [`Os::start_helper`], which has the thread take the
    /// last step, and call this again where that fails.
    #[cold]
    pub fn help(&self) -> Leave {
        let helper = self.os.helper();
        helper.begin();
        self.look_at_limit();
        let (mut wait, mut seen) = (self.tick_length(), helper.woken());
        // Relaxed: a thread that sets it from now on wakes the helper.
        let mut due = self.purger.flood.load(Ordering::Relaxed);
        loop {
            if !due && let Some(leave) = self.rest_between_ticks(wait, seen) {
                return leave;
            }
            due = false;
            // Before the tick: a wake while it lasts is for the next one.
            seen = helper.woken();
            match self.round() {
                Some(next) => wait = next,
                None => return helper.leave(false),
            }
        }
    }

    /// Sleeps between two ticks; the last step if the helper has to end. `seen` is what `woken` was before the last tick.
    fn rest_between_ticks(&self, mut left: u32, seen: u32) -> Option<Leave> {
        let helper = self.os.helper();
        loop {
            if !helper.is_unwanted() {
                helper.sleep(&self.os, seen, left.min(LOOK_MS));
            }
            let onward = self.os.onward();
            if onward != Onward::Go || helper.is_unwanted() {
                if onward == Onward::Finish {
                    self.finish();
                } else {
                    helper.resign();
                    if onward == Onward::End {
                        // What waits is left to the program's threads. Behind the state: who takes the note asks.
                        self.want();
                    }
                }
                // A call that wanted no helper and has ended since saw RUNNING, and did not ask: see `helper.rs`.
                let kept = helper.is_unwanted();
                if onward != Onward::Go || kept {
                    return Some(helper.leave(kept));
                }
                helper.stay();
            }
            left = left.saturating_sub(LOOK_MS);
            if left == 0 || helper.woken() != seen {
                return None;
            }
        }
    }

    /// Gives back all that waits, as the program may be idle from now on, until nothing waits any more, or
    /// [`FINISH_ROUNDS`] times. The helper has resigned then.
    fn finish(&self) {
        for _ in 0..FINISH_ROUNDS {
            if self.os.helper().is_unwanted() {
                break;
            }
            let before = self.purger.came();
            self.purge();
            if self.resign(before) {
                return;
            }
        }
        self.os.helper().resign();
        // The next slow path of the program asks for another helper, or the end of the call that wanted none. Behind the
        // state: a thread that took the note before would find a helper, and only wake it.
        self.want();
    }

    /// Ends the helper's work, unless more has come to wait meanwhile: chunks, or what is noted since `before`.
    pub(crate) fn resign(&self, before: (usize, bool)) -> bool {
        let helper = self.os.helper();
        helper.resign();
        if self.ranges.with(&self.os, |r| r.waiting()) < START_CHUNKS && self.purger.came() == before {
            // Relaxed: a hint for children.
            self.purger.asked.store(false, Ordering::Relaxed);
            // Relaxed: for the next helper, whose start orders it.
            self.purger.again.store(true, Ordering::Relaxed);
            return true;
        }
        helper.stay();
        false
    }
}
