//! Stacks: which part is in use, which part was only touched before, and where the thread's own record is.
//!
//! A stack of glibc is a mapping with the thread's record at the top; below it are thread-local storage and the stack.
//! The record is recognised by its first and third word, which are its own address (`tcbhead_t`: `tcb`, `self`).

use crate::memory::Process;
use neap_account::seen::{Seen, StackUse, is_in};

/// How far below the end of a stack the record is searched.
const TOP: u64 = 8 << 10;

/// Adds the stacks of all threads that are not running at this moment.
pub fn read(seen: &mut Seen, memory: &Process) {
    let page = crate::sys::page_size();
    let mut stacks: Vec<StackUse> = Vec::new();
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
            || stacks.iter().any(|known| known.start == mapping.range.start)
        {
            continue;
        }
        let local_from = record(memory, mapping.range.end, page).unwrap_or(mapping.range.end).max(pointer);
        let from = pointer & !(page - 1);
        let top = (local_from & !(page - 1)).max(from);
        stacks.push(StackUse {
            start: mapping.range.start,
            used: memory.resident_bytes(from..top),
            below: memory.resident_bytes(mapping.range.start..from),
            local: memory.resident_bytes(top..mapping.range.end),
        });
    }
    seen.stacks = stacks;
    seen.stacks_in_heaps = in_heaps;
}

/// The address of the thread's record below the end of its stack.
fn record(memory: &Process, end: u64, page: u64) -> Option<u64> {
    let start = end - TOP.max(page);
    let mut bytes = vec![0; (end - start) as usize];
    // OS pages that were never touched must not be read.
    if memory.resident_bytes(start..end) < end - start || !memory.copy(start, &mut bytes) {
        let last = (bytes.len() as u64 - page) as usize;
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
