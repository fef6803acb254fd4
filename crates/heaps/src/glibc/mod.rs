//! glibc's malloc, 2.31 to 2.43: found in the data of a library or of a program, without symbols, then walked.
//!
//! `layout` finds the arenas, `areas` their memory; `walk` goes from chunk to chunk; `cached` finds free blocks that
//! look used, `mmapped` the blocks outside of arenas.

mod areas;
mod cached;
mod layout;
mod mmapped;
mod walk;

use crate::data::{data, read};
use crate::window::held;
use crate::{Amount, Files, Heap, Mapping, Memory, Part, Pin};
use areas::Arena;
use cached::Ranges;
use layout::{LAYOUTS, Layout, Settings, State};
use std::collections::HashSet;
use std::ops::Range;
use walk::{Area, Found};

/// Limit on copies of glibc; a program can load 16.
const COPIES: usize = 64;

/// How often the data of a copy is read if no arena is found in it.
const TRIES: u32 = 8;

/// The heaps of all copies of glibc in a process.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let brk = areas::brk(mappings);
    let mut search = Search { memory, mappings, brk, found: Vec::new(), left: areas::MOST };
    let data = data(mappings);
    for (mapping, range) in &data {
        search.look(mapping, range, &read(memory, range.clone()));
    }
    // An arena that changes while it is read may not be recognised. But the copy that has taken memory by brk certainly
    // has one.
    for (mapping, range) in &data {
        for _ in 0..TRIES {
            let bytes = if search.has_brk() { Vec::new() } else { read(memory, range.clone()) };
            if !Settings::search(&bytes).is_some_and(|settings| search.is_brk(settings.base)) {
                break;
            }
            // The new result replaces that of a copy whose arena could not be read.
            let (before, count) = (search.place(mapping), search.found.len());
            search.look(mapping, range, &bytes);
            if let Some(before) = before.filter(|_| search.found.len() > count) {
                search.found.remove(before);
            }
        }
    }
    let found = search.found;
    let all: Vec<Range<u64>> = found.iter().flat_map(|(_, arena)| arena.ranges.clone()).collect();
    let (mut taken, mut seen) = (all, HashSet::new());
    found.into_iter().map(|(copy, main)| copy.heap(memory, mappings, files, main, &mut taken, &mut seen)).collect()
}

/// The search for copies.
struct Search<'m> {
    memory: &'m dyn Memory,
    mappings: &'m [Mapping],
    /// The memory from brk, up to where it may have grown.
    brk: Option<Range<u64>>,
    found: Vec<(Copy<'m>, Arena)>,
    /// Arenas that may still be read.
    left: usize,
}

impl<'m> Search<'m> {
    /// Adds the copies in the data of a file: `bytes`, which are at `range`.
    fn look(&mut self, mapping: &'m Mapping, range: &Range<u64>, bytes: &[u8]) {
        let states = LAYOUTS
            .iter()
            .flat_map(|layout| layout.search(bytes, range.start).into_iter().map(move |state| (layout, state)));
        let mut settings = None;
        for (layout, state) in states {
            let is_anonymous = |of: &Mapping| of.is_anonymous() && of.range.contains(&state.top);
            if self.found.len() == COPIES || !self.is_brk(state.top) && !self.mappings.iter().any(is_anonymous) {
                continue;
            }
            // A heap of a thread may directly follow the data of a library.
            if areas::info(self.memory, state.address).is_some() {
                continue;
            }
            let Some(others) = areas::others(self.memory, layout, &state, &mut self.left) else { continue };
            settings = settings.or_else(|| Settings::search(bytes));
            let arena = areas::main(self.memory, &state, settings, self.mappings);
            self.found.push((Copy { mapping, layout, others, settings }, arena));
        }
    }

    fn is_brk(&self, address: u64) -> bool {
        self.brk.as_ref().is_some_and(|brk| brk.contains(&address))
    }

    /// The index of the copy with that data.
    fn place(&self, mapping: &Mapping) -> Option<usize> {
        self.found.iter().position(|(copy, _)| std::ptr::eq(copy.mapping, mapping))
    }

    /// Whether the memory from brk belongs to a copy, or there is none.
    fn has_brk(&self) -> bool {
        let mut ranges = self.found.iter().flat_map(|(_, arena)| &arena.ranges);
        self.brk.is_none() || self.found.len() == COPIES || ranges.any(|range| self.is_brk(range.start))
    }
}

/// One copy of glibc.
struct Copy<'m> {
    mapping: &'m Mapping,
    layout: &'static Layout,
    /// Its arenas but the main one.
    others: Vec<State>,
    settings: Option<Settings>,
}

