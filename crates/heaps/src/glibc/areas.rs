//! Where the chunks of an arena are.
//!
//! The main arena grows by brk; where that fails, or in a second copy of glibc, by mappings. Each other arena has heaps
//! of 64 MiB, aligned to 64 MiB, of which a part is in use. `struct heap_info` is at the front of each heap; after that
//! of the first heap comes the arena itself.

use super::layout::{Layout, Settings, State};
use super::walk::Area;
use crate::window::{peek, resident};
use crate::{Amount, Mapping, Memory};
use std::collections::HashSet;
use std::ops::Range;

/// Bytes of `struct heap_info`: up to 2.34, and since 2.35.
const INFOS: [u64; 2] = [0x20, 0x30];
/// Bytes and alignment of heaps: the usual value, and those with huge pages by a tunable.
const HEAPS: [u64; 3] = [64 << 20, 8 << 20, 4 << 30];
/// Limit on arenas and heaps, of all copies of glibc.
pub const MOST: usize = 1 << 16;
/// How often an arena is read that does not fit.
const TRIES: u32 = 4;
/// Flag of an arena that has mappings besides the memory from brk.
const HAS_MAPPINGS: u32 = 2;

/// An arena's memory.
#[derive(Debug, Default)]
pub struct Arena {
    /// 0 is the main arena.
    pub number: usize,
    pub areas: Vec<Area>,
    /// The structures in front of chunks.
    pub metadata: Amount,
    /// Reserved bytes that are not in use yet.
    pub reserved: u64,
    /// All its memory.
    pub ranges: Vec<Range<u64>>,
    pub fastbins: Vec<u64>,
    /// Bytes from the system, by its own count.
    pub system: u64,
    /// The address of its `top` field.
    pub top_at: u64,
}

/// All arenas after the main one; none if they do not lead back to it, because then it is not a main arena. `left`
/// limits the arenas that are read for all candidates.
pub fn others(memory: &dyn Memory, layout: &Layout, main: &State, left: &mut usize) -> Option<Vec<State>> {
    let (mut arenas, mut seen): (Vec<State>, _) = (Vec::new(), HashSet::new());
    let (mut at, mut bytes) = (main.next, vec![0; layout.size as usize]);
    while at != main.address {
        *left = left.checked_sub(1)?;
        if !seen.insert(at) {
            return None;
        }
        // An arena changes while it is read.
        let state = (0..TRIES).find_map(|_| {
            memory.read(at, &mut bytes).ok()?;
            layout.read(&bytes, at)
        })?;
        at = state.next;
        arenas.push(state);
    }
    Some(arenas)
}

/// Bytes of the `struct heap_info` before an arena that is in a heap; none for the main arena.
pub fn info(memory: &dyn Memory, arena: u64) -> Option<u64> {
    INFOS.into_iter().find(|info| peek(memory, arena.wrapping_sub(*info)) == Some(arena))
}

/// The memory of an arena other than the main one. A heap belongs to one arena: `seen` are those that were found
/// before.
pub fn heaps(memory: &dyn Memory, layout: &Layout, state: &State, number: usize, seen: &mut HashSet<u64>) -> Arena {
    let (fastbins, system, top_at) = (state.fastbins.clone(), state.system, state.top_at);
    let mut arena = Arena { number, fastbins, system, top_at, ..Arena::default() };
    let Some(info) = info(memory, state.address) else { return arena };
    let first = state.address - info;
    let newest = |length: &u64| {
        let heap = state.top & !(length - 1);
        (heap == first || heap > 0 && peek(memory, heap) == Some(state.address)).then_some((heap, *length))
    };
    let Some((mut heap, length)) = HEAPS.iter().find_map(newest) else { return arena };
    let mut top = Some(state.top);
    while seen.len() < MOST && seen.insert(heap) {
        let word = |at: u64| peek(memory, heap.wrapping_add(at));
        let (Some(owner), Some(previous)) = (word(0), word(8)) else { break };
        let (Some(size), Some(opened)) = (word(16), word(24)) else { break };
        let start = if heap == first {
            (state.address + layout.size).next_multiple_of(16)
        } else {
            heap + info.next_multiple_of(16)
        };
        if owner != state.address || !(start - heap..=length).contains(&size) || size > opened || opened > length {
            break;
        }
        let end = heap + size;
        let top = top.take().filter(|top| (start..end).contains(top) && top.is_multiple_of(16));
        arena.metadata.add(&Amount { blocks: 0, bytes: start - heap, resident: resident(memory, heap..start) });
        arena.areas.push(Area { range: start..end, top, top_at, is_main: false, is_start_known: true });
        arena.ranges.push(heap..end);
        arena.reserved += length - size;
        if heap == first {
            break;
        }
        heap = previous;
    }
    arena
}

