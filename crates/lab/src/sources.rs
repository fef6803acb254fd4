//! The C and C++ programs of the lab, embedded and compiled on demand with the user's compiler.
//!
//! The name of a compiled program in the cache contains a hash of everything that it was made from. So a stale program
//! is never used, and two versions of the lab do not disturb each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::failure::failure;
use crate::interrupt;
use crate::place::Place;
use crate::toolchain::{self, available, cc, cxx, version_line};

/// One file of the lab: its path below `lab/`, and its text.
pub type File = (&'static str, &'static str);

/// Names files below `lab/`.
macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../lab/", $path)))),*]
    };
}

/// The launcher, and the headers that programs include.
const SHARED: &[File] = files!["launch.c", "experiments/experiment.h", "workloads/common.h", "workloads/queue.h"];

/// The programs of the experiments.
const EXPERIMENTS: &[File] = files![
    "experiments/aligned.c",
    "experiments/bursts.c",
    "experiments/calloc.c",
    "experiments/ebizzy.c",
    "experiments/first-run.c",
    "experiments/huge.c",
    "experiments/latency.c",
    "experiments/many.c",
    "experiments/order.c",
    "experiments/prefault.c",
    "experiments/recycled.c",
    "experiments/regrow.c",
    "experiments/retain-large.c",
    "experiments/retain-small.c",
    "experiments/survivors.c",
    "experiments/vmas.c",
    "experiments/workers.c",
];

/// The allocation workloads.
const WORKLOADS: &[File] = files![
    "workloads/ast.c",
    "workloads/bigbuf.c",
    "workloads/bignum.c",
    "workloads/cache.c",
    "workloads/fixed.c",
    "workloads/maps.cc",
    "workloads/mixed.c",
    "workloads/prodcons.c",
    "workloads/realloc.c",
    "workloads/remote.c",
    "workloads/server.c",
    "workloads/stress.c",
    "workloads/strings.cc",
    "workloads/trees.c",
    "workloads/vectors.cc",
];

/// Scripts that [`script`] writes.
const SCRIPTS: &[File] = files!["experiments/bursts-sqlite.py", "experiments/service.py"];

/// The scripts that interpreters run in `programs`.
pub const PYTHON_SCRIPT: File = files!["programs/script.py"][0];
/// See [`PYTHON_SCRIPT`].
pub const PERL_SCRIPT: File = files!["programs/script.pl"][0];
/// See [`PYTHON_SCRIPT`].
pub const LUA_SCRIPT: File = files!["programs/script.lua"][0];
/// See [`PYTHON_SCRIPT`].
pub const RUBY_SCRIPT: File = files!["programs/script.rb"][0];
/// See [`PYTHON_SCRIPT`].
pub const NODE_SCRIPT: File = files!["programs/script.js"][0];
/// What SQLite runs in `programs`; `COUNT` stands for the number of rows.
pub const SQL_SCRIPT: File = files!["programs/script.sql"][0];
/// Starts and loads redis-server in `programs`.
pub const REDIS_SCRIPT: File = files!["programs/redis.sh"][0];

/// The two scripts of `tls-chunks`.
pub const TLS_SERVER: File = files!["experiments/tls-server.py"][0];
/// The client whose reads are measured.
pub const TLS_CLIENT: File = files!["experiments/tls-client.py"][0];
/// The crates that contain the peers' sources. Those in `apart` cannot be in one dependency graph with the others.
pub const PEERS: &[File] = files![
    "peers/Cargo.toml",
    "peers/Cargo.lock",
    "peers/src/lib.rs",
    "peers/apart/Cargo.toml",
    "peers/apart/Cargo.lock",
    "peers/apart/src/lib.rs",
];
/// The versions of these crates: both lock files, concatenated.
pub const PEERS_LOCK: &str =
    concat!(include_str!("../../../lab/peers/Cargo.lock"), include_str!("../../../lab/peers/apart/Cargo.lock"));

/// Flags for all C and C++ programs.
const FLAGS: [&str; 4] = ["-O2", "-Wall", "-Wextra", "-pthread"];

/// What to do if a compiler is missing.
const COMPILER_REMEDY: &str = "the lab compiles its small programs itself: install a C compiler \
     (Debian: apt install build-essential), or name one with CC and CXX";

/// One allocation workload: its name and the thread counts that its head comment names.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The file's name without its ending.
    pub name: &'static str,
    /// From the line `bench: threads=...`.
    pub threads: Vec<u32>,
}

/// All allocation workloads.
pub fn workloads() -> Vec<Workload> {
    WORKLOADS.iter().map(|&(path, text)| Workload { name: stem(path), threads: declared_threads(text) }).collect()
}

/// Builds the launcher that measures a run.
pub fn launcher(place: &Place) -> Result<PathBuf> {
    build(place, "launch.c")
}

/// Builds one program of `lab/experiments`.
pub fn experiment(place: &Place, name: &str) -> Result<PathBuf> {
    build(place, &format!("experiments/{name}.c"))
}

/// Compiles one program of `lab/experiments`, which was built before, to another path and with one more option.
pub fn link_again(place: &Place, name: &str, option: &str, output: &Path) -> Result<()> {
    let path = format!("experiments/{name}.c");
    let file = EXPERIMENTS.iter().find(|(known, _)| *known == path).with_context(|| format!("no {path}"))?;
    let source = write_below(&place.cache.join("sources"), file)?;
    let mut command = toolchain::command(&cc());
    interrupt::run(command.args(FLAGS).arg(source).arg("-o").arg(output).arg(option)).map(drop)
}

