//! Starts programs, on neap or not, as they would start without the command, and waits for them. This is what the
//! commands that run or read programs share: finding a program and examining its file (`target`, `elf`, `sanitizer`),
//! writing an embedded library to a file (`library`), becoming the program or supervising it (`child`, `signals`),
//! stopping it (`ptrace`), asking which of its pages are resident (`pagemap`) and what is mounted (`mounts`), opening
//! the file for the result (`output`), errors with a cause and a remedy (`error`), readable numbers (`units`), and
//! lines that fit the terminal (`fit`).
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
pub mod private_dir;
pub mod ptrace;
mod sanitizer;
pub mod signals;
pub mod sys;
pub mod target;
pub mod units;

/// The version of neap, and the hash of the embedded library.
pub const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (libneap.so ", env!("NEAP_LIBRARY_HASH"), ", ", env!("NEAP_TARGET"), ")");

/// A checked `NAME=VALUE`, as the environment variable that it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The option's name in the table.
    pub name: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// Its value; a directory is absolute, because the program may change its own.
    pub value: String,
}
