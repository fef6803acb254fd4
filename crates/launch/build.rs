//! Builds `libneap.so` and `libneap_instrument.so` (the packages neap-preload and neap-instrument, always in release
//! mode) and passes their paths and content hashes to the crate, which embeds the bytes.
//!
//! The nested cargo has its own target directory below `OUT_DIR`: the outer cargo holds the lock of the usual one while
//! this program runs.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables that the outer cargo or `cargo clippy` sets for this program, or a user for the outer build, and that must
/// not reach the nested one: the embedded library is the same whatever is built around it. Variables in CARGO_* are
/// removed as well, except for [`KEPT`].
const REMOVED: &[&str] = &[
    "CLIPPY_ARGS",
    "DEBUG",
    "OPT_LEVEL",
    "OUT_DIR",
    "PROFILE",
    "RUSTC_LINKER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

/// CARGO_* variables that the nested cargo needs: its home, access to the registry, and the jobserver that it shares
/// with the outer one.
const KEPT: &[&str] = &["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_INCREMENTAL"];
const KEPT_PREFIXES: &[&str] = &["CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_"];

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let root = workspace_root(&manifest_dir, &out_dir);

    let release = out_dir.join("preload").join(&target).join("release");
    build_libraries(&root, &out_dir.join("preload"), &target);
    for (variable, name) in [("NEAP_LIBRARY", "libneap"), ("NEAP_INSTRUMENT", "libneap_instrument")] {
        let library = release.join(format!("{name}.so"));
        let bytes = fs::read(&library).unwrap_or_else(|e| panic!("the build left no {}: {e}", library.display()));
        println!("cargo:rustc-env={variable}={}", library.display());
        println!("cargo:rustc-env={variable}_HASH={:032x}", fnv1a_128(&bytes));
        watch_sources(&release.join(format!("{name}.d")));
    }
    println!("cargo:rustc-env=NEAP_TARGET={target}");
    watch_manifests(&root);
}

/// The end of the names of manifests in the package's folder `library` (`xtask/src/crates.rs`).
const PACKED: &str = ".packed";

/// The directory of the workspace manifest for the libraries: two levels up in a checkout; in a package from a
/// registry, a copy of its folder `library`.
fn workspace_root(manifest_dir: &Path, out_dir: &Path) -> PathBuf {
    let (checkout, packed) = (manifest_dir.join("../.."), manifest_dir.join("library"));
    if packed.is_dir() {
        let copy = out_dir.join("library");
        unpack(&packed, &copy);
        return copy;
    }
    assert!(
        checkout.join("crates/preload/Cargo.toml").is_file(),
        "neap-launch embeds libneap.so, which is built from crates/preload of the same checkout; {} has none. \
         Build from a checkout of the whole workspace (cargo install --locked --path crates/cli), or from the package.",
        checkout.display()
    );
    checkout.canonicalize().expect("the workspace root exists")
}

/// Copies a folder; manifests get their own names back.
fn unpack(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap_or_else(|e| panic!("cannot make {}: {e}", to.display()));
    for entry in fs::read_dir(from).unwrap_or_else(|e| panic!("cannot read {}: {e}", from.display())) {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("an entry");
        let name = name.into_string().expect("names are UTF-8");
        let to = to.join(name.strip_suffix(PACKED).unwrap_or(&name));
        if path.is_dir() {
            unpack(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap_or_else(|e| panic!("cannot copy {}: {e}", path.display()));
        }
    }
}

/// Runs `cargo build --release` for the libraries' packages.
fn build_libraries(root: &Path, target_dir: &Path, target: &str) {
    let cargo = env::var_os("CARGO").expect("cargo sets CARGO");
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["build", "--release", "--lib", "--quiet"]);
    command.args(["--package", "neap-preload", "--package", "neap-instrument"]);
    // Always with --target: the library is then in the same place, whether or not a configuration file sets a target.
    command.arg("--target").arg(target).arg("--target-dir").arg(target_dir);
    if root.join("Cargo.lock").is_file() {
        // The outer cargo has updated the lock file; with --locked the nested one asks no registry about versions, so
        // it works offline wherever the outer build does.
        command.arg("--locked");
    }
    for (name, _) in env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let cargo_sets = name.starts_with("CARGO") || name.starts_with("__CARGO");
        // The linker for another processor.
        let links = name.starts_with("CARGO_TARGET_") && name.ends_with("_LINKER");
        let kept = links || KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|p| name.starts_with(p));
        if (cargo_sets && !kept) || REMOVED.contains(&name) {
            command.env_remove(name);
        }
    }
    // Debug information would be four fifths of the copy; the symbol table stays, so that profilers can name functions.
    command.env("RUSTFLAGS", "-Cstrip=debuginfo");
    let status = command.status().unwrap_or_else(|e| panic!("cannot start cargo for the libraries: {e}"));
    assert!(status.success(), "the build of the libraries failed: {status}; its messages are above");
}

/// 128-bit FNV-1a. The hash names the library's place in the cache; an attacker gains nothing by a collision, because
/// the place is checked before use.
fn fnv1a_128(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// Requests a rebuild when a source of a library changes, as cargo listed them next to it, or another file of such a
/// crate.
fn watch_sources(list: &Path) {
    let text = fs::read_to_string(list).unwrap_or_else(|e| panic!("cannot read {}: {e}", list.display()));
    let sources = dep_info_sources(&text);
    let in_crates = |folder: &&Path| folder.parent().and_then(Path::file_name).is_some_and(|name| name == "crates");
    let crates: BTreeSet<&Path> =
        sources.iter().filter_map(|file| Path::new(file).ancestors().find(in_crates)).collect();
    assert!(!crates.is_empty(), "{} names no source in a folder of crates/", list.display());
    for path in sources.iter().map(Path::new).chain(crates) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

fn watch_manifests(root: &Path) {
    for file in ["Cargo.toml", "Cargo.lock", ".cargo/config.toml", "rust-toolchain.toml"] {
        let path = root.join(file);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}

/// The prerequisites of a make rule; `\ ` is a space in a name.
fn dep_info_sources(text: &str) -> Vec<String> {
    const SPACE: &str = "\u{1}";
    text.lines()
        .filter_map(|line| line.split_once(": "))
        .flat_map(|(_, sources)| {
            let marked = sources.replace("\\ ", SPACE);
            marked.split_whitespace().map(|s| s.replace(SPACE, " ")).collect::<Vec<_>>()
        })
        .collect()
}
