//! pprof's format: `profile.proto`, compressed by gzip.
//!
//! What the format has no place for goes into comments: the command (`command: ...`), the process, the allocator, and the
//! notes. [`read`] takes them back from there. Where no stack was taken, there is one location without a mapping, named
//! [`NO_STACK`].

mod read;
pub mod schema;
mod write;

pub use read::read;
pub use write::{Symbols, message, write};

/// What a sample without a stack is in: some readers want each sample to have a location.
pub const NO_STACK: &str = "[no stack]";

/// What comments begin with that hold a field of the profile.
const COMMAND: &str = "command: ";
const PROCESS: &str = "process: ";
const ALLOCATOR: &str = "allocator: ";
const WHOLE: &str = "whole: ";

#[cfg(test)]
mod tests;
