//! The core's lock-free structures, compiled against loom's atomics, with what surrounds them in the core in its
//! shortest form. Empty unless built with `--cfg loom`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p neap-loom --release
//! ```
//!
//! `claims.rs`, `helper.rs`, `remote.rs` and `sync.rs` are the core's own files. `protocol` repeats what `heap.rs` and `life.rs` do
//! with them, `visit`, `purge` and `nested` what the files of these names (and `annex.rs`) do: change both together.
#![cfg(loom)]
#![deny(unsafe_op_in_unsafe_fn)]

#[path = "../../../crates/core/src/claims.rs"]
pub mod claims;
#[path = "../../../crates/core/src/helper.rs"]
pub mod helper;
#[path = "../../../crates/core/src/remote.rs"]
pub mod remote;
#[path = "../../../crates/core/src/sync.rs"]
pub mod sync;

pub mod nested;
pub mod os;
pub mod protocol;
pub mod purge;
pub mod visit;
