//! The driver: workers are child processes with their own seeds, so that a finding that ends a worker, or makes it
//! hang, does not end the search.

use crate::choices::Choices;
use crate::draw;
use crate::report::{FOUND, Shared, processor_time, watch};
use crate::run::simulate;
use crate::scenario::Scenario;
use core::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Limit on the time of a run, in seconds.
const HANGS: u64 = 60;

/// When a worker stops.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Steps of all workers together.
    pub steps: u64,
    /// Real time.
    pub time: Duration,
    /// Time of a processor, of all workers together.
    pub processor: Duration,
}

/// What a worker found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Seed of the run.
    pub seed: u64,
    /// What is wrong.
    pub what: String,
    /// Steps and runs of the worker up to then.
    pub steps: u64,
    /// Likewise.
    pub runs: u64,
}

impl Found {
    /// The finding without numbers and addresses, to distinguish faults.
    pub fn kind(&self) -> String {
        let what = self.what.split(" (").next().unwrap_or_default();
        what.chars().filter(|c| !c.is_ascii_digit()).collect()
    }
}

/// Sums of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Steps of all workers.
    pub steps: u64,
    /// Runs of all workers.
    pub runs: u64,
    /// Time of a processor that all workers took.
    pub processor: Duration,
}

impl Done {
    fn add(&mut self, shared: &Shared) {
        self.steps += shared.steps.load(Ordering::Relaxed);
        self.runs += shared.runs.load(Ordering::Relaxed);
        self.processor += Duration::from_nanos(shared.processor.load(Ordering::Relaxed));
    }
}

struct Worker {
    pid: i32,
    shared: &'static Shared,
    runs: u64,
    since: Instant,
}

/// Makes a child that runs `f`.
fn spawn(f: impl FnOnce(&'static Shared)) -> Worker {
    let shared = Shared::new();
    // SAFETY: the driver has one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // SAFETY: the worker ends with its driver.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        shared.adopt();
        watch();
        f(shared);
        // SAFETY: ends the worker.
        unsafe { libc::_exit(0) };
    }
    Worker { pid, shared, runs: 0, since: Instant::now() }
}

impl Worker {
    /// Whether the worker has ended, and what it found.
    fn poll(&mut self) -> Option<Option<Found>> {
        let mut status = 0;
        // SAFETY: the worker is a child of this process.
        let ended = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) } != 0;
        let runs = self.shared.runs.load(Ordering::Relaxed);
        if runs != self.runs {
            (self.runs, self.since) = (runs, Instant::now());
        }
        let hangs = !ended && self.since.elapsed() > Duration::from_secs(HANGS);
        if hangs {
            // SAFETY: as above.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, &raw mut status, 0);
            }
        }
        if !ended && !hangs {
            return None;
        }
        if ended && status == 0 {
            return Some(None);
        }
        let what = match self.shared.text() {
            text if !text.is_empty() => text,
            _ if hangs => format!("a run did not end in {HANGS} s"),
            _ => format!("the worker ended with wait status {status:#x}, not {FOUND}"),
        };
        let seed = self.shared.seed.load(Ordering::Relaxed);
        Some(Some(Found { seed, what, steps: self.shared.steps.load(Ordering::Relaxed), runs }))
    }
}

