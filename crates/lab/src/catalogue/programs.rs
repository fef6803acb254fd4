//! tls-chunks, first-run, redis, suite: whole programs.

use neap_results::judge::{self, Judged, number};
use neap_results::{Better, ChartKind, Column, Figure, GLIBC, NEAP, Point, Run, Verdict, View};

use super::{
    Case, Design, Work, axis, chart, claim, columns, judged, median, metric, program, quiet, seconds, size_text, table,
};
use crate::sources;

/// neap with `zero=always`: what macOS 10.12 did.
const ZERO: &str = "neap-zero";

/// The chunks of tls-chunks.
fn chunks(quick: bool) -> Vec<u64> {
    let all = [1 << 20, 10 << 20, 100 << 20, 1 << 30];
    if quick { vec![all[0], all[2], all[3]] } else { all.into() }
}

/// A download over HTTPS, read in chunks.
pub fn tls_chunks(quick: bool) -> Design {
    let (bytes, seconds_each) = if quick { (96 << 20, 0.5) } else { (1 << 30, 2.0) };
    let case = |&chunk: &u64| {
        let work = Work::Tls { chunk, bytes, seconds: seconds_each };
        Case::new(size_text(chunk), work).number("chunk", chunk as f64)
    };
    let all = chunks(false);
    let points = |metric: &str| all.iter().map(|&c| Point::at(c as f64, size_text(c), metric)).collect::<Vec<_>>();
    let columns = |metric: &'static str| -> Vec<Column> {
        all.iter().map(|&chunk| Column::new(size_text(chunk), size_text(chunk), metric)).collect()
    };
    let axes = |label: &str, unit: &str| (axis("chunk", "B", true), axis(label, unit, true));
    let (rate, cost) = ("throughput", "cpu-per-mib");
    Design {
        name: "tls-chunks",
        title: "A download that gets slower with the size of its buffer",
        question: "Does an HTTPS download in Python slow down when it is read in larger chunks?",
        about: "A local HTTPS server with a certificate made for the run; requests over pyOpenSSL reads from it in \
                chunks of 1 MiB to 1 GiB. Each read of at most 16 KiB takes a fresh zeroed buffer of what is left of \
                the chunk, from cffi's ffi.new(\"char[]\", n). neap-zero clears every block of calloc, as macOS did.",
        claims: vec![claim(
            "On macOS 10.12 a download in chunks of 100 MiB took a whole processor for 1 MB/s, in chunks of 1 GiB it \
             fell below 100 KB/s; chunks of 10 MiB had no effect.",
            "article on slow HTTPS downloads in Python on macOS",
            Some(2016),
            &[("100 MiB", "1 MB/s, 100 % CPU"), ("1 GiB", "under 100 KB/s"), ("10 MiB", "no effect")],
        )],
        timeout: seconds(60),
        rounds: 2,
        timed: true,
        side_by_side: true,
        variants: &[ZERO],
        cases: chunks(quick).iter().map(case).collect(),
        metrics: vec![
            metric(rate, "throughput", Better::More),
            metric("cpu", "processor time in percent of the wall time", Better::Neither),
            metric(cost, "processor time per MiB", Better::Less),
        ],
        charts: vec![
            chart(
                "throughput",
                "Throughput of the download",
                ChartKind::Line,
                axes(rate, "MiB/s"),
                Better::More,
                points(rate),
            ),
            chart(
                "cpu",
                "Processor time per MiB",
                ChartKind::Line,
                axes("processor time", "ms"),
                Better::Less,
                points(cost),
            ),
        ],
        tables: vec![
            table("MiB/s", columns(rate)),
            table("CPU, ms per MiB", columns(cost)),
            table("CPU, percent", columns("cpu")),
        ],
        judge: judge_tls,
    }
}

/// Throughput with chunks of 1 GiB against that with 1 MiB, within a round: what is asked.
const NO_SLOWER: f64 = 0.8;

