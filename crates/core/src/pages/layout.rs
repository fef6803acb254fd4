//! The layout of an arena: where its side tables lie, and how to find the chunk and the record of an address.
//!
//! An arena starts at a multiple of 64 GiB ([`ARENA_ALIGN`]) and is up to that long; it is shorter where address space
//! is limited. In front of its chunks lie side tables with entries for each chunk:
//!
//! ```text
//! base                                                                                 first chunk        base + len
//! | records, 64 B a chunk ->        ...        <- bits, 68 KiB for 64 chunks | ages, 1 B a chunk | chunks, 64 KiB -> |
//! ```
//!
//! Only the part in use is committed (readable and writable), in steps that grow with the arena. Records and chunks
//! grow upward, bits downward, so what the first step needs in front of the first chunk lies side by side with it, and
//! is committed by one call.
//!
//! Bits lie in *tiles* of 64 chunks each, the first one right in front of the ages. A tile has three tables, from its
//! end downward:
//!
//! - the *few bits*, of slabs of up to 256 blocks: 64 bytes a chunk, free bits and remote bits side by side. So those
//!   of 64 slabs share an OS page;
//! - the free bits of all other slabs: 512 bytes a chunk;
//! - their remote bits: 512 bytes a chunk.
//!
//! In each table the entry of the first chunk comes last. The record of a slab has the place of its bits.
//!
//! The index of a chunk counts from `base`, so that arithmetic alone finds its record and its age. A long arena also
//! has the bits for huge pages (`dense.rs`), behind the ages.

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
/// Words of the free bits (and of the remote bits) of a chunk among the few bits: for blocks of 256 bytes and more.
pub const FEW_WORDS: usize = 4;
pub(crate) const FEW_BYTES: usize = 2 * 8 * FEW_WORDS;
/// Bytes per chunk of the tables in front of the ages, and of all.
const BEFORE_AGES: usize = RECORD_BYTES + FEW_BYTES + 2 * BITS_BYTES;
pub(crate) const SIDE_BYTES: usize = BEFORE_AGES + 1;
/// Number of chunks whose bits lie in one tile.
pub(crate) const TILE: usize = 64;
/// Bytes of the few bits in a tile, of the free bits (and of the remote bits), and of the whole.
const TILE_FEW: usize = TILE * FEW_BYTES;
const TILE_FREE: usize = TILE * BITS_BYTES;
pub(crate) const TILE_BYTES: usize = TILE_FEW + 2 * TILE_FREE;
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
/// Number of chunks of a long arena, and its `log2`.
pub(crate) const LONG: usize = ARENA_ALIGN / CHUNK;
const LONG_TABLES: u8 = LONG.ilog2() as u8;
/// Offset of the ages in a long arena: with the bits for huge pages they end where the chunks begin.
const LONG_AGES: usize = first_chunk(LONG) * CHUNK - HUGE_BYTES - LONG;
const _: () = assert!(BEFORE_AGES * LONG <= LONG_AGES, "records and bits must lie before the ages");
const _: () = assert!(LONG_AGES <= u32::MAX as usize, "a slab's record has the offset of its bits in four bytes");

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

/// Offset of the ages in an arena of `1 << tables` chunks, from its base. The bits end there. In an arena shorter than
/// a tile the ages are at the end of the first chunk, which has all tables.
#[inline(always)]
pub(crate) const fn ages(tables: u8) -> usize {
    match BEFORE_AGES << tables {
        _ if tables == LONG_TABLES => LONG_AGES,
        before if before < CHUNK - TILE => CHUNK - TILE,
        before => before,
    }
}

/// Address of the age of the chunk that the record at `record` describes, in an arena of `1 << tables` chunks.
#[inline(always)]
pub(crate) const fn age_address(record: usize, tables: u8) -> usize {
    let (base, index) = split(record);
    base + ages(tables) + index
}

/// Offset of the free bits of chunk `index` from the base of its arena of `1 << tables` chunks; of the few bits if
/// `few`.
pub(crate) const fn bits(tables: u8, index: usize, few: bool) -> usize {
    let nth = index - first_chunk(1 << tables);
    let end = ages(tables) - nth / TILE * TILE_BYTES;
    let before = nth % TILE + 1;
    if few { end - before * FEW_BYTES } else { end - TILE_FEW - before * BITS_BYTES }
}

/// Address of the remote bits of a chunk whose free bits lie at `free`; they are few bits if `few`.
#[inline(always)]
pub(crate) const fn remote_bits(free: usize, few: bool) -> usize {
    if few { free + FEW_BYTES / 2 } else { free - TILE_FREE }
}

/// Offset of the lowest bits of the chunks below index `end`, in an arena of `1 << tables` chunks: the bits of these
/// chunks lie between it and [`ages`].
pub(crate) const fn lowest_bits(tables: u8, end: usize) -> usize {
    let n = end - first_chunk(1 << tables);
    let rest = if n.is_multiple_of(TILE) { 0 } else { TILE_FEW + TILE_FREE + n % TILE * BITS_BYTES };
    ages(tables) - n / TILE * TILE_BYTES - rest
}

/// Offset of the end of the tile that has the bits of chunk `index`, in an arena of `1 << tables` chunks.
pub(crate) const fn end_of_tile(tables: u8, index: usize) -> usize {
    ages(tables) - (index - first_chunk(1 << tables)) / TILE * TILE_BYTES
}

/// Index of the first chunk after the side tables of an arena. In a long arena that is 16 MiB below a multiple of 1
/// GiB: the kernel has a page table for each GiB in which memory lies, and when it searches a range for touched pages,
/// it skips each GiB without one. So to search a long untouched block behind a small heap costs nearly nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches two tables, or the entries of two chunks, that overlap, in an arena of any length; and bits that lie
    /// outside of the part that is committed for them.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn tables_do_not_overlap() {
        for tables in (MIN_ARENA / CHUNK).ilog2()..=LONG.ilog2() {
            let (tables, chunks) = (tables as u8, 1usize << tables);
            let first = first_chunk(chunks);
            let huge = if chunks == LONG { HUGE_BYTES } else { 0 };
            assert!(ages(tables) + chunks + huge <= first * CHUNK, "{chunks} chunks");
            assert!(lowest_bits(tables, chunks) >= chunks * RECORD_BYTES, "{chunks} chunks");
            let mut lowest = ages(tables);
            let mut seen = std::vec::Vec::new();
            for index in (first..chunks).take(200).chain((chunks - 3).max(first + 200)..chunks) {
                if index == first + 200 || index + 3 == chunks {
                    (lowest, seen) = (end_of_tile(tables, index), std::vec::Vec::new());
                }
                let end = lowest_bits(tables, index + 1);
                for (few, bytes) in [(true, FEW_BYTES / 2), (false, BITS_BYTES)] {
                    let free = bits(tables, index, few);
                    for at in [free, remote_bits(free, few)] {
                        assert!(end <= at && at + bytes <= end_of_tile(tables, index), "{chunks} chunks, {index}");
                        assert!(
                            seen.iter().all(|&(from, to)| at + bytes <= from || to <= at),
                            "{chunks} chunks, {index}"
                        );
                        seen.push((at, at + bytes));
                    }
                }
                assert!(end <= lowest, "{chunks} chunks, {index}");
                lowest = end;
            }
        }
    }
}
