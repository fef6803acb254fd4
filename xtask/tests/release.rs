//! The command of `cargo xtask release` is the same with another layout, until the next build.

use std::path::Path;
use std::process::Command;

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Catches a recipe that no longer links or saves nothing, a command that is not linked again, and one that stays when
/// the usual one is built.
#[test]
fn the_command_is_laid_out() {
    let linked = Command::new("ld.lld").arg("--version").output();
    if cfg!(not(target_arch = "x86_64")) || !linked.is_ok_and(|output| output.status.success()) {
        return eprintln!("SKIPPED the_command_is_laid_out: needs x86-64 and lld");
    }
    let product = root().join("target/release/neap");
    let read = || std::fs::read(&product).expect("cargo builds it");
    let build = || ran(&mut cargo(&["build", "--release", "--package", "neap-cli"]));
    build();
    let usual = read();
    let report = ran(Command::new(env!("CARGO_BIN_EXE_xtask")).arg("release"));
    let laid = read();
    assert!(usual != laid, "the command was not linked again:\n{report}");
    let less = |measure: &str| report.lines().any(|line| line.starts_with(measure) && line.ends_with("  less"));
    assert!(less("pages of code touched") || less("faults, warm"), "{report}");
    assert!(report.contains(" 0 lost\n"), "{report}");
    let version = format!("neap {}\n", env!("CARGO_PKG_VERSION"));
    assert!(ran(Command::new(&product).arg("--version")).starts_with(version.trim_end()), "{report}");
    build();
    assert!(usual == read(), "cargo build --release does not put the usual command back");
}
