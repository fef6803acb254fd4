//! The committed figures of neap, and the comparison with them.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::figure::{Count, write_csv};
use crate::place::root;
use neap_results::NEAP;

/// A figure may exceed the baseline by this factor before it counts as a regression.
const TOLERANCE: f64 = 1.01;

fn path() -> PathBuf {
    root().join("lab/icount/baseline.csv")
}

/// neap's rows, all of them measured.
fn of_neap(counts: &[Count]) -> Result<Vec<Count>> {
    let rows: Vec<Count> = counts.iter().filter(|c| c.allocator == NEAP).cloned().collect();
    if rows.is_empty() {
        bail!("neap was not measured; leave --allocators out or name neap");
    }
    if let Some(row) = rows.iter().find(|row| row.instructions.is_none()) {
        bail!("neap failed at {}: {}", row.op, row.title);
    }
    Ok(rows)
}

/// Makes neap's figures the baseline.
pub fn write(counts: &[Count]) -> Result<()> {
    write_csv(&path(), &of_neap(counts)?)?;
    eprintln!("written: lab/icount/baseline.csv");
    Ok(())
}

/// Compares neap's figures with the baseline; fails if one exceeds the tolerance.
pub fn check(counts: &[Count]) -> Result<()> {
    let mut reader = csv::Reader::from_path(path())
        .context("no baseline; write one with `cargo xtask icount --bless` and commit it")?;
    let rows: Result<Vec<Count>, csv::Error> = reader.deserialize().collect();
    let baseline = rows.context("lab/icount/baseline.csv is damaged")?;
    let verdicts = compare(&of_neap(counts)?, &baseline);
    for verdict in &verdicts {
        println!("{}", verdict.line);
    }
    let worse = verdicts.iter().filter(|verdict| verdict.worse).count();
    if worse > 0 {
        bail!(
            "{worse} of {} operations need more instructions than the baseline allows; \
             where that is meant, run `cargo xtask icount --bless` and commit the baseline",
            verdicts.len()
        );
    }
    Ok(())
}

/// The result of the comparison for one operation.
struct Verdict {
    line: String,
    worse: bool,
}

fn compare(now: &[Count], baseline: &[Count]) -> Vec<Verdict> {
    let verdict = |count: &Count| {
        let is = count.instructions.unwrap_or(f64::INFINITY);
        let old = baseline.iter().find(|row| row.op == count.op);
        let Some(was) = old.and_then(|row| row.instructions) else {
            let line = format!("{}: {:.1}, not in the baseline", count.title, is);
            return Verdict { line, worse: false };
        };
        let worse = is > was * TOLERANCE;
        let change = 100.0 * (is / was - 1.0);
        let word = if worse { "  REGRESSION" } else { "" };
        let line = format!("{}: {is:.1}, baseline {was:.1} ({change:+.1} %){word}", count.title);
        Verdict { line, worse }
    };
    now.iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(op: char, instructions: f64) -> Count {
        Count {
            allocator: NEAP.into(),
            version: "test".into(),
            op,
            title: "a pair".into(),
            method: "callgrind".into(),
            instructions: Some(instructions),
        }
    }

    // Would catch a check that lets a regression pass, or that fails on noise.
    #[test]
    fn only_more_than_a_percent_is_a_regression() {
        let baseline = [count('a', 50.0)];
        let worse = |now: f64| compare(&[count('a', now)], &baseline)[0].worse;
        assert!(!worse(50.4));
        assert!(worse(50.6));
        assert!(!worse(40.0));
        assert!(!compare(&[count('z', 9.0)], &baseline)[0].worse);
    }
}
