//! The other allocators as preload libraries.
//!
//! The sources come from crates that contain them (`lab/peers/Cargo.toml`, pinned by its Cargo.lock; both are embedded
//! in the command). They are compiled here as their authors build them for preloading: release flags, their own malloc
//! override, no code of neap between a call and the allocator. If a source cannot be compiled, Debian's package is used
//! instead if there is one, and `peers.json` says so. With `--upstream` the sources are the newest releases of the
//! authors' repositories.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use neap_options::nearest::did_you_mean;
use serde::{Deserialize, Serialize};

use crate::failure::failure;
use crate::interrupt;
use crate::place::Place;
use crate::sources::{self, Hash, PEERS_LOCK};
use crate::toolchain::{self, cc, cxx, need};

mod lock;
mod progress;
mod recipe;
mod recipes;
mod upstream;

pub use progress::{Shown, Step};

use lock::Lock;
use progress::Progress;
use recipe::{Job, Recipe};
use recipes::RECIPES;
use upstream::Release;

/// The record of one peer in `peers.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerRecord {
    /// Version of the allocator itself, in one word.
    pub version: String,
    /// The date of that version, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The newest release of its authors when their repository was last read, if that is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<String>,
    /// The crate, repository or package that its source or file came from.
    pub source: String,
    /// The commands that built it, the folder of its source written as `$SRC`.
    pub commands: Vec<String>,
    /// First line of the compiler's `--version`.
    pub compiler: String,
    /// The source and the recipe, by which an old library is recognised; empty in records of earlier versions.
    #[serde(default)]
    pub made_of: String,
    /// Environment that the peer is measured with, at its authors' advice.
    pub env: BTreeMap<String, String>,
}

impl PeerRecord {
    /// The version, with its date if it is known.
    pub fn dated(&self) -> String {
        self.date.as_ref().map_or(self.version.clone(), |date| format!("{} ({date})", self.version))
    }

    /// The newest known release of the peer called `name`, if this one is older.
    pub fn behind(&self, name: &str) -> Option<&str> {
        let recipe = RECIPES.iter().find(|recipe| recipe.name == name)?;
        let known = recipe.upstream.as_ref().map_or("", |upstream| upstream.known);
        let newest =
            [self.newest.as_deref().unwrap_or(""), known].into_iter().max_by(|a, b| upstream::compare(a, b))?;
        upstream::is_older(&self.version, newest).then_some(newest)
    }
}

/// All of `peers.json`: name to record.
pub type Records = BTreeMap<String, PeerRecord>;

/// The names of all peers, in the order of the tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|recipe| recipe.name)
}

/// The crate of a peer that is not built yet.
pub fn source_of(name: &str) -> Option<&'static str> {
    RECIPES.iter().find(|recipe| recipe.name == name).map(|recipe| recipe.krate)
}

/// Reads `peers.json`; empty if no peer was built yet.
pub fn records(place: &Place) -> Result<Records> {
    let path = place.peers.join("peers.json");
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            let remedy = format!("remove it and run `{}`", place.build_peers);
            failure(format!("{} cannot be read: {error}", path.display()), remedy)
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Records::new()),
        // Not empty records: a build would then write a file without the old ones.
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The version of a crate in a Cargo.lock.
fn locked<'a>(lock: &'a str, krate: &str) -> Option<&'a str> {
    let (_, rest) = lock.split_once(&format!("name = \"{krate}\"\nversion = \""))?;
    rest.split_once('"').map(|(version, _)| version)
}

/// What a library built now would be made of: the crate's version in the embedded Cargo.lock, or the commit of a
/// release; and the recipes.
fn made_of(recipe: &Recipe, lock: &str, release: Option<&Release>) -> String {
    let mut recipes = Hash::default();
    recipes.add(include_str!("recipes.rs"));
    let source = match release {
        Some(release) => format!("{GIT}{} {}", release.repository, release.commit),
        None => format!("{} {}", recipe.krate, locked(lock, recipe.krate).unwrap_or("?")),
    };
    format!("{source}, recipes {:016x}", recipes.0)
}

