//! The file of a trace.

use neap_launch::error::Error;
use neap_launch::output::Output;
use neap_launch::sys::width_of;
use neap_trace::Source;
use neap_trace::format::{Format, table_within};

use super::args::PageinArgs;

/// Opens the file that the user named (`-` is standard output), otherwise `pagein.PID` with the format's ending.
pub fn create(args: &PageinArgs, pid: u32) -> Result<Output, Error> {
    Output::create(args.output.as_deref(), &format!("pagein.{pid}{}", args.format.ending))
}

/// Writes a trace; a table on a terminal as wide as that.
pub fn write(output: &mut Output, format: &Format, trace: &dyn Source) -> Result<(), Error> {
    let terminal = output.is_standard().then(|| width_of(libc::STDOUT_FILENO)).flatten();
    output.write("the trace", |out| match terminal.filter(|_| format.name == "table") {
        Some(width) => table_within(trace, width, out),
        None => (format.write)(trace, out),
    })
}
