//! The rows of a pass, sorted: medians, spreads, ratios within a round, the best peer.

use std::collections::BTreeMap;

use super::data::{Outcome, Row};
use crate::allocators::{NEAP, base_of};
use crate::experiments::data::Metric;
use neap_results::stats::{Spread, median};

/// One figure of all allocators: experiment, case, metric.
#[derive(Clone, Copy, Debug)]
pub struct Figure<'a> {
    /// Which experiment.
    pub experiment: &'a str,
    /// Which case.
    pub case: &'a str,
    /// Which metric.
    pub metric: &'a str,
}

/// What a figure came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Over the rounds.
    Is(Spread),
    /// Why a run has no figures.
    Failed(String),
    /// It was not run.
    Absent,
}

/// Whether a figure is the better the less or the more it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Better {
    /// Times, bytes, faults.
    Less,
    /// Rates.
    More,
}

/// All rows of a pass.
#[derive(Debug, Default)]
pub struct View {
    /// In the order of the tables.
    pub allocators: Vec<String>,
    /// Processors that the programs could use.
    pub cores: u32,
    /// By experiment, case, allocator, round.
    runs: BTreeMap<(String, String, String, u32), Outcome>,
}

impl View {
    /// Sorts `rows`; `allocators` gives the order.
    pub fn of(rows: &[Row], allocators: Vec<String>, cores: u32) -> View {
        let mut runs: BTreeMap<_, Outcome> = BTreeMap::new();
        for row in rows {
            let key = (row.experiment.clone(), row.case.clone(), row.allocator.clone(), row.round);
            let outcome = runs.entry(key).or_insert_with(|| Outcome::failed(row.status.clone()));
            if !row.metric.is_empty() {
                outcome.metrics.push(Metric::new(&row.metric, &row.unit, row.value));
            }
        }
        View { allocators, cores, runs }
    }

    /// The runs of one case under one allocator, by round.
    fn rounds<'a>(&'a self, figure: Figure<'a>, allocator: &'a str) -> impl Iterator<Item = (u32, &'a Outcome)> {
        let key = |round| (figure.experiment.to_owned(), figure.case.to_owned(), allocator.to_owned(), round);
        self.runs.range(key(0)..=key(u32::MAX)).map(|(key, outcome)| (key.3, outcome))
    }

    /// Whether any run of the case is there.
    pub fn has_case(&self, experiment: &str, case: &str) -> bool {
        let figure = Figure { experiment, case, metric: "" };
        self.allocators.iter().any(|allocator| self.rounds(figure, allocator).next().is_some())
    }

    /// The spread over the rounds; failed where one run failed.
    pub fn value(&self, figure: Figure, allocator: &str) -> Value {
        if let Some((_, failed)) = self.rounds(figure, allocator).find(|(_, outcome)| !outcome.is_ok()) {
            return Value::Failed(failed.status.clone());
        }
        match Spread::of(&self.values(figure, allocator)) {
            Some(spread) => Value::Is(spread),
            None => Value::Absent,
        }
    }

    /// The figure of each good run.
    pub fn values(&self, figure: Figure, allocator: &str) -> Vec<f64> {
        self.rounds(figure, allocator).filter_map(|(_, outcome)| outcome.value(figure.metric)).collect()
    }

    /// The median over the rounds; none where a run failed.
    pub fn median(&self, figure: Figure, allocator: &str) -> Option<f64> {
        match self.value(figure, allocator) {
            Value::Is(spread) => Some(spread.median),
            _ => None,
        }
    }

    /// The median of the ratios to `base`, each within one round; none where a run of either failed.
    pub fn ratio(&self, figure: Figure, allocator: &str, base: &str) -> Option<f64> {
        self.median(figure, allocator)?;
        self.median(figure, base)?;
        let other: BTreeMap<u32, f64> = self
            .rounds(figure, base)
            .filter_map(|(round, outcome)| Some((round, outcome.value(figure.metric)?)))
            .collect();
        let ratios: Vec<f64> = self
            .rounds(figure, allocator)
            .filter_map(|(round, outcome)| Some(outcome.value(figure.metric)? / other.get(&round)?))
            .collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }

    /// Every allocator that is not neap in some form.
    pub fn peers(&self) -> impl Iterator<Item = &str> {
        self.allocators.iter().map(String::as_str).filter(|name| base_of(name) != NEAP)
    }

    /// The peer with the best median among those that `admit` lets in.
    pub fn best_peer(&self, figure: Figure, better: Better, admit: impl Fn(&str) -> bool) -> Option<(&str, f64)> {
        let medians =
            self.peers().filter(|name| admit(name)).filter_map(|name| Some((name, self.median(figure, name)?)));
        match better {
            Better::Less => medians.min_by(|a, b| a.1.total_cmp(&b.1)),
            Better::More => medians.max_by(|a, b| a.1.total_cmp(&b.1)),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row for tests: `experiment`, `case`, `metric` and the rest.
    pub fn row(figure: Figure, allocator: &str, round: u32, value: f64) -> Row {
        Row {
            experiment: figure.experiment.into(),
            case: figure.case.into(),
            allocator: allocator.into(),
            round,
            turn: 1,
            status: "ok".into(),
            metric: figure.metric.into(),
            unit: "any".into(),
            value,
        }
    }

    const WALL: Figure = Figure { experiment: "e", case: "c", metric: "wall" };

    fn view(rows: &[Row]) -> View {
        View::of(rows, ["glibc", "neap", "neap-eager", "other"].map(String::from).into(), 2)
    }

    // Would catch ratios of medians where ratios within a round are asked for.
    #[test]
    fn ratios_pair_runs_of_one_round() {
        let values = |name, values: [f64; 3]| (1..).zip(values).map(move |(round, v)| row(WALL, name, round, v));
        let rows: Vec<Row> = values("neap", [1.0, 20.0, 3.0]).chain(values("glibc", [2.0, 10.0, 6.0])).collect();
        let view = view(&rows);
        assert_eq!(view.ratio(WALL, "neap", "glibc"), Some(0.5));
        assert_eq!(view.median(WALL, "neap"), Some(3.0));
        assert_eq!(view.ratio(WALL, "neap", "other"), None);
    }

    // Would catch a median over the runs that survived.
    #[test]
    fn one_failed_run_fails_the_figure() {
        let mut crashed = row(WALL, "neap", 2, 0.0);
        crashed.status = "signal:11".into();
        crashed.metric = String::new();
        let view = view(&[row(WALL, "neap", 1, 5.0), crashed]);
        assert_eq!(view.value(WALL, "neap"), Value::Failed("signal:11".into()));
        assert_eq!(view.value(WALL, "glibc"), Value::Absent);
        assert_eq!(view.median(WALL, "neap"), None);
    }

    // Would catch neap with other options as a peer of neap.
    #[test]
    fn neap_is_no_peer_of_itself() {
        let rows = [row(WALL, "neap-eager", 1, 1.0), row(WALL, "other", 1, 2.0), row(WALL, "glibc", 1, 3.0)];
        let view = view(&rows);
        assert_eq!(view.best_peer(WALL, Better::Less, |_| true), Some(("other", 2.0)));
        assert_eq!(view.best_peer(WALL, Better::More, |_| true), Some(("glibc", 3.0)));
        assert_eq!(view.best_peer(WALL, Better::Less, |name| name != "other"), Some(("glibc", 3.0)));
    }
}
