//! What was read from a process: mappings with the kernel's figures, threads, and claims of readers that know more.

use crate::model::{Apart, HeapFigures, Kind};
use std::ops::Range;

pub use neap_process::maps::{Figures, Mapping};

/// What keeps a debugger or a helper of a runtime from having anything done in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A process traces it: the kernel refuses another debugger.
    Traced(u32),
    /// It was stopped (SIGSTOP). gdb leaves a call there half done, and the process crashes when it continues.
    Stopped,
    /// Its cgroup is frozen: gdb waits until it is thawed.
    Frozen,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its stack pointer; `None` while it runs.
    pub stack_pointer: Option<u64>,
}

/// A range within one mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Where.
    pub range: Range<u64>,
    /// Resident bytes of it.
    pub resident: u64,
}

/// What a reader knows about some ranges besides the list of mappings.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Their owner.
    pub owner: String,
    /// The ranges, each within one mapping.
    pub pieces: Vec<Piece>,
    /// The use of the resident bytes, the most certain first. What remains is of kind `rest`.
    pub shares: Vec<(Kind, u64)>,
    /// The kind of what remains.
    pub rest: Kind,
    /// A further remark.
    pub note: Option<String>,
}

/// A part of a heap whose structures were walked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeapPart {
    /// Its figures.
    pub figures: HeapFigures,
    /// Where it is.
    pub pieces: Vec<Piece>,
    /// Whether it is the main arena.
    pub main: bool,
    /// Whether its blocks are mappings of their own, which go back when they are freed.
    pub mapped: bool,
    /// Bytes of large live blocks, of which the program may have left a part untouched.
    pub large_bytes: u64,
    /// The environment variable with the settings of its allocator, if that is not the usual one.
    pub settings: Option<String>,
    /// The file that has its allocator for itself: another malloc does not replace it.
    pub inside: Option<String>,
}

impl HeapPart {
    /// Its owner in accounts: all arenas of threads are one.
    pub fn owner(&self) -> String {
        let name = self.figures.part.as_str();
        let group = if !self.main && name.starts_with("arena ") { "arenas of threads" } else { name };
        format!("{}, {group}", self.figures.allocator)
    }
}

/// Zeros in huge pages of a mapping: OS pages that were never used, or that the program filled with zeros. A huge page
/// that is all zeros is there because the program wrote zeros to it, so it does not count here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Zeros {
    /// The start of the mapping.
    pub start: u64,
    /// Bytes of OS pages of zeros in huge pages that have other contents too.
    pub bytes: u64,
}

/// What a process that was forked, and executes the program of its parent, has for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fork {
    /// OS pages that its parent has at the same address: one of them has copied it.
    pub copied: u64,
    /// OS pages that its parent does not have.
    pub new: u64,
}

/// The stack of a thread: part of one mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackUse {
    /// Where it is, with the thread's record.
    pub range: Range<u64>,
    /// The thread; 0 if it has ended.
    pub tid: u32,
    /// Whether the thread's record or the kernel says that this is its stack. Otherwise only its stack pointer is there,
    /// above a guard.
    pub is_sure: bool,
    /// Resident bytes from the stack pointer up.
    pub used: u64,
    /// Resident bytes below the stack pointer: not in use now.
    pub below: u64,
    /// Resident bytes with the thread's record and its thread-local storage.
    pub local: u64,
    /// Resident bytes of which it is not known whether they are in use, because the thread runs.
    pub unknown: u64,
}

/// A part of one mapping that belongs to the data of a file beyond the file's contents (.bss), by the sizes in its
/// program headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bss {
    /// The file, as in the list of mappings.
    pub file: String,
    /// Where.
    pub piece: Piece,
}

