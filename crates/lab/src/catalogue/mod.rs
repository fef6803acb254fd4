//! The experiments: how each is run, what was published before, how it is shown, what its data must show.
//!
//! One function per experiment returns its [`Design`]; with `quick` it has fewer cases and less work in each. Case and
//! metric names are the same in both, so that one reader serves both.

mod bursts;
mod calloc;
mod large;
mod memory;
mod order;
mod pages;
mod programs;
mod retain;
mod service;
mod threads;
mod tls;

use std::time::Duration;

pub use pages::{FAULT_KINDS, HUGE_KINDS};

use crate::noise::undisturbed;

use neap_results::judge::Judged;
use neap_results::{
    Axis, Better, Chart, ChartKind, Claim, ClaimFigure, Column, Figure, Metric, NEAP, Param, Point, Run, Series, Table,
    Verdict, View,
};

/// Where the cost of calloc on macOS was reported, with the download that it slowed down.
const SLOW_CALLOC: &str = "Cory Benfield, \"Debugging Your Operating System: A Lesson In Memory Allocation\", on issue \
                           3729 of requests";
/// Where page faults, their prevention and huge pages were measured.
const MEMORY_PAPER: &str = "Ulrich Drepper, \"What Every Programmer Should Know About Memory\"";

/// jemalloc with a helper thread, as neap has one, and a decay of one second.
const JEMALLOC_BACKGROUND: &str = "jemalloc-background";

/// How one case is run.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A program of lab/experiments with these arguments.
    Program(&'static str, Vec<String>),
    /// A Python script of lab/experiments with these arguments.
    Python(&'static str, Vec<String>),
    /// A program of lab/experiments under `strace -c`, which counts system calls; times mean nothing then.
    Traced(&'static str, Vec<String>),
    /// A program of the system under callgrind, which counts its instructions.
    Instructions(&'static str),
    /// The program `workers` in a memory cgroup of 1.5 times the peak that one worker had before.
    Workers(Vec<String>),
    /// redis-server under redis-benchmark.
    Redis {
        /// Load before the measured time.
        warm_up: Duration,
        /// The measured time.
        load: Duration,
    },
    /// An HTTPS download through Python's requests and pyOpenSSL.
    Tls {
        /// Bytes of a chunk.
        chunk: u64,
        /// The measured time, unless whole chunks take longer.
        seconds: f64,
    },
    /// `neap pagein` on a program of the system.
    Pagein(&'static str),
    /// The program `order` with another layout by `neap order`.
    Order {
        /// Data are placed too, not only functions.
        data: bool,
        /// Runs of each layout.
        pairs: u32,
    },
    /// The program `many` alone and under `neap order trace`.
    OrderTrace {
        /// Runs of each.
        pairs: u32,
    },
    /// The program `huge` on memory of one kind, the system set for it.
    Huge {
        /// As in `--kind`.
        kind: &'static str,
        /// Least, greatest and step of the powers of two.
        bits: (u32, u32, u32),
        /// Limit on the walk over a block before it is measured, in ms for each huge page that it could have.
        settle_ms: u32,
    },
    /// A real program as a whole process.
    Real {
        /// The case's name.
        name: &'static str,
        /// Amount of work.
        count: u32,
    },
    /// An allocation workload.
    Workload {
        /// Its name.
        name: &'static str,
        /// Threads.
        threads: u32,
        /// Amount of work in percent.
        scale: u32,
    },
}

/// Which allocators a case is run under.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    /// All.
    All,
    /// Those with these names.
    Only(&'static [&'static str]),
    /// The first one, because the case does not depend on the allocator.
    First,
}

/// One way in which an experiment is run.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name in the raw data.
    pub name: String,
    /// What makes it different from the others.
    pub params: Vec<(&'static str, Param)>,
    /// How it is run.
    pub work: Work,
    /// Further environment.
    pub env: Vec<(&'static str, &'static str)>,
    /// The allocators that it is run under.
    pub who: Who,
    /// Limit on the rounds, unless the user sets their number: for cases that take long and vary little.
    pub most_rounds: u32,
    /// MiB of free memory that it needs; with less it is skipped.
    pub needs_mib: u64,
}

impl Case {
    fn new(name: impl Into<String>, work: Work) -> Case {
        Case {
            name: name.into(),
            params: Vec::new(),
            work,
            env: Vec::new(),
            who: Who::All,
            most_rounds: u32::MAX,
            needs_mib: 0,
        }
    }

    fn number(mut self, name: &'static str, value: impl Into<f64>) -> Case {
        self.params.push((name, Param::Number(value.into())));
        self
    }

    fn word(mut self, name: &'static str, value: impl Into<String>) -> Case {
        self.params.push((name, Param::Text(value.into())));
        self
    }

    fn under(self, who: Who) -> Case {
        Case { who, ..self }
    }

    fn at_most(self, most_rounds: u32) -> Case {
        Case { most_rounds, ..self }
    }

    fn needs(self, needs_mib: u64) -> Case {
        Case { needs_mib, ..self }
    }
}

/// One experiment.
#[derive(Clone, Debug)]
pub struct Design {
    /// Its name on the command line and in the raw data.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What it asks, in one sentence.
    pub question: &'static str,
    /// What its programs do.
    pub about: &'static str,
    /// What was published before.
    pub claims: Vec<Claim>,
    /// A run that takes longer counts as failed.
    pub timeout: Duration,
    /// Rounds, unless the user says otherwise.
    pub rounds: u32,
    /// Whether its figures are times, so that a round on a busy machine is run again.
    pub timed: bool,
    /// Whether cases are compared with each other, so that each allocator runs all of them in one turn.
    pub side_by_side: bool,
    /// Variants that take part if their base does.
    pub variants: &'static [&'static str],
    /// How it is run.
    pub cases: Vec<Case>,
    /// The metrics that its programs print.
    pub metrics: Vec<Metric>,
    /// How it is drawn.
    pub charts: Vec<Chart>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Computes its verdicts.
    pub judge: fn(&View, &Run) -> Vec<Verdict>,
}

impl Design {
    /// The cases that share their rounds.
    pub fn groups(&self) -> Vec<&[Case]> {
        if self.side_by_side { vec![&self.cases] } else { self.cases.chunks(1).collect() }
    }
}

/// The names of all experiments, in the order of the report.
pub fn names() -> Vec<&'static str> {
    all(true).iter().map(|design| design.name).collect()
}

