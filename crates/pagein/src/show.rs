//! `neap pagein show`: a kept trace in another format, or its summary.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use neap_launch::error::{Error, system_message};
use neap_launch::fit::fit;
use neap_launch::output::Output;
use neap_launch::sys;
use neap_trace::format::{Format, json, top};
use neap_trace::{Recorded, Source};

use super::args::ShowArgs;
use super::progress::Shown;

/// Limit on the lines of each list of a summary.
const LIMIT: usize = 10;
/// The width of a summary without a terminal.
const WIDTH: usize = 100;

/// Writes the trace in the requested form.
pub fn run(args: &ShowArgs) -> Result<u8, Error> {
    let trace = read(&args.trace)?;
    let mut output = match &args.output {
        Some(path) => Output::to(path)?,
        None => Output::standard()?,
    };
    let format = if args.json { Format::from_name("json") } else { args.format };
    if let Some(format) = format {
        super::output::write(&mut output, format, &Shown::new(&trace))?;
        return Ok(0);
    }
    let width = sys::terminal_width().unwrap_or(WIDTH);
    output.write("the summary", |out| {
        let lines = trace.tables.summary.lines();
        lines.iter().try_for_each(|line| writeln!(out, "{}", fit(&line.replace(char::is_control, "?"), width)))?;
        summary(&trace, out)
    })?;
    Ok(0)
}

/// Writes the functions and mappings with the most faults, as wide as the terminal.
pub fn summary(trace: &dyn Source, out: &mut dyn io::Write) -> io::Result<()> {
    top(trace, LIMIT, sys::terminal_width().unwrap_or(WIDTH), out)
}

fn read(path: &Path) -> Result<Recorded, Error> {
    let name = path.display();
    let failed = |why: String| {
        Error::failed(format!("cannot read {name}: {why}"))
            .remedy("neap pagein --format json -o FILE -- PROGRAM writes a trace that can be shown")
    };
    let reader: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).map_err(|e| failed(system_message(&e)))?))
    };
    let mut faults = Vec::new();
    let tables = json::read(reader, &mut |_, fault| faults.push(*fault)).map_err(|e| {
        failed(match e.is_syntax() {
            true => format!("it is not in the format json ({e})"),
            false => e.to_string(),
        })
    })?;
    Ok(Recorded { tables, faults })
}
