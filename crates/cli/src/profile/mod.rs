//! `neap profile`: which code takes memory, and where the time of allocation goes.
//!
//! A module measures each view (`time`, `heap`; `moment` chooses the moment while a program runs) and makes a
//! `Profile`. `written` writes it, the same for all views. `files` shows and compares profiles that were written.

pub mod args;
mod files;
mod heap;
mod moment;
mod time;
mod written;

use neap_launch::error::Error;
use neap_profile::View;

use self::args::{ProfileAction, ProfileArgs};

/// Runs the command; the result is the program's exit status, as with `neap run`.
pub fn run(args: ProfileArgs) -> Result<u8, Error> {
    match &args.action {
        Some(ProfileAction::Show(show)) => return files::show(show),
        Some(ProfileAction::Diff(diff)) => return files::diff(diff),
        None => {}
    }
    if args.pid.is_none() && args.command.is_empty() {
        let view = args.views.chosen().unwrap_or(View::Heap).name();
        return Err(Error::failed("neither a program nor a process is given")
            .remedy(format!("neap profile --{view} -- PROGRAM")));
    }
    match args.views.chosen() {
        Some(View::Time) => time::run(&args),
        Some(view @ (View::Heap | View::Allocs | View::Pinned)) => heap::run(&args, view),
        None => Err(Error::failed("what to profile is missing: --heap, --allocs, --pinned or --time")
            .remedy("neap profile --heap -- PROGRAM")),
    }
}
