//! jemalloc 5.0 to 5.3: found by its radix tree in the data of a library or a program, then read extent by extent.
//!
//! The tree has a root of 2^18 pointers, for bits 30 to 47 of addresses; each leaf has 2^18 words for bits 12 to 29. A
//! word is a pointer to an extent's record in the middle, its size class in the highest 16 bits, and flags in the
//! lowest 7. The record has the extent's address, size and state, and for a slab a bit for each block, set while it is
//! free. So a pointer certainly belongs to the tree if its leaf leads to a record with exactly the address that the
//! leaf's index says. Versions differ in where the record has state, class and number of free blocks. They are
//! distinguished by the class, which the word has too.

use crate::data::{data, mentions};
use crate::radix::{Seen, Tree, is_anonymous};
use crate::window::{copy, held, overlap, page_size, peek, resident, word};
use crate::{Amount, Files, Heap, Mapping, Memory, Part, Run, Split};
use std::collections::BTreeMap;
use std::ops::Range;

/// The tree.
const TREE: Tree = Tree { root: 1 << 18, leaf: 1 << 18, aligned: 64 };
/// Bytes of a record.
const RECORD: usize = 128;
/// Its bits of blocks.
const BITS: usize = 64;
/// Limit on extents.
const MOST: u32 = 1 << 24;

/// Where a version has its fields: shifts in the first word of a record, and the mask of the state.
#[derive(Debug)]
struct Layout {
    name: &'static str,
    state: (u32, u64),
    class: u32,
    free: u32,
    /// Bits of a leaf's word below the pointer that are flags; where there is room, they include the state.
    flags: u64,
}

const LAYOUTS: [Layout; 3] = [
    Layout { name: "jemalloc 5.3", state: (17, 7), class: 20, free: 28, flags: 0x7f },
    Layout { name: NEWER, state: (16, 3), class: 18, free: 26, flags: 0x3f },
    Layout { name: "jemalloc 5.0", state: (15, 3), class: 17, free: 25, flags: 0x3f },
];
/// Two versions with one layout: the newer has a setting with that name.
const NEWER: &str = "jemalloc 5.2";
const OLDER: &str = "jemalloc 5.1";
const SETTING: &[u8] = b"bin_shards";
/// Unit and alignment of the allocator's own memory.
const BASE: u64 = 2 << 20;

/// The heaps of all copies of jemalloc in a process.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let mut heaps = Vec::new();
    let page = |layout: &Layout, word: u64| {
        let mut bytes = [0; RECORD];
        let at = layout.record(word);
        let is_read = is_anonymous(mappings, at) && copy(memory, at, &mut bytes);
        let record = is_read.then(|| Record::parse(layout, &bytes)).flatten()?;
        // A slab of the first class may look the same in two versions.
        let fits = record.class != 0 && record.fits(layout, word) && is_anonymous(mappings, record.address);
        fits.then_some(record.address >> 12)
    };
    for (mapping, range) in data(mappings) {
        if range.end - range.start < 8 * TREE.root || !mentions(files, mapping, b"jemalloc") {
            continue;
        }
        let found = |layout| Some((layout, TREE.find(memory, mappings, &range, &|word| page(layout, word))?));
        let Some((layout, root)) = LAYOUTS.iter().find_map(found) else { continue };
        let mut walk = Walk { memory, layout, splits: BTreeMap::new(), bases: Vec::new(), extents: 0, end: 0, torn: 0 };
        TREE.each(memory, mappings, root, &mut |seen| match seen {
            Seen::Leaf(leaf) => walk.own(leaf),
            Seen::Word { page, word } => walk.word(page, word),
        });
        let mut heap = walk.heap(mapping);
        if layout.name == NEWER && !mentions(files, mapping, SETTING) {
            heap.allocator = OLDER.to_string();
        }
        heap.settings = variable(files, mapping);
        heaps.push(heap);
    }
    heaps
}

/// The record of an extent.
#[derive(Clone, Copy)]
struct Record {
    address: u64,
    size: u64,
    arena: u64,
    is_slab: bool,
    /// 0 active, 1 dirty, 2 muzzy, 3 retained.
    state: u64,
    class: u64,
    free: u64,
}

