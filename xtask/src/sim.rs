//! `cargo xtask sim`: the simulation of the core (`crates/sim`), which has a build of its own.

use crate::place::root;
use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask sim`.
#[derive(ClapArgs)]
pub struct Args {
    /// Put each fault of crates/sim/mutants into a copy of the tree, and see how long the simulation takes to find it
    #[arg(long)]
    mutants: bool,
    /// Options of the simulation (see docs/testing.md), or with --mutants the names of some of them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

/// Seconds in which a mutant has to be found.
const MUTANT_SECONDS: &str = "120";

/// Builds the simulation of the tree at `tree`; returns its command.
fn build(tree: &Path, target: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--profile", "sim", "-p", "neap-sim", "--target-dir"])
        .arg(target)
        .env("RUSTFLAGS", "--cfg neap_sim")
        .current_dir(tree)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the simulation does not build");
    Ok(target.join("sim/neap-sim"))
}

/// Runs `cargo xtask sim`.
pub fn main(args: Args) -> Result<()> {
    if args.mutants {
        return mutants(&args.options);
    }
    let root = root();
    let command = build(&root, &root.join("target/sim"))?;
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

/// Simulates each mutant in a copy of the tree. Fails if one is not found.
fn mutants(names: &[String]) -> Result<()> {
    let root = root();
    let tree = root.join("target/sim/mutants");
    let mut patches: Vec<PathBuf> =
        std::fs::read_dir(root.join("crates/sim/mutants"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    patches.sort();
    let mut missed = Vec::new();
    for patch in patches {
        let name = patch.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        copy_tree(&root, &tree)?;
        let applied = Command::new("patch")
            .args(["--quiet", "--strip=1", "--input"])
            .arg(&patch)
            .current_dir(&tree)
            .status()
            .context("cannot start patch")?;
        ensure!(applied.success(), "{} does not apply", patch.display());
        let command = build(&tree, &root.join("target/sim/mutants-target"))?;
        let output = Command::new(&command)
            .args(["--time", MUTANT_SECONDS, "--no-shrink"])
            .current_dir(&tree)
            .output()
            .with_context(|| format!("cannot start {}", command.display()))?;
        println!("== {name}\n{}", String::from_utf8_lossy(&output.stdout).trim_end());
        if output.status.success() {
            missed.push(name);
        }
    }
    if missed.is_empty() { Ok(()) } else { bail!("not found in {MUTANT_SECONDS} s: {}", missed.join(", ")) }
}

/// Copies the tracked files of `root` to `tree`.
fn copy_tree(root: &Path, tree: &Path) -> Result<()> {
    let files = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("cannot start git")?;
    ensure!(files.status.success(), "git ls-files");
    for file in String::from_utf8(files.stdout)?.split_terminator('\0') {
        let (from, to) = (root.join(file), tree.join(file));
        let new = std::fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        // What did not change keeps its time, so that it is not built again.
        if std::fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        std::fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
        std::fs::write(&to, new).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}
