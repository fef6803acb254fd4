//! Reads the heap of a process by its own records, without its help and without stopping it: what keeps each of its
//! resident OS pages.
//!
//! Records and bits are copied in pieces while the process runs, so memory that changes meanwhile may count at its old
//! or its new place. Each resident OS page counts once. Memory that the process never touched is not read.

use crate::Error;
use crate::pinned::Tally;
use crate::process::Memory;
use crate::resident::Pages;
use crate::slab::{Slab, block_size};
use neap_core::observe::outside::{
    Kind, LAYOUT, RECORD_BYTES, Seen, SeenArena, SeenHeap, SeenHuge, SeenLarge, SeenSlab,
};
use neap_core::{CHUNK, class};
use neap_samples::Live;
use neap_samples::control::HeapPlaces;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Number of chunks whose bits are read at once, as they are adjacent.
const GROUP: u64 = 64;
/// Limit on the bits of a group.
const BITS: u64 = 1 << 18;
/// Limits for walks that a torn copy would make endless.
const HEAPS: usize = 1 << 16;
const TABLES: usize = 1 << 12;
/// Limit on the length of an arena, in chunks: a longer one is invalid.
const ARENA: u64 = (64 << 30) / CHUNK as u64;
const ADDRESSES: u64 = 1 << 56;

/// The result of a walk.
#[derive(Clone, Debug, Default)]
pub struct Walked {
    /// Its resident OS pages.
    pub tally: Tally,
    /// Its address ranges: arenas with their side tables, huge blocks.
    pub ranges: Vec<Range<u64>>,
}

/// Counts the resident OS pages of a heap; `samples` are the live samples. `block` is the address of the control block,
/// which has `places`.
pub fn walk(memory: &Memory, pid: u32, block: u64, places: HeapPlaces, samples: &[Live]) -> Result<Walked, Error> {
    if places.layout != LAYOUT {
        return Err(Error::Structures);
    }
    let pages = Pages::open(pid, memory.fuel.clone())?;
    let cached = cached_blocks(memory, &pages, block.wrapping_add(places.heaps))?;
    let mut walk = Walk { memory, pages, cached, samples: HashMap::new(), tally: Tally::default(), ranges: Vec::new() };
    let mut arenas = Vec::new();
    for seen in SeenArena::all(&walk.copy(block.wrapping_add(places.arenas), SeenArena::BYTES)?) {
        if seen.chunks > ARENA || seen.base >= ADDRESSES {
            return Err(Error::Structures);
        }
        arenas.push(Arena::read(memory, &walk.pages, seen)?);
    }
    walk.place(&arenas, samples);
    for arena in &arenas {
        walk.arena(arena)?;
    }
    walk.huge(block.wrapping_add(places.huge))?;
    walk.rest();
    Ok(Walked { tally: walk.tally, ranges: walk.ranges })
}

fn chunk_of(address: u64) -> u64 {
    address & !(CHUNK as u64 - 1)
}

/// The blocks in the caches of all threads, by their chunks. `newest` is where the address of the newest heap is.
fn cached_blocks(memory: &Memory, pages: &Pages, newest: u64) -> Result<HashMap<u64, HashSet<u64>>, Error> {
    let (mut cached, mut heaps): (HashMap<u64, HashSet<u64>>, _) = (HashMap::new(), HashSet::new());
    let mut at = memory.word(newest).map_err(|_| Error::Gone)?;
    while at != 0 && heaps.len() < HEAPS && heaps.insert(at) {
        let heap = SeenHeap::of(&pages.copy(memory, at, SeenHeap::BYTES)?);
        for mut block in heap.first.into_iter().skip(1) {
            for _ in 0..SeenHeap::MOST {
                // A block that the thread has taken meanwhile may link anywhere, even in a cycle.
                let front = pages.copy(memory, block, SeenHeap::BLOCK_BYTES);
                let Some(next) = front.ok().and_then(|front| SeenHeap::behind(&front)) else { break };
                if !cached.entry(chunk_of(block)).or_default().insert(block) {
                    break;
                }
                block = next;
            }
        }
        at = heap.next;
    }
    Ok(cached)
}

/// An arena and copies of its records.
struct Arena {
    seen: SeenArena,
    /// The chunks that may contain blocks: those at the front, and the reentrant reserve.
    parts: [(Range<u64>, Vec<u8>); 2],
}