/// Runs a scenario in a child process, exhaustively if it says so; returns what was found, if anything, and what was
/// done.
pub fn run_one(scenario: &Scenario, most_steps: u64) -> (Option<Found>, Done) {
    let mut worker = spawn(|shared| {
        shared.seed.store(scenario.config.seed, Ordering::Relaxed);
        let (mut stacks, mut choices, mut steps) = (Vec::new(), Choices::new(scenario.config.rate as u32), 0);
        loop {
            steps += simulate(scenario, &mut stacks, &mut choices);
            shared.steps.store(steps, Ordering::Relaxed);
            shared.runs.fetch_add(1, Ordering::Relaxed);
            shared.note_time();
            if scenario.config.schedule != 2 || !choices.advance() || steps >= most_steps {
                return;
            }
        }
    });
    loop {
        if let Some(found) = worker.poll() {
            let mut done = Done::default();
            done.add(worker.shared);
            return (found, done);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A kind of finding: the first one, their number, and what preceded the first.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The first.
    pub first: Found,
    /// How many.
    pub count: u64,
    /// Time until the first, and what all workers had done by then.
    pub after: (Duration, Done),
}

/// Which findings end a search.
#[derive(Clone, Debug)]
pub enum Until {
    /// The first.
    Any,
    /// The first one with this text.
    Says(String),
    /// None: findings are collected.
    Never,
}

/// A worker that runs the scenario of every `every`-th seed from `first` on, until it has used `left`.
fn worker(first: u64, every: u64, left: Budget, end: Option<Instant>, adjust: &impl Fn(&mut Scenario)) -> Worker {
    spawn(move |shared| {
        let (mut stacks, mut done, mut seed) = (Vec::new(), 0, first);
        shared.seed.store(seed, Ordering::Relaxed);
        while done < left.steps && processor_time() < left.processor && end.is_none_or(|end| Instant::now() < end) {
            shared.seed.store(seed, Ordering::Relaxed);
            let mut scenario = draw::scenario(seed);
            adjust(&mut scenario);
            done += simulate(&scenario, &mut stacks, &mut Choices::default());
            shared.steps.store(done, Ordering::Relaxed);
            shared.runs.fetch_add(1, Ordering::Relaxed);
            shared.note_time();
            seed += every;
        }
    })
}

/// Runs the scenarios of the seeds from `first` on, on `jobs` processors, until a finding ends the search, or the
/// budget is used.
pub fn search(
    first: u64,
    jobs: u64,
    budget: Budget,
    until: &Until,
    adjust: impl Fn(&mut Scenario),
) -> (Vec<Finding>, Done) {
    let begin = Instant::now();
    let end = begin.checked_add(budget.time);
    let share = Budget { steps: budget.steps / jobs, processor: budget.processor / jobs as u32, ..budget };
    // Each with its share of the budget.
    let mut workers: Vec<(Worker, Budget)> =
        (0..jobs).map(|job| (worker(first + job, jobs, share, end, &adjust), share)).collect();
    let mut done = Done::default();
    let mut findings: Vec<Finding> = Vec::new();
    let mut over = false;
    while !workers.is_empty() {
        std::thread::sleep(Duration::from_millis(5));
        let mut i = 0;
        while i < workers.len() {
            let Some(result) = workers[i].0.poll() else {
                if over {
                    // SAFETY: a child of this process.
                    unsafe { libc::kill(workers[i].0.pid, libc::SIGKILL) };
                }
                i += 1;
                continue;
            };
            let (ended, mut left) = workers.swap_remove(i);
            let mut made = Done::default();
            made.add(ended.shared);
            done.add(ended.shared);
            let Some(found) = result.filter(|_| !over) else { continue };
            let next = found.seed + jobs;
            over = match until {
                Until::Any => true,
                Until::Says(text) => found.what.contains(text),
                Until::Never => false,
            };
            let mut all = done;
            workers.iter().for_each(|(worker, _)| all.add(worker.shared));
            match findings.iter_mut().find(|f| f.first.kind() == found.kind()) {
                Some(known) => known.count += 1,
                None => {
                    eprintln!("seed {}: {}", found.seed, found.what);
                    findings.push(Finding { first: found, count: 1, after: (begin.elapsed(), all) });
                }
            }
            left.steps = left.steps.saturating_sub(made.steps);
            left.processor = left.processor.saturating_sub(made.processor);
            if !over && left.steps > 0 && !left.processor.is_zero() && end.is_none_or(|end| Instant::now() < end) {
                workers.push((worker(next, jobs, left, end, &adjust), left));
            }
        }
    }
    (findings, done)
}
