//! Turns records into a trace: keeps the processes, threads and mappings of each moment, pairs the beginning of each
//! fault with its end, and finds its cause.

mod block_rows;
mod blocks;
mod kind;
mod mappings;
mod processes;
mod rows;
mod sites;
mod space;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};

use crate::perf::attr::Counter;
use crate::perf::record::{Happened, Record, Sample};
use crate::{
    Access, Fault, FileId, Id, MappingId, Mode, ObjectId, ProcessId, StackId, StackNode, Subject, Tables, ThreadId,
};

pub use block_rows::HeapBlock;
pub use kind::{Evidence, refine};
pub use mappings::file_of;
pub use sites::{Allocation, HistoryId};

use self::block_rows::BlockRows;
use self::rows::Rows;
use self::sites::Sites;
use self::space::Space;

/// Limit on the faults that wait for the end of an older one: a thread that waits for the disk holds back the others'
/// faults.
const MAX_WAITING: usize = 1 << 16;
/// Nanoseconds of the trace after which the mappings of a process are requested again.
const ASK_AGAIN: u64 = 10_000_000;
/// Limit on the mappings that are kept, some 200 bytes each: faults in further ones have none.
const MAX_MAPPINGS: usize = if cfg!(test) { 1 << 16 } else { 1 << 20 };
/// Limit on the objects that are kept, some 300 bytes each: further mappings have none.
const MAX_OBJECTS: usize = 1 << 18;
/// Limit on the frames of one stack.
const MAX_FRAMES: usize = 256;

/// The place where an object was first seen: it can be read from the process while that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The process.
    pub pid: u32,
    /// The object.
    pub object: ObjectId,
    /// The first address of its mapping.
    pub start: u64,
    /// The address behind the last one.
    pub end: u64,
}

/// What the tracker may ask about a running process.
pub trait World {
    /// The current text of `/proc/PID/maps`, if the process still exists.
    fn maps(&mut self, pid: u32) -> Option<Vec<u8>>;

    /// The current block at an address of a process that runs on neap; the address is in one of its arenas.
    fn block(&mut self, pid: u32, address: u64) -> Option<HeapBlock> {
        let _ = (pid, address);
        None
    }

    /// The callers of a sample's instruction, innermost first, where they are found by unwinding a copy of the stack.
    /// `space` returns the mapping of an address.
    fn unwind(&mut self, sample: &Sample, tables: &Tables, space: &dyn Fn(u64) -> Option<MappingId>) -> Vec<u64> {
        let _ = (sample, tables, space);
        Vec::new()
    }
}

/// A fault that waits for its end, or for the end of an older one.
struct Waiting {
    fault: Fault,
    evidence: Evidence,
    done: bool,
}

/// The state of a thread.
struct ThreadState {
    id: ThreadId,
    pid: u32,
    /// The number of its fault that has not ended yet.
    pending: Option<u64>,
}

/// The state of a process.
struct ProcessState {
    id: ProcessId,
    space: Space,
    /// Mappings that may hold code; where there is none now, the last ones.
    code: Space,
    /// The rows of its own mappings.
    rows: Rows,
    /// When its mappings were last requested, on the trace's clock.
    asked: Option<u64>,
    /// The process that forked it during the trace.
    parent_pid: Option<u32>,
    /// The highest address of the program's file.
    program_end: Option<u64>,
    /// Whether it runs on neap.
    neap: bool,
    /// The history of its blocks' allocations, if it records them.
    history: Option<HistoryId>,
}

impl ProcessState {
    fn new(id: ProcessId) -> Self {
        Self {
            id,
            space: Space::default(),
            code: Space::default(),
            rows: Rows::default(),
            asked: None,
            parent_pid: None,
            program_end: None,
            neap: false,
            history: None,
        }
    }
}