fn judge_tls(view: &View, run: &Run) -> Vec<Verdict> {
    let [small, large, huge] = [1 << 20, 100 << 20, 1 << 30].map(size_text);
    let figure = |case| Figure::new("tls-chunks", case, "throughput");
    let ratio = |who, of, to, low, high| judge::ratio(view, (figure(of), who), (figure(to), who), low, high);
    vec![
        judged(no_slower(view, figure(&huge), figure(&small))).target(quiet(run)),
        ratio(NEAP, &huge, &small, NO_SLOWER, f64::INFINITY).about("throughput, chunks of 1 GiB").target(false),
        ratio(ZERO, &large, &small, 0.0, 0.2).about("zero=always, as on macOS: throughput, 100 MiB").finding(true),
        ratio(GLIBC, &huge, &small, NO_SLOWER, f64::INFINITY).about("glibc, chunks of 1 GiB").finding(false),
        judge::rank(view, figure(&large), Better::More).about("chunks of 100 MiB").rank(),
        judge::rank(view, figure(&huge), Better::More).about("chunks of 1 GiB").rank(),
    ]
}

/// Whether large chunks are as quick as small ones under neap, or fall no further than under glibc in the same rounds:
/// the download itself gathers what it has read, in memory that the machine must have at hand.
fn no_slower(view: &View, huge: Figure, small: Figure) -> Result<Judged, Judged> {
    let part = |who| {
        median(view, huge, who)?;
        median(view, small, who)?;
        let ratio = view.ratio_of((huge, who), (small, who)).map(|ratio| ratio.ratio);
        ratio.ok_or_else(|| Judged::open(format!("no round of {who} has both sizes")))
    };
    let own = part(NEAP)?;
    let goal = number(NO_SLOWER);
    let about = "chunks of 1 GiB against 1 MiB";
    let fallen = part(GLIBC).ok().filter(|base| own < NO_SLOWER && *base < NO_SLOWER && *base > 0.0);
    let Some(base) = fallen else {
        let text = format!("{about}: neap has {} the throughput, at least {goal} asked", judge::times(own));
        return Ok(Judged::new(text, Some(own >= NO_SLOWER)));
    };
    let text = format!(
        "{about}: glibc falls to {} as well, so that is the machine's memory and not the allocator; neap has {}, {} \
         of glibc's part, at least {goal} asked",
        number(base),
        number(own),
        number(own / base)
    );
    Ok(Judged::new(text, Some(own / base >= NO_SLOWER)))
}

/// The programs that hardly allocate.
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
                judged(added()).about(words).told()
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
    // The warm-up is longer than the cycles in which such a server fills and empties its memory: a steady load.
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
                judge::rank(view, figure("faults-per-1000"), Better::Less).about("page faults per request").rank(),
                judge::rank(view, figure("rss-idle"), Better::Less).about("RSS 1 s after the load").rank(),
                judged(requests(view, figure("rate"))).told(),
            ]
        },
    }
}

/// The rate against glibc's. It is told and not ranked: most of the time goes to the clients, and a round on a busy
/// machine is not run again.
fn requests(view: &View, rate: Figure) -> Result<Judged, Judged> {
    let [own, base] = [NEAP, GLIBC].map(|name| median(view, rate, name));
    let (own, base) = (own?, base?);
    Ok(Judged::new(format!("neap has {} the requests per second of glibc", judge::times(own / base)), None))
}

fn suite_case(name: &str, threads: u32) -> String {
    format!("{name}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Name and threads of each workload, as far as they are run here.
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
        // One thread where there is such a form, else the least.
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
        tables: vec![table("Wall time, ms", columns("run-wall")), table("Peak RSS, MiB", columns("run-peak"))],
        judge: judge_suite,
    }
}

fn judge_suite(view: &View, _: &Run) -> Vec<Verdict> {
    vec![
        mean_rank(view, "run-wall").about("wall time, geometric mean of the ratios to glibc").rank(),
        mean_rank(view, "run-peak").about("peak RSS, geometric mean of the ratios to glibc").rank(),
    ]
}

