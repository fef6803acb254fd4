//! `cargo xtask bench`: the allocation workloads under glibc, neap and the peers.
//!
//! Each workload is run once per allocator and round, allocators one after the other in an order
//! that rotates from round to round, so that a slow minute of the machine meets all of them. The
//! ratio to glibc is taken within a round; the tables show the median over the rounds. Every run is
//! kept as one row of `runs.csv` beside `machine.json`; the tables are made from these two alone.

mod data;
pub mod machine;
mod report;
pub mod workloads;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use neap_results::stats::median;

use crate::place::root;
use data::{Row, Table};
use machine::Machine;
use neap_lab::allocators::Allocator;
use neap_lab::sources::Workload;
use neap_lab::toolchain::run;
use neap_results::GLIBC;
use workloads::Program;

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask bench --quick                              a tenth of the work, 3 rounds\n  \
    cargo xtask bench --runs 7 -o lab/results/2026-12-01   a run to keep\n  \
    cargo xtask bench --workloads trees,maps --allocators glibc,neap,mimalloc3\n  \
    cargo xtask bench --allocators glibc,mine=/tmp/libmine.so")]
pub struct Args {
    /// A tenth of the work, and 3 rounds unless --runs says otherwise
    #[arg(long)]
    quick: bool,
    /// Rounds, each with one run per workload and allocator [default: 5; 3 with --quick]
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
    /// Thread counts, where the workload has them
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "LIST")]
    threads: Vec<u32>,
    /// Allocators by name, or NAME=PATH for any preload library [default: all that are built]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    allocators: Vec<String>,
    /// Workloads by name [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    workloads: Vec<String>,
    /// Amount of work in percent, instead of --quick
    #[arg(long, value_name = "PERCENT", conflicts_with = "quick")]
    scale: Option<u32>,
    /// A run that takes longer counts as failed
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u32,
    /// Folder for runs.csv and machine.json
    #[arg(short, long, default_value = "lab/results/latest", value_name = "DIR")]
    output: PathBuf,
}

/// Arguments of `cargo xtask report`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo xtask report lab/results/2026-12-01 > BENCHMARKS.md")]
pub struct ReportArgs {
    /// Folder that `cargo xtask bench -o` wrote
    dir: PathBuf,

    /// Also draw the headline chart into this SVG file
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

/// Runs `cargo xtask report`.
pub fn report_main(args: ReportArgs) -> Result<()> {
    let run = report::read(&args.dir)?;
    if let Some(file) = &args.chart {
        report::headline(file, &run)?;
    }
    print!("{}", report::markdown(&run));
    Ok(())
}

/// Runs `cargo xtask bench`.
pub fn main(args: Args) -> Result<()> {
    let allocators = chosen_allocators(&args)?;
    let programs = workloads::build(&args.workloads)?;
    let launcher = workloads::build_launcher()?;
    let plan = Plan {
        rounds: args.runs.unwrap_or(if args.quick { 3 } else { 5 }).max(1),
        scale: args.scale.unwrap_or(if args.quick { 10 } else { 100 }),
        timeout: args.timeout,
        launcher,
        allocators,
    };
    let dir = root().join(&args.output);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let machine = Machine::look(&plan.allocators, plan.scale, plan.rounds)?;
    machine.write(&dir)?;
    let table = plan.run_all(&programs, &args.threads, &dir)?;
    if table.rows.is_empty() {
        bail!("no workload has any of the thread counts {:?}", args.threads);
    }
    let markdown = report::markdown(&report::read(&dir)?);
    fs::write(dir.join("report.md"), &markdown)?;
    print!("{markdown}");
    eprintln!("written: {}", args.output.display());
    Ok(())
}

/// The allocators asked for, with glibc in front: every ratio needs it.
fn chosen_allocators(args: &Args) -> Result<Vec<Allocator>> {
    let mut names = args.allocators.clone();
    if !names.is_empty() {
        names.retain(|name| name != GLIBC);
        names.insert(0, GLIBC.into());
    }
    crate::place::resolve(&names)
}

/// What to run, and how.
struct Plan {
    rounds: u32,
    scale: u32,
    timeout: u32,
    launcher: PathBuf,
    allocators: Vec<Allocator>,
}

impl Plan {
    /// Runs every workload at every thread count; rows reach the CSV as soon as they are there.
    fn run_all(&self, programs: &[Program], threads: &[u32], dir: &Path) -> Result<Table> {
        let mut writer = data::Writer::create(dir)?;
        let cells: Vec<(&Program, u32)> = programs
            .iter()
            .flat_map(|program| threads.iter().map(move |&t| (program, t)))
            .filter(|(program, t)| program.workload.threads.contains(t))
            .collect();
        let mut table = Table::default();
        for (index, (program, threads)) in cells.iter().enumerate() {
            let rows = self.run_cell(program, *threads, &mut writer)?;
            let line = progress_line(&rows, &self.allocators);
            let name = &program.workload.name;
            eprintln!("[{}/{}] {name}, threads {threads}: {line}", index + 1, cells.len());
            table.rows.extend(rows);
        }
        Ok(table)
    }

    /// All rounds of one workload at one thread count.
    fn run_cell(&self, program: &Program, threads: u32, writer: &mut data::Writer) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        let mut expected: Option<String> = None;
        for round in 0..self.rounds {
            for turn in 0..self.allocators.len() {
                let index = (turn + round as usize) % self.allocators.len();
                let allocator = &self.allocators[index];
                let mut row = self.run_once(program, threads, allocator)?;
                row.round = round + 1;
                row.turn = turn as u32 + 1;
                if row.is_ok() {
                    let expected = expected.get_or_insert_with(|| row.checksum.clone());
                    if *expected != row.checksum {
                        row.status = "wrong-checksum".into();
                    }
                }
                writer.append(&row)?;
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// One run of one program under one allocator.
    fn run_once(&self, program: &Program, threads: u32, allocator: &Allocator) -> Result<Row> {
        let mut command = Command::new(&self.launcher);
        command
            .arg(self.timeout.to_string())
            .args(allocator.variables())
            .arg("--")
            .arg(&program.path)
            .args(["--threads", &threads.to_string()])
            .args(["--scale", &self.scale.to_string()])
            .env_remove("LD_PRELOAD");
        let line = run(&mut command)?;
        let Workload { name, .. } = &program.workload;
        Row::parse(&line, name, threads, &allocator.name)
            .with_context(|| format!("the launcher's line makes no sense: {line}"))
    }
}

/// Median wall time per allocator, for stderr.
fn progress_line(rows: &[Row], allocators: &[Allocator]) -> String {
    let mut walls: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_ok()) {
        walls.entry(&row.allocator).or_default().push(row.wall_ms);
    }
    let part = |allocator: &Allocator| match walls.get(allocator.name.as_str()) {
        Some(walls) => format!("{} {:.0} ms", allocator.name, median(walls)),
        None => format!("{} FAILED", allocator.name),
    };
    allocators.iter().map(part).collect::<Vec<_>>().join(", ")
}