/// The trace so far.
///
/// Invariant: `waiting` holds the faults `next - waiting.len() .. next`, in order.
#[derive(Default)]
pub struct Tracker {
    tables: Tables,
    processes: HashMap<u32, ProcessState>,
    threads: HashMap<u32, ThreadState>,
    objects: HashMap<(Vec<u8>, Option<FileId>), ObjectId>,
    /// Objects that were seen for the first time and must be read.
    sightings: Vec<Sighting>,
    /// Mappings that had no room in the table.
    unkept: u64,
    stacks: HashMap<(Option<StackId>, u64, Option<MappingId>), StackId>,
    stack_mappings: Vec<Option<MappingId>>,
    blocks: BlockRows,
    /// The directory of files of sites; `None` where sites were not requested.
    sites_directory: Option<Vec<u8>>,
    sites: Sites,
    /// Files of sites that were mapped and must be read.
    site_files: Vec<(HistoryId, Vec<u8>)>,
    site_stacks: HashMap<(ProcessId, u32), Option<StackId>>,
    /// Number of missing allocations, and bytes between two recorded ones.
    sites_lost: u64,
    sites_interval: u64,
    /// The kernel's clock at the current record.
    now: u64,
    waiting: VecDeque<Waiting>,
    /// The number of the next fault, from 0 here.
    next: u64,
    /// The time of the first fault on the kernel's clock.
    origin: Option<u64>,
    lost: u64,
    /// Lost events that no record reports.
    noted: u64,
    /// Records that arrived after later ones were processed.
    late: u64,
    /// Whether ends of faults lack the size of the page.
    without_sizes: bool,
    refused: u64,
    /// Whether minor faults come without their ends, see [`Tracker::only_begins`].
    begins: bool,
    /// Running processes whose parent has ended: their faults are not waited for.
    orphans: Vec<u32>,
    unwaited: u64,
    /// Processes besides the first whose counts are read from the kernel.
    counted: HashSet<u32>,
    faults_of: HashMap<u32, u64>,
}

impl Tracker {
    /// Processes the next record in order of time; passes completed faults to `sink`.
    pub fn record(&mut self, record: &Record, world: &mut dyn World, sink: &mut dyn FnMut(Fault)) {
        let time = self.origin.map_or(0, |origin| record.time.saturating_sub(origin));
        self.now = record.time;
        match &record.event {
            Happened::Sample(sample) => {
                self.sample(record.time, sample, world);
                self.release(false, sink);
            }
            Happened::Mmap(mmap) => self.mmap(time, mmap),
            Happened::Comm { pid, tid, exec, name } => self.comm(time, *pid, *tid, *exec, name),
            Happened::Fork { pid, tid, parent_pid, .. } => self.fork(time, *pid, *tid, *parent_pid),
            Happened::Exit { pid, tid } => self.exit(time, *pid, *tid),
            Happened::Lost(count) => self.lost += count,
            Happened::Other(_) => {}
        }
    }

    /// Ends the trace: passes the remaining faults on.
    pub fn finish(&mut self, sink: &mut dyn FnMut(Fault)) {
        let threads: Vec<u32> = self.threads.keys().copied().collect();
        for tid in threads {
            self.abandon(tid);
        }
        self.release(true, sink);
        let counted = |pid| pid == self.tables.summary.pid || self.counted.contains(&pid);
        let running: Vec<u32> = self.processes.keys().copied().filter(|&pid| !counted(pid)).collect();
        for pid in running {
            self.unwaited += self.faults_of.remove(&pid).unwrap_or(0);
        }
        self.settle_sites(u64::MAX);
        self.tables.summary.sites = self.site_summary();
        self.tables.summary.faults = self.next;
        self.tables.summary.lost = self.lost + self.noted;
        self.tables.clock.origin = self.origin.unwrap_or(0);
        let missing = self.missing();
        self.tables.summary.missing.extend(missing);
    }

    /// What the trace lacks, one sentence each.
    fn missing(&self) -> Vec<String> {
        let unkept = (self.unkept > 0).then(|| {
            format!(
                "{} mappings: the trace keeps the first {MAX_MAPPINGS}, and faults in others have none",
                self.unkept
            )
        });
        let late = (self.late > 0).then(|| {
            format!(
                "the order of {} records, which came late: faults near them may be misplaced, or lack their ends",
                self.late
            )
        });
        let sizes = (self.without_sizes && !self.begins).then(|| {
            "sizes of pages, which the kernel tells from Linux 5.11 on: copies and huge pages are not distinguished"
                .to_owned()
        });
        [unkept, late, sizes].into_iter().flatten().collect()
    }

    /// Declares that the ends of minor faults are not recorded: a fault without an end counts as minor, and its kind is
    /// a guess.
    pub fn only_begins(&mut self) {
        self.begins = true;
    }

    /// Sets how many events were lost so far without a record of that.
    pub fn note_lost(&mut self, count: u64) {
        self.noted = count;
    }

    /// Sets how many records so far arrived after later ones were processed.
    pub fn note_late(&mut self, count: u64) {
        self.late = count;
    }

    /// The objects that were seen for the first time since the last call, and where.
    pub fn take_sightings(&mut self) -> Vec<Sighting> {
        std::mem::take(&mut self.sightings)
    }

    /// The tables so far.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The tables, for completion.
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// The tables, and the mapping of each node of the tree of callers.
    pub fn into_tables(self) -> (Tables, Vec<Option<MappingId>>) {
        (self.tables, self.stack_mappings)
    }

