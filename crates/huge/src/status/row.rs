//! A line of the status.

use serde::Serialize;

/// A setting, a limit, or what the processor can do.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its name, as the system has it.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What that means.
    pub means: String,
    /// The command that would change it.
    pub change: Option<String>,
}
