//! The figures of a process.

use neap_account::{Cause, Kind, Report};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Light figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Light {
    /// When the process started, in clock ticks after boot; distinguishes two processes with one number.
    pub started: u64,
    /// Where code and stack begin; distinguishes two programs in one process. Zeros if this user may not know.
    pub program: (u64, u64),
    /// Resident memory in `status`, which may be wrong by some hundred KiB, because the kernel counts per processor.
    pub rss: u64,
    /// The same in `stat`, at the same time.
    pub of_stat: u64,
    /// Peak resident memory.
    pub peak: u64,
    /// Swapped out.
    pub swap: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Explicit huge pages (hugetlb).
    pub hugetlb: u64,
    /// Page faults without and with reading from a disk.
    pub faults: (u64, u64),
    /// Processor time so far, in clock ticks.
    pub ran: u64,
}

impl Light {
    /// Its memory: what is resident, explicit huge pages, page tables, and what is swapped out.
    pub fn size(&self) -> u64 {
        self.rss + self.swap + self.hugetlb + self.page_tables
    }

    /// Whether the figures of `status` may differ from those of `before`, by the figures of `stat`.
    pub fn may_differ(&self, before: &Light) -> bool {
        (self.ran, self.faults, self.rss) != (before.ran, before.faults, before.of_stat)
    }

    /// Figures that change if the process runs or if its memory changes.
    pub fn mark(&self) -> Mark {
        Mark { ran: self.ran, faults: self.faults.0 + self.faults.1, rss: self.rss, swap: self.swap }
    }
}

/// A mark. If two are equal, the process has hardly run in between, and its memory has not changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    ran: u64,
    faults: u64,
    rss: u64,
    swap: u64,
}

/// Figures of neap's counters page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neap {
    /// Bytes of live blocks.
    pub live: u64,
    /// Free memory that waits to go back, and blocks in caches of threads.
    pub kept: u64,
    /// Given back so far.
    pub purged: u64,
    /// System calls that gave it back.
    pub purge_calls: u64,
}

/// Figures of `smaps_rollup`, or the same ones from the page map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Resident, exact.
    pub rss: u64,
    /// Resident, but an OS page that n processes map counts as one n-th. `None` if this user may not know it.
    pub pss: Option<u64>,
    /// Not shared with other processes.
    pub private: u64,
    /// Transparent huge pages.
    pub huge: u64,
    /// Swapped out.
    pub swap: u64,
}

/// The short form of an account.
#[derive(Clone, Debug, PartialEq)]
pub struct Brief {
    /// Bytes of each kind that occurs.
    pub kinds: Vec<(Kind, u64)>,
    /// What could be given back.
    pub reclaimable: u64,
    /// The main finding, as a word.
    pub cause: String,
    /// The same in one sentence.
    pub verdict: String,
    /// Allocators and runtimes.
    pub allocators: Vec<String>,
    /// The allocator with most resident memory, without its version; empty if no heap was found.
    pub main: String,
}

impl Brief {
    /// The short form of an account.
    pub fn of(report: &Report) -> Brief {
        let kinds = Kind::ALL.iter().map(|&kind| (kind, report.of(kind))).filter(|(_, bytes)| *bytes > 0);
        Brief {
            kinds: kinds.collect(),
            reclaimable: report.could_go_back(),
            cause: word(report.cause),
            verdict: report.verdict.clone(),
            allocators: report.allocators.clone(),
            main: main(report),
        }
    }

    /// The bytes of a kind.
    pub fn bytes(&self, kind: Kind) -> u64 {
        self.kinds.iter().filter(|(of, _)| *of == kind).map(|(_, bytes)| bytes).sum()
    }

    /// Whether live and free memory of its heaps were distinguished.
    pub fn is_split(&self) -> bool {
        self.bytes(Kind::HeapLive) + self.bytes(Kind::HeapFree) > 0
    }
}

/// The allocator with most resident memory, without its version.
fn main(report: &Report) -> String {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for figures in &report.heaps {
        *bytes.entry(figures.allocator.split(' ').next().unwrap_or_default()).or_default() += figures.resident_bytes;
    }
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or(String::new(), |(name, _)| name.to_owned())
}

/// The word of a cause in JSON.
fn word(cause: Cause) -> String {
    serde_json::to_value(cause).ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}

/// A value with the moment when it was read, and the processor time that it cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aged<T> {
    /// The value.
    pub value: T,
    /// When.
    pub at: Instant,
    /// What it cost.
    pub cost: Duration,
    /// The mark before it was read.
    pub mark: Mark,
}

/// A process.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The file name of its program.
    pub command: String,
    /// The container it is in; empty for none.
    pub container: String,
    /// Its malloc according to the libraries that it has mapped; empty if they do not show it.
    pub allocator: String,
    /// Light figures.
    pub light: Light,
    /// Figures of neap's counters page, if it has one.
    pub neap: Option<Neap>,
    /// Pss and huge pages.
    pub rollup: Option<Aged<Rollup>>,
    /// The account.
    pub account: Option<Aged<Brief>>,
    /// Its files may not be read: it is another user's, or protected.
    pub denied: bool,
    /// The last time that a rollup or an account failed.
    pub failed: Option<Instant>,
}

/// The time after a failure until a process is tried again: one that was in the middle of an exec, or short of memory,
/// can be read later.
const RETRY: Duration = Duration::from_secs(60);

impl Process {
    /// Whether it is worth trying to read it.
    pub fn is_readable(&self, now: Instant) -> bool {
        !self.denied && self.failed.is_none_or(|at| now.saturating_duration_since(at) >= RETRY)
    }

    /// Its allocator: by its account, if there is one, because a program may contain one of its own; otherwise by the
    /// libraries that it has mapped.
    pub fn main_allocator(&self) -> &str {
        let account = self.account.as_ref().map(|account| account.value.main.as_str());
        account.filter(|main| !main.is_empty() && self.neap.is_none()).unwrap_or(&self.allocator)
    }

    /// Bytes of live blocks, if they are known.
    pub fn live(&self) -> Option<u64> {
        self.neap.map(|neap| neap.live).or_else(|| self.split(Kind::HeapLive))
    }

    /// Bytes of free blocks that the allocator keeps, if they are known.
    pub fn kept(&self) -> Option<u64> {
        self.neap.map(|neap| neap.kept).or_else(|| self.split(Kind::HeapFree))
    }

    /// Free bytes on OS pages that live blocks keep, if they are known.
    pub fn fragmentation(&self) -> Option<u64> {
        self.split(Kind::HeapFragmentation)
    }

    /// What could be given back, if it is known.
    pub fn reclaimable(&self) -> Option<u64> {
        let account = self.account.as_ref()?;
        account.value.is_split().then_some(account.value.reclaimable)
    }

    fn split(&self, kind: Kind) -> Option<u64> {
        let brief = &self.account.as_ref()?.value;
        brief.is_split().then(|| brief.bytes(kind))
    }
}

/// Processes that could not be read so far, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Ended while they were read.
    pub ended: u64,
    /// Denied to this user.
    pub denied: u64,
    /// Anything else.
    pub other: u64,
}
