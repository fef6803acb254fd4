//! Reads a process, and writes reports.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use neap_launch::error::{Error, system_message};
use neap_launch::fit::fit;
use neap_launch::output;
use neap_launch::sys;

use super::report::{Report, Wanted};
use super::text;
use crate::args::ShowArgs;

/// The current memory of the process.
pub fn read(args: &ShowArgs, pid: u32, since: Instant) -> Result<Report, Error> {
    let wanted = Wanted { read: args.read, scans: true };
    let report = Report::read(neap_process::living(pid), wanted, since).and_then(|mut report| {
        match report.mappings.is_empty() {
            true => Err(io::Error::other("it has no memory of its own: it has ended, or it is a thread of the kernel")),
            false => {
                report.pid = pid;
                Ok(report)
            }
        }
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
    file: Arc<Mutex<output::Output>>,
    json: bool,
    all: bool,
    /// Whether each report is on one line, because several may follow each other.
    lines: bool,
}

impl Output {
    /// The same file, for another thread.
    pub fn share(&self) -> Output {
        Output { file: self.file.clone(), ..*self }
    }

    /// The file that the arguments name, or the one that `standard` returns.
    pub fn create(args: &ShowArgs, standard: impl FnOnce() -> io::Result<File>) -> Result<Output, Error> {
        let file = match &args.output {
            Some(path) => output::Output::to(path)?,
            None => standard().map(output::Output::stream).map_err(|error| {
                Error::failed(format!("cannot write to standard output or error: {}", system_message(&error)))
                    .remedy("name another file with -o")
            })?,
        };
        let file = Arc::new(Mutex::new(file));
        Ok(Output { file, json: args.json, all: args.all, lines: args.interval.is_some() })
    }

    /// Writes one report.
    pub fn write(&mut self, report: &Report) -> Result<(), Error> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match (self.json, self.lines) {
            (true, true) => serde_json::to_string(report).map(|text| text + "\n"),
            (true, false) => serde_json::to_string_pretty(report).map(|text| text + "\n"),
            (false, _) => Ok(match sys::width_of(file.file().as_raw_fd()) {
                Some(width) => fit(&text::text(report, self.all, width), width),
                None => text::text(report, self.all, usize::MAX),
            }),
        };
        let written = text.map_err(io::Error::other).and_then(|text| file.append(text.as_bytes()));
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::failed(format!("cannot write the report: {}", system_message(&error)))
                    .remedy("make room there and run it again, or name a file elsewhere with -o"))
            }
            _ => Ok(()),
        }
    }
}
