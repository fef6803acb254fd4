//! The experiments on pages, as they were before the schema: how their rows are shown and judged.

use crate::judge::{self, Judged, at_least, at_most, flat, jump, need, number, points, rank, ratio};
use crate::{
    Axis, Better, Case, Chart, ChartKind, Claim, ClaimFigure, Column, Experiment, Figure, GLIBC, Metric, NEAP, Param,
    Point, Run, Series, Table, Verdict, View,
};

/// The experiments that have rows, in the order of the report.
pub fn experiments(run: &Run) -> Vec<Experiment> {
    let view = View::of(run);
    let makers = [calloc, recycled, retain_large, retain_small, ebizzy, survivors, workers, latency, redis, vmas];
    let made = makers.into_iter().map(|make| make(&view)).filter(|made| view.has_experiment(&made.name));
    made.map(|mut made| {
        made.command = format!("cargo xtask experiments {}", made.name);
        let named = |case: &String| Case { name: case.clone(), params: params(case), command: String::new() };
        made.cases = cases_of(run, &made.name).iter().map(named).collect();
        for table in &mut made.tables {
            table.columns.retain(|column| view.has_case(&made.name, &column.case));
        }
        made.tables.retain(|table| !table.columns.is_empty());
        made
    })
    .collect()
}

fn cases_of(run: &Run, experiment: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in run.rows.iter().filter(|row| row.experiment == experiment) {
        if !names.contains(&row.case) {
            names.push(row.case.clone());
        }
    }
    names
}

/// `untouched 64 KiB` has a size, `8 threads` a count.
fn params(case: &str) -> std::collections::BTreeMap<String, Param> {
    let words: Vec<&str> = case.split([' ', ',']).collect();
    let mut found = std::collections::BTreeMap::new();
    for pair in words.windows(2) {
        let Ok(count) = pair[0].parse::<f64>() else { continue };
        match pair[1] {
            "KiB" => found.insert("size".into(), Param::Number(count * 1024.0)),
            "MiB" => found.insert("size".into(), Param::Number(count * 1048576.0)),
            "GiB" => found.insert("size".into(), Param::Number(count * 1073741824.0)),
            "threads" => found.insert("threads".into(), Param::Number(count)),
            _ => None,
        };
    }
    found
}

fn axis(label: &str, unit: &str, log: bool) -> Axis {
    Axis { label: label.into(), unit: unit.into(), log }
}

fn series(points: Vec<Point>) -> Vec<Series> {
    vec![Series { label: String::new(), points }]
}

/// Bars or dots of one case: `(category, metric)`.
fn rows_chart(name: &str, title: &str, kind: ChartKind, y: Axis, case: &str, figures: &[(&str, &str)]) -> Chart {
    let point = |(label, metric): &(&str, &str)| Point::named(*label, case, *metric);
    Chart {
        name: name.into(),
        title: title.into(),
        kind,
        x: axis("figure", "", false),
        y,
        better: Better::Less,
        series: series(figures.iter().map(point).collect()),
        ..Chart::default()
    }
}

fn table(title: &str, case: &str, figures: &[(&str, &str)]) -> Table {
    let column = |(label, metric): &(&str, &str)| Column::new(*label, case, *metric);
    Table { title: title.into(), columns: figures.iter().map(column).collect() }
}

fn claim(text: &str, source: &str, year: Option<u32>, figures: &[(&str, &str)]) -> Claim {
    let figure = |(label, value): &(&str, &str)| ClaimFigure { label: (*label).into(), value: (*value).into() };
    Claim { text: text.into(), source: source.into(), year, figures: figures.iter().map(figure).collect() }
}

fn experiment(name: &str, title: &str, question: &str, about: &str) -> Experiment {
    Experiment {
        name: name.into(),
        title: title.into(),
        question: question.into(),
        about: about.into(),
        ..Experiment::default()
    }
}

