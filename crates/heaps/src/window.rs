//! Reads memory in pieces, and only what is resident or swapped out, so that reading does not make the process grow.

use crate::{Memory, Run};
use std::ops::Range;

/// Bytes of one read.
pub const PIECE: u64 = 1 << 20;

/// A piece of memory that moves upward. What holds no memory reads as zeros.
pub struct Window<'m> {
    memory: &'m dyn Memory,
    page: u64,
    piece: u64,
    /// No byte from here on is read.
    limit: u64,
    start: u64,
    bytes: Vec<u8>,
    /// The resident runs in the piece.
    runs: Vec<Run>,
    /// The run at which the last query of residency ended.
    cursor: usize,
}

impl<'m> Window<'m> {
    /// An empty window, which reads nothing from `limit` on.
    pub fn new(memory: &'m dyn Memory, limit: u64) -> Self {
        let page = page_size(memory);
        Window { memory, page, piece: PIECE, limit, start: 0, bytes: Vec::new(), runs: Vec::new(), cursor: 0 }
    }

    /// Makes its pieces small.
    pub fn short(mut self) -> Self {
        self.piece = 16 << 10;
        self
    }

    /// The two words at `at`; zeros if there is no memory.
    #[inline]
    pub fn pair(&mut self, at: u64) -> (u64, u64) {
        let offset = at.wrapping_sub(self.start) as usize;
        if let Some(bytes) = self.bytes.get(offset..offset.wrapping_add(16)) {
            return words(bytes);
        }
        self.refill(at);
        let offset = at.wrapping_sub(self.start) as usize;
        self.bytes.get(offset..offset.wrapping_add(16)).map_or((0, 0), words)
    }

    /// The two words at `at`, without moving the piece; zeros if there is no memory.
    pub fn pair_apart(&self, at: u64) -> (u64, u64) {
        let mut bytes = [0; 16];
        if at.checked_add(16).is_some_and(|end| end <= self.limit) && copy(self.memory, at, &mut bytes) {
            words(&bytes)
        } else {
            (0, 0)
        }
    }

    /// Whether `at` is in the piece.
    pub fn has(&self, at: u64) -> bool {
        at >= self.start && at.saturating_add(16) <= self.start + self.bytes.len() as u64
    }

    /// Reads the piece from the OS page of `at` on, even if it is the same as before.
    pub fn refill(&mut self, at: u64) {
        self.start = at & !(self.page - 1);
        let end = self.start.saturating_add(self.piece.max(2 * self.page)).min(self.limit).max(self.start);
        self.cursor = 0;
        self.runs.clear();
        self.bytes.resize((end - self.start) as usize, 0);
        let whole = end.checked_next_multiple_of(self.page).unwrap_or(end);
        self.memory.resident(self.start..whole, &mut self.runs);
        // The piece is filled up to here; memory outside of runs reads as zeros.
        let mut filled = self.start;
        for run in &self.runs {
            let (from, to) = (run.range.start.max(filled), run.range.end.min(end));
            if from >= to {
                continue;
            }
            let at = |address: u64| (address - self.start) as usize;
            self.bytes[at(filled)..at(from)].fill(0);
            let part = at(from)..at(to);
            if self.memory.read(from, &mut self.bytes[part.clone()]).is_err() {
                self.bytes[part].fill(0);
            }
            filled = to;
        }
        self.bytes[(filled - self.start) as usize..].fill(0);
    }

    /// Resident bytes of `range`. Queries with ascending starts are fast.
    #[inline]
    pub fn resident(&mut self, range: Range<u64>) -> u64 {
        if let Some(run) = self.runs.get(self.cursor)
            && run.range.start <= range.start
            && range.end <= run.range.end
        {
            return if run.swapped { 0 } else { range.end - range.start };
        }
        self.resident_slowly(range)
    }

    /// The same without moving the cursor.
    pub fn resident_apart(&mut self, range: Range<u64>) -> u64 {
        if range.start < self.start || range.end > self.start + self.bytes.len() as u64 {
            return resident(self.memory, range);
        }
        let first = self.runs.partition_point(|run| run.range.end <= range.start);
        let runs = self.runs[first..].iter().take_while(|run| run.range.start < range.end);
        runs.filter(|run| !run.swapped).map(|run| overlap(&run.range, &range)).sum()
    }

    #[cold]
    fn resident_slowly(&mut self, range: Range<u64>) -> u64 {
        if range.start < self.start || range.end > self.start + self.bytes.len() as u64 {
            return resident(self.memory, range);
        }
        if self.runs.get(self.cursor).is_none_or(|run| run.range.start > range.start) {
            self.cursor = 0;
        }
        let mut sum = 0;
        while let Some(run) = self.runs.get(self.cursor) {
            if !run.swapped {
                sum += overlap(&run.range, &range);
            }
            if run.range.end >= range.end {
                break;
            }
            self.cursor += 1;
        }
        sum
    }
}

fn words(bytes: &[u8]) -> (u64, u64) {
    (word(bytes, 0).unwrap_or(0), word(bytes, 8).unwrap_or(0))
}

/// The word at an offset.
pub fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Reads a word, if there is memory.
pub fn peek(memory: &dyn Memory, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    copy(memory, at, &mut bytes).then(|| u64::from_le_bytes(bytes))
}

/// Reads memory; false if not all of it is resident or swapped out.
pub fn copy(memory: &dyn Memory, at: u64, into: &mut [u8]) -> bool {
    let page = page_size(memory);
    let Some(end) = at.checked_add(into.len() as u64).and_then(|end| end.checked_next_multiple_of(page)) else {
        return false;
    };
    let (start, mut runs) = (at & !(page - 1), Vec::new());
    memory.resident(start..end, &mut runs);
    let covered: u64 = runs.iter().map(|run| overlap(&run.range, &(start..end))).sum();
    covered == end - start && memory.read(at, into).is_ok()
}

/// Resident bytes of a range.
pub fn resident(memory: &dyn Memory, range: Range<u64>) -> u64 {
    held(memory, range).0
}

/// Resident and swapped bytes of a range. Long ranges are requested in parts, so that the answers stay short.
pub fn held(memory: &dyn Memory, range: Range<u64>) -> (u64, u64) {
    const PART: u64 = 64 << 20;
    let (page, mut runs, mut sums) = (page_size(memory), Vec::new(), (0, 0));
    let mut at = range.start;
    while at < range.end {
        let to = (at & !(PART - 1)).saturating_add(PART).min(range.end);
        runs.clear();
        memory.resident(at & !(page - 1)..to.checked_next_multiple_of(page).unwrap_or(to), &mut runs);
        for run in &runs {
            *if run.swapped { &mut sums.1 } else { &mut sums.0 } += overlap(&run.range, &(at..to));
        }
        at = to;
    }
    sums
}

/// Bytes in both ranges.
pub fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// The size of an OS page, if the implementation says a power of two; else the usual one.
pub fn page_size(memory: &dyn Memory) -> u64 {
    let page = memory.page_size();
    if page.is_power_of_two() && (1 << 12..=1 << 20).contains(&page) { page } else { 4096 }
}
