//! ebizzy, latency: what giving memory back costs threads.

use neap_results::judge::{self, Judged, number, times};
use neap_results::{Better, ChartKind, Column, Figure, NEAP, Point, Run, Verdict, View};

use super::{
    Case, Design, Work, axis, chart, claim, columns, judged, median, metric, options, program, seconds, table,
};

/// neap's policies as variants.
const POLICIES: [&str; 3] = ["neap-eager", "neap-lazy", "neap-never"];
/// With more threads than processors, a rate of at least this fraction of the rate with one thread for each is not a
/// fall.
const NO_FALL: f64 = 0.95;

fn thread_counts(quick: bool) -> Vec<u32> {
    if quick { vec![1, 2, 44] } else { vec![1, 2, 4, 8, 16, 44] }
}

fn case_name(threads: u32, traced: bool) -> String {
    format!("{threads} threads{}", if traced { ", traced" } else { "" })
}

/// Threads that allocate, copy, search, free.
pub fn ebizzy(quick: bool) -> Design {
    let ms = if quick { "300" } else { "1000" };
    let mut cases = Vec::new();
    for threads in thread_counts(quick) {
        let count = threads.to_string();
        let work = program("ebizzy", &[("threads", &count), ("ms", ms)]);
        cases.push(Case::new(case_name(threads, false), work).number("threads", threads));
        if !quick || threads == 2 {
            let work = Work::Traced("ebizzy", options(&[("threads", &count), ("ms", "300")]));
            cases.push(
                Case::new(case_name(threads, true), work).number("threads", threads).word("under", "strace").at_most(1),
            );
        }
    }
    let all = thread_counts(false);
    let points = |traced, metric: &str| -> Vec<Point> {
        all.iter().map(|&threads| Point::at(f64::from(threads), case_name(threads, traced), metric)).collect()
    };
    let column = |traced, metric: &'static str| {
        move |&threads: &u32| Column::new(format!("{threads} threads"), case_name(threads, traced), metric)
    };
    let axes = |label: &str, unit: &str| (axis("threads", "count", true), axis(label, unit, true));
    let (calls, mappings, faults) = ("madvise-per-1000-frees", "mappings-per-1000-frees", "faults-per-1000-frees");
    Design {
        name: "ebizzy",
        title: "Returning memory on every free",
        question: "What does it cost threads when each free gives its pages back to the system?",
        about: "Threads that allocate 64 to 256 KiB, copy into it, search it, free it; neap's policies as well.",
        claims: vec![claim(
            "A malloc that calls madvise(MADV_DONTNEED) on each free runs some 20 times slower than without, at any \
             number of threads.",
            "mailing list posts on MADV_FREE in Linux, ebizzy on 12 processors",
            Some(2014),
            &[("MADV_DONTNEED on each free", "438 to 987 iterations"), ("without", "10,740 to 32,534")],
        )],
        timeout: seconds(60),
        rounds: if quick { 2 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &POLICIES,
        cases,
        metrics: vec![
            metric("rate", "iterations per second", Better::More),
            metric(calls, "madvise calls per 1,000 frees", Better::Less),
            metric(mappings, "mmap, munmap and mremap calls per 1,000 frees", Better::Less),
            metric(faults, "page faults per 1,000 frees", Better::Less),
        ],
        charts: vec![
            chart(
                "rate",
                "Iterations per second",
                ChartKind::Line,
                axes("iterations", "1/s"),
                Better::More,
                points(false, "rate"),
            ),
            chart(
                "calls",
                "madvise calls per 1,000 frees",
                ChartKind::Line,
                axes("calls", "count"),
                Better::Less,
                points(true, calls),
            ),
        ],
        tables: vec![
            table("Iterations per second", all.iter().map(column(false, "rate")).collect()),
            table("madvise calls per 1,000 frees", all.iter().map(column(true, calls)).collect()),
            table("mmap, munmap and mremap calls per 1,000 frees", all.iter().map(column(true, mappings)).collect()),
            table("Page faults per 1,000 frees", all.iter().map(column(false, faults)).collect()),
            table("RSS at the end, MiB", all.iter().map(column(false, "rss")).collect()),
        ],
        judge: judge_ebizzy,
    }
}

