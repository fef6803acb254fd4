//! Files with traces.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use neap_launch::error::{Error, cannot_print, system_message};
use neap_launch::sys;
use neap_layout::{Trace, TraceError};

use crate::args::MergeArgs;

/// Opens a file before there is anything to write, so that an error comes before the run; `-` is standard output. What
/// a file has stays in it until the trace is written.
pub fn create(path: &Path) -> Result<File, Error> {
    if path.as_os_str() == "-" {
        return sys::standard_output().map_err(|e| cannot_print(&e).remedy("name a file with -o"));
    }
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.map_err(|e| cannot_write(path, &e))
}

/// Writes a trace.
pub fn write(file: File, path: &Path, trace: &Trace) -> Result<(), Error> {
    let text = trace.to_json().map_err(|e| Error::failed(format!("cannot write a trace: {e}")))?;
    write_text(file, path, &text)
}

/// Writes a text in the place of what the file had.
pub fn write_text(mut file: File, path: &Path, text: &[u8]) -> Result<(), Error> {
    let is_file = path.as_os_str() != "-" && file.metadata().is_ok_and(|metadata| metadata.is_file());
    let emptied = if is_file { file.set_len(0) } else { Ok(()) };
    emptied.and_then(|()| file.write_all(text)).map_err(|e| cannot_write(path, &e))
}

/// Reads a trace.
pub fn read(path: &Path) -> Result<Trace, Error> {
    let name = path.display();
    let text = fs::read(path).map_err(|e| Error::failed(format!("cannot read {name}: {}", system_message(&e))))?;
    Trace::parse(&text).map_err(|e| {
        Error::failed(format!("cannot use {name}: {e}")).remedy("neap order trace -o T -- PROGRAM makes a trace")
    })
}

/// `neap order merge`.
pub fn merge(args: &MergeArgs) -> Result<u8, Error> {
    let traces = args.traces.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let merged = Trace::merge(traces).map_err(|e| match e {
        TraceError::OtherBuild(..) => Error::failed(e.to_string()).remedy("trace one build in all workloads"),
        _ => Error::failed(e.to_string()),
    })?;
    write(create(&args.output)?, &args.output, &merged).map(|()| 0)
}

fn cannot_write(path: &Path, error: &io::Error) -> Error {
    Error::failed(format!("cannot write to {}: {}", path.display(), system_message(error)))
        .remedy("name another file with -o")
}
