//! The folder of this name in the core, as far as the models use it.

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
