//! `cargo xtask sim`: builds and runs the simulation of the core (`crates/sim`), which has a separate build.

use crate::place::root;
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask sim`.
#[derive(ClapArgs)]
pub struct Args {
    /// Put each fault of crates/sim/mutants into a copy of the tree, and see how long the simulation takes to find it
    #[arg(long)]
    pub mutants: bool,
    /// Options of the simulation (see docs/testing-core.md), or with --mutants the names of some of them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<String>,
}

/// Builds the simulation of the tree at `tree`, with further compiler flags; returns its path.
pub fn build(tree: &Path, target: &Path, flags: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "sim", "-p", "neap-sim", "--target-dir"])
        .arg(target)
        .env("RUSTFLAGS", format!("--cfg neap_sim {flags}").trim_end())
        .current_dir(tree)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the simulation does not build");
    Ok(target.join("sim/neap-sim"))
}

/// Runs `cargo xtask sim`.
pub fn main(args: &Args) -> Result<()> {
    let root = root();
    let command = build(&root, &root.join("target/sim"), "")?;
    let usual = ["--steps".to_owned(), "20_000_000".to_owned()];
    let options = if args.options.is_empty() { &usual[..] } else { &args.options[..] };
    let status = Command::new(&command)
        .args(options)
        .current_dir(&root)
        .status()
        .with_context(|| format!("cannot start {}", command.display()))?;
    ensure!(status.success(), "the simulation found something");
    Ok(())
}