/// Sizes with their names.
fn sizes(bits: impl Iterator<Item = u64>) -> Vec<(f64, String)> {
    bits.map(|bytes| (bytes as f64, judge::size(bytes as f64))).collect()
}

fn calloc(view: &View) -> Experiment {
    let mut bytes: Vec<u64> = (16..=30).step_by(2).map(|bits| 1 << bits).collect();
    bytes.extend([100 << 20, 2 << 30]);
    bytes.sort_unstable();
    let sizes = sizes(bytes.into_iter());
    let modes = [
        ("untouched", "untouched", "median"),
        ("touched", "touched each time", "median"),
        ("once", "after one touch, mean", "mean"),
    ];
    let chart = |(mode, words, metric): (&str, &str, &str)| Chart {
        name: mode.into(),
        title: format!("calloc and free, {words}"),
        x: axis("size of the block", "B", true),
        y: axis("time per calloc and free", "us", true),
        better: Better::Less,
        series: series(sizes.iter().map(|(x, name)| Point::at(*x, format!("{mode} {name}"), metric)).collect()),
        ..Chart::default()
    };
    let table = |(mode, words, metric): (&str, &str, &str)| Table {
        title: format!("µs per calloc and free, {words}"),
        columns: sizes.iter().map(|(_, name)| Column::new(name.clone(), format!("{mode} {name}"), metric)).collect(),
    };
    let big = |mode: &'static str, metric| Figure::new("calloc", mode, metric);
    let untouched = big("untouched 100 MiB", "median");
    let once = big("once 100 MiB", "mean");
    let names: Vec<(f64, String)> = sizes.iter().map(|(x, name)| (*x, format!("untouched {name}"))).collect();
    let figures: Vec<(f64, Figure)> =
        names.iter().map(|(x, case)| (*x, Figure::new("calloc", case, "median"))).collect();
    let even = points(view, &figures, NEAP).map_or_else(|judged| judged, |all| flat("neap", &all, "us", 3.0));
    Experiment {
        claims: vec![claim(
            "Freed blocks between 127 KiB and about 125 MiB are kept in a cache and cleared whole when calloc takes \
             them again, though nobody touched them.",
            "measured on macOS 10.12",
            Some(2016),
            &[("10,000 times 100 MiB, untouched", "about 8 minutes"), ("the same with 1000 MiB", "at once")],
        )],
        metrics: ["median", "mean", "mean-later", "min"].map(|name| less(name, "time per calloc and free")).into(),
        charts: modes.map(chart).into(),
        tables: modes.map(table).into(),
        verdicts: vec![
            who_clears(view, untouched).finding(false),
            rank(view, untouched, Better::Less).about("100 MiB untouched").rank(),
            rank(view, big("touched 100 MiB", "median"), Better::Less).about("100 MiB touched each time").rank(),
            rank(view, once, Better::Less).about("100 MiB touched once").rank(),
            at_most(view, untouched, NEAP, 1.0).about("100 MiB untouched").target(false),
            ratio(view, (untouched, NEAP), (untouched, "jemalloc"), 0.0, 1.1).about("100 MiB untouched").target(false),
            even.about("Untouched, 64 KiB to 2 GiB").target(false),
            at_most(view, once, NEAP, 5.0).about("100 MiB touched once").target(false),
        ],
        ..experiment(
            "calloc",
            "calloc of large blocks",
            "Does calloc pay for memory that nobody touched?",
            "calloc and free of one size: untouched, touched each time, touched only the first time.",
        )
    }
}

fn less(name: &str, title: &str) -> Metric {
    Metric { name: name.into(), title: title.into(), better: Better::Less }
}

