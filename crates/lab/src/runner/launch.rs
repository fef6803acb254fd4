//! Starts programs through the launcher (lab/launch.c), and says how they ended.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::interrupt;
use crate::outcome::{Launched, Outcome};
use crate::place::Place;
use crate::sources;

/// The status of a program that lacks something on this machine (lab/experiments/experiment.h).
const UNABLE: &str = "exit:5";
/// A launcher that outlives the time limit of its program by this is stuck.
const GRACE: Duration = Duration::from_secs(30);

/// The launcher: starts a program with its variables and its time limit, and prints what it cost.
pub(super) struct Launcher {
    program: PathBuf,
}

impl Launcher {
    /// Builds the launcher.
    pub(super) fn build(place: &Place) -> Result<Launcher> {
        Ok(Launcher { program: sources::launcher(place)? })
    }

    /// Starts a program through the launcher and reads its figures.
    pub(super) fn measure(&self, variables: &[String], command: &[OsString], timeout: Duration) -> Result<Outcome> {
        let (text, stderr) = self.launch(variables, command, timeout)?;
        let launched = Launched::parse(&text)?;
        let status = status_of(launched.status, &stderr);
        Ok(if status == "ok" { launched.outcome() } else { Outcome::failed(status) })
    }

    /// Starts a program through the launcher; returns what the launcher printed, and the program's standard error.
    pub(super) fn launch(
        &self,
        variables: &[String],
        command: &[OsString],
        timeout: Duration,
    ) -> Result<(String, String)> {
        let mut launcher = Command::new(&self.program);
        launcher.arg(timeout.as_secs().to_string()).args(variables).arg("--").args(command);
        let out = interrupt::output(&mut launcher, Some(timeout + GRACE))?;
        match out.status {
            Some(status) if status.success() => Ok((out.stdout, out.stderr)),
            Some(status) => bail!("the launcher ended with {status}: {}", out.stderr.trim()),
            None => Ok(("timeout 0 0 0 0 0 0 -\n".into(), String::new())),
        }
    }
}

/// The status of a program, with its last line on standard error if it exited: `exit:3 (mmap: Cannot allocate memory)`.
/// A program that ran without its allocator has failed; one that lacks something on this machine is skipped.
pub(super) fn status_of(status: &str, stderr: &str) -> String {
    if let Some(reason) = refused(stderr) {
        return reason;
    }
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    // The last line of a Python program may be long.
    let words: String = last.trim().chars().take(120).collect();
    match status {
        UNABLE => format!("skipped: {words}"),
        _ if status.starts_with("exit:") && !words.is_empty() => format!("{status} ({words})"),
        _ => status.into(),
    }
}

/// Why the dynamic linker did not load a library, if it says so. It ignores a preloaded file that is not a library, and
/// the program runs on glibc; a library that needs a missing one ends the program.
///
/// ```text
/// ERROR: ld.so: object '/x/lib.so' from LD_PRELOAD cannot be preloaded (invalid ELF header): ignored.
/// PROGRAM: error while loading shared libraries: libgone.so: cannot open shared object file: No such file or directory
/// ```
pub(super) fn refused(stderr: &str) -> Option<String> {
    const LEFT_OUT: &str = "from LD_PRELOAD cannot be preloaded";
    const NOT_FOUND: &str = "error while loading shared libraries: ";
    stderr.lines().find_map(|line| match (line.split_once(LEFT_OUT), line.split_once(NOT_FOUND)) {
        (Some((_, rest)), _) => {
            let reason = rest.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
            Some(format!("not preloaded ({})", reason.map_or(rest.trim(), |(reason, _)| reason)))
        }
        (None, Some((_, reason))) => Some(format!("not loaded ({})", reason.trim())),
        (None, None) => None,
    })
}

/// How a process ended, as in [`Outcome::status`].
pub(super) fn end_text(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("signal:{signal}"),
        Some((_, code)) => format!("exit:{}", code.unwrap_or(-1)),
        None => "timeout".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a failure without its reason, and a reason where there is no failure.
    #[test]
    fn failures_have_their_reason() {
        assert_eq!(status_of("exit:3", "warning\nmmap: no memory\n\n"), "exit:3 (mmap: no memory)");
        assert_eq!(status_of("exit:3", ""), "exit:3");
        assert_eq!(status_of("ok", "a warning\n"), "ok");
        assert_eq!(status_of("signal:6", "free(): invalid pointer\n"), "signal:6");
        assert_eq!(status_of("exit:5", "needs Linux 5.14\n"), "skipped: needs Linux 5.14");
    }

    // Would catch glibc measured under the name of a library that could not be loaded.
    #[test]
    fn a_library_that_was_left_out_is_no_success() {
        let line =
            "ERROR: ld.so: object '/a/b.so' from LD_PRELOAD cannot be preloaded (invalid ELF header): ignored.\n";
        assert_eq!(status_of("ok", line), "not preloaded (invalid ELF header)");
        let line = "p: error while loading shared libraries: libgone.so: cannot open shared object file\n";
        assert_eq!(status_of("exit:127", line), "not loaded (libgone.so: cannot open shared object file)");
    }
}
