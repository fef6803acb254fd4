//! A run: which experiments under which allocators, in which order, and what is kept of it.
//!
//! Each case is run once per allocator and round, allocators one after the other, so that a slow minute of the machine
//! affects all of them. The first allocator rotates from case to case and from pair of rounds to pair of rounds. The
//! second round of a pair has the reverse order, so that no allocator always runs after the same one. If cases are
//! compared with each other, an allocator runs all of them before the next one. [`session`](crate::session) runs the
//! rounds.
//!
//! No measured value is lost: an interruption ends the run, an error of the lab ends one experiment, and in both cases
//! there are verdicts on what was measured before.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Error, Result};
use neap_options::nearest::did_you_mean;
use neap_results::{Experiment, Noise, Row, Run, SCHEMA, View};

use crate::allocators::{self, Allocator};
use crate::catalogue::{self, Case, Design};
use crate::event::Event;
use crate::failure::failure;
use crate::interrupt;
use crate::peers;
use crate::place::Place;
use crate::runner::{Runner, command_text, remove_leftovers};
use crate::session::Session;
use crate::settings::Settings;
use crate::store::{Writer, make_way};
use crate::toolchain::shell_word;
use crate::{environment, machine};

/// What the user requests.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Experiments by name; all if empty or if it has `all`.
    pub names: Vec<String>,
    /// Only cases whose name contains one of these texts; all if empty.
    pub cases: Vec<String>,
    /// Fewer cases with less work.
    pub quick: bool,
    /// Rounds, instead of each experiment's own.
    pub runs: Option<u32>,
    /// Allocators by name or NAME=PATH; all that are installed if empty.
    pub allocators: Vec<String>,
    /// Where the run is kept.
    pub output: PathBuf,
    /// Replace the run that is there.
    pub force: bool,
    /// The command line, for the record.
    pub command: String,
    /// The commit of the project's tree, if it is run from there.
    pub commit: Option<String>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Done {
    /// What was measured.
    pub run: Run,
    /// The signal that interrupted it.
    pub interrupted: Option<i32>,
    /// The first error of the lab. The run has what was measured before and after it.
    pub error: Option<Error>,
}

/// The experiments called `names`, with the cases that `cases` selects.
pub fn chosen(names: &[String], cases: &[String], quick: bool) -> Result<Vec<Design>> {
    let known = catalogue::names();
    let everything = names.is_empty() || names.iter().any(|name| name == "all");
    for name in names.iter().filter(|name| *name != "all") {
        if !known.contains(&name.as_str()) {
            let meant = did_you_mean(name, known.iter().copied());
            let remedy = format!("{meant}the experiments are {}, or all", known.join(", "));
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

/// Runs the request. It returns an error only if that came before the first experiment; [`Done`] has later errors and
/// interruptions.
pub fn run(place: &Place, request: &Request, tell: &mut dyn FnMut(Event)) -> Result<Done> {
    interrupt::watch();
    // A failure after a signal is due to the signal, such as a compiler that was stopped.
    measure(place, request, tell).map_err(|error| interrupt::check().err().unwrap_or(error))
}

fn measure(place: &Place, request: &Request, tell: &mut dyn FnMut(Event)) -> Result<Done> {
    let designs = chosen(&request.names, &request.cases, request.quick)?;
    let allocators = allocators::resolve(place, &request.allocators, &mut |reason| tell(Event::LeftOut(reason)))?;
    let runner = Runner::new(place)?;
    make_way(&request.output, request.force)?;
    // Restores what a killed run left, before the settings are recorded.
    drop(Settings::new(place));
    remove_leftovers();
    let mut run = skeleton(place, request, &designs, &allocators);
    let writer = Writer::create(&request.output, &run)?;
    let groups = designs.iter().map(|design| design.groups().len()).sum();
    let mut session = Session::new(runner, writer, request.runs, groups);
    let (mut interrupted, mut first_error) = (None, None);
    for (design, experiment) in designs.iter().zip(&mut run.experiments) {
        let begun = Instant::now();
        let result = session.experiment(design, &allocators, tell);
        experiment.notes = session.take_notes();
        experiment.seconds = Some((begun.elapsed().as_secs_f64() * 10.0).round() / 10.0);
        experiment.listings = session.take_listings();
        let Err(error) = result else {
            tell(Event::Finished(design.name, begun.elapsed()));
            continue;
        };
        interrupted = interrupt::arrived();
        if interrupted.is_some() {
            break;
        }
        tell(Event::Broken(design.name, &error));
        experiment.skipped = Some(format!("it ended early: {error:#}"));
        experiment.notes.extend(experiment.skipped.clone());
        first_error.get_or_insert(error);
    }
    let (rows, noise, writer) = session.end();
    (run.rows, run.noise) = (rows, noise);
    run.machine.load_after = machine::load();
    run.ended = interrupted.is_none().then(machine::utc_now);
    if interrupted.is_some() {
        run.notes.push("The run was interrupted: experiments are missing or have fewer rounds.".into());
    }
    conclude(&mut run);
    // If the disk is full the run can still be shown. The first error is the cause of later ones.
    let error = first_error.or(writer.finish(&run).err());
    Ok(Done { run, interrupted, error })
}

/// The run before anything is measured.
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
        allocators: measured.iter().map(Allocator::record).collect(),
        experiments: designs.iter().map(|design| experiment_of(design, request)).collect(),
        notes: environment::note().into_iter().chain(old_peers(place, allocators)).collect(),
        ..Run::default()
    }
}

/// A note on the peers that were built from other sources than this version of the lab names.
fn old_peers(place: &Place, allocators: &[Allocator]) -> Option<String> {
    let records = peers::records(place).unwrap_or_default();
    // A library by path may have the name of a peer.
    let built =
        allocators.iter().filter(|allocator| allocator.built.is_some()).map(|allocator| allocator.name.as_str());
    let old: Vec<&str> = built.filter(|name| peers::is_old(&records, name)).collect();
    (!old.is_empty()).then(|| {
        format!(
            "Built from older sources or recipes than this version has: {}; run `{}`.",
            old.join(", "),
            place.build_peers
        )
    })
}

/// An experiment for the record.
fn experiment_of(design: &Design, request: &Request) -> Experiment {
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
        command: command_of(design, request),
        cases: design.cases.iter().map(case).collect(),
        metrics: design.metrics.clone(),
        charts: design.charts.clone(),
        tables: design.tables.clone(),
        ..Experiment::default()
    }
}

