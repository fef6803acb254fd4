//! What programs can ask of neap and tell it while they run: options, statistics, trimming, hooks, and glibc's controls.
//! One implementation for the C surface (`neap-preload`) and the Rust crate (`neap`).
//!
//! | file | holds |
//! |---|---|
//! | `options.rs` | reading and setting options by name |
//! | `settings.rs` | from values to policies and back |
//! | `glibc.rs` | glibc's controls: parameters of mallopt and the environment |
//! | `stats.rs` | the snapshot of figures |
//! | `info.rs` | the same as mallinfo2, malloc_info and malloc_stats tell it |
//! | `trim.rs` | giving memory back when asked to |
//!
//! Nothing here allocates but [`hooks::set`]. May depend on `neap-core`, `neap-sys`, `neap-options` and the C library.
#![no_std]

pub mod glibc;
pub mod info;
pub mod options;
pub mod settings;
pub mod stats;
pub mod trim;

pub use neap_sys::hooks;
