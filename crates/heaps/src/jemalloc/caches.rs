//! Blocks in the caches of jemalloc's threads: the records of their slabs have them as live.
//!
//! A thread's cache is an array of bins in its thread-local storage, one for each size class, of 24 bytes each. A bin
//! points to its part of one array of addresses of blocks. The parts follow each other without a gap, so an array of
//! bins is recognised by pointers that fit together, wherever thread-local storage is:
//!
//! ```c
//! struct { void **head; uint64_t requests; uint16_t low, full, empty, max; };  /* 5.3: the low bits of addresses */
//! struct { int32_t low, cached; uint64_t requests; void **end; };              /* to 5.2 */
//! ```

use crate::data::read;
use crate::radix::is_anonymous;
use crate::window::{overlap, word};
use crate::{Mapping, Memory};
use std::ops::Range;

/// Bytes of a bin.
const BIN: usize = 24;
/// The fewest bins of an array.
const FEWEST: usize = 8;
/// Bytes behind an array in which another one is searched.
const APART: usize = 256;
/// Limit on the blocks of a bin.
const BLOCKS: u64 = 8192;
/// Limit on the bytes that are searched.
const MOST: u64 = 64 << 20;

/// What was found.
#[derive(Default)]
pub struct Found {
    /// The addresses of blocks, by bin.
    pub bins: Vec<Vec<u64>>,
    /// Addresses in the arrays of addresses of blocks, one of each: they are blocks too.
    pub arrays: Vec<u64>,
    /// Whether memory was left out.
    pub is_cut: bool,
}

/// Searches all memory except that of the heap, `own`, which is in order.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], own: &[Range<u64>], is_newer: bool) -> Found {
    let (mut found, mut left) = (Found::default(), MOST);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.is_anonymous()) {
        ranges.extend(without(mapping.range.clone(), own));
    }
    // Stacks and thread-local storage are small, other heaps are not.
    ranges.sort_by_key(|range| range.end - range.start);
    for range in ranges {
        let mut runs = Vec::new();
        memory.resident(range.clone(), &mut runs);
        for run in runs.iter().filter(|run| !run.swapped) {
            let part = run.range.start.max(range.start)..run.range.end.min(range.end);
            if part.end.saturating_sub(part.start) > left {
                found.is_cut = true;
                return found;
            }
            left -= part.end - part.start;
            search(memory, mappings, part, is_newer, &mut found);
        }
    }
    found
}

/// The parts of `range` outside of `own`.
pub fn without(range: Range<u64>, own: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut parts, mut at) = (Vec::new(), range.start);
    let first = own.partition_point(|of| of.end <= range.start);
    for of in own[first..].iter().take_while(|of| of.start < range.end).filter(|of| overlap(of, &range) > 0) {
        if at < of.start {
            parts.push(at..of.start);
        }
        at = at.max(of.end);
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

/// The stack of a bin: its blocks, and the bounds of the room for them as far as they are known.
struct Stack {
    blocks: Range<u64>,
    room: Range<u64>,
}

/// A bin of version 5.3.
fn newer(bytes: &[u8], at: usize) -> Option<Stack> {
    let (head, low) = (word(bytes, at)?, word(bytes, at + 16)?);
    let half = |number: u32| (low >> (16 * number)) as u16;
    let (full, empty) = (half(1), half(2));
    let (room, cached) = (u64::from(empty.wrapping_sub(full)), u64::from(empty.wrapping_sub(head as u16)));
    let end = head.checked_add(cached)?;
    let fits = head >= 4096 && head % 8 == 0 && room % 8 == 0 && cached % 8 == 0 && cached <= room;
    fits.then_some(Stack { blocks: head..end, room: end.checked_sub(room)?..end })
}

/// A bin up to version 5.2.
fn older(bytes: &[u8], at: usize) -> Option<Stack> {
    let (numbers, end) = (word(bytes, at)?, word(bytes, at + 16)?);
    let (low, cached) = (numbers as i32, numbers >> 32);
    let start = end.checked_sub(8 * cached)?;
    let fits = end >= 4096 && end % 8 == 0 && cached <= BLOCKS && (-1..=cached as i32).contains(&low);
    fits.then_some(Stack { blocks: start..end, room: start..end })
}

/// Finds arrays of bins in a range.
fn search(memory: &dyn Memory, mappings: &[Mapping], range: Range<u64>, is_newer: bool, found: &mut Found) {
    let bytes = read(memory, range);
    let bin = |at: usize| if is_newer { newer(&bytes, at) } else { older(&bytes, at) };
    let follows = |last: &Stack, next: &Stack| match is_newer {
        true => next.room.start == last.room.end,
        // The room of a bin is known only from the end of the one before.
        false => {
            last.room.end < next.room.end
                && last.room.end <= next.blocks.start
                && next.room.end - last.room.end <= 8 * BLOCKS
        }
    };
    let mut at = 0;
    while at + FEWEST * BIN <= bytes.len() {
        let mut stacks: Vec<Stack> = Vec::new();
        while let Some(next) = bin(at + BIN * stacks.len()) {
            if stacks.last().is_some_and(|last| !follows(last, &next)) {
                break;
            }
            stacks.push(next);
        }
        let is_array = stacks.len() >= FEWEST
            && stacks[0].room.start < stacks[stacks.len() - 1].room.end
            && is_anonymous(mappings, stacks[0].blocks.start);
        if !is_array {
            at += 8;
            continue;
        }
        at += BIN * stacks.len();
        // Up to 5.2 the bins of large classes are apart, a little behind; their parts of the array follow.
        let apart = (at..at + APART).step_by(8).filter(|_| !is_newer);
        let joins = |at: &usize| bin(*at).is_some_and(|next| follows(&stacks[stacks.len() - 1], &next));
        if let Some(large) = apart.into_iter().find(joins) {
            at = large;
            while let Some(next) = bin(at).filter(|next| follows(&stacks[stacks.len() - 1], next)) {
                stacks.push(next);
                at += BIN;
            }
        }
        found.arrays.push(stacks[0].room.start);
        for stack in stacks.iter().filter(|stack| !stack.blocks.is_empty()) {
            let blocks = read(memory, stack.blocks.clone());
            found.bins.push(blocks.as_chunks::<8>().0.iter().map(|block| u64::from_le_bytes(*block)).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without;

    /// Catches memory of the heap that is searched, and memory beside it that is not.
    #[test]
    fn memory_outside_of_the_heap() {
        assert_eq!(without(10..20, &[0..5, 8..12, 14..15, 20..30]), [12..14, 15..20]);
        assert_eq!(without(10..20, &[0..100, 200..300]), []);
        assert!(without(10..20, &[]).iter().eq([&(10..20)]));
    }
}
