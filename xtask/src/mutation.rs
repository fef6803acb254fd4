//! `cargo xtask mutants`: tests the core with one small change after another, thousands of them. A change with which
//! all tests pass shows what is not tested.
//!
//! cargo-mutants makes the list. A build for each of them would take a day, so all are put into one build
//! (`switch.rs`), in which a variable of the environment activates one (`runtime.rs`). Each test runs once without a
//! mutant and records the sites that it reaches; a mutant then has to pass only the tests that reach it, the quickest
//! first.

mod build;
mod list;
mod switch;
mod tests;

use std::collections::HashMap;
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
    /// Only mutants that lived when they were last run, and that crates/core/mutants.md does not explain
    #[arg(long)]
    again: bool,
    /// Continue the last run: only mutants that did not run, and the results of both
    #[arg(long, conflicts_with = "again")]
    more: bool,
    /// Only list the mutants
    #[arg(long)]
    list: bool,
    /// Processor seconds of tests for each mutant [default: all tests]
    #[arg(long, value_name = "SECONDS")]
    budget: Option<f64>,
    /// Leave out tests that take more processor seconds than this without a mutant
    #[arg(long, value_name = "SECONDS")]
    longest: Option<f64>,
    /// Limit in minutes; mutants run in random order, so those that ran are a sample
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Mutants that run at a time [default: processors]
    #[arg(long)]
    jobs: Option<usize>,
}

/// Which mutants may live, and why.
const EXPLAINED: &str = "crates/core/mutants.md";

/// The result for a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// A test failed, or did not end.
    Caught(String),
    /// All tests that reach it passed, except this number, which would have taken too long.
    Lives(usize),
    /// No test reaches it.
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

    /// Reads the text of [`Outcome::describe`].
    fn read(text: &str) -> Outcome {
        let left = text.strip_prefix("lives, ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        match text.strip_prefix("caught by ") {
            Some(by) => Outcome::Caught(by.to_owned()),
            None if text == Outcome::Unreached.describe() => Outcome::Unreached,
            None if text == Outcome::Apart.describe() => Outcome::Apart,
            None => Outcome::Lives(left.unwrap_or(0)),
        }
    }

    fn is_alive(&self) -> bool {
        matches!(self, Outcome::Lives(_) | Outcome::Unreached)
    }
}

/// Runs `cargo xtask mutants`.
pub fn main(args: Args) -> Result<()> {
    let root = root();
    let folder = root.join("target/mutants");
    std::fs::create_dir_all(&folder)?;
    let mutants = list::all(&root, &folder.join("list"))?;
    let record = folder.join("outcomes.txt");
    let names = list::names(&mutants);
    let before = match args.again || args.more {
        true => recorded(&record)?,
        false => HashMap::new(),
    };
    let explained = Explained::read(&std::fs::read_to_string(root.join(EXPLAINED)).context(EXPLAINED)?);
    let selected = select(&args, &mutants, &names, &before, &explained)?;
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
        names: &names,
        selected: &selected,
        sites: &built.sites,
        tests: &tests,
        budget: args.budget.unwrap_or(f64::MAX),
        folder: &folder,
        end: args.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0)),
        next: AtomicUsize::new(0),
        outcomes: Mutex::new(HashMap::new()),
        record: Mutex::new(open(&record, before.is_empty())?),
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs).map(|job| (job, &run)).map(|(job, run)| scope.spawn(move || run.work(job))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    ended.into_iter().collect::<Result<()>>()?;
    let mut outcomes = run.outcomes.into_inner().expect("no worker panicked");
    for (i, name) in names.iter().enumerate() {
        if let Some(old) = before.get(name) {
            outcomes.entry(i).or_insert_with(|| old.clone());
        }
    }
    report(&mutants, &names, &outcomes, &explained)
}

/// Opens the file of outcomes, emptied if `new`.
fn open(record: &Path, new: bool) -> Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).write(true).truncate(new).append(!new);
    options.open(record).with_context(|| format!("cannot write {}", record.display()))
}

