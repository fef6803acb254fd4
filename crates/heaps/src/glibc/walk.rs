//! Walks the chunks of an area of memory from one header to the next.
//!
//! A chunk has its size in its second word, with flags in the lowest bits. The header of the *next* chunk says whether
//! it is free, so a walk reads every header. To use several processors, an area is cut into stretches, and the start of
//! each is guessed: a place from which many headers in a row fit together. If the walk of the stretch before does not
//! arrive at the guessed start, the stretch is walked again.

use crate::window::{PIECE, Window, page_size, peek, resident};
use crate::{Amount, Memory, Split};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smallest chunk.
const LEAST: u64 = 32;
/// Bytes at the front of a free chunk that the allocator uses: its header and four links.
const LINKS: u64 = 48;
/// Bytes of a stretch.
const STRETCH: u64 = 32 << 20;
/// Threads that walk.
const THREADS: usize = 2;
/// Sizes of chunks that hold the cache of a thread: to 2.41, since 2.42; each may be 16 bytes longer.
const CACHES: [u64; 4] = [0x290, 0x2a0, 0x300, 0x310];
/// OS pages that one stretch searches for a chunk after headers that do not fit.
const SEARCHED: u32 = 2048;
/// Chunks that must fit together before a guess is believed.
const FITTING: u32 = 24;
/// Limit on candidates for caches of threads in a stretch.
const CANDIDATES: usize = 1 << 16;

/// Memory with chunks from end to end.
#[derive(Clone, Debug)]
pub struct Area {
    /// From the first chunk on. With a top, the end is the top's.
    pub range: Range<u64>,
    /// The chunk at the end from which others are cut, as it was when the arena was read.
    pub top: Option<u64>,
    /// The address of the arena's `top` field, which has the present top.
    pub top_at: u64,
    /// Whether it is the main arena's.
    pub is_main: bool,
    /// Whether `range.start` is certainly a chunk.
    pub is_start_known: bool,
}

/// What a walk found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub split: Split,
    /// Chunks that may hold the cache of a thread.
    pub caches: Vec<u64>,
    /// A chunk some way below the end, from which the last chunks can be walked again.
    pub near_end: u64,
    /// The top, if free blocks joined it or its end was given back since the arena was read.
    top: Option<Range<u64>>,
}

impl Area {
    /// The end of the chunks that are walked: the top.
    fn chunks_end(&self) -> u64 {
        self.top.unwrap_or(self.range.end)
    }

    /// The size of the chunk with that header, if there can be one at `at`.
    #[inline]
    fn size(&self, at: u64, field: u64) -> Option<u64> {
        let (size, wrong) = (field & !7, if self.is_main { 8 | 2 | 4 } else { 8 | 2 });
        (field & wrong == 0 && size >= LEAST && size <= self.chunks_end().saturating_sub(at)).then_some(size)
    }

    /// The range of the chunk with that header, if it is now the top.
    fn top_now(&self, memory: &dyn Memory, at: u64, field: u64) -> Option<Range<u64>> {
        let is_top = self.top.is_some() && peek(memory, self.top_at) == Some(at);
        is_top.then(|| at..at.saturating_add(field & !7).min(self.range.end))
    }
}

