//! `neap huge status`: the huge pages of the system, the meaning of each value, and how to change it.
//!
//! Everything is read from files below a root folder, so tests read copies. Each value that cannot be read is reported
//! in one line.

mod limits;
mod mounts;
mod read;
mod row;
mod settings;
#[cfg(test)]
mod tests;
mod text;

use neap_hugetlb::Root;
use neap_launch::error::Error;
use neap_launch::sys;

use self::read::Status;
use crate::args::StatusArgs;

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<u8, Error> {
    let status = Status::read(&Root::system());
    if !args.json {
        return sys::print_fitted(&text::text(&status));
    }
    let text = serde_json::to_string_pretty(&status);
    let text = text.map_err(|error| Error::failed(format!("cannot write JSON: {error}")))? + "\n";
    sys::print(text.as_bytes())
}