/// The results of earlier runs. For a mutant that ran again, the last line counts.
fn recorded(record: &Path) -> Result<HashMap<String, Outcome>> {
    let text = std::fs::read_to_string(record).context("nothing ran before")?;
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    Ok(lines.map(|(outcome, name)| (name.to_owned(), Outcome::read(outcome))).collect())
}

/// The mutants that `args` select.
fn select(
    args: &Args,
    mutants: &[Mutant],
    names: &[String],
    before: &HashMap<String, Outcome>,
    explained: &Explained,
) -> Result<Vec<usize>> {
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
    let mut selected: Vec<usize> = (0..mutants.len())
        .filter(|&i| i % n == k - 1)
        .filter(|&i| args.file.as_ref().is_none_or(|text| mutants[i].file.contains(text.as_str())))
        .filter(|&i| !args.again || before.get(&names[i]).is_some_and(Outcome::is_alive) && !explained.has(&names[i]))
        .filter(|&i| !args.more || !before.contains_key(&names[i]))
        .collect();
    // A random order that is the same each time.
    selected.sort_by_key(|&i| (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).swap_bytes());
    Ok(selected)
}

/// What the workers share.
struct Run<'a> {
    mutants: &'a [Mutant],
    names: &'a [String],
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
            writeln!(self.record.lock().expect("no worker panics"), "{}\t{}", outcome.describe(), self.names[i])?;
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
            // Generous limits, because many others may use the machine.
            let (cpu, wall) = ((seconds * 5.0).ceil() as u64 + 2, (seconds * 30.0) as u32 + 30);
            let mut command = tests::command(&tests);
            let ended = tests::run(command.env("NEAP_MUTANT", i.to_string()), log, cpu, wall)?;
            let caught = (!ended.status.success()).then(|| caught_by(&tests, log));
            tests.iter().for_each(|test| test.note(caught.as_ref().is_some_and(|by| test.name == *by)));
            if let Some(by) = caught {
                return Ok(Outcome::Caught(by));
            }
        }
        Ok(Outcome::Lives(left))
    }
}

/// The test that failed, or that ran when the process ended, if the output shows it.
fn caught_by(tests: &[&Test], log: &Path) -> String {
    let output = std::fs::read(log).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let lines = || output.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let failed = lines().find(|line| line.1.ends_with("FAILED"));
    let last = || lines().next_back().filter(|line| !line.1.ends_with("ok"));
    let by = failed.or_else(last).and_then(|(name, _)| tests.iter().find(|test| test.is_called(name)));
    match (by, tests) {
        (Some(test), _) | (None, [test]) => test.name.clone(),
        (None, _) => format!("one of {} tests like {}", tests.len(), tests[0].name),
    }
}

/// Rows of the table in crates/core/mutants.md: the beginning of a mutant's name, and the parts that follow in it, with
/// anything in between.
struct Explained(Vec<Vec<String>>);

impl Explained {
    /// Reads the table: a file, a mutant, a reason in each row. `…` stands for any text.
    fn read(text: &str) -> Self {
        let row = |line: &str| {
            let cells: Vec<&str> = line.trim().strip_prefix('|')?.split(" | ").map(str::trim).collect();
            let file = cells.first()?.trim_matches('`');
            let mutant = cells.get(1)?.trim_matches('`').replace("\\|", "|");
            file.ends_with(".rs").then(|| format!("{file}: {mutant}").split('…').map(str::to_owned).collect())
        };
        Explained(text.lines().filter_map(row).collect())
    }

    /// Whether a row applies to the mutant `name`. A row without a number applies to all of its name, `#1` to the first
    /// one, whose own name has no number.
    fn has(&self, name: &str) -> bool {
        let plain = name.rsplit_once(" #").map_or(name, |(plain, _)| plain);
        let first = format!("{plain} #1");
        self.0.iter().any(|parts| {
            matches(parts, name) || matches(parts, plain) || (name == plain && matches(parts, first.as_str()))
        })
    }
}

