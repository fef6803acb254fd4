//! The members of a report. Its JSON has these structures (`docs/why.md` describes it for users).

use serde::{Serialize, Serializer};

pub use crate::trial::Action;

/// The version of the JSON.
pub const SCHEMA: &str = "neap.why/1";

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal, $label:literal;)*) => {
        /// What memory is used for. One account has one kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $($(#[doc = $doc])* $name,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];

            /// The word in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => $word,)* }
            }

            /// Its label in texts.
            pub const fn label(self) -> &'static str {
                match self { $(Kind::$name => $label,)* }
            }
        }
    };
}

kinds! {
    /// Blocks that the program holds.
    HeapLive = "heap-live", "live blocks";
    /// Free memory of an allocator in whole OS pages: it could go back to the system.
    HeapFree = "heap-free", "free, kept";
    /// Free bytes on OS pages that live blocks keep.
    HeapFragmentation = "heap-fragmentation", "fragmentation";
    /// Headers of blocks, records, tables of an allocator.
    HeapMetadata = "heap-metadata", "heap metadata";
    /// Memory of an allocator of which live and free cannot be distinguished.
    Heap = "heap", "heap, not split";
    /// Memory of a runtime with its own allocator or collector, as the JVM, V8 or CPython.
    RuntimeHeap = "runtime-heap", "runtime heap";
    /// Stacks of threads.
    Stack = "stack", "stack";
    /// Thread-local storage and the thread's own record, on top of its stack.
    ThreadLocal = "thread-local", "thread-local";
    /// Files that are mapped: programs, libraries, data.
    File = "file", "file";
    /// Shared memory: System V, POSIX, memfd, tmpfs, shared anonymous mappings.
    Shared = "shared", "shared";
    /// Other private memory without a file.
    Anonymous = "anonymous", "anonymous";
    /// OS pages of zeros in transparent huge pages that have other contents too: never used, or zeros that the program
    /// wrote. Without huge pages the former would not be resident.
    HugeZero = "huge-zero", "zeros in huge pages";
    /// Memory that was given back with MADV_FREE and that the kernel has not taken yet.
    LazyFree = "lazy-free", "given back lazily";
    /// Code made at run time.
    Jit = "jit", "generated code";
    /// Areas without access that nevertheless hold memory.
    Guard = "guard", "no access";
    /// The kernel's own mappings.
    Vdso = "vdso", "kernel";
    /// Memory that no rule explains.
    Other = "other", "other";
}

impl Kind {
    /// Whether it is memory of malloc.
    pub const fn is_heap(self) -> bool {
        matches!(self, Kind::HeapLive | Kind::HeapFree | Kind::HeapFragmentation | Kind::HeapMetadata | Kind::Heap)
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A part of Rss.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Account {
    /// What it is used for.
    pub kind: Kind,
    /// Its owner.
    pub owner: String,
    /// Resident bytes.
    pub bytes: u64,
    /// The same, but an OS page that n processes map counts as one n-th.
    pub pss_bytes: u64,
    /// Part of the bytes: not shared with other processes.
    pub private_bytes: u64,
    /// Part of the bytes: changed since they were read from a file, or without a file.
    pub dirty_bytes: u64,
    /// Swapped out, in addition.
    pub swap_bytes: u64,
    /// Addresses that it takes.
    pub reserved_bytes: u64,
    /// Number of mappings with a part in it.
    pub mappings: u32,
    /// A further remark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Memory that the process causes and that is not in Rss.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Apart {
    /// `page-tables`, `swap`, `hugetlb`, `kernel-stacks`, `open-files`, `pipes`, `bpf-maps`, `perf-buffers`.
    pub kind: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// What it is.
    pub text: String,
}

/// The main finding, as a word for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Most is live: what the program needs, or a leak. One reading cannot tell which.
    Live,
    /// Most is malloc's, judged by its place; how much of it is live could not be read.
    Undivided,
    /// As `live`, but the program's runtime has another heap for its objects: native memory of a JVM, buffers of node.
    OffHeap,
    /// Live memory grows over time.
    Leak,
    /// The allocator keeps free memory.
    Retention,
    /// As `Retention`, in many arenas.
    ArenaRetention,
    /// As `Retention`, below one block at the end of the heap.
    PinnedTop,
    /// As `Retention`, in the caches of threads.
    ThreadCaches,
    /// Live blocks keep OS pages that are mostly free.
    Fragmentation,
    /// Huge pages with many OS pages of zeros.
    HugeZero,
    /// Stacks that were touched once.
    Stacks,
    /// Memory of a runtime with a collector.
    RuntimeHeap,
    /// Files that are mapped.
    Files,
    /// Shared memory.
    Shared,
    /// Memory that is shared with a parent or children since a fork.
    CopyOnWrite,
    /// Locked memory, part of which the program never used.
    Locked,
    /// Private memory that is not malloc's.
    Anonymous,
    /// Memory that was given back with MADV_FREE: Rss counts it until the kernel takes it.
    LazyFree,
    /// Page tables, which Rss leaves out.
    PageTables,
    /// Memory that is swapped out, which Rss leaves out.
    Swap,
    /// Pages of the kernel's pools, which Rss leaves out.
    Hugetlb,
    /// Files in memory that it has open and not mapped.
    OpenFiles,
    /// The page cache of the container.
    PageCache,
    /// Files in memory of the container.
    Tmpfs,
    /// The kernel's memory for the container or process: pipes, BPF maps, buffers.
    Kernel,
    /// Parts of huge pages that the container's processes gave back, and that the kernel still holds.
    FreedHuge,
    /// Nothing grew over time.
    Plateau,
    /// Nothing stands out.
    Nothing,
}

/// A remedy: an action on one process or cgroup, with what it would give back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// Which action. What has been tried of it is in the table of trials.
    pub action: Action,
    /// In a sentence.
    pub text: String,
    /// How, as a command line or an environment variable; empty if it needs a change of the program.
    pub command: String,
    /// What it would give back, at most: never more than is resident or charged.
    pub bytes: u64,
    /// What it would give back at least. Less than `bytes` where neap cannot tell.
    pub least_bytes: u64,
    /// How the bytes were found.
    pub rule: String,
    /// Whether it works on the running process.
    pub now: bool,
}

