//! Runs one case under one allocator.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::catalogue::{Experiment, Kind};
use super::cgroup::Group;
use super::data::{Metric, Outcome};
use super::redis;
use crate::allocators::Allocator;
use crate::bench::workloads;
use crate::toolchain::{root, run};

/// The memory limit of the workers, as a multiple of one worker's peak.
const WORKERS_LIMIT: f64 = 1.5;
/// The system calls that the traced cases count.
const TRACED_CALLS: &str = "madvise,process_madvise,mmap,munmap,mremap";

/// Runs programs of lab/experiments.
pub struct Runner {
    launcher: PathBuf,
}

impl Runner {
    /// Builds the launcher.
    pub fn new() -> Result<Runner> {
        Ok(Runner { launcher: workloads::build_launcher()? })
    }

    /// Runs one case once. Whatever the allocator does ends in the outcome; errors are those of the lab.
    pub fn run(&self, experiment: &Experiment, kind: &Kind, allocator: &Allocator) -> Result<Outcome> {
        let timeout = experiment.timeout;
        match kind {
            Kind::Program(name, arguments) => self.program(name, arguments, allocator, timeout),
            Kind::Traced(name, arguments) => self.traced(name, arguments, allocator, timeout),
            Kind::Workers(arguments) => self.workers(arguments, allocator, timeout),
            Kind::Redis { warm_up, load } => redis::run_load(allocator, *warm_up, *load),
        }
    }

    fn program(&self, name: &str, arguments: &[String], allocator: &Allocator, timeout: Duration) -> Result<Outcome> {
        let mut command = vec![build(name)?.into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        self.launch(&allocator.variables(), &command, timeout)
    }

    /// The program under strace; the counted calls come as figures per 1,000 frees.
    fn traced(&self, name: &str, arguments: &[String], allocator: &Allocator, timeout: Duration) -> Result<Outcome> {
        let Some(strace) = find_program("strace") else {
            return Ok(Outcome::failed("skipped: strace is not installed (Debian: apt install strace)"));
        };
        let counts = env::temp_dir().join(format!("neap-strace-{}", std::process::id()));
        let mut command: Vec<OsString> = vec![strace.into(), "-f".into(), "--seccomp-bpf".into(), "-c".into()];
        command.extend(["-e".into(), format!("trace={TRACED_CALLS}").into(), "-o".into(), counts.clone().into()]);
        for variable in allocator.variables() {
            command.extend(["-E".into(), variable.into()]);
        }
        command.push(build(name)?.into());
        command.extend(arguments.iter().map(OsString::from));
        let mut outcome = self.launch(&[], &command, timeout)?;
        if outcome.is_ok() {
            let text = fs::read_to_string(&counts).context("strace left no counts")?;
            let frees = outcome.value("frees").context("the program does not tell its number of frees")?;
            outcome.metrics.extend(per_thousand(&call_counts(&text), frees));
        }
        let _ = fs::remove_file(&counts);
        Ok(outcome)
    }

    /// One worker alone for its peak, then all of them in a group with the limit.
    fn workers(&self, arguments: &[String], allocator: &Allocator, timeout: Duration) -> Result<Outcome> {
        let alone: Vec<String> = "--workers 1 --turns 1 --gap-ms 0".split(' ').map(String::from).collect();
        let first = self.program("workers", &alone, allocator, timeout)?;
        let Some(peak) = first.value("peak") else {
            return Ok(first);
        };
        let limit = (peak * WORKERS_LIMIT).ceil();
        let group = match Group::create((limit * 1_048_576.0) as u64) {
            Ok(group) => group,
            Err(error) => return Ok(Outcome::failed(format!("skipped: {error:#}"))),
        };
        let mut arguments = arguments.to_vec();
        arguments.extend(["--cgroup".into(), group.path().to_string_lossy().into_owned()]);
        let mut outcome = self.program("workers", &arguments, allocator, timeout)?;
        if outcome.is_ok() {
            outcome.metrics.push(Metric::new("peak-alone", "MiB", peak));
            outcome.metrics.push(Metric::new("limit", "MiB", limit));
        }
        Ok(outcome)
    }

    fn launch(&self, variables: &[String], command: &[OsString], timeout: Duration) -> Result<Outcome> {
        let mut launcher = Command::new(&self.launcher);
        launcher.arg(timeout.as_secs().to_string()).args(variables).arg("--").args(command).env_remove("LD_PRELOAD");
        let text = run(&mut launcher)?;
        Outcome::parse(&text).with_context(|| format!("the output of {} makes no sense", command[0].display()))
    }
}

/// Builds one program of lab/experiments.
pub fn build(name: &str) -> Result<PathBuf> {
    let source = root().join("lab/experiments").join(format!("{name}.c"));
    if !source.exists() {
        bail!("{} is missing", source.display());
    }
    workloads::compile(&source, &format!("experiment-{name}"))
}

/// Where a program lies on the PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
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
    use super::super::catalogue;
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

    /// Options that make a program short; a later option replaces an earlier one.
    const SHORT: &[(&str, &str)] = &[
        ("calloc", "--size 65536 --ms 5"),
        ("recycled", "--mib 1 --wait-ms 1"),
        ("retain-large", "--rounds 1 --buffers 2 --idle-ms 0"),
        ("retain-small", "--idle-ms 0"),
        ("ebizzy", "--ms 20"),
        ("survivors", "--scale 10 --idle-ms 0"),
        ("latency", "--ms 50 --gap-ms 10 --small-mib 1 --large-mib 8"),
        ("vmas", "--blocks 1000 --replaced 1000"),
    ];

    // Would catch a program that does not build or that fails, and a table that asks for a figure it does not tell.
    #[test]
    fn programs_tell_what_the_tables_show() {
        let runner = Runner::new().unwrap();
        let mut seen = Vec::new();
        for experiment in catalogue::all(true) {
            for case in &experiment.cases {
                let Kind::Program(name, arguments) = &case.kind else {
                    continue;
                };
                let short = SHORT.iter().find(|(program, _)| program == name).expect("options in SHORT").1;
                let mut arguments = arguments.clone();
                arguments.extend(short.split(' ').map(String::from));
                let outcome = runner.program(name, &arguments, &Allocator::default(), Duration::from_secs(60)).unwrap();
                assert_eq!(outcome.status, "ok", "{name} {arguments:?}");
                let columns = experiment.tables.iter().flat_map(|table| &table.columns);
                for column in columns.filter(|column| column.case == case.name) {
                    assert!(outcome.value(column.metric).is_some(), "{name}: {}", column.metric);
                }
                seen.push(*name);
            }
        }
        assert!(SHORT.iter().all(|(name, _)| seen.contains(name)));
    }
}