/// Walks areas; the result has one entry for each. `fast` are chunks in fastbins, by address.
pub fn walk(memory: &dyn Memory, areas: &[Area], fast: &[u64]) -> Vec<Found> {
    let mut tasks = Vec::new();
    for (number, area) in areas.iter().enumerate() {
        let mut at = area.range.start;
        while at < area.chunks_end() || at == area.range.start {
            let end = (at & !(STRETCH - 1)).saturating_add(STRETCH).min(area.chunks_end()).max(at);
            tasks.push((number, at..end));
            at = end;
            if end >= area.chunks_end() {
                break;
            }
        }
    }
    let results: Mutex<Vec<Option<Box<Stretch>>>> = Mutex::new(tasks.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    let work = || {
        // Relaxed: each number is taken once; results are handed over by the lock.
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            let Some((number, range)) = tasks.get(task).filter(|_| !memory.is_over()) else { break };
            let stretch = Walk::new(memory, &areas[*number], fast).guessed(range);
            if let Ok(mut results) = results.lock() {
                results[task] = Some(Box::new(stretch));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..THREADS.min(tasks.len()) {
            // Without a second thread the walk takes longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let stretches = results.into_inner().unwrap_or_default();
    let mut found: Vec<Found> = vec![Found::default(); areas.len()];
    let mut at = None;
    for ((number, range), stretch) in tasks.into_iter().zip(stretches) {
        let (area, found) = (&areas[number], &mut found[number]);
        let is_first = range.start == area.range.start;
        let from = if is_first { range.start } else { at.unwrap_or(range.start) };
        if from < range.end {
            at = match memory.is_over() && stretch.is_none() {
                true => Some(found.unread(from..range.end)),
                false => Some(found.join(memory, area, fast, from..range.end, stretch.map(|stretch| *stretch))),
            };
        }
    }
    for (area, found) in areas.iter().zip(&mut found) {
        found.top(memory, area);
    }
    found
}

/// The chunks that start in a stretch.
struct Stretch {
    /// The first chunk.
    start: u64,
    /// The end of the last one.
    end: u64,
    found: Found,
}

impl Found {
    /// Adds the chunks of `range`, which starts with a chunk; returns where the next chunk is. `guessed` is a walk of
    /// the same range from a guess, which counts if the chunks lead to its start.
    fn join(
        &mut self,
        memory: &dyn Memory,
        area: &Area,
        fast: &[u64],
        range: Range<u64>,
        guessed: Option<Stretch>,
    ) -> u64 {
        if let Some(guessed) = guessed.filter(|guessed| (range.start..range.end).contains(&guessed.start)) {
            let mut walk = Walk::new(memory, area, fast);
            walk.window = walk.window.short();
            let between = walk.from(range.start, guessed.start);
            if between.end == guessed.start {
                self.add(between);
                let end = guessed.end;
                self.add(guessed);
                return end;
            }
        }
        let stretch = Walk::new(memory, area, fast).from(range.start, range.end);
        let end = stretch.end;
        self.add(stretch);
        end
    }

    /// Adds a range that may not be read; returns its end.
    fn unread(&mut self, range: Range<u64>) -> u64 {
        self.split.unsure.add(&Amount { blocks: 0, bytes: range.end - range.start, resident: 0 });
        range.end
    }

    fn add(&mut self, stretch: Stretch) {
        let (mine, other) = (&mut self.split, &stretch.found.split);
        mine.live.add(&other.live);
        mine.cached.add(&other.cached);
        mine.free.add(&other.free);
        mine.metadata.add(&other.metadata);
        mine.unsure.add(&other.unsure);
        mine.kept_bytes += other.kept_bytes;
        mine.trimmable_bytes += other.trimmable_bytes;
        mine.largest_free_bytes = mine.largest_free_bytes.max(other.largest_free_bytes);
        self.caches.extend(stretch.found.caches);
        if stretch.start < stretch.end {
            self.near_end = stretch.found.near_end;
        }
        if stretch.found.top.is_some() {
            self.top = stretch.found.top;
        }
    }

    /// Adds the top, which is in no stretch.
    fn top(&mut self, memory: &dyn Memory, area: &Area) {
        let before = || area.top.map(|top| top..area.range.end);
        let Some(top) = self.top.clone().or_else(before).filter(|top| top.start < top.end) else { return };
        let (size, page) = (top.end - top.start, page_size(memory));
        self.split.top = Amount { blocks: 1, bytes: size, resident: resident(memory, top.clone()) };
        let first = (top.start + 16).next_multiple_of(page);
        if first < top.end {
            self.split.kept_bytes += resident(memory, first..top.end);
        }
        // malloc_trim shrinks the main arena by whole OS pages and leaves a smallest chunk and a byte.
        let extra = size.saturating_sub(LEAST + 1) & !(page - 1);
        if area.is_main && extra != 0 {
            self.split.trimmable_bytes += resident(memory, top.end - extra..top.end);
        }
    }
}

struct Walk<'a> {
    memory: &'a dyn Memory,
    window: Window<'a>,
    area: &'a Area,
    fast: &'a [u64],
    page: u64,
    found: Found,
    /// The start of adjacent chunks that are free or in fastbins.
    together: Option<u64>,
    /// Those of them that are in fastbins.
    fast_together: Vec<Range<u64>>,
    /// OS pages that were searched.
    searched: u32,
}

impl<'a> Walk<'a> {
    fn new(memory: &'a dyn Memory, area: &'a Area, fast: &'a [u64]) -> Self {
        Walk {
            memory,
            window: Window::new(memory, area.range.end),
            area,
            fast,
            page: page_size(memory),
            found: Found::default(),
            together: None,
            fast_together: Vec::new(),
            searched: 0,
        }
    }

    /// Walks a stretch from a guess, or from its start if that is a chunk.
    fn guessed(mut self, range: &Range<u64>) -> Stretch {
        let is_known = range.start == self.area.range.start && self.area.is_start_known;
        let start = if is_known { Some(range.start) } else { self.guess(range.start, range.end) };
        match start {
            // No other stretch can walk what is before the first chunk of an area.
            Some(at) if range.start == self.area.range.start => {
                self.unsure(range.start..at);
                let mut stretch = self.from(at, range.end);
                stretch.start = range.start;
                stretch
            }
            Some(at) => self.from(at, range.end),
            None => Stretch { start: u64::MAX, end: range.end, found: Found::default() },
        }
    }

    /// Walks from the chunk at `start` until one starts at or after `end`.
    fn from(mut self, start: u64, end: u64) -> Stretch {
        let mut fast = self.fast.partition_point(|chunk| *chunk < start);
        let (mut at, mut tries, mut near) = (start, 0, [start; 2]);
        while at < end {
            if !self.window.has(at) {
                self.window.refill(at);
                near = [near[1], at];
            }
            let (_, field) = self.window.pair(at);
            let Some(next) = self.next(at, field) else {
                if let Some(next) = self.fence(at, field) {
                    at = next;
                } else if let Some(top) = self.area.top_now(self.memory, at, field) {
                    self.close(at);
                    self.found.top = Some(top);
                    // What a walk from a guess found after it is not a chunk now.
                    at = self.area.chunks_end();
                } else if tries < 3 {
                    // Torn, because a chunk was cut or joined between two reads.
                    tries += 1;
                    self.window.refill(at);
                } else {
                    tries = 0;
                    at = self.skip(at, end);
                }
                continue;
            };
            tries = 0;
            let is_free = next.1;
            let (size, next) = (next.0 - at, next.0);
            let amount = Amount { blocks: 1, bytes: size, resident: self.window.resident(at..next) };
            while self.fast.get(fast).is_some_and(|chunk| *chunk < at) {
                fast += 1;
            }
            if is_free {
                self.found.split.free.add(&amount);
                self.found.split.largest_free_bytes = self.found.split.largest_free_bytes.max(size);
                self.together.get_or_insert(at);
            } else if self.fast.get(fast) == Some(&at) {
                self.found.split.cached.add(&amount);
                self.together.get_or_insert(at);
                match self.fast_together.last_mut().filter(|last| last.end == at) {
                    Some(last) => last.end = next,
                    None => self.fast_together.push(at..next),
                }
            } else {
                self.close(at);
                self.found.split.live.add(&amount);
                if CACHES.contains(&size) && self.found.caches.len() < CANDIDATES {
                    self.found.caches.push(at);
                }
            }
            at = next;
        }
        self.close(at);
        self.found.near_end = near[0];
        Stretch { start, end: at, found: self.found }
    }

    /// The end of the chunk at `at`, and whether it is free; none if headers do not fit.
    #[inline]
    fn next(&mut self, at: u64, field: u64) -> Option<(u64, bool)> {
        let size = self.area.size(at, field)?;
        let next = at + size;
        if next >= self.area.range.end {
            return Some((next, false));
        }
        // The header after a long chunk is read separately, so that the piece stays for questions about this chunk.
        let (before, after) = if self.window.has(next) { self.window.pair(next) } else { self.window.pair_apart(next) };
        let is_free = after & 1 == 0;
        if is_free && before != size || after < 16 && next + LEAST < self.area.range.end {
            return None;
        }
        Some((next, is_free))
    }

    /// The end of the headers at the end of an area without a top: sizes 16 and 0.
    fn fence(&mut self, at: u64, field: u64) -> Option<u64> {
        let left = self.area.chunks_end() - at;
        let size = match field & !7 {
            16 if field & 1 == 1 && left >= 16 => 16,
            // The last header: only padding follows.
            0 | 16 if left <= LEAST && self.area.top.is_none() => left,
            _ => return None,
        };
        self.close(at);
        let resident = self.window.resident(at..at + size);
        self.found.split.metadata.add(&Amount { blocks: 0, bytes: size, resident });
        Some(at + size)
    }

    /// Skips memory that cannot be walked.
    fn skip(&mut self, at: u64, end: u64) -> u64 {
        self.close(at);
        let next = self.guess(at.saturating_add(16), end).unwrap_or(end);
        self.unsure(at..next);
        next
    }

    fn unsure(&mut self, range: Range<u64>) {
        let resident = self.window.resident(range.clone());
        self.found.split.unsure.add(&Amount { blocks: 0, bytes: range.end - range.start, resident });
    }

    /// Searches a chunk from `from` on.
    fn guess(&mut self, from: u64, end: u64) -> Option<u64> {
        let mut at = from.checked_next_multiple_of(16)?;
        while at < end && self.searched < SEARCHED {
            if !self.window.has(at) {
                self.window.refill(at);
            }
            if let Some(start) = self.fits(at).filter(|start| *start < end) {
                return Some(start);
            }
            at += 16;
            if at & (self.page - 1) == 0 {
                self.searched += 1;
            }
        }
        None
    }

    /// Whether a chain of many chunks begins at `at`. The first few may be false and only lead into a chain: returns
    /// where they certainly are chunks, unless that is at the end.
    fn fits(&mut self, at: u64) -> Option<u64> {
        let (mut place, mut start, mut apart) = (at, at, 0);
        for step in 0..FITTING {
            if !self.window.has(place) {
                // Long chunks lead out of the piece; a few of them are not enough evidence.
                apart += 1;
                if apart > 4 {
                    return None;
                }
            }
            let (_, field) =
                if self.window.has(place) { self.window.pair(place) } else { self.window.pair_apart(place) };
            let (next, _) = self.next(place, field)?;
            if step < 6 {
                start = place;
            }
            if next >= self.area.chunks_end() {
                return (next == self.area.chunks_end() && step > 0).then_some(start);
            }
            place = next;
        }
        Some(start)
    }

    /// Ends adjacent free chunks at `end`: whole OS pages in them can be given back.
    #[inline]
    fn close(&mut self, end: u64) {
        let Some(start) = self.together.take() else { return };
        let fast = std::mem::take(&mut self.fast_together);
        let (first, last) = ((start + LINKS).next_multiple_of(self.page), end & !(self.page - 1));
        if first < last {
            let kept = self.window.resident_apart(first..last);
            self.found.split.trimmable_bytes += kept;
            let parts = fast.iter().map(|range| range.start.max(first)..range.end.min(last));
            let cached: u64 =
                parts.filter(|part| part.start < part.end).map(|part| self.window.resident_apart(part)).sum();
            self.found.split.kept_bytes += kept - cached.min(kept);
        }
    }
}

/// The last chunk in use below the top, except those in `cached`: address and size.
pub fn last_live(memory: &dyn Memory, area: &Area, near: u64, cached: &[u64]) -> Option<(u64, u64)> {
    let end = area.chunks_end();
    if near < area.range.start || end.saturating_sub(near) > 4 * PIECE.max(STRETCH) {
        return None;
    }
    let (mut walk, mut at, mut last) = (Walk::new(memory, area, &[]), near, None);
    while at < end {
        if !walk.window.has(at) {
            walk.window.refill(at);
        }
        let (_, field) = walk.window.pair(at);
        let Some((next, is_free)) = walk.next(at, field) else {
            return area.top_now(memory, at, field).and(last);
        };
        if !is_free && cached.binary_search(&at).is_err() {
            last = Some((at, next - at));
        }
        at = next;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Run, Unreadable};

    /// The words of OS pages from address 0x10000 on.
    struct Words(Vec<u64>);

    const START: u64 = 0x10000;

    impl Memory for Words {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
            let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
            let from = address.checked_sub(START).ok_or(Unreadable)? as usize;
            into.copy_from_slice(bytes.get(from..from + into.len()).ok_or(Unreadable)?);
            Ok(())
        }

        fn resident(&self, range: Range<u64>, into: &mut Vec<Run>) {
            let range = range.start.max(START)..range.end.min(START + 8 * self.0.len() as u64);
            into.extend((range.start < range.end).then_some(Run { range, swapped: false }));
        }
    }

    /// Catches a top that blocks joined, or whose end was given back, during the walk: its memory is not unsure, and
    /// old headers in it are not chunks.
    #[test]
    fn a_top_that_moves() {
        const PAGES: u64 = 4;
        let end = START + PAGES * 4096;
        // The arena is at the front: its first word is the address of its top.
        let chunks = START + 16;
        for (now, size, is_unsure) in
            [(0x800, end - chunks - 0x800, false), (0x800, 0x3010, false), (0x840, 0x3010, true)]
        {
            let mut memory = Words(vec![0; (PAGES * 512) as usize]);
            for at in (chunks..end - 0x1000).step_by(64) {
                memory.0[((at - START) / 8 + 1) as usize] = 65;
            }
            memory.0[0] = chunks + now;
            memory.0[((chunks + 0x800 - START) / 8 + 1) as usize] = size | 1;
            let area = Area {
                range: chunks..end,
                top: Some(end - 0x1000 + 16),
                top_at: START,
                is_main: true,
                is_start_known: true,
            };
            let found = walk(&memory, &[area], &[]);
            let split = &found[0].split;
            assert_eq!(split.unsure.bytes > 0, is_unsure, "{split:?}");
            if !is_unsure {
                assert_eq!((split.live.blocks, split.top.bytes), (0x800 / 64, size));
            }
        }
    }
}
