//! Blocks with their own mappings. They are in no list: they are found by their headers, at the front of mappings.
//!
//! The header's first word is its distance from the start of the mapping (not 0 for aligned blocks); its second word is
//! the number of bytes from the header to the end of the mapping (less 16 since 2.43) with a flag. A mapping may
//! directly follow another.

use crate::window::{held, page_size, word};
use crate::{Amount, Memory};
use std::ops::Range;

/// OS pages without a header that are read before the search ends.
const PAGES: u32 = 1 << 20;
/// Bytes of a read after a longer part without blocks.
const PIECE: u64 = 256 << 10;
/// Flags of a header: the block has its own mapping.
const MMAPPED: u64 = 2;

/// What was found.
#[derive(Debug, Default)]
pub struct Blocks {
    pub live: Amount,
    pub swapped: u64,
    pub ranges: Vec<Range<u64>>,
    /// The end of each block's mapping.
    bytes: u64,
}

impl Blocks {
    /// Counts the blocks with these chunks as free instead of live; their amount.
    pub fn take(&mut self, memory: &dyn Memory, chunks: &[u64]) -> Amount {
        let mut cached = Amount::default();
        for chunk in chunks {
            // In the order of addresses, as they were found.
            let at = self.ranges.partition_point(|range| range.end <= *chunk);
            let Some(range) = self.ranges.get(at).filter(|range| range.contains(chunk)) else { continue };
            let resident = held(memory, range.clone()).0;
            cached.add(&Amount { blocks: 1, bytes: range.end - range.start, resident });
        }
        self.live.blocks = self.live.blocks.saturating_sub(cached.blocks);
        self.live.bytes = self.live.bytes.saturating_sub(cached.bytes);
        self.live.resident = self.live.resident.saturating_sub(cached.resident);
        cached
    }
}

/// Finds blocks in `spans`, until there are `number` blocks with `bytes` bytes.
pub fn search(memory: &dyn Memory, spans: &[Range<u64>], number: u64, bytes: u64) -> Blocks {
    let (mut blocks, mut pages) = (Blocks::default(), PAGES);
    for span in spans {
        let mut at = span.start;
        while at < span.end && pages > 0 && (blocks.live.blocks < number || blocks.bytes < bytes) {
            at = part(memory, span, at, &mut blocks, &mut pages);
        }
    }
    blocks
}

/// Searches a part of a span from `at` on; returns where to continue.
fn part(memory: &dyn Memory, span: &Range<u64>, at: u64, blocks: &mut Blocks, pages: &mut u32) -> u64 {
    let size = page_size(memory);
    let end = at.saturating_add(16 << 20).min(span.end);
    let (mut runs, mut read, mut piece, mut step) = (Vec::new(), 0..0, Vec::new(), size);
    memory.resident(at..end, &mut runs);
    let mut place = at;
    for run in runs {
        let run = run.range.start..run.range.end.min(end);
        place = place.max(run.start);
        while place < run.end && *pages > 0 {
            *pages -= 1;
            if !read.contains(&place) {
                read = place..run.end.min(place + step);
                step = (2 * step).min(PIECE);
                piece.resize((read.end - place) as usize, 0);
                // If the piece cannot be read, a part of it may be gone: one OS page is tried.
                if memory.read(place, &mut piece).is_err() {
                    read = place..run.end.min(place + size);
                    piece.resize((read.end - place) as usize, 0);
                    if memory.read(place, &mut piece).is_err() {
                        piece.fill(0);
                    }
                }
            }
            let offset = (place - read.start) as usize;
            let bytes = piece.get(offset..offset + size as usize);
            // A block cannot begin inside another one.
            let block = bytes.and_then(|bytes| block(bytes, place, span));
            let Some(block) = block.filter(|block| blocks.ranges.last().is_none_or(|last| block.start >= last.end))
            else {
                place += size;
                continue;
            };
            let (resident, swapped) = held(memory, block.clone());
            let length = block.end - block.start;
            blocks.live.add(&Amount { blocks: 1, bytes: length, resident });
            blocks.swapped += swapped;
            blocks.bytes += length;
            place = block.end;
            // After a block another one is likely, of which only the header is needed.
            step = size;
            blocks.ranges.push(block);
        }
    }
    place.max(end)
}

/// The mapping of the block whose header is in the OS page at `page`.
fn block(bytes: &[u8], page: u64, span: &Range<u64>) -> Option<Range<u64>> {
    let size = bytes.len() as u64;
    // The block is aligned to 16 (at the front), or to more: to the end of its header.
    let aligned = (5..).map(|shift| (1 << shift) - 16).take_while(|offset| *offset < size);
    std::iter::once(0).chain(aligned).find_map(|offset| {
        let (before, field) = (word(bytes, offset as usize)?, word(bytes, offset as usize + 8)?);
        let (header, before, length) = (page + offset, before & !1, field & !7);
        let start = header.checked_sub(before)?;
        let fits = field & 7 == MMAPPED && before.is_multiple_of(16) && start.is_multiple_of(size) && length >= 32;
        let end = [0, 16].into_iter().find_map(|less| {
            let end = header.checked_add(length)?.checked_add(less)?;
            end.is_multiple_of(size).then_some(end)
        })?;
        (fits && start >= span.start && end <= span.end && end > page).then_some(start..end)
    })
}
