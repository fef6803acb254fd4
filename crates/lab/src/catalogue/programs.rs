//! first-run, redis, programs, suite: whole programs.

use neap_results::judge::{self, Judged};
use neap_results::{Better, ChartKind, Column, Figure, GLIBC, NEAP, Point, Run, Verdict, View, means};

use super::{
    Case, Design, Work, against_the_best, axis, chart, claim, columns, judged, median, metric, program, seconds, table,
};
use crate::real::{REALS, Real};
use crate::sources;

/// Programs that hardly allocate.
const SMALL: [&str; 2] = ["true", "cat"];

/// What an allocator adds to a program that hardly allocates.
pub fn first_run(quick: bool) -> Design {
    let count = if quick { "50" } else { "200" };
    let figures = [("wall, µs", "wall"), ("least", "wall-min"), ("page faults", "faults"), ("peak RSS, MiB", "peak")];
    let counted = |name: &str| format!("{name}, instructions");
    let mut cases = Vec::new();
    for name in SMALL {
        let path = format!("/bin/{name}");
        cases
            .push(Case::new(name, program("first-run", &[("program", &path), ("count", count)])).word("program", name));
    }
    cases.push(Case::new(counted(SMALL[0]), Work::Instructions("true")).word("program", "true"));
    let points = |metric| SMALL.map(|name| Point::named(name, name, metric)).into();
    let axes = |label: &str, unit: &str| (axis("", "", false), axis(label, unit, false));
    Design {
        name: "first-run",
        title: "What a malloc costs a program that hardly allocates",
        question: "How much later does a tiny program end when an allocator is preloaded?",
        about: "`true` and `cat` with nothing on their input, started one after the other; the median from fork to \
                exit, their page faults and peak resident memory; and the instructions of `true` under callgrind.",
        claims: vec![claim(
            "An allocator that marks its arena for huge pages costs 4 MiB of resident memory in `cat`.",
            "measurements before this project, on a 2-core virtual machine with Linux 6.18",
            Some(2026),
            &[("cat with mimalloc 3", "4 MiB RSS")],
        )],
        timeout: seconds(60),
        rounds: if quick { 2 } else { 5 },
        timed: true,
        side_by_side: false,
        variants: &[],
        cases,
        metrics: vec![
            metric("wall", "time from fork to exit", Better::Less),
            metric("faults", "page faults", Better::Less),
            metric("peak", "peak resident memory", Better::Less),
            metric("instructions", "instructions", Better::Less),
        ],
        charts: vec![
            chart("wall", "From fork to exit", ChartKind::Bar, axes("time", "us"), Better::Less, points("wall")),
            chart("faults", "Page faults", ChartKind::Bar, axes("faults", "count"), Better::Less, points("faults")),
            chart("peak", "Peak RSS", ChartKind::Bar, axes("peak RSS", "MiB"), Better::Less, points("peak")),
        ],
        tables: vec![
            table("true", columns("true", &figures)),
            table("cat", columns("cat", &figures)),
            table("true under callgrind", columns(&counted("true"), &[("instructions", "instructions")])),
        ],
        judge: |view, _| {
            let [wall, faults, peak] =
                ["wall", "faults", "peak"].map(|metric| Figure::new("first-run", "true", metric));
            let cat = Figure::new("first-run", "cat", "peak");
            let preloaded = |figure: Figure, words: &str| {
                let added = || {
                    let (own, base) = (median(view, figure, NEAP)?, median(view, figure, GLIBC)?);
                    let unit = view.unit(figure);
                    Ok(Judged::new(format!("neap adds {}", judge::quantity(own - base, unit)), None))
                };
                judged(added()).about(words).figure()
            };
            vec![
                preloaded(wall, "`true`, time"),
                preloaded(faults, "`true`, page faults"),
                judge::rank(view, wall, Better::Less).about("time of `true`").rank(),
                judge::rank(view, peak, Better::Less).about("peak RSS of `true`").rank(),
                judge::rank(view, cat, Better::Less).about("peak RSS of `cat`").rank(),
            ]
        },
    }
}