/// The beginning of [`made_of`] if the source is a release of a repository.
const GIT: &str = "git ";

/// Whether the library called `name` exists and was built from another source or recipe than this version of the lab
/// would use. A release from a repository stays as long as the recipe is the same.
pub fn is_old(records: &Records, name: &str) -> bool {
    let recipe = RECIPES.iter().find(|recipe| recipe.name == name);
    recipe.zip(records.get(name)).is_some_and(|(recipe, record)| {
        let now = made_of(recipe, PEERS_LOCK, None);
        let recipes = |of: &str| of.rsplit(", ").next().map(str::to_owned);
        if record.made_of.starts_with(GIT) { recipes(&record.made_of) != recipes(&now) } else { record.made_of != now }
    })
}

/// Whether the library exists, and is from the right source (`release`, if there is one) and from the installed
/// compiler.
fn up_to_date(place: &Place, recipe: &Recipe, release: Option<&Release>, records: &Records, compiler: &str) -> bool {
    let record = records.get(recipe.name).filter(|_| place.peers.join(format!("{}.so", recipe.name)).exists());
    record.is_some_and(|record| {
        let current = match release {
            Some(release) => record.made_of == made_of(recipe, PEERS_LOCK, Some(release)),
            None => !is_old(records, recipe.name),
        };
        current && record.compiler == compiler
    })
}

/// What [`build_all`] shall do.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Build even what is already there.
    pub force: bool,
    /// Only these; all if empty.
    pub only: Vec<String>,
    /// Build the newest releases of the authors' repositories, not the crates.
    pub upstream: bool,
    /// Other repositories: a peer's name, and an address for git or a path.
    pub repositories: Vec<(String, String)>,
}

/// `NAME=URL` of the command line.
pub fn parse_repository(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, repository)) if !repository.is_empty() => Ok((name.into(), repository.into())),
        _ => Err("expected NAME=URL, as rpmalloc=https://example.org/rpmalloc or rpmalloc=/src/rpmalloc".into()),
    }
}

