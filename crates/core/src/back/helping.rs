//! Decides when a helper (`system/helper.rs`) is started, and which threads give memory back if there is none.

use crate::back::Back;
use crate::back::batch::{BATCH_BYTES, Walk};
use crate::blocks::heap::Mine;
use crate::pages::START_CHUNKS;
use crate::pages::notes::{Came, GROWN};
use crate::system::helper::{Answer, Who};
use crate::system::policy::Purge;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Number of ticks after which another start is tried, if no helper could be started.
const RETRY_TICKS: u32 = 10;
/// Minimum number of waiting chunks before the child of a fork starts a purger at once. Most children end soon, or call
/// exec.
const FORKED_CHUNKS: usize = if cfg!(neap_sim) { 4 } else { (16 << 20) / CHUNK };
/// Minimum number of waiting chunks before a thread gives them back when it ends, or when it ends the helper at the end
/// of the process.
const END_CHUNKS: usize = if cfg!(neap_sim) { 4 } else { (16 << 20) / CHUNK };
/// Milliseconds that a call which excludes the helper waits for its end: longer than the helper's longest system call.
const PATIENCE_MS: u32 = 5000;
/// The same, for a call in a handler that interrupted another call.
const REENTRANT_PATIENCE_MS: u32 = 50;

impl<O: Os> Back<O> {
    /// Whether a helper thread or the threads that free memory give back what waits.
    pub(crate) fn is_purged(&self) -> bool {
        self.os.helper().who() != Who::None
    }

    /// Starts a helper, or keeps one that is about to end, so that all that waits now is given back. If there can be
    /// none, the threads that free memory do that. `again`: also tries if an earlier start failed.
    #[cold]
    pub(crate) fn ask_for_helper(&self, again: bool) {
        self.purger.idle.store(0, Ordering::Relaxed);
        self.purger.set_refused(false);
        // Relaxed: a hint for children.
        self.purger.asked.store(true, Ordering::Relaxed);
        self.note_helper();
        if self.os.settle_helper().ask(&self.os, again) == Answer::Elsewhere {
            self.want();
        }
    }

    /// Whether the calling process only shares the address space with its owner, as a child of `vfork` does. It may end
    /// at any time, so it does only what is necessary.
    pub(crate) fn is_guest(&self) -> bool {
        self.os.settle_helper().is_owner(self.os.process()) == Some(false)
    }

    /// Makes sure that there is a purger: wakes the helper, starts one, or has this thread purge its share where there
    /// can be none.
    #[cold]
    pub(crate) fn poke(&self) {
        match self.os.helper().who() {
            Who::Helper => {
                self.wake_helper();
                if self.is_helper_late() {
                    self.stand_in();
                }
            }
            Who::None => self.ask_for_helper(false),
            Who::Inline if self.is_guest() => self.want(),
            Who::Inline => {
                if self.time_is_up() {
                    self.next_epoch();
                    self.notes.leave(GROWN);
                    // The obstacle may be gone: a limit, too many threads, or a call that excludes the helper.
                    if self.purger.idle.fetch_add(1, Ordering::Relaxed) >= RETRY_TICKS {
                        return self.ask_for_helper(true);
                    }
                }
                self.purge_inline();
            }
        }
    }

    /// Does the share of a thread that frees memory in place of a helper that gets no processor, as where there can be no
    /// helper. What a thread holds back that lost its processor in the middle of a batch has to wait for it.
    #[cold]
    fn stand_in(&self) {
        if self.is_guest() || !self.purger.batch.raw().is_free() {
            return;
        }
        if self.time_is_up() {
            self.next_epoch();
            self.notes.leave(GROWN);
        }
        self.purge_inline();
    }

    /// Gives memory back when a thread has abandoned its heap. If the threads that free memory are the purger, the
    /// remaining ones may free none. So a thread that ends purges its share, and all that waits if at most one other
    /// thread has a heap.
    #[cold]
    pub fn thread_ended(&self) {
        if self.os.helper().who_roughly() != Who::Inline || !self.much_waits() {
            return;
        }
        // Relaxed, twice: if two threads end at the same time, the later one counts both, as each counts itself before.
        let heaps = self.heaps.load(Ordering::Relaxed);
        // Saturating: other threads may make heaps and abandon them between the two loads.
        let owned = heaps.saturating_sub(self.orphans.load(Ordering::Relaxed));
        if owned > 1 {
            return self.poke();
        }
        // All of it, even if the last purge was just before: there may be no other call. A program whose threads run
        // one after the other, and free more than `END_CHUNKS` each, pays 0.3 to 0.7 ms for each MiB, the price of
        // mappings.
        self.purge_all_due();
    }

