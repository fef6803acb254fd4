//! tcmalloc of gperftools: found by its radix tree in the data of a library or a program, then read span by span.
//!
//! A span is a run of pages of 8 KiB: in use, free, or free and given back. Spans in use for small blocks are taken as
//! live whole.

use crate::data::{data, mentions};
use crate::jemalloc::{joined, part};
use crate::radix::{Seen, Tree, is_anonymous};
use crate::window::{copy, page_size, resident, word};
use crate::{Amount, Files, Heap, Mapping, Memory, Part, Split};

/// The tree: 35 bits of page numbers.
const TREE: Tree = Tree { root: 1 << 17, leaf: 1 << 18, aligned: 8 };
/// Bytes of a page, as a shift.
const PAGE: u32 = 13;
/// Bytes of a span's record that are read.
const RECORD: usize = 48;
/// Spans that are read.
const MOST: u32 = 1 << 24;

/// A span's record.
struct Span {
    first: u64,
    pages: u64,
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
        let span = Span { first, pages, class: bits >> 16 & 0xff, place: bits >> 24 & 3 };
        let fits = first != 0 && pages != 0 && first.checked_add(pages)? < 1 << 34 && span.place < 3;
        (fits && is_anonymous(mappings, first << PAGE)).then_some(span)
    }
}

/// The heaps of all copies of tcmalloc in a process.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let mut heaps = Vec::new();
    for (mapping, range) in data(mappings) {
        if range.end - range.start < 8 * TREE.root || !mentions(files, mapping, b"tcmalloc") {
            continue;
        }
        let page = |word: u64| Span::read(memory, mappings, word).map(|span| span.first);
        let Some(root) = TREE.find(memory, mappings, &range, &page) else { continue };
        let (mut split, mut ranges, mut own, mut spans) = (Split::default(), Vec::new(), Vec::new(), 0);
        let mut end = 0;
        TREE.each(memory, mappings, root, &mut |seen| match seen {
            Seen::Leaf(leaf) => own.push(leaf & !4095..(leaf + 8 * TREE.leaf) & !4095),
            Seen::Word { page, word } if spans < MOST => {
                if let Some(span) = Span::read(memory, mappings, word).filter(|span| span.first == page && page >= end)
                {
                    spans += 1;
                    end = span.first + span.pages;
                    ranges.push(count(memory, &span, &mut split));
                }
            }
            Seen::Word { .. } => {}
        });
        let own = part(memory, "leaves of the page map".to_string(), joined(own), None);
        let metadata = Amount { blocks: 0, bytes: own.bytes, resident: own.resident_bytes };
        let own = Part { split: Some(Split { metadata, ..Split::default() }), ..own };
        heaps.push(Heap {
            allocator: "tcmalloc".to_string(),
            library: mapping.file().map(str::to_string),
            parts: vec![part(memory, "spans".to_string(), joined(ranges), Some(split)), own],
            doubts: vec!["free blocks in spans that are in use count as live, and those in caches too".to_string()],
        });
    }
    heaps
}

fn count(memory: &dyn Memory, span: &Span, split: &mut Split) -> std::ops::Range<u64> {
    let range = span.first << PAGE..(span.first + span.pages) << PAGE;
    let resident = resident(memory, range.clone());
    let amount = Amount { blocks: 1, bytes: range.end - range.start, resident };
    if span.place == 0 {
        split.live.add(&amount);
        // Of a span for small blocks it is not known how many there are.
        split.live.blocks -= u64::from(span.class != 0);
    } else {
        split.free.add(&amount);
        split.kept_bytes += resident & !(page_size(memory) - 1);
        split.trimmable_bytes += resident;
        split.largest_free_bytes = split.largest_free_bytes.max(amount.bytes);
    }
    range
}
