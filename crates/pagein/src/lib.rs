//! `neap pagein`: every page fault of a program, in order, with its cause.
//!
//! May depend on `neap-launch`, `neap-process`, `neap-trace`, `neap-symbols`, `neap-sites`, `neap-options`, `neap-core` (the layout of
//! its records, to read those of a process), well-kept libraries, the C library and std.
//!
//! The steps, each in a module: start the program (`program`) or attach to one (`attach`); open the events (`perf`) and
//! collect them in a thread while it runs (`collect`, `store`), or scan page tables instead (`scan`, `follow`); find
//! symbols (`resolve`, `files`); explain what the trace covers (`footer`), and write it (`watch` combines these).
//! `diff` compares two written traces, `show` converts one. `clock` does the same with samples of the clock, for `neap
//! profile --time`. Code without system calls is in `crates/trace` and `crates/symbols`.

pub mod args;
mod attach;
mod blocks;
mod bpf;
pub mod clock;
mod code;
mod collect;
mod diff;
mod exact;
mod files;
mod follow;
mod footer;
pub mod limit;
mod output;
mod perf;
mod program;
mod progress;
pub mod resolve;
mod scan;
mod show;
mod sites;
mod stat;
mod store;
mod sys;
mod unwind;
mod watch;

use neap_launch::error::Error;
use neap_trace::format::Format;

use self::args::{PageinAction, PageinArgs};

/// Runs the command; the result is the program's exit status, as with `neap run`.
pub fn run(mut args: PageinArgs) -> Result<u8, Error> {
    if let Some(json) = Format::from_name("json").filter(|_| args.json) {
        args.format = json;
    }
    match &args.action {
        Some(PageinAction::Diff(diff)) => return diff::run(diff),
        Some(PageinAction::Show(show)) => return show::run(show),
        None => {}
    }
    match (args.pid, args.command.is_empty()) {
        (Some(pid), true) => attach::run(&args, pid),
        (None, false) => program::run(&args),
        (Some(_), false) => Err(Error::failed("--pid and a program exclude each other")),
        (None, true) => Err(Error::failed("neither a program nor a process is given").remedy("neap pagein -- PROGRAM")),
    }
}
