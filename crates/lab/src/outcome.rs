//! What one run of one case printed and cost.

use anyhow::{Context, Result, bail};
use neap_results::Listing;

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// `ok`, `exit:N`, `signal:N`, `timeout`, or a sentence that says why there is no figure; `skipped: WHY` if the
    /// cause is not an allocator.
    pub status: String,
    /// The figures; none where the run failed.
    pub metrics: Vec<Metric>,
    /// Its output other than figures.
    pub listing: Option<Listing>,
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
    pub fn new(name: impl Into<String>, unit: impl Into<String>, value: f64) -> Metric {
        Metric { name: name.into(), unit: unit.into(), value }
    }
}

impl Outcome {
    /// A run that succeeded.
    pub fn good(metrics: Vec<Metric>) -> Outcome {
        Outcome { status: "ok".into(), metrics, listing: None }
    }

    /// A run without figures.
    pub fn failed(status: impl Into<String>) -> Outcome {
        Outcome { status: status.into(), ..Outcome::default() }
    }

    /// A run that this machine cannot make.
    pub fn skipped(reason: impl std::fmt::Display) -> Outcome {
        Outcome::failed(format!("skipped: {reason}"))
    }

    /// Whether there are figures.
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// Whether nothing was run.
    pub fn is_skipped(&self) -> bool {
        self.status.starts_with("skipped")
    }

    /// The figure called `name`.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }
}

/// The launcher's line (lab/launch.c describes it) and what the program printed.
#[derive(Debug, PartialEq)]
pub struct Launched<'a> {
    /// `ok`, `exit:N`, `signal:N`, `timeout`.
    pub status: &'a str,
    /// Wall time, CPU time, page faults, peak: as figures `run-...`.
    pub costs: Vec<Metric>,
    /// What a workload printed; none for `-`.
    pub checksum: Option<&'a str>,
    /// What the program printed.
    pub output: &'a str,
}

impl Launched<'_> {
    /// Reads what the launcher printed.
    pub fn parse(text: &str) -> Result<Launched<'_>> {
        let (line, output) = text.split_once('\n').unwrap_or((text, ""));
        let words: Vec<&str> = line.split(' ').collect();
        let [status, wall, user, sys, peak, minor, major, checksum] = words[..] else {
            bail!("the launcher's line is damaged: {line}");
        };
        let number = |word: &str| word.parse::<f64>().with_context(|| format!("not a number: {word}"));
        let costs = vec![
            Metric::new("run-wall", "ms", number(wall)? / 1e6),
            Metric::new("run-cpu", "ms", (number(user)? + number(sys)?) / 1e3),
            Metric::new("run-peak", "MiB", number(peak)? / 1024.0),
            Metric::new("run-faults", "count", number(minor)? + number(major)?),
        ];
        Ok(Launched { status, costs, checksum: Some(checksum).filter(|&sum| sum != "-"), output })
    }

    /// The program's metrics, and the costs behind them. Damaged lines are the program's failure: its memory was
    /// damaged.
    pub fn outcome(self) -> Outcome {
        if self.status != "ok" {
            return Outcome::failed(self.status);
        }
        let mut metrics = match metrics(self.output) {
            Ok(metrics) => metrics,
            Err(error) => return Outcome::failed(format!("damaged output ({error})")),
        };
        if metrics.is_empty() {
            return Outcome::failed("no-metrics");
        }
        metrics.extend(self.costs);
        Outcome::good(metrics)
    }
}

/// Reads the lines `metric NAME UNIT VALUE`.
pub fn metrics(text: &str) -> Result<Vec<Metric>> {
    text.lines().filter_map(|line| line.strip_prefix("metric ")).map(parse_metric).collect()
}

fn parse_metric(text: &str) -> Result<Metric> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, unit, value] = words[..] else {
        bail!("not NAME UNIT VALUE: {text}");
    };
    let value = value.parse().with_context(|| format!("{name} is not a number: {value}"))?;
    Ok(Metric::new(name, unit, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch figures that are lost between the launcher's line and the end of the output.
    #[test]
    fn metrics_follow_the_launchers_line() {
        let text = "ok 63616561 14124 28248 14032 120 1 -\nmetric rss MiB 1.5\nhello\nmetric rate 1/s 2e+06\n";
        let outcome = Launched::parse(text).unwrap().outcome();
        assert!(outcome.is_ok());
        assert_eq!(outcome.metrics[..2], [Metric::new("rss", "MiB", 1.5), Metric::new("rate", "1/s", 2e6)]);
        assert_eq!(outcome.value("run-wall"), Some(63.616561));
        assert_eq!(outcome.value("run-faults"), Some(121.0));
        assert_eq!(outcome.value("other"), None);
    }

    // Would catch a crash whose first figures count as a whole run, a program that prints nothing, and damaged figures
    // that end the whole run.
    #[test]
    fn a_failed_run_has_no_metrics() {
        let of = |text: &str| Launched::parse(text).map(Launched::outcome);
        assert_eq!(of("signal:11 1 1 1 1 1 1 -\nmetric rss MiB 1.5\n").unwrap(), Outcome::failed("signal:11"));
        assert_eq!(of("ok 1 1 1 1 1 1 -\n").unwrap(), Outcome::failed("no-metrics"));
        let damaged = of("ok 1 1 1 1 1 1 -\nmetric rss MiB much\n").unwrap();
        assert!(damaged.status.starts_with("damaged output") && damaged.metrics.is_empty(), "{damaged:?}");
        assert!(of("ok 1 1").is_err());
    }

    // Would catch a workload whose checksum is lost.
    #[test]
    fn checksums() {
        assert_eq!(Launched::parse("ok 1 1 1 1 1 1 00ff\n").unwrap().checksum, Some("00ff"));
        assert_eq!(Launched::parse("ok 1 1 1 1 1 1 -\n").unwrap().checksum, None);
    }
}
