//! Blocks in caches of gperftools' threads, and in the lists between these and the spans: spans count them as used.
//!
//! A thread's cache has a list for each size class, in the order of classes, with the size of its blocks; so it is
//! recognised by the table of sizes. Each class has up to 64 batches of blocks in the data of the library, by their
//! first and last block:
//!
//! ```c
//! struct { void *first; uint32_t length, more[3]; int32_t size; } lists[CLASSES];
//! struct { void *first, *last; } batches[64]; int32_t used, room, most;
//! ```

use crate::data::read;
use crate::jemalloc::caches::without;
use crate::window::{peek, word};
use crate::{Mapping, Memory};
use std::ops::Range;

/// Bytes of a list, and the offset of the size of its blocks.
const LIST: usize = 32;
const SIZE: usize = 24;
/// Batches of a class.
const BATCHES: usize = 64;
/// Limits on the bytes that are searched, and on the blocks of a batch.
const MOST: u64 = 64 << 20;
const BLOCKS: u64 = 65536;

/// Free blocks by class.
pub struct Cached {
    pub blocks: Vec<u64>,
    /// Whether a cache of a thread was found.
    pub is_any: bool,
}

/// Searches private memory outside of the spans, `own`, which is in order, and `data`, that of the library.
/// `class` returns the class of a block's address.
pub fn find(
    memory: &dyn Memory,
    mappings: &[Mapping],
    own: &[Range<u64>],
    data: &Range<u64>,
    sizes: &[u64],
    class: &dyn Fn(u64) -> Option<u64>,
) -> Cached {
    let mut cached = Cached { blocks: vec![0; sizes.len()], is_any: false };
    // Without the sizes of the classes nothing shows a list.
    if sizes.len() < 3 {
        return cached;
    }
    let mut ranges: Vec<Range<u64>> =
        mappings.iter().filter(|of| of.is_anonymous()).map(|of| of.range.clone()).collect();
    ranges.sort_by_key(|range| range.end - range.start);
    let mut left = MOST;
    for range in ranges.into_iter().flat_map(|range| without(range, own)) {
        let mut runs = Vec::new();
        memory.resident(range.clone(), &mut runs);
        for run in runs.iter().filter(|run| !run.swapped) {
            let part = run.range.start.max(range.start)..run.range.end.min(range.end);
            if part.end.saturating_sub(part.start) > left {
                continue;
            }
            left -= part.end - part.start;
            lists(&read(memory, part), sizes, &mut cached);
        }
    }
    batches(memory, &read(memory, data.clone()), class, &mut cached);
    cached
}

/// Counts the caches of threads in some memory.
fn lists(bytes: &[u8], sizes: &[u64], cached: &mut Cached) {
    let half = |at: usize| Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)));
    let mut at = 0;
    while at + LIST * sizes.len() <= bytes.len() {
        // The sizes of the second and third class first: most memory has others.
        let size = |class: usize| half(at + LIST * class + SIZE);
        if size(1) == sizes.get(1).copied()
            && size(2) == sizes.get(2).copied()
            && (1..sizes.len()).all(|class| size(class) == Some(sizes[class]))
        {
            cached.is_any = true;
            for class in 1..sizes.len() {
                cached.blocks[class] += half(at + LIST * class + 8).unwrap_or(0).min(BLOCKS);
            }
            at += LIST * sizes.len();
        } else {
            at += 8;
        }
    }
}

/// Counts the blocks of batches in the data of the library.
fn batches(memory: &dyn Memory, data: &[u8], class: &dyn Fn(u64) -> Option<u64>, cached: &mut Cached) {
    let half = |at: usize| Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?) as usize);
    for at in (16 * BATCHES..data.len()).step_by(8) {
        let (Some(used), Some(room), Some(most)) = (half(at), half(at + 4), half(at + 8)) else { break };
        if used == 0 || used > room || room > most || most > BATCHES {
            continue;
        }
        let front = at - 16 * BATCHES;
        let batch = |number: usize| Some((word(data, front + 16 * number)?, word(data, front + 16 * number + 8)?));
        let first = batch(0).and_then(|(first, _)| class(first)).filter(|class| *class > 0);
        let is_one = |number| batch(number).is_some_and(|(from, to)| class(from) == first && class(to) == first);
        let Some(of) = first.filter(|_| (0..used).all(is_one)) else { continue };
        for (mut block, last) in (0..used).filter_map(batch) {
            let mut count = 1;
            while block != last && count < BLOCKS {
                count += 1;
                let Some(next) = peek(memory, block).filter(|next| class(*next) == first) else { break };
                block = next;
            }
            if let Some(sum) = cached.blocks.get_mut(of as usize) {
                *sum += count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Run, Unreadable};

    struct Zeros;

    impl Memory for Zeros {
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), Unreadable> {
            into.fill(0);
            Ok(())
        }

        fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
            into.push(Run { range, swapped: false });
        }
    }

    /// Catches a search without an end where the sizes of the classes are damaged or unknown.
    #[test]
    fn without_sizes_it_ends() {
        let mappings = [Mapping { range: 1 << 20..2 << 20, private: true, ..Mapping::default() }];
        for sizes in [&[][..], &[0], &[0, 8]] {
            let cached = find(&Zeros, &mappings, &[], &(0..4096), sizes, &|_| None);
            assert!(!cached.is_any && cached.blocks.iter().all(|count| *count == 0));
        }
    }
}
