//! Runs one case under one allocator. The outcome has everything that the allocator causes; errors are those of the
//! lab, or an interruption.

mod cgroup;
mod counts;
mod huge;
mod launch;
mod order;
mod pagein;
mod python;
mod real;
mod redis;
mod tls;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

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
use counts::{Strace, TRACED_CALLS};
use launch::{Launcher, status_of};

pub use cgroup::remove_leftovers;

/// The memory limit of the workers, as a multiple of one worker's peak.
const WORKERS_LIMIT: f64 = 1.5;

/// Runs cases.
pub struct Runner<'a> {
    place: &'a Place,
    launcher: Launcher,
    /// The checksum of each workload, thread count and scale, from the first run of each.
    checksums: RefCell<BTreeMap<(String, u32, u32), String>>,
    /// The server of tls-chunks, once a case needs it.
    tls: RefCell<Option<tls::Service>>,
    strace: Strace,
    /// Python's program, once a case needs it; none if it is not installed.
    python: OnceCell<Option<PathBuf>>,
    reals: real::Programs,
}

impl<'a> Runner<'a> {
    /// Builds the launcher.
    pub fn new(place: &'a Place) -> Result<Runner<'a>> {
        let launcher = Launcher::build(place)?;
        let (checksums, tls, strace, python, reals) = Default::default();
        Ok(Runner { place, launcher, checksums, tls, strace, python, reals })
    }

    /// Builds what the case needs, so that no measured run waits for a compiler. Returns why the case cannot be run
    /// here, if a compiler or a program is missing.
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
            Work::Order { .. } => sources::experiment(self.place, "order").map(drop),
            Work::OrderTrace { .. } => sources::experiment(self.place, "many").map(drop),
            Work::Workload { name, .. } => sources::workload(self.place, name).map(drop),
            Work::Python(name, _) => sources::script(self.place, name).map(drop),
            Work::Real { name, count } => self.reals.prepare(self.place, name, *count),
            Work::Redis { .. } | Work::Instructions(_) | Work::Pagein(_) | Work::Tls { .. } => Ok(()),
        }
    }

    /// Runs `true` under the allocator, so that its library and the launcher are in memory and the processor is at
    /// speed.
    pub fn warm_up(&self, allocator: &Allocator) -> Result<()> {
        let Some(nothing) = find_program("true") else {
            return Ok(());
        };
        self.launcher.launch(&allocator.variables(), &[nothing.into()], Duration::from_secs(10)).map(drop)
    }

    /// Ends the servers that an experiment has kept running for its cases. Returns notes on them, as paragraphs.
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
            Work::Python(name, arguments) => self.script(name, arguments, &variables, timeout),
            Work::Traced(name, arguments) => {
                self.strace.run(&self.launcher, &sources::experiment(self.place, name)?, arguments, &variables, timeout)
            }
            Work::Instructions(program) => counts::instructions(program, &variables, timeout),
            Work::Workers(arguments) => self.workers(arguments, &variables, timeout),
            Work::Redis { warm_up, load } => redis::run_load(allocator, (*warm_up, *load), timeout),
            Work::Tls { chunk, seconds } => {
                let mut service = self.tls.borrow_mut();
                tls::run(&mut service, self.place, &self.launcher, &variables, (*chunk, *seconds), timeout)
            }
            Work::Real { name, count } => {
                self.reals.run(self.place, &self.launcher, (name, *count), allocator, timeout)
            }
            Work::Pagein(program) => pagein::run(self.place, program, allocator),
            Work::Order { data, pairs } => order::run(self.place, *data, *pairs, timeout),
            Work::OrderTrace { pairs } => order::trace(self.place, &self.launcher, *pairs, timeout),
            Work::Huge { kind, bits, settle_ms } => {
                huge::run(self.place, &self.launcher, kind, (*bits, *settle_ms), &variables, timeout)
            }
            Work::Workload { name, threads, scale } => self.workload(name, *threads, *scale, &variables, timeout),
        }
    }

    fn program(&self, name: &str, arguments: &[String], variables: &[String], timeout: Duration) -> Result<Outcome> {
        let mut command = vec![sources::experiment(self.place, name)?.into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        self.launcher.measure(variables, &command, timeout)
    }

    fn script(&self, name: &str, arguments: &[String], variables: &[String], timeout: Duration) -> Result<Outcome> {
        let Some(python) = self.python.get_or_init(python::find) else {
            return Ok(Outcome::skipped("python3 is not installed (Debian: apt install python3)"));
        };
        let mut command = vec![python.into(), sources::script(self.place, name)?.into_os_string()];
        command.extend(arguments.iter().map(OsString::from));
        self.launcher.measure(variables, &command, timeout)
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
        let (text, stderr) = self.launcher.launch(variables, &command, timeout)?;
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
        Work::Python(name, arguments) => add(&format!("python3 {name}"), arguments),
        Work::Traced(name, arguments) => add(&format!("strace -f -c -e trace={TRACED_CALLS} {name}"), arguments),
        Work::Instructions(program) => add(&format!("valgrind --tool=callgrind {program}"), &[]),
        Work::Workers(arguments) => add("workers", arguments),
        Work::Redis { .. } => add("redis-server --save '' --appendonly no", &[]),
        Work::Tls { chunk, seconds } => add(&format!("tls-client.py FOLDER {chunk} {seconds}"), &[]),
        Work::Real { name, count } => real::words(name, *count).iter().for_each(|word| add(word, &[])),
        Work::Pagein(program) => add(&format!("neap pagein -- {program}"), &[]),
        Work::Order { pairs, .. } => {
            add(&format!("neap order verify --pairs {pairs} --before order --after order.new"), &[])
        }
        Work::OrderTrace { .. } => add("neap order trace -o T -- many", &[]),
        Work::Huge { kind, bits: (low, high, step), settle_ms } => {
            add(&format!("huge --kind {kind} --low {low} --high {high} --step {step} --settle {settle_ms}"), &[]);
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

    // Would catch a case that runs although it needs more memory than the machine has.
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
        ("ebizzy", "--ms 20 --pause 1"),
        ("bursts", "--mib 1 --rounds 1 --pause 1 --idle 1"),
        ("survivors", "--scale 10 --idle-ms 0"),
        ("latency", "--ms 50 --gap-ms 10 --small-mib 1 --large-mib 8"),
        ("vmas", "--blocks 1000 --replaced 1000"),
        ("aligned", "--live 2 --replaced 2"),
        ("regrow", "--rounds 2"),
        ("prefault", "--mib 1"),
        ("first-run", "--count 3"),
    ];

    // Would catch a program that does not build or that fails, and a table with a figure that no program prints.
    #[test]
    fn programs_tell_what_the_tables_show() {
        let place = for_test();
        let runner = Runner::new(&place).unwrap();
        let mut seen = Vec::new();
        for design in catalogue::all(true) {
            for case in &design.cases {
                let limit = Duration::from_secs(60);
                let (name, outcome) = match &case.work {
                    Work::Program(name, arguments) => {
                        let short = SHORT.iter().find(|(program, _)| program == name).expect("options in SHORT").1;
                        let mut arguments = arguments.clone();
                        arguments.extend(short.split(' ').map(String::from));
                        (name, runner.program(name, &arguments, &[], limit).unwrap())
                    }
                    Work::Python(name, _) => {
                        let few = ["100", "1", "1"].map(String::from);
                        (name, runner.script(name, &few, &[], limit).unwrap())
                    }
                    _ => continue,
                };
                if outcome.is_skipped() {
                    continue;
                }
                assert_eq!(outcome.status, "ok", "{}: {}", design.name, case.name);
                let columns = design.tables.iter().flat_map(|table| &table.columns);
                for column in columns.filter(|column| column.case == case.name) {
                    assert!(outcome.value(&column.metric).is_some(), "{name}: {}", column.metric);
                }
                seen.push(*name);
            }
        }
        assert!(SHORT.iter().all(|(name, _)| seen.contains(name)));
    }

    // Would catch a walk whose sizes differ from those of charts and tables.
    #[test]
    fn huge_tells_each_size() {
        let place = for_test();
        let runner = Runner::new(&place).unwrap();
        let timeout = Duration::from_secs(60);
        let outcome = huge::run(&place, &runner.launcher, "small", ((11, 17, 3), 0), &[], timeout).unwrap();
        for name in ["ns-11", "ns-14", "ns-17"] {
            assert!(outcome.value(name).is_some(), "{name}: {outcome:?}");
        }
    }
}