impl Arena {
    fn read(memory: &Memory, pages: &Pages, seen: SeenArena) -> Result<Self, Error> {
        let of = |chunks: Range<u64>| -> Result<(Range<u64>, Vec<u8>), Error> {
            let length = chunks.end.saturating_sub(chunks.start) as usize * RECORD_BYTES;
            let records = pages.copy(memory, seen.base + chunks.start * RECORD_BYTES as u64, length)?;
            Ok((chunks, records))
        };
        // The reserve is mostly untouched.
        let reserve = seen.reserve..seen.chunks;
        let in_use = pages.held(seen.base + reserve.start * CHUNK as u64..seen.base + reserve.end * CHUNK as u64)? > 0;
        let reserve = if in_use { reserve } else { seen.chunks..seen.chunks };
        let front = seen.first..seen.frontier.max(seen.first);
        Ok(Arena { seen, parts: [of(front)?, of(reserve)?] })
    }

    fn address(&self, chunk: u64) -> u64 {
        self.seen.base + chunk * CHUNK as u64
    }

    /// The record of the chunk at an address.
    fn record(&self, address: u64) -> Option<&[u8; RECORD_BYTES]> {
        let chunk = address.checked_sub(self.seen.base)? / CHUNK as u64;
        let (chunks, records) = self.parts.iter().find(|(chunks, _)| chunks.contains(&chunk))?;
        records.as_chunks().0.get((chunk - chunks.start) as usize)
    }
}

/// A sampled block at the place where it would lie without the sample.
struct Placed {
    address: u64,
    class: u8,
    stack: u32,
    weight: f64,
}

/// What the chunks of the walk currently belong to.
#[derive(Clone, Copy)]
enum Use {
    /// Nothing that is in use.
    Free,
    /// A large block in the cache of a heap.
    Cached,
    Heaps,
    /// A large block that starts there, and ends where its usable bytes do.
    Large {
        start: u64,
        end: u64,
        sample: SeenLarge,
    },
}

/// What a large block has so far.
#[derive(Default)]
struct Large {
    live: u64,
    rest: u64,
}

struct Walk<'m> {
    memory: &'m Memory,
    pages: Pages,
    cached: HashMap<u64, HashSet<u64>>,
    /// By the chunk that they would lie in; those of large blocks by the chunk that they begin in.
    samples: HashMap<u64, Vec<Placed>>,
    tally: Tally,
    ranges: Vec<Range<u64>>,
}

