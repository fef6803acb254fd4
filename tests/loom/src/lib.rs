//! Models of the core's lock-free structures: the structures themselves, compiled with loom's atomics, and a short copy
//! of the code that uses them in the core. Empty unless built with `--cfg loom`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p neap-loom --release
//! ```
//!
//! `claims.rs`, `helper.rs`, `lock.rs`, `remote.rs` and `sync.rs` are the core's own files. The models repeat in short
//! form:
//!
//! | model | repeats, of `crates/core/src` |
//! |---|---|
//! | `protocol` | `blocks/bins.rs`, `blocks/lives.rs` |
//! | `handshake` | `back/handshake.rs`, and `crates/sys/src/thread/heap.rs` |
//! | `purge` | `back/purge.rs`, `back/helping.rs`, `help.rs`, `fork.rs` |
//! | `reentrant` | `pages/reentrant_reserve.rs`, `blocks/reentrant_blocks.rs`, `blocks/reentrant.rs` |
//!
//! Change both together.
#![cfg(loom)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod handshake;
pub mod protocol;
pub mod purge;
pub mod reentrant;
pub mod system;
