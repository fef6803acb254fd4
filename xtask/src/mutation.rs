//! `cargo xtask mutants`: the core with one small change after another, thousands of them. A change with which all tests
//! pass shows what is not tested.
//!
//! cargo-mutants makes the list. To build once for each of them would take a day, so all are put into one build
//! (`switch.rs`), which the environment tells which one is on (`runtime.rs`). Each test runs once without a mutant, and
//! notes where it comes; a mutant then has to pass only the tests that come there, the quickest first.

mod build;
mod list;
mod switch;
mod tests;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;

use crate::place::root;
use list::Mutant;
use tests::Test;

/// Options of `cargo xtask mutants`.
#[derive(ClapArgs)]
pub struct Args {
    /// Only each Nth mutant, from the Kth on
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// One of N shards, another one each day
    #[arg(long, value_name = "N", conflicts_with = "shard")]
    daily: Option<usize>,
    /// Only mutants in files with this text in their name
    #[arg(long, value_name = "TEXT")]
    file: Option<String>,
    /// Only mutants that lived when they were last run
    #[arg(long)]
    again: bool,
    /// Only list the mutants
    #[arg(long)]
    list: bool,
    /// Processor seconds of tests for each mutant [default: all tests]
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Leave out tests that take more processor seconds than this without a mutant
    #[arg(long, value_name = "SECONDS")]
    longest: Option<f64>,
    /// End after so many minutes: mutants run in an order at random, so those that did are a sample
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Mutants that run at a time [default: processors]
    #[arg(long)]
    jobs: Option<usize>,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// A test failed, or did not end.
    Caught(String),
    /// All tests passed that come there, but for as many that would have taken too long.
    Lives(usize),
    /// No test comes there.
    Unreached,
    /// It cannot be put into the common build: constant functions, or types that do not fit.
    Apart,
}

impl Outcome {
    fn describe(&self) -> String {
        match self {
            Outcome::Caught(by) => format!("caught by {by}"),
            Outcome::Lives(0) => "lives".to_owned(),
            Outcome::Lives(n) => format!("lives, {n} tests not run"),
            Outcome::Unreached => "lives: no test comes there".to_owned(),
            Outcome::Apart => "not built".to_owned(),
        }
    }
}

/// Runs `cargo xtask mutants`.
pub fn main(args: Args) -> Result<()> {
    let root = root();
    let folder = root.join("target/mutants");
    std::fs::create_dir_all(&folder)?;
    let mutants = list::all(&root, &folder.join("list"))?;
    let record = folder.join("outcomes.txt");
    let selected = select(&args, &mutants, &record)?;
    println!("mutants: {} in the core, {} of them selected", mutants.len(), selected.len());
    if args.list {
        selected.iter().for_each(|&i| println!("{}", mutants[i].name));
        return Ok(());
    }
    let built = build::build(&root, &folder, &mutants)?;
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, |n| n.get()));
    let longest = args.longest.unwrap_or(3600.0);
    let tests = tests::measure(&built, mutants.len(), &folder, jobs, longest)?;
    let sum: f64 = tests.iter().map(|test| test.seconds).sum();
    println!("mutants: {} tests take {sum:.0} s of a processor", tests.len());
    let run = Run {
        mutants: &mutants,
        selected: &selected,
        sites: &built.sites,
        tests: &tests,
        budget: args.budget.unwrap_or(f64::MAX),
        folder: &folder,
        end: args.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0)),
        next: AtomicUsize::new(0),
        outcomes: Mutex::new(HashMap::new()),
        record: Mutex::new(std::fs::File::create(&record)?),
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs).map(|job| (job, &run)).map(|(job, run)| scope.spawn(move || run.work(job))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    ended.into_iter().collect::<Result<()>>()?;
    report(&root, &mutants, run.outcomes.into_inner().expect("no worker panicked"))
}

/// The mutants that `args` ask for.
fn select(args: &Args, mutants: &[Mutant], record: &Path) -> Result<Vec<usize>> {
    let (k, n) = match (&args.shard, args.daily) {
        (Some(shard), _) => {
            let (k, n) = shard.split_once('/').context("a shard is K/N")?;
            (k.parse::<usize>()?, n.parse::<usize>()?)
        }
        (None, Some(n)) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
            ((now.as_secs() / 86_400) as usize % n.max(1) + 1, n)
        }
        (None, None) => (1, 1),
    };
    ensure!((1..=n).contains(&k), "shard {k} of {n}");
    let lived: Option<HashSet<String>> = match args.again {
        true => {
            let text = std::fs::read_to_string(record).context("nothing ran before")?;
            let lines = text.lines().filter_map(|line| line.split_once('\t'));
            Some(lines.filter(|line| line.0.starts_with("lives")).map(|line| line.1.to_owned()).collect())
        }
        false => None,
    };
    let mut selected: Vec<usize> = (0..mutants.len())
        .filter(|&i| i % n == k - 1)
        .filter(|&i| args.file.as_ref().is_none_or(|text| mutants[i].file.contains(text.as_str())))
        .filter(|&i| lived.as_ref().is_none_or(|lived| lived.contains(&mutants[i].key())))
        .collect();
    // At random, and the same each time.
    selected.sort_by_key(|&i| (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).swap_bytes());
    Ok(selected)
}