/// Who takes a millisecond or more for 100 MiB that nobody touches.
fn who_clears(view: &View, figure: Figure) -> Judged {
    let ranked = view.ranked(figure, Better::More);
    if ranked.is_empty() {
        return Judged::open("100 MiB untouched was not run");
    }
    let slow: Vec<&str> = ranked.iter().filter(|(_, us)| *us >= 1000.0).map(|(name, _)| *name).collect();
    let text = match slow.len() {
        0 => "nobody takes a millisecond for 100 MiB untouched".to_owned(),
        _ => format!("a millisecond and more for 100 MiB that nobody touches: {}", slow.join(", ")),
    };
    Judged::new(text, Some(!slow.is_empty()))
}

fn recycled(view: &View) -> Experiment {
    let sizes = sizes((12..=20).map(|bits| 1 << bits));
    let forms = [
        ("touched", "touched, freed, 1.5 s idle, then 128 MiB of calloc"),
        ("untouched", "calloc, free, and 128 MiB of calloc again, at once"),
    ];
    let chart = |(form, words): (&str, &str)| Chart {
        name: form.into(),
        title: format!("Growth of RSS: {words}"),
        x: axis("size of the blocks", "B", true),
        y: axis("growth of RSS", "MiB", false),
        better: Better::Less,
        series: series(sizes.iter().map(|(x, name)| Point::at(*x, format!("{form} {name}"), "growth")).collect()),
        ..Chart::default()
    };
    let table = |(form, words): (&str, &str)| Table {
        title: format!("Growth of RSS in MiB: {words}"),
        columns: sizes.iter().map(|(_, name)| Column::new(name.clone(), format!("{form} {name}"), "growth")).collect(),
    };
    let most = |form: &str, words: &str| {
        let names: Vec<String> = sizes.iter().map(|(_, name)| format!("{form} {name}")).collect();
        let figures: Vec<(f64, Figure)> =
            names.iter().map(|case| (0.0, Figure::new("recycled", case, "growth"))).collect();
        let judged = points(view, &figures, NEAP).map_or_else(
            |judged| judged,
            |all| {
                let most = all.iter().map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max);
                let text = format!("neap grows by {} MiB of 128 at most, 1 MiB allowed", number(most));
                Judged::new(text, Some(most <= 1.0))
            },
        );
        judged.about(words).target(false)
    };
    Experiment {
        metrics: vec![less("growth", "growth of RSS")],
        charts: forms.map(chart).into(),
        tables: forms.map(table).into(),
        verdicts: forms.map(|(form, words)| most(form, words)).into(),
        ..experiment(
            "recycled",
            "Recycled blocks that stay untouched",
            "Do recycled blocks from calloc become resident though nobody touches them?",
            "128 MiB of blocks, freed and taken again by calloc, then left untouched.",
        )
    }
}

/// The medians of `round-NN-freed`.
fn rounds_freed(view: &View, experiment: &str, case: &str, allocator: &str) -> Vec<f64> {
    let metric = |round: usize| format!("round-{round:02}-freed");
    (1..).map_while(|round| view.median(Figure::new(experiment, case, &metric(round)), allocator)).collect()
}

