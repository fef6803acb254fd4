//! Names for addresses, from bytes that the caller has read: no file is opened here.
//!
//! [`Image`] is an ELF file: its symbols, and the conversion of file offsets to addresses. [`Lines`] are its source
//! lines. [`Listing`] is a text of symbols: the perf map of a JIT compiler, or the kernel's `kallsyms`. [`access()`]
//! tells how an instruction accesses its memory operand.
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
