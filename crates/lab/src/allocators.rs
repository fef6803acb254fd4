//! The allocators that are measured: glibc (nothing preloaded), neap, and the peers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::peers;
use crate::toolchain::root;

/// Name of the baseline: the system's own malloc.
pub const GLIBC: &str = "glibc";
/// Name of this project's allocator.
pub const NEAP: &str = "neap";

/// Allocators that are another one with a variable set: name, base, variable, value.
const VARIANTS: &[(&str, &str, &str, &str)] = &[
    ("neap-eager", NEAP, "NEAP_PURGE", "eager"),
    ("neap-lazy", NEAP, "NEAP_PURGE", "lazy"),
    ("neap-never", NEAP, "NEAP_PURGE", "never"),
    ("mimalloc3-nothp", "mimalloc3", "MIMALLOC_ALLOW_THP", "0"),
];

/// The allocator that `name` is a variant of, or `name` itself.
pub fn base_of(name: &str) -> &str {
    VARIANTS.iter().find(|variant| variant.0 == name).map_or(name, |variant| variant.1)
}

/// One allocator, ready to be preloaded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Allocator {
    /// Its name on the command line and in the tables.
    pub name: String,
    /// The library to preload; none for glibc. Left out of records: it names a path of this machine.
    #[serde(skip)]
    pub library: Option<PathBuf>,
    /// Its version, for the record.
    pub version: String,
    /// Further environment that it is measured with.
    pub env: BTreeMap<String, String>,
}

impl Allocator {
    /// The environment of a program under this allocator, as `NAME=VALUE`.
    pub fn variables(&self) -> Vec<String> {
        let mut variables: Vec<String> = self.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        if let Some(library) = &self.library {
            variables.push(format!("LD_PRELOAD={}", library.display()));
        }
        variables
    }
}

/// Finds the allocators called `names`; all there are where `names` is empty.
///
/// A name of the form `NAME=PATH` stands for any other preload library.
pub fn resolve(names: &[String]) -> Result<Vec<Allocator>> {
    if names.is_empty() {
        return all();
    }
    let known = || -> Vec<String> {
        let peers = peers::names().map(String::from);
        let variants = VARIANTS.iter().map(|variant| variant.0.into());
        [GLIBC.into(), NEAP.into()].into_iter().chain(peers).chain(variants).collect()
    };
    let mut found: Vec<Allocator> = Vec::new();
    for name in names {
        if found.iter().any(|a| a.name == *name) {
            continue;
        }
        found.push(match name.split_once('=') {
            Some((name, path)) => by_path(name, Path::new(path))?,
            None if known().contains(name) => by_name(name)?,
            None => {
                bail!("no allocator is called `{name}`; there are {}, or NAME=PATH for any other", known().join(", "))
            }
        });
    }
    Ok(found)
}

/// All allocators that are built, each followed by its variants.
pub fn all_with_variants() -> Result<Vec<Allocator>> {
    let mut list = Vec::new();
    for allocator in all()? {
        let name = allocator.name.clone();
        list.push(allocator);
        for variant in VARIANTS.iter().filter(|variant| variant.1 == name) {
            list.push(by_name(variant.0)?);
        }
    }
    Ok(list)
}

/// An allocator or variant by a name that is known.
fn by_name(name: &str) -> Result<Allocator> {
    if let Some(&(_, base, variable, value)) = VARIANTS.iter().find(|variant| variant.0 == name) {
        let mut allocator = by_name(base)?;
        allocator.name = name.into();
        allocator.env.insert(variable.into(), value.into());
        return Ok(allocator);
    }
    match name {
        GLIBC => Ok(glibc()),
        NEAP => neap(),
        _ => peer(name),
    }
}

/// glibc, neap, and each peer; what is not built is left out with a line on stderr.
fn all() -> Result<Vec<Allocator>> {
    let mut list = vec![glibc()];
    let mut add = |candidate: Result<Allocator>| match candidate {
        Ok(allocator) => list.push(allocator),
        Err(error) => eprintln!("left out: {error:#}"),
    };
    add(neap());
    for name in peers::names() {
        add(peer(name));
    }
    Ok(list)
}

fn glibc() -> Allocator {
    Allocator { name: GLIBC.into(), library: None, version: glibc_version(), env: BTreeMap::new() }
}

/// What `ldd --version` says of the C library.
fn glibc_version() -> String {
    let line = crate::toolchain::version_line("ldd");
    line.rsplit(' ').next().unwrap_or_default().to_owned()
}

fn neap() -> Result<Allocator> {
    let library = root().join("target/release/libneap.so");
    if !library.exists() {
        bail!("neap: {} is missing; run `cargo build --release`", library.display());
    }
    Ok(Allocator { name: NEAP.into(), library: Some(library), version: commit(), env: BTreeMap::new() })
}

/// The commit that is checked out, with `-dirty` where files were changed.
pub fn commit() -> String {
    let mut git = std::process::Command::new("git");
    git.current_dir(root()).args(["describe", "--always", "--dirty"]);
    crate::toolchain::run(&mut git).map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
}

fn peer(name: &str) -> Result<Allocator> {
    let library = peers::build_dir().join(format!("{name}.so"));
    let records = peers::records()?;
    let Some(record) = records.get(name).filter(|_| library.exists()) else {
        bail!("{name}: not built; run `cargo xtask peers`");
    };
    Ok(Allocator {
        name: name.into(),
        library: Some(library),
        version: record.version.clone(),
        env: record.env.clone(),
    })
}

fn by_path(name: &str, path: &Path) -> Result<Allocator> {
    let Ok(library) = path.canonicalize() else {
        bail!("{name}: {} does not exist", path.display());
    };
    Ok(Allocator { name: name.into(), version: "given by path".into(), library: Some(library), env: BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a variant whose base is misspelt, or that is a variant of a variant.
    #[test]
    fn variants_have_a_base() {
        for (name, base, ..) in VARIANTS {
            assert!(*base == NEAP || peers::names().any(|peer| peer == *base), "{name}");
            assert_eq!(base_of(name), *base);
        }
        assert_eq!(base_of("glibc"), "glibc");
    }
}
