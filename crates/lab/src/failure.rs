//! Errors that name a remedy beside the cause.

use std::fmt;

/// A cause, and what the user can do about it.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong.
    pub cause: String,
    /// What helps.
    pub remedy: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.remedy)
    }
}

impl std::error::Error for Failure {}

/// An error with a remedy.
pub fn failure(cause: impl Into<String>, remedy: impl Into<String>) -> anyhow::Error {
    Failure { cause: cause.into(), remedy: remedy.into() }.into()
}
