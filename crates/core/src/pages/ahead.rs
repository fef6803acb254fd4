//! Commit ahead: the next step of an arena (`commit.rs`) is made before it is needed, by the thread whose request came near
//! the end of what is committed, under a lock of its own.

use crate::Os;
use crate::pages::Pages;
use crate::pages::arena::{Arenas, UnderLock};
use crate::pages::commit::Step;
use crate::pages::place::is_pressed;
use crate::system::sync::Ordering;

impl Arenas {
    /// Notes that the next step of arena `i` is to be committed ahead, if its frontier came so far.
    pub(crate) fn note_low(&self, lock: &UnderLock, i: usize) {
        if self.nth(lock, i).comes_low() {
            // Relaxed: a thread that takes the note takes the lock before it reads more.
            self.low.store(i + 1, Ordering::Relaxed);
        }
    }

    /// Whether an arena's next step is to be committed ahead.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed) != 0
    }

    /// Takes the note that [`Arenas::is_low`] shows: the number of the arena.
    pub(crate) fn take_low(&self) -> Option<usize> {
        self.low.swap(0, Ordering::Relaxed).checked_sub(1)
    }

    /// In the child of a fork, whose only thread makes no step but one that a handler interrupted to fork: that one goes on.
    pub(crate) fn forked<O: Os>(&self, os: &O) {
        self.arenas().iter().for_each(|arena| arena.making.release(os));
    }

    /// The next step of arena `i`, if it may be made.
    fn next_step<O: Os>(&self, os: &O, lock: &UnderLock, i: usize) -> Option<Step> {
        let arena = self.nth(lock, i);
        if arena.is_long() && is_pressed(os) { None } else { arena.step(0) }
    }
}

impl<O: Os> Pages<O> {
    /// Makes the next step of the arena that is low, if one is, under a lock of its own: threads that do not need the step go
    /// on meanwhile. One that needs it waits, and does not make it as well: the call that comes later would give access
    /// once more to what is in use by then, also to OS pages from which the program has taken it (guards, code).
    pub(crate) fn commit_ahead(&self) {
        let Some(i) = self.arenas.take_low() else { return };
        let Some(arena) = self.arenas.arenas().get(i) else { return };
        let begun = self.ranges.with(&self.os, |r| {
            if !arena.making.try_take() {
                // Another thread is ahead already.
                return None;
            }
            let step = self.arenas.next_step(&self.os, r.lock(), i);
            match &step {
                // What is not committed yet stays reserved, whatever goes back.
                Some(step) => arena.promised.set(arena.promised.get().max(step.to)),
                None => arena.making.release(&self.os),
            }
            step
        });
        let Some(step) = begun else { return };
        // SAFETY: no other step of the arena is made meanwhile, so what lies before this one is committed.
        if unsafe { step.make(&self.os, &self.map) } {
            arena.note_step(&step);
        }
        arena.making.release(&self.os);
    }
}
