//! `neap why`: why a process is as large as it is. Reads it from outside, without stopping it: `/proc`, PAGEMAP_SCAN,
//! `process_vm_readv`. `neap-account` interprets what was read; `neap-heaps` knows the structures of heaps.
//!
//! Other commands call [`look`]. With [`Effort::Light`] reading a process costs as much as the kernel's own list, and
//! its heaps are not split; with [`Effort::Full`] everything is read; with [`Effort::Gentle`] a large process does not
//! have to wait meanwhile.
//!
//! | file | answers |
//! |---|---|
//! | `args.rs` | the arguments |
//! | `read.rs`, `failed.rs` | reads a process; why that failed |
//! | `memory.rs`, `sys.rs` | memory of a process; system calls |
//! | `held.rs` | whether calls can be made in it: traced, stopped, frozen |
//! | `slices.rs`, `priority.rs` | figures of its mappings without holding it up |
//! | `files.rs`, `known.rs` | its files; a cache of what they contain |
//! | `heaps.rs`, `stacks.rs`, `zeros.rs`, `repeated.rs`, `python.rs` | what its memory contains |
//! | `segments.rs`, `beside.rs` | data of files beyond their contents; what it causes that is not in Rss |
//! | `fork.rs` | what it has for itself since a fork |
//! | `cgroup.rs`, `holders.rs`, `charge.rs` | a container; what holds its files in memory; what is charged to it |
//! | `program.rs`, `over_time.rs`, `output.rs` | a command from its start; a process over time; output files |
//! | `stats.rs` | `neap stats` |
//!
//! May depend on `neap-account`, `neap-heaps`, `neap-survey`, `neap-observe`, `neap-process`, `neap-launch`,
//! well-kept libraries, the C library and std.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod args;
mod beside;
mod cgroup;
mod charge;
mod failed;
mod files;
mod fork;
mod heaps;
mod held;
mod holders;
mod known;
mod memory;
mod output;
mod over_time;
mod priority;
mod program;
mod python;
mod read;
mod repeated;
mod segments;
mod slices;
mod stacks;
mod stats;
mod sys;
mod zeros;

use neap_launch::error::Error;

pub use cgroup::look as look_at_cgroup;
pub use failed::{check_proc, remedy};
pub use program::{Exit, Watched};
pub use read::{Effort, look, look_until};
pub use slices::total;
pub use stats::run as stats;

use self::args::WhyArgs;
use self::output::Output;

/// Runs `neap why`; the result is neap's exit status, or the program's.
pub fn run(args: &WhyArgs) -> Result<u8, Error> {
    check_proc()?;
    if let Some(pid) = args.container_of {
        return cgroup::show(args, &cgroup::of_process(pid)?);
    }
    if let Some(path) = &args.cgroup {
        return cgroup::show(args, path);
    }
    match (args.pid, args.command.is_empty()) {
        (Some(pid), true) if args.watch => over_time::run(args, pid),
        (Some(pid), true) => {
            let mut output = Output::standard(args)?;
            let report = look(pid, Effort::Full)?;
            output.report(&report)?;
            Ok(0)
        }
        (None, false) if args.watch => {
            Err(Error::failed("--watch is for a process that runs already").remedy("neap why --watch PID"))
        }
        (None, false) => program::run(args),
        (Some(_), false) => {
            Err(Error::failed("a process and a command exclude each other").remedy("neap why PID, or neap why -- CMD"))
        }
        (None, true) => Err(Error::failed("neither a process nor a command is given")
            .remedy("neap why PID, neap why -- CMD, or neap why --cgroup self")),
    }
}