fn retain_large(view: &View) -> Experiment {
    let figure = |metric| Figure::new("retain-large", "rounds", metric);
    let rounds: Vec<Point> =
        (1..=20).map(|round| Point::at(f64::from(round), "rounds", format!("round-{round:02}-freed"))).collect();
    let freed = rounds_freed(view, "retain-large", "rounds", GLIBC);
    let figures = [
        ("wall, ms", "wall"),
        ("peak RSS, MiB", "peak"),
        ("of it in huge pages", "huge"),
        ("RSS at once", "rss-at-once"),
        ("after 1 s", "rss-1s"),
        ("of it MADV_FREE", "lazy-1s"),
        ("after 2 s", "rss-2s"),
    ];
    let each_round = Chart {
        name: "rounds".into(),
        title: "RSS after each round's frees".into(),
        x: axis("round", "", false),
        y: axis("RSS", "MiB", true),
        better: Better::Less,
        series: series(rounds),
        ..Chart::default()
    };
    let dots =
        |name: &str, title: &str, y, metric| rows_chart(name, title, ChartKind::Dots, y, "rounds", &[(title, metric)]);
    Experiment {
        claims: vec![claim(
            "RSS after the frees is small for six rounds and then as large as the peak for ever: the threshold above \
             which blocks get a mapping of their own grows with the blocks that are freed.",
            "measured with glibc 2.28",
            None,
            &[
                ("RSS after the frees", "1.4 MB for six rounds, then 3.4 GB"),
                ("with malloc_trim(0) after the frees", "1.4 MB each round"),
                ("with both thresholds at 131072", "1.6 MB"),
            ],
        )],
        metrics: ["wall", "peak", "rss-at-once", "rss-1s", "rss-2s"].map(|name| less(name, name)).into(),
        charts: vec![
            each_round,
            dots("wall", "Wall time of 20 rounds", axis("wall time", "ms", true), "wall"),
            dots("after", "RSS one second after the last free", axis("RSS", "MiB", true), "rss-1s"),
        ],
        tables: vec![table("Wall time and RSS", "rounds", &figures)],
        verdicts: vec![
            jump(&freed, "MiB", 10.0, 1.0).about("glibc, RSS after the frees").finding(false),
            rank(view, figure("wall"), Better::Less).about("Wall time").rank(),
            rank(view, figure("rss-1s"), Better::Less).about("RSS one second after").rank(),
            at_most(view, figure("rss-1s"), NEAP, 8.0).about("RSS one second after").target(false),
            at_most(view, figure("rss-at-once"), "neap-eager", 8.0).about("purge=eager, RSS at once").target(false),
            ratio(view, (figure("wall"), "neap-eager"), (figure("wall"), "jemalloc"), 0.0, 1.0 / 3.0)
                .about("purge=eager, wall time")
                .target(false),
        ],
        ..experiment(
            "retain-large",
            "Large buffers that were freed",
            "What stays resident when large buffers are freed, and what do the rounds cost?",
            "20 rounds of 256 buffers of 0 to 32 MiB, one byte written in each OS page, all freed after each round.",
        )
    }
}

fn retain_small(view: &View) -> Experiment {
    let figure = |metric| Figure::new("retain-small", "rounds", metric);
    let figures = [
        ("live bytes, MiB", "live"),
        ("peak RSS", "peak"),
        ("peak without the program / live", "peak-ratio"),
        ("RSS at once", "rss-at-once"),
        ("after 1 s", "rss-1s"),
        ("of it MADV_FREE", "lazy-1s"),
    ];
    let shown = [("peak RSS", "peak"), ("1 s after the last free", "rss-1s")];
    let y = axis("RSS", "MiB", false);
    Experiment {
        claims: vec![claim(
            "RSS after the frees grows from round to round, and the last peak is a third above the live bytes; \
             malloc_trim(0) or fixed thresholds keep it low.",
            "measured with glibc 2.12",
            None,
            &[("RSS after the frees", "0.5, 30, 31, 65, 65 MB"), ("last peak", "133 MB instead of 101 MB")],
        )],
        metrics: ["peak", "peak-ratio", "rss-at-once", "rss-1s"].map(|name| less(name, name)).into(),
        charts: vec![rows_chart("rss", "Peak, and what stays", ChartKind::Bar, y, "rounds", &shown)],
        tables: vec![table("RSS in MiB", "rounds", &figures)],
        verdicts: vec![
            at_least(view, figure("rss-1s"), GLIBC, 30.0).about("What stays under glibc").finding(false),
            rank(view, figure("rss-1s"), Better::Less).about("RSS one second after").rank(),
            rank(view, figure("peak"), Better::Less).about("Peak").rank(),
            at_most(view, figure("rss-1s"), NEAP, 4.0).about("RSS one second after").target(false),
            at_most(view, figure("peak-ratio"), NEAP, 1.02).about("Peak against the live bytes").target(false),
        ],
        ..experiment(
            "retain-small",
            "Buffers that grow from round to round",
            "Does what was freed serve the next, slightly larger round?",
            "Five rounds of three buffers of some 30 MiB that grow from round to round.",
        )
    }
}

