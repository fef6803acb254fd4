//! The allocators that are measured: glibc (nothing preloaded), neap, and the peers.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use neap_options::nearest::did_you_mean;
use neap_results::{GLIBC, NEAP};
use serde::{Deserialize, Serialize};

use crate::failure::failure;
use crate::peers::{self, PeerRecord};
use crate::place::Place;

/// Variants: name, base, variable, value.
const VARIANTS: &[(&str, &str, &str, &str)] = &[
    ("neap-eager", NEAP, "NEAP_PURGE", "eager"),
    ("neap-lazy", NEAP, "NEAP_PURGE", "lazy"),
    ("neap-never", NEAP, "NEAP_PURGE", "never"),
    ("neap-zero", NEAP, "NEAP_ZERO", "always"),
    ("neap-nothp", NEAP, "NEAP_HUGE", "off"),
    ("neap-adaptive", NEAP, "NEAP_HUGE", "adaptive"),
    ("neap-always", NEAP, "NEAP_HUGE", "always"),
    ("neap-thp", NEAP, "NEAP_HUGE", "thp"),
    ("mimalloc3-nothp", "mimalloc3", "MIMALLOC_ALLOW_THP", "0"),
    (
        "jemalloc-background",
        "jemalloc",
        "MALLOC_CONF",
        "background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:1000",
    ),
];

/// The distribution's allocators: name, the peer of the same authors, file, Debian's package.
const PACKAGED: &[(&str, &str, &str, &str)] = &[
    ("debian-jemalloc", "jemalloc", "libjemalloc.so.2", "libjemalloc2"),
    ("debian-mimalloc", "mimalloc2", "libmimalloc.so.2", "libmimalloc2.0"),
    ("debian-tcmalloc", "tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
];
/// Where distributions keep libraries.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// One allocator, ready to be preloaded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Allocator {
    /// Its name on the command line and in the tables.
    pub name: String,
    /// The allocator that it is a variant of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The library to preload; none for glibc. Not in records, because the path is of this machine.
    #[serde(skip)]
    pub library: Option<PathBuf>,
    /// Its version, for the record.
    pub version: String,
    /// Further environment that it is measured with.
    pub env: BTreeMap<String, String>,
    /// How the lab built its library; none if the lab did not.
    #[serde(skip)]
    pub built: Option<PeerRecord>,
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

    /// The allocator that it is a variant of, or itself.
    pub fn base_name(&self) -> &str {
        self.base.as_deref().unwrap_or(&self.name)
    }

    /// For the record: versions, flags, environment.
    pub fn record(&self) -> neap_results::Allocator {
        let built = self.built.clone().unwrap_or_default();
        neap_results::Allocator {
            name: self.name.clone(),
            base: self.base.clone(),
            version: self.version.clone(),
            source: built.source,
            commands: built.commands,
            compiler: built.compiler,
            env: self.env.clone(),
        }
    }
}

/// All names that [`resolve`] knows.
pub fn names() -> Vec<String> {
    let peers = peers::names().map(String::from);
    let packaged = PACKAGED.iter().map(|packaged| packaged.0.into());
    let variants = VARIANTS.iter().map(|variant| variant.0.into());
    [GLIBC.into(), NEAP.into()].into_iter().chain(peers).chain(packaged).chain(variants).collect()
}

/// Finds the allocators called `names`. If `names` is empty, finds all that are installed, and calls `left_out` for
/// each peer that is missing.
///
/// A name of the form `NAME=PATH` stands for any other preload library.
pub fn resolve(place: &Place, names: &[String], left_out: &mut dyn FnMut(&str)) -> Result<Vec<Allocator>> {
    if names.is_empty() {
        return all(place, left_out);
    }
    let mut found: Vec<Allocator> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            continue;
        }
        let allocator = match name.split_once('=') {
            Some((name, path)) => by_path(name, Path::new(path))?,
            None => by_name(place, name)?,
        };
        if found.iter().any(|other| other.name == allocator.name) {
            let cause = format!("two allocators are called `{}`", allocator.name);
            bail!(failure(cause, "give one of them another name with NAME=PATH"));
        }
        found.push(allocator);
    }
    Ok(found)
}

