//! Builds the tests and the simulation with all mutants in them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::list::Mutant;
use super::switch::switch;
use crate::ci::binaries::{Binary, listed};
use crate::place::copy_tree;

/// What was built.
pub struct Built {
    /// Test programs of the core.
    pub tests: Vec<Binary>,
    /// The simulation.
    pub simulation: PathBuf,
    /// The site of each mutant in the build.
    pub sites: HashMap<u32, u32>,
}

/// A file of the core with mutants in it.
struct File {
    path: String,
    parts: Vec<(Range<usize>, Vec<u32>)>,
}

/// Builds all in `folder`, from a copy of the repository at `root`.
pub fn build(root: &Path, folder: &Path, mutants: &[Mutant]) -> Result<Built> {
    let tree = folder.join("tree");
    // Mutants that were refused before are left out from the start, so that files that did not change are not built
    // again.
    let record = folder.join("refused.txt");
    let before = std::fs::read_to_string(&record).unwrap_or_default();
    let before: HashSet<&str> = before.lines().collect();
    let known = (0..).zip(mutants).filter(|(_, mutant)| before.contains(mutant.name.as_str()));
    let mut refused: HashSet<u32> = known.map(|(id, _)| id).collect();
    let sites = loop {
        let (files, sites) = write(root, &tree, mutants, &refused)?;
        let found = refused_by_compiler(&tree, &folder.join("tests"), &files)?;
        if found.is_empty() {
            break sites;
        }
        println!("mutants: {} cannot be built", found.len());
        refused.extend(found);
    };
    let names: Vec<&str> = refused.iter().map(|&id| mutants[id as usize].name.as_str()).collect();
    std::fs::write(&record, names.join("\n"))?;
    Ok(Built { tests: tests(&tree, &folder.join("tests"))?, simulation: simulation(&tree, folder)?, sites })
}

/// Writes the copy with all mutants except `refused`.
fn write(
    root: &Path,
    tree: &Path,
    mutants: &[Mutant],
    refused: &HashSet<u32>,
) -> Result<(Vec<File>, HashMap<u32, u32>)> {
    let mut by_file: HashMap<&str, Vec<(u32, &Mutant)>> = HashMap::new();
    for (id, mutant) in (0..).zip(mutants) {
        if !refused.contains(&id) {
            by_file.entry(&mutant.file).or_default().push((id, mutant));
        }
    }
    let (mut files, mut sites, mut texts) = (Vec::new(), HashMap::new(), HashMap::new());
    for (path, mutants) in by_file {
        let source = std::fs::read_to_string(root.join(path))?;
        let switched = switch(&source, &mutants).with_context(|| path.to_owned())?;
        sites.extend(switched.sites);
        texts.insert(path, switched.text);
        files.push(File { path: path.to_owned(), parts: switched.parts });
    }
    copy_tree(root, tree, &|path, bytes| {
        let mut bytes = texts.get(path).map_or(bytes, |text| text.clone().into_bytes());
        if path == "crates/core/src/lib.rs" {
            // Lints do not apply to generated code.
            let lints = b"#![allow(warnings, arithmetic_overflow, unconditional_panic, overflowing_literals)]";
            bytes = [&lints[..], &bytes, b"\npub mod switch;\n"].concat();
        }
        bytes
    })?;
    let size = format!("\nconst SIZE: usize = {};\n", mutants.len());
    let runtime = [include_str!("runtime.rs"), &size].concat();
    let at = tree.join("crates/core/src/switch.rs");
    if std::fs::read_to_string(&at).is_ok_and(|old| old == runtime) {
        return Ok((files, sites));
    }
    std::fs::write(at, runtime)?;
    Ok((files, sites))
}

/// A message of the compiler.
#[derive(Deserialize)]
struct Message {
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    spans: Vec<Span>,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Span {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
}

/// cargo for the copy, without this process's `RUSTFLAGS`, which would cause a new build.
fn cargo(tree: &Path, target: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    // `cargo xtask` runs under cargo, whose variables name this package.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
        if name != "CARGO_HOME" {
            command.env_remove(name);
        }
    }
    command.args(args).arg("--target-dir").arg(target).current_dir(tree).env_remove("RUSTFLAGS");
    // Core tests and simulation are optimised as usual, but without debug information they build faster.
    command.args(["--config", "profile.dev.debug=false", "--config", "profile.sim.debug=false"]);
    command
}

/// The mutants with which the core does not compile: constant functions cannot ask which one is active, and types may
/// not fit. If an error is in none of a site's mutants, all of them.
fn refused_by_compiler(tree: &Path, target: &Path, files: &[File]) -> Result<HashSet<u32>> {
    let output = cargo(tree, target, &["check", "-p", "neap-core", "--message-format=json"])
        .output()
        .context("cannot start cargo")?;
    let mut refused = HashSet::new();
    if output.status.success() {
        return Ok(refused);
    }
    let mut others = String::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Message = serde_json::from_str(line).context("cargo's message")?;
        let Some(error) = message.message.filter(|message| message.level == "error" && !message.spans.is_empty())
        else {
            continue;
        };
        let parts = error.spans.iter().filter(|span| span.is_primary).filter_map(|span| {
            let file = files.iter().find(|file| file.path == span.file_name)?;
            let around = |part: &&(Range<usize>, _)| part.0.start <= span.byte_start && span.byte_end <= part.0.end;
            file.parts.iter().filter(around).min_by_key(|part| part.0.len())
        });
        let ids: Vec<u32> = parts.flat_map(|part| part.1.iter().copied()).collect();
        if ids.is_empty() {
            others.push_str(error.rendered.as_deref().unwrap_or("an error without text"));
        }
        refused.extend(ids);
    }
    if refused.is_empty() {
        bail!("the core with its mutants does not compile:\n{others}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(refused)
}

/// Builds the test programs.
fn tests(tree: &Path, target: &Path) -> Result<Vec<Binary>> {
    let args = ["test", "--quiet", "--no-run", "-p", "neap-core", "-p", "neap-coretest", "--lib", "--tests"];
    let output = cargo(tree, target, &args)
        .arg("--message-format=json")
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    listed(&String::from_utf8_lossy(&output.stdout), tree)
}

/// Builds the simulation.
fn simulation(tree: &Path, folder: &Path) -> Result<PathBuf> {
    let target = folder.join("simulation");
    let mut command = cargo(tree, &target, &["build", "--quiet", "--profile", "sim", "-p", "neap-sim"]);
    let status = command.env("RUSTFLAGS", "--cfg neap_sim").status().context("cannot start cargo")?;
    ensure!(status.success(), "the simulation does not build");
    Ok(target.join("sim/neap-sim"))
}
