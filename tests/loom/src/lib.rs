//! The core's lock-free structures, compiled against loom's atomics, with what surrounds them in the core in its
//! shortest form. Empty unless built with `--cfg loom`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p neap-loom --release
//! ```
//!
//! `claims.rs`, `helper.rs`, `remote.rs` and `sync.rs` are the core's own files. `protocol` repeats what `bins.rs` and `lives.rs` do
//! with them, `visit`, `purge` and `reentrant` what the files of these names (and `reentrant_blocks.rs`) do: change both together.
#![cfg(loom)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod protocol;
pub mod purge;
pub mod reentrant;
pub mod system;
pub mod visit;
