//! The other allocators as preload libraries.
//!
//! The sources come from crates that carry them (`lab/peers/Cargo.toml`, pinned by its Cargo.lock; both are inside
//! of the command). They are compiled here as their authors build them for preloading: release flags, their own
//! malloc override, no layer of ours between a call and the allocator. Where a source cannot be
//! compiled, Debian's package stands in, and `peers.json` says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::failure::failure;
use crate::interrupt;
use crate::place::Place;
use crate::sources;
use crate::toolchain::{self, cc, cxx, need, shell_line};

mod recipes;

use recipes::RECIPES;

/// What `peers.json` says about one peer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
        interrupt::run(command).map(drop)
    }

    /// Keeps a line about commands that were not run through [`Job::run`].
    pub fn note(&mut self, line: impl Into<String>) {
        self.commands.push(line.into());
    }
}

/// The names of all peers, in the order of the tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|recipe| recipe.name)
}

/// Where a peer comes from, before it is built.
pub fn source_of(name: &str) -> Option<&'static str> {
    RECIPES.iter().find(|recipe| recipe.name == name).map(|recipe| recipe.krate)
}

/// Reads `peers.json`; empty where no peer was built yet.
pub fn records(place: &Place) -> Result<Records> {
    let path = place.peers.join("peers.json");
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            let remedy = format!("remove it and run `{}`", place.build_peers);
            failure(format!("{} cannot be read: {error}", path.display()), remedy)
        }),
        Err(_) => Ok(Records::new()),
    }
}

/// What [`build_all`] is to do.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Build even what is already there.
    pub force: bool,
    /// Only these; all where it is empty.
    pub only: Vec<String>,
}

/// Builds the peers, and tells what happens line by line.
pub fn build_all(place: &Place, wanted: &Wanted, tell: &mut dyn FnMut(&str)) -> Result<()> {
    let remedy = "install a C and a C++ compiler (Debian: apt install build-essential)";
    need(&cc(), remedy)?;
    need(&cxx(), remedy)?;
    for name in &wanted.only {
        if !RECIPES.iter().any(|recipe| recipe.name == name) {
            let known: Vec<_> = names().collect();
            return Err(failure(format!("no peer is called `{name}`"), format!("there are {}", known.join(", "))));
        }
    }
    fs::create_dir_all(&place.peers).with_context(|| format!("cannot create {}", place.peers.display()))?;
    let chosen = |recipe: &&Recipe| wanted.only.is_empty() || wanted.only.iter().any(|name| name == recipe.name);
    let chosen: Vec<&Recipe> = RECIPES.iter().filter(chosen).collect();
    let mut records = records(place)?;
    let there = |recipe: &Recipe, records: &Records| {
        place.peers.join(format!("{}.so", recipe.name)).exists() && records.contains_key(recipe.name)
    };
    if !wanted.force && chosen.iter().all(|recipe| there(recipe, &records)) {
        chosen.iter().for_each(|recipe| tell(&format!("{}: up to date", recipe.name)));
        return Ok(());
    }
    tell("fetching the sources ...");
    let sources = locate_crates(place)?;
    let mut failed = Vec::new();
    for (index, recipe) in chosen.iter().enumerate() {
        interrupt::check()?;
        if there(recipe, &records) && !wanted.force {
            tell(&format!("{}: up to date", recipe.name));
            continue;
        }
        tell(&format!("[{}/{}] {}: building ...", index + 1, chosen.len(), recipe.name));
        match build(place, recipe, &sources, tell) {
            Ok(record) => {
                tell(&format!("{}: {} from {}", recipe.name, record.version, record.source));
                records.insert(recipe.name.into(), record);
                let json = serde_json::to_string_pretty(&records)? + "\n";
                fs::write(place.peers.join("peers.json"), json)?;
            }
            Err(error) if error.is::<interrupt::Interrupted>() => return Err(error),
            Err(error) => {
                tell(&format!("{}: {error:#}", recipe.name));
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
fn locate_crates(place: &Place) -> Result<Sources> {
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
    need("cargo", "the sources of the peers are fetched as crates: install Rust (rustup)")?;
    let sources = place.cache.join("sources");
    for file in sources::PEERS {
        sources::write_below(&sources, file)?;
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--locked", "--format-version=1", "--filter-platform", "x86_64-unknown-linux-gnu"]);
    let json = interrupt::run(cargo.arg("--manifest-path").arg(sources.join("peers/Cargo.toml"))).map_err(|error| {
        match error.is::<interrupt::Interrupted>() {
            true => error,
            false => failure(
                format!("cannot fetch the sources of the peers: {error:#}"),
                "they come as crates: connect to the network once, or name libraries with --allocators NAME=PATH",
            ),
        }
    })?;
    let metadata: Metadata = serde_json::from_str(&json)?;
    let entry = |package: Package| {
        let folder = package.manifest_path.parent().map(PathBuf::from).unwrap_or_default();
        (package.name, (package.version, folder))
    };
    Ok(metadata.packages.into_iter().map(entry).collect())
}

/// Builds one peer; where that fails, takes the distribution's library.
fn build(place: &Place, recipe: &Recipe, sources: &Sources, tell: &mut dyn FnMut(&str)) -> Result<PeerRecord> {
    let found = sources.get(recipe.krate);
    let (crate_version, source) =
        found.with_context(|| format!("{} is not in lab/peers/Cargo.lock", recipe.krate))?.clone();
    let scratch = place.cache.join("peers-build").join(recipe.name);
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    // Under another name until it is whole: who measures meanwhile finds the old one.
    let partial = scratch.join("library.so");
    let output = place.peers.join(format!("{}.so", recipe.name));
    let mut job =
        Job { source, scratch: scratch.clone(), output: partial.clone(), crate_version, commands: Vec::new() };
    let env = recipe.env.iter().map(|&(k, v)| (k.into(), v.into())).collect();
    let compiler = toolchain::version_line(&cc());
    let record = match (recipe.build)(&mut job) {
        Ok(version) => {
            let source = format!("crate {} {}", recipe.krate, job.crate_version);
            PeerRecord { version, source, commands: job.commands, compiler, env }
        }
        Err(error) if error.is::<interrupt::Interrupted>() => return Err(error),
        Err(error) => {
            let Some((file, package)) = recipe.debian else {
                return Err(error);
            };
            tell(&format!("{}: {error:#}", recipe.name));
            tell(&format!("{}: taking Debian's {package}", recipe.name));
            fs::copy(file, &partial).with_context(|| format!("{file} is missing too; apt install {package}"))?;
            let version = toolchain::run(Command::new("dpkg-query").args(["-W", "-f=${Version}", package]))?;
            PeerRecord { version, source: format!("Debian {package}"), commands: vec![], compiler, env }
        }
    };
    // A program may have the old library mapped: it keeps its file.
    let fresh = place.peers.join(format!(".{}.so", recipe.name));
    fs::copy(&partial, &fresh).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::rename(&fresh, &output)?;
    let _ = fs::remove_dir_all(scratch);
    Ok(record)
}
