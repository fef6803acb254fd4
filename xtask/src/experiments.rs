//! `cargo xtask experiments`: as `neap lab run`, with the release build of this tree and the peers in lab/peers/build.

use std::path::PathBuf;

use anyhow::{Result, bail};
use neap_lab::event::Event;
use neap_lab::plan::{self, Done, Request};
use neap_lab::text::{duration_text, gates_off_text};
use neap_lab::{allocators, failure::failure};
use neap_report::markdown::{Options, document};
use neap_results::Run;

use crate::documents;
use crate::place::{self, root};

/// The folder of a run that is not kept.
const LATEST: &str = "lab/results/latest";

/// Arguments of `cargo xtask experiments`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask experiments --quick --allocators glibc,neap,mimalloc3,jemalloc\n  \
    cargo xtask experiments calloc retain-large\n  \
    cargo xtask experiments --runs 5 -o lab/results/NAME   a run to keep\n  \
    cargo xtask experiments --report lab/results/NAME      the report again, from the raw data")]
pub struct Args {
    /// Experiments by name [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only cases with one of these texts in their name
    #[arg(long, value_delimiter = ',', value_name = "TEXTS")]
    cases: Vec<String>,
    /// Fewer cases with less work
    #[arg(long)]
    quick: bool,
    /// Rounds, each with one run per case and allocator [default: 1 to 5, by experiment]
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
    /// Allocators by name, or NAME=PATH for any preload library [default: all that are built]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    allocators: Vec<String>,
    /// Folder for run.json, rows.csv and report.md [default: lab/results/latest, which is replaced each time]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Replace the run that DIR has
    #[arg(long)]
    force: bool,
    /// Fail where a verdict that must hold does not
    #[arg(long)]
    check: bool,
    /// The run of CI: quick, checked, and repeated once for what does not hold
    #[arg(long, conflicts_with_all = ["names", "cases", "quick", "runs", "allocators", "output", "check"])]
    ci: bool,
    /// Print the report of a folder that -o wrote, and run nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["names", "cases", "quick", "runs", "allocators"])]
    report: Option<PathBuf>,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    if let Some(dir) = &args.report {
        return documents::print(dir);
    }
    if args.ci {
        return quick_check();
    }
    let place = place::lab();
    if !place.command.exists() {
        return Err(failure(format!("{} is missing", place.command.display()), "run `cargo build --release`"));
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let force = args.force || args.output.is_none();
    let output = args.output.unwrap_or_else(|| LATEST.into());
    let dir = root().join(&output);
    let request = Request {
        names: args.names,
        cases: args.cases,
        quick: args.quick,
        runs: args.runs,
        allocators: args.allocators,
        output: dir.clone(),
        force,
        command: format!("cargo xtask {}", arguments.join(" ")),
        commit: Some(place::commit()),
    };
    let done = plan::run(&place, &request, &mut |event| tell(&event))?;
    let run = done.run.clone();
    let markdown = document(&run, &Options::default());
    std::fs::write(dir.join("report.md"), &markdown)?;
    print!("{markdown}");
    eprintln!("written: {}", output.display());
    let run = finish(done)?;
    if args.check { holds(&run) } else { Ok(()) }
}

/// Runs the allocation workloads, `cargo xtask bench`.
pub fn suite(args: Args) -> Result<()> {
    if !args.names.is_empty() {
        return Err(failure("bench takes no names of experiments", "use `cargo xtask experiments NAME...`"));
    }
    main(Args { names: vec!["suite".into()], ..args })
}

/// A quick run of all experiments under glibc, neap and at most two other allocators that are built. Fails if a verdict
/// that must hold does not, twice: most experiments have one round here, which other work of a second can spoil.
fn quick_check() -> Result<()> {
    let place = place::lab();
    let mut names = vec!["glibc".to_owned(), "neap".to_owned()];
    for other in ["mimalloc3", "jemalloc", "debian-mimalloc", "debian-jemalloc"] {
        if names.len() < 4 && allocators::resolve(&place, &[other.into()], &mut |_| {}).is_ok() {
            names.push(other.into());
        }
    }
    let pass = |experiments: Vec<String>, folder: &str| -> Result<Run> {
        let request = Request {
            names: experiments,
            quick: true,
            allocators: names.clone(),
            output: root().join(folder),
            force: true,
            command: "cargo xtask ci".into(),
            commit: Some(place::commit()),
            ..Request::default()
        };
        finish(plan::run(&place, &request, &mut |event| tell(&event))?)
    };
    let run = pass(Vec::new(), "target/lab/ci")?;
    let mut broken: Vec<String> = run.broken().iter().map(|(experiment, _)| experiment.name.clone()).collect();
    broken.dedup();
    if broken.is_empty() {
        return holds(&run);
    }
    let _ = holds(&run);
    eprintln!("once more: {}", broken.join(", "));
    holds(&pass(broken, "target/lab/ci-again")?)
}

/// The run, unless it was interrupted or has lost an experiment.
fn finish(done: Done) -> Result<Run> {
    match (done.interrupted, done.error) {
        (Some(signal), _) => bail!("interrupted by signal {signal}; what was measured until then is kept"),
        (None, Some(error)) => Err(error.context("an experiment ended early; the others are kept")),
        (None, None) => Ok(done.run),
    }
}

/// Fails if verdicts that must hold do not, and prints them.
fn holds(run: &Run) -> Result<()> {
    let broken = run.broken();
    for (experiment, verdict) in &broken {
        eprintln!("{}: must hold and does not: {}", experiment.name, verdict.text);
    }
    if let Some(words) = gates_off_text(run) {
        eprintln!("{words}");
    }
    match broken.len() {
        0 => Ok(()),
        count => bail!("{count} verdicts that must hold do not"),
    }
}

fn tell(event: &Event) {
    match event {
        Event::LeftOut(reason) => eprintln!("left out: {reason}"),
        Event::Begins(..) => {}
        Event::Ended(experiment, case, time, failures) => {
            let failed: String = failures.iter().map(|failure| format!("; {failure}")).collect();
            eprintln!("{experiment}, {case}: {:.1} s{failed}", time.as_secs_f64());
        }
        Event::Broken(experiment, error) => eprintln!("{experiment}: ended early: {error:#}"),
        Event::Again(experiment, case, why) => eprintln!("{experiment}, {case}: round repeated: {why}"),
        Event::Finished(experiment, time) => eprintln!("{experiment}: {}", duration_text(*time)),
    }
}
