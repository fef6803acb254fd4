//! Files with traces, and binaries with their debug information.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use neap_launch::error::{Error, cannot_print, system_message};
use neap_launch::sys;
use neap_layout::binary::{NamedBy, NotElf};
use neap_layout::{Binary, Trace, TraceError};

use crate::args::MergeArgs;

/// Opens a file before the run, so that an error is reported early; `-` is standard output. The file keeps its contents
/// until the trace is written.
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

/// Replaces the contents of a file, which keeps them if that fails. A file that was removed meanwhile is made again.
pub fn write_text(file: File, path: &Path, text: &[u8]) -> Result<(), Error> {
    let of_file = |file: &File| file.metadata().ok().filter(|found| path.as_os_str() != "-" && found.is_file());
    let removed = of_file(&file).is_some_and(|metadata| metadata.nlink() == 0);
    let mut file = if removed { create(path)? } else { file };
    let replace = || {
        let Some(metadata) = of_file(&file) else { return file.write_all(text) };
        let Some((part, mut fresh)) = beside(&metadata, path) else {
            return file.set_len(0).and_then(|()| file.write_all(text));
        };
        let written = fresh.write_all(text).and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    };
    sys::with_size_errors(replace).map_err(|e| cannot_write(path, &e))
}

/// A new file that can take the place of another one: beside it, with its owner and mode. None for a file that the path
/// only leads to, or that has other names, and where no such file can be made: such are written where they are.
fn beside(metadata: &Metadata, path: &Path) -> Option<(PathBuf, File)> {
    let is_same = |found: Metadata| (found.dev(), found.ino()) == (metadata.dev(), metadata.ino());
    if metadata.nlink() != 1 || !fs::symlink_metadata(path).is_ok_and(is_same) {
        return None;
    }
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let fresh = File::options().write(true).create_new(true).open(&part).ok()?;
    let owned = fchown(&fresh, Some(metadata.uid()), Some(metadata.gid()));
    if owned.and_then(|()| fresh.set_permissions(metadata.permissions())).is_err() {
        let _ = fs::remove_file(&part);
        return None;
    }
    Some((part.into(), fresh))
}

/// The folder in which distributions install debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Parses the bytes of a binary; a stripped one with the names from its debug information.
pub fn parse(bytes: &[u8]) -> Result<Binary, NotElf> {
    let mut binary = Binary::parse(bytes)?;
    if binary.named_by != NamedBy::All
        && let Some(name) = binary.debug_name()
        && let Ok(debug) = fs::read(Path::new(DEBUG_ROOT).join(name))
        && let Ok(debug) = Binary::parse(&debug)
    {
        binary.take_names(debug);
    }
    Ok(binary)
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
