//! A line of the status.

use serde::Serialize;

/// A setting, a limit, or a feature of the processor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The system's name for it.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The meaning of the value.
    pub means: String,
    /// The command that would change it.
    pub change: Option<String>,
}
