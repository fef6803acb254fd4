//! The rounds of a run: each case under each allocator, row by row, and the repetition of noisy rounds.
//!
//! A round of a timed experiment during which the machine was busy with other work is repeated once, as long as repeats
//! take no more than a tenth of the run. A round in which an allocator failed is not repeated, because its failure
//! would be lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use neap_results::{Listing, Noise, Repeat, Row};

use crate::allocators::{self, Allocator};
use crate::catalogue::Design;
use crate::event::Event;
use crate::noise::Watch;
use crate::outcome::{Metric, Outcome};
use crate::runner::Runner;
use crate::store::Writer;
use crate::turns::Group;

/// Rounds are run again for at most this fraction of the time.
const REPEAT_PART: f64 = 0.1;

/// One execution of a case: case, allocator, outcome.
type Ran<'a> = (&'a str, &'a str, Outcome);

/// A run in progress.
pub struct Session<'a> {
    runner: Runner<'a>,
    watch: Watch,
    writer: Writer,
    /// Rounds, instead of each experiment's own.
    runs: Option<u32>,
    begun: Instant,
    /// Time spent on rounds that were run again.
    repeated: Duration,
    repeats: Vec<Repeat>,
    doubtful: Vec<Repeat>,
    rows: Vec<Row>,
    /// Output of the experiment in progress, by title: that of a later round replaces that of an earlier one.
    listings: BTreeMap<String, String>,
    /// Notes on the experiment that has just ended.
    notes: Vec<String>,
    /// Groups of cases, and how many of them were begun.
    total: usize,
    done: usize,
}

impl<'a> Session<'a> {
    /// A run with `total` groups of cases, before the first of them.
    pub fn new(runner: Runner<'a>, writer: Writer, runs: Option<u32>, total: usize) -> Session<'a> {
        let (repeats, doubtful, rows, listings, notes) = Default::default();
        Session {
            runner,
            watch: Watch::start(),
            writer,
            runs,
            begun: Instant::now(),
            repeated: Duration::ZERO,
            repeats,
            doubtful,
            rows,
            listings,
            notes,
            total,
            done: 0,
        }
    }

    /// The listings of the last experiment.
    pub fn take_listings(&mut self) -> Vec<Listing> {
        let all = std::mem::take(&mut self.listings).into_iter();
        all.map(|(title, text)| Listing { title, text }).collect()
    }

    /// The notes on the last experiment.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The rows, the noise, and the writer of the folder.
    pub fn end(self) -> (Vec<Row>, Noise, Writer) {
        let noise = Noise { repeats: self.repeats, doubtful: self.doubtful, ..self.watch.record() };
        (self.rows, noise, self.writer)
    }

    /// Runs all cases of one experiment.
    pub fn experiment(&mut self, design: &Design, chosen: &[Allocator], tell: &mut dyn FnMut(Event)) -> Result<()> {
        let result = self.cases(design, chosen, tell);
        self.notes = self.runner.tidy();
        result
    }

    fn cases(&mut self, design: &Design, chosen: &[Allocator], tell: &mut dyn FnMut(Event)) -> Result<()> {
        let mut allocators: Vec<Allocator> = chosen.to_vec();
        for variant in design.variants.iter().filter_map(|name| allocators::variant(name, chosen)) {
            if !allocators.iter().any(|other| other.name == variant.name) {
                allocators.push(variant);
            }
        }
        // Why a case cannot be run here.
        let mut lacking: BTreeMap<&str, String> = BTreeMap::new();
        for case in &design.cases {
            if let Some(reason) = self.runner.prepare(case)? {
                lacking.insert(&case.name, reason);
            }
        }
        for allocator in &allocators {
            self.runner.warm_up(allocator)?;
        }
        for cases in design.groups() {
            self.done += 1;
            let group = Group::new(cases, &allocators, self.done - 1);
            if group.cases.is_empty() {
                continue;
            }
            tell(Event::Begins(design.name, &group.name, self.done, self.total));
            let begun = Instant::now();
            let failures = self.rounds(design, (&group, &lacking), tell)?;
            tell(Event::Ended(design.name, &group.name, begun.elapsed(), &failures));
        }
        Ok(())
    }

    /// Runs all rounds of one group of cases; returns the failures.
    fn rounds(
        &mut self,
        design: &Design,
        (group, lacking): (&Group, &BTreeMap<&str, String>),
        tell: &mut dyn FnMut(Event),
    ) -> Result<Vec<String>> {
        let most = group.cases.iter().map(|(case, _)| case.most_rounds).max().unwrap_or(1);
        let rounds = self.runs.unwrap_or(design.rounds.min(most)).max(1);
        let mut failures: Vec<String> = Vec::new();
        // Cases with allocators that were skipped or ran out of time: they are not run again.
        let mut given_up: Vec<(&str, &str)> = Vec::new();
        self.watch.look();
        for round in 0..rounds {
            let before = self.rows.len();
            let mut first = true;
            let results = loop {
                let begun = Instant::now();
                let results = self.round(design, group, (round, &given_up, lacking))?;
                let seen = self.watch.look().complaint().filter(|_| design.timed);
                let affordable = self.repeated + begun.elapsed() <= self.begun.elapsed().mul_f64(REPEAT_PART);
                let noted = |reason| Repeat { experiment: design.name.into(), case: group.name.clone(), reason };
                match seen.map(|reason| (doubt(&results, first && affordable), reason)) {
                    Some((Doubt::Again, reason)) => {
                        tell(Event::Again(design.name, &group.name, &reason));
                        self.repeats.push(noted(reason));
                        self.repeated += begun.elapsed();
                        self.rows.truncate(before);
                        first = false;
                        continue;
                    }
                    Some((Doubt::Kept, reason)) => self.doubtful.push(noted(format!("{reason}, round {}", round + 1))),
                    Some((Doubt::Nothing, _)) | None => {}
                }
                break results;
            };
            for (case, name, outcome) in results {
                if outcome.is_skipped() {
                    failures.push(outcome.status.clone());
                } else if !outcome.is_ok() {
                    failures.push(format!("{name} {}", outcome.status));
                }
                if outcome.is_skipped() || outcome.status == "timeout" {
                    given_up.push((case, name));
                }
            }
        }
        failures.sort();
        failures.dedup();
        Ok(failures)
    }

    /// Runs one round of a group: each allocator once in each case, except those in `given_up`.
    fn round<'b>(
        &mut self,
        design: &Design,
        group: &'b Group,
        (round, given_up, lacking): (u32, &[(&str, &str)], &BTreeMap<&str, String>),
    ) -> Result<Vec<Ran<'b>>> {
        let mut results = Vec::new();
        for (turn, case, allocator) in group.turns(round) {
            if given_up.contains(&(case.name.as_str(), allocator.name.as_str())) {
                continue;
            }
            let mut outcome = match lacking.get(case.name.as_str()) {
                Some(reason) => Outcome::skipped(reason),
                None => self
                    .runner
                    .run(design, case, allocator)
                    .with_context(|| format!("{}, {} under {}", design.name, case.name, allocator.name))?,
            };
            let first = Row {
                experiment: design.name.into(),
                case: case.name.clone(),
                allocator: allocator.name.clone(),
                round: round + 1,
                turn: turn as u32 + 1,
                status: outcome.status.clone(),
                ..Row::default()
            };
            let rows = rows_of(&first, &outcome);
            self.writer.append(&rows)?;
            self.rows.extend(rows);
            if let Some(Listing { title, text }) = outcome.listing.take() {
                self.listings.insert(title, text);
            }
            results.push((case.name.as_str(), allocator.name.as_str(), outcome));
        }
        Ok(results)
    }
}

