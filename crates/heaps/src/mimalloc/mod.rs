//! mimalloc 2 and 3. Version 2 requests addresses that no other allocator does, between 2 and 32 TiB; version 3 is found
//! wherever it is ([`three`]).
//!
//! Blocks of one size are in *pages* (64 KiB and more). Each has a record: numbers of blocks, their size, where they
//! begin, and a list of blocks that other threads have freed, which the numbers have as used. Version 2 has the records
//! at the front of its segments of 32 MiB. Records are recognised by numbers that fit together. Up to 2.1.6 a record
//! does not say where its blocks begin, but stands for one of 512 places of its segment; the end of the segment's own
//! header shows where the records begin.

mod page;
mod three;

use crate::data::{data, read};
use crate::jemalloc::{joined, part};
use crate::mimalloc::page::{Page, SLICE};
use crate::mimalloc::three::Single;
use crate::window::{overlap, resident, word};
use crate::{Amount, Files, Heap, Mapping, Memory, Split};
use std::ops::Range;

/// The addresses that mimalloc requests.
const HINTS: Range<u64> = 2 << 40..32 << 40;
/// Alignment of segments, and of arenas.
const SEGMENT: u64 = 32 << 20;
/// Limit on pages.
const MOST: usize = 1 << 22;
/// Limit on the places that are searched for segments and arenas.
const LOOKS: u32 = 1 << 20;

/// A text in programs and libraries with this allocator.
const TEXT: &[u8] = b"mimalloc: warning: ";

/// The heap of mimalloc in a process. The memory of two copies cannot be distinguished.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let of_three = version_three(memory, mappings);
    let is_ours = |mapping: &Mapping| {
        mapping.private && mapping.file().is_none() && HINTS.contains(&mapping.range.start) && mapping.writable
    };
    let hinted = joined(mappings.iter().filter(|mapping| is_ours(mapping)).map(|m| m.range.clone()).collect());
    // Files are searched only if there is such memory.
    let is_any = of_three.is_some() || !hinted.is_empty();
    let Some(library) = is_any.then(|| library(mappings, files)).flatten() else { return Vec::new() };
    // Old segments of version 2 may look like arenas without pages.
    let two = of_three.as_ref().is_none_or(|of| of.pages.is_empty()).then(|| version_two(memory, hinted));
    let found = two.into_iter().find(|of| of_three.is_none() || !of.pages.is_empty()).or(of_three).unwrap_or_default();
    let name = match (found.is_three, found.pages.is_empty()) {
        (true, _) => ("mimalloc 3", "arenas"),
        (false, false) => ("mimalloc 2", "segments"),
        (false, true) => ("mimalloc", "memory"),
    };
    let split = (name.1 != "memory").then(|| split(memory, &found.ranges, &found.fronts, found.pages));
    let part = part(memory, name.1.to_string(), found.ranges, split);
    let mut heap = Heap { allocator: name.0.to_string(), library: Some(library), ..Heap::default() };
    if part.split.is_none() {
        heap.doubts.push("its pages were not found: of this version only the memory is known".to_string());
    } else {
        heap.doubts.push("resident bytes of a page count as live as far as live blocks could reach".to_string());
    }
    heap.parts.push(part);
    vec![heap]
}

/// What was found.
#[derive(Default)]
struct Found {
    /// Whether it is version 3.
    is_three: bool,
    /// The memory.
    ranges: Vec<Range<u64>>,
    /// The parts with records.
    fronts: Vec<Range<u64>>,
    pages: Vec<Page>,
}

/// The arenas of version 3, and its pages outside of arenas.
fn version_three(memory: &dyn Memory, mappings: &[Mapping]) -> Option<Found> {
    let (mut ranges, mut fronts, mut pages, mut singles) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for mapping in mappings.iter().filter(|mapping| mapping.is_anonymous()) {
        let found = three::search(memory, mapping);
        for arena in found.0 {
            let Some((found, front)) = three::pages(memory, &arena, MOST - pages.len()) else { continue };
            pages.extend(found);
            fronts.push(arena.range.start..front);
            ranges.push(arena.range);
        }
        singles.extend(found.1);
    }
    for Single { range, page } in singles {
        // A part without access may separate the record from the block.
        let parts = mappings.iter().filter(|mapping| mapping.is_anonymous() && overlap(&mapping.range, &range) > 0);
        let parts = parts.map(|of| of.range.start.max(range.start)..of.range.end.min(range.end));
        let before = ranges.len();
        ranges.extend(parts);
        fronts.extend(ranges.get(before).map(|first| first.start..first.end.min(page.start)));
        pages.push(page);
    }
    fronts.sort_unstable_by_key(|front: &Range<u64>| front.start);
    (!ranges.is_empty()).then(|| Found { is_three: true, ranges: joined(ranges), fronts, pages })
}

