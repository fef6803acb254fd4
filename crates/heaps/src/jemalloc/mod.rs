//! jemalloc 5.0 to 5.3: found by its radix tree in the data of a library or a program, then read extent by extent.
//!
//! The tree leads from bits 12 and up of an address to an element of a leaf: a pointer to an extent's record, its size
//! class and flags. The record has the extent's address, size and state, and for a slab a bit for each block, set while
//! it is free. So a pointer certainly belongs to the tree if its leaf leads to a record with exactly the address that the
//! places in the tree say. Versions and configurations ([`layout`]) are distinguished by the same agreement, and by the
//! class, which both element and record have.

pub mod caches;
mod layout;

use crate::data::{data, mentions};
use crate::radix::{Element, Led, Seen, is_anonymous};
use crate::window::{copy, held, overlap, page_size, peek, resident};
use crate::{Amount, Files, Heap, Mapping, Memory, Part, Run, Split};
use layout::{BITS, Build, LAYOUTS, NEWER, OLDER, RECORD, Record, SETTING, SHAPES, class_size};
use std::collections::BTreeMap;
use std::ops::Range;

/// The fewest bytes of data with a root: the smallest has 64 KiB, and other data is as large.
const ROOT: u64 = 128 << 10;
/// Limit on extents.
const MOST: u32 = 1 << 24;
/// Unit and alignment of the allocator's own memory.
const BASE: u64 = 2 << 20;

/// The heaps of all copies of jemalloc in a process.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let mut heaps = Vec::new();
    for (mapping, range) in data(mappings) {
        // Files are searched only where a root has room.
        if range.end - range.start < ROOT || !mentions(files, mapping, b"jemalloc") {
            continue;
        }
        let Some((build, root)) = tree(memory, mappings, &range) else { continue };
        let mut walk = Walk::new(memory, build);
        build.shape.tree.each(memory, mappings, root, &mut |seen| match seen {
            Seen::Node(node) => walk.own(node),
            Seen::Element { page, element } => walk.element(page, element),
        });
        let doubts = walk.caches(mappings);
        let mut heap = walk.heap(mapping);
        heap.doubts.extend(doubts);
        if build.layout.name == NEWER && !mentions(files, mapping, SETTING) {
            heap.allocator = OLDER.to_string();
        }
        heap.settings = variable(files, mapping);
        heaps.push(heap);
    }
    heaps
}

/// The build of a copy with its root in the data at `range`, and the root.
fn tree(memory: &dyn Memory, mappings: &[Mapping], range: &Range<u64>) -> Option<(Build, u64)> {
    let shapes = SHAPES.iter().filter(|shape| shape.tree.root_bytes() <= range.end - range.start);
    let mut builds = shapes.flat_map(|shape| LAYOUTS.iter().map(move |layout| Build { layout, shape }));
    builds.find_map(|build| {
        let lead = |element: Element| lead(memory, mappings, build, element);
        Some((build, build.shape.tree.find(memory, mappings, range, &lead)?))
    })
}

/// What an element of a leaf leads to.
fn lead(memory: &dyn Memory, mappings: &[Mapping], build: Build, element: Element) -> Led {
    let at = build.record(element);
    if at == 0 {
        // Elements of pages that have no extent any more keep a class.
        return Led::Empty;
    }
    // Without the bits of blocks: most of what is looked at is no record.
    let mut bytes = [0; BITS];
    let is_read = is_anonymous(mappings, at) && copy(memory, at, &mut bytes);
    let record = is_read.then(|| Record::parse(build, &bytes)).flatten();
    // A slab of the first class may look the same in two versions.
    let Some(record) = record.filter(|of| is_anonymous(mappings, of.address)) else { return Led::Astray };
    match record.class != 0 && record.fits(build, element) {
        true => Led::Page(record.address >> build.shape.page),
        false => Led::Old,
    }
}

/// A slab, or an extent with one block.
struct Extent {
    start: u64,
    pages: u32,
    arena: u16,
    /// Where its block begins, if it is one block.
    shift: u16,
    class: u8,
    is_slab: bool,
}

struct Walk<'a> {
    memory: &'a dyn Memory,
    build: Build,
    /// By arena.
    splits: BTreeMap<u64, (Split, Vec<Range<u64>>)>,
    /// Extents with live blocks, in order.
    live: Vec<Extent>,
    /// The allocator's own memory.
    bases: Vec<Range<u64>>,
    extents: u32,
    /// The end of the last extent.
    end: u64,
    /// Slabs whose bits and count disagreed, and extents that began in another one.
    torn: u32,
}

impl<'a> Walk<'a> {
    fn new(memory: &'a dyn Memory, build: Build) -> Self {
        let (splits, live, bases) = (BTreeMap::new(), Vec::new(), Vec::new());
        Walk { memory, build, splits, live, bases, extents: 0, end: 0, torn: 0 }
    }

