//! `cargo xtask crates`: makes the packages for crates.io, in target/crates/packages.
//!
//! Two crates need files outside of their folders, so the packages are made from a copy of the tree
//! (target/crates/tree):
//! - `neap-launch` embeds `libneap.so`. Its package has the sources of the library as a separate workspace, with the
//!   versions of the lock file, in the folder `library`, where `build.rs` builds it.
//! - `neap-lab` has the programs of `lab/`.
//!
//! Cargo leaves folders with a manifest out of a package, so manifests get another extension ([`PACKED`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use neap_lab::toolchain::run;

use crate::place::root;

/// The extension of manifests in a package.
const PACKED: &str = ".packed";
/// The crates of the library.
const LIBRARY: &[&str] = &[
    "core",
    "sys",
    "counters",
    "sites",
    "samples",
    "options",
    "control",
    "ranges",
    "surface",
    "preload",
    "instrument",
];

/// Options of `cargo xtask crates`.
#[derive(ClapArgs)]
pub struct Args {
    /// Also build each crate from its package, as `cargo publish --dry-run` does
    #[arg(long)]
    verify: bool,
}

/// Runs `cargo xtask crates`.
pub fn main(args: Args) -> Result<()> {
    let out = root().join("target/crates");
    let (tree, packages) = (out.join("tree"), out.join("packages"));
    for folder in [&tree, &packages] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(folder)?;
    }
    copy_tree(&tree)?;
    pack_library(&tree)?;
    pack_lab(&tree)?;
    let target = out.join("target");
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    // Cargo makes a temporary registry in which the packages find each other, as they will on crates.io.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&tree).args(["publish", "--workspace", "--dry-run", "--allow-dirty", "--locked", "--target-dir"]);
    cargo.arg(&target);
    if !args.verify {
        cargo.arg("--no-verify");
    }
    run(&mut cargo)?;
    // The folder in which cargo keeps what it would publish.
    for path in files_below(&target.join("package/tmp-crate"))? {
        if path.extension().is_some_and(|end| end == "crate") {
            let to = packages.join(path.file_name().context("a file has a name")?);
            fs::copy(&path, &to)?;
            println!("{} ({:.2} MB)", to.display(), fs::metadata(&to)?.len() as f64 / 1e6);
        }
    }
    Ok(())
}

/// Copies the files of the tree that git tracks or would add.
fn copy_tree(tree: &Path) -> Result<()> {
    let root = root();
    let mut git = Command::new("git");
    git.current_dir(&root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = git.output().context("cannot start git")?;
    if !listed.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    }
    for name in String::from_utf8(listed.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        let from = root.join(name);
        // A file that was removed is still listed.
        if from.is_file() {
            copy(&from, &tree.join(name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// All files below a folder.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { all.extend(files_below(&path)?) } else { all.push(path) }
    }
    Ok(all)
}

/// Puts the library's sources into the package of `neap-launch`.
fn pack_library(tree: &Path) -> Result<()> {
    let library = tree.join("crates/launch/library");
    for name in LIBRARY {
        let from = tree.join("crates").join(name);
        for file in files_below(&from)? {
            let inside = file.strip_prefix(tree)?;
            // Tests and examples are not built there.
            let part = file.strip_prefix(&from)?.components().next().map(|part| part.as_os_str().to_owned());
            if part.is_some_and(|part| part == "tests" || part == "examples") {
                continue;
            }
            copy(&file, &library.join(inside))?;
        }
        let manifest = library.join("crates").join(name).join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        fs::write(&manifest, without_section(&text, "[dev-dependencies]"))?;
    }
    let text = fs::read_to_string(tree.join("Cargo.toml"))?;
    let members = LIBRARY.iter().map(|name| format!("\"crates/{name}\"")).collect::<Vec<_>>().join(", ");
    let text = with_list(&text, "members", &members)?;
    let text = with_list(&text, "exclude", "")?;
    fs::write(library.join("Cargo.toml"), with_list(&text, "default-members", &members)?)?;
    for file in ["Cargo.lock", ".cargo/config.toml", "include/neap.h"] {
        if tree.join(file).exists() {
            copy(&tree.join(file), &library.join(file))?;
        }
    }
    // Removes from the lock file what the library does not need; the rest keeps its version.
    run(Command::new(env!("CARGO")).current_dir(&library).args(["update", "--workspace", "--offline", "--quiet"]))?;
    pack_manifests(&library)
}

/// Renames manifests and lock files, which cargo would take as those of other packages.
fn pack_manifests(folder: &Path) -> Result<()> {
    for file in files_below(folder)? {
        if file.file_name().is_some_and(|name| name == "Cargo.toml" || name == "Cargo.lock") {
            let mut packed = file.clone().into_os_string();
            packed.push(PACKED);
            fs::rename(&file, &packed)?;
        }
    }
    Ok(())
}

/// A manifest without a section.
fn without_section(text: &str, title: &str) -> String {
    let mut inside = false;
    let kept = text.lines().filter(|line| {
        if line.starts_with('[') {
            inside = line.trim() == title;
        }
        !inside
    });
    kept.map(|line| format!("{line}\n")).collect()
}

/// A manifest with other items in the list `name`.
fn with_list(text: &str, name: &str, items: &str) -> Result<String> {
    let begin = format!("\n{name} = [");
    let (before, rest) = text.split_once(&begin).with_context(|| format!("the manifest has no list {name}"))?;
    let (_, after) = rest.split_once(']').context("the list has no end")?;
    Ok(format!("{before}{begin}{items}]{after}"))
}

/// Puts the programs of `lab/` into the package of `neap-lab`, and makes it include them from there.
fn pack_lab(tree: &Path) -> Result<()> {
    const OUTSIDE: &str = "\"../../../lab/";
    let lab = tree.join("crates/lab");
    let source = lab.join("src/sources.rs");
    let text = fs::read_to_string(&source)?;
    // The paths of the files, which are string literals.
    for path in text.split('"').skip(1).step_by(2) {
        let path = path.strip_prefix("../../../lab/").unwrap_or(path);
        let from = tree.join("lab").join(path);
        if !path.is_empty() && from.is_file() {
            copy(&from, &lab.join("files").join(format!("{path}{PACKED}")))?;
        }
    }
    let text =
        text.replace("concat!(\"../../../lab/\", $path)", &format!("concat!(\"../files/\", $path, \"{PACKED}\")"));
    let mut packed = String::new();
    let mut rest = text.as_str();
    while let Some((before, path)) = rest.split_once(OUTSIDE) {
        let (path, after) = path.split_once('"').context("a text has an end")?;
        packed.push_str(&format!("{before}\"../files/{path}{PACKED}\""));
        rest = after;
    }
    packed.push_str(rest);
    fs::write(&source, packed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a manifest that loses more than the section, or keeps a part of it.
    #[test]
    fn sections_and_lists() {
        let text = "[a]\nx = 1\n[dev-dependencies]\ny = 2\n\n[b]\nz = 3\n";
        assert_eq!(without_section(text, "[dev-dependencies]"), "[a]\nx = 1\n[b]\nz = 3\n");
        let text = "[workspace]\nmembers = [\n  \"a\",\n]\ndefault-members = [\"b\"]\n";
        assert_eq!(
            with_list(text, "members", "\"c\"").unwrap(),
            "[workspace]\nmembers = [\"c\"]\ndefault-members = [\"b\"]\n"
        );
        assert!(with_list(text, "exclude", "").is_err());
    }
}
