//! Two runs, figure by figure: what became better or worse beyond noise.
//!
//! The rounds of two runs are not pairs, and the state of the machine may differ. So a change counts if three
//! conditions hold: the ratio of the later to the earlier values is clear (see [`Ratio::apart`]), it differs from 1 by
//! more than [`FLOOR`], and, where glibc ran in both, the same holds for the ratios to glibc, each within its round.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::{Better, Figure, GLIBC, Ratio, Run, Spread, Value, View};

/// Changes up to this fraction of the value do not count.
pub const FLOOR: f64 = 0.05;

/// The differences between two runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Version and start of the earlier run.
    pub before: String,
    /// The same of the later one.
    pub after: String,
    /// Settings of the machines and the plans that differ: name, before, after.
    pub settings: Vec<(String, String, String)>,
    /// All figures that both runs have, the worst first.
    pub changes: Vec<Change>,
    /// What only the earlier run has: what was lost.
    pub only_before: Vec<Missing>,
    /// What only the later run has.
    pub only_after: Vec<Missing>,
}

/// What one run has and the other lacks. An empty name stands for all: without a case, the whole experiment; without an
/// experiment, all of the allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Missing {
    /// Which experiment.
    pub experiment: String,
    /// Which case.
    pub case: String,
    /// Under which allocator.
    pub allocator: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Missing { experiment, case, allocator } = self;
        match (experiment.as_str(), case.as_str(), allocator.as_str()) {
            ("", _, allocator) => write!(f, "all of {allocator}"),
            (experiment, "", "") => write!(f, "all of {experiment}"),
            (experiment, "", allocator) => write!(f, "{allocator} in {experiment}"),
            (experiment, case, "") => write!(f, "{experiment}, {case}"),
            (experiment, case, allocator) => write!(f, "{experiment}, {case}, {allocator}"),
        }
    }
}

/// One figure of one allocator in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Which experiment.
    pub experiment: String,
    /// Which case.
    pub case: String,
    /// Which metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Under which allocator.
    pub allocator: String,
    /// The earlier value in words: a median with its range, or why there is none.
    pub before: String,
    /// The later one.
    pub after: String,
    /// The later values against the earlier ones; none where one of the two is missing or zero.
    pub ratio: Option<Ratio>,
    /// The same of the ratios to glibc.
    pub against_glibc: Option<Ratio>,
    /// What it amounts to.
    pub outcome: Outcome,
}

/// What a change amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Worse beyond noise, or failed now.
    Worse,
    /// Better beyond noise, or no longer failed.
    Better,
    /// Changed beyond noise; neither less nor more is better.
    Changed,
    /// The rounds are too few to tell, and the medians differ.
    Unclear,
    /// No change beyond noise.
    Same,
}

impl Comparison {
    /// The changes of one kind.
    pub fn of(&self, outcome: Outcome) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.outcome == outcome)
    }

    /// The figures of an allocator that are worse.
    pub fn worse<'a>(&'a self, allocator: &'a str) -> impl Iterator<Item = &'a Change> {
        self.of(Outcome::Worse).filter(move |change| change.allocator == allocator)
    }

    /// What only the earlier run has of an allocator, or of all allocators.
    pub fn lost<'a>(&'a self, allocator: &'a str) -> impl Iterator<Item = &'a Missing> {
        self.only_before.iter().filter(move |missing| ["", allocator].contains(&missing.allocator.as_str()))
    }
}

/// Compares two runs.
pub fn compare(before: &Run, after: &Run) -> Comparison {
    let (old, new) = (View::of(before), View::of(after));
    let mut figures: Vec<Figure> = old.figures();
    figures.extend(new.figures());
    // An allocator that failed in every round has no metrics of its own, so the figures of both runs are compared.
    figures.sort_unstable();
    figures.dedup();
    let mut changes = Vec::new();
    for figure in figures {
        for allocator in new.allocators() {
            changes.extend(change(after, (&old, &new), figure, allocator));
        }
    }
    let size = |change: &Change| change.ratio.map_or(f64::INFINITY, |ratio| ratio.ratio.ln().abs());
    changes.sort_by(|a, b| a.outcome.cmp(&b.outcome).then(size(b).total_cmp(&size(a))));
    let title = |run: &Run| format!("{} of {}", if run.neap.is_empty() { "a run" } else { &run.neap }, run.started);
    Comparison {
        before: title(before),
        after: title(after),
        settings: settings(before, after),
        changes,
        only_before: only(&old, &new),
        only_after: only(&new, &old),
    }
}

/// What `one` has and `other` lacks: each case of each allocator, in the shortest form that says it.
fn only(one: &View, other: &View) -> Vec<Missing> {
    let there = other.ran();
    let has = |wanted: [&str; 3]| {
        there.iter().any(|ran| wanted.iter().zip(ran).all(|(wanted, name)| wanted.is_empty() || wanted == name))
    };
    let words = |[experiment, case, allocator]: [&str; 3]| {
        let forms = [
            [experiment, "", ""],
            ["", "", allocator],
            [experiment, "", allocator],
            [experiment, case, ""],
            [experiment, case, allocator],
        ];
        let [experiment, case, allocator] = forms.into_iter().find(|form| !has(*form))?.map(String::from);
        Some(Missing { experiment, case, allocator })
    };
    one.ran().into_iter().filter_map(words).collect::<BTreeSet<_>>().into_iter().collect()
}