/// The segments of version 2.
fn version_two(memory: &dyn Memory, ranges: Vec<Range<u64>>) -> Found {
    let (mut pages, mut fronts, mut seen) = (Vec::new(), Vec::new(), 0);
    for range in &ranges {
        let mut at = range.start.next_multiple_of(SEGMENT);
        while at < range.end && seen < LOOKS {
            seen += 1;
            let front = at..range.end.min(at + SLICE);
            let before = pages.len();
            records(memory, front.clone(), range, &mut pages);
            if pages.len() == before {
                numbered(memory, front.clone(), range, &mut pages);
            }
            fronts.push(front);
            at = at.saturating_add(SEGMENT);
        }
    }
    Found { is_three: false, ranges, fronts, pages }
}

/// The file with mimalloc's code, by its name or by a text, because other programs and libraries may contain it.
fn library(mappings: &[Mapping], files: &dyn Files) -> Option<String> {
    let mut paths = mappings.iter().filter_map(|mapping| mapping.file());
    let named = paths.find(|path| path.rsplit('/').next().is_some_and(|name| name.contains("mimalloc")));
    let has_text = |mapping: &&Mapping| matches!(files.find(mapping, TEXT), Ok(Some(_)));
    let mut data = data(mappings).into_iter().map(|(mapping, _)| mapping);
    named.map(str::to_string).or_else(|| data.find(has_text)?.file().map(str::to_string))
}