fn ebizzy(view: &View) -> Experiment {
    let threads = [1, 2, 4, 8, 16, 44];
    let name = |threads: i32, traced: bool| format!("{threads} threads{}", if traced { ", traced" } else { "" });
    let chart = |short: &str, title: &str, y, traced, metric, better| Chart {
        name: short.into(),
        title: title.into(),
        x: axis("threads", "", true),
        y,
        better,
        series: series(threads.map(|n| Point::at(f64::from(n), name(n, traced), metric)).into()),
        ..Chart::default()
    };
    let columns =
        |traced, metric| threads.map(|n| Column::new(name(n, false), name(n, traced), metric)).into_iter().collect();
    let ranks = threads.map(|n| {
        let case = name(n, false);
        (view.has_case("ebizzy", &case))
            .then(|| rank(view, Figure::new("ebizzy", &case, "rate"), Better::More).about(&case).rank())
    });
    let calls = threads.map(|n| {
        let case = name(n, true);
        let figure = Figure::new("ebizzy", &case, "madvise-per-1000-frees");
        view.has_case("ebizzy", &case)
            .then(|| at_most(view, figure, NEAP, 1.0).about(&format!("{n} threads, madvise calls per 1,000 frees")))
            .map(|judged| judged.target(false))
    });
    let rate = |label: &str| axis(label, "1/s", false);
    Experiment {
        claims: vec![claim(
            "Each free that gives its pages back at once costs more than the work; without it the loop is some 20 \
             times quicker and scales.",
            "measured with glibc on 12 processors",
            Some(2014),
            &[("with madvise on each free", "438 to 987 iterations"), ("without", "10,740 to 32,534")],
        )],
        metrics: vec![
            Metric { name: "rate".into(), title: "iterations per second".into(), better: Better::More },
            less("madvise-per-1000-frees", "madvise calls per 1,000 frees"),
        ],
        charts: vec![
            chart("rate", "Iterations per second", rate("iterations"), false, "rate", Better::More),
            chart(
                "calls",
                "madvise calls per 1,000 frees",
                axis("calls per 1,000 frees", "count", false),
                true,
                "madvise-per-1000-frees",
                Better::Less,
            ),
        ],
        tables: vec![
            Table { title: "Iterations per second".into(), columns: columns(false, "rate") },
            Table { title: "madvise calls per 1,000 frees".into(), columns: columns(true, "madvise-per-1000-frees") },
        ],
        verdicts: ranks.into_iter().chain(calls).flatten().collect(),
        ..experiment(
            "ebizzy",
            "Many threads, buffers that come and go",
            "Does giving memory back cost throughput, and does it scale with threads?",
            "Threads that allocate 64 to 256 KiB, copy into it, search it, free it.",
        )
    }
}

fn survivors(view: &View) -> Experiment {
    let figure = |metric| Figure::new("survivors", "blocks", metric);
    let figures = [
        ("RSS before, MiB", "rss-base"),
        ("all live", "rss-full"),
        ("freed, at once", "rss-at-once"),
        ("after 2 s", "rss-idle"),
        ("pages with a live byte", "live-pages"),
        ("(after 2 s - before) / pages", "ratio"),
    ];
    let y = axis("RSS against the OS pages that hold a live byte", "ratio", false);
    let shown = [("after 2 s idle", "ratio")];
    Experiment {
        metrics: ["ratio", "rss-at-once", "rss-idle"].map(|name| less(name, name)).into(),
        charts: vec![rows_chart("ratio", "What one block in twenty keeps", ChartKind::Bar, y, "blocks", &shown)],
        tables: vec![table("RSS in MiB", "blocks", &figures)],
        verdicts: vec![
            rank(view, figure("ratio"), Better::Less).about("RSS against the OS pages needed").rank(),
            at_most(view, figure("ratio"), NEAP, 1.10).about("RSS against the OS pages needed").target(false),
        ],
        ..experiment(
            "survivors",
            "One small block in twenty survives",
            "Do a few live blocks keep all OS pages around them resident?",
            "300,000 blocks of 512 B to 2 KiB, all freed but one in twenty, then 2 s idle.",
        )
    }
}

