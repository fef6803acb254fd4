//! The raw data of the experiments: one row of `metrics.csv` per figure that a run told.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The file of the raw data.
pub const FILE: &str = "metrics.csv";

/// One figure of one run. A run that failed has one row, with an empty `metric`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which experiment.
    pub experiment: String,
    /// Which of its cases.
    pub case: String,
    /// Under which allocator.
    pub allocator: String,
    /// Round, from 1; ratios are taken within a round.
    pub round: u32,
    /// Place within the round, from 1.
    pub turn: u32,
    /// `ok`, `exit:N`, `signal:N`, `timeout`, or a sentence that says why there is no figure.
    pub status: String,
    /// Name of the figure.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The figure.
    pub value: f64,
}

/// What one run told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// As in [`Row::status`].
    pub status: String,
    /// The figures; none where the run failed.
    pub metrics: Vec<Metric>,
}

/// One figure with its name and unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Its name, unique within the case.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The figure.
    pub value: f64,
}

impl Metric {
    /// A figure.
    pub fn new(name: &str, unit: &str, value: f64) -> Metric {
        Metric { name: name.into(), unit: unit.into(), value }
    }
}

impl Outcome {
    /// A run that went well.
    pub fn good(metrics: Vec<Metric>) -> Outcome {
        Outcome { status: "ok".into(), metrics }
    }

    /// A run without figures.
    pub fn failed(status: impl Into<String>) -> Outcome {
        Outcome { status: status.into(), metrics: Vec::new() }
    }

    /// Whether there are figures.
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// The figure called `name`.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }

    /// Reads what the launcher printed: its own line (lab/launch.c), then the program's output.
    pub fn parse(text: &str) -> Result<Outcome> {
        let (line, output) = text.split_once('\n').unwrap_or((text, ""));
        let status = line.split(' ').next().unwrap_or_default();
        if status != "ok" {
            return Ok(Outcome::failed(status));
        }
        let metrics: Result<Vec<Metric>> =
            output.lines().filter_map(|line| line.strip_prefix("metric ")).map(parse_metric).collect();
        let metrics = metrics?;
        if metrics.is_empty() {
            return Ok(Outcome::failed("no-metrics"));
        }
        Ok(Outcome::good(metrics))
    }
}

/// Reads `NAME UNIT VALUE`.
fn parse_metric(text: &str) -> Result<Metric> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, unit, value] = words[..] else {
        anyhow::bail!("not NAME UNIT VALUE: {text}");
    };
    let value = value.parse().with_context(|| format!("{name} is not a number: {value}"))?;
    Ok(Metric::new(name, unit, value))
}

/// Reads the rows in `dir`.
pub fn read(dir: &Path) -> Result<Vec<Row>> {
    let path = dir.join(FILE);
    let mut reader = csv::Reader::from_path(&path).with_context(|| {
        format!("cannot read {}; name a folder that `cargo xtask experiments -o` wrote", path.display())
    })?;
    let rows: Result<Vec<Row>, csv::Error> = reader.deserialize().collect();
    rows.with_context(|| format!("{} is damaged", path.display()))
}

/// Writes rows run by run, so that an interrupted pass keeps what it has.
pub struct Writer {
    csv: csv::Writer<std::fs::File>,
}

impl Writer {
    /// Starts the file in `dir` anew.
    pub fn create(dir: &Path) -> Result<Writer> {
        let path = dir.join(FILE);
        let csv = csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Writer { csv })
    }

    /// Appends the rows of one run and hands them to the system.
    pub fn append(&mut self, rows: &[Row]) -> Result<()> {
        for row in rows {
            self.csv.serialize(row)?;
        }
        self.csv.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch figures that are lost between the launcher's line and the end of the output.
    #[test]
    fn metrics_follow_the_launchers_line() {
        let text = "ok 63616561 14124 28248 14032 120 1 -\nmetric rss MiB 1.5\nhello\nmetric rate 1/s 2e+06\n";
        let outcome = Outcome::parse(text).unwrap();
        assert!(outcome.is_ok());
        assert_eq!(outcome.metrics, [Metric::new("rss", "MiB", 1.5), Metric::new("rate", "1/s", 2e6)]);
        assert_eq!(outcome.value("rate"), Some(2e6));
        assert_eq!(outcome.value("other"), None);
    }

    // Would catch a crash whose first figures count as a whole run, and a program that says nothing.
    #[test]
    fn a_failed_run_has_no_metrics() {
        let crashed = Outcome::parse("signal:11 1 1 1 1 1 1 -\nmetric rss MiB 1.5\n").unwrap();
        assert_eq!(crashed, Outcome::failed("signal:11"));
        assert_eq!(Outcome::parse("ok 1 1 1 1 1 1 -\n").unwrap(), Outcome::failed("no-metrics"));
        assert!(Outcome::parse("ok 1 1 1 1 1 1 -\nmetric rss MiB much\n").is_err());
    }

    // Would catch a column of the CSV that is written and not read.
    #[test]
    fn rows_survive_the_csv() {
        let row = Row { experiment: "calloc".into(), status: "ok".into(), value: 0.25, round: 3, ..Row::default() };
        let failed = Row { status: "timeout".into(), ..Row::default() };
        let dir = std::env::temp_dir().join(format!("neap-experiments-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Writer::create(&dir).unwrap().append(&[row.clone(), failed.clone()]).unwrap();
        assert_eq!(read(&dir).unwrap(), [row, failed]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
