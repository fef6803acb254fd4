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
use crate::sources::{self, Hash, PEERS_LOCK};
use crate::toolchain::{self, cc, cxx, need};

mod recipe;
mod recipes;

use recipe::{Job, Recipe};
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
    /// The crate's version and the recipe, by which an old library is recognised; empty in records of earlier versions.
    #[serde(default)]
    pub made_of: String,
    /// Environment that the peer is measured with, at its authors' advice.
    pub env: BTreeMap<String, String>,
}

/// All of `peers.json`: name to record.
pub type Records = BTreeMap<String, PeerRecord>;

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

/// The version of a crate in a Cargo.lock.
fn locked<'a>(lock: &'a str, krate: &str) -> Option<&'a str> {
    let (_, rest) = lock.split_once(&format!("name = \"{krate}\"\nversion = \""))?;
    rest.split_once('"').map(|(version, _)| version)
}

/// What a library that is made now would be made of: the crate's version in the Cargo.lock that is carried, and the
/// recipes.
fn made_of(recipe: &Recipe, lock: &str) -> String {
    let mut recipes = Hash::default();
    recipes.add(include_str!("recipes.rs"));
    format!("{} {}, recipes {:016x}", recipe.krate, locked(lock, recipe.krate).unwrap_or("?"), recipes.0)
}

/// Whether the library called `name` is there and was made of something else than this version of the lab would take.
pub fn is_old(records: &Records, name: &str) -> bool {
    let recipe = RECIPES.iter().find(|recipe| recipe.name == name);
    recipe.zip(records.get(name)).is_some_and(|(recipe, record)| record.made_of != made_of(recipe, PEERS_LOCK))
}

/// Whether the library is there, of the right sources and from the compiler that is installed.
fn up_to_date(place: &Place, recipe: &Recipe, records: &Records, compiler: &str) -> bool {
    let record = records.get(recipe.name).filter(|_| place.peers.join(format!("{}.so", recipe.name)).exists());
    record.is_some_and(|record| record.compiler == compiler) && !is_old(records, recipe.name)
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
    for compiler in [cc(), cxx()] {
        need(&compiler, remedy)?;
        if toolchain::command(&compiler).get_args().len() > 0 {
            let cause = format!("`{compiler}` has options, and the peers have those of their authors");
            return Err(failure(cause, "name the compiler alone: CC=gcc CXX=g++ neap lab peers build"));
        }
    }
    for name in &wanted.only {
        if !RECIPES.iter().any(|recipe| recipe.name == name) {
            let known: Vec<_> = names().collect();
            return Err(failure(format!("no peer is called `{name}`"), format!("there are {}", known.join(", "))));
        }
    }
    fs::create_dir_all(&place.peers).map_err(|error| {
        let cause = format!("cannot create {}: {error}", place.peers.display());
        failure(cause, "name a folder that you may write to with --peers")
    })?;
    let chosen = |recipe: &&Recipe| wanted.only.is_empty() || wanted.only.iter().any(|name| name == recipe.name);
    let chosen: Vec<&Recipe> = RECIPES.iter().filter(chosen).collect();
    let mut records = records(place)?;
    let compiler = toolchain::version_line(&cc());
    let there = |recipe: &Recipe, records: &Records| up_to_date(place, recipe, records, &compiler);
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
    let entry = |package: Package| {
        let folder = package.manifest_path.parent().map(PathBuf::from).unwrap_or_default();
        (package.name, (package.version, folder))
    };
    let mut found = Sources::new();
    for (manifest, _) in sources::PEERS.iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--locked", "--format-version=1", "--filter-platform", "x86_64-unknown-linux-gnu"]);
        let json = interrupt::run(cargo.arg("--manifest-path").arg(sources.join(manifest))).map_err(
            |error| match error.is::<interrupt::Interrupted>() {
                true => error,
                false => failure(
                    format!("cannot fetch the sources of the peers: {error:#}"),
                    "they come as crates: connect to the network once, or name libraries with --allocators NAME=PATH",
                ),
            },
        )?;
        let metadata: Metadata = serde_json::from_str(&json)?;
        found.extend(metadata.packages.into_iter().map(entry));
    }
    Ok(found)
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
    let mut job = Job::new(source, scratch.clone(), partial.clone(), crate_version);
    let env = recipe.env.iter().map(|&(k, v)| (k.into(), v.into())).collect();
    let compiler = toolchain::version_line(&cc());
    let made_of = made_of(recipe, PEERS_LOCK);
    let record = match (recipe.build)(&mut job) {
        Ok(version) => {
            let source = format!("crate {} {}", recipe.krate, job.crate_version);
            PeerRecord { version, source, commands: job.into_commands(), compiler, made_of, env }
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
            PeerRecord { version, source: format!("Debian {package}"), commands: vec![], compiler, made_of, env }
        }
    };
    // A program may have the old library mapped: it keeps its file.
    let fresh = place.peers.join(format!(".{}.so", recipe.name));
    fs::copy(&partial, &fresh).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::rename(&fresh, &output)?;
    let _ = fs::remove_dir_all(scratch);
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::for_test;

    // Would catch a crate whose version is no longer found, or that of another crate.
    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = "[[package]]\nname = \"snmalloc-sys-extra\"\nversion = \"9.9\"\n\n\
                    [[package]]\nname = \"snmalloc-sys\"\nversion = \"0.7.6+x\"\nsource = \"s\"\n";
        assert_eq!(locked(lock, "snmalloc-sys"), Some("0.7.6+x"));
        assert_eq!(locked(lock, "snmalloc"), None);
        for recipe in &RECIPES {
            assert!(locked(PEERS_LOCK, recipe.krate).is_some(), "{}", recipe.krate);
        }
    }

    // Would catch an old library that passes for a new one, and a new one that is built each time.
    #[test]
    fn what_is_old_is_built_again() {
        let scratch = crate::scratch::Scratch::new("peers").unwrap();
        let folder = scratch.path().to_path_buf();
        let place = Place { peers: folder.clone(), ..for_test() };
        let recipe = &RECIPES[0];
        let made_of = made_of(recipe, PEERS_LOCK);
        let record = PeerRecord { made_of: made_of.clone(), compiler: "cc 12".into(), ..PeerRecord::default() };
        let fresh = |record: &PeerRecord, compiler: &str| {
            up_to_date(&place, recipe, &Records::from([(recipe.name.into(), record.clone())]), compiler)
        };
        assert!(!fresh(&record, "cc 12"), "there is no library");
        fs::write(folder.join(format!("{}.so", recipe.name)), "").unwrap();
        assert!(fresh(&record, "cc 12") && !fresh(&record, "cc 13"));
        assert!(!up_to_date(&place, recipe, &Records::new(), "cc 12"), "there is no record");
        let version = locked(PEERS_LOCK, recipe.krate).unwrap();
        for other in [made_of.replace(version, "0.0.1"), made_of.replace("recipes ", "recipes 1"), String::new()] {
            assert!(!fresh(&PeerRecord { made_of: other, ..record.clone() }, "cc 12"));
        }
        // A record of an earlier version is read, and is old.
        let json = "{\"mimalloc2\": {\"version\": \"2\", \"source\": \"s\", \"commands\": [], \"compiler\": \"c\", \
                    \"env\": {}}}";
        fs::write(folder.join("peers.json"), json).unwrap();
        assert!(is_old(&records(&place).unwrap(), "mimalloc2"));
    }
}