    /// Faults so far.
    pub fn faults(&self) -> u64 {
        self.next
    }

    /// Number of faults that did not end.
    pub fn not_completed(&self) -> u64 {
        self.refused
    }

    /// Number of faults of processes that were not waited for: they outlived the trace, or their parent.
    pub fn not_waited_for(&self) -> u64 {
        self.unwaited
    }

    /// Number of running processes, according to the records.
    pub fn running(&self) -> usize {
        self.processes.len()
    }

    /// Declares that the kernel's count of faults covers these processes together, not only the first one.
    pub fn count(&mut self, pids: &[u32]) {
        self.counted.extend(pids);
    }

    /// Adds a process that exists when the trace begins, with its threads.
    pub fn adopt(&mut self, pid: u32, name: &str, threads: &[(u32, String)], maps: Option<&[u8]>) {
        let process = self.process(0, pid);
        self.tables.processes[process].name = name.to_owned();
        for (tid, name) in threads {
            let thread = self.thread(0, pid, *tid);
            self.tables.threads[thread].name.clone_from(name);
        }
        if let Some(text) = maps {
            self.take_maps(0, pid, text);
        }
    }

    fn sample(&mut self, time: u64, sample: &Sample, world: &mut dyn World) {
        match sample.counter {
            Counter::Faults => {
                self.abandon(sample.tid);
                self.begin(time, sample, world);
                // `begin` has added the thread.
                let number = self.next - 1;
                if let Some(thread) = self.threads.get_mut(&sample.tid) {
                    thread.pending = Some(number);
                }
            }
            Counter::MinorFaults | Counter::MajorFaults => {
                self.without_sizes |= sample.page_size.is_none();
                self.end(time, sample, world);
            }
            Counter::Clock => self.instruction(time, sample, world),
            Counter::Dummy => {}
        }
    }

    /// Ends the fault of a thread.
    fn end(&mut self, time: u64, sample: &Sample, world: &mut dyn World) {
        if let Some(number) = self.threads.get_mut(&sample.tid).and_then(|thread| thread.pending.take()) {
            // It took so long that it was passed on without its end.
            let Some(index) = self.position(number) else { return };
            let waiting = &mut self.waiting[index];
            if waiting.fault.ip == sample.ip && waiting.fault.address == sample.address {
                let began = self.origin.unwrap_or(0) + waiting.fault.time;
                waiting.fault.service = Some(u32::try_from(time.saturating_sub(began)).unwrap_or(u32::MAX));
                waiting.evidence.completed(sample);
                return self.decide(index, false);
            }
            // This is the end of another fault, whose beginning was lost.
            self.give_up(index);
        }
        self.begin(time, sample, world);
        let index = self.waiting.len() - 1;
        self.waiting[index].evidence = Evidence::end_only(sample);
        self.decide(index, false);
    }

    /// Adds a fault that begins now.
    fn begin(&mut self, time: u64, sample: &Sample, world: &mut dyn World) {
        let origin = *self.origin.get_or_insert(time);
        let time = time.saturating_sub(origin);
        let thread = self.thread(time, sample.pid, sample.tid);
        let mapping = self.mapping_at(time, sample.pid, sample.address, world);
        let stack = self.stack(sample, world);
        let block = mapping.and_then(|mapping| self.block(sample, mapping, world));
        let executable = mapping.is_none_or(|id| self.tables.mappings[id].protection.execute);
        // A fetch faults at the instruction's address, or at the next page if the instruction crosses into it.
        let fetched = !sample.kernel
            && (sample.address == sample.ip
                || executable
                    && sample.address & 0xfff == 0
                    && (1..15).contains(&sample.address.wrapping_sub(sample.ip)));
        self.next += 1;
        *self.faults_of.entry(sample.pid).or_default() += 1;
        let fault = Fault {
            time,
            subject: if fetched { Subject::Code } else { Subject::Data },
            access: if fetched { Access::Execute } else { Access::Unknown },
            mode: if sample.kernel { Mode::Kernel } else { Mode::User },
            mapping,
            block,
            stack,
            ..Fault::new(self.next, thread, sample.address, sample.ip)
        };
        self.waiting.push_back(Waiting { fault, evidence: Evidence::begun(sample), done: false });
    }