/// redis-server under redis-benchmark.
pub fn redis(quick: bool) -> Design {
    let figures = [
        ("faults per 1,000 requests", "faults-per-1000"),
        ("requests/s", "rate"),
        ("RSS right after, MiB", "rss-after"),
        ("1 s idle", "rss-idle"),
    ];
    // The warm-up is longer than the cycles in which such a server fills and empties its memory, so the load is steady.
    let work = Work::Redis { warm_up: seconds(if quick { 1 } else { 15 }), load: seconds(if quick { 1 } else { 15 }) };
    let point = |metric: &str| vec![Point::named("load", "load", metric)];
    let axes = |label: &str, unit: &str, log| (axis("", "", false), axis(label, unit, log));
    Design {
        name: "redis",
        title: "A database under steady load",
        question: "Does an allocator that returns memory make a busy server fault more?",
        about: "redis-server under the steady load of redis-benchmark; page faults after a warm-up, RSS after the \
                load. Where redis is linked with an allocator of its own, the row of glibc has glibc preloaded.",
        claims: Vec::new(),
        timeout: seconds(120),
        rounds: 1,
        timed: false,
        side_by_side: false,
        variants: &[],
        cases: vec![Case::new("load", work)],
        metrics: vec![
            metric("faults-per-1000", "page faults per 1,000 requests", Better::Less),
            metric("rate", "requests per second", Better::More),
            metric("rss-idle", "RSS 1 s after the load", Better::Less),
        ],
        charts: vec![
            chart(
                "faults",
                "Page faults per 1,000 requests",
                ChartKind::Dots,
                axes("faults", "count", true),
                Better::Less,
                point("faults-per-1000"),
            ),
            chart(
                "rss",
                "RSS 1 s after the load",
                ChartKind::Bar,
                axes("RSS", "MiB", false),
                Better::Less,
                point("rss-idle"),
            ),
        ],
        tables: vec![table("Page faults and RSS", columns("load", &figures))],
        judge: |view, _| {
            let figure = |metric| Figure::new("redis", "load", metric);
            vec![
                judge::rank(view, figure("faults-per-1000"), Better::Less)
                    .about("page faults per 1,000 requests")
                    .rank(),
                judge::rank(view, figure("rss-idle"), Better::Less).about("RSS 1 s after the load").rank(),
                judged(requests(view, figure("rate"))).figure(),
            ]
        },
    }
}

/// The rate relative to glibc's. It is shown and not ranked: the clients take most of the time, and a noisy round is
/// not run again.
fn requests(view: &View, rate: Figure) -> Result<Judged, Judged> {
    let [own, base] = [NEAP, GLIBC].map(|name| median(view, rate, name));
    let (own, base) = (own?, base?);
    Ok(Judged::new(format!("neap has {} the requests per second of glibc", judge::times(own / base)), None))
}

/// Limit of a program's time under neap as a multiple of its time under the best peer.
const OF_THE_BEST: f64 = 1.05;

/// Real programs as whole processes.
pub fn programs(quick: bool) -> Design {
    let case = |real: &'static Real| {
        let count = if quick { (real.count / 4).max(1) } else { real.count };
        Case::new(real.name, Work::Real { name: real.name, count }).word("program", real.name).needs(512)
    };
    let points = |metric: &str| REALS.iter().map(|real| Point::named(real.name, real.name, metric)).collect();
    let columns = |metric: &str| REALS.iter().map(|real| Column::new(real.name, real.name, metric)).collect();
    let axes = |label: &str, unit: &str| (axis("", "", false), axis(label, unit, true));
    Design {
        name: "programs",
        title: "Real programs",
        question: "How long do real programs take under each allocator, and how much memory?",
        about: "Interpreters run scripts that make many objects, compilers translate a generated file, redis-server has \
                a load, SQLite fills, joins and empties a table in memory, jq groups a list of objects, z3 factors \
                numbers. Each is one process from its start to its end, with all that it starts, and its output must be \
                the same under every allocator. Programs that have an allocator of their own inside are skipped.",
        claims: Vec::new(),
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[],
        cases: REALS.iter().map(case).collect(),
        metrics: vec![
            metric("run-wall", "wall time", Better::Less),
            metric("run-cpu", "processor time", Better::Less),
            metric("run-peak", "peak resident memory", Better::Less),
        ],
        charts: vec![
            chart("wall", "Wall time", ChartKind::Dots, axes("wall time", "ms"), Better::Less, points("run-wall")),
            chart("peak", "Peak RSS", ChartKind::Dots, axes("peak RSS", "MiB"), Better::Less, points("run-peak")),
        ],
        tables: vec![
            table("Wall time, ms", columns("run-wall")),
            table("Processor time, ms", columns("run-cpu")),
            table("Peak RSS, MiB", columns("run-peak")),
        ],
        judge: |view, _| {
            let names = REALS.each_ref().map(|real| real.name);
            let words = ("run-wall", "wall time");
            let mut verdicts = against_the_best(view, "programs", &names, words, OF_THE_BEST);
            verdicts.extend(names.iter().map(|name| judged(to_glibc(view, name)).figure()));
            verdicts
        },
    }
}

