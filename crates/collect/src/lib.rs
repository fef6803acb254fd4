//! Figures of all processes, for `neap exporter` and `neap top`.
//!
//! | word | meaning |
//! |---|---|
//! | light figures | what `/proc/PID/stat` and `status` and neap's counters page say: some 50 microseconds for a process, at each look |
//! | rollup | Pss and huge pages, of `smaps_rollup`: the kernel walks all memory of the process for them |
//! | account | what `neap why` says, in short: the most expensive |
//! | budget | the part of a processor that rollups and accounts may take; light figures are outside it |
//!
//! Rollups and accounts are old where the budget is small; each has its age. [`Background`] makes them in a thread.
//!
//! | file | answers |
//! |---|---|
//! | `model.rs` | what is known of a process |
//! | `parse.rs` | the kernel's text: stat, status, containers, allocators |
//! | `filter.rs` | which processes |
//! | `collector.rs`, `read.rs` | all processes, look by look; reading one |
//! | `jobs.rs` | what is worth its cost next |
//! | `background.rs` | the thread that does it |
//!
//! May depend on `neap-why`, `neap-account`, `neap-observe`, `neap-counters`, `neap-launch`, well-kept libraries, the C
//! library and std.
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
