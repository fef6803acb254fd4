//! The scheduler: virtual threads are coroutines of one real thread, and run one at a time. A thread yields at
//! *points*: at each atomic operation of the core, and before, in and after each system call. Only the seed decides
//! which thread is next, so a run can be repeated.

use crate::choices::Choices;
use crate::places::Places;
use crate::random::Random;
use crate::report;
use crate::stack::ThreadStack;
use core::panic::Location;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use neap_core::points::Point;

/// No thread: the scheduler itself runs.
pub const NONE: usize = usize::MAX;
/// Limit on a system call, or a time without the processor, in steps of other threads.
const LONG: u64 = 20_000;
/// Limit on a pause of a thread, in the same unit.
const PAUSE: u64 = 1000;
/// Limit on the handlers of a run.
const HANDLERS: u32 = 400;
/// Key of a thread that has no processor for some milliseconds: nothing wakes it.
const STOPPED: usize = 6;
/// Steps without the end of an operation after which the run counts as livelocked.
const STUCK: u64 = 3_000_000;

/// How the next thread is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Any thread, after a random number of steps with this mean.
    Random(u64),
    /// The thread of highest priority; at this many random steps the running one gets the lowest (PCT).
    Priorities(u64),
    /// The choices of an earlier run, see [`Choices`].
    Exhaustive,
}

/// What keeps a thread from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Ready,
    /// A system call that takes until this step, or until no other thread can run.
    Late(u64),
    /// It waits until this key is woken, or until a time.
    Waits(usize, u64),
    /// It has ended.
    Done,
}

/// A wait without a limit.
pub const FOREVER: u64 = u64::MAX;

struct Thread {
    name: &'static str,
    state: State,
    priority: u64,
    coroutine: Option<Coroutine<(), (), (), ThreadStack>>,
    yielder: *const Yielder<(), ()>,
    /// Number of handlers that run on it.
    handlers: u32,
    /// Whether it blocks signals.
    blocks: bool,
}

/// The scheduler of a run.
pub struct Sched {
    threads: Vec<Thread>,
    /// The running thread, or [`NONE`].
    pub current: usize,
    /// Points do nothing while this is not 0.
    pub quiet: u32,
    /// Points so far, and the points that were skipped because all threads were late.
    pub steps: u64,
    skipped: u64,
    /// The next step with an event.
    next: u64,
    next_switch: u64,
    next_handler: u64,
    policy: Policy,
    /// Mean steps between two handlers; 0: there are none.
    handler_mean: u64,
    handler: fn(),
    /// Number of handlers that may still run.
    handlers_left: u32,
    /// Step of the last progress.
    progress: u64,
    changes: Vec<u64>,
    lowest: u64,
    /// A thread is stopped at a place once in this many first visits, and once in n times as many n-th visits; 0:
    /// never.
    pub rare: u64,
    places: Places,
    random: Random,
    /// Virtual time in milliseconds.
    pub clock: u64,
    /// Milliseconds that passed while all threads slept, since the last progress.
    slept: u64,
    /// For [`Policy::Exhaustive`].
    pub choices: Choices,
    /// Called at updates and system calls: makes the thread's stores visible to the others.
    flush: fn(usize),
    /// Whether an exhaustive search varies the order at present.
    pub explores: bool,
    /// The thread that an exhaustive search chose.
    forced: usize,
    /// Whether no other thread is left: in the child of a fork.
    pub alone: bool,
}

static mut SCHED: *mut Sched = core::ptr::null_mut();

/// The scheduler of the present run.
pub fn sched() -> &'static mut Sched {
    // SAFETY: there is one real thread, and a run in progress. References do not live over a switch.
    unsafe { &mut *SCHED }
}

/// Whether a run is in progress.
pub fn is_running() -> bool {
    // SAFETY: there is one real thread.
    unsafe { !SCHED.is_null() }
}

/// The position of the run, for a finding.
fn place() -> String {
    if !is_running() {
        return String::new();
    }
    let s = sched();
    let child = if s.alone { ", in the child of a fork" } else { "" };
    let handler = if s.in_handler() { ", in a handler" } else { "" };
    let thread = if s.current == NONE { String::new() } else { format!(", thread {}", s.current) };
    format!(" (step {}{thread}{handler}{child})", s.steps)
}

/// Runs `f` without points.
pub fn quietly<R>(f: impl FnOnce() -> R) -> R {
    sched().quiet += 1;
    let result = f();
    sched().quiet -= 1;
    result
}