/// Limit on the growth of brk since the list of mappings was made: a larger top is damaged.
const GROWN: u64 = 1 << 30;

/// The memory from brk, up to where it may have grown since the list of mappings was made: the next mapping.
pub fn brk(mappings: &[Mapping]) -> Option<Range<u64>> {
    let span = spans(mappings, |mapping| mapping.name.as_deref() == Some("[heap]")).into_iter().next()?;
    let next = mappings.iter().map(|mapping| mapping.range.start).find(|start| *start >= span.end);
    Some(span.start..next.unwrap_or(span.end).min(span.end.saturating_add(GROWN)))
}

/// The memory of the main arena.
pub fn main(memory: &dyn Memory, state: &State, settings: Option<Settings>, mappings: &[Mapping]) -> Arena {
    let (fastbins, system, top_at) = (state.fastbins.clone(), state.system, state.top_at);
    let mut arena = Arena { fastbins, system, top_at, ..Arena::default() };
    let Some(size) = peek(memory, state.top.wrapping_add(8)).map(|field| field & !7) else { return arena };
    let end = state.top.saturating_add(size);
    let mut known = 0;
    if let Some(heap) = brk(mappings) {
        let is_here = (heap.start..heap.end).contains(&state.top) && end <= heap.end;
        let base = settings.map(|settings| settings.base).filter(|base| (heap.start..heap.end).contains(base));
        if is_here || base.is_some() {
            let start = base.unwrap_or(heap.start).next_multiple_of(16);
            let listed = self::spans(mappings, |mapping| mapping.name.as_deref() == Some("[heap]"));
            let listed = listed.first().map_or(heap.end, |span| span.end);
            let (top, stop) = if is_here { (Some(state.top), end) } else { (None, listed) };
            known = stop.saturating_sub(start);
            arena.add(start..stop, top, true);
        }
        if is_here && state.flags & HAS_MAPPINGS == 0 {
            return arena;
        }
    }
    let others = self::spans(mappings, |mapping| mapping.is_anonymous() && mapping.name.as_deref() != Some("[heap]"));
    let span = |chunk: u64| others.iter().find(|span| span.contains(&chunk));
    if !arena.has(state.top)
        && let Some(span) = span(state.top).filter(|span| end <= span.end)
    {
        // The rest of the arena's bytes is the mapping of the top, unless there are more mappings.
        let start = end.checked_sub(state.system.saturating_sub(known)).filter(|start| span.contains(start));
        arena.add(start.unwrap_or(span.start)..end, Some(state.top), start.is_some());
        known += end - start.unwrap_or(span.start);
    }
    // Other mappings are recognised by free chunks in them.
    for chunk in state.chunks.iter().chain(&state.fastbins) {
        if known < state.system
            && !arena.has(*chunk)
            && let Some(span) = span(*chunk)
        {
            let taken = arena.areas.iter().map(|area| area.range.clone());
            let below = taken.clone().map(|range| range.end).filter(|end| *end <= *chunk).max().unwrap_or(0);
            let above = taken.map(|range| range.start).filter(|start| *start > *chunk).min().unwrap_or(u64::MAX);
            arena.add(span.start.max(below)..span.end.min(above), None, true);
            known += span.end.min(above) - span.start.max(below);
        }
    }
    arena
}

impl Arena {
    fn add(&mut self, range: Range<u64>, top: Option<u64>, is_start_known: bool) {
        if range.start < range.end {
            self.ranges.push(range.clone());
            self.areas.push(Area { range, top, top_at: self.top_at, is_main: true, is_start_known });
        }
    }

    fn has(&self, address: u64) -> bool {
        self.areas.iter().any(|area| area.range.contains(&address))
    }
}

/// Mappings that `belong`, joined if they are adjacent.
pub fn spans(mappings: &[Mapping], belong: impl Fn(&Mapping) -> bool) -> Vec<Range<u64>> {
    let mut spans: Vec<Range<u64>> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| belong(mapping)) {
        match spans.last_mut() {
            Some(last) if last.end == mapping.range.start => last.end = mapping.range.end,
            _ => spans.push(mapping.range.clone()),
        }
    }
    spans
}
