//! `cargo xtask peers`: as `neap lab peers build`, into lab/peers/build.

use anyhow::Result;
use neap_lab::peers::{Wanted, build_all};

use crate::place;

/// Arguments of `cargo xtask peers`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask peers                   build what is missing\n  \
    cargo xtask peers --only tcmalloc   build one\n  \
    cargo xtask peers --force           build all anew")]
pub struct Args {
    /// Build even what is already there
    #[arg(long)]
    force: bool,
    /// Build only these
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    neap_lab::interrupt::watch();
    let wanted = Wanted { force: args.force, only: args.only };
    build_all(&place::lab(), &wanted, &mut |line| eprintln!("{line}"))
}
