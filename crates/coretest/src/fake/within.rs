//! Runs a function of the test in the middle of a call of the system.

use std::sync::{Mutex, PoisonError};

/// The calls in the middle of which a test may run a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// `Os::has_ended`: whether a thread has ended.
    Question,
    /// `Os::pause`: a fork waits for calls, or a thread for a fork.
    Pause,
    /// `Os::purge_runs`: several ranges are purged.
    PurgeRuns,
    /// `Os::publish`: at the end of a purge.
    Publish,
    /// `Os::clock`: at the beginning of a tick, among others.
    Clock,
    /// `Threads::rest`: the helper sleeps.
    Rest,
}

/// The function to run in the next call of a kind.
type Plan = (Moment, fn());

/// The plan, until that call is made.
#[derive(Debug, Default)]
pub(super) struct Within(Mutex<Option<Plan>>);

impl Within {
    pub fn set(&self, moment: Moment, f: fn()) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((moment, f));
    }

    /// Runs the function, if it is planned for this kind of call.
    pub fn reach(&self, moment: Moment) {
        let f = self.0.lock().unwrap_or_else(PoisonError::into_inner).take_if(|(wanted, _)| *wanted == moment);
        if let Some((_, f)) = f {
            f();
        }
    }
}
