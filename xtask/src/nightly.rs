//! `cargo xtask miri`, `asan` and `tsan`: the core under tools of the nightly toolchain.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::place::root;

/// The only processor and system that these tools are used on.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Arguments of `cargo xtask miri`.
#[derive(clap::Args)]
pub struct MiriArgs {
    /// Schedules that each test of threads is run with
    #[arg(long, default_value_t = 16)]
    seeds: u32,
}

/// Arguments of the sanitizers.
#[derive(clap::Args)]
pub struct SanitizerArgs {
    /// Test programs of crates/coretest [default: all for asan, those with threads for tsan]
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
}

/// cargo of the nightly toolchain, whose builds go to `target/FOLDER`.
fn nightly(folder: &str, args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    // The toolchain that runs this task names itself in the environment.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    command.arg("+nightly").args(args).arg("--target-dir").arg(root().join("target").join(folder));
    command.current_dir(root());
    command
}

fn run(command: &mut Command, install: &str) -> Result<()> {
    let status = command.status().context("cannot start cargo")?;
    ensure!(
        status.success(),
        "it failed; if something is missing: rustup toolchain install nightly --component {install}"
    );
    Ok(())
}

/// Miri: the core's unit tests, with strict provenance; then histories of calls, each with many schedules. Arenas turn
/// addresses into pointers, so those run with exposed provenance.
pub fn miri(args: MiriArgs) -> Result<()> {
    let mut units = nightly("miri", &["miri", "test", "-p", "neap-core", "--lib"]);
    // Behind the others: loops of a million, which take Miri many minutes.
    units.args(["--", "--skip", "the_first_that_is_due", "--skip", "lists_are_ordered"]);
    run(units.env("MIRIFLAGS", "-Zmiri-strict-provenance"), "miri,rust-src")?;
    let mut threads = nightly("miri", &["miri", "test", "-p", "neap-coretest", "--test", "miri"]);
    let flags = format!("-Zmiri-permissive-provenance -Zmiri-many-seeds=0..{}", args.seeds);
    run(threads.env("MIRIFLAGS", flags), "miri,rust-src")
}

/// AddressSanitizer: what the core does outside of its arenas.
pub fn asan(args: SanitizerArgs) -> Result<()> {
    let mut command = nightly("asan", &["test", "-p", "neap-coretest", "--profile", "models", "--target", TARGET]);
    command.args(args.tests.iter().flat_map(|test| ["--test", test]));
    run(command.env("RUSTFLAGS", "-Zsanitizer=address"), "rust-src")
}

/// ThreadSanitizer: data races of real threads. It does not know of membarrier, and reports what `sync::peek` reads. The standard library is built with it, as its locks order accesses.
pub fn tsan(args: SanitizerArgs) -> Result<()> {
    let tests = if args.tests.is_empty() { vec!["threads".to_owned()] } else { args.tests };
    let mut command =
        nightly("tsan", &["test", "-p", "neap-coretest", "--profile", "models", "--target", TARGET, "-Zbuild-std"]);
    command.args(tests.iter().flat_map(|test| ["--test", test]));
    run(command.env("RUSTFLAGS", "-Zsanitizer=thread"), "rust-src")
}
