//! Stacks: where they are, which part is in use, and where the thread's own record is.
//!
//! The record of a thread is above its stack. glibc's begins with its own address, twice (`tcbhead_t`: `tcb`, `self`),
//! musl's once (`struct pthread`: `self`); both have the thread's number further on, and two words that say where the stack
//! is and how large (`stackblock`, `stackblock_size`; `map_base`, `map_size`). So a stack is known by its record, whatever
//! is mapped beside it. In glibc's record a node of the list of all threads is right before the number (`list_t list;
//! pid_t tid`), which leads to the records of threads that run, whose stack pointers the kernel does not show.
//!
//! A stack without a record (of a coroutine, or on processors where the record does not have its address) counts only
//! above a guard.

use crate::memory::Process;
use neap_account::seen::{Mapping, Seen, StackUse, Thread, is_in};
use std::collections::HashSet;
use std::ops::Range;

/// How far above a stack pointer the record is searched.
const FAR: u64 = 16 << 20;
/// Limit on the parts of memory at whose ends a record is searched.
const REGIONS: usize = 4096;
/// Bytes in one read.
const STEP: u64 = 64 << 10;
/// Bytes of a record that are read.
const RECORD: usize = 0xa00;
/// Words of it before the number of the thread, at most.
const BEFORE_TID: usize = 0x400 / 8;
/// A larger guard is not one of a stack's.
const GUARD: u64 = 1 << 20;

/// Adds the stacks of all threads.
pub fn read(seen: &mut Seen, memory: &Process) {
    let heaps = seen.heap_ranges();
    let live = seen.threads.iter().map(|thread| thread.tid).collect();
    let mut search =
        Search { seen, memory, heaps, stacks: Vec::new(), done: HashSet::new(), live, in_heaps: 0, node: None };
    for thread in &search.seen.threads.iter().collect::<Vec<_>>() {
        search.stopped(thread);
    }
    search.running();
    let (mut stacks, in_heaps) = (search.stacks, search.in_heaps);
    stacks.sort_by_key(|of| of.range.start);
    stacks.dedup_by(|next, last| next.range.start < last.range.end);
    seen.stacks = stacks;
    seen.stacks_in_heaps = in_heaps;
}

struct Search<'a> {
    seen: &'a Seen,
    memory: &'a Process,
    heaps: Vec<Range<u64>>,
    stacks: Vec<StackUse>,
    /// Threads whose stack was found.
    done: HashSet<u32>,
    /// All threads.
    live: HashSet<u32>,
    /// Threads whose stack is a block of malloc.
    in_heaps: u32,
    /// A record, and where the number of its thread is in it.
    node: Option<(u64, u64)>,
}

impl<'a> Search<'a> {
    fn mapping(&self, address: u64) -> Option<(usize, &'a Mapping)> {
        let at = self.seen.mappings.partition_point(|mapping| mapping.range.end <= address);
        self.seen.mappings.get(at).filter(|mapping| mapping.range.contains(&address)).map(|mapping| (at, mapping))
    }

    /// Adds the stack of a thread whose stack pointer is known.
    fn stopped(&mut self, thread: &Thread) {
        let Some(pointer) = thread.stack_pointer else { return };
        let Some((at, mapping)) = self.mapping(pointer) else { return };
        self.done.insert(thread.tid);
        if is_in(&self.heaps, pointer) {
            self.in_heaps += 1;
            return;
        }
        if !(mapping.is_nameless() || mapping.name == "[stack]" || mapping.name.starts_with("[anon:"))
            || neap_account::is_go_heap(self.seen, mapping)
        {
            return;
        }
        if mapping.grows_down || mapping.name == "[stack]" {
            return self.add(thread.tid, mapping.range.clone(), Some(pointer), None, true);
        }
        let until = mapping.range.end.min(pointer.saturating_add(FAR));
        match self.record(pointer..until, thread.tid) {
            Some(record) => {
                let range = record.stack.clone().unwrap_or(pointer..record.at);
                let inside = range.start.max(mapping.range.start)..range.end.min(mapping.range.end);
                self.node = self.node.or(record.tid_at.map(|tid_at| (record.at, tid_at)));
                self.add(thread.tid, inside, Some(pointer), Some(record.at), true);
            }
            None if at.checked_sub(1).is_some_and(|before| is_guard(&self.seen.mappings[before], mapping)) => {
                self.add(thread.tid, mapping.range.clone(), Some(pointer), None, false);
            }
            None => {}
        }
    }