/// Called before each atomic operation.
pub fn point(kind: Point, place: &'static Location<'static>) {
    // SAFETY: there is one real thread.
    let s = unsafe { SCHED };
    if s.is_null() {
        return;
    }
    // SAFETY: the run's scheduler.
    let s = unsafe { &mut *s };
    if s.quiet != 0 || s.current == NONE {
        return;
    }
    s.steps += 1;
    if kind == Point::Update {
        (s.flush)(s.current);
    }
    if s.rare != 0 && s.is_rare(place) {
        s.stop_here();
    } else if s.steps >= s.next {
        s.event();
    }
}

/// A point in a system call, which may take long.
pub fn late(one_in: u64) {
    let s = sched();
    if s.quiet != 0 || s.current == NONE {
        return;
    }
    s.steps += 1;
    (s.flush)(s.current);
    if let Policy::Random(_) = s.policy
        && s.random.one_in(one_in)
        && !s.alone
    {
        let until = s.steps + s.random.scale(LONG);
        s.threads[s.current].state = State::Late(until);
        return s.switch();
    }
    if s.steps >= s.next || s.random.one_in(4) {
        s.event();
    }
}

impl Sched {
    /// A scheduler without threads. `handler` runs on a thread at random steps, `handler_mean` apart.
    pub fn new(seed: u64, policy: Policy, handler_mean: u64, handler: fn(), flush: fn(usize)) -> Self {
        let mut random = Random::new(seed, 1);
        let changes = match policy {
            Policy::Priorities(depth) => {
                let most = random.scale(400_000).max(2000);
                let mut changes: Vec<u64> = (0..depth).map(|_| 1 + random.next() % most).collect();
                changes.sort_unstable_by(|a, b| b.cmp(a));
                changes
            }
            _ => Vec::new(),
        };
        let mut s = Sched {
            threads: Vec::new(),
            current: NONE,
            quiet: 0,
            steps: 0,
            skipped: 0,
            next: 0,
            next_switch: 0,
            next_handler: 0,
            policy,
            handler_mean,
            handler,
            handlers_left: HANDLERS,
            progress: 0,
            changes,
            lowest: 1 << 32,
            rare: 0,
            places: Places::new(),
            random,
            clock: 1_000_000,
            slept: 0,
            choices: Choices::default(),
            explores: true,
            flush,
            forced: NONE,
            alone: false,
        };
        s.plan_switch();
        s.plan_handler();
        s
    }

