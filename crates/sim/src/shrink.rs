//! Makes a failing scenario short: leaves out threads, operations and peculiarities of the system while it still fails
//! in the same way under one of a few seeds of the schedule.

use crate::driver::{Found, run_one};
use crate::scenario::Scenario;
use std::time::{Duration, Instant};

/// Seeds that are tried for each shorter scenario.
const TRIES: u64 = 24;

/// The shortest scenario found in `time`, and how it fails.
pub fn shrink(scenario: &Scenario, found: &Found, time: Duration) -> (Scenario, Found) {
    let (end, kind) = (Instant::now() + time, found.kind());
    let (mut best, mut how) = (scenario.clone(), found.clone());
    let try_one = |candidate: &Scenario, best: &mut Scenario, how: &mut Found| {
        let first = best.config.seed;
        for try_number in 0..TRIES {
            if Instant::now() > end {
                return false;
            }
            let mut candidate = candidate.clone();
            candidate.config.seed = if try_number == 0 { first } else { try_number };
            if let (Some(found), _) = run_one(&candidate, u64::MAX)
                && found.kind() == kind
            {
                (*best, *how) = (candidate, found);
                return true;
            }
        }
        false
    };
    loop {
        let mut shorter = false;
        // Threads, from the last on.
        for i in (0..best.threads.len()).rev() {
            if best.threads.len() > 1 {
                let mut candidate = best.clone();
                candidate.threads.remove(i);
                shorter |= try_one(&candidate, &mut best, &mut how);
            }
        }
        for config in best.config.simpler() {
            let candidate = Scenario { config, ..best.clone() };
            shorter |= try_one(&candidate, &mut best, &mut how);
        }
        // Operations: large parts first.
        for thread in 0..best.threads.len() {
            let mut part = best.threads[thread].len() / 2;
            while part > 0 {
                let mut at = 0;
                while at < best.threads[thread].len() && Instant::now() < end {
                    let mut candidate = best.clone();
                    let to = (at + part).min(candidate.threads[thread].len());
                    candidate.threads[thread].drain(at..to);
                    if try_one(&candidate, &mut best, &mut how) {
                        shorter = true;
                    } else {
                        at += part;
                    }
                }
                part /= 2;
            }
        }
        if !shorter || Instant::now() > end {
            return (best, how);
        }
    }
}
