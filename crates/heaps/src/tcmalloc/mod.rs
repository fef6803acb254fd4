//! tcmalloc of gperftools: found by its radix tree in the data of a library or a program, then read span by span.
//!
//! A span is a run of pages of 8 KiB: in use, free, or free and given back. A span for small blocks says how many of
//! them are in use, including those in caches of threads ([`caches`]). A table in the data of the library has their
//! sizes.

mod caches;

use crate::data::{data, mentions};
use crate::jemalloc::{joined, part};
use crate::radix::{Led, Seen, Tree, is_anonymous};
use crate::window::{copy, page_size, resident, word};
use crate::{Amount, Files, Heap, Mapping, Memory, Part, Split};
use std::ops::Range;

/// The tree: 35 bits of page numbers.
const TREE: Tree = Tree { levels: &[17, 18], words: 1, aligned: 8 };
/// Bytes of a page, as a shift.
const PAGE: u32 = 13;
/// Bytes of a span's record that are read.
const RECORD: usize = 48;
/// Limit on spans.
const MOST: u32 = 1 << 24;
/// The largest size of small blocks, and limits on the number of sizes.
const LARGEST: u32 = 256 << 10;
const SIZES: Range<usize> = 32..128;

/// A span's record.
struct Span {
    first: u64,
    pages: u64,
    /// Blocks that are in use, or in a cache of a thread.
    used: u64,
    /// Their size, as an index in a table; 0 for one block of whole pages.
    class: u64,
    /// 0 in use, 1 free, 2 given back.
    place: u64,
}

impl Span {
    fn read(memory: &dyn Memory, mappings: &[Mapping], at: u64) -> Option<Span> {
        let mut bytes = [0; RECORD];
        if !at.is_multiple_of(8) || !is_anonymous(mappings, at) || !copy(memory, at, &mut bytes) {
            return None;
        }
        let (first, pages, bits) = (word(&bytes, 0)?, word(&bytes, 8)?, word(&bytes, 40)?);
        let span = Span { first, pages, used: bits & 0xffff, class: bits >> 16 & 0xff, place: bits >> 24 & 3 };
        let fits = first != 0 && pages != 0 && first.checked_add(pages)? < 1 << 34 && span.place < 3;
        (fits && is_anonymous(mappings, first << PAGE)).then_some(span)
    }
}

/// The heaps of all copies of tcmalloc in a process.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let mut heaps = Vec::new();
    for (mapping, range) in data(mappings) {
        if range.end - range.start < TREE.root_bytes() || !mentions(files, mapping, b"tcmalloc") {
            continue;
        }
        let lead = |(word, _): (u64, u64)| match Span::read(memory, mappings, word) {
            Some(span) => Led::Page(span.first),
            None if word == 0 => Led::Empty,
            None => Led::Astray,
        };
        let Some(root) = TREE.find(memory, mappings, &range, &lead) else { continue };
        let sizes = sizes(&crate::data::read(memory, range.clone())).unwrap_or_default();
        let (mut split, mut ranges, mut own, mut spans) = (Split::default(), Vec::new(), Vec::new(), 0);
        let mut classes: Vec<(Range<u64>, u64)> = Vec::new();
        let mut end = 0;
        TREE.each(memory, mappings, root, &mut |seen| match seen {
            Seen::Node(leaf) => own.push(leaf & !4095..(leaf + TREE.node_bytes(1)) & !4095),
            Seen::Element { page, element: (word, _) } if spans < MOST => {
                if let Some(span) = Span::read(memory, mappings, word).filter(|span| span.first == page && page >= end)
                {
                    spans += 1;
                    end = span.first + span.pages;
                    let range = count(memory, &span, &sizes, &mut split);
                    if span.place == 0 && span.class != 0 {
                        classes.push((range.clone(), span.class));
                    }
                    ranges.push(range);
                }
            }
            Seen::Element { .. } => {}
        });
        let ranges = joined(ranges);
        let class = |at: u64| {
            let (range, class) = classes.get(classes.partition_point(|(range, _)| range.end <= at))?;
            range.contains(&at).then_some(*class)
        };
        let cached = caches::find(memory, mappings, &ranges, &range, &sizes, &class);
        count_apart(&cached, &sizes, &mut split);
        let own = part(memory, "leaves of the page map".to_string(), joined(own), None);
        let metadata = Amount { blocks: 0, bytes: own.bytes, resident: own.resident_bytes };
        let own = Part { split: Some(Split { metadata, ..Split::default() }), ..own };
        heaps.push(Heap {
            allocator: "tcmalloc".to_string(),
            library: mapping.file().map(str::to_string),
            parts: vec![part(memory, "spans".to_string(), ranges, Some(split)), own],
            settings: None,
            doubts: match (sizes.is_empty(), cached.is_any) {
                (true, _) => vec!["free blocks in spans that are in use count as live, and those in caches too".into()],
                (_, false) => vec!["no caches of threads were found: blocks in them count as live".into()],
                _ => Vec::new(),
            },
        });
    }
    heaps
}