    /// A new thread that runs `f`.
    pub fn spawn(&mut self, name: &'static str, stack: ThreadStack, f: impl FnOnce() + 'static) {
        let index = self.threads.len();
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            sched().threads[index].yielder = yielder;
            f();
        });
        let priority = (1 << 33) + (self.random.next() >> 32);
        let state = State::Ready;
        let yielder = core::ptr::null();
        self.threads.push(Thread {
            name,
            state,
            priority,
            coroutine: Some(coroutine),
            yielder,
            handlers: 0,
            blocks: false,
        });
    }

    /// Runs all threads until the first `mortal` ones have ended.
    pub fn run(&mut self, mortal: usize) {
        // SAFETY: one real thread.
        unsafe { SCHED = self };
        report::set_place(place);
        while self.threads[..mortal].iter().any(|t| t.state != State::Done) {
            let next = self.choose();
            self.current = next;
            let mut coroutine = self.threads[next].coroutine.take().expect("a thread that is not done");
            let result = coroutine.resume(());
            let thread = &mut self.threads[next];
            thread.coroutine = Some(coroutine);
            if let CoroutineResult::Return(()) = result {
                (self.flush)(next);
                thread.state = State::Done;
            }
            self.current = NONE;
        }
    }

    /// The stacks of the threads, which no longer run.
    pub fn into_stacks(mut self) -> Vec<ThreadStack> {
        // SAFETY: one real thread.
        unsafe { SCHED = core::ptr::null_mut() };
        let coroutines = self.threads.drain(..).filter_map(|t| t.coroutine);
        coroutines
            .map(|mut c| {
                // SAFETY: what lies on the stack of a helper that waits is plain data.
                unsafe { c.force_reset() };
                c.into_stack()
            })
            .collect()
    }

    fn plan_switch(&mut self) {
        self.next_switch = match self.policy {
            Policy::Random(mean) => self.steps + self.random.wait(mean),
            Policy::Priorities(_) => self.changes.last().copied().unwrap_or(u64::MAX),
            Policy::Exhaustive => self.steps,
        };
    }

    fn plan_handler(&mut self) {
        self.next_handler =
            if self.handler_mean == 0 { u64::MAX } else { self.steps + self.random.wait(self.handler_mean) };
        self.next = self.next_switch.min(self.next_handler).min(self.stuck());
    }

    /// The step at which the run counts as livelocked.
    fn stuck(&self) -> u64 {
        self.progress + STUCK + self.skipped + 1
    }

    /// Handles the event at this step.
    fn event(&mut self) {
        if self.real_steps() > self.progress + STUCK {
            report::finding("no thread gets on: no operation ended for millions of steps");
        }
        if self.steps >= self.next_handler {
            let thread = &self.threads[self.current];
            if thread.handlers < 2 && thread.name == "thread" && !thread.blocks && self.handlers_left > 0 {
                self.handlers_left -= 1;
                let me = self.current;
                self.threads[me].handlers += 1;
                // Handlers may come in it as well, but rarely enough for it to end.
                self.handler_mean *= 4;
                self.plan_handler();
                (self.handler)();
                let s = sched();
                s.handler_mean /= 4;
                s.threads[me].handlers -= 1;
            }
            sched().plan_handler();
        }
        let s = sched();
        if s.steps >= s.next_switch || s.policy == Policy::Exhaustive {
            match s.policy {
                Policy::Priorities(_) => {
                    while s.changes.last().is_some_and(|&at| at <= s.steps) {
                        s.changes.pop();
                        s.lowest -= 1;
                        s.threads[s.current].priority = s.lowest;
                    }
                }
                Policy::Exhaustive => {
                    let others = s.ready().filter(|&i| i != s.current).count();
                    if others == 0 || !s.explores || s.choices.switches >= s.choices.bound {
                        return;
                    }
                    match s.choices.choose(others + 1) {
                        0 => return,
                        n => {
                            s.choices.switches += 1;
                            let chosen = s.ready().filter(|&i| i != s.current).nth(n - 1);
                            s.forced = chosen.unwrap_or(NONE);
                        }
                    }
                }
                Policy::Random(_) => {
                    // Sometimes takes the processor away for long.
                    if s.random.one_in(4) && !s.alone {
                        s.threads[s.current].state = State::Late(s.steps + s.random.scale(LONG));
                    }
                }
            }
            s.plan_switch();
            s.next = s.next_switch.min(s.next_handler).min(s.stuck());
            s.switch();
        } else {
            s.next = s.next_switch.min(s.next_handler).min(s.stuck());
        }
    }

    /// Whether to stop the running thread at this place.
    fn is_rare(&mut self, place: &Location<'_>) -> bool {
        let times = u64::from(self.places.visit(place));
        self.random.one_in(self.rare * times) && !self.alone
    }

    /// Stops the running thread, mostly for long.
    fn stop_here(&mut self) {
        match self.policy {
            Policy::Random(_) => match self.random.below(8) {
                0 | 1 => {}
                // For longer than others sleep.
                2 | 3 => {
                    let until = self.clock + self.random.pick(&[1, 10, 30, 100]);
                    self.threads[self.current].state = State::Waits(STOPPED, until);
                }
                _ => self.threads[self.current].state = State::Late(self.steps + self.random.scale(LONG)),
            },
            Policy::Priorities(_) => {
                self.lowest -= 1;
                self.threads[self.current].priority = self.lowest;
            }
            Policy::Exhaustive => return,
        }
        self.switch();
    }

    /// Threads that can run at this time and step.
    fn ready(&self) -> impl Iterator<Item = usize> + '_ {
        let is_ready = |t: &Thread| match t.state {
            State::Ready => true,
            State::Late(until) => until <= self.steps,
            State::Waits(_, until) => until <= self.clock,
            State::Done => false,
        };
        self.threads.iter().enumerate().filter(move |(_, t)| is_ready(t)).map(|(i, _)| i)
    }

    fn choose(&mut self) -> usize {
        loop {
            if self.forced != NONE {
                return core::mem::replace(&mut self.forced, NONE);
            }
            let count = self.ready().count();
            if count > 0 {
                let n = match self.policy {
                    Policy::Random(_) => self.random.below(count),
                    Policy::Exhaustive if count > 1 && self.explores => self.choices.choose(count),
                    Policy::Exhaustive => 0,
                    Policy::Priorities(_) => {
                        return self.ready().max_by_key(|&i| self.threads[i].priority).unwrap_or(NONE);
                    }
                };
                let next = self.ready().nth(n).unwrap_or(NONE);
                self.threads[next].state = State::Ready;
                return next;
            }
            self.let_time_pass();
        }
    }

    /// No thread can run: the first late call ends, or time passes until the first sleeper wakes.
    fn let_time_pass(&mut self) {
        let late =
            self.threads.iter().filter_map(|t| if let State::Late(until) = t.state { Some(until) } else { None });
        if let Some(until) = late.min() {
            self.skipped += until.saturating_sub(self.steps);
            self.steps = self.steps.max(until);
            return;
        }
        let wakes = self.threads.iter().filter_map(|t| match t.state {
            State::Waits(_, until) if until != FOREVER => Some(until),
            _ => None,
        });
        let Some(until) = wakes.min() else {
            report::finding(&format!("deadlock: {}", self.waits()));
        };
        self.progress = self.real_steps();
        self.slept += until - self.clock;
        if self.slept > 3_600_000 {
            report::finding(&format!("only sleepers get on: {}", self.waits()));
        }
        self.clock = until;
    }

    fn waits(&self) -> String {
        let one = |(i, t): (usize, &Thread)| format!("{} {i}: {:x?}", t.name, t.state);
        self.threads.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Switches to another thread, or continues this one.
    pub fn switch(&mut self) {
        if self.alone {
            if self.threads[self.current].state != State::Ready {
                self.wait_alone();
            }
            return;
        }
        if self.threads[self.current].state != State::Ready {
            // Without a processor a thread has no store buffer. With one, others run beside it.
            (self.flush)(self.current);
        }
        let yielder = self.threads[self.current].yielder;
        // SAFETY: the yielder of the running thread, on its stack.
        unsafe { (*yielder).suspend(()) };
        let s = sched();
        s.threads[s.current].state = State::Ready;
    }

    fn wait_alone(&mut self) {
        match self.threads[self.current].state {
            State::Waits(_, FOREVER) => report::finding("deadlock in the child of a fork"),
            State::Waits(_, until) => self.clock = self.clock.max(until),
            _ => {}
        }
        self.threads[self.current].state = State::Ready;
    }

    /// The running thread pauses for some steps of others, whether they make progress or not.
    pub fn pause(&mut self) {
        let until = self.steps + self.random.scale(PAUSE);
        self.threads[self.current].state = State::Late(until);
        self.switch();
    }

    /// The running thread waits for a wake of `key`, or until the time `until`.
    pub fn wait(&mut self, key: usize, until: u64) {
        self.threads[self.current].state = State::Waits(key, until);
        self.switch();
    }

    /// Wakes one thread that waits for `key`, or all.
    pub fn wake(&mut self, key: usize, all: bool) {
        let waits = |t: &Thread| matches!(t.state, State::Waits(k, _) if k == key);
        let mut woken: Vec<usize> = (0..self.threads.len()).filter(|&i| waits(&self.threads[i])).collect();
        if !all && woken.len() > 1 {
            let one = self.random.below(woken.len());
            woken = vec![woken[one]];
        }
        for i in woken {
            self.threads[i].state = State::Ready;
            if matches!(self.policy, Policy::Priorities(_)) && self.current != NONE {
                // It may have a higher priority.
                self.next_switch = self.steps;
                self.next = self.steps;
            }
        }
    }

    /// Records the end of an operation.
    pub fn note_progress(&mut self) {
        self.progress = self.real_steps();
        self.slept = 0;
    }

    /// Lets milliseconds pass.
    pub fn pass(&mut self, milliseconds: u64) {
        self.clock += milliseconds;
        if matches!(self.policy, Policy::Priorities(_)) {
            // A sleeper that wakes may have a higher priority.
            (self.next_switch, self.next) = (self.steps, self.steps);
        }
    }

    /// Whether all threads but the running one are `at` the key, or have ended.
    pub fn all_wait(&self, at: &[usize]) -> bool {
        self.threads.iter().enumerate().all(|(i, t)| match t.state {
            _ if i == self.current => true,
            State::Done => true,
            State::Waits(key, _) => at.contains(&key),
            _ => false,
        })
    }

    /// Sets whether the running thread blocks signals.
    pub fn block_handlers(&mut self, blocks: bool) {
        if self.current != NONE {
            self.threads[self.current].blocks = blocks;
        }
    }

    /// Runs no more handlers on this thread.
    pub fn stop_handlers_of_thread(&mut self) {
        self.threads[self.current].name = "ending";
    }

    /// Points so far.
    pub fn real_steps(&self) -> u64 {
        self.steps - self.skipped
    }

    /// Whether a handler runs on the running thread.
    pub fn in_handler(&self) -> bool {
        self.current != NONE && self.threads[self.current].handlers > 0
    }
}
