//! `neap pagein diff`: compares two traces.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use neap_trace::diff::{Diff, Totals, Unreadable, read, text};
use serde::Serialize;

use super::args::DiffArgs;
use neap_launch::error::{Error, cannot_print, system_message};
use neap_launch::sys;

/// Progress is shown after this time, and then at this interval.
const PROGRESS: Duration = Duration::from_secs(2);

/// The comparison as JSON.
#[derive(Serialize)]
struct Report<'a> {
    before: Side<'a>,
    after: Side<'a>,
    #[serde(flatten)]
    diff: &'a Diff,
}

/// A trace that is compared.
#[derive(Serialize)]
struct Side<'a> {
    file: &'a str,
    /// Empty where the trace does not contain it.
    command: &'a [String],
    faults: u64,
}

impl<'a> Side<'a> {
    fn new(file: &'a str, totals: &'a Totals) -> Self {
        Self { file, command: &totals.command, faults: totals.faults }
    }
}

/// Compares two files and prints the result.
pub fn run(args: &DiffArgs) -> Result<u8, Error> {
    if args.before.as_os_str() == "-" && args.after.as_os_str() == "-" {
        return Err(Error::failed("both traces cannot come from standard input").remedy("name a file for one of them"));
    }
    let before = totals(&args.before)?;
    let after = totals(&args.after)?;
    let diff = Diff::new(&before, &after);
    let (before_name, after_name) = (args.before.to_string_lossy(), args.after.to_string_lossy());
    let mut out = BufWriter::new(sys::standard_output().map_err(|e| cannot_print(&e))?);
    let written = if args.json {
        let report =
            Report { before: Side::new(&before_name, &before), after: Side::new(&after_name, &after), diff: &diff };
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from).and_then(|()| writeln!(out))
    } else {
        text([(before_name.as_ref(), &before), (after_name.as_ref(), &after)], &diff, args.limit, &mut out)
    };
    match written.and_then(|()| out.flush()) {
        // `neap pagein diff ... | head`
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(cannot_print(&error)),
        Ok(()) => Ok(0),
    }
}

/// Reads and counts a trace; `-` is standard input.
fn totals(path: &Path) -> Result<Totals, Error> {
    let name = path.display().to_string();
    let mut reader: Box<dyn BufRead> = if name == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file =
            File::open(path).map_err(|e| Error::failed(format!("cannot read {name}: {}", system_message(&e))))?;
        Box::new(BufReader::with_capacity(64 << 10, Shown::new(file, &name)))
    };
    read(&mut *reader).map_err(|why| {
        let why = match why {
            Unreadable::Io(error) => system_message(&error),
            other => other.to_string(),
        };
        Error::failed(format!("cannot compare {name}: {why}"))
            .remedy("neap pagein --format json -o FILE -- PROGRAM writes a trace that can be compared")
    })
}

/// A file; a terminal shows how much of it was read.
struct Shown {
    file: File,
    name: String,
    size: u64,
    read: u64,
    /// `None` where progress is not shown.
    next: Option<Instant>,
    shown: bool,
}

impl Shown {
    fn new(file: File, name: &str) -> Self {
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        let next = (size != 0 && io::stderr().is_terminal()).then(|| Instant::now() + PROGRESS);
        Self { file, name: name.to_owned(), size, read: 0, next, shown: false }
    }
}

impl Read for Shown {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read += count as u64;
        if self.next.is_some_and(|next| next <= Instant::now()) {
            self.next = Some(Instant::now() + PROGRESS);
            self.shown = true;
            let percent = self.read.saturating_mul(100) / self.size;
            let _ = io::stderr().write_all(format!("\rneap: {}: {percent} %\x1b[K\r", self.name).as_bytes());
        }
        Ok(count)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.shown {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
