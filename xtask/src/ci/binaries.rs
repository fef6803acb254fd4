//! The test programs of the workspace, as cargo lists them when it builds them, so that no list is kept by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

/// A test program.
#[derive(Clone, Debug)]
pub struct Binary {
    /// Folder of the package and name of the target: `crates/coretest/model`; `lib` and `bin` are unit tests.
    pub name: String,
    pub path: PathBuf,
    /// Folder of the package, in which tests run.
    pub package: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
}

/// The members of a message of `cargo --message-format=json` that are used.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    executable: Option<PathBuf>,
    #[serde(default)]
    manifest_path: Option<PathBuf>,
    #[serde(default)]
    target: Option<Target>,
    #[serde(default)]
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The test programs that the messages in `output` name, below `root`.
pub fn listed(output: &str, root: &Path) -> Result<Vec<Binary>> {
    let mut binaries = Vec::new();
    for line in output.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("cargo's message")?;
        let (Some(path), Some(manifest), Some(target), Some(profile)) =
            (message.executable, message.manifest_path, message.target, message.profile)
        else {
            continue;
        };
        if message.reason != "compiler-artifact" || !profile.test {
            continue;
        }
        let package = manifest.parent().context("a manifest lies in a folder")?.to_owned();
        let folder = package.strip_prefix(root).unwrap_or(&package).display().to_string();
        let kind = target.kind.first().map_or("", String::as_str);
        let name = if kind == "test" { &target.name } else { kind };
        binaries.push(Binary { name: format!("{folder}/{name}"), path, package, args: Vec::new() });
    }
    binaries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(binaries)
}

impl Binary {
    /// The command that runs it like `cargo test`.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args).current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a test program that is not run, or a program of another kind that is.
    #[test]
    fn test_programs_are_found() {
        let message = |name: &str, kind: &str, test: bool| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/r/crates/x/Cargo.toml\",\"target\":{{\"name\":\
                 \"{name}\",\"kind\":[\"{kind}\"]}},\"profile\":{{\"test\":{test}}},\"executable\":\"/r/{name}\"}}\n"
            )
        };
        let output = [
            "   Compiling x\n".to_owned(),
            message("one", "test", true),
            message("x", "lib", true),
            message("x", "bin", false),
            "{\"reason\":\"build-finished\",\"success\":true}\n".to_owned(),
        ];
        let found = listed(&output.concat(), Path::new("/r")).expect("messages");
        let names: Vec<&str> = found.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names, ["crates/x/lib", "crates/x/one"]);
        assert_eq!(found[1].package, Path::new("/r/crates/x"));
    }
}
