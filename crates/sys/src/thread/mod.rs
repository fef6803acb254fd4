//! Threads: which heap a call uses, when a thread gives its heap up, and fork.

mod fork;
mod heap;

pub use fork::watch_fork;
pub use heap::{Turn, follow, in_call, rest};
