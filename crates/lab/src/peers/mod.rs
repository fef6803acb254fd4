//! `cargo xtask peers`: the other allocators as preload libraries.
//!
//! The sources come from crates that carry them (`lab/peers/Cargo.toml`, pinned by its Cargo.lock).
//! They are compiled here as their authors build them for preloading: release flags, their own
//! malloc override, no layer of ours between a call and the allocator. Where a source cannot be
//! compiled, Debian's package stands in, and `peers.json` says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::toolchain::{self, cc, cxx, need, root, run, shell_line};

mod recipes;

use recipes::RECIPES;

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

/// What `peers.json` says about one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerRecord {
    /// Version of the allocator itself.
    pub version: String,
    /// The crate or package that its source or file came from.
    pub source: String,
    /// The commands that built it, the crate's folder written as `$SRC`.
    pub commands: Vec<String>,
    /// First line of the compiler's `--version`.
    pub compiler: String,
    /// Environment that the peer is measured with, at its authors' advice.
    pub env: BTreeMap<String, String>,
}

/// All of `peers.json`: name to record.
pub type Records = BTreeMap<String, PeerRecord>;

/// How one peer is built.
pub struct Recipe {
    /// Its name on the command line and in the tables.
    pub name: &'static str,
    /// The crate that carries its source.
    pub krate: &'static str,
    /// Builds `job.output` and returns the allocator's version.
    pub build: fn(&mut Job) -> Result<String>,
    /// File of Debian's package, with the package's name, for when the source cannot be built.
    pub debian: Option<(&'static str, &'static str)>,
    /// Environment for measuring.
    pub env: &'static [(&'static str, &'static str)],
}

/// One build in progress.
pub struct Job {
    /// The crate's folder.
    pub source: PathBuf,
    /// Scratch folder of this peer.
    pub scratch: PathBuf,
    /// The library to make.
    pub output: PathBuf,
    /// The crate's version.
    pub crate_version: String,
    commands: Vec<String>,
}

impl Job {
    /// Runs one build command and keeps its text for the record.
    pub fn run(&mut self, command: &mut Command) -> Result<()> {
        let line = shell_line(command)
            .replace(&*self.source.to_string_lossy(), "$SRC")
            .replace(&*self.scratch.to_string_lossy(), "$TMP")
            .replace(&*self.output.to_string_lossy(), "$OUT");
        self.commands.push(line);
        run(command).map(drop)
    }

    /// Keeps a line about commands that were not run through [`Job::run`].
    pub fn note(&mut self, line: impl Into<String>) {
        self.commands.push(line.into());
    }
}

/// Folder of the built libraries and of `peers.json`.
pub fn build_dir() -> PathBuf {
    root().join("lab/peers/build")
}

/// The names of all peers, in the order of the tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|recipe| recipe.name)
}

/// Reads `peers.json`; empty where no peer was built yet.
pub fn records() -> Result<Records> {
    let path = build_dir().join("peers.json");
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} cannot be read; remove it and run `cargo xtask peers`", path.display())),
        Err(_) => Ok(Records::new()),
    }
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    let remedy = "install a compiler (Debian: apt install build-essential)";
    need(&cc(), remedy)?;
    need(&cxx(), remedy)?;
    for name in &args.only {
        if !RECIPES.iter().any(|recipe| recipe.name == name) {
            let known: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
            bail!("no peer is called `{name}`; there are: {}", known.join(", "));
        }
    }
    fs::create_dir_all(build_dir())?;
    let sources = locate_crates()?;
    let mut records = records()?;
    let mut failed = Vec::new();
    for recipe in &RECIPES {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == recipe.name) {
            continue;
        }
        let output = build_dir().join(format!("{}.so", recipe.name));
        if output.exists() && records.contains_key(recipe.name) && !args.force {
            eprintln!("{}: up to date", recipe.name);
            continue;
        }
        eprintln!("{}: building ...", recipe.name);
        match build(recipe, &sources, output) {
            Ok(record) => {
                eprintln!("{}: {} from {}", recipe.name, record.version, record.source);
                records.insert(recipe.name.into(), record);
                let json = serde_json::to_string_pretty(&records)? + "\n";
                fs::write(build_dir().join("peers.json"), json)?;
            }
            Err(error) => {
                eprintln!("{}: {error:#}", recipe.name);
                failed.push(recipe.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("not built: {}", failed.join(", "));
    }
    Ok(())
}

/// A crate's version and folder, by name.
type Sources = BTreeMap<String, (String, PathBuf)>;

/// Asks Cargo to fetch the crates and where they lie.
fn locate_crates() -> Result<Sources> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        manifest_path: PathBuf,
    }
    let json = run(Command::new("cargo")
        .args(["metadata", "--locked", "--format-version=1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .arg("--manifest-path")
        .arg(root().join("lab/peers/Cargo.toml")))
    .context("cannot fetch the crates of the peers; the crates.io registry must be reachable")?;
    let metadata: Metadata = serde_json::from_str(&json)?;
    let entry = |package: Package| {
        let folder = package.manifest_path.parent().map(Path::to_owned);
        (package.name, (package.version, folder.unwrap_or_default()))
    };
    Ok(metadata.packages.into_iter().map(entry).collect())
}

/// Builds one peer from source, or takes Debian's file.
fn build(recipe: &Recipe, sources: &Sources, output: PathBuf) -> Result<PeerRecord> {
    let (crate_version, source) =
        sources.get(recipe.krate).with_context(|| format!("{} is not in lab/peers/Cargo.lock", recipe.krate))?;
    let scratch = root().join("lab/peers/target").join(recipe.name);
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let mut job =
        Job { source: source.clone(), scratch, output, crate_version: crate_version.clone(), commands: Vec::new() };
    let env = recipe.env.iter().map(|&(k, v)| (k.into(), v.into()));
    let record = |version: String, source: String, commands: Vec<String>| PeerRecord {
        version,
        source,
        commands,
        compiler: toolchain::version_line(&cc()),
        env: env.collect(),
    };
    match (recipe.build)(&mut job) {
        Ok(version) => {
            let source = format!("crate {} {}", recipe.krate, job.crate_version);
            Ok(record(version, source, job.commands))
        }
        Err(error) => {
            let Some((file, package)) = recipe.debian else {
                return Err(error);
            };
            eprintln!("{}: {error:#}\n{0}: taking Debian's {package}", recipe.name);
            fs::copy(file, &job.output).with_context(|| format!("{file} is missing too; apt install {package}"))?;
            let version = run(Command::new("dpkg-query").args(["-W", "-f=${Version}", package]))?;
            Ok(record(version, format!("Debian {package}"), vec![]))
        }
    }
}
