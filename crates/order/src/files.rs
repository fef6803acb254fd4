//! Files with traces, and binaries with their debug information.

use std::fs;
use std::path::Path;

use neap_launch::error::{Error, system_message};
use neap_launch::output::Output;
use neap_layout::binary::{NamedBy, NotElf};
use neap_layout::{Binary, Trace, TraceError};

use crate::args::MergeArgs;

/// Writes a trace.
pub fn write(output: &mut Output, trace: &Trace) -> Result<(), Error> {
    let text = trace.to_json().map_err(|e| Error::failed(format!("cannot write a trace: {e}")))?;
    output.write("the trace", |out| out.write_all(&text))
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
    write(&mut Output::to(&args.output)?, &merged).map(|()| 0)
}