/// What was read from a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The process.
    pub pid: u32,
    /// A thread of it that has not ended, for debuggers: its number if the first thread has ended.
    pub living: Option<u32>,
    /// Whether it is a command that neap started: it has ended when its account is shown.
    pub ends: bool,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The path of the program.
    pub exe: String,
    /// Whether that path leads elsewhere here: the program is in another root or mount namespace, deleted or replaced,
    /// or never was in a folder.
    pub is_elsewhere: bool,
    /// Whether it has another root (chroot) in the mount namespace of the reader: a debugger takes the reader's files for
    /// those of the process.
    pub is_rooted: bool,
    /// The figures of the whole process, by the kernel.
    pub total: Figures,
    /// Rss before and after, if they differ.
    pub range: Option<(u64, u64)>,
    /// Its mappings, in the order of addresses.
    pub mappings: Vec<Mapping>,
    /// Its threads, the first one first.
    pub threads: Vec<Thread>,
    /// Bytes of page tables.
    pub page_tables: u64,
    /// Memory that it causes in the kernel, or in files without a name that it has open: not in Rss.
    pub beside: Vec<Apart>,
    /// What the program headers of files say about memory behind their data; none if they were not read.
    pub bss: Option<Vec<Bss>>,
    /// Claims of readers of runtimes.
    pub claims: Vec<Claim>,
    /// Heaps whose structures were walked.
    pub heaps: Vec<HeapPart>,
    /// Stacks.
    pub stacks: Vec<StackUse>,
    /// Zeros in huge pages.
    pub zeros: Vec<Zeros>,
    /// Memory that the process maps at several addresses, so that Rss counts it several times: the start of one of the
    /// mappings, and the bytes that are counted again.
    pub repeated: Vec<(u64, u64)>,
    /// Threads whose stack is a block of malloc or part of one.
    pub stacks_in_heaps: u32,
    /// Zeros in locked memory.
    pub locked_zeros: u64,
    /// What is its own since a fork, if its parent could be read.
    pub fork: Option<Fork>,
    /// Variables of its environment that change how a runtime works: `JAVA_TOOL_OPTIONS=...`.
    pub settings: Vec<String>,
    /// Devices of file systems in memory.
    pub memory_devices: Vec<(u32, u32)>,
    /// Whether the program was built with Go.
    pub is_go: bool,
    /// Whether libneap.so cannot be loaded into the program: it is static, for example.
    pub is_closed: bool,
    /// Whether debuggers know no function of the program by name: it is static, without a table of symbols.
    pub is_stripped: bool,
    /// What keeps calls from being made in it now.
    pub held: Option<Held>,
    /// Locked memory, resident or not, by its status.
    pub locked: u64,
    /// Its mode of seccomp: 0 none, 1 strict, 2 a filter.
    pub seccomp: u64,
    /// Allocators that were found.
    pub allocators: Vec<String>,
    /// The allocator of which no heap was walked and to which private memory without a name may belong, in words.
    pub other_malloc: Option<String>,
    /// Further remarks of the reader.
    pub notes: Vec<String>,
}

impl Seen {
    /// The number of the process in what is advised; `PID` where it has ended, as the next run has another.
    pub fn number(&self) -> String {
        if self.ends { "PID".to_owned() } else { self.pid.to_string() }
    }

    /// What a debugger attaches to. It refuses a process by its own number if the first thread has ended.
    pub fn debugged(&self) -> String {
        self.living.filter(|_| !self.ends).map_or_else(|| self.number(), |tid| tid.to_string())
    }

    /// Whether a heap of an allocator was walked.
    pub fn has_walked(&self, allocator: &str) -> bool {
        self.heaps.iter().any(|part| part.figures.allocator.starts_with(allocator))
    }

    /// Whether a stack is in locked memory, so that all of it is resident whether it was touched or not.
    pub fn is_locked(&self, stack: &StackUse) -> bool {
        let at = self.mappings.partition_point(|mapping| mapping.range.end <= stack.range.start);
        self.mappings.get(at).is_some_and(|mapping| mapping.figures.locked > 0)
    }

    /// The memory of heaps that were walked, in order and joined where it overlaps.
    pub fn heap_ranges(&self) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> =
            self.heaps.iter().flat_map(|part| &part.pieces).map(|piece| piece.range.clone()).collect();
        all.sort_unstable_by_key(|range| range.start);
        all.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            last.end = if joins { last.end.max(next.end) } else { last.end };
            joins
        });
        all
    }
}

/// Whether an address is in one of `ranges`, which are in order and do not overlap.
pub fn is_in(ranges: &[Range<u64>], address: u64) -> bool {
    ranges.get(ranges.partition_point(|range| range.end <= address)).is_some_and(|range| range.start <= address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an address that is not found in overlapping heaps, and one between heaps that is.
    #[test]
    fn addresses_in_heaps() {
        let part = |ranges: &[(u64, u64)]| HeapPart {
            pieces: ranges.iter().map(|&(start, end)| Piece { range: start..end, resident: 1 }).collect(),
            ..HeapPart::default()
        };
        let heaps = vec![part(&[(50, 60), (10, 40)]), part(&[(12, 14), (60, 62), (80, 90)])];
        let ranges = Seen { heaps, ..Seen::default() }.heap_ranges();
        assert_eq!(ranges, [10..40, 50..62, 80..90]);
        assert!([10, 30, 61, 89].iter().all(|at| is_in(&ranges, *at)));
        assert!([9, 40, 62, 90].iter().all(|at| !is_in(&ranges, *at)));
    }
}
