//! The allocation suite: programs from end to end, and their geometric means against glibc.

use serde::Deserialize;

use crate::judge::{Judged, number, rank};
use crate::means::{self, CASE as MEANS};
use crate::{Better, Case, Column, Experiment, Figure, GLIBC, Metric, Param, ReadError, Row, Run, Table, View};

/// The experiment's name.
const NAME: &str = "suite";

/// neap may take at most this much of the best peer's time in any case.
const WALL_LIMIT: f64 = 1.10;
/// neap's peak resident memory may be at most this much of glibc's in any case.
const PEAK_LIMIT: f64 = 1.50;

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

/// The experiment. Puts the rows of the means beside those that were measured.
pub fn experiment(run: &mut Run) -> Experiment {
    let mut names: Vec<String> = Vec::new();
    for row in &run.rows {
        if !names.contains(&row.case) {
            names.push(row.case.clone());
        }
    }
    let view = View::of(run);
    let derived = means::rows(&view, NAME, &names, means::METRICS).into_iter().chain(ratios(&view, run));
    let derived: Vec<Row> = derived.collect();
    run.rows.extend(derived);
    let metric = |name: &str, title: &str, better| Metric { name: name.into(), title: title.into(), better };
    let column = |case: &String, metric: &str| Column::new(case.clone(), case.clone(), metric);
    let table = |title: &str, metric: &str| Table {
        title: title.into(),
        columns: names.iter().map(|case| column(case, metric)).collect(),
    };
    let mean_columns = vec![
        Column::new("wall time against glibc", MEANS, "wall"),
        Column::new("peak resident memory against glibc", MEANS, "peak"),
    ];
    Experiment {
        name: NAME.into(),
        title: "Allocation suite".into(),
        question: "What do whole programs take in time and memory, against glibc?".into(),
        about: "15 programs at one and two threads: trees, strings, caches, servers, producers and consumers. All \
                random numbers come from a fixed seed, and a wrong checksum counts as a failure."
            .into(),
        command: run.command.clone(),
        cases: names.iter().map(|name| case(name)).collect(),
        metrics: vec![
            metric("wall", "wall time", Better::Less),
            metric("cpu", "CPU time", Better::Less),
            metric("peak", "peak resident memory", Better::Less),
            metric("faults", "page faults", Better::Neither),
        ],
        charts: vec![means::chart()],
        tables: vec![
            Table { title: "Geometric means".into(), columns: mean_columns },
            table("Wall time against glibc", "wall-ratio"),
            table("Peak resident memory against glibc", "peak-ratio"),
            table("Wall time, ms", "wall"),
            table("Processor time, ms", "cpu"),
            table("Peak resident memory, MiB", "peak"),
            table("Page faults that read no file", "faults"),
        ],
        verdicts: verdicts(&View::of(run), &names),
        ..Experiment::default()
    }
}

fn case(name: &str) -> Case {
    let (workload, threads) = name.split_once(", ").unwrap_or((name, ""));
    let threads: Option<f64> = threads.split(' ').next().and_then(|count| count.parse().ok());
    let mut params = std::collections::BTreeMap::from([("workload".to_owned(), Param::Text(workload.into()))]);
    params.extend(threads.map(|count| ("threads".to_owned(), Param::Number(count))));
    Case { name: name.into(), params, command: String::new() }
}

/// Each round's ratios to glibc, as rows: `wall-ratio` and `peak-ratio`.
fn ratios(view: &View, run: &Run) -> Vec<Row> {
    let mut rows = Vec::new();
    for row in run.rows.iter().filter(|row| means::METRICS.contains(&row.metric.as_str())) {
        let base = view.at(Figure::new(NAME, &row.case, &row.metric), GLIBC, row.round);
        rows.extend(base.filter(|base| *base > 0.0).map(|base| Row {
            metric: format!("{}-ratio", row.metric),
            unit: "ratio".into(),
            value: row.value / base,
            ..row.clone()
        }));
    }
    rows
}

fn verdicts(view: &View, cases: &[String]) -> Vec<crate::Verdict> {
    let mean = |metric, words: &str| rank(view, Figure::new(NAME, MEANS, metric), Better::Less).about(words);
    // Ratio, and the words for it, of each case that has one.
    let against_best = |case: &String| {
        let figure = Figure::new(NAME, case, "wall");
        let (best, _) = view.best_peer(figure, Better::Less, |_| true)?;
        let ratio = view.ratio(figure, crate::NEAP, best)?.ratio;
        Some((ratio, format!("{case} ({} times {best})", number(ratio))))
    };
    let against_glibc = |case: &String| {
        let ratio = view.ratio(Figure::new(NAME, case, "peak"), crate::NEAP, GLIBC)?.ratio;
        Some((ratio, format!("{case} ({} times)", number(ratio))))
    };
    let slow = none_above(cases.iter().filter_map(against_best), WALL_LIMIT, "the best peer's time");
    let large = none_above(cases.iter().filter_map(against_glibc), PEAK_LIMIT, "glibc's peak resident memory");
    vec![
        mean("wall", "Wall time").rank(),
        mean("peak", "Peak resident memory").rank(),
        slow.target(false),
        large.target(false),
    ]
}

/// Whether no ratio is above the limit; those that are, the greatest first.
fn none_above(ratios: impl Iterator<Item = (f64, String)>, limit: f64, what: &str) -> Judged {
    let mut all: Vec<(f64, String)> = ratios.collect();
    let counted = all.len();
    all.retain(|(ratio, _)| *ratio > limit);
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let list: Vec<String> = all.into_iter().map(|(_, text)| text).collect();
    let limit = number(limit);
    let text = match list.len() {
        0 => format!("none of {counted} cases takes neap more than {limit} times {what}"),
        n => format!("{n} of {counted} cases take neap more than {limit} times {what}: {}", list.join(", ")),
    };
    Judged::new(text, (counted > 0).then_some(list.is_empty()))
}
