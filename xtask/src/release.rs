//! `cargo xtask release`: the command with a layout by `neap order`, so that its start touches fewer OS pages.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;

use crate::place::root;

/// The starts that determine the layout.
const STARTS: [&[&str]; 4] =
    [&["--version"], &["options"], &["run", "--", "true"], &["pagein", "-o", "/dev/null", "--", "true"]];

/// Options of `cargo xtask release`.
#[derive(ClapArgs)]
#[command(
    after_help = "The linker must be lld, as it is with Rust 1.90 and newer on x86-64. `cargo build --release`\n\
                        restores the command with the linker's own layout."
)]
pub struct Args {}

/// Runs `cargo xtask release`.
pub fn main(_: Args) -> Result<()> {
    lay_out()
}

/// Builds the command, traces its starts, links it again, and compares both.
pub fn lay_out() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let release = root().join("target/release/neap");
    let folder = root().join("target/order");
    let [tool, before, trace, new] = ["neap", "neap.before", "trace", "order"].map(|name| folder.join(name));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    run(Command::new(&cargo).args(["build", "--release", "--package", "neap-cli"]))?;
    // Two copies: the file of a running program stays in the page cache, so its cold starts would not be cold.
    for copy in [&tool, &before] {
        fs::copy(&release, copy).with_context(|| format!("cannot copy {}", release.display()))?;
    }

    let neap = |action: &str| {
        let mut command = Command::new(&tool);
        command.args(["order", action]);
        command
    };
    let traces: Vec<_> = (0..STARTS.len()).map(|start| folder.join(format!("trace-{start}"))).collect();
    for (path, start) in traces.iter().zip(STARTS) {
        run(neap("trace").args(["--data", "-o"]).arg(path).arg("--").arg(&before).args(start).stdout(Stdio::null()))?;
    }
    run(neap("merge").arg("-o").arg(&trace).args(&traces))?;
    run(neap("emit").args(["--for", "lld", "-o"]).arg(&new).arg(&trace).arg(&before))?;
    // cargo links again only if the name of the file differs.
    let mut hash = DefaultHasher::new();
    fs::read(&new).context("neap order emit wrote nothing")?.hash(&mut hash);
    let order = folder.join(format!("order-{:016x}", hash.finish()));
    fs::rename(&new, &order)?;

    run(Command::new(&cargo)
        .args(["rustc", "--release", "--package", "neap-cli", "--bin", "neap", "--"])
        .args(link_arguments(&order)))?;
    run(neap("verify")
        .arg("--before")
        .arg(&before)
        .arg("--after")
        .arg(&release)
        .arg("--trace")
        .arg(&trace)
        .args(["--", "--version"]))
}

fn link_arguments(order: &Path) -> [String; 4] {
    let ordering = format!("link-arg=-Wl,--symbol-ordering-file={}", order.display());
    ["-C".to_owned(), ordering, "-C".to_owned(), "link-arg=-Wl,--no-warn-symbol-ordering".to_owned()]
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.current_dir(root()).status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}
