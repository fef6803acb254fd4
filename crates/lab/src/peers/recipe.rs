//! How a peer is built, and one build in progress.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::progress::Progress;
use crate::interrupt;
use crate::toolchain::shell_line;

/// How one peer is built.
pub struct Recipe {
    /// Its name on the command line and in the tables.
    pub name: &'static str,
    /// The crate that carries its source.
    pub krate: &'static str,
    /// The folder of the crate that holds the tree of the allocator's authors.
    pub tree: &'static str,
    /// Builds `job.output` from `job.tree`.
    pub build: fn(&mut Job) -> Result<()>,
    /// The allocator's version and, where the source names it, the date, from a crate: its folder and version.
    pub version: fn(&Path, &str) -> Result<Version>,
    /// Where its authors publish releases; none if this recipe can build none of them.
    pub upstream: Option<Upstream>,
    /// File of Debian's package, with the package's name, for when the source cannot be built.
    pub debian: Option<(&'static str, &'static str)>,
    /// Environment for measuring.
    pub env: &'static [(&'static str, &'static str)],
}

/// A version in one word, and its date as `YYYY-MM-DD` if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// As `5.3.1`.
    pub word: String,
    /// As `2026-04-13`.
    pub date: Option<String>,
}

/// The repository of an allocator's authors.
pub struct Upstream {
    /// The address for git.
    pub repository: &'static str,
    /// Only releases whose number begins with this, such as `3.`; all if empty.
    pub series: &'static str,
    /// The newest release when this recipe was last changed; empty if it is not known.
    pub known: &'static str,
}

/// One build in progress.
pub struct Job<'a> {
    /// The crate's folder, or the checkout.
    pub source: PathBuf,
    /// The tree of the allocator's authors, in `source`.
    pub tree: PathBuf,
    /// Scratch folder of this peer.
    pub scratch: PathBuf,
    /// The library to make.
    pub output: PathBuf,
    /// The version with its commit if that is known, as `5.3.1-0-g81034ce1`.
    pub described: String,
    /// Shows how many files are done.
    pub progress: Progress<'a>,
    commands: Vec<String>,
}

impl Job<'_> {
    /// A build that has not run any command.
    pub fn new(
        (source, tree): (PathBuf, PathBuf),
        scratch: PathBuf,
        output: PathBuf,
        described: String,
        progress: Progress<'_>,
    ) -> Job<'_> {
        Job { source, tree, scratch, output, described, progress, commands: Vec::new() }
    }

    /// Runs one build command and keeps its text for the record.
    pub fn run(&mut self, command: &mut Command) -> Result<()> {
        self.note(shell_line(command));
        interrupt::run(command).map(drop)
    }

    /// Keeps the text of a command that is run in another way.
    pub fn note(&mut self, line: impl AsRef<str>) {
        // A checkout and the output are in the scratch folder, so its own name is replaced last.
        let line = line.as_ref().replace(&*self.source.to_string_lossy(), "$SRC");
        let line = line.replace(&*self.output.to_string_lossy(), "$OUT");
        self.commands.push(line.replace(&*self.scratch.to_string_lossy(), "$TMP"));
    }

    /// The commands so far, for the record.
    pub fn into_commands(self) -> Vec<String> {
        self.commands
    }
}
