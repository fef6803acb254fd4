//! What the system says of the process, and how that changes while it runs: its rights, its memory, its limits, its time.

use crate::helper;
use crate::random::Random;
use crate::scenario::Config;
use crate::sched::{is_running, sched};
use crate::world::world;
use core::cell::UnsafeCell;
use neap_core::os::{Memory, Onward, Thread};
use std::collections::BTreeMap;

/// What changes, and how the system answers: bits of [`Config::habits`].
pub mod habits {
    /// The clock has steps of 10 ms.
    pub const COARSE: u64 = 1;
    /// Half of all calls are refused for a while.
    pub const BURSTS: u64 = 2;
    /// Memory is locked for a while, so that none of it goes back.
    pub const LOCKS: u64 = 4;
    /// Mappings are resized where they are, if there is room.
    pub const STAYS: u64 = 8;
    /// A limit on address space comes and goes.
    pub const LIMITS: u64 = 16;
    /// What is refused was done in part.
    pub const PARTS: u64 = 32;
    /// The program does not run while its time goes by, and run times of threads that ended are missing.
    pub const IDLE: u64 = 64;
    /// The system tells whether a thread has ended.
    pub const NUMBERS: u64 = 128;
    /// The process gets other rights than the helper, or may make no more unusual calls for a while.
    pub const RIGHTS: u64 = 256;
    /// How many there are.
    pub const COUNT: u32 = 9;
}

/// A state that begins and ends by chance.
#[derive(Clone, Copy, Default)]
struct Phase {
    on: bool,
}

impl Phase {
    /// Asked once more: it begins once in `from` times, and ends once in `to`.
    fn ask(&mut self, r: &mut Random, from: u64, to: u64) -> bool {
        self.on = if self.on { !r.one_in(to) } else { r.one_in(from) };
        self.on
    }
}

struct State {
    random: Random,
    /// Nothing is in the way any more, since this time: the program only ends.
    kind: Option<u64>,
    /// The helper may do nothing before this time, and none may be started.
    forbidden: u64,
    /// Each helper is to finish before this time.
    finishes: u64,
    /// The helper's rights stay as they are meanwhile.
    held: bool,
    refusing: Phase,
    locked: Phase,
    limited: Phase,
    /// Where the thread of each number lives, and numbers of threads that have ended.
    places: BTreeMap<u32, usize>,
    unused: Vec<u32>,
    threads: u32,
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
        };
        Process { config, state: UnsafeCell::new(state) }
    }

    #[expect(clippy::mut_from_ref, reason = "one real thread; no reference lives over a point")]
    fn state(&self) -> &mut State {
        // SAFETY: as said.
        unsafe { &mut *self.state.get() }
    }

    /// Whether the system has this habit, and is not kind.
    pub fn has(&self, habit: u64) -> bool {
        self.config.habits & habit != 0 && self.state().kind.is_none()
    }

    /// From now on nothing is in the way.
    pub fn be_kind(&self) {
        self.state().kind = Some(sched().clock);
    }

    /// Whether the helper may go on for as long as it likes, from now on.
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

    /// Whether a limit that comes and goes is there at present, if asked now.
    pub fn is_limited(&self) -> bool {
        let s = self.state();
        !self.has(habits::LIMITS) || s.limited.ask(&mut s.random, 4, 4)
    }

    /// Whether a call that is refused is done in part.
    pub fn does_parts(&self) -> bool {
        self.has(habits::PARTS) && self.state().random.one_in(2)
    }

    /// Whether a mapping that is resized stays where it is, if it can.
    pub fn stays(&self) -> bool {
        self.has(habits::STAYS) && self.state().random.one_in(2)
    }

    /// What the helper is to do.
    pub fn onward(&self) -> Onward {
        if !self.has(habits::RIGHTS) || self.state().held {
            return Onward::Go;
        }
        let (s, now) = (self.state(), sched().clock);
        if s.random.one_in(8) {
            let until = now + s.random.pick(&[0, 100, 400, 1 << 40]);
            // A process that may not ask cannot tell whether a thread has ended.
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

    /// Whether the process may make no unusual call at present.
    pub fn is_forbidden(&self) -> bool {
        self.has(habits::RIGHTS) && is_running() && sched().clock < self.state().forbidden
    }

    /// The number of the process. A child of vfork is another one, in the same address space; so is a child of fork.
    pub fn number(&self) -> Option<u32> {
        let child = is_running() && world().is_child();
        (!self.is_forbidden()).then(|| 1 + u32::from(helper::is_guest()) + 2 * u32::from(child))
    }

    /// A new thread, `None` where the system does not tell. By chance with the number of one that has ended.
    pub fn new_thread(&self) -> Option<Thread> {
        let s = self.state();
        s.threads += 1;
        let tells = self.has(habits::NUMBERS) && !s.random.one_in(4);
        let again = if s.random.one_in(2) { s.unused.pop() } else { None };
        let thread = Thread { number: again.unwrap_or(s.threads), place: s.threads as usize };
        s.places.insert(thread.number, thread.place);
        tells.then_some(thread)
    }

    /// This thread has ended.
    pub fn thread_ended(&self, thread: Thread) {
        let s = self.state();
        s.places.remove(&thread.number);
        s.unused.push(thread.number);
    }

    /// Whether this thread has ended.
    pub fn has_ended(&self, thread: Thread) -> bool {
        self.state().places.get(&thread.number) != Some(&thread.place)
    }

    /// Milliseconds.
    pub fn clock(&self) -> u64 {
        let now = sched().clock;
        if self.has(habits::COARSE) { now - now % 10 } else { now }
    }

    /// Microseconds that other threads of the process have run.
    pub fn run_time(&self) -> u64 {
        // A program that is idle runs no more.
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
            // Limits come and go, and may be lower than what is used.
            5 if !r.one_in(8) => {
                let limit = r.pick(&[0, 1 << 20, 64 << 20, 1 << 30, usize::MAX]);
                let used = r.pick(&[0, limit / 2, limit, limit.saturating_mul(2)]);
                Some(Memory { limit, used, stalled: r.one_in(8) })
            }
            _ => None,
        }
    }
}
