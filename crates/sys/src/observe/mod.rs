//! What a process shows to observers: the counters page, the files of samples and of allocation sites, the
//! hook for samples, and the probes that tools attach to. Also what the linkers left in memory, and that the object of
//! this code stays there.

pub mod files;
mod linker;
pub mod loaded;
pub mod once;
pub mod page;
pub mod prefault;
pub mod probes;
pub mod profile;
pub mod samples;
pub mod sites;
pub mod stack;
pub mod trace;
pub mod written;

pub use linker::{may_read, symbol_in, symbol_in_list};
