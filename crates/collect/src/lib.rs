//! Figures of all processes, for `neap exporter` and `neap top`.
//!
//! | word | meaning |
//! |---|---|
//! | light figures | those of `/proc/PID/stat`, `status` and neap's counters page, read each time: some 50 µs each |
//! | rollup | Pss and huge pages, from `smaps_rollup`: the kernel walks all memory of the process for them |
//! | account | the short form of an account of `neap why`: the most expensive |
//! | budget | the fraction of a processor that rollups and accounts may take; it does not include light figures |
//!
//! With a small budget rollups and accounts are old; each has its age. [`Background`] makes them in a thread.
//!
//! | file | answers |
//! |---|---|
//! | `model.rs` | the figures of a process |
//! | `parse.rs` | the kernel's text: stat, status, containers, allocators |
//! | `filter.rs` | which processes |
//! | `collector.rs`, `read.rs` | reading all processes; reading one |
//! | `jobs.rs` | which rollup or account comes next |
//! | `background.rs` | the thread that makes it |
//!
//! May depend on `neap-why`, `neap-account`, `neap-observe`, `neap-process`, `neap-counters`, `neap-launch`,
//! well-kept libraries, the C library and std.
#![deny(unsafe_op_in_unsafe_fn)]

mod background;
mod collector;
mod filter;
mod jobs;
mod model;
mod parse;
mod read;

pub use background::{Background, Clock, Shared, make_up_to, processor_time};
pub use collector::{Collector, Made};
pub use filter::Filter;
pub use jobs::{Job, Pace, What};
pub use model::{Aged, Brief, Errors, Light, Mark, Neap, Process, Rollup};
pub use read::Why;
