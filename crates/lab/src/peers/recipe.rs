//! How a peer is built, and one build in progress.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::interrupt;
use crate::toolchain::shell_line;

/// How one peer is built.
pub struct Recipe {
    /// Its name on the command line and in the tables.
    pub name: &'static str,
    /// The crate that carries its source.
    pub krate: &'static str,
    /// Builds `job.output` and returns the allocator's version.
    pub build: fn(&mut Job) -> Result<String>,
    /// File of Debian's package, with the package's name, for when the source cannot be built.
    pub debian: Option<(&'static str, &'static str)>,
    /// Environment for measuring.
    pub env: &'static [(&'static str, &'static str)],
}

/// One build in progress.
pub struct Job {
    /// The crate's folder.
    pub source: PathBuf,
    /// Scratch folder of this peer.
    pub scratch: PathBuf,
    /// The library to make.
    pub output: PathBuf,
    /// The crate's version.
    pub crate_version: String,
    commands: Vec<String>,
}

impl Job {
    /// A build that has done nothing yet.
    pub fn new(source: PathBuf, scratch: PathBuf, output: PathBuf, crate_version: String) -> Job {
        Job { source, scratch, output, crate_version, commands: Vec::new() }
    }

    /// Runs one build command and keeps its text for the record.
    pub fn run(&mut self, command: &mut Command) -> Result<()> {
        let line = shell_line(command)
            .replace(&*self.source.to_string_lossy(), "$SRC")
            .replace(&*self.scratch.to_string_lossy(), "$TMP")
            .replace(&*self.output.to_string_lossy(), "$OUT");
        self.commands.push(line);
        interrupt::run(command).map(drop)
    }

    /// Keeps a line about commands that were not run through [`Job::run`].
    pub fn note(&mut self, line: impl Into<String>) {
        self.commands.push(line.into());
    }
    /// The commands and notes so far, for the record.
    pub fn into_commands(self) -> Vec<String> {
        self.commands
    }
}
