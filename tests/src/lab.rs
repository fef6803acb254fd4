//! A made-up run of the lab: every experiment in full, with figures from a hash. For the report, which must show what
//! the kept runs may lack: all designs, skipped experiments, allocators that failed.

use std::collections::BTreeMap;

use neap_lab::allocators::{Allocator, variant};
use neap_lab::catalogue::{self, Case, Design, Who};
use neap_lab::plan::conclude;
use neap_results::{Experiment, Listing, Noise, Repeat, Row, Run, SCHEMA};

/// The allocators of a full run without variants.
const ALLOCATORS: [&str; 8] =
    ["glibc", "neap", "mimalloc2", "mimalloc3", "jemalloc", "snmalloc", "rpmalloc", "tcmalloc"];
/// Rounds of each case.
const ROUNDS: u32 = 3;

/// How well the run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Everything was measured.
    Whole,
    /// Experiments and cases were skipped, and allocators failed in all known ways.
    Lame,
}

/// The run.
pub fn sample(health: Health) -> Run {
    let designs = catalogue::all(false);
    let base: Vec<Allocator> =
        ALLOCATORS.map(|name| Allocator { name: name.into(), version: "1.0".into(), ..Allocator::default() }).into();
    let mut run = Run {
        schema: SCHEMA,
        neap: "0.0.0".into(),
        command: "neap lab run all".into(),
        started: "2026-01-31T12:00:00Z".into(),
        ended: (health == Health::Whole).then(|| "2026-01-31T12:45:00Z".into()),
        rounds: ROUNDS,
        ..Run::default()
    };
    run.machine.cores = 2;
    let doubtful =
        Repeat { experiment: "huge".into(), case: "THP".into(), reason: "the host took 5 %, round 2".into() };
    run.noise = Noise { quiet: Some(false), doubtful: vec![doubtful; 30], ..Noise::default() };
    let mut measured = base.clone();
    for design in &designs {
        let mut allocators = base.clone();
        allocators.extend(design.variants.iter().filter_map(|name| variant(name, &base)));
        for allocator in &allocators {
            if !measured.iter().any(|other| other.name == allocator.name) {
                measured.push(allocator.clone());
            }
        }
        for case in &design.cases {
            for allocator in participants(case, &allocators) {
                run.rows.extend(rows(design, case, &allocator.name, health));
            }
        }
        run.experiments.push(experiment(design));
    }
    let record = |one: &Allocator| neap_results::Allocator {
        name: one.name.clone(),
        base: one.base.clone(),
        version: one.version.clone(),
        ..neap_results::Allocator::default()
    };
    run.allocators = measured.iter().map(record).collect();
    conclude(&mut run);
    run
}

fn experiment(design: &Design) -> Experiment {
    let case = |case: &Case| neap_results::Case { name: case.name.clone(), ..neap_results::Case::default() };
    Experiment {
        name: design.name.into(),
        title: design.title.into(),
        question: design.question.into(),
        about: design.about.into(),
        claims: design.claims.clone(),
        command: format!("neap lab run {}", design.name),
        cases: design.cases.iter().map(case).collect(),
        metrics: design.metrics.clone(),
        charts: design.charts.clone(),
        tables: design.tables.clone(),
        listings: listings(design),
        notes: vec!["`this` was not measured.".into()],
        seconds: Some(61.0),
        ..Experiment::default()
    }
}

/// Listings that are wider than any screen.
fn listings(design: &Design) -> Vec<Listing> {
    let line = "2 0x3000001000 C 58270 0x3000001080: _dl_relocate_object (in /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2)\n";
    let one = |title: &str| Listing { title: title.into(), text: line.repeat(60) };
    if design.name == "pagein" { vec![one("Every page fault of `true` under glibc, in order")] } else { Vec::new() }
}

fn participants<'a>(case: &Case, allocators: &'a [Allocator]) -> Vec<&'a Allocator> {
    let mut chosen: Vec<&Allocator> = allocators.iter().collect();
    match case.who {
        Who::All => {}
        Who::First => chosen.truncate(1),
        Who::Only(names) => chosen.retain(|allocator| names.contains(&allocator.name.as_str())),
    }
    chosen
}

/// Why there is no figure; `None` where there is one.
fn trouble(design: &Design, case: &Case, allocator: &str) -> Option<&'static str> {
    let number = design.cases.iter().position(|other| other.name == case.name).unwrap_or(0);
    match (design.name, allocator, number % 3) {
        ("workers", ..) => Some("skipped: a memory cgroup can be made by root only"),
        ("tls-chunks", ..) => {
            Some("skipped: pip cannot install requests and pyOpenSSL (offline?): ERROR: No matching distribution found")
        }
        ("huge", ..) if case.name.starts_with("hugetlb") => Some("skipped: no pages in the pool"),
        (_, "snmalloc", 0) => Some("signal:11"),
        (_, "snmalloc", 1) => Some("timeout"),
        (_, "rpmalloc", 0) => Some("exit:3 (out of memory: Cannot allocate memory)"),
        (_, "tcmalloc", 2) => Some("wrong-checksum"),
        _ => None,
    }
}

/// Every figure that a chart or a table asks of the case, in each round.
fn rows(design: &Design, case: &Case, allocator: &str, health: Health) -> Vec<Row> {
    let mut metrics: BTreeMap<&str, &str> = BTreeMap::new();
    for column in design.tables.iter().flat_map(|table| &table.columns).filter(|column| column.case == case.name) {
        metrics.insert(&column.metric, "count");
    }
    for chart in &design.charts {
        for point in chart.series.iter().flat_map(|series| &series.points).filter(|point| point.case == case.name) {
            metrics.insert(&point.metric, &chart.y.unit);
        }
    }
    let trouble = trouble(design, case, allocator).filter(|_| health == Health::Lame);
    let row = |round: u32, status: &str| Row {
        experiment: design.name.into(),
        case: case.name.clone(),
        allocator: allocator.into(),
        round,
        turn: 1,
        status: status.into(),
        ..Row::default()
    };
    if let Some(status) = trouble {
        return vec![row(1, status)];
    }
    let value = |metric: &str, round: u32| {
        let hash = hash(&[design.name, &case.name, metric, allocator]);
        let magnitude = [0.4, 3.0, 25.0, 700.0][(hash >> 32) as usize % 4];
        magnitude * (1.0 + (hash % 1000) as f64 / 300.0) * (1.0 + f64::from(round) / 50.0)
    };
    let one = |round| {
        metrics.iter().map(move |(metric, unit)| Row {
            metric: (*metric).into(),
            unit: (*unit).into(),
            value: value(metric, round),
            ..row(round, "ok")
        })
    };
    (1..=ROUNDS).flat_map(one).collect()
}

/// 64-bit FNV-1a.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
