//! Starts programs, on neap and otherwise, as they would start without it, and waits for them. What the commands share
//! that run a program or look at one: finds it and looks at its file (`target`, `elf`, `sanitizer`), puts a library,
//! which is inside, into a file (`library`), becomes the program or supervises it (`child`, `signals`), stops it
//! (`ptrace`), asks which of its pages are resident (`pagemap`) and what is mounted (`mounts`); the file of the result
//! (`output`); errors with a cause and a remedy (`error`), numbers for people (`units`), lines as wide as the terminal
//! (`fit`).
//!
//! May depend on `neap-options`, the C library and std.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod carried;
pub mod child;
mod elf;
pub mod environment;
pub mod error;
pub mod fit;
pub mod library;
pub mod mounts;
pub mod output;
pub mod pagemap;
pub mod private_dir;
pub mod ptrace;
mod sanitizer;
pub mod signals;
pub mod sys;
pub mod target;
pub mod units;

/// The version of neap, and which library is inside.
pub const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (libneap.so ", env!("NEAP_LIBRARY_HASH"), ", ", env!("NEAP_TARGET"), ")");

/// A checked `NAME=VALUE`, as the environment variable that it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The option's name in the table.
    pub name: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// Its value; a directory is absolute, as the program may change its own.
    pub value: String,
}
