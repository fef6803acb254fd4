//! Why pages could not be reserved.

use std::fmt;

/// A cause in one line, and what the user can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What happened.
    pub cause: String,
    /// What helps.
    pub remedy: String,
}

impl Refused {
    pub(crate) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Refused {
        Refused { cause: cause.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for Refused {}
