//! When a helper (`system/helper.rs`) is asked for, and which threads give memory back where there is none.

use crate::back::Back;
use crate::back::batch::{BATCH_BYTES, Walk};
use crate::pages::START_CHUNKS;
use crate::pages::notes::GROWN;
use crate::system::helper::{Answer, Who};
use crate::system::policy::Purge;
use crate::system::sync::Ordering;
use crate::{CHUNK, Heap, Os};

/// Ticks after which a helper is asked for again, where there could be none.
const RETRY_TICKS: u32 = 10;
/// Chunks that have to wait in the child of a fork before it gets a purger at once: most children end soon, or call exec.
const FORKED_CHUNKS: usize = if cfg!(neap_sim) { 4 } else { (16 << 20) / CHUNK };
/// Chunks that have to wait before a thread gives them back that ends, or that ends the helper for good.
const END_CHUNKS: usize = if cfg!(neap_sim) { 4 } else { (16 << 20) / CHUNK };
/// Milliseconds that a call which wants no helper waits for the end of one: longer than its longest system call.
const PATIENCE_MS: u32 = 5000;
/// The same in a handler that interrupted another call.
const REENTRANT_PATIENCE_MS: u32 = 50;

impl<O: Os> Back<O> {
    /// Whether a helper thread or the threads that free memory see to what waits. For tests.
    pub(crate) fn is_purged(&self) -> bool {
        self.os.helper().who() != Who::None
    }

    /// Asks for a helper, by which all that waits now is seen to, or where there can be none by the threads that free
    /// memory. `again`: also where none could be started before.
    #[cold]
    pub(crate) fn ask_for_helper(&self, again: bool) {
        self.purger.idle.store(0, Ordering::Relaxed);
        self.purger.set_refused(false);
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
            Who::None => self.ask_for_helper(false),
            Who::Inline if self.is_guest() => self.want(),
            Who::Inline => {
                if self.time_is_up() {
                    self.next_epoch();
                    self.notes.leave(GROWN);
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
        let heaps = self.heaps.load(Ordering::Relaxed);
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
    /// behind in the child, which may count on a process of one thread. Takes no lock. `reentrant`: the call is a handler's
    /// that interrupted another one, for which the helper may wait; so it waits for `REENTRANT_PATIENCE_MS` at most.
    pub fn around_fork<R>(&self, reentrant: bool, f: impl FnOnce() -> R) -> R {
        self.keep_away(if reentrant { REENTRANT_PATIENCE_MS } else { PATIENCE_MS }, || (), f)
    }

    /// Ends the helper for good: the thread that calls this is about to end, and is the last one. `ended` as in
    /// `Allocator::without_helper`.
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

    /// Ends the helper's work, unless more has come to wait meanwhile: chunks, or what is noted since `before`.
    pub(crate) fn resign(&self, before: (usize, bool)) -> bool {
        let helper = self.os.helper();
        helper.resign();
        if self.ranges.with(&self.os, |r| r.waiting()) < START_CHUNKS && self.notes.came() == before {
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
