//! Runs one case under one allocator. Whatever the allocator does ends in the outcome; errors are those of the lab, or
//! an interruption.

mod cgroup;
mod huge;
mod pagein;
mod redis;
mod tls;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::allocators::Allocator;
use crate::catalogue::{Case, Design, Work};
use crate::interrupt;
use crate::outcome::{Launched, Metric, Outcome};
use crate::place::Place;
use crate::sources;
use crate::toolchain::find_program;
use cgroup::Group;

/// The memory limit of the workers, as a multiple of one worker's peak.
const WORKERS_LIMIT: f64 = 1.5;
/// The system calls that the traced cases count.
const TRACED_CALLS: &str = "madvise,process_madvise,mmap,munmap,mremap";
/// A launcher that outlives the time limit of its program by this is stuck.
const GRACE: Duration = Duration::from_secs(30);

/// Runs cases.
pub struct Runner<'a> {
    place: &'a Place,
    launcher: PathBuf,
    /// Where cases leave what they have beside figures; none in tests.
    artifacts: Option<&'a Path>,
    /// The checksum of each workload, thread count and scale, from whoever came first.
    checksums: RefCell<BTreeMap<(String, u32, u32), String>>,
    /// The server of tls-chunks, once it was needed.
    tls: RefCell<Option<tls::Service>>,
}

