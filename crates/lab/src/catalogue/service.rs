//! service: what a Python service keeps after its load.

use neap_results::judge;
use neap_results::{Better, ChartKind, Column, Figure, GLIBC, NEAP, Point, Run, Verdict, View};

use super::{Case, Design, JEMALLOC_BACKGROUND, Who, Work, axis, chart, claim, columns, metric, quiet, seconds, table};

/// The plain case, and the two remedies that the reports use.
const PLAIN: &str = "load";
const TRIM: &str = "load, malloc_trim";
const ARENAS: &str = "load, two arenas";

/// Eight threads that serve requests and then wait.
pub fn service(quick: bool) -> Design {
    let work = |more: &[&str]| {
        let arguments = ["8", if quick { "60" } else { "200" }, "1000"];
        Work::Python("service.py", arguments.iter().chain(more).map(|word| (*word).to_owned()).collect())
    };
    let remedy = |case: Case, name: &str| case.word("remedy", name).under(Who::Only(&[GLIBC])).needs(1024);
    let mut arenas = remedy(Case::new(ARENAS, work(&[])), "MALLOC_ARENA_MAX=2");
    arenas.env = vec![("MALLOC_ARENA_MAX", "2")];
    let figures = [
        ("before the load, MiB", "rss-base"),
        ("under load", "rss-loaded"),
        ("caches emptied", "rss-at-once"),
        ("1 s later", "rss-idle"),
        ("3 s later", "rss-late"),
        ("part of the load's memory that stays", "kept"),
        ("load, ms", "wall"),
        ("page faults", "run-faults"),
    ];
    let point = |metric: &str| vec![Point::named("", PLAIN, metric)];
    let axes = |label: &str, unit: &str| (axis("", "", false), axis(label, unit, false));
    let bars = |name: &str, title: &str, unit: &str, metric: &str| {
        chart(name, title, ChartKind::Bar, axes(title, unit), Better::Less, point(metric))
    };
    Design {
        name: "service",
        title: "A Python service after its load",
        question: "How much memory does a threaded Python service keep after its load has ended?",
        about: "Eight threads receive JSON documents of 16 KiB to 2 MiB in growing buffers, parse them, remember the \
                last hundred each, and write them as JSON again; one request in four opens a session of 1 KiB, which \
                stays. Then the caches are emptied and the threads wait. RSS from /proc/self/status. All allocators \
                serve the same requests. The remedies are those of the reports, for glibc only.",
        claims: vec![
            claim(
                "An API server's workers grow under glibc until they are killed, although Python's objects do not; \
                 the remedy is gc.collect() and malloc_trim(0) every 1024 requests.",
                "https://github.com/pulp/pulpcore/pull/7481",
                Some(2026),
                &[],
            ),
            claim(
                "A Python server stays at 2.1 GB, of which malloc_trim(0) returns 1.3 GB; the remedy is to call it \
                 every minute.",
                "https://github.com/amun-ai/hypha/pull/976",
                Some(2026),
                &[("resident", "2.1 GB"), ("returned by malloc_trim(0)", "1.3 GB")],
            ),
            claim(
                "A Python proxy of large JSON requests falls from 2.68 GiB to 460 MiB with jemalloc, its background \
                 thread and a decay of 5 s.",
                "https://github.com/su-kaka/gcli2api/pull/395",
                Some(2026),
                &[("glibc", "2.68 GiB"), ("jemalloc, background thread", "460 MiB")],
            ),
            claim(
                "A pool of request threads keeps 199 MB after 16 concurrent requests, 88 MB with two arenas.",
                "https://github.com/amule-org/amule/pull/1095",
                Some(2026),
                &[("glibc", "199 MB"), ("two arenas", "88 MB")],
            ),
        ],
        timeout: seconds(120),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[JEMALLOC_BACKGROUND],
        cases: vec![
            Case::new(PLAIN, work(&[])).word("remedy", "none").needs(1024),
            remedy(Case::new(TRIM, work(&["trim"])), "malloc_trim(0)"),
            arenas,
        ],
        metrics: vec![
            metric("rss-idle", "RSS one second after the load", Better::Less),
            metric("wall", "time of the load", Better::Less),
        ],
        charts: vec![
            bars("idle", "Resident memory one second after the load", "MiB", "rss-idle"),
            bars("wall", "Time of the load", "ms", "wall"),
        ],
        tables: vec![
            table("RSS in MiB", columns(PLAIN, &figures)),
            table(
                "RSS one second after the load with a remedy, MiB",
                vec![
                    Column::new("no remedy", PLAIN, "rss-idle"),
                    Column::new("malloc_trim(0)", TRIM, "rss-idle"),
                    Column::new("two arenas", ARENAS, "rss-idle"),
                ],
            ),
        ],
        judge: judge_service,
    }
}

fn judge_service(view: &View, run: &Run) -> Vec<Verdict> {
    let figure = |case, metric| Figure::new("service", case, metric);
    let (idle, wall) = (figure(PLAIN, "rss-idle"), figure(PLAIN, "wall"));
    let remedy = |case, most| judge::ratio(view, (figure(case, "rss-idle"), GLIBC), (idle, GLIBC), 0.0, most);
    vec![
        judge::at_least(view, figure(PLAIN, "kept"), GLIBC, 0.5)
            .about("glibc keeps at least half of the load's memory")
            .finding(true),
        remedy(TRIM, 0.5).about("glibc with malloc_trim(0)").finding(false),
        remedy(ARENAS, 0.75).about("glibc with two arenas").finding(false),
        judge::at_most(view, figure(PLAIN, "kept"), NEAP, 0.1).about("neap gives it back").target(quiet(run)),
        judge::ratio(view, (wall, NEAP), (wall, GLIBC), 0.0, 1.0).about("time of the load").target(false),
        judge::rank(view, idle, Better::Less).about("RSS 1 s after the load").rank(),
        judge::rank(view, wall, Better::Less).about("time of the load").rank(),
    ]
}
