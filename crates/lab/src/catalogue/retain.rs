//! retain-large, retain-small: what stays resident after everything was freed.

use neap_results::judge::{self, Judged, jump};
use neap_results::{Better, ChartKind, Figure, GLIBC, Mark, NEAP, Point, Run, Series, Value, Verdict, View};

use super::{
    Case, Design, JEMALLOC_BACKGROUND, Who, axis, chart, claim, columns, judged, metric, options, quiet, seconds, table,
};
use crate::catalogue::Work;

/// neap with `purge=eager`.
const EAGER: &str = "neap-eager";
/// Rounds of retain-large.
const ROUNDS: usize = 20;
/// The plain case, and the two remedies that were published.
const PLAIN: &str = "rounds";
const TRIM: &str = "rounds, malloc_trim";
const VARIABLES: &str = "rounds, two variables";
const LIMITS: [(&str, &str); 2] = [("MALLOC_TRIM_THRESHOLD_", "131072"), ("MALLOC_MMAP_THRESHOLD_", "131072")];
/// "Returned": what may stay in RSS with the program itself.
const RETURNED_MIB: f64 = 16.0;
/// A peer uses huge pages if more than this fraction of its peak is in them.
const HUGE_PART: f64 = 0.01;

/// The three cases of an experiment, which need `mib` MiB each; the remedies run under `who`.
fn cases(program: &'static str, arguments: &[(&str, &str)], who: Who, mib: u64) -> Vec<Case> {
    let work = |more: &[(&str, &str)]| Work::Program(program, options(&[arguments, more].concat()));
    // The effect of a remedy is seen in RSS after the rounds, which does not vary.
    const NO_IDLE: (&str, &str) = ("idle-ms", "0");
    let mut limited = Case::new(VARIABLES, work(&[NO_IDLE])).word("remedy", "two variables").under(who).at_most(1);
    limited.env = LIMITS.into();
    let cases = [
        Case::new(PLAIN, work(&[])).word("remedy", "none"),
        Case::new(TRIM, work(&[("trim", "1"), NO_IDLE])).word("remedy", "malloc_trim(0)").under(who).at_most(1),
        limited,
    ];
    cases.map(|case| case.needs(mib)).into()
}

/// The metric of RSS after the free of a round, counted from 1.
fn freed(round: usize) -> String {
    format!("round-{round:02}-freed")
}

/// RSS when the program has freed everything and waited.
fn rest_chart() -> neap_results::Chart {
    let points = vec![Point::named("after 1 s", PLAIN, "rss-1s")];
    let axes = (axis("", "", false), axis("RSS", "MiB", true));
    chart("rest", "Resident memory 1 s after the last free", ChartKind::Bar, axes, Better::Less, points)
}

/// [`rest_chart`], then RSS after each round, without and with the remedies.
fn memory_charts(program: &str, rounds: usize, marks: Vec<Mark>) -> Vec<neap_results::Chart> {
    let points = |case: &str| (1..=rounds).map(|round| Point::at(round as f64, case, freed(round))).collect();
    let axes = || (axis("round", "count", false), axis("RSS after the frees", "MiB", true));
    let title = "Resident memory after the frees of each round";
    let mut plain = chart("rounds", title, ChartKind::Line, axes(), Better::Less, points(PLAIN));
    plain.marks = marks;
    let title = format!("{program} with glibc: two remedies");
    let mut remedies = chart("remedies", &title, ChartKind::Line, axes(), Better::Less, Vec::new());
    let series = |(label, case): (&str, &str)| Series { label: label.into(), points: points(case) };
    remedies.series = [("none", PLAIN), ("malloc_trim", TRIM), ("two variables", VARIABLES)].map(series).into();
    remedies.allocators = vec![GLIBC.into()];
    vec![rest_chart(), plain, remedies]
}

