//! What a test has happen in the middle of a call of the system.

use std::sync::{Mutex, PoisonError};

/// Calls in the middle of which a test may have something happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The question whether a thread has ended.
    Question,
    /// Several ranges are purged.
    PurgeRuns,
    /// Figures are published: at the end of a purge.
    Publish,
}

/// What happens in the next call of a kind.
type Plan = (Moment, fn());

/// The plan, until that call.
#[derive(Debug, Default)]
pub(super) struct Within(Mutex<Option<Plan>>);

impl Within {
    pub fn set(&self, moment: Moment, f: fn()) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((moment, f));
    }

    /// A call of this kind is under way.
    pub fn reach(&self, moment: Moment) {
        let f = self.0.lock().unwrap_or_else(PoisonError::into_inner).take_if(|(wanted, _)| *wanted == moment);
        if let Some((_, f)) = f {
            f();
        }
    }
}