    /// Adds the stacks of threads that run, from the list of glibc's records or from records at the ends of mappings; and
    /// stacks that are kept for further threads.
    fn running(&mut self) {
        // The first thread is on the kernel's [stack].
        let is_missing = self.live.iter().any(|tid| *tid != self.seen.pid && !self.done.contains(tid));
        if self.node.is_none() && is_missing {
            self.node = self.first_record();
        }
        if let Some((record, tid_at)) = self.node
            && is_missing
        {
            self.follow(record, tid_at);
        }
        let known: HashSet<u64> =
            self.stacks.iter().filter_map(|of| Some(self.mapping(of.range.end - 1)?.1.range.start)).collect();
        for pair in self.seen.mappings.windows(2).filter(|pair| is_guard(&pair[0], &pair[1])) {
            let mapping = &pair[1];
            let is_free = mapping.is_nameless() && !known.contains(&mapping.range.start) && mapping.figures.rss > 0;
            if !is_free || is_in(&self.heaps, mapping.range.start) || neap_account::is_go_heap(self.seen, mapping) {
                continue;
            }
            let end = mapping.range.end;
            let top = end - (8 << 10).min(mapping.bytes())..end;
            let Some(record) = self.any_record(top) else { continue };
            let is_one = record.stack.as_ref().is_some_and(|stack| stack.end == end);
            if is_one && (record.tid == 0 || self.live.contains(&record.tid)) && !self.done.contains(&record.tid) {
                self.done.extend((record.tid != 0).then_some(record.tid));
                self.add(record.tid, mapping.range.clone(), None, Some(record.at), true);
            }
        }
    }

    /// A record at the end of a resident part of private memory, and where the number of its thread is in it: above a
    /// stack there is a guard or another stack, of which the lowest OS page is never touched.
    fn first_record(&self) -> Option<(u64, u64)> {
        let is_free = |of: &&Mapping| of.is_nameless() && of.write && !is_in(&self.heaps, of.range.start);
        let mappings = self.seen.mappings.iter().filter(is_free);
        let regions = mappings.flat_map(|of| self.memory.regions(of.range.clone())).filter(|region| !region.swapped);
        let tops = regions
            .map(|region| region.range.end - (8 << 10).min(region.range.end - region.range.start)..region.range.end);
        tops.take(REGIONS).find_map(|top| {
            let record = self.any_record(top).filter(|record| record.tid != 0)?;
            Some((record.at, record.tid_at?))
        })
    }

    /// Follows the list of all threads of glibc. Its head is in no record.
    fn follow(&mut self, first: u64, tid_at: u64) {
        let list = tid_at - 16;
        let mut node = first + list;
        for _ in 0..self.live.len() + 8 {
            let mut next = [0; 8];
            if !self.memory.copy(node, &mut next) {
                return;
            }
            node = u64::from_ne_bytes(next);
            if let Some(record) = node.checked_sub(list).and_then(|at| Record::at(self.memory, at, None)) {
                self.listed(&record, tid_at);
            }
            if node == first + list {
                return;
            }
        }
    }

    /// Adds the stack of a record in the list, if it is a thread's whose stack is not known yet.
    fn listed(&mut self, record: &Record, tid_at: u64) {
        let Some(tid) = record.number(self.memory, tid_at).filter(|tid| self.live.contains(tid)) else { return };
        let (Some(stack), Some((_, mapping))) = (record.stack.clone(), self.mapping(record.at)) else { return };
        if self.done.insert(tid) && mapping.is_nameless() && !is_in(&self.heaps, record.at) {
            let inside = stack.start.max(mapping.range.start)..stack.end.min(mapping.range.end);
            self.add(tid, inside, None, Some(record.at), true);
        }
    }