fn rate(case: &str) -> Figure<'_> {
    Figure::new("ebizzy", case, "rate")
}

/// `1 thread`, `2 threads`.
fn threads_text(threads: u32) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

fn judge_ebizzy(view: &View, run: &Run) -> Vec<Verdict> {
    let cores = run.machine.cores.max(1);
    // The greatest count that was run and that has a core for each thread; two threads count as such everywhere.
    let has_core = |threads: u32| threads <= cores.max(2) && view.has_case("ebizzy", &case_name(threads, false));
    let full = thread_counts(false).into_iter().rfind(|&threads| has_core(threads)).unwrap_or(1);
    let (one, many) = (case_name(1, false), case_name(full, false));
    let eager = |case| judge::ratio(view, (rate(case), POLICIES[2]), (rate(case), POLICIES[0]), 1.5, f64::INFINITY);
    let mut verdicts = vec![eager(&one).about("purge=never against purge=eager, 1 thread").finding(true)];
    if full > 1 {
        verdicts.push(eager(&many).about(&format!("purge=never against purge=eager, {full} threads")).finding(true));
    }
    verdicts.extend([
        judge::ratio(view, (rate(&many), NEAP), (rate(&many), POLICIES[2]), 0.8, f64::INFINITY)
            .about(&format!("the default policy against purge=never, {}", threads_text(full)))
            .target(false),
        judged(no_fall(view, full)).target(false),
    ]);
    for threads in thread_counts(false) {
        let case = case_name(threads, true);
        let figure = Figure::new("ebizzy", &case, "madvise-per-1000-frees");
        if view.has_case("ebizzy", &case) {
            let words = format!("{}, madvise calls per 1,000 frees", threads_text(threads));
            verdicts.push(judge::at_most(view, figure, NEAP, 1.0).about(&words).target(false));
        }
    }
    for threads in thread_counts(false) {
        let case = case_name(threads, false);
        if view.has_case("ebizzy", &case) {
            verdicts.push(judge::rank(view, rate(&case), Better::More).about(&threads_text(threads)).rank());
        }
    }
    verdicts
}

/// The rates with more than `full` threads, against the rate with `full`.
fn no_fall(view: &View, full: u32) -> Result<Judged, Judged> {
    let base = median(view, rate(&case_name(full, false)), NEAP)?;
    let mut worst: Option<(u32, f64)> = None;
    for threads in thread_counts(false).into_iter().filter(|&threads| threads > full) {
        let case = case_name(threads, false);
        if view.has_case("ebizzy", &case) {
            let part = median(view, rate(&case), NEAP)? / base;
            if worst.is_none_or(|(_, least)| part < least) {
                worst = Some((threads, part));
            }
        }
    }
    let (threads, part) = worst.ok_or_else(|| Judged::open("no thread count above the core count was run"))?;
    let goal = number(NO_FALL);
    let text = format!("neap at {threads} threads has {} its rate at {full} (expected: at least {goal})", times(part));
    Ok(Judged::new(text, Some(part >= NO_FALL)))
}

/// The calls of the steady thread: words and metric.
const STEADY: [(&str, &str); 4] = [
    ("malloc of small blocks", "steady-small-malloc-p99.99"),
    ("free of small blocks", "steady-small-free-p99.99"),
    ("malloc of large blocks", "steady-large-malloc-p99.99"),
    ("free of large blocks", "steady-large-free-p99.99"),
];

/// Labels and metrics of one kind of blocks.
macro_rules! kind {
    ($name:literal) => {
        [
            ("malloc p50", concat!($name, "-malloc-p50")),
            ("p99", concat!($name, "-malloc-p99")),
            ("p99.99", concat!($name, "-malloc-p99.99")),
            ("max", concat!($name, "-malloc-max-undisturbed")),
            ("free p50", concat!($name, "-free-p50")),
            ("p99", concat!($name, "-free-p99")),
            ("p99.99", concat!($name, "-free-p99.99")),
            ("max", concat!($name, "-free-max-undisturbed")),
        ]
    };
}

