//! The helper thread: whether there is one, which process may start it, and how it ends.
//!
//! All of that is in five words ([`Helper`]) that belong to one address space: the child of a fork finds them zeroed,
//! however it was forked, where the system can do that (`Os::helper`). So a child has no helper by construction.
//!
//! | state | meaning | next state |
//! |---|---|---|
//! | `NONE` | there is no helper | `STARTING`: a thread asks for one ([`Helper::ask`]) |
//! | `STARTING` | one thread is starting it | `RUNNING`: its first step; `INLINE`, `KEPT`: it could not be started |
//! | `RUNNING` | it gives back what waits | `RESIGNING`: it wants to end |
//! | `RESIGNING` | it looks a last time whether anything waits | `RUNNING`: yes, or a thread asks; `NONE`, `KEPT`: its last step |
//! | `INLINE` | there can be none: the threads that free memory do its work | `STARTING`: a thread tries again |
//! | `KEPT` | the same, as long as a call wants no helper ([`Helper::keep_away`]) | `STARTING` when the last such call ends |
//!
//! **No thread that allocates or frees waits for the helper.** A thread that asks takes a resigning helper back with one
//! compare-exchange, or finds `NONE` and starts a new one at once: the last step of a helper is the compare-exchange to
//! `NONE` or `KEPT`, behind which it uses neither its stack nor any memory of the process ([`Leave`]). A thread that is
//! stopped in the middle of a start is waited for by [`Helper::keep_away`] alone, and for a bounded time.
//!
//! **No memory waits without a purger.** A thread that freed memory loads the state afterwards; the helper stores
//! `RESIGNING` and looks at memory afterwards. Both are sequentially consistent, so the thread sees `RESIGNING` (and asks),
//! or the helper sees the memory (and stays). The same holds for `STARTING`, `RESIGNING`
//! and `KEPT` against `stops`.
//!
//! **One process starts helpers: the owner of the address space.** The helper belongs to the thread group of the thread that
//! starts it, and ends with it. A child of `vfork` or `clone(CLONE_VM)` shares the memory and ends soon; a helper of its
//! own would end with it, perhaps holding a lock. Its `getpid` differs from `owner`, so it leaves a note, and the next slow
//! path of the owner asks. The owner is noted when the process first uses the allocator, by the fork handler in a
//! child, and in a child without handlers by the first thread that asks, which finds the word zeroed. The rest:
//!
//! - *exec* by any thread replaces the address space: nothing is left to look at.
//! - *A thread made by hand* (`CLONE_VM | CLONE_THREAD`) has the owner's `getpid`: it is one of its threads.
//! - *The owner ends while a process made with `CLONE_VM` lives on.* The helper ends with the owner, and may hold a lock,
//!   as each thread of the owner may: such a process must not count on the allocator, with glibc neither.
//! - *A child without handlers makes a `vfork` child, which asks first* and is noted as the owner. Neither gets a helper after
//!   that: memory goes back inline.
//! - *PID namespaces.* A `vfork` child in a new namespace whose number there is the owner's in its own (1 and 1, say) is
//!   taken for the owner. So is the child of a bare fork where the system cannot zero the words (Linux before 4.14).
//! - *Checkpoint and restore* keeps numbers of processes and threads, and the zeroing of the words.
//! - *A system that cannot zero the words*: in the child of a bare fork `owner` is the parent, so it starts no helper, and
//!   the parent's state may say that there is one: what waits stays until `malloc_trim`.

use crate::system::sync::{AtomicU32, Ordering, Threads};

const NONE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const RESIGNING: u32 = 3;
const INLINE: u32 = 4;
const KEPT: u32 = 5;

/// Milliseconds of one wait in [`Helper::keep_away`].
const SLICE: u32 = 1;

/// The words. All zero: there is no helper, and the owner is not known.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Helper {
    state: AtomicU32,
    /// The process that owns the address space, 0: not known yet.
    owner: AtomicU32,
    /// Changes when the helper is to look before its time.
    wake: AtomicU32,
    /// Calls that want no helper now.
    stops: AtomicU32,
    /// The thread number of the last helper, stored by the system when it starts one.
    pub thread: AtomicU32,
}

