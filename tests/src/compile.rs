//! C and C++ test programs, compiled once for each content of their sources.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::{Stop, system};

/// Flags of every test program. Without `-fno-builtin` the compiler may drop malloc and free in pairs.
const FLAGS: &[&str] =
    &["-O1", "-g", "-pthread", "-fno-builtin", "-Wall", "-Wextra", "-Wno-unused-result", "-D_GNU_SOURCE"];

/// One test program or test library, by its source file.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    file: &'static str,
    flags: &'static [&'static str],
}

impl Source {
    /// The program in `file`, a path below this package; `.cc` is C++.
    pub const fn new(file: &'static str) -> Self {
        Source { file, flags: &[] }
    }

    /// As [`Source::new`] with more flags for the compiler, for instance `-shared`.
    pub const fn with_flags(file: &'static str, flags: &'static [&'static str]) -> Self {
        Source { file, flags }
    }

    /// Name of the source file without folder and ending.
    pub fn stem(&self) -> &'static str {
        let name = self.file.rsplit('/').next().unwrap_or(self.file);
        name.split('.').next().unwrap_or(name)
    }

    /// Compiles it unless the cache has it, and returns the path of the result.
    pub fn build(&self) -> Result<PathBuf, Stop> {
        self.build_with(&[], &[])
    }

    /// As [`Source::build`], linked with more files, whose contents count for the cache, and more flags.
    pub fn build_with(&self, inputs: &[&Path], flags: &[&str]) -> Result<PathBuf, Stop> {
        // One compilation at a time: two tests may want the same program.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock();
        let source = crate::package_dir().join(self.file);
        let include = crate::package_dir().join("include");
        let compiler = self.compiler();
        let mut hash = DefaultHasher::new();
        (self.file, self.flags, FLAGS, &compiler, system::root()).hash(&mut hash);
        flags.hash(&mut hash);
        read(&source)?.hash(&mut hash);
        for input in inputs {
            read(input)?.hash(&mut hash);
        }
        for header in ["check.h", "controls.h", "filter.h", "misuse.h", "purge.h", "trust.h"] {
            read(&include.join(header))?.hash(&mut hash);
        }
        let stem = self.stem();
        let shared = self.flags.contains(&"-shared");
        let suffix = if shared { ".so" } else { "" };
        let dir = crate::target_dir().join("neap-tests");
        let result = dir.join(format!("{stem}-{:016x}{suffix}", hash.finish()));
        if result.exists() {
            return Ok(result);
        }
        std::fs::create_dir_all(&dir)?;
        let partial = dir.join(format!("{stem}.{}.partial", std::process::id()));
        let mut command = Command::new(&compiler);
        if std::env::var_os("CC").is_none() {
            system::enter(&mut command);
        }
        let output = command
            .args(FLAGS)
            .arg("-I")
            .arg(&include)
            .args(shared.then_some("-fPIC"))
            .arg(&source)
            .args(inputs)
            .args(self.flags)
            .args(flags)
            .arg("-o")
            .arg(&partial)
            .arg("-ldl")
            .output();
        match output {
            Ok(output) if output.status.success() => {
                std::fs::rename(&partial, &result)?;
                Ok(result)
            }
            Ok(output) => {
                Err(Stop::Fail(format!("{} does not compile:\n{}", self.file, String::from_utf8_lossy(&output.stderr))))
            }
            Err(e) => Err(Stop::Skip(format!("no compiler: {}: {e}", compiler.to_string_lossy()))),
        }
    }

    fn compiler(&self) -> OsString {
        let (variable, default) = if self.file.ends_with(".cc") { ("CXX", "c++") } else { ("CC", "cc") };
        std::env::var_os(variable).unwrap_or_else(|| default.into())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Stop> {
    std::fs::read(path).map_err(|e| Stop::Fail(format!("{}: {e}", path.display())))
}