impl<'a> Runner<'a> {
    /// Builds the launcher.
    pub fn new(place: &'a Place, artifacts: Option<&'a Path>) -> Result<Runner<'a>> {
        let launcher = sources::launcher(place)?;
        Ok(Runner { place, launcher, artifacts, checksums: RefCell::default(), tls: RefCell::default() })
    }

    /// Builds what the case needs, so that no measured run waits for a compiler.
    pub fn prepare(&self, case: &Case) -> Result<()> {
        match &case.work {
            Work::Program(name, _) | Work::Traced(name, _) => sources::experiment(self.place, name).map(drop),
            Work::Workers(_) => sources::experiment(self.place, "workers").map(drop),
            Work::Huge { .. } => sources::experiment(self.place, "huge").map(drop),
            Work::Workload { name, .. } => sources::workload(self.place, name).map(drop),
            Work::Redis { .. } | Work::Instructions(_) | Work::Pagein(_) | Work::Tls { .. } => Ok(()),
        }
    }

    /// Lets the allocator's library and the launcher come into memory, and the processor up to speed.
    pub fn warm_up(&self, allocator: &Allocator) -> Result<()> {
        let Some(nothing) = find_program("true") else {
            return Ok(());
        };
        self.launch(&allocator.variables(), &[nothing.into()], Duration::from_secs(10)).map(drop)
    }

    /// Ends what an experiment has kept running for its cases. Returns what is to be said of it, as paragraphs.
    pub fn tidy(&self) -> Vec<String> {
        self.tls.borrow_mut().take().and_then(|service| service.note()).into_iter().collect()
    }

    /// Runs one case once.
    pub fn run(&self, design: &Design, case: &Case, allocator: &Allocator) -> Result<Outcome> {
        interrupt::check()?;
        let timeout = design.timeout;
        let mut variables = allocator.variables();
        variables.extend(case.env.iter().map(|(name, value)| format!("{name}={value}")));
        match &case.work {
            Work::Program(name, arguments) => self.program(name, arguments, &variables, timeout),
            Work::Traced(name, arguments) => self.traced(name, arguments, &variables, timeout),
            Work::Instructions(program) => instructions(program, &variables, timeout),
            Work::Workers(arguments) => self.workers(arguments, &variables, timeout),
            Work::Redis { warm_up, load } => redis::run_load(allocator, *warm_up, *load),
            Work::Tls { chunk, seconds } => tls::run(self, &variables, (*chunk, *seconds), timeout),
            Work::Pagein(program) => pagein::run(self.place, program, allocator, self.artifacts),
            Work::Huge { kind, bits } => huge::run(self, kind, *bits, &variables, timeout),
            Work::Workload { name, threads, scale } => self.workload(name, *threads, *scale, &variables, timeout),
        }
    }

    fn program(&self, name: &str, arguments: &[String], variables: &[String], timeout: Duration) -> Result<Outcome> {
        let mut command = vec![sources::experiment(self.place, name)?.into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        self.measure(variables, &command, timeout)
    }

    /// The program under strace; the counted calls come as figures per 1,000 frees.
    fn traced(&self, name: &str, arguments: &[String], variables: &[String], timeout: Duration) -> Result<Outcome> {
        let Some(strace) = find_program("strace") else {
            return Ok(Outcome::skipped("strace is not installed (Debian: apt install strace)"));
        };
        let counts = env::temp_dir().join(format!("neap-strace-{}", std::process::id()));
        let mut command: Vec<OsString> = vec![strace.into(), "-f".into(), "--seccomp-bpf".into(), "-c".into()];
        command.extend(["-e".into(), format!("trace={TRACED_CALLS}").into(), "-o".into(), counts.clone().into()]);
        for variable in variables {
            command.extend(["-E".into(), variable.into()]);
        }
        command.push(sources::experiment(self.place, name)?.into());
        command.extend(arguments.iter().map(OsString::from));
        let outcome = self.measure(&[], &command, timeout);
        let text = fs::read_to_string(&counts);
        let _ = fs::remove_file(&counts);
        let mut outcome = outcome?;
        if outcome.is_ok() {
            let frees = outcome.value("frees").context("the program does not tell its number of frees")?;
            outcome.metrics.extend(per_thousand(&call_counts(&text.context("strace left no counts")?), frees));
        }
        Ok(outcome)
    }

    /// One worker alone for its peak, then all of them in a group with the limit.
    fn workers(&self, arguments: &[String], variables: &[String], timeout: Duration) -> Result<Outcome> {
        let alone: Vec<String> = "--workers 1 --turns 1 --gap-ms 0".split(' ').map(String::from).collect();
        let first = self.program("workers", &alone, variables, timeout)?;
        let Some(peak) = first.value("peak") else {
            return Ok(first);
        };
        let limit = (peak * WORKERS_LIMIT).ceil();
        let group = match Group::create((limit * 1_048_576.0) as u64) {
            Ok(group) => group,
            Err(error) => return Ok(Outcome::skipped(format!("{error:#}"))),
        };
        let mut arguments = arguments.to_vec();
        arguments.extend(["--cgroup".into(), group.path().to_string_lossy().into_owned()]);
        let mut outcome = self.program("workers", &arguments, variables, timeout)?;
        if outcome.is_ok() {
            outcome.metrics.push(Metric::new("peak-alone", "MiB", peak));
            outcome.metrics.push(Metric::new("limit", "MiB", limit));
        }
        Ok(outcome)
    }

    fn workload(
        &self,
        name: &str,
        threads: u32,
        scale: u32,
        variables: &[String],
        timeout: Duration,
    ) -> Result<Outcome> {
        let mut command = vec![sources::workload(self.place, name)?.into_os_string()];
        command.extend(["--threads".into(), threads.to_string().into(), "--scale".into(), scale.to_string().into()]);
        let (text, complaint) = self.launch(variables, &command, timeout)?;
        let launched = Launched::parse(&text)?;
        if launched.status != "ok" {
            return Ok(Outcome::failed(with_complaint(launched.status, &complaint)));
        }
        let Some(checksum) = launched.checksum else {
            return Ok(Outcome::failed("no-checksum"));
        };
        let mut known = self.checksums.borrow_mut();
        let expected = known.entry((name.into(), threads, scale)).or_insert_with(|| checksum.into());
        match expected == checksum {
            true => Ok(Outcome::good(launched.costs)),
            false => Ok(Outcome::failed("wrong-checksum")),
        }
    }

    /// Starts a program through the launcher and reads its figures.
    fn measure(&self, variables: &[String], command: &[OsString], timeout: Duration) -> Result<Outcome> {
        let (text, complaint) = self.launch(variables, command, timeout)?;
        let mut outcome = Launched::parse(&text)?.outcome()?;
        outcome.status = with_complaint(&outcome.status, &complaint);
        Ok(outcome)
    }

    /// Starts a program through the launcher; returns what the launcher printed, and what was said on standard error.
    fn launch(&self, variables: &[String], command: &[OsString], timeout: Duration) -> Result<(String, String)> {
        let mut launcher = Command::new(&self.launcher);
        launcher.arg(timeout.as_secs().to_string()).args(variables).arg("--").args(command).env_remove("LD_PRELOAD");
        let out = interrupt::output(&mut launcher, Some(timeout + GRACE))?;
        match out.status {
            Some(status) if status.success() => Ok((out.stdout, out.stderr)),
            Some(status) => bail!("the launcher ended with {status}: {}", out.stderr.trim()),
            None => Ok(("timeout 0 0 0 0 0 0 -\n".into(), String::new())),
        }
    }
}

/// The status of a program that ended by itself, with its last words: `exit:3 (mmap: Cannot allocate memory)`.
fn with_complaint(status: &str, stderr: &str) -> String {
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    // Last words of a Python program may be long.
    let words: String = last.trim().chars().take(120).collect();
    match status.starts_with("exit:") && !words.is_empty() {
        true => format!("{status} ({words})"),
        false => status.into(),
    }
}

