//! The file of a trace.

use neap_launch::error::Error;
use neap_launch::output::Output;

use super::args::PageinArgs;

/// Opens the file that the user named (`-` is standard output), otherwise `pagein.PID` with the format's ending.
pub fn create(args: &PageinArgs, pid: u32) -> Result<Output, Error> {
    Output::create(args.output.as_deref(), &format!("pagein.{pid}{}", args.format.ending))
}
