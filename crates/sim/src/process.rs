//! The state of the process as the system reports it, and how it changes: its rights, its memory, its limits, its time.

use crate::config::{Config, habits};
use crate::finding;
use crate::random::Random;
use crate::sched::{is_running, sched};
use core::cell::UnsafeCell;
use neap_core::os::{Memory, Onward, Thread};
use std::collections::BTreeMap;

/// Key on which the virtual thread of the helpers waits.
pub(crate) const START: usize = 1;

/// A state that begins and ends at random.
#[derive(Clone, Copy, Default)]
struct Phase {
    on: bool,
}

impl Phase {
    /// Advances the state: it begins once in `from` calls, and ends once in `to`.
    fn ask(&mut self, r: &mut Random, from: u64, to: u64) -> bool {
        self.on = if self.on { !r.one_in(to) } else { r.one_in(from) };
        self.on
    }
}

struct State {
    random: Random,
    /// The time from which on nothing is injected, because the program only ends.
    kind: Option<u64>,
    /// The helper may do nothing before this time, and none may be started.
    forbidden: u64,
    /// The time before which each helper must finish.
    finishes: u64,
    /// The helper's rights do not change meanwhile.
    held: bool,
    refusing: Phase,
    locked: Phase,
    limited: Phase,
    /// The address of the thread with each number, and the numbers of ended threads.
    places: BTreeMap<u32, usize>,
    unused: Vec<u32>,
    threads: u32,
    /// Whether there is a helper: it was started and has not done its last step.
    helper: bool,
    /// Whether this is the child of a fork: it has no helper, and can start none, because it does not run for long.
    child: bool,
    /// A bit for each thread that is a child of vfork at present.
    guests: u32,
}

/// The process, as the system sees it.
pub struct Process {
    config: Config,
    state: UnsafeCell<State>,
}

impl Process {
    /// A new process.
    pub fn new(config: Config) -> Self {
        let state = State {
            random: Random::new(config.seed, 3),
            kind: None,
            forbidden: 0,
            finishes: 0,
            held: false,
            refusing: Phase::default(),
            locked: Phase::default(),
            limited: Phase::default(),
            places: BTreeMap::new(),
            unused: Vec::new(),
            threads: 0,
            helper: false,
            child: false,
            guests: 0,
        };
        Process { config, state: UnsafeCell::new(state) }
    }

    #[expect(clippy::mut_from_ref, reason = "one real thread; no reference lives over a point")]
    fn state(&self) -> &mut State {
        // SAFETY: as said.
        unsafe { &mut *self.state.get() }
    }

    /// Whether the system has this habit, and still injects faults.
    pub fn has(&self, habit: u64) -> bool {
        self.config.habits & habit != 0 && self.state().kind.is_none()
    }

    /// From now on nothing is injected.
    pub fn be_kind(&self) {
        self.state().kind = Some(sched().clock);
    }

    /// Sets whether the helper's rights stay as they are.
    pub fn hold(&self, holds: bool) {
        self.state().held = holds;
    }

    /// Whether calls are refused at present.
    pub fn is_refusing(&self) -> bool {
        let s = self.state();
        self.has(habits::BURSTS) && s.refusing.ask(&mut s.random, 200, 20) && s.random.one_in(2)
    }

    /// Whether all memory is locked at present.
    pub fn is_locked(&self) -> bool {
        let s = self.state();
        self.has(habits::LOCKS) && s.locked.ask(&mut s.random, 4, 4)
    }

    /// Whether a temporary limit applies at present.
    pub fn is_limited(&self) -> bool {
        let s = self.state();
        !self.has(habits::LIMITS) || s.limited.ask(&mut s.random, 4, 4)
    }

    /// Whether a refused call is done in part.
    pub fn does_parts(&self) -> bool {
        self.has(habits::PARTS) && self.state().random.one_in(2)
    }

    /// Whether a mapping is resized in place, if it can be.
    pub fn stays(&self) -> bool {
        self.has(habits::STAYS) && self.state().random.one_in(2)
    }

    /// What the helper must do.
    pub fn onward(&self) -> Onward {
        if !self.has(habits::RIGHTS) || self.state().held {
            return Onward::Go;
        }
        let (s, now) = (self.state(), sched().clock);
        if s.random.one_in(8) {
            let until = now + s.random.pick(&[0, 100, 400, 1 << 40]);
            // A process that may not ask cannot learn whether a thread has ended.
            let forbids = s.random.one_in(4) && self.config.habits & habits::NUMBERS == 0;
            if forbids {
                s.forbidden = until
            } else {
                s.finishes = until
            }
            if s.random.one_in(2) {
                return Onward::Finish;
            }
        }
        match now {
            _ if now < s.forbidden => Onward::End,
            _ if now < s.finishes => Onward::Finish,
            _ => Onward::Go,
        }
    }