/// What becomes of a round during which the machine was busy.
#[derive(Debug, PartialEq)]
enum Doubt {
    /// It is run again.
    Again,
    /// It counts, and the record says that it is noisy.
    Kept,
    /// It has no figures.
    Nothing,
}

/// Decides on a noisy round; `may_repeat` says that it was not repeated yet and that there is time for it.
fn doubt(results: &[Ran], may_repeat: bool) -> Doubt {
    if results.iter().all(|(.., outcome)| outcome.is_skipped()) {
        return Doubt::Nothing;
    }
    let failed = results.iter().any(|(.., outcome)| !outcome.is_ok() && !outcome.is_skipped());
    if may_repeat && !failed { Doubt::Again } else { Doubt::Kept }
}

/// One row per figure; without figures one row with an empty metric.
fn rows_of(run: &Row, outcome: &Outcome) -> Vec<Row> {
    if outcome.metrics.is_empty() {
        return vec![run.clone()];
    }
    let row = |metric: &Metric| Row {
        metric: metric.name.clone(),
        unit: metric.unit.clone(),
        value: metric.value,
        ..run.clone()
    };
    outcome.metrics.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a crash that is lost because its round was noisy and is run again.
    #[test]
    fn a_failure_is_not_run_again() {
        let ran = |outcome| ("case", "allocator", outcome);
        let good = || ran(Outcome::good(vec![Metric::new("ms", "ms", 1.0)]));
        let skipped = || ran(Outcome::skipped("needs root"));
        assert_eq!(doubt(&[good(), skipped()], true), Doubt::Again);
        assert_eq!(doubt(&[good(), skipped()], false), Doubt::Kept);
        for status in ["signal:11", "timeout", "exit:3", "wrong-checksum"] {
            assert_eq!(doubt(&[good(), ran(Outcome::failed(status))], true), Doubt::Kept, "{status}");
        }
        assert_eq!(doubt(&[skipped(), skipped()], true), Doubt::Nothing);
        assert_eq!(doubt(&[], true), Doubt::Nothing);
    }
}
