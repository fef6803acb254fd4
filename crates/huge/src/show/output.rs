//! Reads a process, and writes reports.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::time::Instant;

use neap_launch::error::{Error, system_message};
use neap_launch::fit::fit;
use neap_launch::sys;

use super::report::{Report, Wanted};
use super::text;
use crate::args::ShowArgs;

/// The current memory of the process.
pub fn read(args: &ShowArgs, pid: u32, since: Instant) -> Result<Report, Error> {
    let wanted = Wanted { read: args.read, scans: true };
    let report = Report::read(pid, wanted, since).and_then(|report| match report.mappings.is_empty() {
        true => Err(io::Error::other("it has no memory of its own: it has ended, or it is a thread of the kernel")),
        false => Ok(report),
    });
    report.map_err(|error| {
        let (why, remedy) = match error.kind() {
            io::ErrorKind::NotFound => ("there is no such process".to_owned(), "is it still running?"),
            io::ErrorKind::PermissionDenied => {
                (system_message(&error), "it belongs to another user: run neap as that user, or as root")
            }
            _ => (system_message(&error), "is it still running?"),
        };
        Error::failed(format!("cannot show process {pid}: {why}")).remedy(remedy)
    })
}

/// The destination of reports.
pub struct Output {
    file: File,
    json: bool,
    all: bool,
    /// Whether each report is on one line, because several may follow each other.
    lines: bool,
}

impl Output {
    /// The same file, for another thread.
    pub fn try_clone(&self) -> io::Result<Output> {
        Ok(Output { file: self.file.try_clone()?, ..*self })
    }

    /// The file that the arguments name, or the one that `standard` returns.
    pub fn create(args: &ShowArgs, standard: impl FnOnce() -> io::Result<File>) -> Result<Output, Error> {
        let (file, name) = match &args.output {
            Some(path) if path.as_os_str() != "-" => (File::create(path), path.display().to_string()),
            Some(_) => (sys::standard_output(), "standard output".to_owned()),
            None => (standard(), "standard output or error".to_owned()),
        };
        let file = file.map_err(|error| {
            Error::failed(format!("cannot write to {name}: {}", system_message(&error)))
                .remedy("name another file with -o")
        })?;
        Ok(Output { file, json: args.json, all: args.all, lines: args.interval.is_some() })
    }

    /// Writes one report.
    pub fn write(&mut self, report: &Report) -> Result<(), Error> {
        let text = match (self.json, self.lines) {
            (true, true) => serde_json::to_string(report).map(|text| text + "\n"),
            (true, false) => serde_json::to_string_pretty(report).map(|text| text + "\n"),
            (false, _) => Ok(match sys::width_of(self.file.as_raw_fd()) {
                Some(width) => fit(&text::text(report, self.all, width), width),
                None => text::text(report, self.all, usize::MAX),
            }),
        };
        let write = |text: String| sys::with_size_errors(|| self.file.write_all(text.as_bytes()));
        let written = text.map_err(io::Error::other).and_then(write);
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::failed(format!("cannot write the report: {}", system_message(&error))))
            }
            _ => Ok(()),
        }
    }
}