    /// Adds the instruction of a thread when the clock fired. It is kept as a fault at no address that has ended: only
    /// its instruction and its callers matter.
    fn instruction(&mut self, time: u64, sample: &Sample, world: &mut dyn World) {
        let origin = *self.origin.get_or_insert(time);
        let time = time.saturating_sub(origin);
        let thread = self.thread(time, sample.pid, sample.tid);
        // Callers are resolved in the current mappings.
        if !sample.kernel {
            self.mapping_at(time, sample.pid, sample.ip, world);
        }
        let stack = self.stack(sample, world);
        self.next += 1;
        let fault = Fault {
            time,
            subject: Subject::Code,
            access: Access::Execute,
            mode: if sample.kernel { Mode::Kernel } else { Mode::User },
            stack,
            ..Fault::new(self.next, thread, 0, sample.ip)
        };
        self.waiting.push_back(Waiting { fault, evidence: Evidence::begun(sample), done: true });
    }

    /// The position in `waiting` of a fault by its number, from 0.
    fn position(&self, number: u64) -> Option<usize> {
        let first = self.next - self.waiting.len() as u64;
        usize::try_from(number.checked_sub(first)?).ok()
    }

    /// Gives up the fault of a thread that will never end.
    fn abandon(&mut self, tid: u32) {
        let pending = self.threads.get_mut(&tid).and_then(|thread| thread.pending.take());
        if let Some(index) = pending.and_then(|number| self.position(number)) {
            self.give_up(index);
        }
    }

    fn give_up(&mut self, index: usize) {
        self.refused += u64::from(!self.begins);
        self.decide(index, false);
    }

    /// Decides the cause of a fault; `early` if it is passed on before its end.
    fn decide(&mut self, index: usize, early: bool) {
        if let Some(waiting) = self.waiting.get_mut(index) {
            let mapping = waiting.fault.mapping.map(|id| &self.tables.mappings[id]);
            if self.begins {
                waiting.evidence.assume_minor();
            }
            waiting.evidence.decide(mapping, early || self.lost > 0, &mut waiting.fault);
            waiting.done = true;
        }
    }

    /// Passes faults on in order, up to the first that is not complete.
    fn release(&mut self, all: bool, sink: &mut dyn FnMut(Fault)) {
        while let Some(first) = self.waiting.front() {
            if !first.done {
                if !all && self.waiting.len() <= MAX_WAITING {
                    return;
                }
                self.decide(0, !all);
            }
            if let Some(waiting) = self.waiting.pop_front() {
                sink(waiting.fault);
            }
        }
    }

    /// Adds the callers of a sample to the tree.
    fn stack(&mut self, sample: &Sample, world: &mut dyn World) -> Option<StackId> {
        let callers = sample.callers.as_deref()?;
        // With a copy of the stack the kernel reports only its own part.
        let mut chain = callers.chain.clone();
        let kernel = chain.iter().take_while(|&&address| is_kernel(address)).count();
        let space = self.processes.get(&sample.pid).map(|process| &process.space);
        if !callers.stack.is_empty() {
            chain.truncate(kernel);
            let find = |address| space.and_then(|space| space.find(address));
            chain.extend(world.unwind(sample, &self.tables, &find));
        }
        // A return address is that of the instruction after the call, which may be in the next function. The kernel was
        // entered at an instruction of the program.
        let calling = |(depth, address): (usize, &u64)| match depth {
            0 => *address,
            depth if depth == kernel => *address,
            _ => address.wrapping_sub(1),
        };
        let found = chain.iter().enumerate().map(calling).map(|address| (address, space.and_then(|s| s.find(address))));
        // In code that uses the frame pointer for something else, the chain leads anywhere.
        let real = found.enumerate().take_while(|(depth, (address, mapping))| {
            *depth == 0 || mapping.is_some() || *depth < kernel && is_kernel(*address)
        });
        let frames: Vec<(u64, Option<MappingId>)> = real.take(MAX_FRAMES).map(|(_, frame)| frame).collect();
        let outwards = frames.iter().rev();
        outwards.fold(None, |parent, &(address, mapping)| Some(self.stack_node(parent, address, mapping)))
    }

    /// A node of the tree of callers.
    fn stack_node(&mut self, parent: Option<StackId>, address: u64, mapping: Option<MappingId>) -> StackId {
        *self.stacks.entry((parent, address, mapping)).or_insert_with(|| {
            self.stack_mappings.push(mapping);
            self.tables.stacks.push(StackNode { parent, address, place: None })
        })
    }
}

/// Whether an address is one of the kernel's.
pub const fn is_kernel(address: u64) -> bool {
    address >> 63 != 0
}

/// Text for people: bytes that are not UTF-8 are replaced.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where a table's next row will be.
fn next_id<I: Id, T>(table: &crate::Table<I, T>) -> I {
    I::from_index(table.len())
}
