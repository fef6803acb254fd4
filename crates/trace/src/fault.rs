//! One page fault.

use serde::{Deserialize, Serialize};

use crate::text;
use crate::{BlockId, MappingId, PlaceId, StackId, ThreadId};

/// One page fault. Small enough to be copied; names are in the [`Tables`](crate::Tables).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its position in the order of the trace, from 1. Filters leave gaps.
    pub number: u64,
    /// When it began: nanoseconds since the first fault of the trace began.
    pub time: u64,
    /// How long the kernel took, in nanoseconds; `None` where its end was not seen, or the thread ended first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<u32>,
    /// The thread that it happened to.
    pub thread: ThreadId,
    /// The address that was accessed, as exactly as the kernel reports it.
    #[serde(with = "text::hex")]
    pub address: u64,
    /// The size of the page that was mapped, as a power of two: 12 is 4 KiB, 21 is 2 MiB. None where unknown, or
    /// where nothing was mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_shift: Option<u8>,
    /// Whether an instruction was fetched, or data accessed: the `C` and `D` of the classic format.
    pub subject: Subject,
    /// The kind of access, as far as it is known.
    pub access: Access,
    /// Why there was a fault.
    pub kind: Kind,
    /// Whether [`kind`](Self::kind) is a guess: see `docs/pagein.md` for which are, and when.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guessed: bool,
    /// The address of the instruction.
    #[serde(with = "text::hex")]
    pub ip: u64,
    /// Whose instruction it was.
    pub mode: Mode,
    /// The mapping at the address; none where none was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapping: Option<MappingId>,
    /// The instruction's symbol, object and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<PlaceId>,
    /// The data symbol at the address, in a mapping of an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PlaceId>,
    /// The block of the heap at the address, under neap's allocator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<BlockId>,
    /// The callers, where they were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackId>,
}

impl Fault {
    /// A fault at the beginning of a trace of which nothing else is known.
    pub const fn new(number: u64, thread: ThreadId, address: u64, ip: u64) -> Self {
        Self {
            number,
            time: 0,
            service: None,
            thread,
            address,
            page_shift: None,
            subject: Subject::Data,
            access: Access::Unknown,
            kind: Kind::Unknown,
            guessed: true,
            ip,
            mode: Mode::User,
            mapping: None,
            code: None,
            data: None,
            block: None,
            stack: None,
        }
    }

    /// The first address of the page that was mapped; of the 4 KiB around the address where its size is unknown.
    pub fn page(&self) -> u64 {
        let shift = self.page_shift.filter(|&shift| shift < 64).unwrap_or(12);
        self.address >> shift << shift
    }
}

/// Code or data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// An instruction was fetched.
    Code,
    /// An instruction accessed data.
    Data,
}

impl Subject {
    /// `C` or `D`.
    pub const fn letter(self) -> char {
        match self {
            Self::Code => 'C',
            Self::Data => 'D',
        }
    }
}

/// The kind of access of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// The backend does not tell.
    Unknown,
    /// Data was read.
    Read,
    /// Data was written.
    Write,
    /// An instruction was fetched.
    Execute,
}

impl Access {
    /// One word, lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "execute",
        }
    }
}

/// The mode of the faulting instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The program's own.
    User,
    /// Kernel mode: the kernel accessed the program's memory on its behalf (read, write, exec).
    Kernel,
}

impl Mode {
    /// One word, lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }
}

/// Why there was a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Anonymous memory was touched for the first time, and a page was zeroed for it.
    #[serde(rename = "anon")]
    Anonymous,
    /// Anonymous memory was read for the first time: the shared zero page was mapped.
    #[serde(rename = "zero")]
    ZeroPage,
    /// A read-only page was written, and copied (or reused by its last owner).
    #[serde(rename = "cow")]
    CopyOnWrite,
    /// A page of a file (or of shared memory) was in memory, and was mapped.
    FileMinor,
    /// A page of a file was read from the disk.
    FileMajor,
    /// A huge page was mapped at once.
    Huge,
    /// A page of anonymous memory was swapped in.
    SwapIn,
    /// There was nothing to access: the program got SIGSEGV or SIGBUS.
    Refused,
    /// None of these, or not known.
    Unknown,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Anonymous,
        Self::ZeroPage,
        Self::CopyOnWrite,
        Self::FileMinor,
        Self::FileMajor,
        Self::Huge,
        Self::SwapIn,
        Self::Refused,
        Self::Unknown,
    ];

    /// A short name, lower case, with hyphens: the one in every format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anon",
            Self::ZeroPage => "zero",
            Self::CopyOnWrite => "cow",
            Self::FileMinor => "file-minor",
            Self::FileMajor => "file-major",
            Self::Huge => "huge",
            Self::SwapIn => "swap-in",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }

    /// The kind of that [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A few words for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Anonymous => "first touch of anonymous memory",
            Self::ZeroPage => "zero page",
            Self::CopyOnWrite => "copy on write",
            Self::FileMinor => "file, in memory",
            Self::FileMajor => "file, from disk",
            Self::Huge => "huge page",
            Self::SwapIn => "swapped in",
            Self::Refused => "refused (signal)",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a kind that has one name in JSON and another elsewhere.
    #[test]
    fn one_name_each() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).expect("a word"), kind.name());
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        for access in [Access::Unknown, Access::Read, Access::Write, Access::Execute] {
            assert_eq!(serde_json::to_value(access).expect("a word"), access.name());
        }
        for mode in [Mode::User, Mode::Kernel] {
            assert_eq!(serde_json::to_value(mode).expect("a word"), mode.name());
        }
    }
}
