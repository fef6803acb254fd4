//! `cargo xtask experiments`: the experiments on pages, under glibc, neap in its policies, and the peers.
//!
//! Each case of an experiment is run once per allocator and round, allocators one after the other in an order that
//! rotates from round to round. Every figure is kept as one row of `metrics.csv` beside `machine.json`; the report with
//! its tables and targets is made from these two alone.

mod catalogue;
mod cgroup;
mod data;
mod redis;
mod report;
mod runner;
mod targets;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::allocators::{self, Allocator};
use crate::bench::machine::Machine;
use crate::toolchain::root;
use catalogue::{Case, Experiment};
use data::{Outcome, Row};
use runner::Runner;

/// Arguments of `cargo xtask experiments`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask experiments --quick --allocators glibc,neap,mimalloc3,jemalloc\n  \
    cargo xtask experiments calloc retain-large\n  \
    cargo xtask experiments --runs 5 -o lab/results/NAME   a pass to keep, hours\n  \
    cargo xtask experiments --report lab/results/NAME      the report again, from the raw data")]
pub struct Args {
    /// Experiments by name [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Fewer cases with less work, and one round unless --runs says otherwise
    #[arg(long)]
    quick: bool,
    /// Rounds, each with one run per case and allocator [default: 5; 1 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
    /// Allocators by name, or NAME=PATH for any preload library [default: all that are built, and their variants]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    allocators: Vec<String>,
    /// Folder for metrics.csv, machine.json and report.md
    #[arg(short, long, default_value = "lab/results/latest", value_name = "DIR")]
    output: PathBuf,
    /// Print the report of a folder that -o wrote, and run nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["names", "quick", "runs", "allocators"])]
    report: Option<PathBuf>,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    if let Some(dir) = &args.report {
        print!("{}", report::markdown(&data::read(dir)?, &Machine::read(dir)?));
        return Ok(());
    }
    let experiments = chosen_experiments(&args)?;
    let allocators = match args.allocators.is_empty() {
        true => allocators::all_with_variants()?,
        false => allocators::resolve(&args.allocators)?,
    };
    let rounds = args.runs.unwrap_or(if args.quick { 1 } else { 5 }).max(1);
    let plan = Plan { rounds, runner: Runner::new()?, allocators };
    let dir = root().join(&args.output);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let scale = if args.quick { 10 } else { 100 };
    let machine = Machine::look(&plan.allocators, scale, rounds)?;
    machine.write(&dir)?;
    let rows = plan.run_all(&experiments, &dir)?;
    let markdown = report::markdown(&rows, &machine);
    fs::write(dir.join("report.md"), &markdown)?;
    print!("{markdown}");
    eprintln!("written: {}", args.output.display());
    Ok(())
}

fn chosen_experiments(args: &Args) -> Result<Vec<Experiment>> {
    let known = catalogue::names();
    for name in &args.names {
        if !known.contains(&name.as_str()) {
            bail!("no experiment is called `{name}`; there are {}", known.join(", "));
        }
    }
    let mut experiments = catalogue::all(args.quick);
    experiments.retain(|experiment| args.names.is_empty() || args.names.iter().any(|name| name == experiment.name));
    Ok(experiments)
}

/// What to run, and how often.
struct Plan {
    rounds: u32,
    runner: Runner,
    allocators: Vec<Allocator>,
}

impl Plan {
    /// Runs every case; rows reach the CSV as soon as they are there.
    fn run_all(&self, experiments: &[Experiment], dir: &Path) -> Result<Vec<Row>> {
        let mut writer = data::Writer::create(dir)?;
        let total: usize = experiments.iter().map(|experiment| experiment.cases.len()).sum();
        let (mut rows, mut done) = (Vec::new(), 0);
        for experiment in experiments {
            for case in &experiment.cases {
                let begun = Instant::now();
                let (more, failures) = self.run_case(experiment, case, &mut writer)?;
                rows.extend(more);
                done += 1;
                let seconds = begun.elapsed().as_secs_f64();
                eprintln!("[{done}/{total}] {}, {}: {seconds:.0} s{failures}", experiment.name, case.name);
            }
        }
        Ok(rows)
    }

    /// All rounds of one case, and a text that names the allocators that failed.
    fn run_case(&self, experiment: &Experiment, case: &Case, writer: &mut data::Writer) -> Result<(Vec<Row>, String)> {
        let (mut rows, mut failures) = (Vec::new(), String::new());
        for round in 0..self.rounds * case.repeat {
            for turn in 0..self.allocators.len() {
                let allocator = &self.allocators[(turn + round as usize) % self.allocators.len()];
                let outcome = self
                    .runner
                    .run(experiment, &case.kind, allocator)
                    .with_context(|| format!("{}, {} under {}", experiment.name, case.name, allocator.name))?;
                if !outcome.is_ok() {
                    failures += &format!("; {} {}", allocator.name, outcome.status);
                }
                let first = Row {
                    experiment: experiment.name.into(),
                    case: case.name.clone(),
                    allocator: allocator.name.clone(),
                    round: round + 1,
                    turn: turn as u32 + 1,
                    ..Row::default()
                };
                let run = rows_of(&first, outcome);
                writer.append(&run)?;
                rows.extend(run);
            }
        }
        Ok((rows, failures))
    }
}

/// One row per figure of a run; one without a figure where there is none.
fn rows_of(run: &Row, outcome: Outcome) -> Vec<Row> {
    let run = Row { status: outcome.status, ..run.clone() };
    if outcome.metrics.is_empty() {
        return vec![run];
    }
    let row = |metric: data::Metric| Row { metric: metric.name, unit: metric.unit, value: metric.value, ..run.clone() };
    outcome.metrics.into_iter().map(row).collect()
}