/// The command that repeats an experiment as it was requested.
fn command_of(design: &Design, request: &Request) -> String {
    let mut words: Vec<String> = ["neap", "lab", "run", design.name].map(String::from).into();
    if request.quick {
        words.push("--quick".into());
    }
    let runs: Vec<String> = request.runs.iter().map(u32::to_string).collect();
    for (option, values) in [("--cases", &request.cases), ("--runs", &runs), ("--allocators", &request.allocators)] {
        if !values.is_empty() {
            words.extend([option.into(), shell_word(&values.join(","))]);
        }
    }
    words.join(" ")
}

/// How many more verdicts would have to hold if there had been no other work on the machine.
pub fn gates_off(run: &Run) -> usize {
    let gates = |run: &Run| {
        let all = run.experiments.iter().flat_map(|experiment| &experiment.verdicts);
        all.filter(|verdict| verdict.must_hold).count()
    };
    let mut calm = Run { noise: Noise::default(), ..run.clone() };
    conclude(&mut calm);
    gates(&calm).saturating_sub(gates(run))
}

/// Updates a kept run: its experiments get this version's texts, charts and tables, and the verdicts are computed
/// again.
pub fn refresh(run: &mut Run) {
    for design in catalogue::all(run.quick) {
        let Some(experiment) = run.experiments.iter_mut().find(|experiment| experiment.name == design.name) else {
            continue;
        };
        experiment.title = design.title.into();
        experiment.question = design.question.into();
        experiment.about = design.about.into();
        experiment.claims = design.claims;
        experiment.metrics = design.metrics;
        experiment.charts = design.charts;
        experiment.tables = design.tables;
    }
    conclude(run);
}

/// Computes the verdicts from the rows, and why experiments were not run.
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
            // An error came before the first row.
            None if experiment.skipped.is_some() => experiment.skipped.take(),
            None => Some("not reached before the run was interrupted".into()),
            Some(_) => reason.clone().filter(|_| rows.iter().all(|row| skipped(&row))),
        };
        experiment.verdicts = verdicts.unwrap_or_default();
        // What this machine cannot measure, or what was not requested, is not a failure.
        let partly = design(&experiment.name).is_some_and(|design| experiment.cases.len() < design.cases.len());
        if reason.is_some() || rows.is_empty() || partly {
            let open = experiment.verdicts.iter_mut().filter(|verdict| verdict.holds.is_none());
            open.for_each(|verdict| verdict.must_hold = false);
        }
    }
    without_participants(run);
}