fn remedies_table() -> neap_results::Table {
    let column = |label: &str, case: &str| neap_results::Column::new(label, case, "rss-freed-worst");
    let columns = vec![column("no remedy", PLAIN), column("malloc_trim(0)", TRIM), column("two variables", VARIABLES)];
    table("Most RSS after the frees of a round, MiB", columns)
}

/// 20 rounds of 256 buffers of 0 to 32 MiB.
pub fn retain_large(quick: bool) -> Design {
    // The jump comes in round 7. The sizes depend on the number of buffers, so that is not reduced. The jump does not
    // depend on how much of them is resident, and one page in sixteen is a tenth of the work.
    let arguments: &[(&str, &str)] = if quick { &[("rounds", "7"), ("stride", "65536")] } else { &[("rounds", "20")] };
    let figures = [
        ("wall, ms", "wall"),
        ("peak RSS, MiB", "peak"),
        ("of it in huge pages", "huge"),
        ("RSS at once", "rss-at-once"),
        ("after 1 s", "rss-1s"),
        ("of it MADV_FREE", "lazy-1s"),
        ("after 2 s", "rss-2s"),
        ("page faults", "run-faults"),
    ];
    let mut charts = memory_charts("retain-large", ROUNDS, Vec::new());
    let who = Who::Only(if quick { &[GLIBC] } else { &[GLIBC, NEAP] });
    let point = |case: &str, metric: &str| vec![Point::named("all rounds", case, metric)];
    let axes = (axis("", "", false), axis("wall time", "ms", false));
    charts.push(chart("wall", "Wall time of the rounds", ChartKind::Bar, axes, Better::Less, point(PLAIN, "wall")));
    Design {
        name: "retain-large",
        title: "Memory kept after large buffers were freed",
        question: "Does memory go back to the system when large buffers are freed, and what does that cost?",
        about: "20 rounds of 256 buffers of 0 to 32 MiB, sizes from srandom(0); one byte written in each 4 KiB, all \
                freed after each round; RSS from /proc/self/status. With --quick 7 rounds and one byte in each 64 KiB.",
        claims: vec![claim(
            "With glibc 2.28 all goes back for six rounds; then 3.4 GB stay for ever, as the threshold above which \
             blocks are mapped by themselves has grown. malloc_trim(0) after the frees helps, and so do the two \
             variables that fix the threshold.",
            "published test of glibc's dynamic mmap threshold",
            None,
            &[
                ("RSS after the frees, rounds 1 to 6", "1.4 MB"),
                ("from then on", "3.4 GB"),
                ("with malloc_trim(0)", "1.4 MB each round"),
                ("with MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ at 131072", "1.6 MB"),
            ],
        )],
        timeout: seconds(240),
        rounds: if quick { 1 } else { 2 },
        timed: true,
        side_by_side: false,
        variants: if quick { &[] } else { &[EAGER, "mimalloc3-nothp", JEMALLOC_BACKGROUND] },
        cases: cases("retain-large", arguments, who, if quick { 1024 } else { 5120 }),
        metrics: vec![
            metric("wall", "time of allocating, touching, freeing", Better::Less),
            metric("rss-at-once", "RSS after the last free", Better::Less),
            metric("rss-1s", "RSS one second later", Better::Less),
        ],
        charts,
        tables: vec![table("Wall time and RSS", columns(PLAIN, &figures)), remedies_table()],
        judge: judge_large,
    }
}

/// RSS after the frees of each round that was run.
fn freed_rounds(view: &View, experiment: &str, case: &str, allocator: &str) -> Vec<f64> {
    let value = |round| view.median(Figure::new(experiment, case, &freed(round)), allocator);
    (1..=ROUNDS).map_while(value).collect()
}

/// Whether a remedy keeps RSS low after each round.
fn remedy(view: &View, experiment: &str, case: &str, words: &str) -> Verdict {
    let figure = Figure::new(experiment, case, "rss-freed-worst");
    judge::at_most(view, figure, GLIBC, RETURNED_MIB).about(words).finding(true)
}

