//! The footer of a trace: what it covers, and what is missing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a trace covers. Every format ends with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The version of neap.
    pub neap: String,
    /// The program and its arguments; empty when neap attached to a process.
    pub command: Vec<String>,
    /// The process: the program's, or the one that neap attached to.
    pub pid: u32,
    /// How faults were traced.
    pub backend: Backend,
    /// Faults in the trace.
    pub faults: u64,
    /// Faults that the kernel counts for the program and the children that were waited for.
    pub usage: Option<Usage>,
    /// Why [`usage`](Self::usage) and [`faults`](Self::faults) differ: `faults + sum of the counts == usage`. The
    /// unexplained rest has the cause [`Cause::Unexplained`].
    pub differences: Vec<Difference>,
    /// Events that the kernel could not deliver.
    pub lost: u64,
    /// What this backend cannot show, one sentence each.
    pub missing: Vec<String>,
    /// A command that permits the full view.
    pub remedy: Option<String>,
    /// Whether fault-around was off for the program's files (`--exact`).
    pub exact: bool,
    /// Faults in neap's heap and what is known of their allocations, where sites were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sites: Option<SiteSummary>,
    /// How the program ended.
    pub end: End,
    /// From the program's start, or from attaching, to the end of the trace, in nanoseconds.
    pub duration: u64,
}

/// Faults in neap's heap, by what is known of their block. The three counts add up to all faults there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteSummary {
    /// In blocks whose allocation is known.
    pub with_site: u64,
    /// In blocks whose allocation was not recorded (not sampled, before the library began, or lost), or that were never
    /// handed out.
    pub without_site: u64,
    /// In memory of neap's own, which is no block.
    pub in_no_block: u64,
    /// Allocations that should have been recorded and are missing.
    pub lost: u64,
    /// Mean bytes between two recorded allocations; 1: all allocations were recorded.
    pub interval: u64,
}

impl fmt::Display for SiteSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { with_site, without_site, in_no_block, lost, interval } = *self;
        let faults = with_site + without_site + in_no_block;
        write!(f, "{with_site} of {faults} faults in neap's heap have one")?;
        if in_no_block > 0 {
            write!(f, "; {in_no_block} in memory of neap's own")?;
        }
        if without_site > 0 {
            let sampled = if interval > 1 { "not sampled, " } else { "" };
            write!(
                f,
                "; {without_site} in blocks that were {sampled}allocated before the start, lost, or not handed out"
            )?;
        }
        write!(f, "; {lost} allocations lost")?;
        if interval > 1 {
            write!(f, "; one allocation in {interval} bytes was recorded")?;
        }
        Ok(())
    }
}

/// Page faults as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Without a read from disk.
    pub minor: u64,
    /// With one.
    pub major: u64,
}

impl Usage {
    /// Both.
    pub const fn total(self) -> u64 {
        self.minor.saturating_add(self.major)
    }

    /// The sum of two counts.
    pub const fn plus(self, other: Self) -> Self {
        Self { minor: self.minor.saturating_add(other.minor), major: self.major.saturating_add(other.major) }
    }

    /// The faults since `before` was counted.
    pub const fn since(self, before: Self) -> Self {
        Self { minor: self.minor.saturating_sub(before.minor), major: self.major.saturating_sub(before.major) }
    }
}

/// How faults were traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Nothing was traced.
    #[default]
    None,
    /// perf events, faults in kernel mode included.
    Perf,
    /// perf events, user mode only.
    PerfUser,
    /// Page tables were scanned again and again (PAGEMAP_SCAN): pages in rough order, without instructions.
    Scan,
}

impl Backend {
    /// A few words for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Perf => "perf events, user and kernel mode",
            Self::PerfUser => "perf events, user mode only",
            Self::Scan => "page table scans",
        }
    }

    /// One word, lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Perf => "perf",
            Self::PerfUser => "perf-user",
            Self::Scan => "scan",
        }
    }
}

