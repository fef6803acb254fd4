//! Errors of neap itself: a cause in one line, a remedy in another, and an exit status. (Only the output of another
//! program may be between them.)

use std::fmt;
use std::io::{self, Write};

/// Exit status when neap itself failed, as with env(1) and timeout(1).
pub const FAILED: u8 = 125;
/// Exit status when the program was found but cannot be run under neap.
pub const CANNOT_RUN: u8 = 126;
/// Exit status when the program was not found.
pub const NOT_FOUND: u8 = 127;

/// The error for a failed write to standard output.
pub fn cannot_print(error: &io::Error) -> Error {
    if error.raw_os_error() == Some(libc::EBADF) {
        return Error::failed("cannot write to standard output: it is closed");
    }
    Error::failed(format!("cannot write to standard output: {}", system_message(error)))
}

/// Why a command of neap failed.
#[derive(Debug)]
pub struct Error {
    status: u8,
    cause: String,
    /// Lines that follow the cause.
    details: Vec<String>,
    remedy: Option<String>,
}

impl std::error::Error for Error {}

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
        Self { status, cause: one_line(&cause.into()), details: Vec::new(), remedy: None }
    }

    /// Adds lines of another program.
    pub fn details(mut self, text: &str) -> Self {
        self.details = text.lines().map(one_line).collect();
        self
    }

    /// Adds what the user can do about it.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(one_line(&remedy.into()));
        self
    }

    /// The exit status of neap.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Writes the error to standard error.
    pub fn report(&self) {
        tell(self);
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "neap: {}", self.cause)?;
        for line in &self.details {
            write!(f, "\n  {line}")?;
        }
        match &self.remedy {
            Some(remedy) => write!(f, "\nneap: hint: {remedy}"),
            None => Ok(()),
        }
    }
}

/// Writes a line to standard error; ignores a failure, which cannot be reported.
pub fn tell(line: impl fmt::Display) {
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// A text that may contain file names, as one line that does not control a terminal, and without the numbers that
/// follow the system's messages.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        line.push_str(before);
        rest = match after.split_once(')') {
            Some((number, after)) if number.bytes().all(|b| b.is_ascii_digit()) => after,
            _ => {
                line.push_str(" (os error ");
                after
            }
        };
    }
    line.push_str(rest);
    match line.contains(char::is_control) {
        true => line.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() }).collect(),
        false => line,
    }
}

/// The system's message for an error: `No such file or directory`, without the number.
pub fn system_message(error: &io::Error) -> String {
    one_line(&error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches file names that break an error into two lines or recolour the terminal, and numbers in messages.
    #[test]
    fn errors_are_one_line() {
        let error = Error::failed("no file a\nb\x1b[31m: gone (os error 2); (os error x)").remedy("c\td");
        assert_eq!(error.to_string(), "neap: no file a\\nb\\u{1b}[31m: gone; (os error x)\nneap: hint: c\\td");
        assert_eq!(system_message(&io::Error::from_raw_os_error(libc::ENOSPC)), "No space left on device");
    }
}
