//! The kernel's perf events, as bytes: what is requested ([`attr`]), what comes back ([`record`]), and in which order
//! it happened ([`order`]).
//!
//! Layouts are those of `include/uapi/linux/perf_event.h`, whose text is quoted above each decoder. Everything is in
//! the machine's own byte order.

pub mod attr;
mod bytes;
pub mod order;
pub mod record;

#[cfg(test)]
mod tests;