/// Whether `text` consists of `parts` in this order, with anything in between.
fn matches(parts: &[String], text: &str) -> bool {
    let Some((first, rest)) = parts.split_first() else { return false };
    let Some(mut left) = text.strip_prefix(first.as_str()) else { return false };
    let Some((last, middle)) = rest.split_last() else { return left.is_empty() };
    for part in middle {
        let Some(at) = left.find(part.as_str()) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last.as_str())
}

/// The bounds of a proportion of which a random sample has `hits` in `n`, with 95 % confidence (Wilson).
fn bounds(hits: usize, n: usize) -> (f64, f64) {
    let (hits, n, z) = (hits as f64, (n as f64).max(1.0), 1.96f64);
    let (share, z2) = (hits / n, z * z);
    let middle = (share + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let off = z * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt() / (1.0 + z2 / n);
    ((middle - off).max(0.0), middle + off)
}

/// Prints the counts. Fails if a mutant lives that is not explained.
fn report(
    mutants: &[Mutant],
    names: &[String],
    outcomes: &HashMap<usize, Outcome>,
    explained: &Explained,
) -> Result<()> {
    let apart = outcomes.values().filter(|outcome| **outcome == Outcome::Apart).count();
    let ran = outcomes.len() - apart;
    let lives: Vec<usize> = outcomes.iter().filter(|(_, outcome)| outcome.is_alive()).map(|(&i, _)| i).collect();
    let mut open: Vec<usize> = lives.iter().copied().filter(|&i| !explained.has(&names[i])).collect();
    open.sort_unstable();
    let (low, high) = bounds(lives.len(), ran);
    println!(
        "mutants: {ran} ran, {} caught, {} live ({:.1} %; of all, if these are a sample, {:.1} to {:.1} %), {} of these \
         explained; {apart} are not built",
        ran - lives.len(),
        lives.len(),
        lives.len() as f64 * 100.0 / ran.max(1) as f64,
        low * 100.0,
        high * 100.0,
        lives.len() - open.len(),
    );
    if open.is_empty() {
        return Ok(());
    }
    let open: Vec<String> = open.iter().map(|i| format!("{}: {}", mutants[*i].name, outcomes[i].describe())).collect();
    bail!("neither caught nor explained in {EXPLAINED}:\n{}", open.join("\n"))
}

#[cfg(test)]
mod tests_of_the_table {
    use super::*;

    /// Catches a row that applies to other mutants, or not to its own.
    #[test]
    fn rows_hold_for_their_mutants() {
        let table = Explained::read(
            "| file | mutant | why |\n|---|---|---|\n| `a.rs` | `replace ^= with \\|= in f` | x |\n\
             | `a.rs` | `replace … with … in g` | y |\n| `b.rs` | `replace < with <= in h #2` | z |\n\
             | `b.rs` | `replace + with - in h #1` | z |",
        );
        assert!(table.has("b.rs: replace + with - in h") && !table.has("b.rs: replace + with - in h #2"));
        for name in
            ["a.rs: replace ^= with |= in f", "a.rs: replace < with > in g #3", "b.rs: replace < with <= in h #2"]
        {
            assert!(table.has(name), "{name}");
        }
        for name in ["a.rs: replace ^= with &= in f", "a.rs: replace < with > in gg", "b.rs: replace < with <= in h"] {
            assert!(!table.has(name), "{name}");
        }
    }

    /// Catches a line of the record that is read as another outcome.
    #[test]
    fn outcomes_are_read_as_written() {
        let all =
            [Outcome::Caught("a: b".into()), Outcome::Lives(0), Outcome::Lives(7), Outcome::Unreached, Outcome::Apart];
        all.iter().for_each(|outcome| assert_eq!(Outcome::read(&outcome.describe()), *outcome));
    }
}
