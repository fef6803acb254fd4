//! How the functions and data of a binary lie, and where they should: no I/O, the caller reads and writes files.
//!
//! [`Trace`] is which of them a program touches, in which order. [`Binary`] is how they lie; [`Estimate`] is how many OS
//! pages that costs, and how many are needed. [`Order`] are those of a trace that a binary has, perhaps a later build, and
//! [`emit`] writes them for a linker. [`names`] has the rules for names that change between builds.
//! [`picture`] draws a binary with what is touched of it. [`cluster`] has other orders than that of first entry; [`closure`] an order of object files without a run.
//!
//! May depend on well-kept libraries, none with libc.
#![forbid(unsafe_code)]

pub mod binary;
pub mod closure;
pub mod cluster;
pub mod emit;
pub mod estimate;
pub mod names;
mod order;
pub mod picture;
mod trace;

pub use binary::{Binary, Kind};
pub use estimate::Estimate;
pub use order::{Item, Order};
pub use trace::{Call, FAULTS, FORMAT, Run, Trace, TraceError, TracedBinary, TracedData, TracedFunction};
