//! The rows of a benchmark that was kept as `runs.csv`.

use serde::Deserialize;

use crate::suite::NAME;
use crate::{ReadError, Row};

/// A line of `runs.csv`.
#[derive(Debug, Deserialize)]
struct OldRow {
    workload: String,
    threads: u32,
    allocator: String,
    round: u32,
    turn: u32,
    status: String,
    wall_ms: f64,
    user_ms: f64,
    sys_ms: f64,
    peak_rss_kib: f64,
    minor_faults: f64,
}

/// The rows of `runs.csv`.
pub fn rows(text: &str) -> Result<Vec<Row>, ReadError> {
    let mut rows = Vec::new();
    for line in csv::Reader::from_reader(text.as_bytes()).deserialize() {
        let old: OldRow = line.map_err(ReadError::Csv)?;
        let case = format!("{}, {} thread{}", old.workload, old.threads, if old.threads == 1 { "" } else { "s" });
        let row = Row {
            experiment: NAME.into(),
            case,
            allocator: old.allocator,
            round: old.round,
            turn: old.turn,
            status: old.status,
            ..Row::default()
        };
        if row.status != "ok" {
            rows.push(row);
            continue;
        }
        let metrics = [
            ("wall", "ms", old.wall_ms),
            ("cpu", "ms", old.user_ms + old.sys_ms),
            ("peak", "MiB", old.peak_rss_kib / 1024.0),
            ("faults", "count", old.minor_faults),
        ];
        rows.extend(metrics.map(|(metric, unit, value)| Row {
            metric: metric.into(),
            unit: unit.into(),
            value,
            ..row.clone()
        }));
    }
    Ok(rows)
}
