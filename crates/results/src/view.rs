//! The rows of a run, sorted: medians, spreads, ratios within a round, the best peer.

use std::collections::{BTreeMap, BTreeSet};

use crate::stats::{Ratio, Spread};
use crate::{Better, GLIBC, NEAP, Row, Run};

/// One figure of all allocators: experiment, case, metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Figure<'a> {
    /// Which experiment.
    pub experiment: &'a str,
    /// Which case.
    pub case: &'a str,
    /// Which metric.
    pub metric: &'a str,
}

impl<'a> Figure<'a> {
    /// A figure.
    pub fn new(experiment: &'a str, case: &'a str, metric: &'a str) -> Figure<'a> {
        Figure { experiment, case, metric }
    }
}

/// The value of a figure under one allocator.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The spread over the rounds.
    Is(Spread),
    /// It failed in a round: the status of the first failure.
    Failed(String),
    /// It was left out for a reason: the status, `skipped: WHY`.
    Skipped(String),
    /// It was not run.
    Absent,
}

impl Value {
    /// The spread; none where there is no figure.
    pub fn spread(&self) -> Option<Spread> {
        match self {
            Value::Is(spread) => Some(*spread),
            _ => None,
        }
    }
}

/// One execution of one case under one allocator.
#[derive(Debug, Default)]
struct Outcome {
    status: String,
    /// By name: unit and value.
    metrics: BTreeMap<String, (String, f64)>,
}

/// Experiment, case, allocator, round.
type Key = (String, String, String, u32);

/// All rows of a run.
#[derive(Debug, Default)]
pub struct View {
    /// In the order of the tables.
    allocators: Vec<String>,
    /// Variants, and the allocators that they are variants of.
    bases: BTreeMap<String, String>,
    runs: BTreeMap<Key, Outcome>,
}

impl View {
    /// Sorts the rows of a run.
    pub fn of(run: &Run) -> View {
        let mut runs: BTreeMap<Key, Outcome> = BTreeMap::new();
        for Row { experiment, case, allocator, round, status, metric, unit, value, .. } in &run.rows {
            let outcome = runs.entry((experiment.clone(), case.clone(), allocator.clone(), *round)).or_default();
            // One failed row is enough, wherever it is among the others.
            if outcome.status.is_empty() || outcome.status == "ok" {
                outcome.status.clone_from(status);
            }
            if !metric.is_empty() {
                outcome.metrics.insert(metric.clone(), (unit.clone(), *value));
            }
        }
        let mut allocators: Vec<String> = run.allocators.iter().map(|one| one.name.clone()).collect();
        for (_, _, name, _) in runs.keys() {
            if !allocators.contains(name) {
                allocators.push(name.clone());
            }
        }
        let base = |one: &crate::Allocator| Some((one.name.clone(), one.base.clone()?));
        View { allocators, bases: run.allocators.iter().filter_map(base).collect(), runs }
    }

    /// The allocators, in the order of the tables; those that are only in the rows come last.
    pub fn allocators(&self) -> &[String] {
        &self.allocators
    }

    /// The allocator that `name` is a variant of, or `name` itself.
    pub fn base<'a>(&'a self, name: &'a str) -> &'a str {
        self.bases.get(name).map_or(name, String::as_str)
    }

    /// The executions of one case under one allocator, by round.
    fn rounds(&self, figure: Figure, allocator: &str) -> impl Iterator<Item = (u32, &Outcome)> {
        let key = |round| (figure.experiment.to_owned(), figure.case.to_owned(), allocator.to_owned(), round);
        self.runs.range(key(0)..=key(u32::MAX)).map(|(key, outcome)| (key.3, outcome))
    }

    /// The good values, by round.
    fn by_round(&self, figure: Figure, allocator: &str) -> BTreeMap<u32, f64> {
        let good = self.rounds(figure, allocator).filter(|(_, outcome)| outcome.status == "ok");
        good.filter_map(|(round, outcome)| Some((round, outcome.metrics.get(figure.metric)?.1))).collect()
    }

    /// Whether the case has any run.
    pub fn has_case(&self, experiment: &str, case: &str) -> bool {
        let figure = Figure::new(experiment, case, "");
        self.allocators.iter().any(|allocator| self.rounds(figure, allocator).next().is_some())
    }

    /// Whether the experiment has any run.
    pub fn has_experiment(&self, experiment: &str) -> bool {
        self.runs.keys().any(|key| key.0 == experiment)
    }

