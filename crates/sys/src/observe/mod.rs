//! What a process shows to observers: the counters page, the file of allocation sites, the hook for samples.

pub mod files;
mod once;
pub mod page;
pub mod prefault;
pub mod samples;
pub mod sites;
mod stack;

pub use stack::may_read;