/// Builds the peers, and reports each step; the result is the number of libraries that were written.
pub fn build_all(place: &Place, wanted: &Wanted, tell: &mut dyn FnMut(Step)) -> Result<usize> {
    let remedy = "install a C and a C++ compiler (Debian: apt install build-essential)";
    for compiler in [cc(), cxx()] {
        need(&compiler, remedy)?;
        if toolchain::command(&compiler).get_args().len() > 0 {
            let cause = format!("`{compiler}` has options, but the peers are built with those of their authors");
            return Err(failure(cause, "name the compiler alone: CC=gcc CXX=g++ neap lab peers build"));
        }
    }
    for name in wanted.only.iter().chain(wanted.repositories.iter().map(|(name, _)| name)) {
        if !RECIPES.iter().any(|recipe| recipe.name == name) {
            let known: Vec<_> = names().collect();
            let remedy = format!("{}the peers are {}", did_you_mean(name, names()), known.join(", "));
            return Err(failure(format!("no peer is called `{name}`"), remedy));
        }
    }
    let mut locks = Vec::new();
    let folders = [Some(&place.cache), Some(&place.peers).filter(|peers| **peers != place.cache)];
    for folder in folders.into_iter().flatten() {
        let waits = || tell(Step::Line(format!("another build uses {}: waiting ...", folder.display())));
        locks.push(Lock::take(folder, waits)?);
    }
    let chosen = |recipe: &&Recipe| wanted.only.is_empty() || wanted.only.iter().any(|name| name == recipe.name);
    let chosen: Vec<&Recipe> = RECIPES.iter().filter(chosen).collect();
    let mut records = records(place)?;
    let compiler = toolchain::version_line(&cc());
    let mut sources = None;
    let (mut built, mut failed) = (0, Vec::new());
    for (index, recipe) in chosen.iter().enumerate() {
        interrupt::check()?;
        let name = recipe.name;
        let what = format!("[{}/{}] {name}", index + 1, chosen.len());
        let is_crate = !wanted.upstream || recipe.upstream.is_none();
        let wants_crate = is_crate && (wanted.force || !up_to_date(place, recipe, None, &records, &compiler));
        if wants_crate && sources.is_none() {
            tell(Step::Line("fetching the sources ...".into()));
            // Fetches all crates at once. Without them no crate can be built, so an error ends the build.
            sources = Some(locate_crates(place)?);
        }
        let mut newest = None;
        let mut step = || -> Result<Option<PeerRecord>> {
            let release = release(recipe, wanted)?;
            newest = release.as_ref().map(|release| release.word().to_owned());
            if !wanted.force && up_to_date(place, recipe, release.as_ref(), &records, &compiler) {
                return Ok(None);
            }
            tell(Step::Line(format!("{what}: building ...")));
            build(place, recipe, release.as_ref(), sources.as_ref(), (&what, tell)).map(Some)
        };
        match step() {
            Ok(None) => tell(Step::Line(format!("{name}: up to date"))),
            Ok(Some(record)) => {
                let said = format!("{name}: {} from {}", record.dated(), record.source);
                replace(place, &mut records, name, record)?;
                tell(Step::Line(said));
                built += 1;
            }
            Err(error) if error.is::<interrupt::Interrupted>() => return Err(error),
            Err(error) => {
                tell(Step::Line(format!("{name}: {error:#}")));
                failed.push(name);
                if let Some(record) = records.get_mut(name).filter(|_| newest.is_some()) {
                    record.newest = newest;
                    write_records(place, &records)?;
                }
            }
        }
    }
    if !failed.is_empty() {
        bail!("not built: {}", failed.join(", "));
    }
    Ok(built)
}

/// The release to build; none if the crate is to be built.
fn release(recipe: &Recipe, wanted: &Wanted) -> Result<Option<Release>> {
    let Some(upstream) = recipe.upstream.as_ref().filter(|_| wanted.upstream) else {
        return Ok(None);
    };
    let other = wanted.repositories.iter().rfind(|(name, _)| name == recipe.name);
    upstream::newest(upstream, other.map_or(upstream.repository, |(_, repository)| repository)).map(Some)
}

/// Replaces the old library called `name`. In between it has no record, so a build that ends there (no space, killed)
/// leaves no library with the record of another one.
fn replace(place: &Place, records: &mut Records, name: &str, record: PeerRecord) -> Result<()> {
    if records.remove(name).is_some() {
        write_records(place, records)?;
    }
    fs::rename(fresh(place, name), place.peers.join(format!("{name}.so")))?;
    records.insert(name.into(), record);
    write_records(place, records)
}

/// Where a library is before it replaces the old one.
fn fresh(place: &Place, name: &str) -> PathBuf {
    place.peers.join(format!(".{name}.so"))
}

