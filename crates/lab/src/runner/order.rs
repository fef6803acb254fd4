//! `neap order` on a program that needs little of what it has: traced, linked again, compared.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::launch::end_text;
use crate::interrupt;
use crate::outcome::{Metric, Outcome};
use crate::place::Place;
use crate::scratch::Scratch;
use crate::sources;

/// What is read of the JSON of `neap order verify` (docs/order.md).
#[derive(Deserialize)]
struct Report {
    measures: Vec<Measure>,
}

#[derive(Deserialize)]
struct Measure {
    name: String,
    before: f64,
    after: f64,
    ratio: Option<Ratio>,
}

#[derive(Deserialize)]
struct Ratio {
    median: f64,
}

/// Orders the functions of the program, with `data` its data too, and runs it `pairs` times before and after.
pub fn run(place: &Place, data: bool, pairs: u32, limit: Duration) -> Result<Outcome> {
    let before = sources::experiment(place, "order")?;
    let scratch = Scratch::new("order")?;
    let [trace, script, after] = ["trace", "script", "after"].map(|name| scratch.join(name));
    let neap = |arguments: &[&str], files: &[&Path]| {
        let mut command = Command::new(&place.command);
        interrupt::output(command.arg("order").args(arguments).args(files), Some(limit))
    };
    let mut steps = vec!["trace"];
    steps.extend(data.then_some("--data"));
    steps.push("-o");
    for (arguments, files) in [
        (steps.as_slice(), &[trace.as_path(), &before][..]),
        (&["emit", "--for", "ld-script", "-o"], &[&script, &trace, &before]),
    ] {
        let out = neap(arguments, files)?;
        match out.status.and_then(|status| status.code()) {
            Some(0) => {}
            Some(125) => return Ok(Outcome::skipped(out.stderr.lines().next().unwrap_or("neap order failed"))),
            _ => return Ok(Outcome::failed(end_text(out.status))),
        }
    }
    sources::link_again(place, "order", &format!("-Wl,-T,{}", script.display()), &after)?;
    let pairs = pairs.to_string();
    let out = neap(&["verify", "--json", "--pairs", &pairs, "--before"], &[&before, "--after".as_ref(), &after])?;
    match out.status.and_then(|status| status.code()) {
        // 1: nothing is less.
        Some(0 | 1) => {}
        Some(125) => return Ok(Outcome::skipped(out.stderr.lines().next().unwrap_or("neap order failed"))),
        _ => return Ok(Outcome::failed(end_text(out.status))),
    }
    let report: Report = serde_json::from_str(&out.stdout).context("the report of neap order makes no sense")?;
    Ok(Outcome::good(metrics(&report)))
}

/// The figures of the catalogue.
fn metrics(report: &Report) -> Vec<Metric> {
    let all: BTreeMap<&str, &Measure> = report.measures.iter().map(|one| (one.name.as_str(), one)).collect();
    let mut metrics = Vec::new();
    let both = [
        ("code", "pages of code touched"),
        ("data", "pages of data touched"),
        ("exact", "faults without fault-around"),
        ("faults", "faults, warm"),
    ];
    for (name, measure) in both {
        if let Some(measure) = all.get(measure) {
            metrics.push(Metric::new(format!("{name}-before"), "count", measure.before));
            metrics.push(Metric::new(name, "count", measure.after));
        }
    }
    if let Some(time) = all.get("time, warm") {
        metrics.push(Metric::new("ms-before", "ms", 1e3 * time.before));
        metrics.push(Metric::new("ms", "ms", 1e3 * time.after));
        metrics.extend(time.ratio.as_ref().map(|ratio| Metric::new("ratio", "ratio", ratio.median)));
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a figure that is that of the other side, or a time that is no ratio of pairs.
    #[test]
    fn figures_have_two_sides() {
        let measure = |name: &str, before: f64, after: f64, ratio: f64| {
            format!(
                "{{\"name\": \"{name}\", \"before\": {before}, \"after\": {after}, \"ratio\": {{\"median\": {ratio}}}}}"
            )
        };
        let measures = [measure("faults, warm", 200.0, 70.0, 0.35), measure("time, warm", 0.002, 0.001, 0.6)];
        let report = serde_json::from_str(&format!("{{\"measures\": [{}]}}", measures.join(","))).expect("a report");
        let outcome = Outcome::good(metrics(&report));
        let values = ["faults-before", "faults", "ms-before", "ms", "ratio", "code"].map(|name| outcome.value(name));
        assert_eq!(values, [Some(200.0), Some(70.0), Some(2.0), Some(1.0), Some(0.6), None]);
    }
}