fn workers(view: &View) -> Experiment {
    let cases = ["1.5 s apart", "back to back"];
    let figures = [
        ("workers killed, of 4", "killed"),
        ("a worker's peak, MiB", "peak-alone"),
        ("limit, MiB", "limit"),
        ("most RSS of an idle worker", "idle-rss"),
    ];
    let killed = Chart {
        name: "killed".into(),
        title: "Workers that the OOM killer took, of four".into(),
        kind: ChartKind::Bar,
        x: axis("peaks", "", false),
        y: axis("workers killed", "count", false),
        better: Better::Less,
        series: series(cases.map(|case| Point::named(format!("peaks {case}"), case, "killed")).into()),
        ..Chart::default()
    };
    let none = |case: &'static str| {
        let figure = Figure::new("workers", case, "killed");
        let judged = match need(view, figure, NEAP) {
            Err(judged) => judged,
            Ok(_) => {
                let values = view.values(figure, NEAP);
                let killed: f64 = values.iter().sum();
                Judged::new(
                    format!("{} workers killed in {} rounds, none allowed", number(killed), values.len()),
                    Some(killed == 0.0),
                )
            }
        };
        judged.about(&format!("Peaks {case}")).target(false)
    };
    let ranked = cases.map(|case| {
        rank(view, Figure::new("workers", case, "killed"), Better::Less).about(&format!("Peaks {case}")).rank()
    });
    Experiment {
        metrics: vec![less("killed", "workers killed"), less("idle-rss", "RSS of an idle worker")],
        charts: vec![killed],
        tables: cases.map(|case| table(&format!("Peaks {case}"), case, &figures)).into(),
        verdicts: ranked.into_iter().chain(cases.map(none)).collect(),
        ..experiment(
            "workers",
            "Workers in one memory cgroup",
            "Does the memory that idle workers keep get the busy one killed?",
            "Four processes in a memory cgroup of 1.5 times one's peak, which peak in turn, free, and idle.",
        )
    }
}