/// What [`Helper::ask`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A helper sees to all that waits now.
    Helped,
    /// There can be none at present: the threads that free memory do its work.
    Inline,
    /// The process shares the address space with its owner: a thread of the owner has to ask.
    Elsewhere,
}

/// Who gives memory back, as [`Helper::who`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Who {
    /// There is no purger.
    None = 0,
    /// A helper thread, which runs or is being started.
    Helper = 1,
    /// The threads that free memory.
    Inline = 2,
}

/// The last step of a helper: to be done by a compare-exchange (sequentially consistent) on `state`, behind which the
/// thread ends without another access to its stack, its thread storage or any other memory. If it fails the helper was
/// taken back and goes on.
#[repr(C)]
#[derive(Debug)]
pub struct Leave {
    /// The word.
    pub state: *const AtomicU32,
    /// What it has to be.
    pub from: u32,
    /// What it becomes.
    pub to: u32,
}

/// A call that wants no helper, from [`Helper::keep_away`] to [`Helper::end_stop`].
#[derive(Debug)]
pub struct Stop {
    owner: u32,
}

impl Helper {
    /// No helper, of an owner that is not known.
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

    // SeqCst at each use of `state` and `stops`, unless stated: see "No memory waits without a purger".

    /// The word of the last step.
    pub fn state(&self) -> &AtomicU32 {
        &self.state
    }

    /// The word that the helper sleeps on.
    pub fn wake(&self) -> &AtomicU32 {
        &self.wake
    }

    /// Who gives memory back. A helper that resigns does not count: a thread that frees memory now has to ask.
    #[inline]
    #[cfg_attr(neap_sim, track_caller)]
    pub fn who(&self) -> Who {
        Self::who_is(self.state.load(Ordering::SeqCst))
    }

