//! Reads the counters page of a running process under neap, from outside and without stopping it.
//!
//! The page is found in `/proc/PID/maps` and read through `/proc/PID/map_files` (which needs privilege) or through
//! `/proc/PID/mem` (which needs the rights of a debugger: the same user, if the kernel permits). May depend on
//! `neap-counters`, which has layout and parser, `neap-process` and std. It is a separate crate because it needs std, and
//! a feature of `neap-counters` would reach the library without std whenever both are built together.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use neap_counters::maps::{Likely, likely};
use neap_counters::{FILE_BYTES, Snapshot, Unreadable};
use neap_process::maps::parse_maps;

/// How often reading a page is tried while its writer is in the middle of an update, which takes less than a
/// microsecond.
const TRIES: u32 = 20;
/// Limit on the mappings that are tried as the page: a process can have any number that look like it.
const CANDIDATES: usize = 256;
const PAUSE: Duration = Duration::from_micros(50);

/// Why there are no counters.
#[derive(Debug)]
pub enum Error {
    /// There is no such process.
    NoProcess,
    /// The process has no page: it does not run on neap, or never held more than some 8 MiB.
    NoPage,
    /// This user may not look into the process.
    Denied,
    /// The page is one of another major version.
    Version(u32),
    /// The system says something else.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoProcess => f.write_str("no such process"),
            Error::NoPage => f.write_str(
                "no counters page: it does not run on neap, uses little memory, or has taken little since a fork",
            ),
            Error::Denied => f.write_str("no permission to read the process"),
            Error::Version(v) => write!(f, "its counters have version {}.{}, unknown here", v >> 16, v & 0xffff),
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

/// The counters page of a process, and where it lies. Good until the process ends or executes another program.
#[derive(Clone, Debug)]
pub struct Page {
    pid: u32,
    range: Range<u64>,
}

impl Page {
    /// Finds the page of process `pid`, also if its first thread has ended.
    pub fn find(pid: u32) -> Result<Page, Error> {
        let via = neap_process::living(pid);
        Self::find_via(pid, via, &neap_process::maps(via)?)
    }

    /// The same for callers who have read `/proc/PID/maps` already.
    pub fn find_in(pid: u32, maps: &[u8]) -> Result<Page, Error> {
        Self::find_via(pid, pid, maps)
    }

    /// Finds the page of process `pid`, whose files can be seen by the number `via`.
    fn find_via(pid: u32, via: u32, maps: &[u8]) -> Result<Page, Error> {
        let mut found: Vec<(Likely, Page)> = parse_maps(maps)
            .filter_map(|line| {
                let likely = likely(line.flags, line.offset, line.end - line.start, line.path)?;
                Some((likely, Page { pid: via, range: line.range() }))
            })
            .collect();
        found.sort_by_key(|(likely, _)| *likely);
        found.truncate(CANDIDATES);
        let (mut best, mut error) = (None, Error::NoPage);
        for (_, page) in found {
            match page.read() {
                // A child that counts each call still has its parent's file mapped.
                Ok(s) if s.pid == 0 || is_number_of(pid, s.pid) => return Ok(page),
                Ok(_) => best = best.or(Some(page)),
                Err(e @ (Error::Denied | Error::Version(_))) => error = e,
                Err(_) => {}
            }
        }
        // Numbers of other namespaces may be unknown here.
        best.ok_or(error)
    }

    /// Reads the page. Where the process was stopped in the middle of an update, some gauges are newer than others.
    pub fn read(&self) -> Result<Snapshot, Error> {
        for _ in 0..TRIES {
            match Snapshot::parse(&self.copy()?, &self.copy()?) {
                Err(Unreadable::Torn) => std::thread::sleep(PAUSE),
                result => return result.map_err(refused),
            }
        }
        Snapshot::parse_still(&self.copy()?).map_err(refused)
    }

    fn copy(&self) -> Result<[u8; FILE_BYTES], Error> {
        let mut page = [0; FILE_BYTES];
        // The file is opened again each time: while it is open it outlives the process.
        match File::open(neap_process::file::map_file(self.pid, &self.range)) {
            Ok(file) => file.read_exact_at(&mut page, 0)?,
            Err(_) => File::open(format!("/proc/{}/mem", self.pid))?.read_exact_at(&mut page, self.range.start)?,
        }
        Ok(page)
    }
}

/// The counters of process `pid`, now.
pub fn read(pid: u32) -> Result<Snapshot, Error> {
    Page::find(pid)?.read()
}

fn refused(why: Unreadable) -> Error {
    match why {
        Unreadable::Version(v) => Error::Version(v),
        Unreadable::Foreign | Unreadable::Torn => Error::NoPage,
    }
}

/// Whether process `pid` has the number `other` in some namespace.
fn is_number_of(pid: u32, other: u32) -> bool {
    pid == other || neap_process::numbers(pid).contains(&other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches errors that do not tell what is wrong.
    #[test]
    fn errors_say_why() {
        assert!(matches!(read(u32::MAX), Err(Error::NoProcess)));
        assert!(matches!(read(std::process::id()), Err(Error::NoPage)));
    }
}
