//! The raw data of a benchmark: one row of `runs.csv` per run.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One run of one workload under one allocator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which workload.
    pub workload: String,
    /// With how many threads.
    pub threads: u32,
    /// Under which allocator.
    pub allocator: String,
    /// Round, from 1; ratios are taken within a round.
    pub round: u32,
    /// Place within the round, from 1.
    pub turn: u32,
    /// `ok`, `exit:N`, `signal:N`, `timeout` or `wrong-checksum`.
    pub status: String,
    /// Wall time from fork to exit.
    pub wall_ms: f64,
    /// CPU time in user mode.
    pub user_ms: f64,
    /// CPU time in the kernel.
    pub sys_ms: f64,
    /// Peak resident memory.
    pub peak_rss_kib: u64,
    /// Page faults served without reading a file.
    pub minor_faults: u64,
    /// Page faults that read a file.
    pub major_faults: u64,
    /// What the workload printed.
    pub checksum: String,
}

impl Row {
    /// Whether the run ended well, with the right checksum.
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// Reads the launcher's line (its format stands at the top of lab/launch.c).
    pub fn parse(line: &str, workload: &str, threads: u32, allocator: &str) -> Result<Row> {
        let mut words = line.split_whitespace();
        let mut next = || words.next().context("a field is missing");
        let status = next()?.to_owned();
        let wall_ns: f64 = next()?.parse()?;
        let user_us: f64 = next()?.parse()?;
        let sys_us: f64 = next()?.parse()?;
        let mut row = Row {
            workload: workload.into(),
            threads,
            allocator: allocator.into(),
            round: 0,
            turn: 0,
            status,
            wall_ms: wall_ns / 1e6,
            user_ms: user_us / 1e3,
            sys_ms: sys_us / 1e3,
            peak_rss_kib: next()?.parse()?,
            minor_faults: next()?.parse()?,
            major_faults: next()?.parse()?,
            checksum: next()?.to_owned(),
        };
        if row.is_ok() && row.checksum == "-" {
            row.status = "no-checksum".into();
        }
        Ok(row)
    }
}

/// All rows of one benchmark.
#[derive(Debug, Default)]
pub struct Table {
    /// In the order in which they were run.
    pub rows: Vec<Row>,
}

/// Writes rows one by one, so that an interrupted benchmark keeps what it has.
pub struct Writer {
    csv: csv::Writer<std::fs::File>,
}

impl Writer {
    /// Starts `runs.csv` in `dir` anew.
    pub fn create(dir: &Path) -> Result<Writer> {
        let path = dir.join("runs.csv");
        let csv = csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Writer { csv })
    }

    /// Appends one row and hands it to the system.
    pub fn append(&mut self, row: &Row) -> Result<()> {
        self.csv.serialize(row)?;
        self.csv.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Row;

    // Would catch a launcher and a reader that disagree about the line between them.
    #[test]
    fn the_launchers_line_is_read() {
        let row = Row::parse("ok 63616561 14124 28248 14032 120 1 00ff", "trees", 2, "glibc");
        let row = row.unwrap();
        assert!(row.is_ok());
        assert_eq!((row.wall_ms, row.user_ms, row.sys_ms), (63.616561, 14.124, 28.248));
        assert_eq!((row.peak_rss_kib, row.minor_faults, row.major_faults), (14032, 120, 1));
        assert_eq!(row.checksum, "00ff");
    }

    // Would catch a program that dies without a word and still counts as a good run.
    #[test]
    fn a_run_without_checksum_is_no_good_run() {
        let row = Row::parse("ok 1 1 1 1 1 1 -", "trees", 1, "glibc").unwrap();
        assert!(!row.is_ok());
        assert!(Row::parse("ok 1 1", "trees", 1, "glibc").is_err());
    }
}
