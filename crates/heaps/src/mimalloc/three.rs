//! mimalloc 3: arenas of slices of 64 KiB, anywhere. Pages have records at the front of their first slice, or in a
//! table at the front of the arena.
//!
//! A record says from which arena its page is, and which slices of it the page has. The arena begins with its own
//! address and size. So a record is recognised by its page, which must begin in these slices, whatever the address is.

use crate::data::read;
use crate::mimalloc::page::{FRONT, Page, SLICE};
use crate::window::{PIECE, copy, word};
use crate::{Mapping, Memory, Run};
use std::ops::Range;

/// Bytes of a record that are read.
const RECORD: usize = 128;
/// Slices at the front of a mapping, or behind an arena, in which the record of an arena is searched.
const SEARCHED: u64 = 64;
/// Bytes of a group of slices (3.6), and of the table at its front.
const GROUP: u64 = 256 << 20;
const TABLE: u64 = 512 << 10;
/// The smallest arena.
const LEAST: u64 = 4 << 20;
/// What memory of an arena, and of a page of an arena, comes from, in all versions.
const KINDS: std::ops::RangeInclusive<u64> = 1..=7;
const IN_ARENA: std::ops::RangeInclusive<u64> = 6..=7;

/// How a record says where the blocks begin, 48 bytes behind its front.
enum Start {
    /// The address.
    Address,
    /// The distance from the record, in units of so many bytes.
    Distance(u64),
}
const START: usize = 48;

/// Where a version has the other fields of a record: offsets in bytes.
struct Layout {
    block: usize,
    /// Numbers of blocks, of 16 bits each: used, with memory, in all.
    used: usize,
    capacity: usize,
    reserved: usize,
    start: Start,
    /// The list of blocks that other threads have freed.
    freed: usize,
    /// The arena, the index of the first slice (32 bits), and the number of slices (32 bits).
    origin: usize,
}

/// 3.0 to 3.3; 3.4; 3.6.
static LAYOUTS: [Layout; 3] = [
    Layout { block: 40, used: 16, capacity: 18, reserved: 20, start: Start::Address, freed: 32, origin: 96 },
    Layout { block: 40, used: 16, capacity: 18, reserved: 20, start: Start::Distance(8), freed: 32, origin: 88 },
    Layout { block: 32, used: 40, capacity: 56, reserved: 58, start: Start::Distance(1), freed: 64, origin: 104 },
];

/// An arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Where it is, as far as it is mapped with access.
    pub range: Range<u64>,
    /// The address of its record.
    at: u64,
}

/// A record of a page.
struct Record {
    page: Page,
    arena: u64,
    slices: Range<u64>,
}

fn half(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
}

impl Record {
    /// The record at an address; `bytes` begin there.
    fn parse(bytes: &[u8], address: u64, layout: &Layout) -> Option<Record> {
        let (block, origin) = (word(bytes, layout.block)?, layout.origin);
        if !(8..1 << 44).contains(&block) || !block.is_multiple_of(8) {
            return None;
        }
        let (arena, slices, kind) = (word(bytes, origin)?, word(bytes, origin + 8)?, word(bytes, origin + 16)?);
        let (first, count) = (slices & 0xffff_ffff, slices >> 32);
        let [used, capacity, reserved] = [layout.used, layout.capacity, layout.reserved].map(|at| half(bytes, at));
        let (used, capacity, reserved) = (used?, capacity?, reserved?);
        let start = match layout.start {
            Start::Address => word(bytes, START)?,
            Start::Distance(unit) => address.checked_add(word(bytes, START)?.checked_mul(unit)?)?,
        };
        let fits = IN_ARENA.contains(&(kind & 0xffff_ffff))
            && arena.is_multiple_of(SLICE)
            && count > 0
            && used <= capacity
            && capacity <= reserved
            && capacity > 0
            && reserved.checked_mul(block)? <= count * SLICE;
        let page = Page { start, block, used, reserved, freed: word(bytes, layout.freed)? };
        fits.then_some(Record { page, arena, slices: first..first + count })
    }

    /// Whether its page is where it says, in an arena that begins at `base`.
    fn is_in(&self, base: u64) -> bool {
        let slice = |number: u64| base.checked_add(number.checked_mul(SLICE)?);
        let (Some(from), Some(to)) = (slice(self.slices.start), slice(self.slices.end)) else { return false };
        from <= self.page.start
            && self.page.start < to
            && self.page.start.saturating_add(self.page.block * self.page.reserved) <= to
    }
}

