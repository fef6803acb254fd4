//! Heaps of a process: neap's own by its records, others by their structures.

use crate::failed;
use crate::files::Files;
use crate::known::Known;
use crate::memory::Process;
use neap_account::model::HeapFigures;
use neap_account::parse;
use neap_account::seen::{HeapPart, Mapping, Piece, Seen};
use neap_heaps::{Heap, Part};
use neap_survey::{Asked, Tally, Walked};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How often heaps are searched, if the process changes meanwhile.
const TRIES: u32 = 3;
const LONG: Duration = Duration::from_millis(500);

/// Adds all heaps.
pub fn read(seen: &mut Seen, memory: &Process) {
    if let Ok(walked) = Asked::heap(seen.pid, &memory.fuel) {
        seen.allocators.push("neap".into());
        let part = neap(&walked, seen, memory);
        seen.heaps.push(part);
    }
    let found = find(seen, memory).unwrap_or_else(|error| {
        let words = failed::words(&error);
        seen.notes.push(format!("its list of mappings cannot be read ({words}): heaps are not split"));
        Vec::new()
    });
    other(seen, memory, &found);
    let inside = inside(seen, memory, &found);
    for (heap, inside) in found.into_iter().zip(inside) {
        // A copy of glibc without blocks, as in a program on neap, is not reported.
        if heap.parts.iter().any(|part| part.resident_bytes > 0) && !seen.allocators.contains(&heap.allocator) {
            seen.allocators.push(heap.allocator.clone());
        }
        for doubt in &heap.doubts {
            seen.notes.push(format!("{}: {doubt}", heap.allocator));
        }
        for part in &heap.parts {
            let part = foreign(&heap, part, seen, memory);
            seen.heaps.push(HeapPart { inside: inside.clone(), ..part });
        }
    }
}

/// For each heap the name of its file, if the allocator is a copy that only this file uses: it exports no malloc, or is
/// the program itself. Such a copy goes on when another malloc is preloaded.
fn inside(seen: &Seen, memory: &Process, found: &[Heap]) -> Vec<Option<String>> {
    let files = Known::new(seen.pid, Files::new(seen.pid, &seen.mappings, &memory.fuel));
    let of = |heap: &Heap| {
        let library = heap.library.as_deref().filter(|_| !heap.allocator.starts_with("glibc"))?;
        let mapping = seen.mappings.iter().find(|of| of.name == library && of.offset == 0)?;
        let is_private = library == seen.exe || !neap_heaps::exports_malloc(&files, &listed(mapping));
        is_private.then(|| library.rsplit('/').next().unwrap_or_default().to_owned())
    };
    found.iter().map(of).collect()
}

/// Private memory outside of all heaps is worth a search for its allocator from this many bytes,
const LEAST: u64 = 1 << 20;
/// and from this part of all resident memory.
const PART: u64 = 20;

/// Notes which allocator the rest of the private memory may belong to, if one that was not walked is in the process.
fn other(seen: &mut Seen, memory: &Process, found: &[Heap]) {
    let is_private = |of: &&Mapping| of.is_nameless() && of.write && !of.grows_down;
    let private: u64 = seen.mappings.iter().filter(is_private).map(|of| of.figures.rss).sum();
    let known: u64 = found.iter().flat_map(|heap| &heap.parts).map(|part| part.resident_bytes).sum();
    let neap: u64 = seen.heaps.iter().map(|part| part.figures.resident_bytes).sum();
    let data: u64 = seen.bss.iter().flatten().map(|of| of.piece.resident).sum();
    let rest = private.saturating_sub(known + neap + data);
    if rest < LEAST.max(seen.total.rss / PART) {
        return;
    }
    let files = Known::new(seen.pid, Files::new(seen.pid, &seen.mappings, &memory.fuel));
    let listed: Vec<neap_heaps::Mapping> = seen.mappings.iter().map(listed).collect();
    let has_blocks = |heap: &&Heap| !heap.parts.is_empty();
    let walked: Vec<_> = found.iter().filter(has_blocks).map(|of| (of.allocator.clone(), of.library.clone())).collect();
    let all = neap_heaps::foreign(&listed, &files, &walked);
    let words = |of: &neap_heaps::Foreign| {
        let file = of.file.rsplit('/').next().unwrap_or_default();
        if of.name == file { format!("malloc of {file}") } else { format!("{} in {file}", of.name) }
    };
    // One that serves malloc of the whole process first.
    if let Some(of) = all.iter().find(|of| of.is_malloc).or(all.first()) {
        let words = words(of);
        seen.notes.push(format!(
            "{words}: its structures are not known here, or were not found. Up to {} of private memory may be its \
             blocks; how much of that is free is not known",
            neap_account::units::bytes(rest)
        ));
        seen.other_malloc = Some(words);
    }
}

