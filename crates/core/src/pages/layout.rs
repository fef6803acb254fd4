//! The layout of an arena: where its side tables lie, and from an address to its chunk and record by arithmetic alone.
//!
//! An arena starts at a multiple of 64 GiB ([`ARENA_ALIGN`]) and is up to that long; a shorter one is taken where
//! address space is limited. In front of its chunks lie five side tables with one entry for each chunk:
//!
//! ```text
//! base                                                                                     base + len
//! | records, 64 B a chunk | few bits, 64 B | free bits, 512 B | remote bits, 512 B | ages, 1 B | chunks, 64 KiB each |
//! ```
//!
//! Slabs of few blocks (up to 256) have both kinds of bits in the table of few bits, where 64 slabs share an OS page.
//! The index of a chunk counts from `base`, so that the entry of an address is found by arithmetic alone. Only the
//! part in use is committed (readable and writable), in steps that grow with the arena: a program pays a handful
//! of system calls in its life.

use crate::pages::page_map::ADDRESS_BITS;
use crate::{CHUNK, CHUNK_SHIFT};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// Alignment and greatest length of an arena.
pub const ARENA_ALIGN: usize = 1 << ARENA_SHIFT;
// Miri aligns memory to 512 MiB at most.
pub(crate) const ARENA_SHIFT: u32 = if cfg!(miri) { 29 } else { 36 };
/// Most arenas of a process. More are needed only where each is short.
pub const MAX_ARENAS: usize = 128;
/// Bytes of the smallest block that a chunk can be cut into.
pub const LEAST_BLOCK: usize = 16;
/// Bytes of free bits (and of remote bits) of a chunk: one bit for each of the smallest blocks.
pub const BITS_BYTES: usize = CHUNK / LEAST_BLOCK / 8;
/// Words of free bits (and of remote bits) in the table of few bits: for blocks of 256 bytes and more.
pub const FEW_WORDS: usize = 4;
pub(crate) const FEW_BYTES: usize = 2 * 8 * FEW_WORDS;
/// Bytes a chunk of the tables in front of the free bits, and in front of the ages.
pub(crate) const BEFORE_BITS: usize = RECORD_BYTES + FEW_BYTES;
pub(crate) const BEFORE_AGES: usize = BEFORE_BITS + 2 * BITS_BYTES;
pub(crate) const SIDE_BYTES: usize = BEFORE_AGES + 1;
/// Shortest arena: that of one block where address space is nearly used up. Its side tables take the first chunk.
pub(crate) const MIN_ARENA: usize = 4 * CHUNK;
pub(crate) const SLOTS: usize = 1 << (ADDRESS_BITS - ARENA_SHIFT);

/// Bytes of a huge page where OS pages have 4 KiB.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// Words of the bits for huge pages of a long arena, one bit for each: they lie behind the ages.
pub(crate) const HUGE_WORDS: usize = ARENA_ALIGN / HUGE_PAGE / 64;
/// Their bytes.
pub(crate) const HUGE_BYTES: usize = HUGE_WORDS * size_of::<u64>();
const _: () = assert!(
    (ARENA_ALIGN >> CHUNK_SHIFT) * SIDE_BYTES + HUGE_BYTES <= first_chunk(ARENA_ALIGN >> CHUNK_SHIFT) << CHUNK_SHIFT,
    "the bits for huge pages must lie before the first chunk"
);

/// An address to a pointer: the side tables and chunks of an arena are exposed when it is reserved.
#[inline]
pub(crate) fn at<T>(address: usize) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address)
}

/// Address of the record of the chunk at `p`.
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

/// The start of the arena that the record at `record` lies in, and the index of its chunk.
#[inline(always)]
pub(crate) const fn split(record: usize) -> (usize, usize) {
    let base = record & !(ARENA_ALIGN - 1);
    (base, (record - base) / RECORD_BYTES)
}

/// The entry of a chunk, of `bytes`, in the table that lies behind tables of `before` bytes a chunk, in an arena of
/// `1 << tables` chunks.
#[inline(always)]
pub(crate) const fn entry(record: usize, tables: u8, before: usize, bytes: usize) -> usize {
    let (base, index) = split(record);
    base + (before << tables) + index * bytes
}

/// Index of the first chunk of an arena: behind the side tables, and in a long arena a little below a multiple of
/// 1 GiB. The kernel has a page of its page tables for each GiB in which memory lies; where there is none, it skips the
/// whole GiB when it is asked about a range. So a long untouched block behind a small heap costs it next to nothing.
pub(crate) const fn first_chunk(chunks: usize) -> usize {
    const GIB: usize = (if cfg!(miri) { 1 << 28 } else { 1 << 30 }) / CHUNK;
    const BELOW: usize = (16 << 20) / CHUNK;
    let first = (chunks * SIDE_BYTES).div_ceil(CHUNK);
    let low = (first + BELOW).next_multiple_of(GIB) - BELOW;
    if chunks * CHUNK == ARENA_ALIGN { low } else { first }
}

/// Longest range that a new arena could hold.
pub const fn longest() -> usize {
    ARENA_ALIGN / CHUNK - first_chunk(ARENA_ALIGN / CHUNK) - 1
}