/// All experiments.
pub fn all(quick: bool) -> Vec<Design> {
    vec![
        service::service(quick),
        calloc::calloc(quick),
        calloc::recycled(quick),
        tls::tls_chunks(quick),
        retain::retain_large(quick),
        retain::retain_small(quick),
        threads::ebizzy(quick),
        pages::pagein(quick),
        order::order(quick),
        pages::prefault(quick),
        pages::huge(quick),
        bursts::bursts(quick),
        memory::workers(quick),
        memory::survivors(quick),
        threads::latency(quick),
        programs::first_run(quick),
        programs::redis(quick),
        memory::vmas(quick),
        large::aligned(quick),
        large::regrow(quick),
        programs::programs(quick),
        programs::suite(quick),
    ]
}

/// neap against the best peer, for each case: `what` of `names` is at most `most` times the peer's.
fn against_the_best(view: &View, experiment: &str, names: &[&str], figure: (&str, &str), most: f64) -> Vec<Verdict> {
    against_the_best_of(view, experiment, names, figure, most, |_, _| true)
}

/// [`against_the_best`], of the peers that `admit` accepts in a case.
fn against_the_best_of(
    view: &View,
    experiment: &str,
    names: &[&str],
    (what, words): (&str, &str),
    most: f64,
    admit: impl Fn(&str, &str) -> bool,
) -> Vec<Verdict> {
    let judge = |case: &&str| {
        let figure = Figure::new(experiment, case, what);
        let best = view
            .best_peer(figure, Better::Less, |peer| admit(case, peer))
            .map_or(neap_results::GLIBC, |(best, _)| best);
        let ratio = neap_results::judge::ratio(view, (figure, NEAP), (figure, best), 0.0, most);
        ratio.about(&format!("{words}, {case}"))
    };
    names.iter().map(|case| judge(case).target(false)).collect()
}

