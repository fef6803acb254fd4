//! The library under test: built afresh once for each test process, or named by `NEAP_TEST_LIB`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::Stop;

/// The library that the tests run on.
#[derive(Clone, Debug)]
pub enum Library {
    /// No preload: the C library's own malloc.
    None,
    /// A shared library to preload.
    File(PathBuf),
}

impl Library {
    /// The file to preload, if any.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Library::None => None,
            Library::File(path) => Some(path),
        }
    }

    /// Whether this is neap, and not a stand-in; only neap must keep neap's own promises.
    pub fn is_neap(&self) -> bool {
        self.path().and_then(Path::file_name).is_some_and(|name| name.to_string_lossy().starts_with("libneap"))
    }
}

/// The library under test. The first call builds it: a cdylib is not rebuilt by `cargo test`, so a file found
/// in the target folder could be of any age.
pub fn under_test() -> Result<&'static Library, Stop> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(choose).as_ref().map_err(|why| Stop::Fail(why.clone()))
}

/// Stops the test unless the library under test is neap, and returns its path.
pub fn require_neap() -> Result<&'static Path, Stop> {
    let library = under_test()?;
    match library.path() {
        Some(path) if library.is_neap() => Ok(path),
        _ => Err(Stop::Skip("the library under test is not neap".into())),
    }
}

fn choose() -> Result<Library, String> {
    match std::env::var("NEAP_TEST_LIB") {
        Ok(name) if name == "none" => Ok(Library::None),
        Ok(name) if !name.is_empty() => {
            std::fs::canonicalize(&name).map(Library::File).map_err(|e| format!("NEAP_TEST_LIB={name}: {e}"))
        }
        _ => build(),
    }
}

fn build() -> Result<Library, String> {
    let target = crate::target_dir();
    let path = target.join("release/libneap.so");
    if crate::place::is_built() {
        return std::fs::canonicalize(&path).map(Library::File).map_err(|e| format!("{}: {e}", path.display()));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "-p", "neap-preload", "-p", "neap-archive", "--target-dir"])
        .arg(&target)
        .current_dir(crate::package_dir())
        .output()
        .map_err(|e| format!("cannot start cargo to build libneap.so: {e}"))?;
    if !output.status.success() {
        return Err(format!("cannot build libneap.so: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::canonicalize(&path).map(Library::File).map_err(|e| format!("{}: {e}", path.display()))
}