    /// Whether the allocator has any run, good or not, in the experiment.
    pub fn took_part(&self, experiment: &str, allocator: &str) -> bool {
        self.runs.keys().any(|key| key.0 == experiment && key.2 == allocator)
    }

    /// Experiment, case and allocator of all that was run, well or not; what was skipped is left out.
    pub fn ran(&self) -> BTreeSet<[&str; 3]> {
        let ran = self.runs.iter().filter(|(_, outcome)| !outcome.status.starts_with("skipped"));
        ran.map(|((experiment, case, allocator, _), _)| [experiment.as_str(), case, allocator]).collect()
    }

    /// Every figure of every run, sorted: experiment, case, metric.
    pub fn figures(&self) -> Vec<Figure<'_>> {
        let all = self
            .runs
            .iter()
            .flat_map(|(key, outcome)| outcome.metrics.keys().map(move |metric| Figure::new(&key.0, &key.1, metric)));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The unit of a figure; empty where it has no row.
    pub fn unit(&self, figure: Figure) -> &str {
        let of = |allocator: &String| {
            self.rounds(figure, allocator).find_map(|(_, outcome)| Some(outcome.metrics.get(figure.metric)?.0.as_str()))
        };
        self.allocators.iter().find_map(of).unwrap_or_default()
    }

    /// The spread over the rounds; failed where one run failed.
    pub fn value(&self, figure: Figure, allocator: &str) -> Value {
        let bad = self.rounds(figure, allocator).find(|(_, outcome)| outcome.status != "ok");
        match bad.map(|(_, outcome)| outcome.status.clone()) {
            Some(status) if status.starts_with("skipped") => Value::Skipped(status),
            Some(status) => Value::Failed(status),
            None => Spread::of(&self.values(figure, allocator)).map_or(Value::Absent, Value::Is),
        }
    }

    /// The figure of one good run.
    pub fn at(&self, figure: Figure, allocator: &str, round: u32) -> Option<f64> {
        self.by_round(figure, allocator).get(&round).copied()
    }

    /// The figure of each good run, by round.
    pub fn values(&self, figure: Figure, allocator: &str) -> Vec<f64> {
        self.by_round(figure, allocator).into_values().collect()
    }

    /// The median over the rounds; none where a run failed.
    pub fn median(&self, figure: Figure, allocator: &str) -> Option<f64> {
        self.value(figure, allocator).spread().map(|spread| spread.median)
    }

    /// The ratio to `base`, pairs within one round; none where a run of either failed.
    pub fn ratio(&self, figure: Figure, allocator: &str, base: &str) -> Option<Ratio> {
        self.ratio_of((figure, allocator), (figure, base))
    }

    /// The ratio of any two figures, pairs within one round: two cases of one allocator, two metrics of one case.
    pub fn ratio_of(&self, of: (Figure, &str), to: (Figure, &str)) -> Option<Ratio> {
        self.median(of.0, of.1)?;
        self.median(to.0, to.1)?;
        let bases = self.by_round(to.0, to.1);
        let own = self.by_round(of.0, of.1);
        let pairs: Vec<_> = own.iter().filter_map(|(round, value)| Some((*value, *bases.get(round)?))).collect();
        Ratio::paired(&pairs)
    }