/// Writes to another name first, because a run may read the file.
fn write_records(place: &Place, records: &Records) -> Result<()> {
    let (fresh, path) = (place.peers.join(".peers.json"), place.peers.join("peers.json"));
    let text = serde_json::to_string_pretty(records)? + "\n";
    let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// A crate's version and folder, by name.
type Sources = BTreeMap<String, (String, PathBuf)>;

/// Makes Cargo fetch the crates, and returns where they are.
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

/// Builds one peer to the path of [`fresh`]. If its crate cannot be compiled, copies the distribution's library.
fn build(
    place: &Place,
    recipe: &Recipe,
    release: Option<&Release>,
    sources: Option<&Sources>,
    (what, tell): (&str, &mut dyn FnMut(Step)),
) -> Result<PeerRecord> {
    let scratch = place.cache.join("peers-build").join(recipe.name);
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let (folder, tree, described, version, source) = match release {
        Some(release) => {
            let folder = scratch.join("source");
            let version = release.fetch(&folder)?;
            let source = format!("{}, tag {}", release.repository, release.tag);
            (folder.clone(), folder, release.described(), version, source)
        }
        None => {
            let found = sources.and_then(|sources| sources.get(recipe.krate));
            let (version, folder) =
                found.with_context(|| format!("{} is not in lab/peers/Cargo.lock", recipe.krate))?;
            let tree = folder.join(recipe.tree);
            let described = version.split_once('+').map_or(version.as_str(), |(_, described)| described).to_owned();
            // What may follow the `+` describes the allocator's source.
            let source = format!("crate {} {}", recipe.krate, version.split('+').next().unwrap_or(version));
            (folder.clone(), tree.clone(), described, (recipe.version)(&tree, version)?, source)
        }
    };
    // Under another name until it is complete: a run finds the old one until then.
    let partial = scratch.join("library.so");
    let progress = Progress::new(what.into(), tell);
    let mut job = Job::new((folder, tree), scratch.clone(), partial.clone(), described, progress);
    let mut record = PeerRecord {
        version: version.word,
        date: version.date,
        source,
        compiler: toolchain::version_line(&cc()),
        made_of: made_of(recipe, PEERS_LOCK, release),
        env: recipe.env.iter().map(|&(k, v)| (k.into(), v.into())).collect(),
        ..PeerRecord::default()
    };
    match (recipe.build)(&mut job) {
        Ok(()) => record.commands = job.into_commands(),
        Err(error) if error.is::<interrupt::Interrupted>() => return Err(error),
        Err(error) => {
            let Some((file, package)) = recipe.debian.filter(|_| release.is_none()) else {
                return Err(error);
            };
            tell(Step::Line(format!("{}: {error:#}", recipe.name)));
            tell(Step::Line(format!("{}: taking Debian's {package}", recipe.name)));
            fs::copy(file, &partial).with_context(|| format!("{file} is missing too; apt install {package}"))?;
            record.version = toolchain::run(Command::new("dpkg-query").args(["-W", "-f=${Version}", package]))?;
            record.date = None;
            record.source = format!("Debian {package}");
        }
    };
    // Not written over the old library: a program may have it mapped.
    let fresh = fresh(place, recipe.name);
    fs::copy(&partial, &fresh).with_context(|| format!("cannot write {}", fresh.display()))?;
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

    // Would catch an old library that counts as new, and a new one that is built each time.
    #[test]
    fn what_is_old_is_built_again() {
        let scratch = crate::scratch::Scratch::new("peers").unwrap();
        let folder = scratch.path().to_path_buf();
        let place = Place { peers: folder.clone(), ..for_test() };
        let recipe = &RECIPES[0];
        let made_of = made_of(recipe, PEERS_LOCK, None);
        let record = PeerRecord { made_of: made_of.clone(), compiler: "cc 12".into(), ..PeerRecord::default() };
        let fresh = |record: &PeerRecord, compiler: &str| {
            up_to_date(&place, recipe, None, &Records::from([(recipe.name.into(), record.clone())]), compiler)
        };
        assert!(!fresh(&record, "cc 12"), "there is no library");
        fs::write(folder.join(format!("{}.so", recipe.name)), "").unwrap();
        assert!(fresh(&record, "cc 12") && !fresh(&record, "cc 13"));
        assert!(!up_to_date(&place, recipe, None, &Records::new(), "cc 12"), "there is no record");
        let version = locked(PEERS_LOCK, recipe.krate).unwrap();
        for other in [made_of.replace(version, "0.0.1"), made_of.replace("recipes ", "recipes 1"), String::new()] {
            assert!(!fresh(&PeerRecord { made_of: other, ..record.clone() }, "cc 12"));
        }
        // A release stays until there is another release or another recipe.
        let release = |commit: &str| Release { repository: "r".into(), tag: "v3.0".into(), commit: commit.into() };
        let of = PeerRecord { made_of: super::made_of(recipe, PEERS_LOCK, Some(&release("a"))), ..record.clone() };
        assert!(fresh(&of, "cc 12"));
        assert!(!fresh(&PeerRecord { made_of: of.made_of.replace("recipes ", "recipes 1"), ..of.clone() }, "cc 12"));
        let records_of = Records::from([(recipe.name.into(), of)]);
        assert!(up_to_date(&place, recipe, Some(&release("a")), &records_of, "cc 12"));
        assert!(!up_to_date(&place, recipe, Some(&release("b")), &records_of, "cc 12"));
        // A record of an earlier version is read, and is old.
        let json = "{\"mimalloc2\": {\"version\": \"2\", \"source\": \"s\", \"commands\": [], \"compiler\": \"c\", \
                    \"env\": {}}}";
        fs::write(folder.join("peers.json"), json).unwrap();
        assert!(is_old(&records(&place).unwrap(), "mimalloc2"));
    }

    // Would catch a later release that is not named, and one that is named although it is not later.
    #[test]
    fn what_is_older_than_upstream_is_said() {
        let record = |version: &str, newest: Option<&str>| PeerRecord {
            version: version.into(),
            newest: newest.map(String::from),
            ..PeerRecord::default()
        };
        assert_eq!(record("1.4.3", None).behind("rpmalloc"), Some("2.0.1"));
        assert_eq!(record("1.4.3", Some("2.10.0")).behind("rpmalloc"), Some("2.10.0"));
        assert_eq!(record("3.0.0", Some("2.10.0")).behind("rpmalloc"), None);
        assert_eq!(record("2025-06-16", None).behind("tcmalloc"), None);
        assert_eq!(record("5.3.1", None).behind("jemalloc"), None);
        let dated = PeerRecord { date: Some("2026-04-13".into()), ..record("5.3.1", None) };
        assert_eq!(dated.dated(), "5.3.1 (2026-04-13)");
    }

    // Would catch a library with the record of its predecessor if there is no space for a new record.
    #[test]
    fn a_library_never_has_the_record_of_another() {
        let scratch = crate::scratch::Scratch::new("peers").unwrap();
        let place = Place { peers: scratch.path().to_path_buf(), ..for_test() };
        let record = |version: &str| PeerRecord { version: version.into(), ..PeerRecord::default() };
        let library = || fs::read_to_string(scratch.join("jemalloc.so")).unwrap();
        let version = || records(&place).unwrap()["jemalloc"].version.clone();
        let put = |version: &str| {
            fs::write(fresh(&place, "jemalloc"), version).unwrap();
            replace(&place, &mut records(&place).unwrap(), "jemalloc", record(version))
        };
        put("1").unwrap();
        // The records are written to a file of this name first.
        let full = scratch.join(".peers.json");
        fs::create_dir(&full).unwrap();
        assert!(format!("{:#}", put("2").unwrap_err()).contains("cannot write "));
        assert_eq!((library(), version()), ("1".into(), "1".into()));
        fs::remove_dir(full).unwrap();
        // Killed before the rename.
        fs::remove_file(fresh(&place, "jemalloc")).unwrap();
        replace(&place, &mut records(&place).unwrap(), "jemalloc", record("2")).unwrap_err();
        assert!(records(&place).unwrap().is_empty());
        put("3").unwrap();
        assert_eq!((library(), version()), ("3".into(), "3".into()));
    }

    // Would catch a build that discards records because they cannot be read now.
    #[test]
    fn records_that_cannot_be_read_are_not_taken_for_none() {
        let scratch = crate::scratch::Scratch::new("peers").unwrap();
        let place = Place { peers: scratch.path().to_path_buf(), ..for_test() };
        assert!(records(&place).unwrap().is_empty());
        fs::create_dir(scratch.join("peers.json")).unwrap();
        let error = format!("{:#}", records(&place).unwrap_err());
        assert!(error.contains("cannot read ") && error.contains("peers.json"), "{error}");
    }
}
