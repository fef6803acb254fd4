//! `neap run`: a program with neap as its malloc.
//!
//! `crates/launch` finds the program, puts the library into a file, and becomes the program or supervises it; `counters` and
//! `summary` report.

pub mod args;
mod counters;
mod summary;

use std::io::{IsTerminal, Write};
use std::path::Path;

use neap_launch::child::{self, Program};
use neap_launch::environment::with_library;
use neap_launch::error::{Error, FAILED};
use neap_launch::output::Output;
use neap_launch::private_dir::{self, PrivateDir};
use neap_launch::{Setting, carried, library, sys, target};

use self::args::RunArgs;
use self::summary::{Style, Summary};

/// Runs the command; the result is the program's exit status. Does not return where neap becomes the program
/// or dies by the program's signal.
pub fn run(args: RunArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else {
        return Err(Error::failed("no program is given"));
    };
    let counters_set = args.settings.iter().any(|s| s.name == "counters");
    if args.wants_summary() && counters_set {
        return Err(Error::failed("a summary makes a counters directory of its own")
            .remedy("leave out --set counters=..., or the summary"));
    }
    let path = target::resolve(command)?;
    target::inspect(&path)?;
    let output = args.summary_file.as_deref().map(create_summary_file).transpose()?;
    let library = library::NEAP.place()?;

    let mut settings = args.settings.clone();
    settings.extend(args.prefault.clone());
    if !args.wants_summary() {
        let program = Program::new(&path, &args.command, with_library(&library.path, &settings))?;
        if library.is_temporary() {
            // neap must stay to remove the file.
            let ended = child::supervise(&program)?;
            drop(library);
            return Ok(child::end_like(ended.status));
        }
        return Err(program.exec_error(&program.exec()));
    }

    let counters_dir = PrivateDir::create(&private_dir::volatile_bases(), "neap-counters").map_err(|reasons| {
        Error::failed(format!("no directory for the counters: {reasons}")).remedy(private_dir::REMEDY)
    })?;
    settings.push(counters_setting(&counters_dir)?);
    let program = Program::new(&path, &args.command, with_library(&library.path, &settings))?;
    let ended = child::supervise(&program)?;
    let report = counters::read(counters_dir.path(), ended.pid);
    let summary = Summary::new(&args.command, &ended, report, carried::allocator(&path));
    drop(counters_dir);
    drop(library);
    if let Err(error) = write_summary(&summary, output, args.json, args.summary_file.as_deref()) {
        error.report();
        // The program's own failure is worth more to the caller than ours.
        if ended.status.success() {
            return Ok(FAILED);
        }
    }
    Ok(child::end_like(ended.status))
}

fn create_summary_file(path: &Path) -> Result<Output, Error> {
    if path.as_os_str() == "-" {
        return Err(Error::failed("the summary cannot be written to standard output, which is the program's")
            .remedy("leave --summary-file out: standard error gets it; or name a file"));
    }
    Output::at(path).map_err(|e| {
        Error::failed(format!("cannot write the summary to {}: {e}", path.display()))
            .remedy("name another file with --summary-file")
    })
}

fn counters_setting(dir: &PrivateDir) -> Result<Setting, Error> {
    let opt = neap_options::Id::Counters.option();
    let value = dir.path().to_str().map(str::to_owned);
    let value = value.ok_or_else(|| Error::failed(format!("{} is not UTF-8", dir.path().display())))?;
    Ok(Setting { name: opt.name, env: opt.env, value })
}

/// Writes the summary to the file, or to standard error.
fn write_summary(summary: &Summary, file: Option<Output>, json: bool, path: Option<&Path>) -> Result<(), Error> {
    let stderr = std::io::stderr();
    let colour =
        file.is_none() && stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = if json { summary.json() } else { summary.text(Style { colour }) };
    let written = sys::with_size_errors(|| match file {
        Some(mut file) => file.append(text.as_bytes()),
        None => stderr.lock().write_all(text.as_bytes()),
    });
    written.map_err(|e| match path {
        Some(path) => Error::failed(format!("cannot write the summary to {}: {e}", path.display()))
            .remedy("make room there and run it again, or name another file with --summary-file"),
        None => Error::failed(format!("cannot write the summary: {e}")),
    })
}
