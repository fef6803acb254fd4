//! What all layers stand on: the system as a trait, atomics and locks, lock-free structures, the states of the helper, and
//! what users chose. Nothing here knows of chunks or blocks.

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
pub mod sync;
pub mod text;
