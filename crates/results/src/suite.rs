//! The allocation suite as `BENCHMARKS.md` shows it: whole programs, each against glibc, and their geometric means.

use crate::judge::{Judged, number, rank};
use crate::means::{self, CASE as MEANS};
use crate::{Better, Case, Column, Experiment, Figure, GLIBC, Metric, Param, Row, Run, Table, View};

/// The experiment's name.
pub const NAME: &str = "suite";

/// neap may take at most this much of the best peer's time in any case.
const WALL_LIMIT: f64 = 1.10;
/// neap's peak resident memory may be at most this much of glibc's in any case.
const PEAK_LIMIT: f64 = 1.50;

/// The part of a run that is the allocation suite, with each round's ratios to glibc and the means. None if it was not
/// run.
pub fn of(run: &Run) -> Option<Run> {
    // The lab measures each program as a whole: its figures are `run-wall` and so on. Figures that were derived before
    // are derived again.
    let derived = |row: &Row| row.case == MEANS || row.metric.ends_with("-ratio");
    let own = |row: &&Row| row.experiment == NAME && !derived(row);
    let plain = |row: &Row| Row { metric: row.metric.trim_start_matches("run-").to_owned(), ..row.clone() };
    let rows: Vec<Row> = run.rows.iter().filter(own).map(plain).collect();
    if rows.is_empty() {
        return None;
    }
    let mut suite = Run { rows, experiments: Vec::new(), notes: Vec::new(), ..run.clone() };
    suite.allocators.retain(|one| suite.rows.iter().any(|row| row.allocator == one.name));
    let command = run.experiment(NAME).map_or(&run.command, |one| &one.command).clone();
    suite.experiments = vec![Experiment { command, ..experiment(&mut suite) }];
    Some(suite)
}

/// The experiment. Puts the rows of the means beside those that were measured.
fn experiment(run: &mut Run) -> Experiment {
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

/// Whether no ratio is above the limit; the sentence has those that are, the greatest first.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Allocator;

    // Would catch figures that are not found under the lab's names, and a second pass that changes anything.
    #[test]
    fn the_labs_suite_is_shown() {
        let row = |experiment: &str, allocator: &str, metric: &str, value| Row {
            experiment: experiment.into(),
            case: "trees, 1 thread".into(),
            allocator: allocator.into(),
            round: 1,
            status: "ok".into(),
            metric: metric.into(),
            unit: "ms".into(),
            value,
            ..Row::default()
        };
        let mut rows = vec![row("calloc", "neap-lazy", "run-wall", 1.0)];
        for (allocator, factor) in [("glibc", 1.0), ("neap", 0.5)] {
            rows.extend(
                ["run-wall", "run-cpu", "run-peak", "run-faults"].map(|m| row(NAME, allocator, m, 10.0 * factor)),
            );
        }
        let allocators =
            ["glibc", "neap", "neap-lazy"].map(|name| Allocator { name: name.into(), ..Allocator::default() });
        let experiment = Experiment { name: NAME.into(), command: "to repeat".into(), ..Experiment::default() };
        let run = Run { rows, allocators: allocators.into(), experiments: vec![experiment], ..Run::default() };
        let suite = of(&run).unwrap();
        assert_eq!((suite.allocators.len(), suite.experiments[0].command.as_str()), (2, "to repeat"));
        let view = View::of(&suite);
        assert_eq!(view.median(Figure::new(NAME, MEANS, "wall"), "neap"), Some(0.5));
        assert_eq!(view.median(Figure::new(NAME, "trees, 1 thread", "peak-ratio"), "neap"), Some(0.5));
        assert!(suite.experiments[0].verdicts.iter().any(|verdict| verdict.text.starts_with("none of 1 cases")));
        assert_eq!(of(&suite).as_ref(), Some(&suite));
        assert!(of(&Run::default()).is_none());
    }
}
