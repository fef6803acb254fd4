//! `neap order` on a program whose start needs a small part of it: traced, linked again, compared. And the cost of a
//! trace of many functions.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use neap_results::stats::median;

use super::launch::{Launcher, end_text};
use crate::interrupt;
use crate::outcome::{Launched, Metric, Outcome};
use crate::place::Place;
use crate::scratch::Scratch;
use crate::sources;

/// The members of the JSON of `neap order verify` (docs/order.md) that are used.
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
        // 1: no improvement.
        Some(0 | 1) => {}
        Some(125) => return Ok(Outcome::skipped(out.stderr.lines().next().unwrap_or("neap order failed"))),
        _ => return Ok(Outcome::failed(end_text(out.status))),
    }
    let report: Report = serde_json::from_str(&out.stdout).context("the report of neap order makes no sense")?;
    Ok(Outcome::good(metrics(&report)))
}

/// Runs the program of many functions `pairs` times alone and traced, in turn; the first pair does not count.
pub fn trace(place: &Place, launcher: &Launcher, pairs: u32, limit: Duration) -> Result<Outcome> {
    let program = sources::experiment(place, "many")?;
    let scratch = Scratch::new("order")?;
    let (trace, neap) = (scratch.join("trace"), &place.command);
    let alone = [program.as_os_str()];
    let traced = [neap.as_os_str(), "order".as_ref(), "trace".as_ref(), "-o".as_ref(), trace.as_ref(), "--".as_ref()];
    let traced = [&traced, &alone[..]].concat();
    let mut times = [Vec::new(), Vec::new()];
    for pair in 0..=pairs {
        // The next pair has the reverse order.
        for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let command = if side == 0 { &alone[..] } else { &traced };
            let words: Vec<OsString> = command.iter().map(OsString::from).collect();
            let (text, stderr) = launcher.launch(&[], &words, limit)?;
            let launched = Launched::parse(&text)?;
            match launched.status {
                "ok" => {}
                "exit:125" => return Ok(Outcome::skipped(stderr.lines().next().unwrap_or("neap order failed"))),
                status => return Ok(Outcome::failed(status)),
            }
            let wall = launched.costs.iter().find(|cost| cost.name == "run-wall").context("a time")?;
            times[side].push(wall.value);
        }
    }
    Ok(Outcome::good(trace_metrics(&times.map(|times| times[1..].to_vec()))))
}

/// The figures of pairs of times, in ms: alone, traced.
fn trace_metrics([alone, traced]: &[Vec<f64>; 2]) -> Vec<Metric> {
    let over: Vec<f64> = alone.iter().zip(traced).map(|(alone, traced)| traced - alone).collect();
    let least = over.iter().copied().fold(f64::INFINITY, f64::min);
    let most = over.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let figures = [
        ("alone-ms", median(alone)),
        ("traced-ms", median(traced)),
        ("over-ms", median(&over)),
        ("over-least-ms", least),
        ("over-most-ms", most),
    ];
    figures.map(|(name, value)| Metric::new(name, "ms", value)).into()
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

    // Would catch a difference of medians rather than of pairs, or of the wrong sign.
    #[test]
    fn a_trace_costs_what_its_pairs_differ_by() {
        let outcome = Outcome::good(trace_metrics(&[vec![1.0, 9.0, 2.0], vec![11.0, 12.0, 20.0]]));
        let names = ["alone-ms", "traced-ms", "over-ms", "over-least-ms", "over-most-ms"];
        assert_eq!(names.map(|name| outcome.value(name)), [2.0, 12.0, 10.0, 3.0, 18.0].map(Some));
    }

    // Would catch a figure of the wrong side, and a time that is not a ratio of pairs.
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