/// What the workers share.
struct Run<'a> {
    mutants: &'a [Mutant],
    selected: &'a [usize],
    sites: &'a HashMap<u32, u32>,
    tests: &'a [Test],
    budget: f64,
    folder: &'a Path,
    end: Option<Instant>,
    next: AtomicUsize,
    outcomes: Mutex<HashMap<usize, Outcome>>,
    record: Mutex<std::fs::File>,
}

impl Run<'_> {
    fn work(&self, job: usize) -> Result<()> {
        let log = self.folder.join(format!("job-{job}.log"));
        loop {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&i) = self.selected.get(place) else { return Ok(()) };
            if self.end.is_some_and(|end| Instant::now() > end) {
                return Ok(());
            }
            let outcome = self.try_one(i, &log)?;
            let mutant = &self.mutants[i];
            if place.is_multiple_of(100) {
                println!("mutants: {place} of {}", self.selected.len());
            }
            if !matches!(outcome, Outcome::Caught(_) | Outcome::Apart) {
                println!("{}: {}", mutant.name, outcome.describe());
            }
            writeln!(self.record.lock().expect("no worker panics"), "{}\t{}", outcome.describe(), mutant.key())?;
            self.outcomes.lock().expect("no worker panics").insert(i, outcome);
        }
    }

    fn try_one(&self, i: usize, log: &Path) -> Result<Outcome> {
        let Some(&site) = self.sites.get(&(i as u32)) else { return Ok(Outcome::Apart) };
        let (groups, left) = tests::groups(self.tests, site, self.budget);
        if groups.is_empty() && left == 0 {
            return Ok(Outcome::Unreached);
        }
        for group in groups {
            let tests: Vec<&Test> = group.iter().map(|&t| &self.tests[t]).collect();
            let seconds: f64 = tests.iter().map(|test| test.seconds).sum();
            // Many others may use the machine.
            let (cpu, wall) = ((seconds * 5.0).ceil() as u64 + 2, (seconds * 30.0) as u32 + 30);
            let mut command = tests::command(&tests);
            let ended = tests::run(command.env("NEAP_MUTANT", i.to_string()), log, cpu, wall)?;
            if !ended.status.success() {
                return Ok(Outcome::Caught(caught_by(&tests, log)));
            }
        }
        Ok(Outcome::Lives(left))
    }
}

/// The test that failed, as far as the output says so.
fn caught_by(tests: &[&Test], log: &Path) -> String {
    let output = std::fs::read(log).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let failed = output.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    match (failed, tests) {
        (Some(name), _) => name.to_owned(),
        (None, [test]) => test.name.clone(),
        (None, _) => format!("one of {} tests like {}", tests.len(), tests[0].name),
    }
}

/// What docs/mutants.md explains: a file, a mutant, a reason in each row of its table.
fn explained(root: &Path) -> Result<HashSet<String>> {
    let text = std::fs::read_to_string(root.join("docs/mutants.md")).context("docs/mutants.md")?;
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim().strip_prefix('|')?.split(" | ").map(str::trim).collect();
        let file = cells.first()?.trim_matches('`');
        file.ends_with(".rs").then(|| format!("{file}: {}", cells[1].trim_matches('`').replace("\\|", "|")))
    };
    Ok(text.lines().filter_map(row).collect())
}

/// Counts. Fails if a mutant lives that nothing explains.
fn report(root: &Path, mutants: &[Mutant], outcomes: HashMap<usize, Outcome>) -> Result<()> {
    let explained = explained(root)?;
    let count = |which: fn(&Outcome) -> bool| outcomes.values().filter(|outcome| which(outcome)).count();
    let apart = count(|outcome| *outcome == Outcome::Apart);
    let ran = outcomes.len() - apart;
    let caught = count(|outcome| matches!(outcome, Outcome::Caught(_)));
    let lives = |i: &&usize| matches!(outcomes[*i], Outcome::Lives(_) | Outcome::Unreached);
    let mut open: Vec<usize> =
        outcomes.keys().filter(lives).copied().filter(|&i| !explained.contains(&mutants[i].key())).collect();
    open.sort_unstable();
    println!(
        "mutants: {ran} ran, {caught} caught, {} live ({:.1} %), {} of these explained; {apart} are not built",
        ran - caught,
        (ran - caught) as f64 * 100.0 / ran.max(1) as f64,
        ran - caught - open.len(),
    );
    if open.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = open.iter().map(|i| format!("{}: {}", mutants[*i].name, outcomes[i].describe())).collect();
    bail!("neither caught nor explained in docs/mutants.md:\n{}", names.join("\n"))
}
