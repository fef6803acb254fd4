//! Deterministic simulation of neap's core: virtual threads, handlers, a helper, forks and the system on one real
//! thread. Empty unless built with `--cfg neap_sim`; `cargo xtask sim` builds and runs it. See `docs/testing-core.md`.
#![cfg(neap_sim)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod aim;
pub mod blocks;
pub mod choices;
pub mod config;
pub mod draw;
pub mod driver;
pub mod helper;
pub mod life;
pub mod memory;
pub mod os;
pub mod pattern;
pub mod places;
pub mod process;
pub mod random;
pub mod report;
pub mod run;
pub mod scenario;
pub mod sched;
pub mod shrink;
pub mod slot;
pub mod stack;
pub mod system;
pub mod threads;
pub mod world;

pub use report::{child_failed, finding};