    /// [`Helper::who`] for a guess.
    #[inline]
    pub fn who_roughly(&self) -> Who {
        // Relaxed: a guess.
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

    /// Whether `process` owns the address space; it does from now on if the owner is not known. `None`: the system must
    /// not be asked who the caller is, so there can be no helper.
    pub fn is_owner(&self, process: Option<u32>) -> Option<bool> {
        let process = process?;
        // Relaxed: the word is written once for each address space, and nothing else hangs on it.
        let noted = self.owner.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
        Some(noted.is_ok() || noted == Err(process))
    }

    /// In a process of one thread: it is `owner`, or that is not known, and has no helper.
    pub fn forked(&self, owner: Option<u32>) {
        // Relaxed: one thread.
        self.state.store(NONE, Ordering::Relaxed);
        self.stops.store(0, Ordering::Relaxed);
        self.thread.store(0, Ordering::Relaxed);
        self.owner.store(owner.unwrap_or(0), Ordering::Relaxed);
    }

    /// Asks for a helper; where none could be started before, only if `again`. Never waits.
    pub fn ask<O: Threads>(&self, os: &O, again: bool) -> Answer {
        match self.is_owner(os.process()) {
            Some(true) => {}
            Some(false) => return Answer::Elsewhere,
            None => {
                // Failure: there is one, which ends soon, or INLINE already.
                let _ = self.change(NONE, INLINE);
                // The last call that wanted none asks here as it ends.
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
                // The last of the calls that want no helper asks when it ends.
                KEPT if self.is_unwanted() => return Answer::Inline,
                RESIGNING => {
                    if self.change(RESIGNING, RUNNING) {
                        return Answer::Helped;
                    }
                }
                _ => {
                    // Without signals: a handler that ran while this thread starts a helper would wait for its own
                    // thread (`keep_away`), or fork, and the child would start one that its words do not know.
                    let start = || self.change(state, STARTING).then(|| self.start(os));
                    if let Some(answer) = os.undisturbed(start) {
                        return answer;
                    }
                }
            }
        }
    }

    /// The state is `STARTING`, and the calling thread, in which no handler runs, is the one that starts the helper.
    #[cold]
    fn start<O: Threads>(&self, os: &O) -> Answer {
        while self.is_unwanted() {
            self.state.store(KEPT, Ordering::SeqCst);
            os.futex_wake(&self.state);
            // Calls that ended between the look and the store saw STARTING, and did not ask.
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

    /// Has the helper look before its time, if there is one.
    pub fn wake_up<O: Threads>(&self, os: &O) {
        if matches!(self.state.load(Ordering::SeqCst), RUNNING | RESIGNING) {
            // Release pairs with the Acquire of `woken`: what the caller did before is seen.
            self.wake.fetch_add(1, Ordering::Release);
            os.futex_wake(&self.wake);
        }
    }

    /// A number that changes when the helper is to look before its time.
    pub fn woken(&self) -> u32 {
        self.wake.load(Ordering::Acquire)
    }

    /// The helper sleeps, unless [`Helper::woken`] is not `seen` any more.
    pub fn sleep<O: Threads>(&self, os: &O, seen: u32, milliseconds: u32) {
        os.futex_wait_for(&self.wake, seen, milliseconds);
    }

    /// The helper's first step; nothing for one that was taken back.
    pub fn begin(&self) {
        let _ = self.change(STARTING, RUNNING);
    }

    /// At rest: no call wants no helper any more, and none is kept away all the same. For tests.
    pub fn is_valid(&self) -> bool {
        self.is_unwanted() || self.state.load(Ordering::SeqCst) != KEPT
    }

    /// The helper wants to end. What it looks at afterwards tells whether it may: [`Helper::leave`] or [`Helper::stay`].
    pub fn resign(&self) {
        let _ = self.change(RUNNING, RESIGNING);
    }

    /// The helper has resigned, and stays.
    pub fn stay(&self) {
        // Failure: it was taken back, which comes to the same.
        let _ = self.change(RESIGNING, RUNNING);
    }

    /// The last step of a helper that has resigned. `kept`: because of a call that wanted none, at whose end one is asked
    /// for. The caller has found that call after it resigned, so the call ends later, and sees that.
    pub fn leave(&self, kept: bool) -> Leave {
        Leave { state: &raw const self.state, from: RESIGNING, to: if kept { KEPT } else { NONE } }
    }

    /// Does the last step; false if the helper was taken back. For helpers that do not run on a stack of their own.
    pub fn take_leave(&self, leave: &Leave) -> bool {
        match self.state.compare_exchange(leave.from, leave.to, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(state) => state != RUNNING,
        }
    }

    /// Whether a call wants no helper now.
    pub fn is_unwanted(&self) -> bool {
        // An addition, as it reads the newest value: a call that counts later sees what this thread did before.
        self.stops.fetch_add(0, Ordering::SeqCst) != 0
    }

    /// Ends the helper and lets none start until [`Helper::end_stop`]. Waits for it for `patience` milliseconds at most
    /// (it may be stopped by a debugger, or be in the middle of a long system call). Takes no lock. `None` in a process
    /// that is not the owner: it has no helper, and may end before it could call the other.
    pub fn keep_away<O: Threads>(&self, os: &O, patience: u32) -> Option<Stop> {
        if self.is_owner(os.process()) == Some(false) {
            return None;
        }
        // Relaxed: written once.
        let stop = Stop { owner: self.owner.load(Ordering::Relaxed) };
        self.stops.fetch_add(1, Ordering::SeqCst);
        for _ in 0..patience.div_ceil(SLICE) {
            let state = self.state.load(Ordering::SeqCst);
            if !matches!(state, STARTING | RUNNING | RESIGNING) {
                break;
            }
            self.wake_up(os);
            os.futex_wait_for(&self.state, state, SLICE);
        }
        Some(stop)
    }

    /// The call may have a helper again; true if one has to be asked for.
    pub fn end_stop(&self, stop: Option<Stop>) -> bool {
        let Some(stop) = stop else { return false };
        // A handler may have interrupted the call and forked, and return in the child, which has counted nothing.
        if self.owner.load(Ordering::Relaxed) == stop.owner {
            // Relaxed for failure: there is nothing to count down.
            let _ = self.stops.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |n| n.checked_sub(1));
        }
        matches!(self.state.load(Ordering::SeqCst), KEPT | RESIGNING)
    }
}
