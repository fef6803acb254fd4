//! The base of all layers: the system as a trait, atomics and locks, lock-free structures, the states of the helper
//! thread, and the settings that users choose. Nothing here depends on chunks or blocks.

pub mod claims;
pub mod figures;
pub mod helper;
pub mod lock;
pub mod os;
#[cfg(neap_sim)]
pub mod points;
pub mod policy;
pub mod random;
pub mod remote;
pub(crate) mod seen;
pub mod sync;
pub mod text;
pub mod time;
