//! musl's mallocng, since musl 1.2.1: found by its context, whose first word is the secret that is also in each area of
//! records.
//!
//! Blocks are in *groups* of at most 32 slots of one size. Each group has a record, with a bit for each slot that is
//! available (never used) or freed. A group has its own mappings, or is a slot of a larger group. Records are in areas
//! of one OS page.

use crate::data::{data, read};
use crate::jemalloc::{joined, part};
use crate::window::{copy, overlap, page_size, peek, word};
use crate::{Amount, Files, Heap, Mapping, Memory, Run, Split};
use std::collections::HashSet;
use std::ops::Range;

/// Unit of sizes; bytes of a group's header.
const UNIT: u64 = 16;
/// Bytes of an area of records, of its header, and of a record.
const AREA: (u64, usize, usize) = (4096, 24, 40);
/// Offset of the first area in the context.
const FIRST: u64 = 56;
/// Limit on areas.
const MOST: usize = 1 << 20;
/// Sizes of slots in units, by class.
const CLASSES: [u64; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204, 255, 292,
    340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460, 6552, 8191,
];

/// The heaps of all copies of musl in a process.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], _: &dyn Files) -> Vec<Heap> {
    let mut heaps = Vec::new();
    for (mapping, range) in data(mappings) {
        let bytes = read(memory, range);
        let first = (0..bytes.len().saturating_sub(80)).step_by(8).find_map(|at| {
            let (secret, state) = (word(&bytes, at)?, word(&bytes, at + 8)?);
            let (first, last) = (word(&bytes, at + FIRST as usize)?, word(&bytes, at + FIRST as usize + 8)?);
            let are_areas = [first, last].iter().all(|area| *area != 0 && area.is_multiple_of(AREA.0));
            let is_ready = state & 0xffff_ffff == 1 && secret != 0;
            (is_ready && are_areas && peek(memory, first) == Some(secret) && peek(memory, last) == Some(secret))
                .then_some((first, secret))
        });
        if let Some((first, secret)) = first {
            heaps.push(heap(memory, mappings, mapping, first, secret));
        }
    }
    heaps
}

/// Slots of one size.
struct Group {
    range: Range<u64>,
    slot: u64,
    slots: u32,
    /// Bits of slots without a block.
    unused: u32,
    /// Whether it has mappings of its own.
    is_mapped: bool,
    /// Bits of slots that hold another group.
    nested: u32,
    /// The slot of another group that holds it; otherwise the group's own memory.
    around: Range<u64>,
}

impl Group {
    fn parse(record: &[u8]) -> Option<Group> {
        let (start, masks, bits) = (word(record, 16)?, word(record, 24)?, word(record, 32)?);
        let (last, class, pages) = ((bits & 31) as u32, bits >> 6 & 63, bits >> 12);
        if start == 0 || !start.is_multiple_of(UNIT) || start >= 1 << 47 || pages > 1 << 34 {
            return None;
        }
        // A class above all others is one block.
        let slot = if last == 0 && pages != 0 { pages * 4096 - UNIT } else { UNIT * CLASSES.get(class as usize)? };
        let length = if pages != 0 { pages * 4096 } else { UNIT + slot * u64::from(last + 1) };
        let all = if last == 31 { u32::MAX } else { (1 << (last + 1)) - 1 };
        let unused = (masks as u32 | (masks >> 32) as u32) & all;
        let slots = last + 1;
        let range = start..start + length;
        Some(Group { around: range.clone(), range, slot, slots, unused, is_mapped: pages != 0, nested: 0 })
    }

    /// The slot at an address.
    fn slot_at(&self, address: u64) -> Option<u32> {
        let slot = address.checked_sub(self.range.start + UNIT)? / self.slot;
        (slot < u64::from(self.slots)).then_some(slot as u32)
    }
}