fn change(after: &Run, (old, new): (&View, &View), figure: Figure, allocator: &str) -> Option<Change> {
    let (was, is) = (old.value(figure, allocator), new.value(figure, allocator));
    let unit = match new.unit(figure) {
        "" => old.unit(figure),
        unit => unit,
    };
    let better =
        after.experiment(figure.experiment).map_or(Better::of_unit(unit), |one| one.better(figure.metric, unit));
    let ratio = Ratio::apart(&new.values(figure, allocator), &old.values(figure, allocator));
    let against_glibc = (allocator != GLIBC)
        .then(|| Ratio::apart(&new.ratios(figure, allocator, GLIBC), &old.ratios(figure, allocator, GLIBC)));
    let against_glibc = against_glibc.flatten();
    let outcome = match (&was, &is) {
        (Value::Is(_), Value::Failed(_)) => Outcome::Worse,
        (Value::Failed(_), Value::Is(_)) => Outcome::Better,
        (Value::Is(was), Value::Is(is)) => judge(better, *was, *is, ratio, against_glibc),
        (Value::Failed(_), Value::Failed(_)) => Outcome::Same,
        _ => return None,
    };
    let (ratio, against_glibc) = match (&was, &is) {
        (Value::Is(_), Value::Is(_)) => (ratio, against_glibc),
        _ => (None, None),
    };
    Some(Change {
        experiment: figure.experiment.into(),
        case: figure.case.into(),
        metric: figure.metric.into(),
        unit: unit.into(),
        allocator: allocator.into(),
        before: crate::judge::value_text(&was, unit),
        after: crate::judge::value_text(&is, unit),
        ratio,
        against_glibc,
        outcome,
    })
}

fn judge(better: Better, was: Spread, is: Spread, ratio: Option<Ratio>, against_glibc: Option<Ratio>) -> Outcome {
    let Some(ratio) = ratio else {
        // There is no ratio to zero. A value above zero in every round is then a change. Three values against three
        // others are as clear as a ratio must be.
        let above = was.max == 0.0 && is.min > 0.0;
        return match (above, was.count.min(is.count) >= 3) {
            (true, true) => of(better, true),
            (true, false) => Outcome::Unclear,
            (false, _) => Outcome::Same,
        };
    };
    let beyond = |ratio: &Ratio| (ratio.ratio - 1.0).abs() > FLOOR;
    if !beyond(&ratio) {
        return Outcome::Same;
    }
    if ratio.confidence < crate::stats::CLEAR {
        return Outcome::Unclear;
    }
    let agrees = against_glibc
        .is_none_or(|other| other.is_clear() && beyond(&other) && (other.ratio > 1.0) == (ratio.ratio > 1.0));
    match ratio.is_clear() && agrees {
        true => of(better, ratio.ratio > 1.0),
        false => Outcome::Same,
    }
}

fn of(better: Better, grew: bool) -> Outcome {
    match (better, grew) {
        (Better::Neither, _) => Outcome::Changed,
        (Better::Less, true) | (Better::More, false) => Outcome::Worse,
        _ => Outcome::Better,
    }
}

