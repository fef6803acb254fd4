//! `cargo xtask torture`: runs programs that check every byte of every block, with options, threads, forks, signals,
//! limits and late or failing system calls, all chosen by a seed.
//!
//! A run is a plan ([`plan`]) that is executed and watched ([`process`]). The plan follows from the run's seed alone.
//! The order of threads is the system's, so a finding may need several runs of its seed to recur (`--times`).

mod asks;
mod group;
mod plan;
mod pool;
mod process;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};

use plan::{Draw, Plan};
use process::{Tools, Verdict};

/// How many lines of a finding's output are printed, in case the file with all of it is lost with the machine.
const SHOWN: usize = 100;

/// Arguments of `cargo xtask torture`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask torture                             two minutes, another seed each time\n  \
    cargo xtask torture --time 4h                   a night\n  \
    cargo xtask torture --only forks --time 60      one kind of run\n  \
    cargo xtask torture --repeat 1f3a --times 20    the run that failed, twenty times\n  \
    cargo xtask torture --library OLD.so --keep-going")]
pub struct Args {
    /// How long: seconds, or with the unit min or h
    #[arg(long, default_value = "120", value_parser = parse_time)]
    time: Duration,
    /// The seed of all runs [default: from the clock]
    #[arg(long, value_parser = parse_seed)]
    seed: Option<u64>,
    /// Only runs of this kind
    #[arg(long, default_value = "")]
    only: String,
    /// Repeat one run by its own seed, as a finding prints it
    #[arg(long, value_parser = parse_seed)]
    repeat: Option<u64>,
    /// How often to repeat it
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Another library instead of a fresh build, for instance one with a fault
    #[arg(long)]
    library: Option<PathBuf>,
    /// Runs at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Seconds that each program works
    #[arg(long, default_value_t = 4)]
    each: u64,
    /// Go on after a finding
    #[arg(long)]
    keep_going: bool,
}

fn parse_seed(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|e| format!("expected a hexadecimal number: {e}"))
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..split].parse().map_err(|_| "expected a number of seconds".to_owned())?;
    let unit = match &text[split..] {
        "" | "s" => 1,
        "min" => 60,
        "h" => 3600,
        other => return Err(format!("unknown unit {other}: s, min or h")),
    };
    Ok(Duration::from_secs(number * unit))
}

/// What all runs of the command share.
struct Series {
    tools: Tools,
    start: Instant,
    time: Duration,
    each: u64,
    keep_going: bool,
    next: AtomicUsize,
    over: AtomicBool,
    results: Mutex<Results>,
}

#[derive(Default)]
struct Results {
    passed: u32,
    skipped: Vec<String>,
    findings: u32,
    said: Option<Instant>,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    let seeds = seeds(&args)?;
    let series = Series {
        tools: Tools::build(args.library.as_deref())?,
        start: Instant::now(),
        time: args.time,
        each: args.each,
        keep_going: args.keep_going,
        next: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        results: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(|| series.work(&seeds))).collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("a job does not panic"))
    })?;
    let results = series.results.into_inner().expect("no job panics");
    for line in &results.skipped {
        println!("SKIPPED {line}");
    }
    let seconds = series.start.elapsed().as_secs();
    println!(
        "torture: {} runs passed, {} skipped, {} findings in {seconds} s",
        results.passed,
        results.skipped.len(),
        results.findings
    );
    ensure!(results.findings == 0, "torture found something");
    ensure!(results.passed > 0, "no run could be made");
    Ok(())
}

/// The seed of the n-th run; `None` ends the series before its time.
type Seeds = Box<dyn Fn(usize) -> Option<u64> + Sync>;

fn seeds(args: &Args) -> Result<Seeds> {
    if let Some(seed) = args.repeat {
        let times = args.times as usize;
        println!("torture: {times} times {}", Plan::new(seed).describe());
        return Ok(Box::new(move |n| (n < times).then_some(seed)));
    }
    let kinds = plan::chosen(&args.only);
    if kinds.is_empty() {
        bail!("no runs are called {}; there are {}", args.only, plan::names());
    }
    let clock = || SystemTime::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64);
    let seed = args.seed.unwrap_or_else(clock);
    println!("torture: --seed {seed:x}, {} kinds of runs", kinds.len());
    Ok(Box::new(move |n| {
        // Each round has all kinds, in another order.
        let round = (n / kinds.len()) as u64;
        let mut order = kinds.clone();
        let mut draw = Draw::new(seed ^ round.wrapping_mul(0xD134_2543_DE82_EF95));
        for i in (1..order.len()).rev() {
            order.swap(i, draw.below(i + 1));
        }
        let its = Draw::new(seed.wrapping_add(n as u64 * 7919)).next();
        Some(plan::seed_for(its, order[n % kinds.len()]))
    }))
}

impl Series {
    /// One job: one run after another until the time is over or something is found.
    fn work(&self, seeds: &Seeds) -> Result<()> {
        while self.start.elapsed() < self.time && !self.over.load(Ordering::Relaxed) {
            let Some(seed) = seeds(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            let plan = Plan::new(seed);
            let verdict = self.tools.run(&plan, self.each)?;
            self.note(&plan, verdict);
        }
        Ok(())
    }

    fn note(&self, plan: &Plan, verdict: Verdict) {
        let mut results = self.results.lock().expect("no job panics");
        let now = self.start.elapsed().as_secs();
        match verdict {
            Verdict::Passed => results.passed += 1,
            Verdict::Skipped(why) => results.skipped.push(format!("{}: {why}", plan.describe())),
            Verdict::Found(finding) => {
                results.findings += 1;
                println!("FOUND after {now} s: {}\n  run: {}", finding.what, plan.describe());
                println!("  to repeat: cargo xtask torture --repeat {:x} --times 20 --each {}", plan.seed, self.each);
                println!("  whole output: {}", finding.kept.display());
                finding.output.lines().take(SHOWN).for_each(|line| println!("  | {line}"));
                self.over.fetch_or(!self.keep_going, Ordering::Relaxed);
            }
        }
        if results.said.is_none_or(|said| said.elapsed() > Duration::from_secs(20)) {
            results.said = Some(Instant::now());
            println!("torture: {} runs passed, {} findings, {now} s", results.passed, results.findings);
        }
    }
}
