//! Names for addresses, from bytes that the caller has read: no file is opened here.
//!
//! [`Image`] is an ELF file: its symbols, and how offsets in the file become addresses. [`Lines`] are its lines of
//! source. [`Listing`] is a text of symbols: the perf map of a JIT compiler, or the kernel's `kallsyms`. [`access()`] says
//! what an instruction does to its operand in memory.
#![forbid(unsafe_code)]

mod access;
mod demangle;
mod image;
mod lines;
mod listing;
mod stubs;
#[cfg(test)]
mod tests;

pub use access::{Access, Bits, access};
pub use demangle::demangle;
pub use image::{Found, Image, What};
pub use lines::{Line, Lines};
pub use listing::Listing;
