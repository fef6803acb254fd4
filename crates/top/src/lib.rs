//! `neap top`: processes by what they could give back.
//!
//! | file | answers |
//! |---|---|
//! | `args.rs` | the arguments |
//! | `rows.rs` | from processes to rows: figures, order, filter |
//! | `plain.rs` | a single table, and JSON |
//! | `keys.rs` | keys from the bytes of a terminal |
//! | `view.rs` | the screen |
//! | `screen.rs`, `sys.rs` | the terminal; its system calls |
//! | `live.rs` | the loop |
//!
//! May depend on `neap-collect`, `neap-launch`, well-kept libraries, the C library and std.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod args;
mod keys;
mod live;
mod plain;
mod rows;
mod screen;
mod sys;
mod view;

use self::args::TopArgs;
use neap_collect::{Collector, Filter, Pace, Shared, make_up_to};
use neap_launch::error::Error;
use std::io::IsTerminal;

/// Runs `neap top`.
pub fn run(args: &TopArgs) -> Result<u8, Error> {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let once = args.once || args.json || !is_terminal;
    let pace = Pace {
        share: args.budget / 100.0,
        rollup: args.interval * 2,
        account: args.interval * 5,
        exact: false,
        // A single table is sorted by what accounts say.
        accounts_first: once,
    };
    let shared = Shared::new(Collector::new(Filter::new(args.pattern.as_deref())?, pace));
    shared.look()?;
    if once {
        make_up_to(&shared, args.wait);
        return plain::print(args, &shared.lock());
    }
    live::run(args, &shared)
}