impl Walk<'_> {
    fn copy(&self, at: u64, length: usize) -> Result<Vec<u8>, Error> {
        self.pages.copy(self.memory, at, length)
    }

    /// Finds the places where samples would lie.
    fn place(&mut self, arenas: &[Arena], samples: &[Live]) {
        let record = |address: u64| arenas.iter().find_map(|arena| arena.record(address));
        for sample in samples {
            let own = record(sample.address).filter(|record| Seen::from(*record).kind != Kind::SLAB);
            let place = own.map_or(0, |record| SeenLarge::from(record).place);
            let address = if place == 0 { sample.address } else { place };
            let seen = record(address).map(Seen::from).filter(|seen| seen.kind == Kind::SLAB);
            let small = usize::try_from(sample.size).ok().filter(|&size| size <= class::MAX_SMALL).map(class::of);
            let class = match (seen, place) {
                (Some(seen), _) => seen.class,
                // Its slab has been released since.
                (None, 1..) => small.unwrap_or(0) as u8,
                (None, 0) => 0,
            };
            let placed = Placed { address, class, stack: sample.stack, weight: sample.weight as f64 };
            self.samples.entry(chunk_of(address)).or_default().push(placed);
        }
    }

    fn arena(&mut self, arena: &Arena) -> Result<(), Error> {
        let tables = self.pages.written(self.memory, arena.seen.base..arena.address(arena.seen.first))?;
        self.tally.resident += tables;
        self.tally.records += tables;
        self.ranges.push(arena.seen.base..arena.address(arena.seen.chunks));
        for (chunks, records) in &arena.parts {
            let (mut what, mut large) = (Use::Free, Large::default());
            let mut from = chunks.start;
            while from < chunks.end {
                let group = from..(from + GROUP).min(chunks.end);
                let resident = self.pages.resident(arena.address(group.start)..arena.address(group.end))?;
                let first = (group.start - chunks.start) as usize;
                let records = records.as_chunks().0.get(first..).unwrap_or(&[]);
                let bits = self.bits(arena, &records[..records.len().min(GROUP as usize)])?;
                let per_chunk = CHUNK / self.pages.size as usize;
                for ((chunk, record), resident) in group.clone().zip(records).zip(resident.chunks(per_chunk)) {
                    self.tally.resident += resident.iter().filter(|held| **held).count() as u64 * self.pages.size;
                    let (address, seen) = (arena.address(chunk), Seen::from(record));
                    if seen.kind != Kind::NONE {
                        self.close(what, &mut large);
                        what = use_of(address, &seen, record);
                    }
                    if seen.kind == Kind::SLAB && class::SIZE.get(usize::from(seen.class)).is_some_and(|&size| size > 0)
                    {
                        self.slab(address, seen.class, &bits.of(record, seen.class), resident);
                    } else {
                        self.whole(what, address, resident, &mut large);
                    }
                }
                from = group.end;
            }
            self.close(what, &mut large);
        }
        // Committed, but never used.
        let behind = self.pages.held(arena.address(arena.parts[0].0.end)..arena.address(arena.seen.committed))?;
        self.tally.resident += behind;
        self.tally.waiting += behind;
        Ok(())
    }

    /// The bits of the slabs of some chunks.
    fn bits(&self, arena: &Arena, records: &[[u8; RECORD_BYTES]]) -> Result<Bits, Error> {
        let slabs = records.iter().filter_map(slab_of);
        let (mut from, mut to) = (u64::MAX, 0);
        for slab in slabs {
            for at in [slab.free_bits, slab.remote_bits] {
                (from, to) = (from.min(at), to.max(at.saturating_add(8 * slab.words as u64)));
            }
        }
        let known = from < to && to - from <= BITS;
        let bytes =
            if known { self.copy(arena.seen.base.wrapping_add(from), (to - from) as usize)? } else { Vec::new() };
        Ok(Bits { from, bytes })
    }

    fn slab(&mut self, address: u64, class: u8, slab: &Slab, resident: &[bool]) {
        let (size, page) = (self.pages.size, self.pages.size as usize);
        let cached = self.cached.remove(&address).unwrap_or_default();
        let is_cached = |offset: u64| !cached.is_empty() && cached.contains(&(address + offset));
        let (live, kept) = slab.pages(page, is_cached);
        for ((&live, &kept), &held) in live.iter().zip(&kept).zip(resident) {
            match (held, live) {
                (true, 1..) => self.tally.add_pinned(class, live, size - live),
                (true, 0) if kept => self.tally.cached += size,
                (true, 0) => self.tally.waiting += size,
                (false, _) => self.tally.untouched += live,
            }
        }
        for sample in self.samples.remove(&address).unwrap_or_default() {
            let offset = sample.address - address;
            let lives = sample.class == class && slab.is_live(offset) && !is_cached(offset);
            self.add_sample(&sample, &live, lives);
        }
    }

    /// Adds a sample of a small block. `live`: the bytes in use on its OS pages (0: the OS page has gone back);
    /// `lives`: whether a live block is at its place.
    fn add_sample(&mut self, sample: &Placed, live: &[u64], lives: bool) {
        let page = self.pages.size;
        let (offset, size) = (sample.address & (CHUNK as u64 - 1), block_size(sample.class));
        let (mut at, end) = (offset, (offset + size).min(CHUNK as u64));
        while at < end {
            let part = (end - at).min(page - at % page);
            let others = live.get((at / page) as usize).copied().unwrap_or(0);
            let live = if lives { others } else { others + part }.clamp(part, page);
            let bytes = sample.weight * part as f64 / size as f64;
            self.tally.add_sample(sample.class, live, page - live, sample.stack, bytes);
            at += part;
        }
    }

    /// Counts a chunk that is no slab.
    fn whole(&mut self, what: Use, address: u64, resident: &[bool], large: &mut Large) {
        for (page, &held) in (address..).step_by(self.pages.size as usize).zip(resident) {
            let size = self.pages.size;
            match what {
                Use::Large { end, .. } => {
                    let live = end.saturating_sub(page).min(size);
                    if held {
                        large.live += live;
                        large.rest += size - live;
                    } else {
                        self.tally.untouched += live;
                    }
                }
                _ if !held => {}
                Use::Free => self.tally.waiting += size,
                Use::Cached => self.tally.cached += size,
                Use::Heaps => self.tally.records += size,
            }
        }
    }

    /// Counts a large block, all of which was walked through.
    fn close(&mut self, what: Use, large: &mut Large) {
        let Large { live, rest } = std::mem::take(large);
        let Use::Large { start, end, sample } = what else { return };
        if end - start >= Tally::LARGE {
            self.tally.large += live;
        }
        if sample.sample && sample.place != 0 {
            self.tally.live += live;
            self.tally.samples += rest;
            self.tally.moved = (self.tally.moved.0 + 1, self.tally.moved.1 + live);
        } else if live == 0 {
            self.tally.waiting += rest;
        } else {
            self.tally.add_pinned(0, live, rest);
            for sample in self.samples.remove(&start).unwrap_or_default() {
                self.tally.add_sample(0, live, rest, sample.stack, sample.weight);
            }
        }
    }

    /// Counts the huge blocks.
    fn huge(&mut self, at: u64) -> Result<(), Error> {
        let copy = self.copy(at, SeenHuge::BYTES)?;
        let mut next = self.blocks(&SeenHuge::first(&copy))?;
        let mut tables = HashSet::new();
        while next != 0 && tables.len() < TABLES && tables.insert(next) {
            let range = next..next.saturating_add(SeenHuge::TABLE_BYTES as u64);
            self.ranges.push(range.clone());
            let table = self.pages.held(range)?;
            self.tally.resident += table;
            self.tally.records += table;
            let copy = self.copy(next, SeenHuge::TABLE_BYTES)?;
            next = self.blocks(&SeenHuge::table(&copy))?;
        }
        Ok(())
    }

    fn blocks(&mut self, slots: &SeenHuge<'_>) -> Result<u64, Error> {
        for (start, bytes) in slots.blocks() {
            let end = start.saturating_add(bytes);
            self.ranges.push(start..end.checked_next_multiple_of(self.pages.size).unwrap_or(end));
            let held = self.pages.held(start..end)?;
            self.tally.resident += held;
            self.tally.live += held.min(bytes);
            self.tally.large += held.min(bytes);
            self.tally.waiting += held.saturating_sub(bytes);
            self.tally.untouched = self.tally.untouched.saturating_add(bytes.saturating_sub(held));
        }
        Ok(slots.next)
    }

    /// Adds the samples whose slabs have been released: each would have kept its OS page alone.
    fn rest(&mut self) {
        for sample in std::mem::take(&mut self.samples).into_values().flatten().filter(|sample| sample.class != 0) {
            self.add_sample(&sample, &[], false);
        }
    }
}

