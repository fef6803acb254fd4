//! Geometric means over many programs against glibc: one figure of time and one of memory for each allocator.

use crate::stats::geometric_mean;
use crate::{Axis, Better, Chart, ChartKind, Figure, GLIBC, Mark, NEAP, Point, Row, Run, SCHEMA, Series, Value, View};

/// The case that has the means.
pub const CASE: &str = "geometric means";
/// What the metrics of the means are called: wall time, peak resident memory.
pub const METRICS: [&str; 2] = ["wall", "peak"];

/// The cases that the means are over: those in which neither glibc nor neap failed, if they took part.
fn compared<'a>(view: &View, experiment: &str, cases: &'a [String], metric: &str) -> Vec<&'a String> {
    let both = [GLIBC, NEAP].into_iter().filter(|name| view.took_part(experiment, name));
    let both: Vec<&str> = both.collect();
    let ok =
        |case: &&String| both.iter().all(|name| view.median(Figure::new(experiment, case, metric), name).is_some());
    cases.iter().filter(|case| view.has_case(experiment, case)).filter(ok).collect()
}

/// Why the means are over fewer cases than were run: `; without a, b, in which glibc or neap failed`. Empty if they are
/// over all.
pub fn left_out(of: &Run, experiment: &str) -> String {
    let view = View::of(of);
    let Some(found) = of.experiment(experiment) else { return String::new() };
    let cases: Vec<String> = found.cases.iter().map(|case| case.name.clone()).collect();
    let compared = compared(&view, experiment, &cases, metrics_of(&view, experiment, &cases)[0]);
    let ran = cases.iter().filter(|case| view.has_case(experiment, case));
    let names: Vec<&str> = ran.filter(|case| !compared.contains(case)).map(String::as_str).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; without {}, in which glibc or neap failed", names.join(", "))
    }
}

/// What wall time and peak memory are called.
fn metrics_of(view: &View, experiment: &str, cases: &[String]) -> [&'static str; 2] {
    let has = |metric: &str| cases.iter().any(|case| !view.unit(Figure::new(experiment, case, metric)).is_empty());
    if has("run-wall") { ["run-wall", "run-peak"] } else { METRICS }
}

/// For each allocator the geometric means over `cases` of its median ratios to glibc. Cases in which glibc or neap
/// failed are left out for all. Another allocator that failed in one of the remaining cases has no mean, but a row
/// whose status says in how many. `metrics` are the names of wall time and peak memory.
pub fn rows(view: &View, experiment: &str, cases: &[String], metrics: [&str; 2]) -> Vec<Row> {
    let mut rows = Vec::new();
    let compared = compared(view, experiment, cases, metrics[0]);
    for allocator in view.allocators().iter().filter(|name| view.took_part(experiment, name)) {
        let value = |case: &str| view.value(Figure::new(experiment, case, metrics[0]), allocator);
        let failed = |case: &&String| matches!(value(case), Value::Failed(_));
        let failed = compared.iter().copied().filter(failed).count();
        let row = Row {
            experiment: experiment.into(),
            case: CASE.into(),
            allocator: allocator.clone(),
            round: 1,
            turn: 1,
            status: "ok".into(),
            ..Row::default()
        };
        if failed > 0 {
            rows.push(Row { status: format!("{failed} of {} cases failed", compared.len()), ..row });
            continue;
        }
        for (name, metric) in METRICS.into_iter().zip(metrics) {
            let ratio =
                |case: &&String| Some(view.ratio(Figure::new(experiment, case, metric), allocator, GLIBC)?.ratio);
            let ratios: Vec<f64> = compared.iter().filter_map(ratio).collect();
            // A mean over fewer cases than the others have cannot be compared with theirs.
            if !ratios.is_empty() && ratios.len() == compared.len() {
                let value = geometric_mean(&ratios);
                rows.push(Row { metric: name.into(), unit: "ratio".into(), value, ..row.clone() });
            }
        }
    }
    rows
}

/// The chart of the means.
pub fn chart() -> Chart {
    let points = vec![Point::named("wall time", CASE, "wall"), Point::named("peak resident memory", CASE, "peak")];
    Chart {
        name: "headline".into(),
        title: "Allocation suite, geometric means against glibc".into(),
        kind: ChartKind::Bar,
        x: Axis { label: "figure".into(), ..Axis::default() },
        y: Axis { label: "ratio to glibc".into(), unit: "ratio".into(), log: false },
        better: Better::Less,
        series: vec![Series { label: String::new(), points }],
        marks: vec![Mark { label: String::new(), value: 1.0 }],
        ..Chart::default()
    }
}

/// A run with only the means of an experiment, for the README's picture. Variants of allocators are left out. None if
/// the experiment was not run.
pub fn run(of: &Run, experiment: &str) -> Option<Run> {
    let view = View::of(of);
    let cases: Vec<String> = of.experiment(experiment)?.cases.iter().map(|case| case.name.clone()).collect();
    let metrics = metrics_of(&view, experiment, &cases);
    let rows = rows(&view, experiment, &cases, metrics);
    let allocators = of.allocators.iter().filter(|one| one.base.is_none()).cloned().collect::<Vec<_>>();
    let rows: Vec<Row> =
        rows.into_iter().filter(|row| allocators.iter().any(|one| one.name == row.allocator)).collect();
    (!rows.is_empty()).then(|| Run { schema: SCHEMA, allocators, rows, ..Run::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{bad, row, run as run_of};
    use crate::{Case, Experiment};

    // Would catch a mean that is not geometric, one that hides a failure, and one over fewer cases than the others.
    #[test]
    fn means_are_over_all_cases() {
        let figure = |case: &'static str| Figure::new("suite", case, "run-wall");
        let mut rows = Vec::new();
        for (case, neap) in [("a", 2.0), ("b", 50.0)] {
            rows.extend([row(figure(case), "glibc", 1, 10.0), row(figure(case), "neap", 1, neap)]);
        }
        rows.extend([row(figure("a"), "crashed", 1, 1.0), bad(figure("b"), "crashed", 1, "signal:11")]);
        rows.push(row(figure("a"), "part", 1, 1.0));
        let mut all = run_of(&["glibc", "neap", "crashed", "part", "neap-lazy=neap"], rows);
        let cases = ["a", "b"].map(|name| Case { name: name.into(), ..Case::default() }).into();
        all.experiments = vec![Experiment { name: "suite".into(), cases, ..Experiment::default() }];
        let means = run(&all, "suite").unwrap();
        let view = View::of(&means);
        let value = |name| view.value(Figure::new("suite", CASE, "wall"), name);
        assert!((value("neap").spread().unwrap().median - 1.0).abs() < 1e-12);
        assert_eq!(value("crashed"), Value::Failed("1 of 2 cases failed".into()));
        assert_eq!((value("part"), means.allocators.len()), (Value::Absent, 4));
        assert!(run(&all, "other").is_none());
        assert_eq!(left_out(&all, "suite"), "");
        // One failed run of neap: the means are over the rest, and the case is named.
        all.rows.push(bad(figure("b"), "neap", 2, "timeout"));
        let view = View::of(&run(&all, "suite").unwrap());
        let mean = view.median(Figure::new("suite", CASE, "wall"), "neap").unwrap();
        assert!((mean - 0.2).abs() < 1e-12, "{mean}");
        assert_eq!(left_out(&all, "suite"), "; without b, in which glibc or neap failed");
    }
}
