//! The helper thread: whether there is one, which process may start it, and how it ends.
//!
//! The state is five words ([`Helper`]) that belong to one address space. In the child of a fork, however it was made,
//! they are zero, where the system can do that (`Os::helper`). So a child has no helper by construction.
//!
//! | state | meaning | next state |
//! |---|---|---|
//! | `NONE` | there is no helper | `STARTING`: a thread asks ([`Helper::ask`]); `INLINE`: `getpid` is forbidden |
//! | `STARTING` | one thread is starting it | `RUNNING`: its first step; `INLINE`, `KEPT`: it could not be started |
//! | `RUNNING` | it gives back the memory that waits | `RESIGNING`: it is about to end |
//! | `RESIGNING` | checks again for waiting memory, or waits until memory is short | `RUNNING`; `NONE`, `KEPT`: ends |
//! | `INLINE` | no helper can be started: the threads that free memory do its work | `STARTING`: a thread tries again |
//! | `KEPT` | the same, while calls exclude it ([`Helper::keep_away`]) | `STARTING`, `INLINE`: the last call ends |
//!
//! **No thread that allocates or frees waits for the helper** (invariant 24). A thread that asks for a helper makes a
//! resigning one stay with one compare-exchange, or finds `NONE` and starts a new one at once: the last step of a
//! helper is the compare-exchange to `NONE` or `KEPT`, after which it uses neither its stack nor any memory of the
//! process ([`Leave`]). Only [`Helper::keep_away`] waits for a thread that is stopped in the middle of a start, and for
//! a bounded time.
//!
//! **No memory waits without a purger** (invariant 25). A thread frees memory and then loads the state; the helper
//! stores `RESIGNING` and then looks whether memory waits. Both are sequentially consistent, so the thread sees
//! `RESIGNING` (and asks), or the helper sees the memory (and stays). The same holds for `STARTING`, `RESIGNING` and
//! `KEPT` against `stops`.
//!
//! **One process starts helpers: the owner of the address space** (invariant 29). The helper belongs to the thread
//! group of the thread that starts it, and ends with that group. A child of `vfork` or `clone(CLONE_VM)` shares the
//! memory and ends soon; a helper of its own would end with it, perhaps while holding a lock. The `getpid` of such a
//! child differs from `owner`, so the child leaves a note, and the next slow path of the owner asks for a helper.
//! `owner` is set when the process first uses the allocator; in a child, by the fork handler; in a child without
//! handlers, by the first thread that asks, which finds the word zero. Special cases:
//!
//! - *exec* by any thread replaces the address space, and the words with it.
//! - *A thread made by hand* (`CLONE_VM | CLONE_THREAD`) has the owner's `getpid`: it is one of its threads.
//! - *The owner ends while a process made with `CLONE_VM` lives on.* The helper ends with the owner, and may hold a
//!   lock, like each thread of the owner. Such a process must not rely on the allocator, nor on glibc's.
//! - *A child without handlers makes a `vfork` child, which asks first* and becomes `owner`. Neither gets a helper
//!   after that: memory goes back inline.
//! - *PID namespaces.* A `vfork` child in a new namespace whose number there equals the owner's in its own (1 and 1,
//!   say) is taken for the owner. So is the child of a bare fork where the system cannot zero the words (Linux before
//!   4.14).
//! - *Checkpoint and restore* keeps the numbers of processes and threads, and the zeroing of the words.
//! - *A system that cannot zero the words*: in the child of a bare fork, `owner` is the parent, so the child starts no
//!   helper, and the state may say that there is one. Then waiting memory stays until `malloc_trim`.

use crate::system::sync::{AtomicU32, Ordering, Threads};

const NONE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const RESIGNING: u32 = 3;
const INLINE: u32 = 4;
const KEPT: u32 = 5;

/// Milliseconds of each wait in [`Helper::keep_away`].
const SLICE: u32 = 1;

/// The state of the helper. All zero: there is no helper, and the owner is not known.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Helper {
    state: AtomicU32,
    /// The process that owns the address space; 0: not known yet.
    owner: AtomicU32,
    /// A number that changes when the helper has to wake up early.
    wake: AtomicU32,
    /// Number of calls that exclude the helper now.
    stops: AtomicU32,
    /// The thread number of the last helper. The kernel stores it when it starts one.
    pub thread: AtomicU32,
}

/// The result of [`Helper::ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A helper runs, or is being started: it purges all that waits now.
    Helped,
    /// No helper can be started at present: the threads that free memory do its work.
    Inline,
    /// A later call has to ask: either this process is not the owner of the address space, so a thread of the owner has
    /// to; or a helper resigns, and the system must not be asked for the number of this process.
    Elsewhere,
}

/// The purger: what gives waiting memory back to the system. See [`Helper::who`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Who {
    /// None: a thread that frees memory now has to ask for a helper.
    None = 0,
    /// A helper thread, which runs or is being started.
    Helper = 1,
    /// The threads that free memory.
    Inline = 2,
}

