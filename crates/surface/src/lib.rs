//! `libneap.so` except malloc and related functions, which are in `neap-preload`. The functions here are called rarely,
//! so this crate is built for size.
//!
//! | file | answers |
//! |---|---|
//! | `glibc.rs` | which of glibc's controls are exported |
//! | `api.rs` | what neap's own functions return |
//! | `ranges.rs` | the same for ranges in pages of a chosen size |
//! | `calls.rs` | which system calls of the program neap must handle |
//! | `dlsym.rs` | for which names dlsym finds neap's functions |
//! | `deepbind.rs` | which malloc a library uses that is opened with RTLD_DEEPBIND |
//! | `start.rs` | what happens when the library is loaded |
//! | `counting.rs` | which file a process counts in (option `counters`) |
//! | `exit_stats.rs` | what a process reports when it ends (option `stats`) |
//! | `foreign.rs` | what happens to a block of another allocator |
//! | `front.rs` | which realloc comes before neap's in symbol order |
//! | `prefault.rs` | what is made resident when the program starts |
//! | `signal.rs` | at which signal a profile is written |
//! | `rights.rs` | what happens when the program changes its user or its groups |
//! | `usage.rs` | what the kernel counted for the process |
//! | `line.rs` | how messages are written |
//! | `lookup.rs` | how functions of other objects are found |
//! | `once.rs` | how work is done once in a process |
//! | `older.rs` | which functions older C libraries have elsewhere, or lack |
//!
//! Exported symbols are in the first six files. A call from C goes to `neap_sys::global`, `neap_control` or
//! `neap_ranges`. May depend on `neap-core`, `neap-sys`, `neap-control`, `neap-ranges`, `neap-options`, `neap-counters`
//! and the C library.
#![no_std]

mod api;
mod calls;
mod counting;
mod deepbind;
mod dlsym;
mod exit_stats;
pub mod foreign;
pub mod front;
mod glibc;
mod line;
pub mod lookup;
pub mod older;
mod once;
mod prefault;
mod ranges;
pub mod rights;
mod signal;
pub mod start;
mod usage;