    /// Gives back what waits, if it is much: there will be no helper from now on, and the program may be idle.
    #[cold]
    pub fn before_inline(&self) {
        if self.much_waits() {
            self.purge_all_due();
        }
    }

    /// Whether at least [`END_CHUNKS`] wait, and this process may purge.
    fn much_waits(&self) -> bool {
        self.policy.purge() != Purge::Never
            && !self.is_guest()
            && self.ranges.with(&self.os, |r| r.waiting()) >= END_CHUNKS
    }

    /// Gives back all that waits, of any age.
    fn purge_all_due(&self) {
        self.purge_due(Mine::none(), self.due(0, BATCH_BYTES), &mut Walk::new(), &mut || true);
    }

    /// Makes the purger look at the waiting memory, which may be due earlier than it expects: wakes the helper, or
    /// starts one if enough waits. Called under no lock.
    #[cold]
    pub fn resume_purging(&self) {
        if self.is_purged() {
            self.os.helper().wake_up(&self.os);
        } else if self.policy.purge() != Purge::Never && self.ranges.with(&self.os, |r| r.waiting()) >= START_CHUNKS {
            self.poke();
        }
    }

    /// In the child of a fork: makes sure that the memory goes back that waited in the parent, whose purger gives back
    /// only the parent's copy. If much waits, starts a purger now, as the child may be idle from now on. Otherwise the
    /// next slow path does.
    #[cold]
    pub(crate) fn purge_in_child(&self) {
        if self.policy.purge() != Purge::Never && self.ranges.with(&self.os, |r| r.waiting()) >= FORKED_CHUNKS {
            self.poke();
        } else {
            self.want();
        }
    }

    /// Runs `f` while there is no helper: ends the helper first, and lets none start meanwhile. Takes no lock. If the
    /// helper does not end within `PATIENCE_MS`, `f` runs anyway. `ended` runs between the two, in a process that
    /// may have a helper, unless that is still there. `reentrant`: the call is in a handler that interrupted another
    /// call. The helper may wait for that one, so this waits for `REENTRANT_PATIENCE_MS` at most, and once for each
    /// helper: handlers that come one after the other could keep the interrupted call from going on.
    pub fn without_helper<R>(&self, reentrant: bool, ended: impl FnOnce(), f: impl FnOnce() -> R) -> R {
        // Relaxed, twice: a helper's number is written before it can be waited for; `late` is a hint.
        let thread = self.os.settle_helper().thread.load(Ordering::Relaxed);
        let is_late = thread != 0 && self.purger.late.load(Ordering::Relaxed) == thread;
        let patience = match reentrant {
            false => PATIENCE_MS,
            true if is_late => 0,
            true => REENTRANT_PATIENCE_MS,
        };
        self.keep_away(patience, ended, f)
    }

    /// Runs `f`, which makes a child without the C library's handlers, while there is no helper: a helper would leave
    /// the locks that it holds locked in the child, which may rely on being a process of one thread. Takes no lock.
    /// `reentrant` as in [`Back::without_helper`].
    pub fn around_fork<R>(&self, reentrant: bool, f: impl FnOnce() -> R) -> R {
        self.without_helper(reentrant, || (), f)
    }

    /// Ends the helper permanently: the calling thread is the last one and about to end. `ended` as in
    /// [`Back::without_helper`].
    pub fn end_helper(&self, ended: impl FnOnce()) {
        if self.os.settle_helper().keep_away(&self.os, PATIENCE_MS).is_some_and(|stop| stop.ended) {
            ended();
        }
    }

    /// Runs `f` while there is no helper, after waiting for its end for `patience` milliseconds at most.
    fn keep_away<R>(&self, patience: u32, ended: impl FnOnce(), f: impl FnOnce() -> R) -> R {
        let helper = self.os.settle_helper();
        let stop = helper.keep_away(&self.os, patience);
        match &stop {
            Some(stop) if stop.ended => ended(),
            // Relaxed: a hint.
            Some(_) => self.purger.late.store(helper.thread.load(Ordering::Relaxed), Ordering::Relaxed),
            None => {}
        }
        let result = f();
        if helper.end_stop(stop) {
            self.ask_for_helper(false);
        }
        result
    }

    /// Makes the helper resign. If enough chunks wait by now, or other work has come since `before`, makes it stay, and
    /// returns false.
    pub(crate) fn resign(&self, before: Came) -> bool {
        let helper = self.os.helper();
        helper.resign();
        if self.ranges.with(&self.os, |r| r.waiting()) < START_CHUNKS && self.notes.came() == before {
            // Relaxed: a hint for children.
            self.purger.asked.store(false, Ordering::Relaxed);
            // Relaxed: the start of the next helper orders it.
            self.purger.again.store(true, Ordering::Relaxed);
            return true;
        }
        helper.stay();
        false
    }
}
