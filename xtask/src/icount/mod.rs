//! `cargo xtask icount`: instructions per operation, counted by callgrind.
//!
//! Each kind of operation (lab/icount/ops.c) is run with two counts; the difference of the
//! instructions over the difference of the counts is the cost of one operation, the loop and the
//! PLT included. The figures repeat to a fraction of a percent, so a regression can be seen.

mod baseline;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::allocators::{self, Allocator, NEAP};
use crate::toolchain::{available, cc, is_stale, need, root, run};

/// Arguments of `cargo xtask icount`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask icount                          neap, glibc and all peers that are built\n  \
    cargo xtask icount --allocators neap,rpmalloc --ops a,b\n  \
    cargo xtask icount --check                  compare neap with lab/icount/baseline.csv\n  \
    cargo xtask icount --bless                  make today's figures of neap the baseline")]
pub struct Args {
    /// Allocators by name, or NAME=PATH for any preload library [default: all that are built]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    allocators: Vec<String>,
    /// Kinds of operations by letter [default: all]
    #[arg(long, value_delimiter = ',', value_name = "LETTERS")]
    ops: Vec<char>,
    /// Compare neap with the committed baseline; fail where it needs over 1 % more
    #[arg(long)]
    check: bool,
    /// Write neap's figures as the new baseline
    #[arg(long, conflicts_with = "check")]
    bless: bool,
}

/// One kind of operation.
struct Op {
    /// What ops.c is called with.
    letter: char,
    /// For the table.
    title: &'static str,
    /// The two counts.
    counts: (u64, u64),
}

/// The kinds of ops.c. Counts are multiples of 86,000 for h and of 1,000 for d and g.
const OPS: [Op; 12] = [
    op('a', "malloc(64) pair"),
    op('b', "malloc(16..1039) pair"),
    op('c', "calloc(64) pair"),
    op('d', "1,000 mallocs, 1,000 frees"),
    op('e', "replace in 1,000 slots, 64 B"),
    op('f', "replace in 1,000 slots, mixed"),
    op('g', "remote free"),
    Op {
        letter: 'h',
        title: "realloc growth",
        counts: (86_000, 258_000),
    },
    op('i', "calloc(4 KiB) pair"),
    op('j', "malloc(4 KiB) pair"),
    op('k', "malloc(32 KiB) pair"),
    op('l', "malloc(256 KiB) pair"),
];

const fn op(letter: char, title: &'static str) -> Op {
    Op {
        letter,
        title,
        counts: (100_000, 300_000),
    }
}

/// One measured figure; a row of `icount.csv`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Which allocator.
    pub allocator: String,
    /// Its version.
    pub version: String,
    /// Letter of the operation.
    pub op: char,
    /// What the operation is.
    pub title: String,
    /// Instructions per operation; none where the allocator failed.
    pub instructions: Option<f64>,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    if !available("valgrind") {
        eprintln!("SKIPPED: valgrind is not installed, no instructions were counted");
        eprintln!("  remedy: install it (Debian: apt install valgrind)");
        return Ok(());
    }
    need(
        &cc(),
        "install a compiler (Debian: apt install build-essential)",
    )?;
    let ops = chosen_ops(&args.ops)?;
    let mut names = args.allocators.clone();
    if names.is_empty() && (args.check || args.bless) {
        names.push(NEAP.into());
    }
    let allocators = allocators::resolve(&names)?;
    let program = build()?;
    let mut counts = Vec::new();
    for allocator in &allocators {
        for op in &ops {
            eprint!("{} {}: ", allocator.name, op.title);
            let count = measure(&program, allocator, op);
            match &count {
                Ok(instructions) => eprintln!("{instructions:.1}"),
                Err(error) => eprintln!("FAILED: {error:#}"),
            }
            counts.push(Count {
                allocator: allocator.name.clone(),
                version: allocator.version.clone(),
                op: op.letter,
                title: op.title.into(),
                instructions: count.ok(),
            });
        }
    }
    if args.check {
        return baseline::check(&counts);
    }
    if args.bless {
        return baseline::write(&counts);
    }
    let partial = !args.ops.is_empty() || !args.allocators.is_empty();
    if !partial {
        let dir = root().join("lab/results");
        fs::create_dir_all(&dir)?;
        write_csv(&dir.join("icount.csv"), &counts)?;
        eprintln!("written: lab/results/icount.csv");
    }
    print!("{}", markdown(&counts, &allocators, &ops));
    Ok(())
}