impl Record {
    fn parse(layout: &Layout, bytes: &[u8]) -> Option<Record> {
        let (bits, address, size) = (word(bytes, 0)?, word(bytes, 8)?, word(bytes, 16)? & !4095);
        let record = Record {
            address: address & !4095,
            size,
            arena: bits & 0xfff,
            is_slab: bits >> 12 & 1 == 1,
            state: bits >> layout.state.0 & layout.state.1,
            class: bits >> layout.class & 0xff,
            free: bits >> layout.free & 0x3ff,
        };
        (size != 0 && size < 1 << 47 && record.address != 0 && record.address.checked_add(size)? < 1 << 47)
            .then_some(record)
    }

    /// Whether it agrees with the word of a leaf.
    fn fits(&self, layout: &Layout, word: u64) -> bool {
        self.class == word >> 48
            && u64::from(self.is_slab) == word & 1
            && (layout.flags < 0x7f || self.state == word >> 2 & 7)
    }
}

impl Layout {
    /// The record that a leaf's word points to.
    fn record(&self, word: u64) -> u64 {
        word & 0xffff_ffff_ffff & !self.flags
    }
}

struct Walk<'a> {
    memory: &'a dyn Memory,
    layout: &'static Layout,
    /// By arena.
    splits: BTreeMap<u64, (Split, Vec<Range<u64>>)>,
    /// The allocator's own memory.
    bases: Vec<Range<u64>>,
    extents: u32,
    /// The end of the last extent.
    end: u64,
    /// Slabs whose bits and count disagreed, and extents that began in another one.
    torn: u32,
}

impl Walk<'_> {
    /// Reads the extent of an OS page's word, if the extent begins there.
    fn word(&mut self, page: u64, word: u64) {
        let mut bytes = [0; RECORD];
        if self.extents < MOST
            && copy(self.memory, self.layout.record(word), &mut bytes)
            && let Some(record) = Record::parse(self.layout, &bytes)
            && record.address == page << 12
        {
            self.extents += 1;
            self.own(self.layout.record(word));
            if record.address < self.end {
                self.torn += 1;
                return;
            }
            self.end = record.address + record.size;
            self.extent(&record, &bytes[BITS..]);
        }
    }

    /// Notes the allocator's own memory around `address`: it begins with its size, and is aligned.
    fn own(&mut self, address: u64) {
        if self.bases.iter().any(|base| base.contains(&address)) {
            return;
        }
        let start = (0..64).map_while(|back| (address & !(BASE - 1)).checked_sub(back * BASE)).find_map(|start| {
            let size = peek(self.memory, start)?;
            let fits = size != 0 && size.is_multiple_of(BASE) && size < 1 << 40 && start + size > address;
            fits.then_some(start..start + size)
        });
        if let Some(range) = start.filter(|range| self.bases.iter().all(|base| overlap(base, range) == 0)) {
            self.bases.push(range);
        }
    }

    fn extent(&mut self, record: &Record, bits: &[u8]) {
        let range = record.address..record.address + record.size;
        let (split, ranges) = self.splits.entry(record.arena).or_default();
        ranges.push(range.clone());
        if record.state != 0 || !record.is_slab {
            let amount = Amount { blocks: 1, bytes: record.size, resident: resident(self.memory, range) };
            if record.state == 0 {
                split.live.add(&amount);
            } else {
                split.free.add(&amount);
                split.kept_bytes += amount.resident;
                split.trimmable_bytes += amount.resident;
                split.largest_free_bytes = split.largest_free_bytes.max(amount.bytes);
            }
            return;
        }
        let size = class_size(record.class);
        let count = record.size.checked_div(size).unwrap_or(0).min(8 * (RECORD - BITS) as u64);
        let is_free = |block: u64| bits[block as usize / 8] >> (block % 8) & 1 == 1;
        self.torn += u32::from((0..count).filter(|block| is_free(*block)).count() as u64 != record.free);
        let (mut runs, mut free_from, page) = (Vec::new(), None, page_size(self.memory));
        self.memory.resident(range.clone(), &mut runs);
        let held = |range: Range<u64>| -> u64 {
            let resident = |run: &&Run| !run.swapped;
            runs.iter().filter(resident).map(|run| overlap(&run.range, &range)).sum()
        };
        for block in 0..=count {
            let at = record.address + block * size;
            if block < count && is_free(block) {
                free_from.get_or_insert(at);
                continue;
            }
            // The rest after the last block is free too.
            let end = if block == count { range.end } else { at };
            if let Some(from) = free_from.take().or((block == count && at < range.end).then_some(at)) {
                let blocks = (end - from) / size;
                split.free.add(&Amount { blocks, bytes: end - from, resident: held(from..end) });
                let whole = from.next_multiple_of(page)..end & !(page - 1);
                split.kept_bytes += if whole.start < whole.end { held(whole) } else { 0 };
                split.largest_free_bytes = split.largest_free_bytes.max(size);
            }
            if block < count {
                split.live.add(&Amount { blocks: 1, bytes: size, resident: held(at..at + size) });
            }
        }
    }

    fn heap(mut self, mapping: &Mapping) -> Heap {
        let mut heap = Heap {
            allocator: self.layout.name.to_string(),
            library: mapping.file().map(str::to_string),
            ..Heap::default()
        };
        if self.torn > 0 {
            heap.doubts.push(format!("{} of {} extents changed while they were read", self.torn, self.extents));
        }
        heap.doubts.push("blocks in caches of threads count as live".to_string());
        if self.extents == MOST {
            heap.doubts.push(format!("more than {MOST} extents: the rest was not read"));
        }
        for (arena, (split, ranges)) in std::mem::take(&mut self.splits) {
            let ranges = joined(ranges);
            heap.parts.push(part(self.memory, format!("arena {arena}"), ranges, Some(split)));
        }
        let ranges = joined(std::mem::take(&mut self.bases));
        let mut sums = Amount::default();
        for range in &ranges {
            let resident = resident(self.memory, range.clone());
            sums.add(&Amount { blocks: 1, bytes: range.end - range.start, resident });
        }
        let split = Split { metadata: sums, ..Split::default() };
        heap.parts.push(part(self.memory, "metadata".to_string(), ranges, Some(split)));
        heap.parts.sort_by_key(|part| std::cmp::Reverse(part.resident_bytes));
        heap
    }
}