/// Moves cached blocks out of the live ones. Which OS pages they are on is not known: they are resident as the live ones
/// are.
fn count_apart(cached: &caches::Cached, sizes: &[u64], split: &mut Split) {
    let (blocks, bytes) = cached.blocks.iter().zip(sizes).fold((0, 0), |sums: (u64, u64), (blocks, size)| {
        (sums.0 + blocks, sums.1.saturating_add(blocks.saturating_mul(*size)))
    });
    let live = split.live;
    let (blocks, bytes) = (blocks.min(live.blocks), bytes.min(live.bytes));
    let share = u128::from(live.resident) * u128::from(bytes) / u128::from(live.bytes.max(1));
    let resident = share as u64;
    split.cached = Amount { blocks, bytes, resident };
    split.live = Amount { blocks: live.blocks - blocks, bytes: live.bytes - bytes, resident: live.resident - resident };
}

/// The sizes of small blocks, by class: 0, 8, 16, ... up to [`LARGEST`], of 4 bytes each.
fn sizes(data: &[u8]) -> Option<Vec<u64>> {
    let numbers: Vec<u32> = data.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    (0..numbers.len()).find_map(|at| {
        let table = numbers.get(at..)?;
        if !table.starts_with(&[0, 8, 16]) {
            return None;
        }
        let last = table.windows(2).take(SIZES.end).position(|two| two[1] <= two[0] || !two[1].is_multiple_of(8))?;
        let fits = SIZES.contains(&last) && table[last] == LARGEST;
        fits.then(|| table[..=last].iter().map(|size| u64::from(*size)).collect())
    })
}

fn count(memory: &dyn Memory, span: &Span, sizes: &[u64], split: &mut Split) -> Range<u64> {
    let range = span.first << PAGE..(span.first + span.pages) << PAGE;
    let resident = resident(memory, range.clone());
    let amount = Amount { blocks: 1, bytes: range.end - range.start, resident };
    if span.place != 0 {
        split.free.add(&amount);
        split.kept_bytes += resident & !(page_size(memory) - 1);
        split.trimmable_bytes += resident;
        split.largest_free_bytes = split.largest_free_bytes.max(amount.bytes);
    } else if span.class == 0 {
        split.live.add(&amount);
    } else if let Some(size) = sizes.get(span.class as usize) {
        let bytes = (span.used * size).min(amount.bytes);
        let live = Amount { blocks: span.used, bytes, resident: bytes.min(resident) };
        split.live.add(&live);
        let blocks = (amount.bytes / size).saturating_sub(span.used);
        split.free.add(&Amount { blocks, bytes: amount.bytes - bytes, resident: resident - live.resident });
    } else {
        // Without the size of the blocks their used bytes are not known.
        split.live.add(&Amount { blocks: 0, ..amount });
    }
    range
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a table that is not found, and other data that is taken for it.
    #[test]
    fn sizes_are_found() {
        let table: Vec<u32> = [0, 8].into_iter().chain((1..=50).map(|n| n * 16)).chain([LARGEST, 0, 1]).collect();
        let bytes = |table: &[u32]| table.iter().flat_map(|size| size.to_le_bytes()).collect::<Vec<u8>>();
        let found = sizes(&bytes(&[&[1, 0, 8, 16, 3], &table[..]].concat())).expect("a table");
        assert_eq!((found.len(), found[3], found.last()), (53, 32, Some(&u64::from(LARGEST))));
        assert!(sizes(&bytes(&table[..20])).is_none() && sizes(&[]).is_none());
    }
}
