//! The driver: workers are children of its own, each with its seeds, so that a finding that ends a worker, or hangs it,
//! does not end the search.

use crate::report::{FOUND, Shared, watch};
use crate::scenario::Scenario;
use crate::sched::Choices;
use core::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest time of a single run, in seconds.
const HANGS: u64 = 60;

/// When a worker stops by itself.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Steps of all workers together.
    pub steps: u64,
    /// Real time.
    pub time: Duration,
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
    /// What is wrong without numbers and places, to tell one fault from another.
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

/// Runs a scenario in a child of its own, exhaustively if it says so; what was found, if anything, and the steps.
pub fn run_one(scenario: &Scenario, most_steps: u64) -> (Option<Found>, u64) {
    let mut worker = spawn(|shared| {
        shared.seed.store(scenario.config.seed, Ordering::Relaxed);
        let (mut stacks, mut choices, mut steps) = (Vec::new(), Choices::new(scenario.config.rate as u32), 0);
        loop {
            steps += crate::simulate(scenario, &mut stacks, &mut choices);
            shared.steps.store(steps, Ordering::Relaxed);
            shared.runs.fetch_add(1, Ordering::Relaxed);
            if scenario.config.schedule != 2 || !choices.advance() || steps >= most_steps {
                return;
            }
        }
    });
    loop {
        if let Some(found) = worker.poll() {
            return (found, worker.shared.steps.load(Ordering::Relaxed));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A kind of finding: the first of its kind, how many there were, and after which time and steps of all workers the first
/// came.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The first.
    pub first: Found,
    /// How many.
    pub count: u64,
    /// Time and steps up to the first.
    pub after: (Duration, u64),
}

/// Which findings end a search.
#[derive(Clone, Debug)]
pub enum Until {
    /// The first.
    Any,
    /// The first that says this.
    Says(String),
    /// None: findings are collected.
    Never,
}

fn worker(first: u64, every: u64, steps: u64, end: Option<Instant>, adjust: &impl Fn(&mut Scenario)) -> Worker {
    spawn(move |shared| {
        let (mut stacks, mut done, mut seed) = (Vec::new(), 0, first);
        shared.seed.store(seed, Ordering::Relaxed);
        while done < steps && end.is_none_or(|end| Instant::now() < end) {
            shared.seed.store(seed, Ordering::Relaxed);
            let mut scenario = Scenario::draw(seed);
            adjust(&mut scenario);
            done += crate::simulate(&scenario, &mut stacks, &mut Choices::default());
            shared.steps.store(done, Ordering::Relaxed);
            shared.runs.fetch_add(1, Ordering::Relaxed);
            seed += every;
        }
    })
}

/// Runs the scenarios of the seeds from `first` on, on `jobs` processors, until something is found that ends the search,
/// or the budget is used.
pub fn search(
    first: u64,
    jobs: u64,
    budget: Budget,
    until: &Until,
    adjust: impl Fn(&mut Scenario),
) -> (Vec<Finding>, Done) {
    let begin = Instant::now();
    let end = begin.checked_add(budget.time);
    let steps = budget.steps / jobs;
    // Each with the steps that those before it made.
    let mut workers: Vec<(Worker, u64)> =
        (0..jobs).map(|job| (worker(first + job, jobs, steps, end, &adjust), 0)).collect();
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
            let (ended, before) = workers.swap_remove(i);
            let made = ended.shared.steps.load(Ordering::Relaxed);
            done.steps += made;
            done.runs += ended.shared.runs.load(Ordering::Relaxed);
            let Some(found) = result.filter(|_| !over) else { continue };
            let next = found.seed + jobs;
            over = match until {
                Until::Any => true,
                Until::Says(text) => found.what.contains(text),
                Until::Never => false,
            };
            let others: u64 = workers.iter().map(|(w, _)| w.shared.steps.load(Ordering::Relaxed)).sum();
            match findings.iter_mut().find(|f| f.first.kind() == found.kind()) {
                Some(known) => known.count += 1,
                None => {
                    findings.push(Finding { first: found, count: 1, after: (begin.elapsed(), done.steps + others) })
                }
            }
            let left = steps.saturating_sub(before + made);
            if !over && left > 0 && end.is_none_or(|end| Instant::now() < end) {
                workers.push((worker(next, jobs, left, end, &adjust), before + made));
            }
        }
    }
    (findings, done)
}
