//! The port of neap to Linux: system calls, thread storage, threads and fork, and the one allocator of the process.
//!
//! May depend on `neap-core`, `neap-counters`, `neap-sites`, `rustix` (system calls that leave errno alone) and the C library
//! (thread exit, fork handlers, process start values).
#![cfg_attr(not(test), no_std)]

#[cfg(target_arch = "x86_64")]
#[path = "arch/x86_64.rs"]
pub mod arch;
mod barrier;
mod batch;
mod cgroup;
pub mod clock;
mod discard;
pub mod gauges;
pub mod global;
pub mod hooks;
pub mod limits;
pub mod linux;
mod moves;
mod pagemap;
pub mod path;
mod populate;
pub mod purger;
mod random;
mod rights;
pub mod sites;
mod space;
pub mod status;
pub mod thread;
mod vdso;
pub mod watch;
