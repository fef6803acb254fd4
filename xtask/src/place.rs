//! Where the repository lies, and where the lab keeps things in it.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The commit that is checked out, with `-dirty` where files were changed.
pub fn commit() -> String {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["describe", "--always", "--dirty"]);
    run(&mut git).map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
}

/// The allocators called `names`; all that are built where it is empty, the others named on stderr.
pub fn resolve(names: &[String]) -> anyhow::Result<Vec<Allocator>> {
    allocators::resolve(&lab(), names, &mut |reason| eprintln!("left out: {reason}"))
}
