//! A run: which experiments under which allocators, in which order, and what is kept of it.
//!
//! Each case is run once per allocator and round, allocators one after the other, so that a slow minute of the machine
//! meets all of them. Who comes first rotates from case to case and from pair of rounds to pair of rounds; the second
//! round of a pair has the order of the first one backwards, so that nobody always runs behind the same one. Where cases are compared with each other, an
//! allocator runs all of them before the next one has its turn. A round of a timed experiment during which the machine
//! was busy with other work is run again, once, as long as that takes no more than a tenth of the run.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use neap_results::{Experiment, Repeat, Row, Run, SCHEMA, View};

use crate::allocators::{self, Allocator};
use crate::catalogue::{self, Case, Design};
use crate::failure::failure;
use crate::interrupt::{self, Interrupted};
use crate::machine;
use crate::noise::Watch;
use crate::outcome::Outcome;
use crate::peers;
use crate::place::Place;
use crate::runner::{Runner, command_text};
use crate::settings::Settings;
use crate::store::Writer;
use crate::turns::Group;

/// Rounds are run again for at most this part of the time.
const REPEAT_PART: f64 = 0.1;

/// What the user asks for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Experiments by name; all where it is empty or has `all`.
    pub names: Vec<String>,
    /// Only cases whose name has one of these texts in it; all where it is empty.
    pub cases: Vec<String>,
    /// Fewer cases with less work.
    pub quick: bool,
    /// Rounds, instead of each experiment's own.
    pub runs: Option<u32>,
    /// Allocators by name or NAME=PATH; all there are where it is empty.
    pub allocators: Vec<String>,
    /// Where the run is kept.
    pub output: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// The commit of the project's tree, where it is run from there.
    pub commit: Option<String>,
}

