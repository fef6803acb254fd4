//! Errors of neap itself: a cause in one line, a remedy in another, and an exit status.

use std::fmt;
use std::io::{self, Write};

/// Exit status when neap itself failed, as with env(1) and timeout(1).
pub const FAILED: u8 = 125;
/// Exit status when the program was found and cannot be run under neap.
pub const CANNOT_RUN: u8 = 126;
/// Exit status when the program was not found.
pub const NOT_FOUND: u8 = 127;

/// Why a command of neap failed.
#[derive(Debug)]
pub struct Error {
    status: u8,
    cause: String,
    remedy: Option<String>,
}

impl Error {
    /// neap itself failed ([`FAILED`]).
    pub fn failed(cause: impl Into<String>) -> Self {
        Self::with_status(FAILED, cause)
    }

    /// The program cannot be run under neap ([`CANNOT_RUN`]).
    pub fn cannot_run(cause: impl Into<String>) -> Self {
        Self::with_status(CANNOT_RUN, cause)
    }

    /// The program was not found ([`NOT_FOUND`]).
    pub fn not_found(cause: impl Into<String>) -> Self {
        Self::with_status(NOT_FOUND, cause)
    }

    fn with_status(status: u8, cause: impl Into<String>) -> Self {
        Self { status, cause: cause.into(), remedy: None }
    }

    /// Adds what the user can do about it.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The exit status of neap.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Writes the error to standard error; a failure to do so has nowhere to go.
    pub fn report(&self) {
        let _ = io::stderr().lock().write_all(format!("{self}\n").as_bytes());
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "neap: {}", self.cause)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\nneap: hint: {remedy}"),
            None => Ok(()),
        }
    }
}

/// The system's words for an error: `No such file or directory`, without the number.
pub fn system_message(error: &io::Error) -> String {
    let full = error.to_string();
    match full.rfind(" (os error") {
        Some(end) => full[..end].to_owned(),
        None => full,
    }
}