    /// Adds a stack: without a stack pointer its use is not known.
    fn add(&mut self, tid: u32, range: Range<u64>, pointer: Option<u64>, record: Option<u64>, is_sure: bool) {
        if range.start >= range.end {
            return;
        }
        let page = crate::sys::page_size();
        let top = record.unwrap_or(range.end) & !(page - 1);
        let from = pointer.map_or(range.start, |pointer| pointer & !(page - 1)).max(range.start);
        let top = top.clamp(from, range.end);
        let resident = |range: Range<u64>| self.memory.resident_bytes(range);
        let (above, local) = (resident(from..top), resident(top..range.end));
        let (used, below, unknown) = match pointer {
            Some(_) => (above, resident(range.start..from), 0),
            None => (0, 0, above),
        };
        self.stacks.push(StackUse { range, tid, is_sure, used, below, local, unknown });
    }

    /// The record of thread `tid` in a range: the first one.
    fn record(&self, range: Range<u64>, tid: u32) -> Option<Record> {
        self.search(range, |at| Record::at(self.memory, at, Some(tid)))
    }

    /// A record of any thread, or of one that has ended, in a range.
    fn any_record(&self, range: Range<u64>) -> Option<Record> {
        self.search(range, |at| {
            let record = Record::at(self.memory, at, None)?;
            let words = record.words.as_chunks::<4>().0.iter().take(2 * BEFORE_TID);
            let found = words.map(|word| u32::from_ne_bytes(*word)).find(|word| self.live.contains(word));
            found.and_then(|tid| Record::at(self.memory, at, Some(tid))).or(Some(record))
        })
    }

    /// The first address in a range at which a word is its own address, and for which `check` has an answer. OS pages that
    /// were never touched are not read.
    fn search(&self, range: Range<u64>, check: impl Fn(u64) -> Option<Record>) -> Option<Record> {
        for region in self.memory.regions(range.start & !15..range.end).into_iter().filter(|region| !region.swapped) {
            let (mut at, end) = (region.range.start.max(range.start & !15), region.range.end.min(range.end));
            while at < end {
                let mut bytes = vec![0; (end - at).min(STEP) as usize];
                if !self.memory.copy(at, &mut bytes) {
                    return None;
                }
                let words = bytes.as_chunks::<8>().0.iter().enumerate();
                let own = words.map(|(number, word)| (at + 8 * number as u64, u64::from_ne_bytes(*word)));
                let found = own.filter(|(address, word)| address == word).find_map(|(address, _)| check(address));
                if found.is_some() {
                    return found;
                }
                at += bytes.len() as u64;
            }
        }
        None
    }
}

/// Whether a mapping without access is right below another one, as a guard below a stack.
fn is_guard(guard: &Mapping, mapping: &Mapping) -> bool {
    guard.range.end == mapping.range.start && guard.is_closed() && guard.is_nameless() && guard.bytes() <= GUARD
}

/// The record of a thread.
#[derive(Debug)]
struct Record {
    at: u64,
    /// Its bytes.
    words: Vec<u8>,
    /// The thread; 0 if it was not looked for.
    tid: u32,
    /// Where the thread's number is, from its begin on.
    tid_at: Option<u64>,
    /// Where it says that the stack is.
    stack: Option<Range<u64>>,
}

impl Record {
    /// The record at an address: of thread `tid`, or one that has its address twice or says where its stack is.
    fn at(memory: &Process, at: u64, tid: Option<u32>) -> Option<Record> {
        let mut words = vec![0; RECORD];
        let mut length = RECORD;
        if !memory.copy(at, &mut words) {
            // Its mapping ends before.
            length = (at.next_multiple_of(crate::sys::page_size()) - at).min(RECORD as u64) as usize;
            if !memory.copy(at, &mut words[..length]) {
                return None;
            }
        }
        words.truncate(length);
        Record::of(at, words, tid)
    }