/// The last step of a helper: a sequentially consistent compare-exchange on `state`, after which the thread ends
/// without another access to its stack, its thread storage or any other memory. If the exchange fails, a thread made
/// the helper stay, and it goes on.
#[repr(C)]
#[derive(Debug)]
pub struct Leave {
    /// The word to change.
    pub state: *const AtomicU32,
    /// The value that it must have.
    pub from: u32,
    /// The value that it gets.
    pub to: u32,
}

/// A call that excludes the helper, from [`Helper::keep_away`] to [`Helper::end_stop`].
#[derive(Debug)]
pub struct Stop {
    owner: u32,
    /// Whether the helper has ended, or there was none.
    pub ended: bool,
}

impl Helper {
    /// No helper and no known owner.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Helper {
            state: AtomicU32::new(NONE),
            owner: AtomicU32::new(0),
            wake: AtomicU32::new(0),
            stops: AtomicU32::new(0),
            thread: AtomicU32::new(0),
        }
    }

    // SeqCst at each use of `state` and `stops`, unless stated otherwise: see "No memory waits without a purger".

    /// The word that the last step changes.
    pub fn state(&self) -> &AtomicU32 {
        &self.state
    }

    /// The word that the helper sleeps on.
    pub fn wake(&self) -> &AtomicU32 {
        &self.wake
    }

    /// The purger. A helper that resigns does not count: a thread that frees memory now has to ask.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn who(&self) -> Who {
        Self::who_is(self.state.load(Ordering::SeqCst))
    }

    /// [`Helper::who`], approximate: the state may have changed already.
    #[inline]
    pub fn who_roughly(&self) -> Who {
        // Relaxed: a hint.
        Self::who_is(self.state.load(Ordering::Relaxed))
    }

    #[inline]
    fn who_is(state: u32) -> Who {
        match state {
            STARTING | RUNNING => Who::Helper,
            INLINE | KEPT => Who::Inline,
            _ => Who::None,
        }
    }

    /// Whether `process` owns the address space; it becomes the owner if none is known. `None` if the calling process
    /// must not ask the system for its number (`process` is `None`): then there can be no helper.
    pub fn is_owner(&self, process: Option<u32>) -> Option<bool> {
        let process = process?;
        // Relaxed: the word is written once for each address space, and orders nothing else.
        let noted = self.owner.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
        Some(noted.is_ok() || noted == Err(process))
    }

    /// Resets the words in the child of a fork, which has one thread: no helper, and `owner` is the owner if it is
    /// known.
    pub fn forked(&self, owner: Option<u32>) {
        // Relaxed: there is one thread.
        self.state.store(NONE, Ordering::Relaxed);
        self.stops.store(0, Ordering::Relaxed);
        self.thread.store(0, Ordering::Relaxed);
        self.owner.store(owner.unwrap_or(0), Ordering::Relaxed);
    }

    /// Makes sure that there is a helper. Where none could be started before, tries again only if `again`. Never waits.
    pub fn ask<O: Threads>(&self, os: &O, again: bool) -> Answer {
        match self.is_owner(os.process()) {
            Some(true) => {}
            Some(false) => return Answer::Elsewhere,
            None => {
                let noted = self.state.compare_exchange(NONE, INLINE, Ordering::SeqCst, Ordering::SeqCst);
                if noted == Err(RESIGNING) {
                    // The caller may have taken the note that this helper left.
                    return Answer::Elsewhere;
                }
                // Other failures: there is a helper, which ends soon and leaves a note; the state is INLINE already; or
                // it is KEPT, and the last call that excludes the helper asks again when it ends.
                if !self.is_unwanted() {
                    let _ = self.change(KEPT, INLINE);
                }
                return Answer::Inline;
            }
        }
        loop {
            let state = self.state.load(Ordering::SeqCst);
            match state {
                STARTING | RUNNING => return Answer::Helped,
                INLINE if !again => return Answer::Inline,
                // The last of the calls that exclude the helper asks when it ends.
                KEPT if self.is_unwanted() => return Answer::Inline,
                RESIGNING => {
                    if self.change(RESIGNING, RUNNING) {
                        // It may be waiting for memory to become short, for a long time.
                        if os.watches_pressure() {
                            self.wake_up(os);
                        }
                        return Answer::Helped;
                    }
                }
                _ => {
                    // Signals are blocked: a handler that ran while this thread starts a helper could wait for its own
                    // thread (`keep_away`), or fork, and the child would start a helper that its own words do not show.
                    let start = || self.change(state, STARTING).then(|| self.start(os));
                    if let Some(answer) = os.undisturbed(start) {
                        return answer;
                    }
                }
            }
        }
    }

    /// Starts the helper. The calling thread has set the state to `STARTING`, and its signals are blocked.
    #[cold]
    fn start<O: Threads>(&self, os: &O) -> Answer {
        while self.is_unwanted() {
            self.state.store(KEPT, Ordering::SeqCst);
            os.futex_wake(&self.state);
            // Calls that ended between the check and the store saw STARTING, and did not ask.
            if self.is_unwanted() || !self.change(KEPT, STARTING) {
                return Answer::Inline;
            }
        }
        if os.start_helper() {
            return Answer::Helped;
        }
        self.state.store(INLINE, Ordering::SeqCst);
        os.futex_wake(&self.state);
        Answer::Inline
    }

    #[cfg_attr(neap_sim, track_caller)]
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Wakes the helper early, if there is one.
    pub fn wake_up<O: Threads>(&self, os: &O) {
        if matches!(self.state.load(Ordering::SeqCst), RUNNING | RESIGNING) {
            // Release pairs with the Acquire of `woken`: the helper sees what the caller did before.
            self.wake.fetch_add(1, Ordering::Release);
            os.rouse(&self.wake);
        }
    }

    /// A number that changes when the helper has to wake up early.
    pub fn woken(&self) -> u32 {
        self.wake.load(Ordering::Acquire)
    }

    /// Makes the helper sleep, unless [`Helper::woken`] differs from `seen`. Returns whether the system reports that
    /// memory is short.
    pub fn sleep<O: Threads>(&self, os: &O, seen: u32, milliseconds: u32) -> bool {
        os.rest(&self.wake, seen, milliseconds)
    }

    /// Whether the helper has resigned, and was not made to stay.
    pub fn has_resigned(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RESIGNING
    }

    /// The helper's first step. Changes nothing for a helper that was made to stay.
    pub fn begin(&self) {
        let _ = self.change(STARTING, RUNNING);
    }

    /// Whether the state is consistent: `KEPT` only while a call excludes the helper. For tests, while no thread is in
    /// a call.
    pub fn is_valid(&self) -> bool {
        self.is_unwanted() || self.state.load(Ordering::SeqCst) != KEPT
    }

    /// Announces that the helper is about to end. It then checks whether memory waits, and calls [`Helper::leave`] or
    /// [`Helper::stay`].
    pub fn resign(&self) {
        let _ = self.change(RUNNING, RESIGNING);
    }

    /// Makes a helper that has resigned stay.
    pub fn stay(&self) {
        // Failure: another thread made it stay already.
        let _ = self.change(RESIGNING, RUNNING);
    }

    /// The last step of a helper that has resigned. `kept`: it ends because a call excludes it; that call asks for a
    /// helper when it ends. The helper found the call after it had resigned, so the call ends later, and sees that.
    pub fn leave(&self, kept: bool) -> Leave {
        Leave { state: &raw const self.state, from: RESIGNING, to: if kept { KEPT } else { NONE } }
    }

    /// Does the last step; false if a thread made the helper stay. For helpers that do not run on a stack of their own.
    pub fn take_leave(&self, leave: &Leave) -> bool {
        match self.state.compare_exchange(leave.from, leave.to, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(state) => state != RUNNING,
        }
    }

    /// Whether a call excludes the helper now.
    pub fn is_unwanted(&self) -> bool {
        // An addition of 0 instead of a load, as it reads the newest value: a call that is counted later sees what this
        // thread did before.
        self.stops.fetch_add(0, Ordering::SeqCst) != 0
    }

    /// Makes the helper end, and lets none start until [`Helper::end_stop`]. Waits at most `patience` milliseconds for
    /// the end (a debugger may have stopped the helper, or it is in a long system call). Takes no lock. `None` in a
    /// process that is not the owner: it has no helper, and may end before it could call [`Helper::end_stop`].
    pub fn keep_away<O: Threads>(&self, os: &O, patience: u32) -> Option<Stop> {
        if self.is_owner(os.process()) == Some(false) {
            return None;
        }
        // Relaxed: it is written once.
        let owner = self.owner.load(Ordering::Relaxed);
        self.stops.fetch_add(1, Ordering::SeqCst);
        for left in (0..=patience.div_ceil(SLICE)).rev() {
            let state = self.state.load(Ordering::SeqCst);
            if !matches!(state, STARTING | RUNNING | RESIGNING) {
                return Some(Stop { owner, ended: true });
            }
            if left > 0 {
                self.wake_up(os);
                os.futex_wait_for(&self.state, state, SLICE);
            }
        }
        Some(Stop { owner, ended: false })
    }

    /// Ends the exclusion that [`Helper::keep_away`] began; true if the caller has to ask for a helper.
    pub fn end_stop(&self, stop: Option<Stop>) -> bool {
        let Some(stop) = stop else { return false };
        // A handler may have interrupted the call and forked, and return in the child, whose count is zero.
        if self.owner.load(Ordering::Relaxed) == stop.owner {
            // Relaxed for failure: the count is 0 already, and stays.
            let _ = self.stops.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |n| n.checked_sub(1));
        }
        matches!(self.state.load(Ordering::SeqCst), KEPT | RESIGNING)
    }
}
