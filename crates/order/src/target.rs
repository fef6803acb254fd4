//! The binary that is traced, and its place in a process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use libc::pid_t;
use neap_layout::FAULTS;
use neap_process::maps::{MapsLine, parse_maps};

use crate::binary::Binary;
use crate::plan::Plan;

/// How entered functions are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// By a breakpoint on each.
    Breakpoints,
    /// By their own calls of a library.
    Instrumented,
    /// By faults of OS pages of code.
    Faults,
}

impl Source {
    /// Its name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Breakpoints => "breakpoints",
            Self::Instrumented => "instrumented",
            Self::Faults => FAULTS,
        }
    }
}

/// What is traced.
pub struct Target {
    /// Without symbolic links.
    pub path: PathBuf,
    /// Its device and inode.
    pub identity: (u64, u64),
    /// In bytes.
    pub size: u64,
    /// Its functions.
    pub binary: Binary,
    /// How they are recorded.
    pub source: Source,
    /// Their sites, in the same order.
    pub plan: Plan,
    /// Whether it may be a library.
    pub may_be_library: bool,
    /// Whether all processes that have it are traced, not only the first.
    pub follow: bool,
}

impl Target {
    /// Whether it is the program of a process.
    pub fn is_program_of(&self, pid: pid_t) -> bool {
        let metadata = fs::metadata(format!("/proc/{pid}/exe"));
        metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity)
    }

    /// The difference between its addresses in a process and in the file; `None` where it is not mapped.
    pub fn bias_in(&self, pid: pid_t) -> Option<u64> {
        let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
        let is_code = |line: &MapsLine<'_>| line.flags.get(2) == Some(&b'x') && line.inode == self.identity.1;
        let mut found = parse_maps(&maps).filter(is_code).filter(|line| {
            // Some file systems report another device here than in `stat`.
            let device = (libc::major(self.identity.0), libc::minor(self.identity.0));
            line.device == device
                || fs::canonicalize(String::from_utf8_lossy(line.path).as_ref()).is_ok_and(|path| path == self.path)
        });
        found.find_map(|line| self.binary.bias(line.start, line.offset))
    }
}