/// Without glibc or neap, verdicts without an answer need not hold.
fn without_participants(run: &mut Run) {
    let names: Vec<String> = run.allocators.iter().map(|allocator| allocator.name.clone()).collect();
    let all = [neap_results::GLIBC, neap_results::NEAP].iter().all(|name| names.iter().any(|other| other == name));
    if !all {
        let verdicts = run.experiments.iter_mut().flat_map(|experiment| &mut experiment.verdicts);
        verdicts.filter(|verdict| verdict.holds.is_none()).for_each(|verdict| verdict.must_hold = false);
    }
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

    // Would catch a command that does not repeat the request: other allocators, cases, rounds.
    #[test]
    fn the_command_says_what_was_asked_for() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let design = &chosen(&["suite".into()], &[], true).unwrap()[0];
        assert_eq!(command_of(design, &Request::default()), "neap lab run suite");
        let request = Request {
            quick: true,
            runs: Some(3),
            cases: list(&["trees", "two words"]),
            allocators: list(&["glibc", "mine=/tmp/a.so"]),
            ..Request::default()
        };
        let wanted = "neap lab run suite --quick --cases 'trees,two words' --runs 3 --allocators glibc,mine=/tmp/a.so";
        assert_eq!(command_of(design, &request), wanted);
    }

    /// A quick run under glibc and neap on a machine with `cores` processors, in which each case has all figures that
    /// are shown.
    fn quick_run(cores: u32) -> Run {
        let request = Request { quick: true, ..Request::default() };
        let allocators = ["glibc", "neap"].map(|name| Allocator { name: name.into(), ..Allocator::default() });
        let mut run = skeleton(&crate::place::for_test(), &request, &catalogue::all(true), &allocators);
        run.machine.cores = cores;
        for design in catalogue::all(true) {
            let variants = design.variants.iter().filter_map(|name| allocators::variant(name, &allocators));
            let all: Vec<Allocator> = allocators.iter().cloned().chain(variants).collect();
            let shown = || {
                let columns = design.tables.iter().flat_map(|table| &table.columns);
                let series = design.charts.iter().flat_map(|chart| &chart.series);
                let points = series.flat_map(|series| &series.points).map(|point| (&point.case, &point.metric));
                columns.map(|column| (&column.case, &column.metric)).chain(points)
            };
            for (case, allocator) in design.cases.iter().flat_map(|case| all.iter().map(move |one| (case, one))) {
                for (_, metric) in shown().filter(|(name, _)| **name == case.name) {
                    run.rows.push(Row {
                        experiment: design.name.into(),
                        case: case.name.clone(),
                        allocator: allocator.name.clone(),
                        round: 1,
                        status: "ok".into(),
                        metric: metric.clone(),
                        value: 1.0,
                        ..Row::default()
                    });
                }
            }
        }
        run
    }

    // Would catch a verdict that must hold and for which a quick run has no data: the check would fail on such a
    // machine whatever was measured.
    #[test]
    fn quick_runs_can_be_judged_on_any_machine() {
        for cores in 1..=64 {
            let mut run = quick_run(cores);
            conclude(&mut run);
            let open: Vec<_> = run.broken().iter().filter(|(_, one)| one.holds.is_none()).map(|pair| pair.1).collect();
            assert!(open.is_empty(), "{cores} processors: {open:?}");
        }
    }

    // Would catch verdicts that a busy machine switches off without a message.
    #[test]
    fn gates_that_are_off_are_counted() {
        let mut run = quick_run(2);
        conclude(&mut run);
        assert_eq!(gates_off(&run), 0);
        let check =
            |name: &str, value| neap_results::NoiseCheck { name: name.into(), value, limit: 2.0, unit: "%".into() };
        run.noise = Noise { quiet: Some(false), checks: vec![check("a fixed loop", 3.0)], ..Noise::default() };
        conclude(&mut run);
        assert_eq!(gates_off(&run), 0);
        run.noise.checks.push(check("time taken by other processes", 60.0));
        conclude(&mut run);
        assert!(gates_off(&run) >= 6, "{}", gates_off(&run));
    }

    // Would catch an experiment that fails the check although this machine cannot run it.
    #[test]
    fn what_was_skipped_need_not_hold() {
        let row = |status: &str| Row { experiment: "workers".into(), status: status.into(), ..Row::default() };
        let mut run = Run { rows: vec![row("skipped: needs root")], quick: true, ..Run::default() };
        run.allocators =
            ["glibc", "neap"].map(|name| neap_results::Allocator { name: name.into(), ..Default::default() }).into();
        let designs = chosen(&["workers".into()], &[], true).unwrap();
        let request = Request { quick: true, ..Request::default() };
        run.experiments = vec![experiment_of(&designs[0], &request)];
        conclude(&mut run);
        let workers = run.experiment("workers").unwrap();
        assert_eq!(workers.skipped.as_deref(), Some("needs root"));
        assert!(run.broken().is_empty());
        run.rows = vec![Row { allocator: "neap".into(), case: "1.5 s apart".into(), ..row("signal:11") }];
        conclude(&mut run);
        assert_eq!(run.broken().len(), 1, "{:?}", run.experiment("workers").unwrap().verdicts);
    }
}
