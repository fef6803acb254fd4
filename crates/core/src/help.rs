//! The helper's main loop: it gives back what waits, sleeps until the next tick, and ends when nothing waits or when it
//! has to. If the system reports that memory is short, the helper waits for these reports instead of ending, and at
//! each report gives back all free memory.

use crate::back::purge::Tick;
use crate::blocks::heap::Mine;
use crate::system::helper::Leave;
use crate::system::os::Onward;
use crate::system::policy::Purge;
use crate::system::sync::Ordering;
use crate::system::time::Term;
use crate::{Allocator, Os};

/// Maximum milliseconds that the helper sleeps or works between two checks of what it may do ([`Os::onward`]).
const LOOK_MS: u32 = 50;
/// The same while nothing waits, and the helper only waits for memory to become short.
const WATCH_MS: u32 = 1000;
/// Maximum milliseconds for which a helper that has to end gives back what waits.
const FINISH_MS: u32 = 30;
/// Number of times that it does so, if the program goes on freeing memory.
const FINISH_ROUNDS: usize = 8;
/// Number of times that the helper tries to follow a report while a fork is in progress, and microseconds between two.
const RELIEVE_TRIES: u32 = 50;
const RELIEVE_EVERY: u32 = 1000;

impl<O: Os> Allocator<O> {
    /// Does the work of one tick. Returns the milliseconds until the next, or `None` if the helper has resigned, and
    /// has to leave.
    #[cold]
    fn round(&self) -> Option<u32> {
        self.note_helper();
        let Some(_flight) = self.fly(core::ptr::null()) else { return Some(self.tick_length()) };
        let tick = self.purge_old(self.term(LOOK_MS));
        // The caches of idle threads may have left notes.
        self.settle();
        // Before the helper resigns, as it frees what handlers freed, which may have to wait.
        self.publish();
        let ends = match tick {
            Tick::Again => false,
            Tick::Cut => return Some(0),
            Tick::Idle(before) => self.resign(before),
            Tick::Off => {
                self.os.helper().resign();
                true
            }
        };
        (!ends).then(|| self.tick_length())
    }

    /// Does one tick: purges what is due. Returns the milliseconds until the next tick, or `None` if nothing waits:
    /// then the helper has ended. For a helper that is not a thread of its own, see [`Allocator::help`].
    #[cold]
    pub fn tick(&self) -> Option<u32> {
        let helper = self.os.helper();
        helper.begin();
        let next = self.round();
        if next.is_some() || helper.take_leave(&helper.leave(false)) { next } else { Some(self.tick_length()) }
    }

    /// Runs a helper until it has to end. The thread of `Threads::start_helper` takes the last step, and calls this
    /// again if that step fails.
    #[cold]
    pub fn help(&self) -> Leave {
        let helper = self.os.helper();
        helper.begin();
        self.look_at_limit();
        let (mut wait, mut seen) = (self.tick_length(), helper.woken());
        // Relaxed: a thread that sets it after this wakes the helper.
        let mut due = self.notes.flood.load(Ordering::Relaxed);
        loop {
            // Follows a report that the last helper, or `watch`, had to leave.
            self.relieve();
            if !due && let Some(leave) = self.rest_between_ticks(wait, seen) {
                return leave;
            }
            due = false;
            // Before the tick: a wake during the tick is for the next one.
            seen = helper.woken();
            match self.round() {
                Some(next) => wait = next,
                None => match self.watch() {
                    Some(leave) => return leave,
                    None => {
                        (wait, seen) = (self.tick_length(), helper.woken());
                        due = self.notes.flood.load(Ordering::Relaxed);
                    }
                },
            }
        }
    }

    /// What a helper does that has resigned because nothing waits: it leaves. But if the system reports when memory is
    /// short, it waits for a report, or until a thread needs it. Returns the last step if it has to end.
    fn watch(&self) -> Option<Leave> {
        let helper = self.os.helper();
        // Under policy `never` the helper ends.
        while self.os.watches_pressure() && self.policy.purge() != Purge::Never {
            // Before the check of the state: a thread that asks changes the state, and then wakes the helper.
            let seen = helper.woken();
            if !helper.has_resigned() {
                return None;
            }
            self.sleep(seen, WATCH_MS);
            if let Some(leave) = self.look() {
                return Some(leave);
            }
            if self.notes.short.load(Ordering::Relaxed) && helper.has_resigned() {
                helper.stay();
                let before = self.notes.came();
                self.relieve();
                if !self.resign(before) {
                    return None;
                }
            }
        }
        Some(helper.leave(false))
    }

