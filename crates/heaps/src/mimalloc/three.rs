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
/// What the memory of a page of its own comes from: the system.
const OF_SYSTEM: std::ops::RangeInclusive<u64> = 1..=5;
/// Where the record of a page of its own is, from the front of its memory.
const OWN: [usize; 2] = [0, 128];

/// How a record says where the blocks begin.
enum Start {
    /// The address.
    Address,
    /// The distance from the record, in units of so many bytes.
    Distance(u64),
}

/// Where a version has the fields of a record: offsets in bytes.
struct Layout {
    block: usize,
    /// Numbers of blocks, of 16 bits each: used, with memory, in all.
    numbers: [usize; 3],
    start: (usize, Start),
    /// The list of blocks that other threads have freed.
    freed: usize,
    /// The arena, the index of the first slice (32 bits), and the number of slices (32 bits).
    origin: usize,
}

/// 3.0 to 3.3; 3.4; 3.6; the copy in bun 1.4.
static LAYOUTS: [Layout; 4] = [
    Layout { block: 40, numbers: [16, 18, 20], start: (48, Start::Address), freed: 32, origin: 96 },
    Layout { block: 40, numbers: [16, 18, 20], start: (48, Start::Distance(8)), freed: 32, origin: 88 },
    Layout { block: 32, numbers: [40, 56, 58], start: (48, Start::Distance(1)), freed: 64, origin: 104 },
    Layout { block: 32, numbers: [16, 48, 50], start: (40, Start::Distance(1)), freed: 56, origin: 96 },
];

/// An arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Where it is, as far as it is mapped with access.
    pub range: Range<u64>,
    /// The address of its record.
    at: u64,
    /// Slices at its front with its own records, if its record says that besides its size: then it is an arena even if
    /// it has no page.
    own: Option<u64>,
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

/// Memory with one page, for a block that is too large for an arena.
pub struct Single {
    pub range: Range<u64>,
    pub page: Page,
}

/// The page of a record at an address; `bytes` begin there.
fn page(bytes: &[u8], address: u64, layout: &Layout) -> Option<Page> {
    let block = word(bytes, layout.block)?;
    let [used, capacity, reserved] = layout.numbers.map(|at| half(bytes, at));
    let (used, capacity, reserved) = (used?, capacity?, reserved?);
    let start = word(bytes, layout.start.0)?;
    let start = match layout.start.1 {
        Start::Address => start,
        Start::Distance(unit) => address.checked_add(start.checked_mul(unit)?)?,
    };
    let fits = (8..1 << 44).contains(&block) && block.is_multiple_of(8) && used <= capacity && capacity <= reserved;
    (fits && capacity > 0).then_some(Page { start, block, used, reserved, freed: word(bytes, layout.freed)? })
}

/// Where the memory of a record's page comes from: two words, and the kind.
fn origin(bytes: &[u8], layout: &Layout) -> Option<(u64, u64, u64)> {
    let at = layout.origin;
    Some((word(bytes, at)?, word(bytes, at + 8)?, word(bytes, at + 16)? & 0xffff_ffff))
}

impl Single {
    /// The one whose memory begins at `base`, if it does; `bytes` begin there.
    fn parse(bytes: &[u8], base: u64) -> Option<Single> {
        let of = |(at, layout): (usize, &Layout)| {
            let bytes = bytes.get(at..)?;
            let (from, size, kind) = origin(bytes, layout)?;
            let page = page(bytes, base + at as u64, layout)?;
            let end = page.block.checked_mul(page.reserved).and_then(|bytes| page.start.checked_add(bytes))?;
            let fits = from == base && OF_SYSTEM.contains(&kind) && size.is_multiple_of(SLICE);
            let range = base..base.checked_add(size)?;
            (fits && page.used > 0 && page.start > base && end <= range.end).then_some(Single { range, page })
        };
        OWN.into_iter().flat_map(|at| LAYOUTS.iter().map(move |layout| (at, layout))).find_map(of)
    }
}