/// Writes one script into the cache.
pub fn script(place: &Place, name: &str) -> Result<PathBuf> {
    let file = SCRIPTS.iter().find(|(path, _)| path.ends_with(name)).with_context(|| format!("no {name}"))?;
    write_below(&place.cache.join("sources"), file)
}

/// Builds one workload.
pub fn workload(place: &Place, name: &str) -> Result<PathBuf> {
    let Some((path, _)) = WORKLOADS.iter().find(|(path, _)| stem(path) == name) else {
        let known: Vec<_> = WORKLOADS.iter().map(|(path, _)| stem(path)).collect();
        bail!("no workload is called `{name}`; there are {}", known.join(", "));
    };
    build(place, path)
}

fn all_files() -> impl Iterator<Item = &'static File> {
    SHARED.iter().chain(EXPERIMENTS).chain(WORKLOADS)
}

/// Compiles one file, unless the cache has the program.
fn build(place: &Place, path: &str) -> Result<PathBuf> {
    let &(path, text) = all_files().find(|(known, _)| *known == path).with_context(|| format!("no {path}"))?;
    let is_c = path.ends_with(".c");
    let (compiler, standard) = if is_c { (cc(), "-std=gnu11") } else { (cxx(), "-std=gnu++17") };
    let headers: Vec<&File> = SHARED.iter().filter(|(name, _)| name.ends_with(".h")).collect();
    let mut hash = Hash::default();
    hash.add(text);
    headers.iter().for_each(|(_, header)| hash.add(header));
    FLAGS.iter().for_each(|flag| hash.add(flag));
    hash.add(&compiler);
    let dir = place.programs();
    let output = dir.join(format!("{}-{:016x}", stem(path), hash.0));
    if output.exists() {
        return Ok(output);
    }
    if !available(&compiler) {
        return Err(failure(format!("the compiler `{compiler}` is not installed or does not start"), COMPILER_REMEDY));
    }
    let source = write_below(&place.cache.join("sources"), &(path, text))?;
    for header in headers {
        write_below(&place.cache.join("sources"), header)?;
    }
    fs::create_dir_all(&dir).map_err(|error| no_cache(&dir, &error))?;
    let partial = partial_name(&output);
    let mut command = toolchain::command(&compiler);
    let made = interrupt::run(command.arg(standard).args(FLAGS).arg(source).arg("-o").arg(&partial));
    if made.is_err() {
        let _ = fs::remove_file(&partial);
    }
    made.with_context(|| format!("{} cannot compile {path}", version_line(&compiler)))?;
    fs::rename(&partial, &output)?;
    Ok(output)
}

/// Writes a file of the lab below `dir`, and returns its path.
pub fn write_below(dir: &Path, &(path, text): &(&str, &str)) -> Result<PathBuf> {
    let target = dir.join(path);
    if fs::read_to_string(&target).is_ok_and(|there| there == text) {
        return Ok(target);
    }
    let parent = target.parent().context("a file lies in a folder")?;
    fs::create_dir_all(parent).map_err(|error| no_cache(parent, &error))?;
    let partial = partial_name(&target);
    fs::write(&partial, text).map_err(|error| no_cache(&partial, &error))?;
    fs::rename(&partial, &target)?;
    Ok(target)
}

fn no_cache(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let cause = format!("cannot create {}: {error}", path.display());
    failure(cause, "set XDG_CACHE_HOME to a folder that you may write to, on a disk with room")
}

/// The name of a file until it is complete, because another lab or thread may look for it at the same time.
fn partial_name(target: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{}-{count}-{name}", std::process::id()))
}

/// The file's name without folder and ending.
fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split('.').next().unwrap_or(name)
}

/// Reads `bench: threads=1,2` from a head comment.
fn declared_threads(text: &str) -> Vec<u32> {
    let Some((_, rest)) = text.split_once("bench: threads=") else {
        return Vec::new();
    };
    let list = rest.lines().next().unwrap_or_default();
    list.trim().split(',').filter_map(|n| n.parse().ok()).collect()
}

/// 64-bit FNV-1a of several texts.
pub(crate) struct Hash(pub(crate) u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Adds one more text.
    pub(crate) fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a program in lab/ that is not embedded in the command.
    #[test]
    fn every_program_is_carried() {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
        let programs =
            [&PYTHON_SCRIPT, &PERL_SCRIPT, &LUA_SCRIPT, &RUBY_SCRIPT, &NODE_SCRIPT, &SQL_SCRIPT, &REDIS_SCRIPT];
        for folder in ["experiments", "workloads", "programs"] {
            for entry in fs::read_dir(lab.join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let path = format!("{folder}/{name}");
                let carried = all_files()
                    .chain(SCRIPTS)
                    .chain(programs)
                    .chain([&TLS_SERVER, &TLS_CLIENT])
                    .any(|(known, _)| *known == path);
                assert!(carried, "{path}");
            }
        }
    }

    // Would catch a head comment whose thread counts are no longer read.
    #[test]
    fn threads_are_read_from_the_head_comment() {
        assert_eq!(declared_threads("/* Models a thing.\n *\n * bench: threads=1,2\n */\n"), [1, 2]);
        assert!(declared_threads("/* nothing */").is_empty());
        for workload in workloads() {
            assert!(!workload.threads.is_empty(), "{}: no line `bench: threads=...`", workload.name);
        }
    }

    // Would catch texts with one hash because they are concatenated without a separator.
    #[test]
    fn texts_are_hashed_apart() {
        let of = |texts: &[&str]| {
            let mut hash = Hash::default();
            texts.iter().for_each(|text| hash.add(text));
            hash.0
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
    }
}
