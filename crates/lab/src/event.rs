//! Events of a run, for progress.

use std::time::Duration;

use anyhow::Error;

/// An event of a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// An allocator that is not measured, and why.
    LeftOut(&'a str),
    /// A case begins: experiment, case, its number, of how many.
    Begins(&'a str, &'a str, usize, usize),
    /// A case has ended: experiment, case, its time, allocators that failed.
    Ended(&'a str, &'a str, Duration, &'a [String]),
    /// A round is run again: experiment, case, why.
    Again(&'a str, &'a str, &'a str),
    /// An experiment has ended: its name, its time, including the compilation of its programs.
    Finished(&'a str, Duration),
    /// An error of the lab has ended an experiment before its time.
    Broken(&'a str, &'a Error),
}
