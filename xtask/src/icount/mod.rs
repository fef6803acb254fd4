//! `cargo xtask icount`: instructions per operation, counted by callgrind.
//!
//! Each kind of operation (lab/icount/ops.c) is run with two counts; the difference of the instructions divided by the
//! difference of the counts is the cost of one operation, including the loop and the PLT. The figures repeat to a
//! fraction of a percent, so regressions are visible.
//!
//! A peer that does not start under valgrind is single-stepped instead (lab/icount/step.c). That is much slower, so it
//! has fewer operations, and is marked in the table.

mod baseline;
mod count;
mod figure;

use std::fs;

use anyhow::{Result, bail};

use crate::place::root;
use count::{CALLGRIND, Programs, SINGLE_STEP};
use figure::{Count, Op, write_csv};
use neap_lab::allocators::Allocator;
use neap_lab::toolchain::{available, cc, need};
use neap_results::NEAP;

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

/// The kinds of ops.c. Counts are multiples of 1,000 for d and g, and of 86 for h, so that both runs end at the same
/// point of their cycle. Large blocks cost much more each, so they have lower counts.
const OPS: [Op; 14] = [
    op('a', "malloc(64) pair", 100_000),
    op('b', "malloc(16..1039) pair", 100_000),
    op('c', "calloc(64) pair", 100_000),
    op('d', "1,000 mallocs, 1,000 frees", 100_000),
    op('e', "replace in 1,000 slots, 64 B", 100_000),
    op('f', "replace in 1,000 slots, mixed", 100_000),
    op('g', "remote free", 100_000),
    op('h', "realloc growth", 43_000),
    op('i', "calloc(4 KiB) pair", 20_000),
    op('j', "malloc(4 KiB) pair", 20_000),
    op('k', "malloc(32 KiB) pair", 10_000),
    op('l', "malloc(256 KiB) pair", 5_000),
    op('m', "malloc(64) pair, sampled", 100_000),
    op('n', "malloc_usable_size", 100_000),
];

const fn op(letter: char, title: &'static str, count: u64) -> Op {
    Op { letter, title, counts: (count, 3 * count) }
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    if !available("valgrind") {
        eprintln!("SKIPPED: valgrind is not installed, no instructions were counted");
        eprintln!("  remedy: install it (Debian: apt install valgrind)");
        return Ok(());
    }
    need(&cc(), "install a compiler (Debian: apt install build-essential)")?;
    let ops = chosen_ops(&args.ops)?;
    let mut names = args.allocators.clone();
    if names.is_empty() && (args.check || args.bless) {
        names.push(NEAP.into());
    }
    let allocators = crate::place::resolve(&names)?;
    let programs = Programs::build()?;
    let mut counts = Vec::new();
    for allocator in &allocators {
        for op in &ops {
            counts.push(programs.count(allocator, op));
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
            let known: Vec<String> = OPS.iter().map(|op| op.letter.to_string()).collect();
            bail!("no operation is called `{letter}`; there are {}", known.join(", "));
        }
    }
    let chosen = |op: &&Op| letters.is_empty() || letters.contains(&op.letter);
    Ok(OPS.iter().filter(chosen).collect())
}

/// Operations down, allocators across.
fn markdown(counts: &[Count], allocators: &[Allocator], ops: &[&Op]) -> String {
    let names: Vec<&str> = allocators.iter().map(|a| a.name.as_str()).collect();
    let mut text = format!("| instructions per operation | {} |\n", names.join(" | "));
    text.push_str(&format!("|---|{}\n", "---:|".repeat(names.len())));
    for op in ops {
        text.push_str(&format!("| {}: {} |", op.letter, op.title));
        for name in &names {
            let count = counts.iter().find(|c| c.op == op.letter && c.allocator == *name);
            text.push_str(&match count.map(|c| (c.instructions, c.method.as_str())) {
                Some((Some(instructions), CALLGRIND)) => format!(" {instructions:.1} |"),
                Some((Some(instructions), _)) => format!(" {instructions:.1}* |"),
                _ => " **failed** |".into(),
            });
        }
        text.push('\n');
    }
    if counts.iter().any(|count| count.method == SINGLE_STEP) {
        text.push_str("\n\\* does not start under valgrind; single-stepped.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a list of operations without the last one.
    #[test]
    fn all_operations_are_named() {
        assert!(chosen_ops(&['n']).is_ok());
        let error = chosen_ops(&['z']).err().unwrap().to_string();
        assert!(error.contains("`z`; there are a, b, ") && error.ends_with(", n"), "{error}");
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