/// How a process ended, as in [`Outcome::status`].
fn end_text(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("signal:{signal}"),
        Some((_, code)) => format!("exit:{}", code.unwrap_or(-1)),
        None => "timeout".into(),
    }
}

/// Sets `NAME=VALUE` for a command that is not started by the launcher.
fn set_variables(command: &mut Command, variables: &[String]) {
    command.env_remove("LD_PRELOAD");
    for (name, value) in variables.iter().filter_map(|variable| variable.split_once('=')) {
        command.env(name, value);
    }
}

/// The instructions of a program of the system, counted by callgrind.
fn instructions(program: &str, variables: &[String], timeout: Duration) -> Result<Outcome> {
    let (Some(valgrind), Some(path)) = (find_program("valgrind"), find_program(program)) else {
        return Ok(Outcome::skipped("valgrind is not installed (Debian: apt install valgrind)"));
    };
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(path);
    set_variables(&mut command, variables);
    let out = interrupt::output(&mut command, Some(timeout))?;
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

/// The program and its arguments, for a shell.
pub fn command_text(case: &Case) -> String {
    let mut words: Vec<String> = case.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut add = |program: &str, arguments: &[String]| {
        words.push(program.into());
        words.extend(arguments.iter().cloned());
    };
    match &case.work {
        Work::Program(name, arguments) => add(name, arguments),
        Work::Traced(name, arguments) => add(&format!("strace -f -c -e trace={TRACED_CALLS} {name}"), arguments),
        Work::Instructions(program) => add(&format!("valgrind --tool=callgrind {program}"), &[]),
        Work::Workers(arguments) => add("workers", arguments),
        Work::Redis { .. } => add("redis-server --save '' --appendonly no", &[]),
        Work::Tls { chunk, seconds } => add(&format!("tls-client.py FOLDER {chunk} {seconds}"), &[]),
        Work::Pagein(program) => add(&format!("neap pagein -- {program}"), &[]),
        Work::Huge { kind, bits: (low, high, step) } => {
            add(&format!("huge --kind {kind} --low {low} --high {high} --step {step}"), &[]);
        }
        Work::Workload { name, threads, scale } => add(&format!("{name} --threads {threads} --scale {scale}"), &[]),
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::place::for_test;

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

    // Would catch a failure without its reason, and words that are taken for one where there is none.
    #[test]
    fn failures_have_their_reason() {
        assert_eq!(with_complaint("exit:3", "warning\nmmap: no memory\n\n"), "exit:3 (mmap: no memory)");
        assert_eq!(with_complaint("exit:3", ""), "exit:3");
        assert_eq!(with_complaint("ok", "a warning\n"), "ok");
        assert_eq!(with_complaint("signal:6", "free(): invalid pointer\n"), "signal:6");
    }

    // Would catch a change of callgrind's words that turns every count into a failure.
    #[test]
    fn callgrinds_total_is_read() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 123456\n==7==\n"), Some(123_456.0));
        assert_eq!(collected("==7== nothing"), None);
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
        ("prefault", "--mib 1"),
        ("first-run", "--count 3"),
    ];

    // Would catch a program that does not build or that fails, and a table that asks for a figure it does not tell.
    #[test]
    fn programs_tell_what_the_tables_show() {
        let place = for_test();
        let runner = Runner::new(&place, None).unwrap();
        let mut seen = Vec::new();
        for design in catalogue::all(true) {
            for case in &design.cases {
                let Work::Program(name, arguments) = &case.work else {
                    continue;
                };
                let short = SHORT.iter().find(|(program, _)| program == name).expect("options in SHORT").1;
                let mut arguments = arguments.clone();
                arguments.extend(short.split(' ').map(String::from));
                let outcome = runner.program(name, &arguments, &[], Duration::from_secs(60)).unwrap();
                assert_eq!(outcome.status, "ok", "{name} {arguments:?}");
                let columns = design.tables.iter().flat_map(|table| &table.columns);
                for column in columns.filter(|column| column.case == case.name) {
                    assert!(outcome.value(&column.metric).is_some(), "{name}: {}", column.metric);
                }
                seen.push(*name);
            }
        }
        assert!(SHORT.iter().all(|(name, _)| seen.contains(name)));
    }

    // Would catch a walk whose sizes are not those that charts and tables name.
    #[test]
    fn huge_tells_each_size() {
        let place = for_test();
        let runner = Runner::new(&place, None).unwrap();
        let timeout = Duration::from_secs(60);
        let outcome = huge::run(&runner, "small", (11, 17, 3), &[], timeout).unwrap();
        for name in ["ns-11", "ns-14", "ns-17"] {
            assert!(outcome.value(name).is_some(), "{name}: {outcome:?}");
        }
    }
}
