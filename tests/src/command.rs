//! The command `neap` under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{Outcome, Stop};

/// The command, built afresh once for each test process.
pub fn neap() -> Result<&'static Path, Stop> {
    static NEAP: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    crate::system::need_native()?;
    NEAP.get_or_init(|| build("debug", &[])).as_deref().map_err(|why| Stop::Fail(why.clone()))
}

/// The command as users get it, for tests of its costs; built afresh once for each test process.
pub fn neap_release() -> Result<&'static Path, Stop> {
    static NEAP: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    NEAP.get_or_init(|| build("release", &["--release"])).as_deref().map_err(|why| Stop::Fail(why.clone()))
}

fn build(folder: &str, options: &[&str]) -> Result<PathBuf, String> {
    let target = crate::target_dir();
    let path = target.join(folder).join("neap");
    if crate::place::is_built() {
        return std::fs::canonicalize(&path).map_err(|e| format!("{}: {e}", path.display()));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "-p", "neap-cli"])
        .args(options)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(crate::package_dir())
        .output()
        .map_err(|e| format!("cannot start cargo to build neap: {e}"))?;
    if !output.status.success() {
        return Err(format!("cannot build neap: {}", String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::canonicalize(&path).map_err(|e| e.to_string())
}

/// Skips the test where perf events are denied to all users.
pub fn need_events() -> Outcome {
    if crate::is_root() {
        return Ok(());
    }
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match level.trim().parse::<i32>() {
        Ok(level) if level <= 2 => Ok(()),
        _ => Err(Stop::Skip("perf events are denied here".into())),
    }
}
