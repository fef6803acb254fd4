//! The layout of an arena: where its side tables lie, and how to find the chunk and the record of an address.
//!
//! An arena starts at a multiple of 64 GiB ([`ARENA_ALIGN`]) and is up to that long; it is shorter where address space
//! is limited. In front of its chunks lie five side tables with one entry for each chunk:
//!
//! ```text
//! base                                                                                     base + len
//! | records, 64 B a chunk | few bits, 64 B | free bits, 512 B | remote bits, 512 B | ages, 1 B | chunks, 64 KiB each |
//! ```
//!
//! A long arena also has the bits for huge pages (`dense.rs`), behind the ages. Slabs of few blocks (up to 256) have
//! both kinds of bits in the table of few bits, where 64 slabs share an OS page. The index of a chunk counts from
//! `base`, so that arithmetic alone finds the entry of an address. Only the part in use is committed (readable and
//! writable), in steps that grow with the arena, so that a program makes few system calls for it.

use crate::{CHUNK, CHUNK_SHIFT};

/// Number of bits of a user address on the processors that neap supports; fewer under Miri.
pub const ADDRESS_BITS: u32 = if cfg!(miri) { 40 } else { 47 };
/// Size of a record in bytes.
pub const RECORD_BYTES: usize = 64;
/// Alignment and maximum length of an arena in bytes.
pub const ARENA_ALIGN: usize = 1 << ARENA_SHIFT;
// Miri aligns memory to 512 MiB at most.
pub(crate) const ARENA_SHIFT: u32 = if cfg!(miri) { 29 } else { 36 };
/// Limit on the arenas of a process. Several are needed only where each is short.
pub const MAX_ARENAS: usize = 128;
/// Size in bytes of the smallest block that a chunk can be cut into.
pub const LEAST_BLOCK: usize = 16;
/// Bytes of the free bits (and of the remote bits) of a chunk: one bit for each of the smallest blocks.
pub const BITS_BYTES: usize = CHUNK / LEAST_BLOCK / 8;
/// Words of the free bits (and of the remote bits) of a chunk in the table of few bits: for blocks of 256 bytes and
/// more.
pub const FEW_WORDS: usize = 4;
pub(crate) const FEW_BYTES: usize = 2 * 8 * FEW_WORDS;
/// Bytes per chunk of the tables in front of the free bits, of those in front of the ages, and of all.
pub(crate) const BEFORE_BITS: usize = RECORD_BYTES + FEW_BYTES;
pub(crate) const BEFORE_AGES: usize = BEFORE_BITS + 2 * BITS_BYTES;
pub(crate) const SIDE_BYTES: usize = BEFORE_AGES + 1;
/// Minimum length of an arena: enough for one block where address space is nearly used up. Its side tables take the
/// first chunk.
pub(crate) const MIN_ARENA: usize = 4 * CHUNK;
pub(crate) const SLOTS: usize = 1 << (ADDRESS_BITS - ARENA_SHIFT);

/// Size of a huge page in bytes, where OS pages have 4 KiB.
pub const HUGE_PAGE: usize = 2 << 20;
/// Words of the bits for huge pages of a long arena, which lie behind the ages: one bit for each huge page.
pub(crate) const HUGE_WORDS: usize = ARENA_ALIGN / HUGE_PAGE / 64;
/// Bytes of the bits for huge pages.
pub(crate) const HUGE_BYTES: usize = HUGE_WORDS * size_of::<u64>();
const _: () = assert!(
    (ARENA_ALIGN >> CHUNK_SHIFT) * SIDE_BYTES + HUGE_BYTES <= first_chunk(ARENA_ALIGN >> CHUNK_SHIFT) << CHUNK_SHIFT,
    "the bits for huge pages must lie before the first chunk"
);

/// Converts an address in an arena to a pointer: the provenance of an arena is exposed when it is reserved.
#[inline]
pub(crate) fn at<T>(address: usize) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address)
}

/// Address of the record of the chunk at address `p`.
#[inline(always)]
pub(crate) const fn record_address(p: usize) -> usize {
    let base = p & !(ARENA_ALIGN - 1);
    base + ((p - base) >> CHUNK_SHIFT) * RECORD_BYTES
}

/// Address of the chunk that the record at `record` describes.
#[inline(always)]
pub(crate) const fn chunk_address(record: usize) -> usize {
    let (base, index) = split(record);
    base + (index << CHUNK_SHIFT)
}

/// The address of the arena that the record at `record` lies in, and the index of its chunk.
#[inline(always)]
pub(crate) const fn split(record: usize) -> (usize, usize) {
    let base = record & !(ARENA_ALIGN - 1);
    (base, (record - base) / RECORD_BYTES)
}

/// Address of the entry of a chunk in a side table, in an arena of `1 << tables` chunks. An entry has `bytes` bytes;
/// the tables in front have `before` bytes per chunk.
#[inline(always)]
pub(crate) const fn entry(record: usize, tables: u8, before: usize, bytes: usize) -> usize {
    let (base, index) = split(record);
    base + (before << tables) + index * bytes
}

/// Index of the first chunk of an arena: behind the side tables, and in a long arena 16 MiB below a multiple of 1 GiB.
/// The kernel has one page of its page tables for each GiB in which memory lies. Where it has none, it skips the whole
/// GiB when it searches a range for touched pages. So the search of a long untouched block behind a small heap costs
/// nearly nothing.
pub(crate) const fn first_chunk(chunks: usize) -> usize {
    const GIB: usize = (if cfg!(miri) { 1 << 28 } else { 1 << 30 }) / CHUNK;
    const BELOW: usize = (16 << 20) / CHUNK;
    let first = (chunks * SIDE_BYTES).div_ceil(CHUNK);
    let low = (first + BELOW).next_multiple_of(GIB) - BELOW;
    if chunks * CHUNK == ARENA_ALIGN { low } else { first }
}

/// Length in chunks of the longest range that a new arena could hold.
pub const fn longest() -> usize {
    ARENA_ALIGN / CHUNK - first_chunk(ARENA_ALIGN / CHUNK) - 1
}
