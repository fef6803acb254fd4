//! The helper thread: how Linux runs it, and what it may do. When it is started and ended is decided in the core
//! (`neap_core::helper`).

pub mod pressure;
pub mod rights;
pub mod thread;