impl Copy<'_> {
    /// Walks its heap. `taken` is memory that is known to belong to heaps; `seen` are heaps of arenas that were found.
    fn heap(
        self,
        memory: &dyn Memory,
        mappings: &[Mapping],
        files: &dyn Files,
        main: Arena,
        taken: &mut Vec<Range<u64>>,
        seen: &mut HashSet<u64>,
    ) -> Heap {
        let version = version(files, self.mapping).unwrap_or_default();
        let mut heap = Heap {
            allocator: format!("glibc {version}").trim_end().to_string(),
            library: self.mapping.file().map(str::to_string),
            ..Heap::default()
        };
        let mut arenas = vec![main];
        for (number, state) in self.others.iter().enumerate() {
            let arena = areas::heaps(memory, self.layout, state, number + 1, seen);
            taken.extend(arena.ranges.clone());
            arenas.push(arena);
        }
        let lost = arenas.iter().filter(|arena| arena.areas.is_empty()).count();
        if lost > 0 {
            heap.doubts.push(format!("{lost} arenas could not be read"));
        }
        let mut cached = Vec::new();
        heap.parts = self.walk(memory, &arenas, &mut cached, &mut heap.doubts);
        let mapped = self.mmapped(memory, mappings, taken, &mut heap.doubts);
        heap.parts.extend(mapped.map(|blocks| mmapped_part(memory, blocks, &cached)));
        heap.parts.sort_by_key(|part| std::cmp::Reverse(part.resident_bytes));
        heap
    }

    /// Walks its arenas. `mapped` gets the chunks in caches of threads that are in no arena.
    fn walk(
        &self,
        memory: &dyn Memory,
        arenas: &[Arena],
        mapped: &mut Vec<u64>,
        doubts: &mut Vec<String>,
    ) -> Vec<Part> {
        let areas: Vec<Area> = arenas.iter().flat_map(|arena| arena.areas.clone()).collect();
        let ranges = Ranges::new(&areas);
        let heads: Vec<u64> = arenas.iter().flat_map(|arena| arena.fastbins.clone()).collect();
        let (fast, are_all) = cached::fastbins(memory, &heads, &ranges);
        if !are_all {
            doubts.push("not all chunks in fastbins were found: some count as live".to_string());
        }
        let mut found = walk::walk(memory, &areas, &fast);
        let places = self.settings.map(|settings| settings.cache);
        // Chunks that are in a cache, or that hold a cache, by address.
        let mut seen = HashSet::new();
        let mut apart = fast;
        let candidates: Vec<u64> = found.iter_mut().flat_map(|found| std::mem::take(&mut found.caches)).collect();
        let mut places_of: Vec<(Range<u64>, usize)> =
            areas.iter().enumerate().map(|(number, area)| (area.range.clone(), number)).collect();
        places_of.sort_by_key(|(range, _)| range.start);
        let area_of = |chunk: u64| {
            let before = places_of.partition_point(|(range, _)| range.start <= chunk).checked_sub(1)?;
            places_of.get(before).filter(|(range, _)| range.contains(&chunk)).map(|(_, number)| *number)
        };
        for at in candidates {
            let Some(cache) = cached::cache(memory, at, &ranges, places) else { continue };
            let chunks = cache.chunks.into_iter().map(|(chunk, size)| (chunk, size, false));
            for (chunk, size, is_cache) in chunks.chain([(cache.chunk, cache.bytes, true)]) {
                match area_of(chunk) {
                    _ if !seen.insert(chunk) => {}
                    Some(number) => {
                        found[number].regard(memory, chunk, size, is_cache);
                        apart.push(chunk);
                    }
                    // A block with a mapping of its own: caches hold such blocks too, since 2.42.
                    None => mapped.push(chunk),
                }
            }
        }
        apart.sort_unstable();
        let mut found = areas.iter().zip(found);
        let mut parts = Vec::new();
        for arena in arenas.iter().filter(|arena| !arena.areas.is_empty()) {
            let part = part(memory, arena, found.by_ref().take(arena.areas.len()), &apart);
            if part.bytes.abs_diff(arena.system) > arena.system / 50 {
                doubts.push(format!("{}: {} bytes were found; glibc counts {}", part.name, part.bytes, arena.system));
            }
            parts.push(part);
        }
        parts
    }

    /// Blocks with a mapping of their own.
    fn mmapped(
        &self,
        memory: &dyn Memory,
        mappings: &[Mapping],
        taken: &mut Vec<Range<u64>>,
        doubts: &mut Vec<String>,
    ) -> Option<mmapped::Blocks> {
        let (number, bytes) =
            self.settings.map_or((u64::MAX, u64::MAX), |settings| (settings.mmapped, settings.mmapped_bytes));
        if number == 0 {
            return None;
        }
        let spans = areas::spans(mappings, |mapping| {
            let is_named = |name: &str| name.starts_with("[anon:") && !name.contains("glibc");
            let is_other = mapping.name.as_deref().is_some_and(|name| name == "[heap]" || is_named(name));
            mapping.is_anonymous() && !is_other
        });
        let blocks = mmapped::search(memory, &without(spans, taken), number, bytes);
        if self.settings.is_some() && blocks.live.bytes.abs_diff(bytes) > bytes / 50 {
            doubts.push(format!(
                "{} bytes of blocks with own mappings were found; glibc counts {bytes}",
                blocks.live.bytes
            ));
        }
        taken.extend(blocks.ranges.clone());
        (!blocks.ranges.is_empty()).then_some(blocks)
    }
}

