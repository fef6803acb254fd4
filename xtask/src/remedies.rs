//! `cargo xtask remedies`: applies remedies to programs on allocators as they are shipped, compares live blocks with what
//! programs count, and writes the tables of `docs/remedies.md` and `docs/builds.md` (`tests/builds`).

use std::process::Command;

use anyhow::{Result, ensure};

use crate::place::root;

/// Arguments of `cargo xtask remedies`.
#[derive(clap::Args)]
#[command(after_help = "Needs root, debootstrap, Java, node and npm, and their registries; what it fetches stays in \
                        target/systems.\n\nExamples:\n  \
    cargo xtask remedies                   all rows: some ten minutes\n  \
    cargo xtask remedies --only jemalloc   those of tests with that name")]
pub struct Args {
    /// Only tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// Runs `cargo xtask remedies`.
pub fn main(args: &Args) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tests = ["test", "--package", "neap-tests", "--test", "builds", "--", "--nocapture"];
    let mut command = Command::new(cargo);
    command.args(tests).arg(&args.only).env("NEAP_RECORD", "1").current_dir(root());
    ensure!(command.status()?.success(), "a remedy does not hold, or a heap is not found");
    Ok(())
}
