//! The mutants of the core, as `cargo mutants --list` makes them.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::place::copy_tree;

/// The release of cargo-mutants to use; another one makes other mutants.
const VERSION: &str = "27.1.0";

/// One change of the source.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    /// `crates/core/src/age.rs:12:5: replace + with - in next`.
    pub name: String,
    /// Its file, from the root.
    pub file: String,
    /// What is replaced.
    pub span: Span,
    /// The replacement; empty for a deletion.
    pub replacement: String,
    pub genre: Genre,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Genre {
    /// A function returns a fixed value at once.
    FnValue,
    BinaryOperator,
    UnaryOperator,
    /// An arm that is never taken.
    MatchArm,
    /// A guard that is always true or always false.
    MatchArmGuard,
    /// A field that is taken from the base of a struct expression.
    StructField,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Span {
    pub start: Place,
    pub end: Place,
}

/// A line and a column, from 1.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// Names without line and column, which change with the code above: `age.rs: replace + with - in next`. The second
/// mutant with one name gets `... #2`.
pub fn names(mutants: &[Mutant]) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let name = |mutant: &Mutant| {
        let change = mutant.name.splitn(4, ':').nth(3).unwrap_or_default();
        let file = mutant.file.rsplit('/').next().unwrap_or_default();
        let name = format!("{file}:{change}");
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name} #{count}") }
    };
    mutants.iter().map(name).collect()
}

/// Installs cargo-mutants, unless the right release is installed.
fn install() -> Result<()> {
    let version = Command::new("cargo").args(["mutants", "--version"]).output().context("cannot start cargo")?;
    if String::from_utf8_lossy(&version.stdout).split_whitespace().any(|word| word == VERSION) {
        return Ok(());
    }
    println!("mutants: installing cargo-mutants {VERSION}, which takes minutes");
    let status = Command::new("cargo")
        .args(["install", "--locked", "--quiet", "cargo-mutants", "--version", VERSION])
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "cargo-mutants {VERSION} cannot be installed");
    Ok(())
}

/// All mutants of the core at `root`. cargo-mutants skips unsafe functions, and so most of an allocator. So it reads a
/// copy at `tree`, in which they are safe functions and everything keeps its column.
pub fn all(root: &Path, tree: &Path) -> Result<Vec<Mutant>> {
    install()?;
    copy_tree(root, tree, &|path, bytes| match String::from_utf8(bytes) {
        Ok(text) if is_core(path) => text.replace("unsafe fn", "       fn").into_bytes(),
        Ok(text) => text.into_bytes(),
        Err(e) => e.into_bytes(),
    })?;
    let output = Command::new("cargo")
        .args(["mutants", "--list", "--json", "--package", "neap-core"])
        .current_dir(tree)
        .output()
        .context("cannot start cargo mutants")?;
    ensure!(output.status.success(), "cargo mutants --list: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("the list of cargo-mutants")
}

/// Whether `path` is a source of the core.
pub fn is_core(path: &str) -> bool {
    path.starts_with("crates/core/src/") && path.ends_with(".rs")
}
