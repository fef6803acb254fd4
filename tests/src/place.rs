//! The folders of the package and of the build.

use std::path::{Path, PathBuf};

/// Folder of this package, where the sources of the test programs lie.
pub fn package_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Cargo's target folder of the running test, found by the tag file that cargo writes into it. Without `..`, as in the
/// paths that the kernel reports for files in it.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let tagged = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists()).map(Path::to_path_buf);
    let beside = || package_dir().join("../target");
    tagged.unwrap_or_else(|| beside().canonicalize().unwrap_or_else(|_| beside()))
}

/// Whether library and command were built just before the tests were started.
pub(crate) fn is_built() -> bool {
    std::env::var_os("NEAP_TEST_BUILT").is_some()
}
