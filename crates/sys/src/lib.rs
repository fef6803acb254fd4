//! The port of neap to Linux: system calls, thread storage, threads and fork, and the one allocator of the process.
//!
//! | layer, from below | what is there |
//! |---|---|
//! | [`arch`], `slot` | everything that depends on the processor; each thread's slot in thread storage |
//! | [`musl`] | how musl differs from glibc |
//! | `system`, `observe` | plain functions over system calls; what a process shows to observers |
//! | `helper` | how the helper thread runs |
//! | [`guards`] | samples beside inaccessible OS pages, and the handler of SIGSEGV that reports errors on them |
//! | [`linux`] | the trait `Os` of the core, put together from these |
//! | `allocator` | the one allocator of the process |
//! | [`thread`] | which heap a call uses, the end of a thread, and fork |
//! | [`watch`], [`profile`], [`program`] | calls that are counted, filled, sampled; samples for a profile; system calls of the program that concern neap |
//! | `sampled` | sampled and guarded blocks: how malloc and free make and free them |
//! | [`global`], [`hooks`] | malloc, free and related functions; the hook for samples |
//!
//! May depend on `neap-core`, `neap-counters`, `neap-sites`, `neap-samples`, `rustix` (system calls that leave errno
//! alone) and the C library (thread exit, fork handlers, process start values).
#![cfg_attr(not(test), no_std)]

mod allocator;
pub mod arch;
pub mod global;
pub mod guards;
mod helper;
pub mod hooks;
pub mod linux;
pub mod musl;
mod observe;
pub mod profile;
pub mod program;
mod sampled;
mod slot;
mod system;
pub mod thread;
pub mod watch;

pub use helper::pressure;
pub use observe::{files, may_read, once, page, prefault, sites, symbol_in, symbol_in_list};
pub use system::{call, clock, errno, filter, huge, lines, scan};
