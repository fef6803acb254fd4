//! `cargo xtask faults`: runs each program of tests/trust.rs many times in a row, with and without delays, and prints a table.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

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
    library: Option<std::path::PathBuf>,
    /// Leave out the runs under delays of all system calls
    #[arg(long)]
    without_delays: bool,
}

/// What became of the runs of one test.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
    took: Duration,
}

/// Runs the command: one cargo test for each program and time, as the tests are built and judged there.
pub fn main(args: Args) -> Result<()> {
    let names = names(&args)?;
    let mut worst = 0;
    println!("{:48} {:>6} {:>6} {:>7} {:>8}", "program", "passed", "failed", "skipped", "seconds");
    for name in names {
        let mut tally = Tally::default();
        let mut output = String::new();
        for _ in 0..args.times {
            once(&args, &name, &mut tally, &mut output)?;
        }
        let each = tally.took.as_secs_f64() / f64::from(args.times.max(1));
        println!("{name:48} {:>6} {:>6} {:>7} {each:>8.1}", tally.passed, tally.failed, tally.skipped);
        if tally.failed > 0 {
            let dir = root().join("target/torture");
            std::fs::create_dir_all(&dir)?;
            let file = dir.join(format!("fault-{}.txt", name.replace("::", "-")));
            std::fs::write(&file, output)?;
            println!("  output of the first failure: {}", file.display());
        }
        worst += tally.failed;
    }
    ensure!(worst == 0, "{worst} runs failed");
    Ok(())
}

/// The suite's command, with the library to test.
fn suite(args: &Args) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["test", "-q", "-p", "neap-tests", "--test", "trust", "--"]);
    if let Some(library) = &args.library {
        cargo.env("NEAP_TEST_LIB", std::path::absolute(library).unwrap_or_else(|_| library.clone()));
    }
    cargo
}

fn names(args: &Args) -> Result<Vec<String>> {
    let listed = suite(args).arg("--list").stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(listed.status.success(), "the tests do not build");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let wanted = |name: &str| {
        name.contains(&args.only)
            && !name.starts_with("table::")
            && !(args.without_delays && name.ends_with("::delayed"))
    };
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).filter(|n| wanted(n)).map(str::to_owned).collect())
}

fn once(args: &Args, name: &str, tally: &mut Tally, output: &mut String) -> Result<()> {
    let start = Instant::now();
    let done = suite(args).args(["--include-ignored", "--exact", name]).output().context("cannot start cargo")?;
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
