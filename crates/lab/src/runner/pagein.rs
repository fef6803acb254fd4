//! `neap pagein` on a small program: its page faults by subject and kind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use neap_results::{GLIBC, NEAP};
use serde::Deserialize;

use super::end_text;
use crate::allocators::Allocator;
use crate::catalogue::FAULT_KINDS;
use crate::interrupt;
use crate::outcome::{Metric, Outcome};
use crate::place::Place;
use crate::toolchain::find_program;

/// A trace takes milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

/// What is read of the JSON of `neap pagein` (docs/pagein.md).
#[derive(Deserialize)]
struct Trace {
    processes: Vec<serde_json::Value>,
    threads: Vec<Thread>,
    faults: Vec<Fault>,
}

#[derive(Deserialize)]
struct Thread {
    process: usize,
}

#[derive(Deserialize)]
struct Fault {
    time: f64,
    thread: usize,
    subject: String,
    kind: String,
}

/// Traces `program` under `allocator`. The classic table of glibc and of neap is kept in `artifacts`.
pub fn run(place: &Place, program: &str, allocator: &Allocator, artifacts: Option<&Path>) -> Result<Outcome> {
    let (Some(program_path), Some(env)) = (find_program(program), find_program("env")) else {
        return Ok(Outcome::skipped(format!("no {program} on this system")));
    };
    let file = std::env::temp_dir().join(format!("neap-lab-pagein-{}.json", std::process::id()));
    let trace = |format: &str, to: &Path| {
        let mut command = Command::new(&place.command);
        command.args(["pagein", "--format", format, "-o"]).arg(to).arg("--").arg(&env).args(allocator.variables());
        interrupt::output(command.arg(&program_path).env_remove("LD_PRELOAD"), Some(LIMIT))
    };
    let out = trace("json", &file)?;
    let text = fs::read_to_string(&file);
    let _ = fs::remove_file(&file);
    match out.status.and_then(|status| status.code()) {
        Some(0) => {}
        // neap itself failed: this system does not let it trace.
        Some(125) => return Ok(Outcome::skipped(out.stderr.lines().next().unwrap_or("neap pagein failed"))),
        _ => return Ok(Outcome::failed(end_text(out.status))),
    }
    if let Some(dir) = artifacts.filter(|_| [GLIBC, NEAP].contains(&&*allocator.name)) {
        let table = dir.join(format!("pagein-{program}-{}.txt", allocator.name));
        if !table.exists() {
            trace("classic", &table)?;
        }
    }
    counts(&text.context("neap pagein left no trace")?)
}

/// The faults of the last program: the first is `env`, which sets the variables.
fn counts(text: &str) -> Result<Outcome> {
    let trace: Trace = serde_json::from_str(text).context("the trace of neap pagein makes no sense")?;
    let last = trace.processes.len().saturating_sub(1);
    let of_last = |fault: &&Fault| trace.threads.get(fault.thread).is_some_and(|thread| thread.process == last);
    let faults: Vec<&Fault> = trace.faults.iter().filter(of_last).collect();
    let (Some(first), Some(end)) = (faults.first(), faults.last()) else {
        return Ok(Outcome::failed("a trace without faults"));
    };
    let mut kinds: BTreeMap<&str, f64> = FAULT_KINDS.iter().map(|kind| (*kind, 0.0)).collect();
    for fault in &faults {
        let kind = if kinds.contains_key(fault.kind.as_str()) { fault.kind.as_str() } else { "other" };
        *kinds.entry(kind).or_default() += 1.0;
    }
    let code = faults.iter().filter(|fault| fault.subject == "code").count();
    let mut metrics = vec![
        Metric::new("faults", "count", faults.len() as f64),
        Metric::new("code", "count", code as f64),
        Metric::new("data", "count", (faults.len() - code) as f64),
        Metric::new("duration", "us", (end.time - first.time) / 1e3),
    ];
    metrics.extend(kinds.into_iter().map(|(kind, count)| Metric::new(kind, "count", count)));
    Ok(Outcome::good(metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch faults of `env` that count for the program, and a kind that is not counted.
    #[test]
    fn faults_of_the_program_are_counted() {
        let fault = |time, thread, subject: &str, kind: &str| {
            format!("{{\"time\": {time}, \"thread\": {thread}, \"subject\": \"{subject}\", \"kind\": \"{kind}\"}}")
        };
        let faults = [
            fault(0, 0, "code", "file-minor"),
            fault(1000, 1, "code", "file-minor"),
            fault(2000, 1, "data", "anon"),
            fault(4000, 1, "data", "novel"),
        ];
        let text = format!(
            "{{\"processes\": [{{}}, {{}}], \"threads\": [{{\"process\": 0}}, {{\"process\": 1}}], \"faults\": [{}]}}",
            faults.join(",")
        );
        let outcome = counts(&text).unwrap();
        let values = ["faults", "code", "data", "file-minor", "anon", "cow", "other", "duration"]
            .map(|name| outcome.value(name).unwrap());
        assert_eq!(values, [3.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0, 3.0]);
    }
}
