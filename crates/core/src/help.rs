//! What a helper does all its life: it looks at what waits, sleeps from one tick to the next, and ends where nothing waits
//! or where it must.

use crate::system::helper::Leave;
use crate::system::os::Onward;
use crate::system::sync::Ordering;
use crate::{Allocator, Os};

/// Milliseconds from one look at what the helper may do ([`Os::onward`]) to the next, at most.
const LOOK_MS: u32 = 100;
/// How often a helper that has to end gives back what waits, where the program goes on freeing memory.
const FINISH_ROUNDS: usize = 8;

impl<O: Os> Allocator<O> {
    /// [`Allocator::tick`], of which `None` says that the helper has resigned, and has to leave.
    #[cold]
    fn round(&self) -> Option<u32> {
        let Some(_flight) = self.fly(core::ptr::null()) else { return Some(self.tick_length()) };
        let next = self.purge_old();
        if next.is_some() {
            // The caches of idle threads may have left notes.
            self.settle();
        }
        self.publish();
        next
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

    /// What a helper does all its life, until it wants to end: for `Threads::start_helper`, which has the thread take the
    /// last step, and call this again where that fails.
    #[cold]
    pub fn help(&self) -> Leave {
        let helper = self.os.helper();
        helper.begin();
        self.look_at_limit();
        let (mut wait, mut seen) = (self.tick_length(), helper.woken());
        // Relaxed: a thread that sets it from now on wakes the helper.
        let mut due = self.notes.flood.load(Ordering::Relaxed);
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
            let before = self.notes.came();
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
}
