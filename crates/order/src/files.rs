//! Files with traces.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use neap_launch::error::{Error, cannot_print, system_message};
use neap_launch::sys;

use crate::args::MergeArgs;
use crate::model::{FORMAT, Trace};

/// Opens a file before there is anything to write, so that no run is in vain; `-` is standard output. What a file has stays
/// in it until the trace is written.
pub fn create(path: &Path) -> Result<File, Error> {
    if path.as_os_str() == "-" {
        return sys::standard_output().map_err(|e| cannot_print(&e).remedy("name a file with -o"));
    }
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.map_err(|e| cannot_write(path, &e))
}

/// Writes a trace.
pub fn write(mut file: File, path: &Path, trace: &Trace) -> Result<(), Error> {
    let mut text = serde_json::to_vec(trace).map_err(|e| Error::failed(format!("cannot write a trace: {e}")))?;
    text.push(b'\n');
    let is_file = path.as_os_str() != "-" && file.metadata().is_ok_and(|metadata| metadata.is_file());
    let emptied = if is_file { file.set_len(0) } else { Ok(()) };
    emptied.and_then(|()| file.write_all(&text)).map_err(|e| cannot_write(path, &e))
}

/// Reads a trace.
pub fn read(path: &Path) -> Result<Trace, Error> {
    let name = path.display();
    let text = fs::read(path).map_err(|e| Error::failed(format!("cannot read {name}: {}", system_message(&e))))?;
    let remedy = "neap order trace -o T -- PROGRAM makes one";
    let trace: Trace = serde_json::from_slice(&text)
        .map_err(|e| Error::failed(format!("{name} is not a trace of neap order: {e}")).remedy(remedy))?;
    match trace.format == FORMAT {
        true => Ok(trace),
        false => Err(Error::failed(format!("{name} has the format {:?}, not {FORMAT:?}", trace.format)).remedy(remedy)),
    }
}

/// `neap order merge`.
pub fn merge(args: &MergeArgs) -> Result<u8, Error> {
    let mut merged: Option<Trace> = None;
    for path in &args.traces {
        let trace = read(path)?;
        match &mut merged {
            None => merged = Some(trace),
            Some(merged) if merged.is_of_same_binary(&trace) => merged.merge(trace),
            Some(_) => {
                let (one, other) = (args.traces[0].display(), path.display());
                return Err(Error::failed(format!("{one} and {other} are of different builds"))
                    .remedy("trace one build in all workloads"));
            }
        }
    }
    let Some(merged) = merged else { return Err(Error::failed("no trace is given")) };
    write(create(&args.output)?, &args.output, &merged).map(|()| 0)
}

fn cannot_write(path: &Path, error: &io::Error) -> Error {
    Error::failed(format!("cannot write to {}: {}", path.display(), system_message(error)))
        .remedy("name another file with -o")
}
