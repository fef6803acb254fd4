//! `cargo xtask ci`: every check that CI runs, in the order in which they fail fastest.

use crate::place::root;
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use std::process::Command;
use std::time::Instant;

/// Options of `cargo xtask ci`.
#[derive(ClapArgs)]
pub struct Args {
    /// Leave out the tests of whole programs (databases, browsers, compilers) and the lab: minutes less
    #[arg(long)]
    quick: bool,
}

/// One check: its name, and the arguments of cargo.
struct Step {
    name: &'static str,
    args: &'static [&'static str],
    /// Additional environment.
    env: &'static [(&'static str, &'static str)],
}

const fn step(name: &'static str, args: &'static [&'static str]) -> Step {
    Step { name, args, env: &[] }
}

/// Tests of whole programs are a step of their own, which `--quick` leaves out.
const PROGRAMS: &str = "whole programs";

const STEPS: &[Step] = &[
    step("format", &["fmt", "--all", "--check"]),
    step("the product", &["build", "--release"]),
    step("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    step("tests", &["test", "--workspace", "--exclude", "neap-tests"]),
    step("pictures", &["test", "-p", "neap-report", "--features", "png"]),
    Step {
        name: "models",
        args: &["test", "-p", "neap-loom", "--release", "--target-dir", "target/loom"],
        env: &[("RUSTFLAGS", "--cfg loom")],
    },
    Step {
        name: "documentation",
        // The crates that others use. (`neap-preload` has the library name of `neap`, and no interface in Rust.)
        args: &[
            "doc",
            "--no-deps",
            "-p",
            "neap",
            "-p",
            "neap-core",
            "-p",
            "neap-sys",
            "-p",
            "neap-counters",
            "-p",
            "neap-observe",
            "-p",
            "neap-options",
            "-p",
            "neap-control",
            "-p",
            "neap-trace",
            "-p",
            "neap-symbols",
            "-p",
            "neap-results",
            "-p",
            "neap-report",
            "-p",
            "neap-lab",
        ],
        env: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    step(
        "surface, life, interpose, lives, signals, purge, counters, options, controls, misuse, harden, pagein, formats, report",
        &[
            "test",
            "-p",
            "neap-tests",
            "--test",
            "surface",
            "--test",
            "life",
            "--test",
            "interpose",
            "--test",
            "lives",
            "--test",
            "signals",
            "--test",
            "purge",
            "--test",
            "counters",
            "--test",
            "options",
            "--test",
            "controls",
            "--test",
            "misuse",
            "--test",
            "harden",
            "--test",
            "pagein",
            "--test",
            "formats",
            "--test",
            "report",
        ],
    ),
    step(PROGRAMS, &["test", "-p", "neap-tests", "--test", "programs"]),
];

/// Runs `cargo xtask ci`: all steps, or up to the first that fails.
pub fn main(args: Args) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for step in STEPS {
        if args.quick && step.name == PROGRAMS {
            println!("ci: {} left out (--quick)", step.name);
            continue;
        }
        println!("ci: {} (cargo {})", step.name, step.args.join(" "));
        let start = Instant::now();
        let status = Command::new(&cargo)
            .args(step.args)
            .envs(step.env.iter().copied())
            .current_dir(root())
            .status()
            .with_context(|| format!("cannot start cargo for the step \"{}\"", step.name))?;
        ensure!(status.success(), "the step \"{}\" failed; to repeat it: cargo {}", step.name, step.args.join(" "));
        println!("ci: {} passed in {:.0} s", step.name, start.elapsed().as_secs_f64());
    }
    lab(args.quick)?;
    println!("ci: all passed");
    Ok(())
}

/// The lab's experiments, quickly: each verdict that must hold does.
fn lab(left_out: bool) -> Result<()> {
    if left_out {
        println!("ci: the lab left out (--quick)");
        return Ok(());
    }
    println!("ci: the lab (cargo xtask experiments --quick --check)");
    let start = Instant::now();
    crate::experiments::quick_check().context("the step \"the lab\" failed")?;
    println!("ci: the lab passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
