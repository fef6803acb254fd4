//! `cargo xtask miri`, `asan` and `tsan`: the core under tools of the nightly toolchain.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::place::root;

/// The only target on which these tools are used.
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
    // The environment names the toolchain that runs this task.
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

/// Miri: the core's unit tests, then histories of calls, each with many schedules. Arenas turn addresses into pointers,
/// so the language's provenance is used, not the strict one.
pub fn miri(args: MiriArgs) -> Result<()> {
    const PROVENANCE: &str = "-Zmiri-permissive-provenance";
    let mut units = nightly("miri", &["miri", "test", "-p", "neap-core", "--lib"]);
    run(units.env("MIRIFLAGS", PROVENANCE), "miri,rust-src")?;
    let mut threads = nightly("miri", &["miri", "test", "-p", "neap-coretest", "--test", "miri"]);
    let flags = format!("{PROVENANCE} -Zmiri-many-seeds=0..{}", args.seeds);
    run(threads.env("MIRIFLAGS", flags), "miri,rust-src")
}

/// AddressSanitizer: finds faults of the core outside of its arenas.
pub fn asan(args: SanitizerArgs) -> Result<()> {
    let mut command = sanitized("address", &args.tests, &[]);
    run(&mut command, "rust-src")
}

/// ThreadSanitizer: finds data races of real threads. The standard library is built with it, because its locks order
/// accesses.
pub fn tsan(args: SanitizerArgs) -> Result<()> {
    let tests = if args.tests.is_empty() { vec!["threads".to_owned()] } else { args.tests };
    let mut command = sanitized("thread", &tests, &["-Zbuild-std"]);
    // Some reads are races by definition (`sync::peek` and similar ones): the file says which, and why.
    let reads = root().join("xtask/tsan.supp");
    run(command.env("TSAN_OPTIONS", format!("suppressions={} halt_on_error=1", reads.display())), "rust-src")
}

/// `cargo test` of test programs of crates/coretest with a sanitizer.
fn sanitized(sanitizer: &str, tests: &[String], more: &[&str]) -> Command {
    let mut command = nightly(sanitizer, &["test", "-p", "neap-coretest", "--profile", "models", "--target", TARGET]);
    command.args(more).args(tests.iter().flat_map(|test| ["--test", test]));
    command.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}")).env("NEAP_TEST_SANITIZER", sanitizer);
    // Debug information, so that reports have lines. Tests unwind, so the standard library must unwind too.
    command.env("CARGO_PROFILE_MODELS_DEBUG", "line-tables-only").env("CARGO_PROFILE_MODELS_PANIC", "unwind");
    command
}
