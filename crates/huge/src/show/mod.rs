//! `neap huge show`: the sizes of the pages that hold a process's memory.

mod output;
mod pages;
mod program;
mod report;
mod smaps;
mod text;
mod zeros;

use std::time::Instant;

use neap_launch::error::Error;
use neap_launch::{signals, sys};

use self::output::{Output, read};
use crate::args::ShowArgs;

/// Runs the command; the result is neap's exit status, or the program's.
pub fn run(args: &ShowArgs) -> Result<u8, Error> {
    match (args.pid, args.command.is_empty()) {
        (Some(pid), true) => process(args, pid),
        (None, false) => program::run(args),
        (Some(_), false) => Err(Error::failed("a process and a command exclude each other")
            .remedy("neap huge show PID, or neap huge show -- CMD")),
        (None, true) => Err(Error::failed("neither a process nor a command is given")
            .remedy("neap huge show PID, or neap huge show -- CMD")),
    }
}

/// Shows a running process: once, or until it ends.
fn process(args: &ShowArgs, pid: u32) -> Result<u8, Error> {
    let (mut output, started) = (Output::create(args, sys::standard_output)?, Instant::now());
    output.write(&read(args, pid, started)?)?;
    let Some(interval) = args.interval else { return Ok(0) };
    let inherited = signals::block();
    let mut result = Ok(());
    while result.is_ok() && !signals::asked_to_end(interval) {
        // It has ended.
        let Ok(report) = read(args, pid, started) else { break };
        result = output.write(&report);
    }
    inherited.release();
    result.map(|()| 0)
}