impl Record {
    /// The record at an address; `bytes` begin there.
    fn parse(bytes: &[u8], address: u64, layout: &Layout) -> Option<Record> {
        let page = page(bytes, address, layout)?;
        let (arena, slices, kind) = origin(bytes, layout)?;
        let (first, count) = (slices & 0xffff_ffff, slices >> 32);
        let fits = IN_ARENA.contains(&kind)
            && arena.is_multiple_of(SLICE)
            && count > 0
            && page.reserved.checked_mul(page.block)? <= count * SLICE;
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

/// The arenas in a mapping, and the pages of their own, by their records. Pages show that something is an arena, or the
/// number of its slices.
pub fn search(memory: &dyn Memory, mapping: &Mapping) -> (Vec<Arena>, Vec<Single>) {
    let (mut arenas, mut singles) = (Vec::new(), Vec::new());
    let (mut at, mut left) = (mapping.range.start.next_multiple_of(SLICE), SEARCHED);
    while at < mapping.range.end && left > 0 {
        let mut bytes = [0; OWN[1] + RECORD];
        let is_read = copy(memory, at, &mut bytes);
        let end = if let Some(arena) = is_read.then(|| Arena::parse(&bytes, at, &mapping.range)).flatten() {
            arenas.push(arena);
            arenas.last().map(|arena| arena.range.end)
        } else if let Some(single) = is_read.then(|| Single::parse(&bytes, at)).flatten() {
            singles.push(single);
            singles.last().map(|single| single.range.end)
        } else {
            None
        };
        (at, left) = end.map_or((at + SLICE, left - 1), |end| (end.next_multiple_of(SLICE), SEARCHED));
    }
    (arenas, singles)
}

impl Arena {
    /// The arena with a record at an address, where `bytes` begin: its own range and origin.
    fn parse(bytes: &[u8], at: u64, mapping: &Range<u64>) -> Option<Arena> {
        // 3.0 to 3.6 have the number of slices, and that of their own slices behind it, in one of these words.
        const NUMBERS: Range<usize> = 4..8;
        let number = |at: usize| word(bytes, 8 * at).unwrap_or(0);
        let [base, size, kind] = [0, 1, 2].map(number);
        let whole = base..base.checked_add(size)?;
        let fits = size >= LEAST
            && size.is_multiple_of(SLICE)
            && base.is_multiple_of(SLICE)
            && KINDS.contains(&(kind & 0xffff_ffff))
            && whole.contains(&at)
            && mapping.contains(&base);
        let is_whole =
            |at: &usize| number(*at).checked_mul(SLICE) == Some(size) && (1..number(*at)).contains(&number(at + 1));
        let own = NUMBERS.clone().find(is_whole).map(|at| number(at + 1));
        fits.then(|| Arena { range: base..whole.end.min(mapping.end), at, own })
    }
}

/// The pages with blocks in use, and the end of the arena's own records at its front; none if it does not look like an
/// arena. A page without such blocks may be an old record: its memory may have another page now.
pub fn pages(memory: &dyn Memory, arena: &Arena, most: usize) -> Option<(Vec<Page>, u64)> {
    let mut runs = Vec::new();
    memory.resident(arena.range.clone(), &mut runs);
    let of = |layout| records(memory, arena, layout, &runs);
    let found = LAYOUTS.iter().map(of).max_by_key(Vec::len).unwrap_or_default();
    let front = found.iter().map(|record| record.slices.start).min().or(arena.own)?;
    let pages = found.into_iter().map(|record| record.page).filter(|page| page.used > 0).take(most).collect();
    Some((pages, arena.range.end.min(arena.range.start + front * SLICE)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes with words at these places.
    fn bytes(words: &[(usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; OWN[1] + RECORD];
        for (at, word) in words {
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Catches an arena without pages that is not recognised, and other memory that is: those of 3.0, 3.4 and 3.6 as they
    /// were read from processes, and one without the number of its slices.
    #[test]
    fn arenas_without_pages() {
        const BASE: u64 = 0x31_5460_0000;
        let mapping = BASE..BASE + (1 << 30);
        let of = |numbers: &[(usize, u64)]| {
            let head = [(0, BASE), (1, 1 << 30), (2, 0x101_0000_0004), (3, 0x7fb7_7e50_60c0)];
            Arena::parse(&bytes(&[&head[..], numbers].concat()), BASE, &mapping).map(|arena| arena.own)
        };
        assert_eq!(of(&[(4, 0x4000), (5, 3)]), Some(Some(3)));
        assert_eq!(of(&[(5, 0x4000), (6, 0x1f)]), Some(Some(0x1f)));
        assert_eq!(of(&[(5, BASE), (6, 0x4000), (7, 0xb)]), Some(Some(0xb)));
        assert_eq!(of(&[(5, 0x4000), (6, 0)]), Some(None));
        assert_eq!(Arena::parse(&bytes(&[(0, BASE), (1, 1 << 20)]), BASE, &mapping), None);
    }

    /// Catches records of bun's copy that are not recognised, or that are taken for another version's: one as it was read
    /// from bun 1.4.5.
    #[test]
    fn records_of_bun() {
        const BASE: u64 = 0x30d_b6c0_0000;
        const AT: u64 = BASE + 0x5488;
        let bytes = bytes(&[
            (0, 0x7efc_a116_9f00),
            (1, 0x30d_b6ed_e020),
            (2, 0x7f3_0000_07f3),
            (4, 0x20),
            (5, 0x2c_ac98),
            (6, 0x7f7_07f7),
            (7, 1),
            (12, BASE),
            (13, 0x1_0000_002d),
            (14, 0x101_0000_0006),
        ]);
        let found: Vec<_> = LAYOUTS.iter().filter_map(|layout| Record::parse(&bytes, AT, layout)).collect();
        let [record] = &found[..] else { panic!("{} records", found.len()) };
        assert!(record.is_in(BASE) && record.arena == BASE && record.slices == (0x2d..0x2e));
        assert_eq!((record.page.used, record.page.reserved, record.page.block), (0x7f3, 0x7f7, 0x20));
    }

    /// Catches a block outside of arenas that is not found, as it was read from 3.6, and one without a used block.
    #[test]
    fn pages_of_their_own() {
        const BASE: u64 = 0x5ab_7000_0000;
        let of = |used: u64| {
            let words = [
                (16 + 4, 0x1000_0000),
                (16 + 5, used),
                (16 + 6, 0x1_0d80),
                (16 + 7, 0x100_0000_0001_0001),
                (16 + 13, BASE),
                (16 + 14, 0x1040_0000),
                (16 + 15, 0x101_0000_0003),
            ];
            Single::parse(&bytes(&words), BASE).map(|single| (single.range, single.page.start))
        };
        assert_eq!(of(1), Some((BASE..BASE + 0x1040_0000, BASE + 0x80 + 0x1_0d80)));
        assert_eq!(of(0), None);
    }
}
