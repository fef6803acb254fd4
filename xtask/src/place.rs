//! The root of the repository, and the lab's places in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use neap_lab::allocators::{self, Allocator};
use neap_lab::place::Place;
use neap_lab::toolchain::run;

/// The root of the repository.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the repository").to_owned()
}

/// The places of the lab: built files below target, peers in lab/peers/build, the release build of neap.
pub fn lab() -> Place {
    Place {
        cache: root().join("target/lab"),
        peers: root().join("lab/peers/build"),
        library: root().join("target/release/libneap.so"),
        version: commit(),
        command: root().join("target/release/neap"),
        build_peers: "cargo xtask peers",
    }
}

/// The commit that is checked out, with `-dirty` if files were changed.
pub fn commit() -> String {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["describe", "--always", "--dirty"]);
    run(&mut git).map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
}

/// The allocators called `names`; if empty, all that are built, and the missing ones are reported on standard error.
pub fn resolve(names: &[String]) -> anyhow::Result<Vec<Allocator>> {
    allocators::resolve(&lab(), names, &mut |reason| eprintln!("left out: {reason}"))
}

/// Copies the tracked files of `root` to `tree`, changed by `change`, which gets path and content.
pub fn copy_tree(root: &Path, tree: &Path, change: &dyn Fn(&str, Vec<u8>) -> Vec<u8>) -> Result<()> {
    let files = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("cannot start git")?;
    ensure!(files.status.success(), "git ls-files");
    for file in String::from_utf8(files.stdout)?.split_terminator('\0') {
        let (from, to) = (root.join(file), tree.join(file));
        let old = std::fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        let new = change(file, old);
        // Unchanged files keep their time, so that they are not built again.
        if std::fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        std::fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
        std::fs::write(&to, new).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}