/// The tail of malloc and free while much memory goes back.
pub fn latency(quick: bool) -> Design {
    let ms = if quick { "2500" } else { "6000" };
    let all = [
        ("p50", "steady-all-p50"),
        ("p99", "steady-all-p99"),
        ("p99.99", "steady-all-p99.99"),
        ("max", "steady-all-max-undisturbed"),
        ("bursts included: p99.99", "every-call-p99.99"),
        ("max", "every-call-max-undisturbed"),
    ];
    let axes = (axis("", "", false), axis("time of a call", "us", true));
    let points = all[..4].iter().map(|&(label, metric)| Point::named(label, "load", metric)).collect();
    Design {
        name: "latency",
        title: "The slowest calls while memory is purged",
        question: "How long do the slowest calls of malloc and free take while other threads' memory goes back?",
        about: "malloc and free of a steady thread while two others allocate bursts, free them and idle, so that much \
                is purged. First touches are outside the timed part; `max` leaves out calls during which the thread \
                was taken off its processor.",
        claims: vec![claim(
            "Purges that hold a heap lock for a second stop every thread that allocates.",
            "bug reports of several allocators",
            None,
            &[],
        )],
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[],
        cases: vec![Case::new("load", program("latency", &[("ms", ms)]))],
        metrics: vec![
            metric("steady-all-p99.99", "99.99th percentile of all calls of the steady thread", Better::Less),
            metric("worst-undisturbed", "longest undisturbed call", Better::Less),
        ],
        charts: vec![chart("steady", "Calls of the steady thread", ChartKind::Dots, axes, Better::Less, points)],
        tables: vec![
            table("µs, all calls of malloc and free of the steady thread", columns("load", &all)),
            table("µs, steady thread, blocks of 16 B to 2 KiB", columns("load", &kind!("steady-small"))),
            table("µs, steady thread, blocks of 32 KiB to 1 MiB", columns("load", &kind!("steady-large"))),
            table("µs, bursts of blocks of 16 B to 2 KiB", columns("load", &kind!("burst-small"))),
            table("µs, bursts of blocks of 64 KiB to 4 MiB", columns("load", &kind!("burst-large"))),
        ],
        judge: judge_latency,
    }
}

fn judge_latency(view: &View, _: &Run) -> Vec<Verdict> {
    let figure = |metric| Figure::new("latency", "load", metric);
    let rank = |words: &str, metric| {
        judge::rank(view, figure(metric), Better::Less).about(&format!("99.99th percentile, {words}")).rank()
    };
    let worst = judge::at_most(view, figure("worst-undisturbed"), NEAP, 1000.0).about("longest undisturbed call");
    let mut verdicts = vec![worst.target(false), rank("all calls", "steady-all-p99.99")];
    verdicts.extend(STEADY.map(|(words, metric)| rank(words, metric)));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::{Row, Run};

    fn view(rates: &[(u32, f64)]) -> View {
        let row = |&(threads, value): &(u32, f64)| Row {
            experiment: "ebizzy".into(),
            case: case_name(threads, false),
            allocator: NEAP.into(),
            round: 1,
            turn: 1,
            status: "ok".into(),
            metric: "rate".into(),
            unit: "1/s".into(),
            value,
        };
        View::of(&Run { rows: rates.iter().map(row).collect(), ..Run::default() })
    }

    // Would catch a fall that is measured against one thread, or not measured.
    #[test]
    fn a_fall_beyond_the_cores_is_missed() {
        let steady = view(&[(1, 50.0), (2, 100.0), (4, 99.0), (8, 96.0)]);
        assert_eq!(no_fall(&steady, 2).unwrap().holds, Some(true));
        let falling = view(&[(1, 50.0), (2, 100.0), (4, 99.0), (8, 60.0)]);
        let judged = no_fall(&falling, 2).unwrap();
        assert_eq!(judged.holds, Some(false));
        assert!(judged.text.contains("at 8 threads has 0.600 times its rate at 2"), "{}", judged.text);
        assert_eq!(no_fall(&falling, 8).unwrap_err().holds, None);
    }
}