/// The heaps of other allocators. A heap that grows during the search may no longer match the list of mappings; then
/// the search is repeated with a new list.
fn find(seen: &Seen, memory: &Process) -> io::Result<Vec<Heap>> {
    let (mut found, began) = (Vec::new(), Instant::now());
    for _ in 0..TRIES {
        let text = neap_process::maps(seen.pid)?;
        let mappings = parse::smaps(&String::from_utf8_lossy(&text));
        let files = Known::new(seen.pid, Files::new(seen.pid, &mappings, &memory.fuel));
        let listed: Vec<neap_heaps::Mapping> = mappings.iter().map(listed).collect();
        let heaps = neap_heaps::find(memory, &listed, &files);
        if covered(&heaps) >= covered(&found) {
            found = heaps;
        }
        let brk = mappings.iter().find(|mapping| mapping.name == "[heap]").map_or(0, |mapping| mapping.range.start);
        let has = |heap: &Heap| heap.parts.iter().any(|part| part.ranges.iter().any(|range| range.contains(&brk)));
        if brk == 0 || found.iter().any(has) || began.elapsed() > LONG || memory.fuel.is_over() {
            break;
        }
    }
    Ok(found)
}

fn covered(heaps: &[Heap]) -> u64 {
    heaps.iter().flat_map(|heap| &heap.parts).map(|part| part.resident_bytes).sum()
}

/// A mapping in the walkers' form.
pub fn listed(mapping: &Mapping) -> neap_heaps::Mapping {
    let name = mapping.name.strip_suffix(" (deleted)").unwrap_or(&mapping.name);
    neap_heaps::Mapping {
        range: mapping.range.clone(),
        readable: mapping.read,
        writable: mapping.write,
        executable: mapping.execute,
        private: !mapping.shared,
        offset: mapping.offset,
        name: (!name.is_empty()).then(|| name.to_owned()),
    }
}

/// The mapped parts of ranges, with their resident bytes.
fn pieces(ranges: &[Range<u64>], mappings: &[Mapping], memory: &Process) -> Vec<Piece> {
    let mut all = Vec::new();
    for range in ranges {
        let first = mappings.partition_point(|mapping| mapping.range.end <= range.start);
        for mapping in mappings[first..].iter().take_while(|mapping| mapping.range.start < range.end) {
            let part = range.start.max(mapping.range.start)..range.end.min(mapping.range.end);
            let whole = part == mapping.range;
            // Reading a heap that is swapped out makes it resident, and the process goes on: not more than was listed.
            let now = || memory.resident_bytes(part.clone()).min(mapping.figures.rss);
            let resident = if whole { mapping.figures.rss } else { now() };
            if resident > 0 {
                all.push(Piece { range: part, resident });
            }
        }
    }
    all
}

/// neap's heap.
fn neap(walked: &Walked, seen: &Seen, memory: &Process) -> HeapPart {
    let tally = &walked.tally;
    let pieces = pieces(&walked.ranges, &seen.mappings, memory);
    let figures = HeapFigures {
        allocator: "neap".into(),
        part: "heap".into(),
        reserved_bytes: walked.ranges.iter().map(|range| range.end - range.start).sum(),
        resident_bytes: tally.resident.min(pieces.iter().map(|piece| piece.resident).sum()),
        live_bytes: tally.live + tally.untouched,
        live_blocks: neap_observe::read(seen.pid).map_or(0, |page| page.gauges.live_blocks),
        free_bytes: tally.waiting + tally.cached + tally.pinned() + tally.samples,
        kept_bytes: tally.waiting + tally.cached,
        fragmentation_bytes: tally.pinned() + tally.samples,
        cached_bytes: 0,
        metadata_bytes: tally.records,
        ..HeapFigures::default()
    };
    HeapPart { figures, pieces, main: true, large_bytes: tally.large, ..HeapPart::default() }
}

/// Whether some of it is in locked memory (mlock).
fn is_locked(ranges: &[Range<u64>], mappings: &[Mapping]) -> bool {
    let has = |range: &Range<u64>, mapping: &Mapping| {
        mapping.figures.locked > 0 && mapping.range.start < range.end && range.start < mapping.range.end
    };
    mappings.iter().any(|mapping| ranges.iter().any(|range| has(range, mapping)))
}

