//! `cargo xtask peers`: as `neap lab peers build`, into lab/peers/build.

use anyhow::Result;
use neap_lab::peers::{Shown, Wanted, build_all, parse_repository};

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
    /// Build the newest releases from the repositories of their authors
    #[arg(long)]
    upstream: bool,
    /// With --upstream: the repository of peer NAME, as an address for git or a path
    #[arg(long, value_name = "NAME=URL", value_parser = parse_repository, requires = "upstream")]
    repository: Vec<(String, String)>,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    neap_lab::interrupt::watch();
    let Args { force, only, upstream, repository: repositories } = args;
    let mut shown = Shown::default();
    build_all(&place::lab(), &Wanted { force, only, upstream, repositories }, &mut |step| shown.show(&step)).map(drop)
}
