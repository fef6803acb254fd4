//! The files of the core's `system` folder that the models use, and a system of their own (`os.rs`).

#[path = "../../../../crates/core/src/system/claims.rs"]
pub mod claims;
#[path = "../../../../crates/core/src/system/helper.rs"]
pub mod helper;
#[path = "../../../../crates/core/src/system/lock.rs"]
pub mod lock;
pub mod os;
#[path = "../../../../crates/core/src/system/remote.rs"]
pub mod remote;
#[path = "../../../../crates/core/src/system/sync.rs"]
pub mod sync;