fn chosen_ops(letters: &[char]) -> Result<Vec<&'static Op>> {
    for letter in letters {
        if !OPS.iter().any(|op| op.letter == *letter) {
            bail!("no operation is called `{letter}`; they go from a to l");
        }
    }
    let chosen = |op: &&Op| letters.is_empty() || letters.contains(&op.letter);
    Ok(OPS.iter().filter(chosen).collect())
}

/// Builds ops.c into target/lab.
fn build() -> Result<PathBuf> {
    let source = root().join("lab/icount/ops.c");
    let output = root().join("target/lab/ops");
    fs::create_dir_all(root().join("target/lab"))?;
    if is_stale(&output, &[&source]) {
        run(Command::new(cc())
            .args(["-O2", "-fno-builtin", "-pthread"])
            .arg(&source)
            .arg("-o")
            .arg(&output))?;
    }
    Ok(output)
}

/// Instructions per operation.
fn measure(program: &Path, allocator: &Allocator, op: &Op) -> Result<f64> {
    let (few, many) = op.counts;
    let less = collect(program, allocator, op.letter, few)?;
    let more = collect(program, allocator, op.letter, many)?;
    Ok((more as f64 - less as f64) / (many - few) as f64)
}

/// Instructions of one whole run.
fn collect(program: &Path, allocator: &Allocator, letter: char, count: u64) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([letter.to_string(), count.to_string()])
        .env_remove("LD_PRELOAD");
    for variable in allocator.variables() {
        if let Some((name, value)) = variable.split_once('=') {
            command.env(name, value);
        }
    }
    let out = command.output().context("cannot start valgrind")?;
    let stderr = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        let last = stderr.lines().last().unwrap_or_default();
        bail!("{} under callgrind; its last line: {last}", out.status);
    }
    parse_collected(&stderr).context("callgrind printed no line `Collected : N`")
}

/// Reads `==123== Collected : 456`.
fn parse_collected(stderr: &str) -> Option<u64> {
    let line = stderr.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// Writes counts as CSV.
fn write_csv(path: &Path, counts: &[Count]) -> Result<()> {
    let mut writer =
        csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
    for count in counts {
        writer.serialize(count)?;
    }
    writer.flush()?;
    Ok(())
}

/// Operations down, allocators across.
fn markdown(counts: &[Count], allocators: &[Allocator], ops: &[&Op]) -> String {
    let names: Vec<&str> = allocators.iter().map(|a| a.name.as_str()).collect();
    let mut text = format!("| instructions per operation | {} |\n", names.join(" | "));
    text.push_str(&format!("|---|{}\n", "---:|".repeat(names.len())));
    for op in ops {
        text.push_str(&format!("| {}: {} |", op.letter, op.title));
        for name in &names {
            let count = counts
                .iter()
                .find(|c| c.op == op.letter && c.allocator == *name);
            match count.and_then(|c| c.instructions) {
                Some(instructions) => text.push_str(&format!(" {instructions:.1} |")),
                None => text.push_str(" **failed** |"),
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a change of callgrind's words that turns every count into a failure.
    #[test]
    fn callgrinds_total_is_read() {
        let stderr = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n";
        assert_eq!(parse_collected(stderr), Some(123_456));
        assert_eq!(parse_collected("==7== nothing"), None);
    }

    // Would catch two rows of the table that run the same loop.
    #[test]
    fn letters_are_unique_and_counts_grow() {
        for (index, op) in OPS.iter().enumerate() {
            assert!(op.counts.0 < op.counts.1, "{}", op.letter);
            assert!(OPS[..index].iter().all(|other| other.letter != op.letter));
        }
    }
}
