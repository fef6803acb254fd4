//! Runs one case under one allocator. Whatever the allocator does ends in the outcome; errors are those of the lab, or
//! an interruption.

mod cgroup;
mod counts;
mod huge;
mod pagein;
mod redis;
mod tls;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::allocators::Allocator;
use crate::catalogue::{Case, Design, Work};
use crate::failure::Failure;
use crate::interrupt;
use crate::memory;
use crate::outcome::{Launched, Metric, Outcome};
use crate::place::Place;
use crate::sources;
use crate::toolchain::find_program;
use cgroup::Group;
use counts::TRACED_CALLS;

pub use cgroup::remove_leftovers;

/// The memory limit of the workers, as a multiple of one worker's peak.
const WORKERS_LIMIT: f64 = 1.5;
/// How a program ends that finds that the machine lacks what it needs (lab/experiments/experiment.h).
const UNABLE: &str = "exit:5";
/// A launcher that outlives the time limit of its program by this is stuck.
const GRACE: Duration = Duration::from_secs(30);

/// Runs cases.
pub struct Runner<'a> {
    place: &'a Place,
    launcher: PathBuf,
    /// The checksum of each workload, thread count and scale, from whoever came first.
    checksums: RefCell<BTreeMap<(String, u32, u32), String>>,
    /// The server of tls-chunks, once it was needed.
    tls: RefCell<Option<tls::Service>>,
    /// Why strace cannot be used, once somebody asked; none where it can.
    no_strace: OnceCell<Option<String>>,
}

impl<'a> Runner<'a> {
    /// Builds the launcher.
    pub fn new(place: &'a Place) -> Result<Runner<'a>> {
        let launcher = sources::launcher(place)?;
        let (checksums, tls, no_strace) = Default::default();
        Ok(Runner { place, launcher, checksums, tls, no_strace })
    }

    /// Builds what the case needs, so that no measured run waits for a compiler. Where there is no compiler for it, says
    /// so: the case cannot be run here.
    pub fn prepare(&self, case: &Case) -> Result<Option<String>> {
        match self.build(case) {
            Err(error) if error.is::<Failure>() => Ok(Some(error.to_string())),
            built => built.map(|()| None),
        }
    }

    fn build(&self, case: &Case) -> Result<()> {
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
        let room = memory::available_mib();
        if room < case.needs_mib {
            let reason = format!("needs {} MiB of free memory, and there are {room}", case.needs_mib);
            return Ok(Outcome::skipped(reason));
        }
        let timeout = design.timeout;
        let mut variables = allocator.variables();
        variables.extend(case.env.iter().map(|(name, value)| format!("{name}={value}")));
        match &case.work {
            Work::Program(name, arguments) => self.program(name, arguments, &variables, timeout),
            Work::Traced(name, arguments) => self.traced(name, arguments, &variables, timeout),
            Work::Instructions(program) => counts::instructions(program, &variables, timeout),
            Work::Workers(arguments) => self.workers(arguments, &variables, timeout),
            Work::Redis { warm_up, load } => redis::run_load(allocator, (*warm_up, *load), timeout),
            Work::Tls { chunk, seconds } => tls::run(self, &variables, (*chunk, *seconds), timeout),
            Work::Pagein(program) => pagein::run(self.place, program, allocator),
            Work::Huge { kind, bits } => huge::run(self, kind, *bits, &variables, timeout),
            Work::Workload { name, threads, scale } => self.workload(name, *threads, *scale, &variables, timeout),
        }
    }

    fn program(&self, name: &str, arguments: &[String], variables: &[String], timeout: Duration) -> Result<Outcome> {
        let mut command = vec![sources::experiment(self.place, name)?.into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        self.measure(variables, &command, timeout)
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
        let (text, stderr) = self.launch(variables, &command, timeout)?;
        let launched = Launched::parse(&text)?;
        let status = status_of(launched.status, &stderr);
        if status != "ok" {
            return Ok(Outcome::failed(status));
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
        let (text, stderr) = self.launch(variables, command, timeout)?;
        let launched = Launched::parse(&text)?;
        let status = status_of(launched.status, &stderr);
        Ok(if status == "ok" { launched.outcome() } else { Outcome::failed(status) })
    }

    /// Starts a program through the launcher; returns what the launcher printed, and what was said on standard error.
    fn launch(&self, variables: &[String], command: &[OsString], timeout: Duration) -> Result<(String, String)> {
        let mut launcher = Command::new(&self.launcher);
        launcher.arg(timeout.as_secs().to_string()).args(variables).arg("--").args(command);
        let out = interrupt::output(&mut launcher, Some(timeout + GRACE))?;
        match out.status {
            Some(status) if status.success() => Ok((out.stdout, out.stderr)),
            Some(status) => bail!("the launcher ended with {status}: {}", out.stderr.trim()),
            None => Ok(("timeout 0 0 0 0 0 0 -\n".into(), String::new())),
        }
    }
}

/// The status of a program, with its last words where it ended by itself: `exit:3 (mmap: Cannot allocate memory)`. One
/// that ran without its allocator has failed, and one that says that this machine lacks something was not run.
fn status_of(status: &str, stderr: &str) -> String {
    if let Some(reason) = refused(stderr) {
        return reason;
    }
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    // Last words of a Python program may be long.
    let words: String = last.trim().chars().take(120).collect();
    match status {
        UNABLE => format!("skipped: {words}"),
        _ if status.starts_with("exit:") && !words.is_empty() => format!("{status} ({words})"),
        _ => status.into(),
    }
}

/// Why the dynamic linker did not load a library, where it says so. What is preloaded and is no library it leaves out,
/// and the program goes on with glibc; a library that needs a missing one ends the program.
///
/// ```text
/// ERROR: ld.so: object '/x/lib.so' from LD_PRELOAD cannot be preloaded (invalid ELF header): ignored.
/// PROGRAM: error while loading shared libraries: libgone.so: cannot open shared object file: No such file or directory
/// ```
fn refused(stderr: &str) -> Option<String> {
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
fn end_text(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("signal:{signal}"),
        Some((_, code)) => format!("exit:{}", code.unwrap_or(-1)),
        None => "timeout".into(),
    }
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

    // Would catch a failure without its reason, and words that are taken for one where there is none.
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

    // Would catch a case that fills the machine instead of saying that it does not fit.
    #[test]
    fn what_does_not_fit_is_skipped() {
        let place = for_test();
        let runner = Runner::new(&place).unwrap();
        let mut design = catalogue::all(true).into_iter().find(|design| design.name == "retain-large").unwrap();
        design.cases[0].needs_mib = u64::MAX;
        let outcome = runner.run(&design, &design.cases[0], &Allocator::default()).unwrap();
        assert!(outcome.is_skipped() && outcome.status.contains("MiB of free memory"), "{outcome:?}");
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
        let runner = Runner::new(&place).unwrap();
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
        let runner = Runner::new(&place).unwrap();
        let timeout = Duration::from_secs(60);
        let outcome = huge::run(&runner, "small", (11, 17, 3), &[], timeout).unwrap();
        for name in ["ns-11", "ns-14", "ns-17"] {
            assert!(outcome.value(name).is_some(), "{name}: {outcome:?}");
        }
    }
}