/// What stays under glibc without a remedy: the published finding.
fn glibc_keeps(view: &View, experiment: &str) -> Judged {
    let figure = Figure::new(experiment, PLAIN, "rss-freed-worst");
    match view.value(figure, GLIBC) {
        Value::Is(_) => {
            jump(&freed_rounds(view, experiment, PLAIN, GLIBC), "MiB", 10.0, 0.5).about("glibc, RSS after the frees")
        }
        _ => judged(super::median(view, figure, GLIBC).map(|_| Judged::open("no rounds"))),
    }
}

fn judge_large(view: &View, run: &Run) -> Vec<Verdict> {
    let figure = |metric| Figure::new("retain-large", PLAIN, metric);
    let small_pages = |name: &str| {
        let (huge, peak) = (view.median(figure("huge"), name), view.median(figure("peak"), name));
        huge.zip(peak).is_some_and(|(huge, peak)| huge <= peak * HUGE_PART)
    };
    let wall = figure("wall");
    let mut verdicts = vec![
        glibc_keeps(view, "retain-large").finding(true),
        remedy(view, "retain-large", TRIM, "glibc with malloc_trim(0), RSS after any round"),
        remedy(view, "retain-large", VARIABLES, "glibc with the two variables, RSS after any round"),
        judge::at_most(view, figure("rss-1s"), NEAP, 8.0).about("RSS 1 s after the last free").target(quiet(run)),
        judge::ratio(view, (figure("rss-2s"), NEAP), (figure("rss-2s"), GLIBC), 0.0, 0.5)
            .about("RSS 2 s after the last free")
            .target(true),
    ];
    if view.took_part("retain-large", EAGER) {
        let judged = judge::at_most(view, figure("rss-at-once"), EAGER, 8.0);
        verdicts.push(judged.about("purge=eager, RSS at once").target(false));
    }
    if let Some((best, _)) = view.best_peer(wall, Better::Less, small_pages) {
        let judged = judge::ratio(view, (wall, NEAP), (wall, best), 0.0, 1.0);
        verdicts.push(judged.about("wall time, against the quickest peer without huge pages").target(false));
    }
    if view.median(wall, EAGER).is_some() && view.median(wall, "jemalloc").is_some() {
        let judged = judge::ratio(view, (wall, EAGER), (wall, "jemalloc"), 0.0, 1.0 / 3.0);
        verdicts.push(judged.about("wall time of purge=eager").target(false));
    }
    verdicts.push(judge::rank(view, wall, Better::Less).about("wall time").rank());
    verdicts.push(judge::rank(view, figure("rss-1s"), Better::Less).about("RSS 1 s after the last free").rank());
    verdicts
}

/// Five rounds of three buffers that grow.
pub fn retain_small(quick: bool) -> Design {
    let figures = [
        ("live bytes, MiB", "live"),
        ("peak RSS", "peak"),
        ("peak without the program / live", "peak-ratio"),
        ("RSS at once", "rss-at-once"),
        ("after 1 s", "rss-1s"),
        ("of it MADV_FREE", "lazy-1s"),
        ("page faults", "run-faults"),
    ];
    Design {
        name: "retain-small",
        title: "Memory kept after a few growing buffers",
        question: "Do three buffers of some 30 MiB, freed five times, leave more behind from round to round?",
        about: "For k in 28..=32: three buffers of (k+i) MiB less (random() % 16) * 4096 bytes, touched and freed.",
        claims: vec![claim(
            "With glibc 2.12 RSS after the frees grows from round to round, and the last peak is a third above the \
             live bytes. Both remedies keep it at 0.5 MB.",
            "published test of glibc's dynamic mmap threshold",
            None,
            &[
                ("RSS after the frees of the five rounds", "0.5, 30, 31, 65, 65 MB"),
                ("last peak", "133 MB instead of 101 MB"),
                ("with either remedy", "0.5 MB"),
            ],
        )],
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: false,
        side_by_side: false,
        variants: &[],
        cases: cases("retain-small", &[], if quick { Who::Only(&[GLIBC, NEAP]) } else { Who::All }, 256),
        metrics: vec![
            metric("rss-1s", "RSS one second after the last free", Better::Less),
            metric("peak-ratio", "peak against live bytes", Better::Less),
        ],
        charts: memory_charts("retain-small", 5, Vec::new()),
        tables: vec![table("RSS in MiB", columns(PLAIN, &figures)), remedies_table()],
        judge: judge_small,
    }
}