/// Appends the pages of version 2 with records in `front`, whose blocks lie in `range`.
fn records(memory: &dyn Memory, front: Range<u64>, range: &Range<u64>, pages: &mut Vec<Page>) {
    let mut runs = Vec::new();
    memory.resident(front.start & !4095..front.end.next_multiple_of(4096), &mut runs);
    for run in runs {
        let place = run.range.start.max(front.start)..run.range.end.min(front.end);
        let bytes = read(memory, place.clone());
        let half = |at: Option<usize>| {
            let at = at?;
            Some(u64::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
        };
        for at in (0..bytes.len()).step_by(8) {
            let (Some(block), Some(start)) = (word(&bytes, at), word(&bytes, at + 8)) else { break };
            let fits = (8..1 << 44).contains(&block) && block.is_multiple_of(8) && range.contains(&start);
            if !fits || start <= front.start {
                continue;
            }
            // Distances from the block size back to: used, capacity, reserved.
            let back = [8, 30, 28].map(|back| half(at.checked_sub(back)));
            let [Some(used), Some(capacity), Some(reserved)] = back else {
                continue;
            };
            let end = reserved.checked_mul(block).and_then(|bytes| start.checked_add(bytes));
            let fits = used <= capacity && capacity <= reserved && capacity > 0;
            if fits && end.is_some_and(|end| end <= range.end) && pages.len() < MOST {
                let freed = word(&bytes, at + 16).unwrap_or(0);
                pages.push(Page { start, block, used, reserved, freed });
            }
        }
    }
}

/// Bytes of a record up to 2.1.6.
const RECORD: usize = 80;
/// Places of a segment.
const PLACES: u64 = 512;

/// Appends the pages of a segment of version 2.0 to 2.1.6.
///
/// ```c
/// size_t segment_slices, segment_info_slices; int kind; size_t slice_entries, thread_id;  /* the end of the header */
/// struct { uint32_t slice_count, slice_offset; uint8_t flags; uint16_t capacity, reserved; uint8_t more[2];
///          block* free; uint32_t used, block_size; uintptr_t more[6]; } slices[513];      /* mimalloc/types.h */
/// ```
fn numbered(memory: &dyn Memory, front: Range<u64>, range: &Range<u64>, pages: &mut Vec<Page>) {
    let bytes = read(memory, front.clone());
    let half = |at: usize| word(&bytes, at & !7).map(|word| word >> (8 * (at & 7)) & 0xffff);
    let begins = |at: &usize| {
        let [slices, own, entries, first] = [0, 8, 24, 40].map(|field| word(&bytes, at + field).unwrap_or(0));
        (1..1 << 24).contains(&slices) && (1..16).contains(&own) && entries == slices.min(PLACES) && first == own
    };
    let Some(header) = (128..1024).step_by(8).find(begins) else { return };
    let entries = word(&bytes, header + 24).unwrap_or(0);
    let mut place = word(&bytes, header + 8).unwrap_or(0);
    while place < entries && pages.len() < MOST {
        let at = header + 40 + RECORD * place as usize;
        let (Some(first), Some(sizes)) = (word(&bytes, at), word(&bytes, at + 24)) else { break };
        let (slices, offset, used, block) = (first & 0xffff_ffff, first >> 32, sizes & 0xffff_ffff, sizes >> 32);
        let (capacity, reserved) = (half(at + 10).unwrap_or(0), half(at + 12).unwrap_or(0));
        let end = front.start + (place + slices) * SLICE;
        let fits = offset == 0 && used <= capacity && capacity <= reserved && capacity > 0 && block >= 8;
        if fits && slices > 0 && reserved * block <= slices * SLICE && end <= range.end {
            // Blocks begin a little after the front, and end with the last place.
            let freed = word(&bytes, at + 40).unwrap_or(0);
            pages.push(Page { start: end - reserved * block, block, used, reserved, freed });
        }
        place += slices.max(1);
    }
}

/// Counts pages; memory in none of them is free, or the allocator's own before the first.
fn split(memory: &dyn Memory, ranges: &[Range<u64>], fronts: &[Range<u64>], mut pages: Vec<Page>) -> Split {
    pages.sort_by_key(|page| page.start);
    let (mut split, mut end) = (Split::default(), 0);
    for page in &pages {
        let area = page.start..page.start + page.block * page.reserved;
        if area.start < end {
            continue;
        }
        end = area.end;
        let (bytes, held) = (area.end - area.start, resident(memory, area));
        let used = page.used - page.freed_by_others(memory);
        let live = Amount { blocks: used, bytes: used * page.block, resident: 0 };
        let live = Amount { resident: live.bytes.min(held), ..live };
        split.live.add(&live);
        let free = page.reserved - used;
        split.free.add(&Amount { blocks: free, bytes: bytes - live.bytes, resident: held - live.resident });
        split.kept_bytes += if used == 0 { held } else { 0 };
    }
    for range in ranges {
        // Pages of version 2 may begin in the slice that has the records.
        let mut own = Amount::default();
        // Fronts are in the order of ranges.
        let inside = fronts.partition_point(|front| front.start < range.start);
        for front in fronts[inside..].iter().take_while(|front| front.start < range.end) {
            let first = pages.partition_point(|page| page.start < front.start);
            let end = pages.get(first).map_or(front.end, |page| page.start.min(front.end));
            let held = resident(memory, front.start..end);
            own.add(&Amount { blocks: 0, bytes: end - front.start, resident: held });
        }
        split.metadata.add(&own);
        let (bytes, all) = (range.end - range.start, resident(memory, range.clone()));
        let inside: (u64, u64) = pages_in(memory, &pages, range);
        let rest = Amount {
            blocks: 0,
            bytes: bytes.saturating_sub(inside.0 + own.bytes),
            resident: all.saturating_sub(inside.1 + own.resident),
        };
        split.kept_bytes += rest.resident;
        split.free.add(&rest);
    }
    split
}

/// Bytes and resident bytes of pages in a range; memory that two records claim counts once.
fn pages_in(memory: &dyn Memory, pages: &[Page], range: &Range<u64>) -> (u64, u64) {
    let (mut sums, mut end) = ((0, 0), 0);
    let first = pages.partition_point(|page| page.start < range.start);
    for page in pages[first..].iter().take_while(|page| page.start < range.end) {
        let area = page.start..page.start + page.block * page.reserved;
        if area.start >= end {
            end = area.end;
            sums = (sums.0 + overlap(&area, range), sums.1 + resident(memory, area));
        }
    }
    sums
}