/// The variant called `name` of one of `allocators`; none if its base is not among them.
pub fn variant(name: &str, allocators: &[Allocator]) -> Option<Allocator> {
    let &(_, base, variable, value) = VARIANTS.iter().find(|variant| variant.0 == name)?;
    let mut allocator = allocators.iter().find(|one| one.name == base)?.clone();
    allocator.name = name.into();
    allocator.base = Some(base.into());
    allocator.env.insert(variable.into(), value.into());
    Some(allocator)
}

/// An allocator or variant by a name.
fn by_name(place: &Place, name: &str) -> Result<Allocator> {
    if let Some(&(_, base, ..)) = VARIANTS.iter().find(|variant| variant.0 == name) {
        let base = by_name(place, base)?;
        return variant(name, &[base]).ok_or_else(|| anyhow::anyhow!("{name} has no base"));
    }
    match name {
        GLIBC => Ok(glibc()),
        NEAP => neap(place),
        _ if peers::names().any(|peer| peer == name) => peer(place, name),
        _ => match PACKAGED.iter().find(|packaged| packaged.0 == name) {
            Some(&(name, _, file, package)) => packaged(name, file, package),
            None => bail!(failure(
                format!("no allocator is called `{name}`"),
                format!(
                    "{}the allocators are {}, or NAME=PATH for any other library",
                    did_you_mean(name, names()),
                    names().join(", ")
                )
            )),
        },
    }
}

/// glibc, neap, each peer that is built, and the distribution's allocators whose peer is not built.
fn all(place: &Place, left_out: &mut dyn FnMut(&str)) -> Result<Vec<Allocator>> {
    let mut list = vec![glibc(), neap(place)?];
    for name in peers::names() {
        match peer(place, name) {
            Ok(allocator) => list.push(allocator),
            Err(error) => left_out(&format!("{error:#}")),
        }
    }
    for &(name, same, file, package) in PACKAGED {
        if !list.iter().any(|other| other.name == same)
            && let Ok(allocator) = packaged(name, file, package)
        {
            list.push(allocator);
        }
    }
    Ok(list)
}

fn glibc() -> Allocator {
    Allocator { name: GLIBC.into(), version: glibc_version(), ..Allocator::default() }
}

/// The version of the C library, from `ldd --version`.
pub fn glibc_version() -> String {
    let line = crate::toolchain::version_line("ldd");
    line.rsplit(' ').next().unwrap_or_default().to_owned()
}

fn neap(place: &Place) -> Result<Allocator> {
    if !place.library.exists() {
        return Err(failure(format!("neap: {} is missing", place.library.display()), "run `cargo build --release`"));
    }
    with_library(NEAP, place.version.clone(), place.library.clone())
}

fn peer(place: &Place, name: &str) -> Result<Allocator> {
    let library = place.peers.join(format!("{name}.so"));
    let records = peers::records(place)?;
    let Some(record) = records.get(name).filter(|_| library.exists()) else {
        return Err(failure(format!("{name} is not built"), format!("run `{}`", place.build_peers)));
    };
    let allocator = with_library(name, record.version.clone(), library)?;
    Ok(Allocator { env: record.env.clone(), built: Some(record.clone()), ..allocator })
}

/// An allocator by its library. Fails for a path that LD_PRELOAD cannot hold: it is split at blanks and colons, dollar
/// signs in it are expanded, and nothing is quoted, so the program would run on glibc.
fn with_library(name: &str, version: String, library: PathBuf) -> Result<Allocator> {
    let special = |byte: &u8| matches!(byte, b' ' | b':' | b'$' | b'\t' | b'\n');
    if library.as_os_str().as_bytes().iter().any(special) {
        return Err(failure(
            format!("{name}: {} cannot be preloaded: it has a blank, a colon or a dollar sign", library.display()),
            "LD_PRELOAD is split there: copy the library to another path",
        ));
    }
    Ok(Allocator { name: name.into(), version, library: Some(library), ..Allocator::default() })
}