fn heap(memory: &dyn Memory, mappings: &[Mapping], mapping: &Mapping, first: u64, secret: u64) -> Heap {
    let mut heap =
        Heap { allocator: "musl".to_string(), library: mapping.file().map(str::to_string), ..Heap::default() };
    let (mut groups, mut areas, mut at) = (Vec::new(), Vec::new(), first);
    let (mut bytes, mut seen) = (vec![0; AREA.0 as usize], HashSet::new());
    while at != 0 && areas.len() < MOST {
        // Each area must lead to a new one.
        if !seen.insert(at)
            || !at.is_multiple_of(AREA.0)
            || !copy(memory, at, &mut bytes)
            || word(&bytes, 0) != Some(secret)
        {
            heap.doubts.push("some records could not be read".to_string());
            break;
        }
        areas.push(at..at + AREA.0);
        groups.extend(bytes[AREA.1..].chunks_exact(AREA.2).filter_map(Group::parse));
        at = word(&bytes, 8).unwrap_or(0);
    }
    let counted = nest(&mut groups, mappings);
    let (mut split, mut ranges) = (Split::default(), areas.clone());
    let own = areas.iter().map(|area| crate::window::resident(memory, area.clone())).sum();
    split.metadata = Amount { blocks: areas.len() as u64, bytes: AREA.0 * areas.len() as u64, resident: own };
    for group in counted.iter().map(|number| &groups[*number]) {
        if group.is_mapped {
            ranges.push(group.range.clone());
        }
        count(memory, group, &mut split);
    }
    heap.parts.push(part(memory, "groups".to_string(), joined(ranges), Some(split)));
    heap
}

/// Finds which groups are in slots of other groups. Returns the groups that count: those with mappings of their own,
/// and those in them.
fn nest(groups: &mut Vec<Group>, mappings: &[Mapping]) -> Vec<usize> {
    // Each group after the one that holds it.
    groups.sort_by_key(|group: &Group| (group.range.start, std::cmp::Reverse(group.range.end)));
    groups.retain(|group| {
        let after = mappings.partition_point(|mapping| mapping.range.start <= group.range.start);
        after.checked_sub(1).is_some_and(|at| mappings[at].private && group.range.start < mappings[at].range.end)
    });
    let (mut holders, mut counted): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for number in 0..groups.len() {
        let start = groups[number].range.start;
        while holders.last().is_some_and(|holder| groups[*holder].range.end <= start) {
            holders.pop();
        }
        let is_counted = match holders.last() {
            None => groups[number].is_mapped,
            Some(holder) => {
                let is_mapped = groups[number].is_mapped;
                let holder = &mut groups[*holder];
                let slot = holder.slot_at(start).filter(|slot| !is_mapped && holder.nested & 1 << slot == 0);
                if let Some(slot) = slot {
                    holder.nested |= 1 << slot;
                    let start = holder.range.start + UNIT + holder.slot * u64::from(slot);
                    let end = (start + holder.slot).min(holder.range.end);
                    groups[number].around = start..end;
                }
                slot.is_some() && groups[number].range.end <= groups[number].around.end
            }
        };
        // Groups in the program's data are not in mappings of the heap.
        if is_counted {
            counted.push(number);
            holders.push(number);
        }
    }
    counted
}

/// Counts the slots of a group. The group that holds a nested group does not count its slot.
fn count(memory: &dyn Memory, group: &Group, split: &mut Split) {
    let (mut runs, page) = (Vec::new(), page_size(memory));
    let around = group.around.start & !(page - 1)..group.around.end.next_multiple_of(page);
    memory.resident(around, &mut runs);
    let held = |range: Range<u64>| -> u64 {
        let resident = |run: &&Run| !run.swapped;
        runs.iter().filter(resident).map(|run| overlap(&run.range, &range)).sum()
    };
    let header = group.around.start..group.range.start + UNIT;
    split.metadata.add(&Amount { blocks: 0, bytes: header.end - header.start, resident: held(header) });
    for slot in 0..group.slots {
        let start = group.range.start + UNIT + group.slot * u64::from(slot);
        let end = (start + group.slot).min(group.around.end);
        let amount = Amount { blocks: 1, bytes: end.saturating_sub(start), resident: held(start..end.max(start)) };
        let bit = 1 << slot;
        if group.nested & bit != 0 {
            // The group in it is counted instead.
            continue;
        }
        if group.unused & bit != 0 {
            split.free.add(&amount);
            split.largest_free_bytes = split.largest_free_bytes.max(amount.bytes);
            let whole = start.next_multiple_of(page)..end & !(page - 1);
            split.kept_bytes += if whole.start < whole.end { held(whole) } else { 0 };
        } else {
            split.live.add(&amount);
        }
    }
    // The rest after the last slot.
    let used = group.range.start + UNIT + group.slot * u64::from(group.slots);
    if used < group.around.end {
        let rest = used..group.around.end;
        split.free.add(&Amount { blocks: 0, bytes: rest.end - rest.start, resident: held(rest) });
    }
}
