//! The neap allocator: everything that decides where a block lies.
//!
//! This crate has no std, no libc, no thread-local storage and no exported symbols. It may depend on nothing but
//! `core`; the system is reached through [`Os`], so that every rule here can be tested against a fake.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | OS page | the kernel's page; its size is read at run time |
//! | block | what malloc returns |
//! | size class | a rounded block size, see [`class`] |
//! | chunk | [`CHUNK`] bytes, aligned to their size: the unit that arenas are carved in and the granule of the page map |
//! | slab | a chunk cut into blocks of one class, see [`slab`] |
//! | range | a number of neighbouring chunks, free or a large block, see [`range`] |
//! | arena | a reserved range of addresses with its side tables, see [`arena`] |
//! | page map | one byte for each chunk of the address space: the size class of the slab there, see [`page_map`] |
//! | heap | what one thread owns: a cache of free blocks for each class, and the slabs behind it, see [`heap`] |
//! | local free, remote free | by the thread that owns the block's slab, by another thread |
//! | large block, huge block | whole OS pages from an arena; a mapping of its own |
//! | reserved, clean, dirty | no memory may lie there yet; known to read as zero; may hold anything |
//! | purge | give OS pages back to the system; they are clean afterwards |
//! | nested call | one in a signal handler that interrupted another call of its thread, see [`nested`] |
//! | annex | chunks for nested calls, see [`annex`] |
//! | orphan | a heap whose thread has ended; a new thread adopts it whole |
//!
//! # Layers
//!
//! Downward only: [`alloc`], and [`nested`] beside it, use [`heap`] (its slow paths are in [`bins`]), [`large`] and
//! [`huge`]; these use [`slab`] and [`range`]; these use [`arena`] and [`page_map`]; these use [`chunk`] and [`os`].
//! `docs/ARCHITECTURE.md` walks the first malloc through all of them.
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(test)]
extern crate std;

pub mod age;
pub mod alloc;
pub mod annex;
mod apart;
pub mod arena;
mod batch;
pub mod bins;
pub mod census;
pub mod chunk;
pub mod claims;
pub mod class;
mod commit;
mod demand;
mod dense;
pub mod figures;
pub mod fork;
pub mod grow;
pub mod harden;
pub mod heap;
pub mod helper;
mod helping;
pub mod holes;
pub mod huge;
pub mod large;
pub mod life;
pub mod misuse;
pub mod nested;
pub mod os;
pub mod page_map;
#[cfg(neap_sim)]
pub mod points;
pub mod policy;
mod pressure;
pub mod purge;
pub mod range;
pub mod realloc;
pub mod remote;
mod reserve;
pub mod resident;
pub mod sample;
pub mod shelf;
pub mod slab;
pub mod sync;
mod tables;
pub mod trim;
pub mod valid;
pub mod visit;
pub mod watch;
pub mod zero;

pub use alloc::Allocator;
pub use heap::Heap;
pub use os::Os;

/// Bytes of a chunk. A multiple of every OS page size that neap supports (4, 16 and 64 KiB).
pub const CHUNK: usize = 1 << CHUNK_SHIFT;
/// `log2(CHUNK)`. The interior-pointer check of `free` works on the low 16 bits of an address: change both together.
pub const CHUNK_SHIFT: u32 = 16;

const _: () = assert!(CHUNK_SHIFT == 16, "heap::Heap::free checks the low 16 bits of a pointer");
