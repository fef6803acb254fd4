//! Decides which rollup or account is made next.

use crate::model::{Aged, Mark, Process};
use std::time::{Duration, Instant};

/// The budget of rollups and accounts, and their ages if the budget suffices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The fraction of one processor: 0.005 is half a percent. With 0 there are none.
    pub share: f64,
    /// Age at which a rollup is made again.
    pub rollup: Duration,
    /// Age at which an account is made again.
    pub account: Duration,
    /// Large processes are read by the kernel's own lists too, for which they have to wait.
    pub exact: bool,
    /// First accounts come before first rollups.
    pub accounts_first: bool,
}

/// No process takes more than this fraction of the budget for one kind of job.
const PART: f64 = 0.25;
/// The assumed cost of a first account: 1 ms, and 1 ms for each 10 MiB of resident memory.
const UNKNOWN: (u64, u64) = (1, 10 << 20);

/// Jobs of a process that has not run since the last one are this many times rarer: only other processes can have
/// changed its Pss.
const STILL: u32 = 12;

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Pss and huge pages.
    Rollup,
    /// The account.
    Account,
}

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The process.
    pub pid: u32,
    /// When it started, as a check.
    pub started: u64,
    /// Where its program begins, as a check.
    pub program: (u64, u64),
    /// What.
    pub what: What,
    /// The mark of the process when the job was chosen.
    pub mark: Mark,
}

/// The urgency of a job: from 1 on it is due. What was never made comes first: rollups before accounts or the other way,
/// and within each the largest process first.
fn urgency<T>(made: Option<&Aged<T>>, mark: Mark, wanted: Duration, first: f64, share: f64, now: Instant) -> f64 {
    let Some(made) = made else { return first };
    let wanted = if made.mark == mark { wanted * STILL } else { wanted };
    let least = made.cost.as_secs_f64() / (share * PART).max(1e-9);
    let age = now.saturating_duration_since(made.at).as_secs_f64();
    age / wanted.as_secs_f64().max(least).max(1e-3)
}

/// The most urgent job, if any is due. With `focus`, only its processes get accounts.
pub fn next<'p>(
    processes: impl Iterator<Item = &'p Process>,
    pace: &Pace,
    focus: Option<&[u32]>,
    now: Instant,
) -> Option<Job> {
    let mut best: Option<(f64, Job)> = None;
    if pace.share <= 0.0 {
        return None;
    }
    for process in processes.filter(|process| process.is_readable(now)) {
        let mark = process.light.mark();
        let job =
            |what| Job { pid: process.pid, started: process.light.started, program: process.light.program, what, mark };
        let size = process.light.rss as f64;
        let first = if pace.accounts_first { 1.0 } else { 1e15 };
        let rollup = urgency(process.rollup.as_ref(), mark, pace.rollup, first + size, pace.share, now);
        let account = if pace.accounts_first { 1e15 } else { 1e3 };
        let account = match focus.is_none_or(|focus| focus.contains(&process.pid)) {
            true => urgency(process.account.as_ref(), mark, pace.account, account + size, pace.share, now),
            false => 0.0,
        };
        for (urgency, job) in [(rollup, job(What::Rollup)), (account, job(What::Account))] {
            if urgency >= 1.0 && best.as_ref().is_none_or(|(most, _)| urgency > *most) {
                best = Some((urgency, job));
            }
        }
    }
    best.map(|(_, job)| job)
}

/// What a job is expected to cost.
pub fn expected(process: &Process, what: What) -> Duration {
    let guess = Duration::from_millis(UNKNOWN.0 + process.light.rss / UNKNOWN.1);
    match what {
        What::Rollup => process.rollup.as_ref().map_or(guess / 4, |made| made.cost),
        What::Account => process.account.as_ref().map_or(guess, |made| made.cost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Light, Rollup};

    fn process(pid: u32, rss: u64, rolled: Option<(Instant, u64)>) -> Process {
        let cost = Duration::from_millis;
        let aged = |(at, millis)| Aged { value: Rollup::default(), at, cost: cost(millis), mark: Mark::default() };
        Process {
            pid,
            command: String::new(),
            container: String::new(),
            allocator: String::new(),
            light: Light { rss, ..Light::default() },
            neap: None,
            rollup: rolled.map(aged),
            account: None,
            denied: false,
            failed: None,
        }
    }

    /// Catches small processes before large ones, an expensive process that takes the whole budget, jobs before they
    /// are due, idle processes that are read as often as others, and a process that failed once and is never tried
    /// again.
    #[test]
    fn the_most_urgent_first() {
        let pace = Pace {
            share: 0.01,
            rollup: Duration::from_secs(10),
            account: Duration::from_secs(100),
            exact: false,
            accounts_first: false,
        };
        let start = Instant::now();
        let now = start + Duration::from_secs(20);
        let choose =
            |all: &[Process], focus: Option<&[u32]>| next(all.iter(), &pace, focus, now).map(|job| (job.pid, job.what));
        let first = Pace { accounts_first: true, ..pace };
        let of = next([process(1, 5, None), process(2, 50, None)].iter(), &first, None, now);
        assert_eq!(of.map(|job| (job.pid, job.what)), Some((2, What::Account)));
        let none = Pace { share: 0.0, ..pace };
        assert_eq!(next([process(1, 5, None)].iter(), &none, None, now), None);
        let all = [process(1, 5, None), process(2, 50, None), process(3, 9, Some((start, 1)))];
        assert_eq!(choose(&all, None), Some((2, What::Rollup)));
        assert_eq!(choose(&all[2..], None), Some((3, What::Account)));
        assert_eq!(choose(&all[2..], Some(&[])), Some((3, What::Rollup)));
        // 100 ms in 20 s would be half of the budget.
        assert_eq!(choose(&[process(4, 9, Some((start, 100)))], Some(&[])), None);
        assert_eq!(choose(&[process(4, 9, Some((now, 1)))], Some(&[])), None);
        let mut rests = process(3, 9, Some((start, 1)));
        if let Some(rollup) = &mut rests.rollup {
            rollup.mark = rests.light.mark();
        }
        let later = start + Duration::from_secs(121);
        assert_eq!(choose(&[rests.clone()], Some(&[])), None);
        assert!(next([rests].iter(), &pace, Some(&[]), later).is_some());
        let denied = Process { denied: true, ..process(5, 9, None) };
        assert_eq!(choose(&[denied], None), None);
        let failed = |ago| Process { failed: now.checked_sub(Duration::from_secs(ago)), ..process(6, 9, None) };
        assert_eq!(choose(&[failed(5)], None), None);
        assert_eq!(choose(&[failed(60)], None), Some((6, What::Rollup)));
    }
}