/// `--name value` for each pair.
fn options(arguments: &[(&str, &str)]) -> Vec<String> {
    arguments.iter().flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]).collect()
}

fn program(name: &'static str, arguments: &[(&str, &str)]) -> Work {
    Work::Program(name, options(arguments))
}

fn table(title: &str, columns: Vec<Column>) -> Table {
    Table { title: title.into(), columns }
}

/// Columns of one case: label and metric.
fn columns(case: &str, figures: &[(&str, &str)]) -> Vec<Column> {
    figures.iter().map(|&(label, metric)| Column::new(label, case, metric)).collect()
}

fn axis(label: &str, unit: &str, log: bool) -> Axis {
    Axis { label: label.into(), unit: unit.into(), log }
}

/// A chart with one series, whose points every allocator has.
fn chart(name: &str, title: &str, kind: ChartKind, axes: (Axis, Axis), better: Better, points: Vec<Point>) -> Chart {
    let series = vec![Series { label: String::new(), points }];
    Chart { name: name.into(), title: title.into(), kind, x: axes.0, y: axes.1, better, series, ..Chart::default() }
}

fn metric(name: &str, title: &str, better: Better) -> Metric {
    Metric { name: name.into(), title: title.into(), better }
}

fn claim(text: &str, source: &str, year: Option<u32>, figures: &[(&str, &str)]) -> Claim {
    let figure = |&(label, value): &(&str, &str)| ClaimFigure { label: label.into(), value: value.into() };
    Claim { text: text.into(), source: source.into(), year, figures: figures.iter().map(figure).collect() }
}

/// Whether no other work was seen, on this machine or on its host. Verdicts that depend on timing (when a helper thread
/// runs, how long a step takes) must hold only then.
fn quiet(run: &Run) -> bool {
    undisturbed(&run.noise)
}

/// Either result as a verdict: the error is that of a piece that has no figure to judge.
fn judged(result: Result<Judged, Judged>) -> Judged {
    result.unwrap_or_else(|early| early)
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// The median of a figure of one allocator, or the sentence on its absence.
fn median(view: &View, figure: Figure, allocator: &str) -> Result<f64, Judged> {
    neap_results::judge::need(view, figure, allocator)
}

/// A number of bytes as people write it: `64 KiB`, `2 GiB`.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        b if b % (1 << 30) == 0 => format!("{} GiB", b >> 30),
        b if b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    // Would catch a table or a chart with a case that no run has.
    #[test]
    fn every_figure_names_a_case() {
        for design in all(false) {
            let cases: BTreeSet<&str> = design.cases.iter().map(|case| case.name.as_str()).collect();
            assert_eq!(cases.len(), design.cases.len(), "{}: two cases of one name", design.name);
            for column in design.tables.iter().flat_map(|table| &table.columns) {
                assert!(cases.contains(column.case.as_str()), "{}: {}", design.name, column.case);
            }
            let series = design.charts.iter().flat_map(|chart| &chart.series);
            for point in series.flat_map(|series| &series.points) {
                assert!(cases.contains(point.case.as_str()), "{}: {}", design.name, point.case);
            }
        }
    }

    // Would catch a quick run with cases that the full run lacks.
    #[test]
    fn quick_cases_are_among_the_full_ones() {
        for (quick, full) in all(true).iter().zip(all(false)) {
            for case in &quick.cases {
                assert!(full.cases.iter().any(|other| other.name == case.name), "{}: {}", full.name, case.name);
            }
        }
    }

    // Would catch an experiment without its question, its source or its verdict.
    #[test]
    fn every_experiment_is_whole() {
        let empty = View::of(&neap_results::Run::default());
        for design in all(false) {
            assert!(design.question.ends_with('?'), "{}", design.name);
            assert!(design.about.ends_with('.'), "{}", design.name);
            assert!(!design.charts.is_empty() && !design.tables.is_empty(), "{}", design.name);
            assert!(design.claims.iter().all(|claim| !claim.source.is_empty()), "{}", design.name);
            let verdicts = (design.judge)(&empty, &Run::default());
            assert!(!verdicts.is_empty(), "{}", design.name);
            assert!(verdicts.iter().all(|verdict| verdict.holds.is_none()), "{}: judged without data", design.name);
        }
    }
}