    /// Whether unusual calls are forbidden at present.
    pub fn is_forbidden(&self) -> bool {
        self.has(habits::RIGHTS) && is_running() && sched().clock < self.state().forbidden
    }

    /// The process number. A child of vfork has another one, in the same address space; so has a child of fork.
    pub fn number(&self) -> Option<u32> {
        (!self.is_forbidden()).then(|| 1 + u32::from(self.is_guest()) + 2 * u32::from(self.is_child()))
    }

    /// Sets whether the running thread is a child of vfork.
    pub fn set_guest(&self, guest: bool) {
        let (s, bit) = (self.state(), 1 << sched().current);
        s.guests = if guest { s.guests | bit } else { s.guests & !bit };
    }

    /// Whether the running thread is a child of vfork.
    fn is_guest(&self) -> bool {
        if !is_running() {
            return false;
        }
        let current = sched().current;
        current < 32 && self.state().guests >> current & 1 != 0
    }

    /// From now on this is the child of a fork. Returns whether its parent had a helper.
    pub fn forked(&self) -> bool {
        let s = self.state();
        s.child = true;
        core::mem::take(&mut s.helper)
    }

    /// Whether this is the child of a fork.
    pub fn is_child(&self) -> bool {
        self.state().child
    }

    /// Starts the helper; false if there can be none.
    pub fn start_helper(&self) -> bool {
        let s = self.state();
        if s.child {
            return false;
        }
        if core::mem::replace(&mut s.helper, true) {
            finding("a helper is started while another one has not ended");
        }
        if self.is_guest() {
            finding("a child of vfork starts a helper, which ends with it");
        }
        sched().wake(START, true);
        true
    }

    /// Whether there is a helper.
    pub fn has_helper(&self) -> bool {
        self.state().helper
    }

    /// Records that the helper has done its last step.
    pub fn helper_ended(&self) {
        self.state().helper = false;
    }

    /// A new thread; `None` if the system does not report ends of threads. Sometimes it has the number of an ended
    /// thread.
    pub fn new_thread(&self) -> Option<Thread> {
        let s = self.state();
        s.threads += 1;
        let tells = self.has(habits::NUMBERS) && !s.random.one_in(4);
        let again = if s.random.one_in(2) { s.unused.pop() } else { None };
        let thread = Thread { number: again.unwrap_or(s.threads), place: s.threads as usize };
        s.places.insert(thread.number, thread.place);
        tells.then_some(thread)
    }

    /// Records that this thread has ended.
    pub fn thread_ended(&self, thread: Thread) {
        let s = self.state();
        s.places.remove(&thread.number);
        s.unused.push(thread.number);
    }

    /// Whether this thread has ended.
    pub fn has_ended(&self, thread: Thread) -> bool {
        self.state().places.get(&thread.number) != Some(&thread.place)
    }

    /// The clock in milliseconds.
    pub fn clock(&self) -> u64 {
        let now = sched().clock;
        if self.has(habits::COARSE) { now - now % 10 } else { now }
    }

    /// Microseconds for which other threads of the process have run.
    pub fn run_time(&self) -> u64 {
        // An idle program does not run.
        let now = self.state().kind.unwrap_or(sched().clock) * 1000;
        let now =
            if self.has(habits::IDLE) { now - now % 2_000_000 - self.state().random.below(20_000) as u64 } else { now };
        now * (1 + self.config.seed % 2) / 2
    }

    /// The memory that the process shares with others.
    pub fn memory(&self) -> Option<Memory> {
        let r = &mut self.state().random;
        match self.config.memory {
            1 => Some(Memory { limit: 64 << 30, used: 1 << 30, stalled: false }),
            2 => Some(Memory { limit: 1 << 30, used: (1 << 30) - (4 << 20), stalled: false }),
            3 => Some(Memory { limit: 256 << 20, used: 200 << 20, stalled: true }),
            4 => Some(Memory { limit: 256 << 20, used: r.below(256) << 20, stalled: false }),
            // Limits change, and may be lower than what is used.
            5 if !r.one_in(8) => {
                let limit = r.pick(&[0, 1 << 20, 64 << 20, 1 << 30, usize::MAX]);
                let used = r.pick(&[0, limit / 2, limit, limit.saturating_mul(2)]);
                Some(Memory { limit, used, stalled: r.one_in(8) })
            }
            _ => None,
        }
    }
}