/// The arenas in a mapping, by their records. Only their pages show that they are arenas.
pub fn arenas(memory: &dyn Memory, mapping: &Mapping) -> Vec<Arena> {
    let (mut all, mut at, mut left) = (Vec::new(), mapping.range.start.next_multiple_of(SLICE), SEARCHED);
    while at < mapping.range.end && left > 0 {
        match arena(memory, at, &mapping.range) {
            Some(arena) => {
                (at, left) = (arena.range.end.next_multiple_of(SLICE), SEARCHED);
                all.push(arena);
            }
            None => (at, left) = (at + SLICE, left - 1),
        }
    }
    all
}

/// The arena with a record at an address: its own range and origin.
fn arena(memory: &dyn Memory, at: u64, mapping: &Range<u64>) -> Option<Arena> {
    let mut bytes = [0; 24];
    if !copy(memory, at, &mut bytes) {
        return None;
    }
    let [base, size, kind] = [0, 8, 16].map(|field| word(&bytes, field).unwrap_or(0));
    let whole = base..base.checked_add(size)?;
    let fits = size >= LEAST
        && size.is_multiple_of(SLICE)
        && base.is_multiple_of(SLICE)
        && KINDS.contains(&(kind & 0xffff_ffff))
        && whole.contains(&at)
        && mapping.contains(&base);
    fits.then(|| Arena { range: base..whole.end.min(mapping.end), at })
}

/// The pages of an arena, and the end of its own records at its front; none if it has no page.
pub fn pages(memory: &dyn Memory, arena: &Arena, most: usize) -> Option<(Vec<Page>, u64)> {
    let mut runs = Vec::new();
    memory.resident(arena.range.clone(), &mut runs);
    let of = |layout| records(memory, arena, layout, &runs);
    let mut found = LAYOUTS.iter().map(of).max_by_key(Vec::len).filter(|all| !all.is_empty())?;
    found.truncate(most);
    let front = found.iter().map(|record| record.slices.start).min().unwrap_or(0);
    let pages = found.into_iter().map(|record| record.page).collect();
    Some((pages, arena.range.start + front * SLICE))
}

/// The records of an arena.
fn records(memory: &dyn Memory, arena: &Arena, layout: &Layout, runs: &[Run]) -> Vec<Record> {
    let range = &arena.range;
    let front = |record: &Record| range.start + record.slices.start * SLICE;
    let parse = |bytes: &[u8], address: u64| {
        let fits = |of: &Record| {
            of.arena == arena.at && of.is_in(range.start) && range.start + of.slices.end * SLICE <= range.end
        };
        Record::parse(bytes, address, layout).filter(fits)
    };
    // At the fronts of slices; what follows the first slice of a page is the program's data.
    let (mut found, mut at) = (Vec::new(), range.start);
    for run in runs {
        at = at.max(run.range.start.next_multiple_of(SLICE));
        while at.saturating_add(RECORD as u64) <= run.range.end.min(range.end) {
            let mut bytes = [0; RECORD];
            let is_read = memory.read(at, &mut bytes).is_ok();
            match is_read.then(|| parse(&bytes, at)).flatten().filter(|record| front(record) == at) {
                Some(record) => {
                    at += (record.slices.end - record.slices.start) * SLICE;
                    found.push(record);
                }
                None => at += SLICE,
            }
        }
    }
    // In tables, at the front of each group of slices. The first ends where the first page begins.
    let first = found.iter().map(front).min().unwrap_or(range.end).min(range.start.saturating_add(FRONT));
    for group in (range.start..range.end).step_by(GROUP as usize) {
        let mut end = if group == range.start { first } else { group + TABLE };
        for run in runs {
            let part = run.range.start.max(group)..run.range.end.min(end);
            for piece in (part.start..part.end).step_by(PIECE as usize) {
                // A record may cross the end of a piece.
                let bytes = read(memory, piece..part.end.min(piece + PIECE + RECORD as u64));
                for at in (0..bytes.len().min(PIECE as usize)).step_by(8) {
                    let address = piece + at as u64;
                    if let Some(record) = parse(&bytes[at..], address).filter(|of| address < end && front(of) > address)
                    {
                        end = end.min(front(&record));
                        found.push(record);
                    }
                }
            }
        }
    }
    found
}
