//! Counts instead of times: system calls by strace, instructions by callgrind.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::launch::{Launcher, end_text, refused};
use crate::interrupt;
use crate::outcome::{Metric, Outcome};
use crate::scratch::Scratch;
use crate::toolchain::find_program;

/// The system calls that the traced cases count.
pub(super) const TRACED_CALLS: &str = "madvise,process_madvise,mmap,munmap,mremap";

/// strace, and whether it can be used here.
#[derive(Default)]
pub(super) struct Strace {
    /// Empty until it was tried; then why it cannot be used, or `None` if it can.
    refused: OnceCell<Option<String>>,
}

impl Strace {
    /// Runs a program under strace; the figures are calls per 1,000 frees.
    pub(super) fn run(
        &self,
        launcher: &Launcher,
        program: &Path,
        arguments: &[String],
        variables: &[String],
        timeout: Duration,
    ) -> Result<Outcome> {
        if self.refused.get().is_none() {
            let _ = self.refused.set(cannot_trace()?);
        }
        if let Some(Some(reason)) = self.refused.get() {
            return Ok(Outcome::skipped(reason));
        }
        let scratch = Scratch::new("strace")?;
        let counts = scratch.join("counts");
        let mut command = strace(&counts);
        for variable in variables {
            command.extend(["-E".into(), variable.into()]);
        }
        command.push(program.into());
        command.extend(arguments.iter().map(OsString::from));
        let mut outcome = launcher.measure(&[], &command, timeout)?;
        if outcome.is_ok() {
            let frees = outcome.value("frees").context("the program does not print its number of frees")?;
            let text = fs::read_to_string(&counts).context("strace left no counts")?;
            outcome.metrics.extend(per_thousand(&call_counts(&text), frees));
        }
        Ok(outcome)
    }
}

/// `strace`, which writes its counts into a file.
fn strace(counts: &Path) -> Vec<OsString> {
    let program = find_program("strace").unwrap_or_else(|| "strace".into());
    let mut command: Vec<OsString> = vec![program.into(), "-f".into(), "--seccomp-bpf".into(), "-c".into()];
    command.extend(["-e".into(), format!("trace={TRACED_CALLS}").into(), "-o".into(), counts.into()]);
    command
}

/// Why strace cannot trace here; none if it can.
fn cannot_trace() -> Result<Option<String>> {
    if find_program("strace").is_none() {
        return Ok(Some("strace is not installed (Debian: apt install strace)".into()));
    }
    let words = strace(Path::new("/dev/null"));
    let out = interrupt::output(Command::new(&words[0]).args(&words[1..]).arg("true"), Some(Duration::from_secs(10)))?;
    if out.status.is_some_and(|status| status.success()) {
        return Ok(None);
    }
    Ok(Some(format!("strace cannot trace here: {}", out.stderr.lines().next().unwrap_or("it says nothing"))))
}

/// The instructions of a program of the system, counted by callgrind.
pub(super) fn instructions(program: &str, variables: &[String], timeout: Duration) -> Result<Outcome> {
    let (Some(valgrind), Some(path)) = (find_program("valgrind"), find_program(program)) else {
        return Ok(Outcome::skipped("valgrind is not installed (Debian: apt install valgrind)"));
    };
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(path);
    command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
    let out = interrupt::output(&mut command, Some(timeout))?;
    if let Some(reason) = refused(&out.stderr) {
        return Ok(Outcome::failed(reason));
    }
    if !out.status.is_some_and(|status| status.success()) {
        return Ok(Outcome::failed(format!("{} under valgrind", end_text(out.status))));
    }
    match collected(&out.stderr) {
        Some(count) => Ok(Outcome::good(vec![Metric::new("instructions", "count", count)])),
        None => Ok(Outcome::failed("no count from callgrind")),
    }
}

/// Reads `==123== Collected : 456`.
fn collected(stderr: &str) -> Option<f64> {
    let line = stderr.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// Reads the table of `strace -c`: calls by name.
///
/// ```text
/// % time     seconds  usecs/call     calls    errors syscall
/// ------ ----------- ----------- --------- --------- ----------------
///  97.47    0.006930           2      2967           madvise
///   2.53    0.000180           6        30         1 mmap
/// ```
fn call_counts(text: &str) -> Vec<(String, f64)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, calls) = (words.last()?, words.get(3)?.parse().ok()?);
        (*name != "total").then(|| ((*name).to_owned(), calls))
    };
    text.lines().filter_map(line).collect()
}

/// The counts per 1,000 frees, `madvise` and `process_madvise` in one.
fn per_thousand(counts: &[(String, f64)], frees: f64) -> Vec<Metric> {
    let sum = |names: &[&str]| -> f64 {
        let wanted = counts.iter().filter(|(name, _)| names.contains(&name.as_str()));
        wanted.map(|(_, calls)| calls).sum::<f64>() * 1000.0 / frees
    };
    vec![
        Metric::new("madvise-per-1000-frees", "count", sum(&["madvise", "process_madvise"])),
        Metric::new("mappings-per-1000-frees", "count", sum(&["mmap", "munmap", "mremap"])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a column of errors that is taken for the count, or the total for a call.
    #[test]
    fn straces_table_is_read() {
        let text = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 97.47    0.006930           2      2967           madvise
  2.53    0.000180           6        30         1 mmap
  0.00    0.000000           0        33           process_madvise
------ ----------- ----------- --------- --------- ----------------
100.00    0.007110           2      3030         1 total
";
        let counts = call_counts(text);
        assert_eq!(counts.len(), 3);
        let metrics = per_thousand(&counts, 6000.0);
        assert_eq!(metrics[0], Metric::new("madvise-per-1000-frees", "count", 500.0));
        assert_eq!(metrics[1], Metric::new("mappings-per-1000-frees", "count", 5.0));
        assert_eq!(per_thousand(&call_counts(""), 10.0)[0].value, 0.0);
    }

    // Would catch a format of callgrind whose count is not found.
    #[test]
    fn callgrinds_total_is_read() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 123456\n==7==\n"), Some(123_456.0));
        assert_eq!(collected("==7== nothing"), None);
    }
}