/// The part of blocks with their own mappings. `cached` are chunks in caches of threads.
fn mmapped_part(memory: &dyn Memory, mut blocks: mmapped::Blocks, cached: &[u64]) -> Part {
    let all = blocks.live;
    let cached = blocks.take(memory, cached);
    Part {
        name: "mmapped blocks".to_string(),
        bytes: all.bytes,
        resident_bytes: all.resident,
        swapped_bytes: blocks.swapped,
        split: Some(crate::Split { live: blocks.live, cached, ..Default::default() }),
        ranges: blocks.ranges,
        reserved_bytes: 0,
    }
}

/// The parts of `spans` outside of `taken`.
fn without(spans: Vec<Range<u64>>, taken: &mut [Range<u64>]) -> Vec<Range<u64>> {
    taken.sort_by_key(|range| range.start);
    let mut left = Vec::new();
    for span in spans {
        let mut at = span.start;
        let first = taken.partition_point(|range| range.end <= span.start);
        for range in taken[first..].iter().take_while(|range| range.start < span.end) {
            if at < range.start {
                left.push(at..range.start);
            }
            at = at.max(range.end.checked_next_multiple_of(4096).unwrap_or(range.end));
        }
        if at < span.end {
            left.push(at..span.end);
        }
    }
    left
}

impl Found {
    /// Counts a chunk that looked live as one in a cache, or as a cache.
    fn regard(&mut self, memory: &dyn Memory, chunk: u64, size: u64, is_cache: bool) {
        let amount = Amount { blocks: 1, bytes: size, resident: crate::window::resident(memory, chunk..chunk + size) };
        let live = &mut self.split.live;
        live.blocks = live.blocks.saturating_sub(amount.blocks);
        live.bytes = live.bytes.saturating_sub(amount.bytes);
        live.resident = live.resident.saturating_sub(amount.resident);
        if is_cache { &mut self.split.metadata } else { &mut self.split.cached }.add(&amount);
    }
}

/// The part of an arena, from the walks of its areas. `apart` are chunks that are free although they look used.
fn part<'a>(memory: &dyn Memory, arena: &Arena, found: impl Iterator<Item = (&'a Area, Found)>, apart: &[u64]) -> Part {
    let mut split = crate::Split { metadata: arena.metadata, ..Default::default() };
    for (area, found) in found {
        let other = found.split;
        for (mine, other) in [
            (&mut split.live, other.live),
            (&mut split.cached, other.cached),
            (&mut split.free, other.free),
            (&mut split.top, other.top),
            (&mut split.metadata, other.metadata),
            (&mut split.unsure, other.unsure),
        ] {
            mine.add(&other);
        }
        split.kept_bytes += other.kept_bytes;
        split.trimmable_bytes += other.trimmable_bytes;
        split.largest_free_bytes = split.largest_free_bytes.max(other.largest_free_bytes);
        if area.top.is_some()
            && let Some((chunk, bytes)) = walk::last_live(memory, area, found.near_end, apart)
        {
            split.pin = Some(Pin { address: chunk + 16, bytes, free_below: 0 });
        }
    }
    if let Some(pin) = &mut split.pin {
        pin.free_below = split.free.bytes;
    }
    let mut ranges = arena.ranges.clone();
    ranges.sort_by_key(|range| range.start);
    let swapped = ranges.iter().map(|range| held(memory, range.clone()).1).sum();
    let name = if arena.number == 0 { "main arena".to_string() } else { format!("arena {}", arena.number) };
    Part {
        name,
        bytes: split.total().bytes,
        resident_bytes: split.total().resident,
        swapped_bytes: swapped,
        reserved_bytes: arena.reserved,
        ranges,
        split: Some(split),
    }
}

/// The version in the file, such as `2.36`.
fn version(files: &dyn Files, mapping: &Mapping) -> Option<String> {
    const BEFORE: &[u8] = b"release version ";
    let (place, mut line) = (files.find(mapping, b"GNU C Library").ok()??, [0_u8; 256]);
    files.read(mapping, place, &mut line);
    let at = line.windows(BEFORE.len()).position(|window| window == BEFORE)? + BEFORE.len();
    let is_part = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
    let text: Vec<u8> = line[at..].iter().take_while(is_part).copied().collect();
    Some(String::from_utf8(text).ok()?.trim_end_matches('.').to_string())
}