/// A part of the difference between the kernel's count and the trace's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Why.
    pub cause: Cause,
    /// Faults that the kernel counts and the trace lacks; negative for those that the trace has and the kernel does not
    /// count.
    pub count: i64,
}

/// Why the kernel's count of faults and a trace's differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Before the program was executed: neap's own child.
    BeforeExec,
    /// Pages that hold the program's arguments and environment, which the kernel fills before the program begins.
    Arguments,
    /// Taken in kernel mode, which was not seen.
    KernelMode,
    /// Pages that the kernel got for itself without a fault of the processor: the arguments of programs that the
    /// program executed, system calls that pin memory.
    WithoutTrap,
    /// Events that were lost.
    Lost,
    /// Faults that ended in a signal, or were unfinished: seen, but not counted.
    NotCompleted,
    /// Faults of processes that were not waited for: seen, but not counted.
    NotWaitedFor,
    /// Of processes that could not be traced.
    Untraced,
    /// While the trace began or ended.
    Edges,
    /// Pages that faulted again, or came and went, between two scans of page tables.
    BetweenScans,
    /// Pages that a scan found and that came without a fault of their own.
    AroundFaults,
    /// Not known.
    Unexplained,
}

impl Cause {
    /// A few words for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::BeforeExec => "before exec",
            Self::Arguments => "arguments of exec",
            Self::KernelMode => "in kernel mode, not seen",
            Self::WithoutTrap => "pages the kernel got without a trap",
            Self::Lost => "lost",
            Self::NotCompleted => "refused or not completed",
            Self::NotWaitedFor => "of processes that were not waited for",
            Self::Untraced => "of processes that could not be traced",
            Self::Edges => "while the trace began or ended",
            Self::BetweenScans => "pages that came back, or came and went, between scans",
            Self::AroundFaults => "pages that came without a fault of their own",
            Self::Unexplained => "not explained",
        }
    }
}

/// How the program ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It did not: neap detached from it, or never started it.
    #[default]
    Running,
    /// It ended; how is unknown, because it is not neap's child.
    Ended,
    /// With that exit status.
    Exited(i32),
    /// By that signal.
    Signal(i32),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("still running"),
            Self::Ended => f.write_str("ended"),
            Self::Exited(status) => write!(f, "exit status {status}"),
            Self::Signal(number) => write!(f, "ended by signal {number}"),
        }
    }
}

impl Summary {
    /// The footer as lines of text, without an end of line, for formats made of lines.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("neap {} pagein: {} faults, by {}", self.neap, self.faults, self.backend.label())];
        if !self.command.is_empty() {
            lines.push(format!("command: {}", self.command.join(" ")));
        }
        lines.push(format!("process {}: {}, after {:.6} s", self.pid, self.end, self.duration as f64 / 1e9));
        if let Some(usage) = self.usage {
            lines.push(format!(
                "the kernel counts {} ({} minor, {} major): {}",
                usage.total(),
                usage.minor,
                usage.major,
                self.explanation()
            ));
        }
        lines.push(format!("lost: {}", self.lost));
        if let Some(sites) = &self.sites {
            lines.push(format!("allocation sites: {sites}"));
        }
        if self.exact {
            lines.push("fault-around was off: each touched page of a file shows once".to_owned());
        }
        lines.extend(self.missing.iter().map(|what| format!("missing: {what}")));
        lines.extend(self.remedy.iter().map(|command| format!("for the full view: {command}")));
        lines
    }

    /// Why the counts differ.
    fn explanation(&self) -> String {
        let parts: Vec<String> = self
            .differences
            .iter()
            .filter(|difference| difference.count != 0)
            .map(|difference| format!("{:+} {}", difference.count, difference.cause.label()))
            .collect();
        if parts.is_empty() { "all of them are here".to_owned() } else { parts.join(", ") }
    }
}
