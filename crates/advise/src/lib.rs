//! `neap advise`: runs a command under several allocators in turn, and shows what each costs and gives back.
//!
//! | file | answers |
//! |---|---|
//! | `args.rs` | the arguments |
//! | `turn.rs` | one run of the command |
//! | `family.rs` | the processes of a run: their times, their end |
//! | `server.rs` | a command that does not end by itself: load, idling, the end |
//! | `judge.rs` | the advice and the warnings |
//!
//! May depend on `neap-why`, `neap-account`, `neap-launch`, well-kept libraries, the C library and std.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod args;
mod family;
mod judge;
mod server;
mod turn;

use self::args::AdviseArgs;
use self::family::Family;
use self::turn::{Ranges, Run, Under};
use neap_launch::error::Error;
use neap_launch::{library, sys, target};

/// Runs `neap advise`.
pub fn run(args: &AdviseArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no command is given")) };
    let path = target::resolve(command)?;
    target::inspect(&path)?;
    let library = library::NEAP.place()?;
    let mut all = vec![Under::system(), Under::preloaded("neap", &library.path)];
    all.extend(args.allocators.iter().map(|(name, path)| Under::preloaded(name, path)));
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); all.len()];
    let family = Family::adopt();
    // In turn, so that other work on the machine affects each of them.
    for _ in 0..args.runs {
        for (under, runs) in all.iter().zip(&mut runs) {
            runs.push(turn::run(args, &path, under, &family)?);
        }
    }
    drop(library);
    let advice = judge::judge(&args.command, runs.into_iter().filter_map(median).collect());
    let text = match args.json {
        true => serde_json::to_string_pretty(&advice).map_err(|error| Error::failed(error.to_string()))? + "\n",
        false => judge::text(&advice),
    };
    sys::print(text.as_bytes())
}

/// The run with the median time, and the ranges of all.
fn median(mut runs: Vec<Run>) -> Option<Run> {
    let ranges = Ranges::of(&runs);
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    (!runs.is_empty()).then(|| Run { ranges, ..runs.swap_remove((runs.len() - 1) / 2) })
}