    /// Reads the extent of a page's element, if the extent begins there.
    fn element(&mut self, page: u64, element: Element) {
        let (at, mut bytes) = (self.build.record(element), [0; RECORD]);
        let bytes = &mut bytes[..self.build.shape.record_bytes()];
        if self.extents < MOST
            && at != 0
            && copy(self.memory, at, bytes)
            && let Some(record) = Record::parse(self.build, bytes)
            && record.address == page << self.build.shape.page
        {
            self.extents += 1;
            self.own(at);
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
            let end = start.checked_add(size).filter(|&end| end > address)?;
            (size != 0 && size.is_multiple_of(BASE) && size < 1 << 40).then_some(start..end)
        });
        if let Some(range) = start.filter(|range| self.bases.iter().all(|base| overlap(base, range) == 0)) {
            self.bases.push(range);
        }
    }

    fn extent(&mut self, record: &Record, bits: &[u8]) {
        let range = record.address..record.address + record.size;
        let (split, ranges) = self.splits.entry(record.arena).or_default();
        match ranges.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => ranges.push(range.clone()),
        }
        if record.state == 0 {
            self.live.push(Extent {
                start: record.address,
                pages: u32::try_from(record.size >> self.build.shape.page).unwrap_or(u32::MAX),
                arena: record.arena as u16,
                shift: record.shift as u16,
                class: record.class as u8,
                is_slab: record.is_slab,
            });
        }
        if record.state != 0 || !record.is_slab {
            let all = Amount { blocks: 1, bytes: record.size, resident: resident(self.memory, range) };
            if record.state != 0 {
                split.free.add(&all);
                split.kept_bytes += all.resident;
                split.trimmable_bytes += all.resident;
                split.largest_free_bytes = split.largest_free_bytes.max(all.bytes);
                return;
            }
            // Around a large block is a page more than it needs, so that it can begin anywhere in the first one.
            let bytes = class_size(record.class).min(record.size - record.shift);
            let start = record.address + record.shift;
            let live = Amount { blocks: 1, bytes, resident: resident(self.memory, start..start + bytes) };
            split.live.add(&live);
            let (bytes, resident) = (all.bytes - live.bytes, all.resident - live.resident);
            split.free.add(&Amount { blocks: 0, bytes, resident });
            return;
        }
        let size = class_size(record.class);
        let count = record.size.checked_div(size).unwrap_or(0).min(self.build.shape.blocks());
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

    /// Moves blocks in caches of threads from the live ones to the cached ones; returns what is not known of them.
    fn caches(&mut self, mappings: &[Mapping]) -> Option<String> {
        let own = self.splits.values().flat_map(|(_, ranges)| ranges).chain(&self.bases).cloned().collect();
        let is_newer = self.build.layout.name == LAYOUTS[0].name;
        let found = caches::find(self.memory, mappings, &joined(own), is_newer);
        let mut arrays: Vec<(u64, usize)> = found.arrays.iter().filter_map(|at| self.block_at(*at)).collect();
        // Extents by the blocks in bins; those of a bin are of one class.
        let mut cached: Vec<(u64, usize)> = Vec::new();
        for bin in &found.bins {
            let blocks: Vec<(u64, usize)> = bin.iter().filter_map(|at| self.block_at(*at)).collect();
            let class = blocks.first().map(|(_, extent)| self.live[*extent].class);
            let is_block =
                |(at, (block, extent)): (&u64, &(u64, usize))| at == block && Some(self.live[*extent].class) == class;
            if blocks.len() == bin.len() && bin.iter().zip(&blocks).all(is_block) {
                cached.extend(blocks);
            }
        }
        arrays.sort_unstable();
        cached.sort_unstable();
        for (blocks, are_arrays) in [(&mut arrays, true), (&mut cached, false)] {
            blocks.dedup();
            for (at, extent) in blocks.iter() {
                self.count_apart(*at, *extent, are_arrays);
            }
        }
        match (found.is_cut, found.arrays.is_empty()) {
            (true, _) => {
                Some("not all memory was searched for caches of threads: blocks in others count as live".to_string())
            }
            (_, true) => Some("no caches of threads were found: blocks in them count as live".to_string()),
            _ => None,
        }
    }

    /// Takes a block of an extent out of the live ones: it is in a cache, or the allocator's own.
    fn count_apart(&mut self, at: u64, extent: usize, is_own: bool) {
        let Extent { arena, class, .. } = self.live[extent];
        let Some((split, _)) = self.splits.get_mut(&u64::from(arena)) else { return };
        let bytes = class_size(u64::from(class)).min(split.live.bytes);
        let resident = resident(self.memory, at..at + bytes).min(split.live.resident);
        let apart = if is_own { &mut split.metadata } else { &mut split.cached };
        apart.add(&Amount { blocks: 1, bytes, resident });
        split.live.blocks = split.live.blocks.saturating_sub(1);
        split.live.bytes -= bytes;
        split.live.resident -= resident;
    }

    /// The block with an address, and its extent as an index.
    fn block_at(&self, at: u64) -> Option<(u64, usize)> {
        let index = self.live.partition_point(|extent| extent.start <= at).checked_sub(1)?;
        let extent = &self.live[index];
        let end = extent.start + (u64::from(extent.pages) << self.build.shape.page);
        let size = class_size(u64::from(extent.class));
        let block = match extent.is_slab {
            true => at - (at - extent.start) % size,
            false => extent.start + u64::from(extent.shift),
        };
        (block <= at && at < end).then_some((block, index))
    }

    fn heap(mut self, mapping: &Mapping) -> Heap {
        let mut heap = Heap {
            allocator: self.build.layout.name.to_string(),
            library: mapping.file().map(str::to_string),
            ..Heap::default()
        };
        if self.torn > 0 {
            heap.doubts.push(format!("{} of {} extents changed while they were read", self.torn, self.extents));
        }
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
