//! The neap allocator: everything that decides where a block lies.
//!
//! This crate has no std, no libc, no thread-local storage and no exported symbols. It may depend on nothing but
//! `core`; the system is reached through [`Os`], so that every rule here can be tested against a fake.
//!
//! `docs/glossary.md` defines the words.
//!
//! # Layers
//!
//! ```text
//! alloc, fork, help       which layer serves a call; what forks and helpers do
//! observe                 figures, census, checks
//! back                    when memory goes back: purger, handshakes, limits, trim
//! blocks                  what malloc hands out: classes, slabs, heaps, large, huge, reentrant
//! pages                   what memory there is: arenas, records, page map, ranges, release
//! system                  the system as a trait, atomics, locks, policy
//! ```
//!
//! A layer uses only those below it; `cargo xtask layers` shows this. The four in the middle are structs, each of which
//! owns the one below ([`Allocator`] > `Observed` > `Back` > `Blocks` > `Pages`) and gives access to it by `Deref`, so
//! that no call can go upward. A lower layer leaves a note of what has to be done; at the end of a slow path
//! [`Allocator::settle`] does it.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(test)]
extern crate std;

pub mod alloc;
pub mod back;
pub mod blocks;
pub mod fork;
pub mod help;
pub mod observe;
pub mod pages;
pub mod system;

pub use alloc::Allocator;
pub use back::trim;
pub use blocks::heap::Heap;
pub use blocks::{class, common, grow, heap, misuse, realloc, reentrant, sampler as sample, slab, watch};
pub use observe::{census, resident, valid};
pub use pages::{arena, chunk, page_map, range};
pub use system::os::Os;
#[cfg(neap_sim)]
pub use system::points;
pub use system::{figures, helper, lock, os, policy, sync, text, time};

/// Largest request: PTRDIFF_MAX, so that the difference of two pointers into a block fits.
pub const MAX_SIZE: usize = isize::MAX as usize;
/// Bytes of a chunk. A multiple of every OS page size that neap supports (4, 16 and 64 KiB).
pub const CHUNK: usize = 1 << CHUNK_SHIFT;
/// `log2(CHUNK)`. The interior-pointer check of `free` works on the low 16 bits of an address: change both together.
pub const CHUNK_SHIFT: u32 = 16;

const _: () = assert!(CHUNK_SHIFT == 16, "blocks::heap::Heap::free checks the low 16 bits of a pointer");
