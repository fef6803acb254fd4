//! Stacks: which part is in use, which part was only touched before, and where the thread's own record is.
//!
//! A stack of glibc is a mapping with the thread's record at the top; below it are thread-local storage and the stack.
//! From glibc 2.42 on a guard is a mark in the page table, so adjacent stacks are one mapping, with guards inside. The
//! record is recognised by its first and third word, which are its own address (`tcbhead_t`: `tcb`, `self`).

use crate::memory::Process;
use neap_account::seen::{Mapping, Seen, StackUse, is_in};
use std::ops::Range;

/// How far below the end of a stack the record is searched.
const TOP: u64 = 8 << 10;

/// Adds the stacks of all threads that are not running at this moment.
pub fn read(seen: &mut Seen, memory: &Process) {
    let page = crate::sys::page_size();
    let mut stacks: Vec<(Range<u64>, StackUse)> = Vec::new();
    let (heaps, mut in_heaps) = (seen.heap_ranges(), 0);
    for thread in &seen.threads {
        let Some(pointer) = thread.stack_pointer else { continue };
        let at = seen.mappings.partition_point(|mapping| mapping.range.end <= pointer);
        let Some(mapping) = seen.mappings.get(at).filter(|mapping| mapping.range.contains(&pointer)) else { continue };
        if is_in(&heaps, pointer) {
            in_heaps += 1;
            continue;
        }
        let is_stack = mapping.is_nameless() || mapping.name == "[stack]" || mapping.name.starts_with("[anon:");
        if !is_stack
            || neap_account::is_go_heap(seen, mapping)
            || stacks.iter().any(|(known, _)| known.contains(&pointer))
        {
            continue;
        }
        let pieces = pieces(&mapping.range, &memory.guards(mapping.range.clone()));
        let Some(stack) = pieces.into_iter().find(|piece| piece.contains(&pointer)) else { continue };
        let local_from = record(memory, &stack, page).unwrap_or(stack.end).max(pointer);
        let from = pointer & !(page - 1);
        let top = (local_from & !(page - 1)).max(from);
        let of = StackUse {
            start: mapping.range.start,
            used: memory.resident_bytes(from..top),
            below: memory.resident_bytes(stack.start..from),
            local: memory.resident_bytes(top..stack.end),
        };
        stacks.push((stack, of));
    }
    seen.stacks = stacks.into_iter().map(|(_, of)| of).collect();
    seen.stacks_in_heaps = in_heaps;
    if seen.stacks.len() + (in_heaps as usize) < seen.threads.len() {
        seen.stack_mappings = of_running(seen, memory, &heaps, page);
    }
}

/// The parts of a range between guards.
fn pieces(range: &Range<u64>, guards: &[Range<u64>]) -> Vec<Range<u64>> {
    let starts = std::iter::once(range.start).chain(guards.iter().map(|guard| guard.end));
    let ends = guards.iter().map(|guard| guard.start).chain([range.end]);
    starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end).collect()
}

/// The mappings of which most is stacks, by the guards in them and the records of threads; stacks of running threads
/// cannot be found otherwise, because adjacent ones with such guards are one mapping.
fn of_running(seen: &Seen, memory: &Process, heaps: &[Range<u64>], page: u64) -> Vec<u64> {
    let may_be = |mapping: &&Mapping| {
        let is_known = seen.stacks.iter().any(|of| of.start == mapping.range.start);
        mapping.is_nameless() && mapping.write && mapping.figures.rss > 0 && !is_known
    };
    let is_most_stacks = |mapping: &&Mapping| {
        let guards = memory.guards(mapping.range.clone());
        if guards.is_empty() || is_in(heaps, mapping.range.start) {
            return false;
        }
        let pieces = pieces(&mapping.range, &guards).into_iter();
        let stacks = pieces.filter(|piece| record(memory, piece, page).is_some());
        stacks.map(|piece| memory.resident_bytes(piece)).sum::<u64>() > mapping.figures.rss / 2
    };
    seen.mappings.iter().filter(may_be).filter(is_most_stacks).map(|mapping| mapping.range.start).collect()
}

/// The address of the thread's record below the end of its stack.
fn record(memory: &Process, stack: &Range<u64>, page: u64) -> Option<u64> {
    let end = stack.end;
    let start = end.saturating_sub(TOP.max(page)).max(stack.start);
    let mut bytes = vec![0; (end - start) as usize];
    // OS pages that were never touched must not be read.
    if memory.resident_bytes(start..end) < end - start || !memory.copy(start, &mut bytes) {
        let last = (bytes.len() as u64).checked_sub(page)? as usize;
        if memory.resident_bytes(end - page..end) < page || !memory.copy(end - page, &mut bytes[last..]) {
            return None;
        }
    }
    find(start, &bytes)
}

fn find(start: u64, bytes: &[u8]) -> Option<u64> {
    let words = bytes.as_chunks::<8>().0;
    let word = |at: usize| words.get(at).map(|word| u64::from_ne_bytes(*word));
    let is_record = |at: &usize| {
        let address = start + 8 * *at as u64;
        address.is_multiple_of(64) && word(*at) == Some(address) && word(at + 2) == Some(address)
    };
    (0..words.len()).find(is_record).map(|at| start + 8 * at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a guard that counts as stack, and memory beside guards that is lost.
    #[test]
    fn guards_divide() {
        assert_eq!(pieces(&(10..90), &[]), vec![10..90]);
        assert_eq!(pieces(&(10..90), &[10..12, 40..42, 88..90]), vec![12..40, 42..88]);
        assert_eq!(pieces(&(10..90), &[20..30, 50..60]), vec![10..20, 30..50, 60..90]);
    }

    /// Catches records that are not found, and other words that are taken for one.
    #[test]
    fn records_are_found() {
        let mut bytes = vec![0; 4096];
        assert_eq!(find(0x10000, &bytes), None);
        bytes[1792..1800].copy_from_slice(&0x10700u64.to_ne_bytes());
        assert_eq!(find(0x10000, &bytes), None);
        bytes[1808..1816].copy_from_slice(&0x10700u64.to_ne_bytes());
        assert_eq!(find(0x10000, &bytes), Some(0x10700));
    }
}
