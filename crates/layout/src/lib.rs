//! Where the functions and data of a binary are, and where they should be. No I/O: the caller reads and writes files.
//!
//! [`Trace`] says which of them a program touches, in which order. [`Binary`] has their places; [`Estimate`] says how
//! many OS pages that costs, and how many are needed. [`Order`] has the functions and data of a trace that a binary
//! (perhaps a later build) has, and [`emit`] writes them for a linker. [`names`] has the rules for names that change
//! between builds. [`picture`] draws a binary and what is touched. [`cluster`] has other orders than that of first
//! entry; [`closure`] an order of object files without a run.
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
