//! Decides which rollup or account of a process is most worth its cost next.

use crate::model::{Aged, Mark, Process};
use std::time::{Duration, Instant};

/// How much is spent on rollups and accounts, and how old they may become where that suffices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The part of one processor: 0.005 is half a percent.
    pub share: f64,
    /// Age at which a rollup is made again.
    pub rollup: Duration,
    /// Age at which an account is made again.
    pub account: Duration,
}

/// No process takes more than this part of the budget for one kind of job.
const PART: f64 = 0.25;
/// What an account costs where none was made yet, by what is resident: 1 ms, and 1 ms for each 10 MiB.
const UNKNOWN: (u64, u64) = (1, 10 << 20);

/// A process that has not run since is looked at this many times more rarely: only others can have changed its Pss.
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
    /// When that started, as a check.
    pub started: u64,
    /// The same for the program.
    pub program: (u64, u64),
    /// What.
    pub what: What,
    /// That of the last look.
    pub mark: Mark,
}

/// How urgent it is to make something again: from 1 on it is due. What was never made comes first, the larger the
/// process the earlier, and within that the rollups.
fn urgency<T>(made: Option<&Aged<T>>, mark: Mark, wanted: Duration, first: f64, share: f64, now: Instant) -> f64 {
    let Some(made) = made else { return first };
    let wanted = if made.mark == mark { wanted * STILL } else { wanted };
    let least = made.cost.as_secs_f64() / (share * PART).max(1e-9);
    let age = now.saturating_duration_since(made.at).as_secs_f64();
    age / wanted.as_secs_f64().max(least).max(1e-3)
}

/// The most urgent thing to do, if any is due. Where `focus` is given, only processes in it are accounted for.
pub fn next<'p>(
    processes: impl Iterator<Item = &'p Process>,
    pace: &Pace,
    focus: Option<&[u32]>,
    now: Instant,
) -> Option<Job> {
    let mut best: Option<(f64, Job)> = None;
    for process in processes.filter(|process| process.is_readable(now)) {
        let mark = process.light.mark();
        let job =
            |what| Job { pid: process.pid, started: process.light.started, program: process.light.program, what, mark };
        let size = process.light.rss as f64;
        let rollup = urgency(process.rollup.as_ref(), mark, pace.rollup, 1e15 + size, pace.share, now);
        let account = match focus.is_none_or(|focus| focus.contains(&process.pid)) {
            true => urgency(process.account.as_ref(), mark, pace.account, 1e3 + size, pace.share, now),
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

    /// Catches small processes before large ones, a costly process that takes all of the budget, jobs before they are
    /// due, processes that rest and are looked at as often as others, and a process that failed once and is never tried
    /// again.
    #[test]
    fn the_most_urgent_first() {
        let pace = Pace { share: 0.01, rollup: Duration::from_secs(10), account: Duration::from_secs(100) };
        let start = Instant::now();
        let now = start + Duration::from_secs(20);
        let choose =
            |all: &[Process], focus: Option<&[u32]>| next(all.iter(), &pace, focus, now).map(|job| (job.pid, job.what));
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