fn judge_small(view: &View, run: &Run) -> Vec<Verdict> {
    let figure = |metric| Figure::new("retain-small", PLAIN, metric);
    let peak = figure("peak-ratio");
    vec![
        glibc_keeps(view, "retain-small").finding(true),
        remedy(view, "retain-small", TRIM, "glibc with malloc_trim(0), RSS after any round"),
        remedy(view, "retain-small", VARIABLES, "glibc with the two variables, RSS after any round"),
        judge::at_least(view, peak, GLIBC, 1.2).about("glibc, peak against the live bytes").finding(false),
        judge::at_most(view, figure("rss-1s"), NEAP, 8.0).about("RSS 1 s after the last free").target(quiet(run)),
        judge::at_most(view, peak, NEAP, 1.02).about("peak against the live bytes").target(false),
        judge::rank(view, figure("rss-1s"), Better::Less).about("RSS 1 s after the last free").rank(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::{Allocator, Row, Run};

    fn run(rows: &[(&str, &str, &str, f64)]) -> View {
        let row = |&(case, allocator, metric, value): &(&str, &str, &str, f64)| Row {
            experiment: "retain-large".into(),
            case: case.into(),
            allocator: allocator.into(),
            round: 1,
            turn: 1,
            status: "ok".into(),
            metric: metric.into(),
            unit: "MiB".into(),
            value,
        };
        let allocator = |name: &str| Allocator { name: name.into(), ..Allocator::default() };
        let allocators = [GLIBC, NEAP, "mimalloc3", "jemalloc"].map(allocator).into();
        View::of(&Run { rows: rows.iter().map(row).collect(), allocators, ..Run::default() })
    }

    // Would catch a jump that is not seen in the rounds, and a remedy whose case is not judged.
    #[test]
    fn the_jump_and_its_remedies() {
        let names: Vec<String> = (1..=8).map(freed).collect();
        let mut rows: Vec<_> = names
            .iter()
            .zip([1.6, 1.7, 1.7, 1.7, 1.7, 1.7, 3327.0, 3327.0])
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(name, value)| (PLAIN, GLIBC, name.as_str(), value))
            .collect();
        rows.push((PLAIN, GLIBC, "rss-freed-worst", 3327.0));
        rows.push((TRIM, GLIBC, "rss-freed-worst", 1.5));
        rows.push((VARIABLES, GLIBC, "rss-freed-worst", 3000.0));
        let verdicts = judge_large(&run(&rows), &Run::default());
        assert_eq!((verdicts[0].holds, verdicts[1].holds, verdicts[2].holds), (Some(true), Some(true), Some(false)));
        assert!(verdicts[0].text.contains("from round 7 on"), "{}", verdicts[0].text);
        assert_eq!(verdicts[3].holds, None);
    }

    // Would catch a peer with huge pages among those without.
    #[test]
    fn huge_pages_are_seen_in_the_data() {
        let peer =
            |name, wall, huge| [("wall", wall), ("huge", huge), ("peak", 5000.0)].map(|(m, v)| (PLAIN, name, m, v));
        let rows = [peer(NEAP, 40.0, 0.0), peer("mimalloc3", 10.0, 4900.0), peer("jemalloc", 50.0, 0.0)].concat();
        let verdicts = judge_large(&run(&rows), &Run::default());
        let against = verdicts.iter().find(|verdict| verdict.text.contains("without huge pages")).unwrap();
        assert!(against.text.contains("jemalloc") && against.holds == Some(true), "{}", against.text);
    }
}