fn settings(before: &Run, after: &Run) -> Vec<(String, String, String)> {
    let facts = |run: &Run| {
        let m = &run.machine;
        let mut facts = vec![
            ("processor".to_owned(), m.cpu.clone()),
            ("processors used".into(), m.cores.to_string()),
            ("memory, MiB".into(), m.memory_mib.to_string()),
            ("kernel".into(), m.kernel.clone()),
            ("C library".into(), m.libc.clone()),
            ("transparent huge pages".into(), m.transparent_hugepage.clone()),
            ("vm.overcommit_memory".into(), m.overcommit_memory.clone()),
            ("frequency governor".into(), m.governor.clone().unwrap_or_default()),
            ("quick".into(), run.quick.to_string()),
        ];
        facts.extend(run.allocators.iter().map(|one| (one.name.clone(), one.version.clone())));
        facts
    };
    let later = facts(after);
    let pair = |(name, was): (String, String)| {
        let is = later.iter().find(|(other, _)| *other == name)?.1.clone();
        (was != is).then_some((name, was, is))
    };
    facts(before).into_iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{bad, row, run};
    use crate::{Experiment, Metric, Row};

    const WALL: Figure = Figure { experiment: "e", case: "c", metric: "wall" };

    fn of_values(values: &[(&str, &[f64])]) -> Run {
        let mut rows: Vec<Row> = Vec::new();
        for (name, values) in values {
            rows.extend(values.iter().zip(1..).map(|(value, round)| row(WALL, name, round, *value)));
        }
        run(&["glibc", "neap"], rows)
    }

    fn outcome(before: &Run, after: &Run) -> Outcome {
        let comparison = compare(before, after);
        comparison.changes.iter().find(|change| change.allocator == "neap").unwrap().outcome
    }

    // Would catch a regression that is not seen, and one that is reported where all is noise.
    #[test]
    fn beyond_noise() {
        let before = of_values(&[("neap", &[10.0, 10.2, 9.9, 10.1, 10.0])]);
        assert_eq!(outcome(&before, &of_values(&[("neap", &[12.0, 12.1, 11.9, 12.2, 12.0])])), Outcome::Worse);
        assert_eq!(outcome(&before, &of_values(&[("neap", &[8.0, 8.1, 7.9, 8.2, 8.0])])), Outcome::Better);
        // Clear, but 3 % only; large, but the ranges overlap.
        assert_eq!(outcome(&before, &of_values(&[("neap", &[10.3, 10.35, 10.3, 10.4, 10.3])])), Outcome::Same);
        assert_eq!(outcome(&before, &of_values(&[("neap", &[12.0, 9.0, 14.0, 9.5, 12.0])])), Outcome::Same);
        assert_eq!(outcome(&before, &of_values(&[("neap", &[20.0])])), Outcome::Unclear);
    }

    // Would catch a slower machine that counts as a regression of neap, and a quicker one that hides one.
    #[test]
    fn glibc_tells_the_machine() {
        let before = of_values(&[("glibc", &[20.0; 5]), ("neap", &[10.0; 5])]);
        let slower = of_values(&[("glibc", &[40.0; 5]), ("neap", &[20.0; 5])]);
        assert_eq!(outcome(&before, &slower), Outcome::Same);
        let worse = of_values(&[("glibc", &[20.0; 5]), ("neap", &[12.0; 5])]);
        assert_eq!(outcome(&before, &worse), Outcome::Worse);
    }

    // Would catch a crash that is no regression, and a rate whose fall is a gain.
    #[test]
    fn failures_and_rates() {
        let good = of_values(&[("neap", &[10.0; 5])]);
        let crashed = run(&["glibc", "neap"], vec![bad(WALL, "neap", 1, "signal:11")]);
        assert_eq!((outcome(&good, &crashed), outcome(&crashed, &good)), (Outcome::Worse, Outcome::Better));
        let worse = |allocator| compare(&good, &crashed).worse(allocator).count();
        assert_eq!((worse("neap"), worse("glibc")), (1, 0));
        let mut fell = of_values(&[("neap", &[5.0; 5])]);
        let metric = Metric { name: "wall".into(), better: Better::More, ..Metric::default() };
        fell.experiments = vec![Experiment { name: "e".into(), metrics: vec![metric], ..Experiment::default() }];
        assert_eq!(outcome(&good, &fell), Outcome::Worse);
        let none = of_values(&[("neap", &[0.0; 5])]);
        assert_eq!(outcome(&none, &good), Outcome::Worse);
        assert_eq!(outcome(&of_values(&[("neap", &[0.0])]), &good), Outcome::Unclear);
    }

    // Would catch an allocator or a case that is gone in silence, and one that is named once for each of its figures.
    #[test]
    fn what_is_lost_is_reported() {
        let figure = |experiment, case| Figure { experiment, case, metric: "wall" };
        let all = |figure| ["glibc", "neap", "a", "b"].map(|name| row(figure, name, 1, 1.0));
        let mut before = run(&["glibc", "neap", "a", "b"], [figure("e", "c"), figure("e", "d")].map(all).concat());
        before.rows.extend([row(figure("f", "c"), "neap", 1, 1.0), row(figure("f", "d"), "neap", 1, 1.0)]);
        let mut after = before.clone();
        after.rows.retain(|row| row.experiment == "e" && row.allocator != "a");
        // Skipped is lost too; failed is not.
        for row in after.rows.iter_mut().filter(|row| row.case == "d") {
            match row.allocator.as_str() {
                "b" => row.status = "skipped: no root".into(),
                "neap" => row.status = "signal:11".into(),
                _ => {}
            }
        }
        let comparison = compare(&before, &after);
        let named: Vec<String> = comparison.only_before.iter().map(Missing::to_string).collect();
        assert_eq!(named, ["all of a", "e, d, b", "all of f"]);
        assert_eq!((comparison.only_after.len(), comparison.lost("neap").count()), (0, 1));
        after.rows.retain(|row| row.case != "d");
        let named: Vec<String> = compare(&before, &after).lost("neap").map(Missing::to_string).collect();
        assert_eq!(named, ["e, d", "all of f"]);
    }

    // Would catch two machines that are compared in silence.
    #[test]
    fn settings_are_shown() {
        let mut before = of_values(&[("neap", &[10.0; 5])]);
        let mut after = before.clone();
        before.machine.kernel = "6.1".into();
        after.machine.kernel = "6.18".into();
        let comparison = compare(&before, &after);
        assert_eq!(comparison.settings, [("kernel".into(), "6.1".into(), "6.18".into())]);
    }
}
