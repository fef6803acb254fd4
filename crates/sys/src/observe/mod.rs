//! What a process shows to observers: the counters page, the files of samples and of allocation sites, the
//! hook for samples.

pub mod files;
mod linker;
pub mod once;
pub mod page;
pub mod prefault;
pub mod profile;
pub mod samples;
pub mod sites;
pub mod stack;
pub mod trace;

pub use linker::may_read;