/// The slab of a record.
fn slab_of(record: &[u8; RECORD_BYTES]) -> Option<SeenSlab> {
    let seen = Seen::from(record);
    let class = usize::from(seen.class);
    (seen.kind == Kind::SLAB && (1..class::CLASSES).contains(&class)).then(|| SeenSlab::of(record, class))
}

fn use_of(start: u64, seen: &Seen, record: &[u8; RECORD_BYTES]) -> Use {
    match seen.kind {
        Kind::LARGE | Kind::REENTRANT => {
            Use::Large { start, end: start.saturating_add(seen.bytes), sample: SeenLarge::from(record) }
        }
        Kind::CACHED => Use::Cached,
        Kind::HEAPS => Use::Heaps,
        _ => Use::Free,
    }
}

/// A copy of the bits of some slabs.
struct Bits {
    from: u64,
    bytes: Vec<u8>,
}

impl Bits {
    /// The blocks of the slab of a record.
    fn of(&self, record: &[u8; RECORD_BYTES], class: u8) -> Slab {
        let seen = SeenSlab::of(record, usize::from(class));
        let words = |at: u64| {
            let start = at.wrapping_sub(self.from) as usize;
            let bytes = start.checked_add(8 * seen.words).and_then(|end| self.bytes.get(start..end)).unwrap_or(&[]);
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word))
        };
        let free = words(seen.free_bits).zip(words(seen.remote_bits)).map(|(own, remote)| own | remote).collect();
        Slab::new(class, seen.carved, free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a panic, and unlimited memory, for arbitrary contents of a process's heap.
    #[test]
    fn garbage() {
        let pid = std::process::id();
        let memory = Memory::open(pid).expect("this process");
        let bytes = SeenArena::BYTES.max(SeenHuge::BYTES) + 8;
        let mut state = 4711u64;
        for round in 0..20 {
            let mut words = vec![if round == 0 { u64::MAX } else { 0 }; bytes.div_ceil(8)];
            for word in words.iter_mut().filter(|_| round > 0) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *word = if state >> 62 == 0 { 0 } else { state >> (state >> 32 & 63) };
            }
            let block = words.as_ptr() as u64;
            // Reads of one kind must not prevent those of another.
            let nothing = vec![0u64; bytes.div_ceil(8)];
            let away = (nothing.as_ptr() as u64).wrapping_sub(block);
            // Random lengths of huge blocks are valid, and take their time.
            let kinds = [[0, away, away], [away, 0, away], [away, away, 0]];
            for &[arenas, heaps, huge] in kinds.iter().take(if round == 0 { 3 } else { 2 }) {
                let _ = walk(&memory, pid, block, HeapPlaces { layout: LAYOUT, arenas, heaps, huge }, &[]);
            }
        }
    }
}