/// What happens, for progress.
#[derive(Debug)]
pub enum Event<'a> {
    /// An allocator that is not measured, and why.
    LeftOut(&'a str),
    /// A case begins: experiment, case, its number, of how many.
    Begins(&'a str, &'a str, usize, usize),
    /// A case has ended: experiment, case, its time, allocators that failed.
    Ended(&'a str, &'a str, Duration, &'a [String]),
    /// A round is run again: experiment, case, why.
    Again(&'a str, &'a str, &'a str),
    /// An experiment has ended: its name, its time, with the making of its programs.
    Finished(&'a str, Duration),
}

/// How a run ended.
#[derive(Debug)]
pub struct Done {
    /// What was measured.
    pub run: Run,
    /// The signal that interrupted it.
    pub interrupted: Option<i32>,
}

/// The experiments called `names`, with those of their cases that `cases` ask for.
pub fn chosen(names: &[String], cases: &[String], quick: bool) -> Result<Vec<Design>> {
    let known = catalogue::names();
    let everything = names.is_empty() || names.iter().any(|name| name == "all");
    for name in names.iter().filter(|name| *name != "all") {
        if !known.contains(&name.as_str()) {
            let remedy = format!("there are {}, or all", known.join(", "));
            return Err(failure(format!("no experiment is called `{name}`"), remedy));
        }
    }
    let mut designs = catalogue::all(quick);
    designs.retain(|design| everything || names.iter().any(|name| name == design.name));
    if !cases.is_empty() {
        for design in &mut designs {
            design.cases.retain(|case| cases.iter().any(|text| case.name.contains(text.as_str())));
        }
        designs.retain(|design| !design.cases.is_empty());
        if designs.is_empty() {
            let remedy = "`neap lab list --json` has their names; a part of a name is enough";
            return Err(failure(format!("no case has `{}` in its name", cases.join("` or `")), remedy));
        }
    }
    Ok(designs)
}

/// Runs what was asked for. An interruption is no error: what was measured until then is kept.
pub fn run(place: &Place, request: &Request, tell: &mut dyn FnMut(Event)) -> Result<Done> {
    interrupt::watch();
    let designs = chosen(&request.names, &request.cases, request.quick)?;
    let allocators = allocators::resolve(place, &request.allocators, &mut |reason| tell(Event::LeftOut(reason)))?;
    // What a killed run left is put back before the settings are recorded.
    drop(Settings::new(place));
    let mut run = skeleton(place, request, &designs, &allocators);
    let writer = Writer::create(&request.output, &run)?;
    let mut session = Session {
        request,
        runner: Runner::new(place, Some(&request.output))?,
        watch: Watch::start(),
        writer,
        begun: Instant::now(),
        repeated: Duration::ZERO,
        repeats: Vec::new(),
        rows: Vec::new(),
        notes: Vec::new(),
        total: designs.iter().map(|design| design.groups().len()).sum(),
        done: 0,
    };
    let mut interrupted = None;
    for (design, experiment) in designs.iter().zip(&mut run.experiments) {
        let begun = Instant::now();
        let result = session.experiment(design, &allocators, tell);
        experiment.notes = std::mem::take(&mut session.notes);
        experiment.seconds = Some((begun.elapsed().as_secs_f64() * 10.0).round() / 10.0);
        match result {
            Ok(()) => tell(Event::Finished(design.name, begun.elapsed())),
            Err(error) if error.is::<Interrupted>() => {
                interrupted = error.downcast_ref::<Interrupted>().map(|signal| signal.0);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    run.rows = std::mem::take(&mut session.rows);
    run.noise = session.watch.record();
    run.noise.repeats = std::mem::take(&mut session.repeats);
    run.machine.load_after = machine::load();
    run.ended = interrupted.is_none().then(machine::utc_now);
    if interrupted.is_some() {
        run.notes.push("The run was interrupted: experiments are missing or have fewer rounds.".into());
    }
    conclude(&mut run);
    session.writer.finish(&run)?;
    Ok(Done { run, interrupted })
}

/// The run before anything was measured.
fn skeleton(place: &Place, request: &Request, designs: &[Design], allocators: &[Allocator]) -> Run {
    let mut measured: Vec<Allocator> = Vec::new();
    for allocator in allocators {
        measured.push(allocator.clone());
        for design in designs {
            let variants = design.variants.iter().filter_map(|name| allocators::variant(name, allocators));
            for variant in variants.filter(|variant| variant.base_name() == allocator.name) {
                if !measured.iter().chain(allocators).any(|other| other.name == variant.name) {
                    measured.push(variant);
                }
            }
        }
    }
    Run {
        schema: SCHEMA,
        neap: place.version.clone(),
        commit: request.commit.clone(),
        command: request.command.clone(),
        started: machine::utc_now(),
        quick: request.quick,
        rounds: request.runs.unwrap_or_else(|| designs.iter().map(|design| design.rounds).max().unwrap_or(1)),
        machine: machine::look(),
        allocators: measured.iter().map(|allocator| allocator.record(place)).collect(),
        experiments: designs.iter().map(|design| experiment_of(design, request.quick)).collect(),
        notes: old_peers(place, allocators).into_iter().collect(),
        ..Run::default()
    }
}

/// Which of the allocators are peers that were built from older sources than this version of the lab names.
fn old_peers(place: &Place, allocators: &[Allocator]) -> Option<String> {
    let records = peers::records(place).unwrap_or_default();
    let old = allocators.iter().map(|allocator| allocator.name.as_str()).filter(|name| peers::is_old(&records, name));
    let old: Vec<&str> = old.collect();
    (!old.is_empty()).then(|| {
        format!(
            "Built from older sources or recipes than this version has: {}; run `{}`.",
            old.join(", "),
            place.build_peers
        )
    })
}

/// An experiment for the record.
fn experiment_of(design: &Design, quick: bool) -> Experiment {
    let case = |case: &Case| neap_results::Case {
        name: case.name.clone(),
        params: case.params.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        command: command_text(case),
    };
    Experiment {
        name: design.name.into(),
        title: design.title.into(),
        question: design.question.into(),
        about: design.about.into(),
        claims: design.claims.clone(),
        command: format!("neap lab run {}{}", design.name, if quick { " --quick" } else { "" }),
        cases: design.cases.iter().map(case).collect(),
        metrics: design.metrics.clone(),
        charts: design.charts.clone(),
        tables: design.tables.clone(),
        ..Experiment::default()
    }
}

/// Computes the verdicts from the rows, and says which experiments could not be run.
pub fn conclude(run: &mut Run) {
    let view = View::of(run);
    let designs = catalogue::all(run.quick);
    let design = |name: &str| designs.iter().find(|design| design.name == name);
    let verdicts: Vec<_> =
        run.experiments.iter().map(|one| design(&one.name).map(|design| (design.judge)(&view, run))).collect();
    for (experiment, verdicts) in run.experiments.iter_mut().zip(verdicts) {
        let rows: Vec<&Row> = run.rows.iter().filter(|row| row.experiment == experiment.name).collect();
        let skipped = |row: &&&Row| row.status.starts_with("skipped");
        let reason = rows.iter().find(skipped).map(|row| row.status.trim_start_matches("skipped: ").to_owned());
        experiment.skipped = match rows.first() {
            None => Some("not reached before the run was interrupted".into()),
            Some(_) => reason.clone().filter(|_| rows.iter().all(|row| skipped(&row))),
        };
        experiment.verdicts = verdicts.unwrap_or_default();
        // What this machine cannot tell, or nobody asked for, is no failure.
        let partly = design(&experiment.name).is_some_and(|design| experiment.cases.len() < design.cases.len());
        if reason.is_some() || rows.is_empty() || partly {
            let open = experiment.verdicts.iter_mut().filter(|verdict| verdict.holds.is_none());
            open.for_each(|verdict| verdict.must_hold = false);
        }
    }
    without_participants(run);
}

/// Verdicts on allocators that were not asked for need not hold.
fn without_participants(run: &mut Run) {
    let names: Vec<String> = run.allocators.iter().map(|allocator| allocator.name.clone()).collect();
    let all = [neap_results::GLIBC, neap_results::NEAP].iter().all(|name| names.iter().any(|other| other == name));
    if !all {
        let verdicts = run.experiments.iter_mut().flat_map(|experiment| &mut experiment.verdicts);
        verdicts.filter(|verdict| verdict.holds.is_none()).for_each(|verdict| verdict.must_hold = false);
    }
}

/// A run in progress.
struct Session<'a> {
    request: &'a Request,
    runner: Runner<'a>,
    watch: Watch,
    writer: Writer,
    begun: Instant,
    /// Time spent on rounds that were run again.
    repeated: Duration,
    repeats: Vec<Repeat>,
    rows: Vec<Row>,
    /// What is to be said of the experiment that has just ended.
    notes: Vec<String>,
    total: usize,
    done: usize,
}

impl Session<'_> {
    /// All cases of one experiment.
    fn experiment(&mut self, design: &Design, chosen: &[Allocator], tell: &mut dyn FnMut(Event)) -> Result<()> {
        let mut allocators: Vec<Allocator> = chosen.to_vec();
        for variant in design.variants.iter().filter_map(|name| allocators::variant(name, chosen)) {
            if !allocators.iter().any(|other| other.name == variant.name) {
                allocators.push(variant);
            }
        }
        for case in &design.cases {
            self.runner.prepare(case)?;
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
            let failures = self.rounds(design, &group, tell)?;
            tell(Event::Ended(design.name, &group.name, begun.elapsed(), &failures));
        }
        self.notes = self.runner.tidy();
        Ok(())
    }

    /// All rounds of one group of cases; the allocators that failed.
    fn rounds(&mut self, design: &Design, group: &Group, tell: &mut dyn FnMut(Event)) -> Result<Vec<String>> {
        let most = group.cases.iter().map(|(case, _)| case.most_rounds).max().unwrap_or(1);
        let rounds = self.request.runs.unwrap_or(design.rounds.min(most)).max(1);
        let mut failures: Vec<String> = Vec::new();
        // Who cannot be run in a case, or takes for ever, is not asked again.
        let mut given_up: Vec<(&str, &str)> = Vec::new();
        self.watch.look();
        for round in 0..rounds {
            let before = self.rows.len();
            let mut again = false;
            loop {
                let begun = Instant::now();
                let results = self.round(design, group, (round, &given_up))?;
                let ran = results.iter().any(|(.., outcome)| !outcome.is_skipped());
                let complaint = self.watch.look().complaint().filter(|_| design.timed && ran && !again);
                let took = begun.elapsed();
                let budget = self.begun.elapsed().mul_f64(REPEAT_PART);
                if let Some(reason) = complaint.filter(|_| self.repeated + took <= budget) {
                    tell(Event::Again(design.name, &group.name, &reason));
                    self.repeats.push(Repeat { experiment: design.name.into(), case: group.name.clone(), reason });
                    self.repeated += took;
                    self.rows.truncate(before);
                    again = true;
                    continue;
                }
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
                break;
            }
        }
        failures.sort();
        failures.dedup();
        Ok(failures)
    }

    /// One round of a group: each allocator once in each case. Those given up are left out.
    fn round<'b>(
        &mut self,
        design: &Design,
        group: &'b Group,
        (round, given_up): (u32, &[(&str, &str)]),
    ) -> Result<Vec<(&'b str, &'b str, Outcome)>> {
        let mut results = Vec::new();
        for (turn, case, allocator) in group.turns(round) {
            if given_up.contains(&(case.name.as_str(), allocator.name.as_str())) {
                continue;
            }
            let outcome = self
                .runner
                .run(design, case, allocator)
                .with_context(|| format!("{}, {} under {}", design.name, case.name, allocator.name))?;
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
            results.push((case.name.as_str(), allocator.name.as_str(), outcome));
        }
        Ok(results)
    }
}

/// One row per figure of a run; one without a figure where there is none.
fn rows_of(run: &Row, outcome: &Outcome) -> Vec<Row> {
    if outcome.metrics.is_empty() {
        return vec![run.clone()];
    }
    let row = |metric: &crate::outcome::Metric| Row {
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

    // Would catch a misspelt name that runs everything or nothing.
    #[test]
    fn experiments_are_chosen_by_name() {
        let names = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen(&[], &[], true).unwrap().len(), catalogue::names().len());
        assert_eq!(chosen(&names(&["all"]), &[], true).unwrap().len(), catalogue::names().len());
        let two: Vec<_> = chosen(&names(&["huge", "calloc"]), &[], true).unwrap().iter().map(|d| d.name).collect();
        assert_eq!(two, ["calloc", "huge"]);
        let error = chosen(&names(&["caloc"]), &[], true).unwrap_err().to_string();
        assert!(error.contains("caloc") && error.contains("retain-large"), "{error}");
        let trees = chosen(&[], &names(&["trees"]), false).unwrap();
        let cases: Vec<_> = trees.iter().flat_map(|design| &design.cases).map(|case| case.name.as_str()).collect();
        assert_eq!(cases, ["trees, 1 thread", "trees, 2 threads"]);
        assert!(chosen(&[], &names(&["no such case"]), true).unwrap_err().to_string().contains("no such case"));
    }

    // Would catch an experiment that this machine cannot run and that fails the check nevertheless.
    #[test]
    fn what_was_skipped_need_not_hold() {
        let row = |status: &str| Row { experiment: "workers".into(), status: status.into(), ..Row::default() };
        let mut run = Run { rows: vec![row("skipped: needs root")], quick: true, ..Run::default() };
        run.allocators =
            ["glibc", "neap"].map(|name| neap_results::Allocator { name: name.into(), ..Default::default() }).into();
        let designs = chosen(&["workers".into()], &[], true).unwrap();
        run.experiments = vec![experiment_of(&designs[0], true)];
        conclude(&mut run);
        let workers = run.experiment("workers").unwrap();
        assert_eq!(workers.skipped.as_deref(), Some("needs root"));
        assert!(run.broken().is_empty());
        run.rows = vec![Row { allocator: "neap".into(), case: "1.5 s apart".into(), ..row("signal:11") }];
        conclude(&mut run);
        assert_eq!(run.broken().len(), 1, "{:?}", run.experiment("workers").unwrap().verdicts);
    }
}
