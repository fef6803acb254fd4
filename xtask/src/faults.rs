//! `cargo xtask faults`: runs each program of tests/trust.rs many times in a row, with and without delays, and prints a
//! table.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::ci::binaries::{self, Binary};
use crate::place::root;

/// Arguments of `cargo xtask faults`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask faults                        each program 50 times in a row: hours\n  \
    cargo xtask faults --times 3 --only fork  those whose name contains \"fork\"\n  \
    cargo xtask faults --library OLD.so       another build of neap")]
pub struct Args {
    /// How often each program runs
    #[arg(long, default_value_t = 50)]
    times: u32,
    /// Only tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// The library to test, instead of a fresh build
    #[arg(long)]
    library: Option<PathBuf>,
    /// Leave out the runs under delays of all system calls
    #[arg(long)]
    without_delays: bool,
    /// Programs that run at a time, each its runs in a row; most of them wait more than they work
    #[arg(long, default_value_t = 1)]
    jobs: usize,
}

/// The results of the runs of one test.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
    took: Duration,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    let suite = Suite::build(args.library.as_deref())?;
    let names = Mutex::new(suite.names(&args)?.into_iter());
    println!("{:48} {:>6} {:>6} {:>7} {:>8}", "program", "passed", "failed", "skipped", "seconds");
    let work = || {
        let mut failed = 0;
        loop {
            // The lock is released before the program runs.
            let Some(name) = names.lock().expect("no job panics").next() else { return Ok(failed) };
            failed += suite.runs(&name, args.times)?;
        }
    };
    let failed = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        jobs.into_iter().map(|job| job.join().expect("a job does not panic")).sum::<Result<u32>>()
    })?;
    ensure!(failed == 0, "{failed} runs failed");
    Ok(())
}

/// The suite's program, with the library to test.
struct Suite {
    binary: Binary,
    library: PathBuf,
}

impl Suite {
    fn build(library: Option<&Path>) -> Result<Suite> {
        let cargo = || {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.current_dir(root()).stderr(Stdio::inherit());
            cargo
        };
        let library = match library {
            Some(library) => std::path::absolute(library)?,
            None => {
                let built = cargo().args(["build", "-q", "--release", "-p", "neap-preload"]).status();
                ensure!(built.context("cannot start cargo")?.success(), "the library does not build");
                root().join("target/release/libneap.so")
            }
        };
        let args = ["test", "-q", "-p", "neap-tests", "--test", "trust", "--no-run", "--message-format=json"];
        let built = cargo().args(args).output().context("cannot start cargo")?;
        ensure!(built.status.success(), "the tests do not build");
        let mut listed = binaries::listed(&String::from_utf8_lossy(&built.stdout), &root())?;
        let binary = listed.pop().context("cargo names no test program")?;
        Ok(Suite { binary, library })
    }

    fn command(&self) -> Command {
        let mut command = self.binary.command();
        command.env("NEAP_TEST_LIB", &self.library);
        command
    }

    fn names(&self, args: &Args) -> Result<Vec<String>> {
        let listed =
            self.command().arg("--list").stderr(Stdio::inherit()).output().context("cannot start the tests")?;
        ensure!(listed.status.success(), "the tests cannot be listed");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let wanted = |name: &str| {
            name.contains(&args.only)
                && !name.starts_with("table::")
                && !(args.without_delays && name.ends_with("::delayed"))
        };
        let names = text.lines().filter_map(|line| line.strip_suffix(": test")).filter(|name| wanted(name));
        let names: Vec<_> = names.map(str::to_owned).collect();
        ensure!(!names.is_empty(), "no program has {:?} in its name", args.only);
        Ok(names)
    }

    /// Runs one test `times` times; returns how often it failed.
    fn runs(&self, name: &str, times: u32) -> Result<u32> {
        let mut tally = Tally::default();
        let mut output = String::new();
        for _ in 0..times {
            self.once(name, &mut tally, &mut output)?;
        }
        let each = tally.took.as_secs_f64() / f64::from(times.max(1));
        println!("{name:48} {:>6} {:>6} {:>7} {each:>8.1}", tally.passed, tally.failed, tally.skipped);
        if tally.failed > 0 {
            let dir = root().join("target/torture");
            std::fs::create_dir_all(&dir)?;
            let file = dir.join(format!("fault-{}.txt", name.replace("::", "-")));
            std::fs::write(&file, output)?;
            println!("  output of the first failure: {}", file.display());
        }
        Ok(tally.failed)
    }

    fn once(&self, name: &str, tally: &mut Tally, output: &mut String) -> Result<()> {
        let start = Instant::now();
        let mut command = self.command();
        let done = command.args(["--include-ignored", "--exact", name]).output().context("cannot start the tests")?;
        tally.took += start.elapsed();
        let text = String::from_utf8_lossy(&done.stdout);
        let notes = String::from_utf8_lossy(&done.stderr);
        if !done.status.success() {
            tally.failed += 1;
            if output.is_empty() {
                *output = format!("{text}{notes}");
            }
        } else if notes.contains("SKIPPED") {
            tally.skipped += 1;
        } else {
            tally.passed += 1;
        }
        Ok(())
    }
}
