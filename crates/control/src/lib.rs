//! The figures that programs can read and the options that they can set while they run. One implementation serves the C
//! surface (`neap-surface`) and the Rust crate (`neap`).
//!
//! | file | answers |
//! |---|---|
//! | `options.rs` | how options and glibc's parameters are read and set |
//! | `stats.rs` | how much memory is where |
//! | `info.rs` | the same as mallinfo2, malloc_info and malloc_stats show it |
//! | `profile.rs` | which code holds and allocates memory |
//! | `trim.rs` | how memory is given back on request |
//!
//! Only [`hooks::set`] allocates. May depend on `neap-core`, `neap-sys`, `neap-options` and the C library.
#![no_std]

pub mod info;
pub mod options;
pub mod profile;
pub mod stats;
pub mod trim;

pub use neap_sys::hooks;
