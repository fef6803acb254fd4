//! Counts the instructions of one operation under one allocator.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::figure::{Count, Op};
use crate::place::root;
use neap_lab::allocators::Allocator;
use neap_lab::toolchain::{cc, is_stale, run};
use neap_results::NEAP;

/// Names of the two ways to count, as in the CSV.
pub const CALLGRIND: &str = "callgrind";
/// The slow way, for a peer that does not start under valgrind.
pub const SINGLE_STEP: &str = "single-step";

/// Stepping does one in this many operations, because each step is a trap into the kernel.
const STEPPED_PART: u64 = 50;

/// The operation in which memory waits to go back.
const REMOTE_FREE: char = 'g';

/// The two programs of lab/icount, built.
pub struct Programs {
    /// The loops.
    ops: PathBuf,
    /// The single-stepper.
    step: PathBuf,
}

impl Programs {
    /// Builds both, unless they are up to date.
    pub fn build() -> Result<Programs> {
        fs::create_dir_all(root().join("target/lab"))?;
        Ok(Programs { ops: compile("ops")?, step: compile("step")? })
    }

    /// Counts one operation under one allocator, with progress on stderr.
    pub fn count(&self, allocator: &Allocator, op: &Op) -> Count {
        eprint!("{} {}: ", allocator.name, op.title);
        let mut method = CALLGRIND;
        let mut result = per_operation(op.counts, |n| self.callgrind(allocator, op.letter, n));
        // neap itself must run under valgrind; a peer that does not is stepped.
        if let (Err(error), true) = (&result, allocator.name != NEAP) {
            eprint!("{error:#}; single-stepping ... ");
            method = SINGLE_STEP;
            let counts = (op.counts.0 / STEPPED_PART, op.counts.1 / STEPPED_PART);
            result = per_operation(counts, |n| self.single_step(allocator, op.letter, n));
        }
        match &result {
            Ok(instructions) => eprintln!("{instructions:.1}"),
            Err(error) => eprintln!("FAILED: {error:#}"),
        }
        Count {
            allocator: allocator.name.clone(),
            version: allocator.version.clone(),
            op: op.letter,
            title: op.title.into(),
            method: method.into(),
            instructions: result.ok(),
        }
    }

    /// Instructions of one whole run under callgrind.
    fn callgrind(&self, allocator: &Allocator, letter: char, n: u64) -> Result<u64> {
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(&self.ops)
            .args([letter.to_string(), n.to_string()])
            .env_remove("LD_PRELOAD");
        if letter == REMOTE_FREE {
            // Without a helper thread: its share depends on how long a run takes.
            command.env("NEAP_PURGE", "never");
        }
        for variable in allocator.variables() {
            if let Some((name, value)) = variable.split_once('=') {
                command.env(name, value);
            }
        }
        collected(&mut command)
    }

    /// Instructions of one whole run, stepped one by one.
    fn single_step(&self, allocator: &Allocator, letter: char, n: u64) -> Result<u64> {
        let mut command = Command::new(&self.step);
        command
            .args(allocator.variables())
            .arg("--")
            .arg(&self.ops)
            .args([letter.to_string(), n.to_string()])
            .env_remove("LD_PRELOAD");
        collected(&mut command)
    }
}

/// Builds one program of lab/icount into target/lab.
fn compile(name: &str) -> Result<PathBuf> {
    let source = root().join("lab/icount").join(name).with_extension("c");
    let output = root().join("target/lab").join(name);
    if is_stale(&output, &[&source]) {
        run(Command::new(cc()).args(["-O2", "-fno-builtin", "-pthread"]).arg(&source).arg("-o").arg(&output))?;
    }
    Ok(output)
}

/// Instructions of one operation, from two runs with different counts.
fn per_operation(counts: (u64, u64), total: impl Fn(u64) -> Result<u64>) -> Result<f64> {
    let (few, many) = counts;
    let less = total(few)?;
    let more = total(many)?;
    Ok((more as f64 - less as f64) / (many - few) as f64)
}

/// Runs a counting command to its end and reads its total.
fn collected(command: &mut Command) -> Result<u64> {
    let program = command.get_program().to_owned();
    let name = PathBuf::from(program);
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let out = command.output().with_context(|| format!("cannot start {name}"))?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        bail!("{} under {name}", out.status);
    }
    parse_collected(&stderr).with_context(|| format!("{name} printed no line `Collected : N`"))
}

/// Reads `==123== Collected : 456`.
fn parse_collected(stderr: &str) -> Option<u64> {
    let line = stderr.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_collected;

    // Would catch a format of callgrind whose count is not found.
    #[test]
    fn callgrinds_total_is_read() {
        let stderr = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n";
        assert_eq!(parse_collected(stderr), Some(123_456));
        assert_eq!(parse_collected("==7== nothing"), None);
    }
}