impl Remedy {
    /// A remedy that would give back exactly `bytes`, for the running process; without a command.
    pub fn new(action: Action, text: impl Into<String>, bytes: u64) -> Self {
        let (command, rule) = (String::new(), String::new());
        Self { action, text: text.into(), command, bytes, least_bytes: bytes, rule, now: true }
    }
}

/// One part of a heap: an arena, the mapped blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeapFigures {
    /// `glibc 2.36`.
    pub allocator: String,
    /// `main arena`, `arena 3`, `mmapped blocks`.
    pub part: String,
    /// Addresses.
    pub reserved_bytes: u64,
    /// Resident bytes of it.
    pub resident_bytes: u64,
    /// Bytes of live blocks, resident or not.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// All free bytes, resident or not.
    pub free_bytes: u64,
    /// Free bytes on whole resident OS pages.
    pub kept_bytes: u64,
    /// Free bytes on OS pages that live blocks keep.
    pub fragmentation_bytes: u64,
    /// Part of the kept bytes: resident blocks in caches of threads and quick lists, including those on OS pages with
    /// live blocks.
    pub cached_bytes: u64,
    /// Headers and records.
    pub metadata_bytes: u64,
    /// What the allocator's own trim would give back.
    pub trimmable_bytes: u64,
    /// The largest free block below the end.
    pub largest_free_bytes: u64,
    /// Free bytes below the last live block, which keeps the end of the heap from going back.
    pub pinned_bytes: u64,
    /// The bytes of that block.
    pub pin_bytes: u64,
    /// Bytes of which it is not known whether they are live or free.
    pub unsure_bytes: u64,
}

/// The account of a process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The process.
    pub pid: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// When the account was taken, if neap started the command: `at its peak`, `at its end`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moment: Option<String>,
    /// The kernel's Rss when the accounts were read.
    pub rss_bytes: u64,
    /// Rss before and after, if the process changed all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_range: Option<(u64, u64)>,
    /// Pss.
    pub pss_bytes: u64,
    /// Memory that is not shared with other processes: what would be free if it ended.
    pub private_bytes: u64,
    /// Swapped out.
    pub swap_bytes: u64,
    /// Part of Rss: counted more than once, because the process maps the same memory at several addresses.
    pub repeated_bytes: u64,
    /// Locked in memory.
    pub locked_bytes: u64,
    /// Threads.
    pub threads: u32,
    /// Allocators and runtimes that were found.
    pub allocators: Vec<String>,
    /// The parts of Rss, in the order of size.
    pub accounts: Vec<Account>,
    /// Not in Rss.
    pub apart: Vec<Apart>,
    /// Parts of heaps.
    pub heaps: Vec<HeapFigures>,
    /// The main finding.
    pub cause: Cause,
    /// The same in one sentence.
    pub verdict: String,
    /// Possible actions, those that give back most first.
    pub remedies: Vec<Remedy>,
    /// What else a reader should know.
    pub notes: Vec<String>,
    /// What is known to be unsure in this report, the largest first.
    pub doubts: Vec<Doubt>,
}

/// Something of which the report is not sure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Doubt {
    /// How much memory it is about; 0 if that is not known.
    pub bytes: u64,
    /// What is unsure, and why.
    pub text: String,
}

impl Report {
    /// The bytes of all accounts of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.accounts.iter().filter(|account| account.kind == kind).map(|account| account.bytes).sum()
    }

    /// The bytes of all accounts.
    pub fn sum(&self) -> u64 {
        self.accounts.iter().map(|account| account.bytes).sum()
    }

    /// What could be given back: free memory that is kept. Not zeros in huge pages, because the program may have written
    /// them.
    pub fn could_go_back(&self) -> u64 {
        self.of(Kind::HeapFree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches two kinds with one word, and words that differ from those in JSON.
    #[test]
    fn kinds_have_words() {
        let mut words: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Kind::ALL.len());
        assert_eq!(serde_json::to_string(&Kind::HeapLive).expect("a word"), "\"heap-live\"");
        assert_eq!(serde_json::to_string(&Cause::ArenaRetention).expect("a word"), "\"arena-retention\"");
    }
}