/// A library of the distribution.
fn packaged(name: &str, file: &str, package: &str) -> Result<Allocator> {
    let found = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join(file)).find(|path| path.exists());
    let Some(library) = found else {
        return Err(failure(format!("{name}: no {file} in the usual folders"), format!("apt install {package}")));
    };
    let mut query = std::process::Command::new("dpkg-query");
    let version = crate::toolchain::run(query.args(["-W", "-f=${Version}", package]));
    let version = version.map_or_else(|_| "unknown".into(), |version| version.trim().to_owned());
    with_library(name, version, library)
}

fn by_path(name: &str, path: &Path) -> Result<Allocator> {
    let library = match path.canonicalize() {
        Ok(library) if library.is_file() => library,
        Ok(other) => bail!("{name}: {} is not a file", other.display()),
        Err(error) => bail!(failure(
            format!("{name}: {}: {error}", path.display()),
            "NAME=PATH stands for a library that can be preloaded"
        )),
    };
    if name == GLIBC || name.is_empty() {
        bail!("`{name}` cannot be the name of a library; use another one");
    }
    with_library(name, "unknown".into(), library)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a variant whose base is misspelt, or that is a variant of a variant.
    #[test]
    fn variants_have_a_base() {
        for (name, base, ..) in VARIANTS {
            assert!(*base == NEAP || peers::names().any(|peer| peer == *base), "{name}");
            let bases = [Allocator { name: (*base).into(), ..Allocator::default() }];
            let variant = variant(name, &bases).unwrap();
            assert_eq!((variant.base_name(), variant.variables().len()), (*base, 1));
        }
        for (_, same, ..) in PACKAGED {
            assert!(peers::names().any(|peer| peer == *same), "{same}");
        }
        assert!(variant("neap-lazy", &[glibc()]).is_none());
    }

    // Would catch a user's library with the name of a peer that is reported as the lab's, and one whose path the
    // dynamic linker would split.
    #[test]
    fn libraries_by_path_are_what_they_are() {
        let scratch = crate::scratch::Scratch::new("paths").unwrap();
        let record =
            |commands: &str| format!("{{\"jemalloc\": {{\"version\": \"5\", \"source\": \"crate\", {commands}}}}}");
        let rest = "\"commands\": [\"make\"], \"compiler\": \"cc\", \"env\": {}";
        std::fs::write(scratch.join("peers.json"), record(rest)).unwrap();
        std::fs::write(scratch.join("jemalloc.so"), "").unwrap();
        let place = Place { peers: scratch.path().into(), ..crate::place::for_test() };
        let one = |name: &str| resolve(&place, &[name.into()], &mut |_| {}).map(|mut found| found.remove(0));
        assert_eq!(one("jemalloc").unwrap().record().commands, ["make"]);
        let library = scratch.join("jemalloc.so");
        let own = one(&format!("jemalloc={}", library.display())).unwrap().record();
        assert_eq!((own.source.as_str(), own.commands.len(), own.version.as_str()), ("", 0, "unknown"));
        for name in ["a b.so", "a:b.so", "$LIB.so"] {
            std::fs::write(scratch.join(name), "").unwrap();
            let error = one(&format!("mine={}", scratch.join(name).display())).unwrap_err().to_string();
            assert!(error.contains("cannot be preloaded") && error.contains("copy the library"), "{error}");
        }
        assert!(one(&format!("mine={}", scratch.path().display())).unwrap_err().to_string().contains("is not a file"));
        // The second of two with one name was once left out without a message.
        std::fs::copy(&library, scratch.join("other.so")).unwrap();
        let two = ["jemalloc.so", "other.so"].map(|file| format!("mine={}", scratch.join(file).display()));
        let error = resolve(&place, &two, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("two allocators are called `mine`"), "{error}");
        assert_eq!(resolve(&place, &[two[0].clone(), two[0].clone()], &mut |_| {}).unwrap().len(), 1);
    }
}