/// A part of another allocator's heap.
fn foreign(heap: &Heap, part: &Part, seen: &Seen, memory: &Process) -> HeapPart {
    let mut figures = HeapFigures {
        allocator: heap.allocator.clone(),
        part: part.name.clone(),
        reserved_bytes: part.bytes + part.reserved_bytes,
        resident_bytes: part.resident_bytes,
        ..HeapFigures::default()
    };
    if let Some(split) = &part.split {
        let pin = split.pin.unwrap_or_default();
        figures = HeapFigures {
            live_bytes: split.live.bytes,
            live_blocks: split.live.blocks,
            free_bytes: split.free.bytes + split.top.bytes + split.cached.bytes,
            kept_bytes: split.kept_bytes + split.cached.resident,
            fragmentation_bytes: split.fragmentation_bytes(),
            cached_bytes: split.cached.resident,
            metadata_bytes: split.metadata.resident,
            trimmable_bytes: split.trimmable_bytes,
            largest_free_bytes: split.largest_free_bytes,
            pinned_bytes: pin.free_below,
            pin_bytes: pin.bytes,
            unsure_bytes: split.unsure.resident,
            ..figures
        };
    }
    let mapped = part.name.starts_with("mmapped");
    // Without more knowledge: all of them if they are large on average.
    let is_large = mapped || figures.live_bytes >= figures.live_blocks.saturating_mul(Tally::LARGE);
    let pieces = pieces(&part.ranges, &seen.mappings, memory);
    figures.resident_bytes = figures.resident_bytes.min(pieces.iter().map(|piece| piece.resident).sum());
    // The kernel refuses madvise(MADV_DONTNEED) there, which glibc does not notice.
    // The page map does not say which mappings are locked: then all count.
    if is_locked(&part.ranges, &seen.mappings) || seen.locked > 0 && seen.total.locked == 0 {
        figures.trimmable_bytes = 0;
    }
    HeapPart {
        large_bytes: if is_large { figures.live_bytes } else { 0 },
        figures,
        pieces,
        main: part.name == "main arena",
        mapped,
        settings: heap.settings.clone(),
        inside: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_account::seen::Figures;
    use neap_heaps::Split;
    use neap_survey::Fuel;
    use std::sync::Arc;

    /// Catches a heap with more resident bytes than its mapping had: reading it has swapped it in.
    #[test]
    fn no_more_than_was_listed() {
        let figures = Figures { rss: 48 << 20, ..Figures::default() };
        let mapping = Mapping { range: 1 << 40..(1 << 40) + (80 << 20), figures, ..Mapping::default() };
        let part = Part { ranges: vec![mapping.range.clone()], resident_bytes: 71 << 20, ..Part::default() };
        let seen = Seen { mappings: vec![mapping], ..Seen::default() };
        let fuel = Arc::new(Fuel::of(std::process::id(), || false));
        let memory = Process::open(std::process::id(), &fuel).expect("this process");
        let made = foreign(&Heap::default(), &part, &seen, &memory);
        assert_eq!((made.figures.resident_bytes, made.pieces[0].resident), (48 << 20, 48 << 20));
    }

    /// Catches a trim that is said to help in locked memory, where the kernel takes nothing back.
    #[test]
    fn nothing_goes_back_from_locked_memory() {
        let fuel = Arc::new(Fuel::of(std::process::id(), || false));
        let memory = Process::open(std::process::id(), &fuel).expect("this process");
        let trimmable = |locked: u64, other: u64, sum: u64| {
            let mapping = |start: u64, locked: u64| Mapping {
                range: start..start + (8 << 20),
                figures: Figures { rss: 8 << 20, locked, ..Figures::default() },
                ..Mapping::default()
            };
            let mappings = vec![mapping(1 << 40, locked), mapping((1 << 40) + (8 << 20), other)];
            let split = Split { trimmable_bytes: 6 << 20, ..Split::default() };
            let part = Part { ranges: vec![mappings[0].range.clone()], split: Some(split), ..Part::default() };
            let total = Figures { locked: locked + other, ..Figures::default() };
            let seen = Seen { mappings, total, locked: sum, ..Seen::default() };
            foreign(&Heap::default(), &part, &seen, &memory).figures.trimmable_bytes
        };
        let of_one = [trimmable(8 << 20, 0, 8 << 20), trimmable(0, 8 << 20, 8 << 20)];
        assert_eq!(of_one, [0, 6 << 20]);
        assert_eq!([trimmable(0, 0, 0), trimmable(0, 0, 8 << 20)], [6 << 20, 0]);
    }
}
