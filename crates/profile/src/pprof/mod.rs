//! pprof's format: `profile.proto`, compressed by gzip.
//!
//! Properties without a field in the format are written as comments: the command (`command: ...`), the process, the
//! allocator, and the notes. [`read`] restores them from there. Samples without a stack have one location without a
//! mapping, named [`NO_STACK`].

mod read;
pub mod schema;
mod write;

pub use read::read;
pub use write::{Symbols, message, write};

/// The location of samples without a stack: some readers require that each sample has one.
pub const NO_STACK: &str = "[no stack]";

/// How comments begin that hold a field of the profile.
const COMMAND: &str = "command: ";
const PROCESS: &str = "process: ";
const ALLOCATOR: &str = "allocator: ";
const WHOLE: &str = "whole: ";

#[cfg(test)]
mod tests;
