//! The helper thread: how Linux runs it, and what it may do. The core decides when it starts and ends
//! (`neap_core::helper`).

pub mod pressure;
pub mod rights;
mod scheduling;
pub mod thread;
