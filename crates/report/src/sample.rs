//! A small run for tests: two sizes, three allocators, one of which fails.

use neap_results::{
    Allocator, Axis, Better, Case, Chart, ChartKind, Claim, ClaimFigure, Column, Experiment, Kind, Listing, Mark,
    Metric, Noise, Point, Repeat, Row, Run, SCHEMA, Series, Table, Verdict,
};

fn row(case: &str, allocator: &str, round: u32, status: &str, value: f64) -> Row {
    let ok = status == "ok";
    Row {
        experiment: "calloc".into(),
        case: case.into(),
        allocator: allocator.into(),
        round,
        turn: 1,
        status: status.into(),
        metric: if ok { "us".into() } else { String::new() },
        unit: if ok { "us".into() } else { String::new() },
        value,
    }
}

/// The charts: lines over sizes, bars of one size.
fn charts() -> Vec<Chart> {
    let points = vec![Point::at(65536.0, "64 KiB", "us"), Point::at(1048576.0, "1 MiB", "us")];
    let y = Axis { label: "time per pair".into(), unit: "us".into(), log: true };
    let lines = Chart {
        name: "sizes".into(),
        title: "calloc and free".into(),
        x: Axis { label: "size".into(), unit: "B".into(), log: true },
        y: y.clone(),
        better: Better::Less,
        series: vec![Series { label: String::new(), points }],
        marks: vec![Mark { label: "published".into(), value: 2.0 }],
        ..Chart::default()
    };
    let bars = Chart {
        name: "one".into(),
        title: "calloc of 1 MiB".into(),
        kind: ChartKind::Bar,
        y: Axis { log: false, ..y },
        better: Better::Less,
        series: vec![Series { label: String::new(), points: vec![Point::named("1 MiB", "1 MiB", "us")] }],
        ..Chart::default()
    };
    vec![lines, bars]
}

/// The run.
pub fn run() -> Run {
    let allocator = |name: &str| Allocator { name: name.into(), version: "1.0".into(), ..Allocator::default() };
    let figures = vec![ClaimFigure { label: "10,000 times 100 MiB".into(), value: "8 minutes".into() }];
    let claim = Claim {
        text: "calloc clears what was not touched.".into(),
        source: "an article".into(),
        year: Some(2016),
        figures,
    };
    let verdict = |text: &str, holds, kind| Verdict { text: text.into(), holds, must_hold: false, kind };
    let calloc = Experiment {
        name: "calloc".into(),
        title: "calloc of untouched memory".into(),
        question: "What does it cost?".into(),
        claims: vec![claim],
        command: "neap lab run calloc".into(),
        cases: ["64 KiB", "1 MiB"].map(|name| Case { name: name.into(), ..Case::default() }).into(),
        metrics: vec![Metric { name: "us".into(), title: "time".into(), better: Better::Less }],
        charts: charts(),
        tables: vec![Table { title: "µs".into(), columns: vec![Column::new("64 KiB, µs", "64 KiB", "us")] }],
        verdicts: vec![
            verdict("glibc grows with the size", Some(true), Kind::Finding),
            verdict("neap is first of 2", Some(true), Kind::Rank),
            verdict("neap has 912 ns (limit: 500 ns)", Some(false), Kind::Target),
        ],
        listings: vec![Listing {
            title: "Every fault of `true`".into(),
            text: "1 0x1000 C 0 0x1080: _start (in <libc>)\n".into(),
        }],
        ..Experiment::default()
    };
    let skipped = Experiment {
        name: "workers".into(),
        title: "Workers".into(),
        skipped: Some("it needs root".into()),
        ..Experiment::default()
    };
    let rows = vec![
        row("64 KiB", "glibc", 1, "ok", 0.461),
        row("64 KiB", "neap", 1, "ok", 0.731),
        row("64 KiB", "other", 1, "ok", 1.0),
        row("1 MiB", "glibc", 1, "ok", 7.0),
        row("1 MiB", "glibc", 2, "ok", 7.2),
        row("1 MiB", "neap", 1, "ok", 0.912),
        row("1 MiB", "other", 1, "signal:11", 0.0),
    ];
    let doubtful = Repeat { experiment: "calloc".into(), case: "1 MiB".into(), reason: "the host took 5 %".into() };
    Run {
        schema: SCHEMA,
        neap: "0.1.0".into(),
        command: "neap lab run all".into(),
        started: "2026-01-31T12:00:00Z".into(),
        ended: Some("2026-01-31T12:10:00Z".into()),
        rounds: 2,
        noise: Noise { doubtful: vec![doubtful], ..Noise::default() },
        allocators: ["glibc", "neap", "other"].map(allocator).into(),
        experiments: vec![calloc, skipped],
        rows,
        ..Run::default()
    }
}