    /// Sleeps, unless a call excludes the helper. Notes a report of the system that memory is short: the system reports
    /// it once, and this helper may have to end before it can follow the report.
    fn sleep(&self, seen: u32, milliseconds: u32) {
        let helper = self.os.helper();
        // Not while a report has to be followed further.
        let milliseconds = if self.notes.short.load(Ordering::Relaxed) { 0 } else { milliseconds };
        let short = !helper.is_unwanted() && helper.sleep(&self.os, seen, milliseconds);
        // Under policy `never` a report does nothing, then or later.
        if short && self.policy.purge() != Purge::Never {
            // Relaxed, at each use: helpers alone use it, one after the other.
            self.notes.short.store(true, Ordering::Relaxed);
        }
    }

    /// Gives all free memory back if the system has said that memory is short. Waits for a fork that is in progress,
    /// for a while; then the next call follows the report, as it does with what there was no time for.
    fn relieve(&self) {
        for _ in 0..RELIEVE_TRIES {
            if !self.notes.short.load(Ordering::Relaxed) || self.os.helper().is_unwanted() {
                return;
            }
            if let Some(_flight) = self.fly(core::ptr::null()) {
                // A later report is for what is freed from now on.
                self.notes.short.store(false, Ordering::Relaxed);
                let complete = self.purge_within(self.term(LOOK_MS));
                self.notes.short.fetch_or(!complete, Ordering::Relaxed);
                return;
            }
            self.os.pause(RELIEVE_EVERY);
        }
    }

    /// Sleeps between two ticks. Returns the last step if the helper has to end. `seen` is the value of `woken` before
    /// the last tick.
    fn rest_between_ticks(&self, mut left: u32, seen: u32) -> Option<Leave> {
        let helper = self.os.helper();
        loop {
            self.sleep(seen, left.min(LOOK_MS));
            if let Some(leave) = self.look() {
                return Some(leave);
            }
            self.relieve();
            left = left.saturating_sub(LOOK_MS);
            if left == 0 || helper.woken() != seen {
                return None;
            }
        }
    }

    /// The next `milliseconds`.
    fn term(&self, milliseconds: u32) -> Term {
        Term::new(self.os.clock(), milliseconds.into())
    }

    /// Gives all free memory back, until `term` is over. Returns whether there was time for all of it.
    fn purge_within(&self, term: Term) -> bool {
        let mut complete = true;
        self.purge_all(Mine::none(), &mut || {
            complete = !term.is_over(self.os.clock());
            complete
        });
        self.settle();
        self.publish();
        complete
    }

    /// Returns the last step if the helper has to end.
    fn look(&self) -> Option<Leave> {
        let helper = self.os.helper();
        self.note_helper();
        let onward = self.os.onward();
        if onward == Onward::Go && !helper.is_unwanted() {
            return None;
        }
        if onward == Onward::Finish {
            self.finish();
        } else {
            helper.resign();
            if onward == Onward::End {
                // What waits is left to the program's threads. After the change of state, so that the thread that takes
                // the note starts another helper.
                self.want();
            }
        }
        // A call that excluded the helper may have ended since. It saw RUNNING, and did not start one (`helper.rs`), so
        // the helper stays.
        let kept = helper.is_unwanted();
        if onward != Onward::Go || kept {
            return Some(helper.leave(kept));
        }
        helper.stay();
        None
    }

    /// Gives back what waits, as the program may be idle from now on: until nothing waits, [`FINISH_ROUNDS`] times, or
    /// until the time for that is used up. On return the helper has resigned.
    fn finish(&self) {
        let term = self.term(FINISH_MS);
        for _ in 0..FINISH_ROUNDS {
            if self.os.helper().is_unwanted() {
                break;
            }
            let before = self.notes.came();
            let complete = self.purge_within(term);
            if self.resign(before) {
                return;
            }
            if !complete {
                break;
            }
        }
        self.os.helper().resign();
        // The program's next slow path starts another helper, or the end of the call that excludes the helper does.
        // After the change of state: a thread that took the note before would find a helper, and only wake it.
        self.want();
    }
}