/// neap's time and memory as ratios to glibc's.
fn to_glibc(view: &View, case: &str) -> Result<Judged, Judged> {
    let ratio = |metric| {
        let figure = Figure::new("programs", case, metric);
        let ratio = view.ratio(figure, NEAP, GLIBC).map(|ratio| judge::times(ratio.ratio));
        ratio.ok_or_else(|| Judged::open("there is no pair of runs").about(case))
    };
    let (wall, cpu, peak) = (ratio("run-wall")?, ratio("run-cpu")?, ratio("run-peak")?);
    let text = format!("neap has {wall} the wall time of glibc, {cpu} the processor time, {peak} the peak RSS");
    Ok(Judged::new(text, None).about(case))
}

fn suite_case(name: &str, threads: u32) -> String {
    format!("{name}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Name and threads of each workload, up to two threads.
fn suite_cases() -> Vec<(&'static str, u32)> {
    let counts = |workload: &sources::Workload| workload.threads.clone();
    let all = sources::workloads();
    let pairs = all.iter().flat_map(|workload| counts(workload).into_iter().map(move |n| (workload.name, n)));
    pairs.filter(|&(_, threads)| threads <= 2).collect()
}

/// The allocation workloads.
pub fn suite(quick: bool) -> Design {
    let mut chosen = suite_cases();
    if quick {
        // The least number of threads of each.
        chosen.dedup_by_key(|pair| pair.0);
    }
    let scale = if quick { 10 } else { 70 };
    let case = |(name, threads): (&'static str, u32)| {
        let work = Work::Workload { name, threads, scale };
        Case::new(suite_case(name, threads), work).word("workload", name).number("threads", threads)
    };
    let every = suite_cases();
    let points = |metric: &str| -> Vec<Point> {
        every.iter().map(|&(name, n)| Point::named(suite_case(name, n), suite_case(name, n), metric)).collect()
    };
    let columns = |metric: &'static str| -> Vec<Column> {
        every.iter().map(|&(name, n)| Column::new(suite_case(name, n), suite_case(name, n), metric)).collect()
    };
    let axes = |label: &str, unit: &str| (axis("", "", false), axis(label, unit, true));
    Design {
        name: "suite",
        title: "The allocation workloads",
        question: "How do the allocators compare on ordinary allocation work?",
        about: "Fifteen programs that allocate as compilers, caches, servers and containers do. Each prints a checksum \
                that must be the same under every allocator. `--cases` runs some of them.",
        claims: Vec::new(),
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[],
        cases: chosen.into_iter().map(case).collect(),
        metrics: vec![
            metric("run-wall", "wall time", Better::Less),
            metric("run-peak", "peak resident memory", Better::Less),
            metric("run-faults", "page faults", Better::Less),
        ],
        charts: vec![
            chart("wall", "Wall time", ChartKind::Dots, axes("wall time", "ms"), Better::Less, points("run-wall")),
            chart("peak", "Peak RSS", ChartKind::Dots, axes("peak RSS", "MiB"), Better::Less, points("run-peak")),
        ],
        tables: vec![
            table("Wall time, ms", columns("run-wall")),
            table("Peak RSS, MiB", columns("run-peak")),
            table("Page faults", columns("run-faults")),
        ],
        judge: judge_suite,
    }
}

fn judge_suite(_: &View, run: &Run) -> Vec<Verdict> {
    vec![
        mean_rank(run, "wall").about("wall time, geometric mean of the ratios to glibc").rank(),
        mean_rank(run, "peak").about("peak RSS, geometric mean of the ratios to glibc").rank(),
    ]
}

/// neap's rank by the geometric mean of its ratios to glibc over the workloads. Cases in which glibc or neap failed are
/// left out and named.
fn mean_rank(run: &Run, metric: &str) -> Judged {
    match means::run(run, "suite") {
        Some(means) => {
            let judged = judge::rank(&View::of(&means), Figure::new("suite", means::CASE, metric), Better::Less);
            Judged { text: judged.text + &means::left_out(run, "suite"), ..judged }
        }
        None => Judged::open("no workload was run"),
    }
}