fn latency(view: &View) -> Experiment {
    let figure = |metric| Figure::new("latency", "load", metric);
    let calls = [
        ("malloc of 16 B to 2 KiB", "steady-small-malloc"),
        ("free of 16 B to 2 KiB", "steady-small-free"),
        ("malloc of 32 KiB to 1 MiB", "steady-large-malloc"),
        ("free of 32 KiB to 1 MiB", "steady-large-free"),
    ];
    let metric = |(words, name): (&'static str, &str), end: &str| (words, format!("{name}-{end}"));
    let chart = |short: &str, title: &str, end: &str| {
        let points = calls.map(|call| metric(call, end)).map(|(words, name)| Point::named(words, "load", name)).into();
        Chart {
            name: short.into(),
            title: title.into(),
            kind: ChartKind::Dots,
            x: axis("call", "", false),
            y: axis("time of a call", "us", true),
            better: Better::Less,
            series: series(points),
            ..Chart::default()
        }
    };
    let columns = |call: &(&str, &str)| {
        let ends = ["p50", "p99", "p99.99", "max-undisturbed"];
        Table {
            title: format!("µs, {}", call.0),
            columns: ends.map(|end| Column::new(end, "load", format!("{}-{end}", call.1))).into(),
        }
    };
    let ranks = calls.map(|call| {
        let (words, name) = metric(call, "p99.99");
        rank(view, Figure::new("latency", "load", &name), Better::Less)
            .about(&format!("99.99th percentile, {words}"))
            .rank()
    });
    let worst = at_most(view, figure("worst-undisturbed"), NEAP, 1000.0).about("Longest undisturbed call");
    let verdicts: Vec<Verdict> = ranks.into_iter().chain([worst.target(false)]).collect();
    Experiment {
        metrics: vec![less("worst-undisturbed", "longest undisturbed call")],
        charts: vec![
            chart("tail", "99.99th percentile of each call", "p99.99"),
            chart("longest", "Longest undisturbed call", "max-undisturbed"),
        ],
        tables: calls.iter().map(columns).collect(),
        verdicts,
        ..experiment(
            "latency",
            "Tail of malloc and free under purges",
            "How long does a call take while other threads' memory is given back?",
            "malloc and free of a steady thread while two others allocate bursts, free them and idle. Calls during \
             which the thread was taken off its processor are left out of the longest.",
        )
    }
}

fn redis(view: &View) -> Experiment {
    let figure = |metric| Figure::new("redis", "load", metric);
    let figures = [
        ("faults per 1,000 requests", "faults-per-1000"),
        ("requests/s", "rate"),
        ("RSS right after, MiB", "rss-after"),
        ("1 s idle", "rss-idle"),
    ];
    let dots =
        |name: &str, title: &str, y, metric| rows_chart(name, title, ChartKind::Dots, y, "load", &[(title, metric)]);
    let faults = axis("faults per 1,000 requests", "count", true);
    let rss = axis("RSS", "MiB", false);
    Experiment {
        metrics: vec![
            less("faults-per-1000", "page faults per 1,000 requests"),
            Metric { name: "rate".into(), title: "requests per second".into(), better: Better::More },
            less("rss-after", "RSS right after the load"),
            less("rss-idle", "RSS one second later"),
        ],
        charts: vec![
            dots("faults", "Page faults per 1,000 requests", faults, "faults-per-1000"),
            rows_chart("rss", "RSS one second after", ChartKind::Bar, rss, "load", &[("1 s idle", "rss-idle")]),
        ],
        tables: vec![table("Page faults and RSS", "load", &figures)],
        verdicts: vec![
            rank(view, figure("faults-per-1000"), Better::Less).about("Page faults").rank(),
            rank(view, figure("rss-idle"), Better::Less).about("RSS one second after").rank(),
            rank(view, figure("rate"), Better::More).about("Requests per second").rank(),
        ],
        ..experiment(
            "redis",
            "Redis under steady load",
            "Does a server under steady load pay page faults for memory that was given back?",
            "redis-server under redis-benchmark; page faults after a warm-up.",
        )
    }
}

fn vmas(view: &View) -> Experiment {
    let figure = |metric| Figure::new("vmas", "blocks", metric);
    let figures = [
        ("mappings, most", "mappings"),
        ("at the end", "mappings-end"),
        ("vm.max_map_count", "max-map-count"),
        ("malloc refused", "refused"),
        ("wall, ms", "wall"),
        ("RSS, MiB", "rss"),
    ];
    let y = axis("mappings", "count", true);
    let shown = [("most mappings", "mappings")];
    Experiment {
        metrics: ["mappings", "mappings-end", "wall", "rss", "refused"].map(|name| less(name, name)).into(),
        charts: vec![rows_chart("mappings", "Most mappings at a time", ChartKind::Dots, y, "blocks", &shown)],
        tables: vec![table("Lines of /proc/self/maps", "blocks", &figures)],
        verdicts: vec![
            rank(view, figure("mappings"), Better::Less).about("Most mappings").rank(),
            at_most(view, figure("mappings"), NEAP, 6553.0).about("A tenth of vm.max_map_count").target(false),
        ],
        ..experiment(
            "vmas",
            "Many large blocks, many mappings",
            "How near does a program with many large blocks come to the kernel's limit of mappings?",
            "200,000 live blocks of 33 to 256 KiB of which only the first byte is written, replaced at random.",
        )
    }
}
