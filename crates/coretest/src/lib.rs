//! Tools for tests of neap's core: a fake system, histories of operations, and the model that checks them.
//!
//! May depend on `neap-core`, libc and std. It is a separate crate, and not a feature of the port, because it needs
//! std: whenever both are built together, the feature would also be on in `libneap.so`.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod calls;
pub mod fake;
pub mod history;
pub mod model;
pub mod pattern;
pub mod slot;

pub use fake::{Call, Config, Fake, Moment};
pub use history::{Choices, Op, Setup};
pub use model::Model;
pub use slot::Owner;