/// neap's rank by the geometric mean of its ratios to glibc over the workloads that all have.
fn mean_rank(view: &View, metric: &str) -> Judged {
    let names: Vec<String> = suite_cases().into_iter().map(|(name, threads)| suite_case(name, threads)).collect();
    let run: Vec<&String> = names.iter().filter(|name| view.has_case("suite", name)).collect();
    let mut means: Vec<(&str, f64)> = Vec::new();
    let mut failed = Vec::new();
    for allocator in view.allocators().iter().filter(|name| *name == NEAP || view.base(name) != NEAP) {
        let ratio = |case: &&String| Some(view.ratio(Figure::new("suite", case, metric), allocator, GLIBC)?.ratio);
        match run.iter().map(ratio).collect::<Option<Vec<f64>>>() {
            Some(ratios) if !ratios.is_empty() => {
                means.push((allocator, neap_results::stats::geometric_mean(&ratios)));
            }
            _ if view.took_part("suite", allocator) => failed.push(allocator.as_str()),
            _ => {}
        }
    }
    if failed.contains(&NEAP) {
        return Judged::new("neap failed on a workload", Some(false));
    }
    means.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some(place) = means.iter().position(|(name, _)| *name == NEAP).filter(|_| means.len() > 1) else {
        return Judged::open("neap or glibc was not run on the workloads");
    };
    let others = if failed.is_empty() { String::new() } else { format!("; failed: {}", failed.join(", ")) };
    let (best, least) = means[0];
    let text = match place {
        0 => format!("neap is first of {} with {} times glibc{others}", means.len(), number(least)),
        _ => format!(
            "neap is number {} of {} with {} times glibc; {best} has {}{others}",
            place + 1,
            means.len(),
            number(means[place].1),
            number(least)
        ),
    };
    Judged::new(text, Some(place == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::Row;

    /// The verdict on throughputs `(allocator, 1 MiB, 1 GiB)`, two rounds alike.
    fn verdict(rates: &[(&str, f64, f64)]) -> Result<Judged, Judged> {
        let (small, huge) = (Figure::new("tls-chunks", "1 MiB", "throughput"), "1 GiB");
        let mut rows = Vec::new();
        for (round, &(allocator, one, gib)) in (1..=2).flat_map(|round| rates.iter().map(move |rate| (round, rate))) {
            for (case, value) in [("1 MiB", one), (huge, gib)] {
                rows.push(Row {
                    experiment: "tls-chunks".into(),
                    case: case.into(),
                    allocator: allocator.into(),
                    round,
                    status: "ok".into(),
                    metric: "throughput".into(),
                    value,
                    ..Row::default()
                });
            }
        }
        no_slower(&View::of(&Run { rows, ..Run::default() }), Figure { case: huge, ..small }, small)
    }

    // Would catch a slow machine that counts as a fault of neap's, and a fault that hides behind a slow machine.
    #[test]
    fn a_fall_is_judged_against_glibcs() {
        let holds = |rates: &[(&str, f64, f64)]| verdict(rates).map(|judged| judged.holds);
        assert_eq!(holds(&[("neap", 100.0, 90.0), ("glibc", 100.0, 40.0)]), Ok(Some(true)));
        assert_eq!(holds(&[("neap", 100.0, 40.0), ("glibc", 100.0, 44.0)]), Ok(Some(true)));
        assert_eq!(holds(&[("neap", 100.0, 20.0), ("glibc", 100.0, 44.0)]), Ok(Some(false)));
        assert_eq!(holds(&[("neap", 100.0, 40.0), ("glibc", 100.0, 99.0)]), Ok(Some(false)));
        assert_eq!(holds(&[("neap", 100.0, 40.0)]), Ok(Some(false)));
        assert_eq!(holds(&[("glibc", 100.0, 40.0)]).unwrap_err().holds, None);
        let text = verdict(&[("neap", 100.0, 40.0), ("glibc", 100.0, 50.0)]).unwrap().text;
        assert!(text.contains("glibc falls to 0.500 as well") && text.contains("0.800 of glibc's part"), "{text}");
    }
}
