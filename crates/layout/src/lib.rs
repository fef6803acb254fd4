//! How the functions and data of a binary lie, and where they should: no I/O, the caller reads and writes files.
//!
//! [`Trace`] is which of them a program touches, in which order.
//!
//! May depend on well-kept libraries, none with libc.
#![forbid(unsafe_code)]

mod trace;

pub use trace::{Call, FORMAT, Run, Trace, TraceError, TracedBinary, TracedData, TracedFunction};
