//! `neap profile`: which code takes memory, and where the time of allocation goes.
//!
//! A view is measured by a module (`time`, `heap`), which makes a [`Profile`]; what becomes of it is the same for all: `write`
//! here. `files` shows and compares profiles that were written.

pub mod args;
mod files;
mod heap;
mod time;

use neap_launch::error::{Error, tell};
use neap_launch::output::Output;
use neap_profile::format::Options;
use neap_profile::pprof::Symbols;
use neap_profile::{Profile, View};

use self::args::{ProfileAction, ProfileArgs, Written};

/// Runs the command; the result is the program's exit status, as with `neap run`.
pub fn run(args: ProfileArgs) -> Result<u8, Error> {
    match &args.action {
        Some(ProfileAction::Show(show)) => return files::show(show),
        Some(ProfileAction::Diff(diff)) => return files::diff(diff),
        None => {}
    }
    if args.pid.is_none() && args.command.is_empty() {
        return Err(Error::failed("neither a program nor a process is given").remedy("neap profile --heap -- PROGRAM"));
    }
    match args.views.chosen() {
        Some(View::Time) => time::run(&args),
        Some(view @ (View::Heap | View::Allocs)) => heap::run(&args, view),
        _ => Err(Error::failed("no view is given").remedy("neap profile --heap -- PROGRAM")),
    }
}

/// The file of a profile of a process: opened before there is one. Text goes where it is in nobody's way.
fn output(written: &Written, pid: u32) -> Result<Option<Output>, Error> {
    if written.output.is_none() && written.format.name == "text" {
        return Ok(None);
    }
    let otherwise = format!("profile.{pid}{}", written.format.ending);
    Output::create(written.output.as_deref(), &otherwise).map(Some)
}

/// Writes a profile; without an output, as text on standard error.
fn write(profile: &Profile, column: usize, written: &Written, output: Option<Output>) -> Result<(), Error> {
    let symbols = if written.no_symbols { Symbols::Addresses } else { Symbols::Named };
    let options = Options { column, symbols, limit: written.limit };
    let Some(mut output) = output else {
        let mut text = Vec::new();
        let _ = (written.format.write)(profile, options, &mut text);
        String::from_utf8_lossy(&text).lines().for_each(tell);
        return Ok(());
    };
    output.write("the profile", |out| (written.format.write)(profile, options, out))?;
    if written.output.is_none() && output.path().as_os_str() != "-" {
        tell(format_args!("neap: {} stacks in {}", profile.samples.len(), output.path().display()));
    }
    Ok(())
}
