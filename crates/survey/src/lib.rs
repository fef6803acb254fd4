//! Requests sampled blocks from a process under neap, and makes profiles of them: what is live, what was allocated,
//! what has grown.
//!
//! | file | answers |
//! |---|---|
//! | `process.rs` | the fronts of files in a process, and how its memory is read and written |
//! | `fuel.rs` | what a look at it may cost |
//! | `find.rs` | where its control block is |
//! | `ask.rs` | how samples are requested |
//! | `snapshot.rs` | a copy of its file of samples, from its memory or from a directory |
//! | `walk.rs`, `slab.rs`, `resident.rs` | what keeps each resident OS page: the heap's own records, the kernel's page table |
//! | `pinned.rs` | who keeps them: the rule by which what blocks pin is divided among stacks |
//! | `heap.rs` | from snapshots to a profile |
//! | `names.rs` | names and lines for addresses |
//!
//! Requests and reads go through `/proc/PID/mem`, without stopping the process. That needs the rights of a debugger,
//! which the kernel checks: the same user (where `kernel.yama.ptrace_scope` is 1: a process that this one started), or
//! root. May depend on `neap-core` (structures of the heap), `neap-samples` (layouts), `neap-profile` (the model),
//! `neap-symbols`, `neap-process` and std.
#![forbid(unsafe_code)]

mod ask;
mod find;
mod fuel;
mod heap;
mod names;
mod pinned;
mod process;
mod resident;
mod slab;
mod snapshot;
mod walk;

pub use ask::{Asked, Look, Request};
pub use fuel::Fuel;
pub use heap::{Scope, pinned_profile, profile};
pub use pinned::{Attributed, Key, Stratum, Tally};
pub use snapshot::{Snapshot, in_directory};
pub use walk::Walked;

use neap_profile::Profile;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why there is no profile.
#[derive(Debug)]
pub enum Error {
    /// There is no such process.
    NoProcess,
    /// The process does not run on neap, or on a version without sampling.
    NoNeap,
    /// This user may not read the process, or not write to it.
    Denied,
    /// The process runs on another version of neap.
    Version(u64),
    /// The process's heap has structures that this neap does not know.
    Structures,
    /// The process did not answer in this time.
    Silent(Duration),
    /// The process executed another program, or ended, before it was read.
    Gone,
    /// Another error of the system.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoProcess => f.write_str("no such process"),
            Error::NoNeap => {
                f.write_str("it does not run on neap, or on a version that cannot be asked: start it with neap run")
            }
            Error::Denied => f.write_str(
                "no permission to ask the process: run neap as root, or as its user where \
                 kernel.yama.ptrace_scope is 0; or start the program with neap profile -- CMD",
            ),
            Error::Version(version) => write!(f, "its neap has samples of version {version}, unknown here"),
            Error::Structures => {
                f.write_str("its neap has a heap of another make: use the command neap of the build that it runs on")
            }
            Error::Silent(time) => write!(
                f,
                "it has not answered in {:.1} s: it is idle, or serves all calls from its caches, so that it made no call \
                 that neap looks in (a longer --duration may help); or it has another malloc, as under valgrind",
                time.as_secs_f64()
            ),
            Error::Gone => f.write_str("the process ended, or executed another program"),
            Error::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        /// ESRCH: the process has ended, but was not waited for.
        const ENDED: i32 = 3;
        match e.kind() {
            io::ErrorKind::NotFound => Error::NoProcess,
            _ if e.raw_os_error() == Some(ENDED) => Error::NoProcess,
            io::ErrorKind::PermissionDenied => Error::Denied,
            _ => Error::Io(e),
        }
    }
}

/// Profiles process `pid` for a while: blocks that are allocated in that time, with mean distances of `interval` bytes.
/// If the process takes samples already, all of them are included.
pub fn collect(pid: u32, duration: Duration, interval: u64) -> Result<Profile, Error> {
    let mut asked = Asked::ask(pid, Request { interval, duration })?;
    let waited = asked.wait(&mut || false);
    let snapshot = asked.snapshot();
    asked.end()?;
    waited?;
    let snapshot = snapshot?;
    Ok(profile(snapshot.as_ref(), None, &Scope::of(&asked)))
}