    /// The ratios to `base`, each within one round; empty where a run of either failed.
    pub fn ratios(&self, figure: Figure, allocator: &str, base: &str) -> Vec<f64> {
        if self.median(figure, allocator).is_none() || self.median(figure, base).is_none() {
            return Vec::new();
        }
        let bases = self.by_round(figure, base);
        let own = self.by_round(figure, allocator);
        let ratio = |(round, value): (&u32, &f64)| bases.get(round).map(|base| value / base);
        own.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()).collect()
    }

    /// Allocators that have the figure, from the best; of equal ones the first in the order of the tables. Without
    /// [`Better`] there is no best.
    pub fn ranked(&self, figure: Figure, better: Better) -> Vec<(&str, f64)> {
        let with = |name: &'_ String| self.median(figure, name);
        let mut all: Vec<(&str, f64)> =
            self.allocators.iter().filter_map(|name| Some((name.as_str(), with(name)?))).collect();
        match better {
            Better::Less => all.sort_by(|a, b| a.1.total_cmp(&b.1)),
            Better::More => all.sort_by(|a, b| b.1.total_cmp(&a.1)),
            Better::Neither => all.clear(),
        }
        all
    }

    /// The best allocator that is neither neap nor a variant of it, and that `admit` accepts.
    pub fn best_peer(&self, figure: Figure, better: Better, admit: impl Fn(&str) -> bool) -> Option<(&str, f64)> {
        self.ranked(figure, better).into_iter().find(|(name, _)| self.base(name) != NEAP && admit(name))
    }

    /// Whether glibc has the figure.
    pub fn has_baseline(&self, figure: Figure) -> bool {
        self.median(figure, GLIBC).is_some()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Allocator;

    /// A good row.
    pub fn row(figure: Figure, allocator: &str, round: u32, value: f64) -> Row {
        Row {
            experiment: figure.experiment.into(),
            case: figure.case.into(),
            allocator: allocator.into(),
            round,
            turn: 1,
            status: "ok".into(),
            metric: figure.metric.into(),
            unit: "ms".into(),
            value,
        }
    }

    /// A row of a run without figures.
    pub fn bad(figure: Figure, allocator: &str, round: u32, status: &str) -> Row {
        Row { status: status.into(), metric: String::new(), unit: String::new(), ..row(figure, allocator, round, 0.0) }
    }

    /// A run with these rows; allocators `NAME` or `NAME=BASE`.
    pub fn run(allocators: &[&str], rows: Vec<Row>) -> Run {
        let allocator = |text: &&str| {
            let (name, base) = text.split_once('=').map_or((*text, None), |(name, base)| (name, Some(base.into())));
            Allocator { name: name.into(), base, ..Allocator::default() }
        };
        Run { schema: crate::SCHEMA, allocators: allocators.iter().map(allocator).collect(), rows, ..Run::default() }
    }

    const WALL: Figure = Figure { experiment: "e", case: "c", metric: "wall" };

    // Would catch a failed or skipped run that is left out of the median, or read as the other.
    #[test]
    fn failures_are_shown() {
        let rows = vec![
            row(WALL, "neap", 1, 1.0),
            row(WALL, "neap", 2, 3.0),
            row(WALL, "other", 1, 1.0),
            bad(WALL, "other", 2, "signal:11"),
            bad(WALL, "third", 1, "skipped: no root"),
        ];
        let view = View::of(&run(&["neap", "other", "third", "fourth"], rows));
        assert_eq!(view.value(WALL, "neap").spread().unwrap().median, 2.0);
        assert_eq!(view.value(WALL, "other"), Value::Failed("signal:11".into()));
        assert_eq!(view.value(WALL, "third"), Value::Skipped("skipped: no root".into()));
        assert_eq!(view.value(WALL, "fourth"), Value::Absent);
        assert_eq!((view.unit(WALL), view.took_part("e", "third"), view.took_part("e", "fourth")), ("ms", true, false));
    }

    // Would catch ratios that pair runs of different rounds.
    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut rows = Vec::new();
        for (round, base) in [(1, 10.0), (2, 100.0), (3, 1000.0)] {
            rows.extend([row(WALL, "neap", round, base / 2.0), row(WALL, "glibc", round, base)]);
        }
        let view = View::of(&run(&["glibc", "neap"], rows));
        let ratio = view.ratio(WALL, "neap", "glibc").unwrap();
        assert_eq!((ratio.low, ratio.high, ratio.count), (0.5, 0.5, 3));
        assert_eq!(view.ratios(WALL, "neap", "glibc"), [0.5; 3]);
    }

    // Would catch a variant of neap that counts as its peer, and a best that is the worst.
    #[test]
    fn the_best_peer() {
        let rows = [("neap", 1.0), ("neap-lazy", 0.5), ("a", 3.0), ("b", 2.0)].map(|(name, v)| row(WALL, name, 1, v));
        let view = View::of(&run(&["neap", "neap-lazy=neap", "a", "b"], rows.into()));
        assert_eq!(view.best_peer(WALL, Better::Less, |_| true), Some(("b", 2.0)));
        assert_eq!(view.best_peer(WALL, Better::More, |_| true), Some(("a", 3.0)));
        assert_eq!(view.best_peer(WALL, Better::Less, |name| name != "b"), Some(("a", 3.0)));
        assert_eq!(view.best_peer(WALL, Better::Neither, |_| true), None);
    }
}