    fn of(at: u64, words: Vec<u8>, tid: Option<u32>) -> Option<Record> {
        let all: Vec<u64> = words.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let halves: Vec<u32> = words.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        if all.first() != Some(&at) {
            return None;
        }
        let number = tid.map(|tid| halves.iter().take(2 * BEFORE_TID).position(|half| *half == tid));
        if number == Some(None) {
            return None;
        }
        let tid_at = number.flatten().map(|number| 4 * number as u64).filter(|at| at.is_multiple_of(8) && *at >= 32);
        let is_stack = |pair: &&[u64]| {
            let (start, size) = (pair[0], pair[1]);
            let end = start.saturating_add(size);
            (4096..1 << 40).contains(&size) && start < at && (at + 64..=at + (64 << 10)).contains(&end)
        };
        let stack = all.windows(2).find(is_stack).map(|pair| pair[0]..pair[0] + pair[1]);
        let is_own = tid.is_some() || all.get(2) == Some(&at) || stack.is_some();
        is_own.then_some(Record { at, words, tid: tid.unwrap_or(0), tid_at, stack })
    }

    /// The number at a place in it.
    fn number(&self, memory: &Process, tid_at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        memory.copy(self.at + tid_at, &mut bytes).then(|| u32::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64, words: &[(usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; RECORD];
        for (number, word) in [(0, at)].iter().chain(words) {
            bytes[8 * number..8 * number + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Catches records that are not recognised, other words that are taken for one, and a stack that is not where its
    /// record says.
    #[test]
    fn records_are_known() {
        let at = 0x7f00_0010_0700;
        let of = |words: &[(usize, u64)], tid| Record::of(at, record(at, words), tid);
        let stack = [(2, at), (90, 77), (210, 0x7f00_0000_0000), (211, 0x10_1000)];
        let found = of(&stack, Some(77)).expect("a record");
        assert_eq!((found.tid_at, found.stack), (Some(720), Some(0x7f00_0000_0000..0x7f00_0010_1000)));
        assert!(of(&stack, Some(78)).is_none(), "of another thread");
        assert!(of(&[], None).is_none(), "one word is its own address");
        assert!(of(&[(2, at)], None).is_some_and(|record| record.stack.is_none()));
        // A stack that does not end right above the record.
        assert!(of(&[(210, 0x7f00_0000_0000), (211, 0x90_0000)], Some(77)).is_none());
        assert!(Record::of(at, record(at + 64, &stack), Some(77)).is_none());
        // musl's, which is a multiple of 8 and names the mapping with its guard.
        let musl = [(2, at - 0x100_0000), (3, at), (6, 77), (11, 0x7f00_0000_0000), (12, 0x10_1000)];
        assert_eq!(of(&musl, Some(77)).and_then(|record| record.stack), Some(0x7f00_0000_0000..0x7f00_0010_1000));
    }

    /// Catches a stack of this process that is not found where the C library has it.
    #[test]
    fn stacks_of_this_process() {
        use std::sync::mpsc;
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let here = 0u8;
            // SAFETY: the call takes nothing.
            say.send((unsafe { libc::gettid() } as u32, &raw const here as u64)).expect("it is waited for");
            let _ = ended.recv();
        });
        let (tid, here) = said.recv().expect("it says it");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let thread_of = |tid, at| Thread { tid, stack_pointer: Some(at), ..Thread::default() };
        // The frames below this variable are the thread's too.
        let threads = vec![thread_of(tid, here - 256)];
        let mappings = neap_account::parse::smaps(&maps);
        let mut seen = Seen { pid: std::process::id(), mappings, threads, ..Seen::default() };
        let fuel = std::sync::Arc::new(neap_survey::Fuel::new(std::time::Duration::from_secs(100), u64::MAX));
        read(&mut seen, &Process::open(std::process::id(), &fuel).expect("this process"));
        drop(end);
        thread.join().expect("a thread");
        let [of] = &seen.stacks[..] else { panic!("{:?}", seen.stacks) };
        assert!(of.range.contains(&here) && of.tid == tid && of.used > 0, "{of:?}");
        // 2 MiB is what Rust asks for.
        let is_whole = (2 << 20..3 << 20).contains(&(of.range.end - of.range.start));
        assert!(!cfg!(target_arch = "x86_64") || of.is_sure && of.local > 0 && is_whole, "{of:?}");
    }
}