/// The environment variable with the settings of a copy whose functions have a prefix, as in Rust programs and in
/// Python's extensions: `_RJEM_MALLOC_CONF`.
fn variable(files: &dyn Files, mapping: &Mapping) -> Option<String> {
    const END: &[u8] = b"_MALLOC_CONF\0";
    const LONGEST: u64 = 64;
    let place = files.find(mapping, END).ok()??;
    let start = place.saturating_sub(LONGEST);
    let mut bytes = vec![0; (place - start) as usize + END.len() - 1];
    let got = files.read(mapping, start, &mut bytes);
    let name = bytes.get(..got)?.rsplit(|byte| *byte == 0).next()?;
    let is_part = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    (got == bytes.len() && name.iter().all(is_part)).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Bytes of a block of a size class.
fn class_size(class: u64) -> u64 {
    let Some(place) = class.checked_sub(1) else { return 8 };
    let (group, step) = (place / 4, place % 4 + 1);
    match group {
        0 => 16 * step,
        1..=40 => (64 << (group - 1)) + step * (16 << (group - 1)),
        _ => u64::MAX,
    }
}

/// Ranges in order: joined if they are adjacent, cut if a changed record made them overlap.
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// A part with `ranges`; with a split, its bytes are those of the split.
pub fn part(memory: &dyn Memory, name: String, ranges: Vec<Range<u64>>, split: Option<Split>) -> Part {
    let mut sums = (0, 0, 0);
    for range in &ranges {
        let (resident, swapped) = held(memory, range.clone());
        sums = (sums.0 + range.end - range.start, sums.1 + resident, sums.2 + swapped);
    }
    let total = split.as_ref().map(Split::total);
    Part {
        name,
        ranges,
        bytes: total.map_or(sums.0, |total| total.bytes),
        reserved_bytes: 0,
        resident_bytes: total.map_or(sums.1, |total| total.resident),
        swapped_bytes: sums.2,
        split,
    }
}

#[cfg(test)]
mod tests {
    use super::class_size;

    /// Catches sizes of classes that differ from jemalloc's table.
    #[test]
    fn classes() {
        let sizes: Vec<u64> = (0..18).map(class_size).collect();
        assert_eq!(sizes, [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640]);
        assert_eq!(class_size(36), 16 << 10);
    }
}
