//! workers, survivors, vmas: memory that is shared, scattered, mapped.

use neap_results::judge::{self, Judged, number};
use neap_results::{Better, ChartKind, Figure, NEAP, Point, Run, Verdict, View};

use super::{
    Case, Design, JEMALLOC_BACKGROUND, Work, axis, chart, claim, columns, judged, median, metric, options, program,
    quiet, seconds, table,
};

/// The cases of `workers`: time between a worker's last free and the next one's peak.
const WORKERS_CASES: [&str; 2] = ["1.5 s apart", "back to back"];
/// The fraction of `vm.max_map_count` that counts as far below it.
const FAR_BELOW: f64 = 0.1;

/// Four processes in one memory cgroup.
pub fn workers(quick: bool) -> Design {
    let [apart, together] = WORKERS_CASES;
    let form = |name: &str, gap: &str, turns: &str| {
        Case::new(name, Work::Workers(options(&[("gap-ms", gap), ("turns", turns)]))).word("gap", name).needs(1024)
    };
    let figures = [
        ("workers killed, of 4", "killed"),
        ("a worker's peak, MiB", "peak-alone"),
        ("limit, MiB", "limit"),
        ("most RSS of an idle worker", "idle-rss"),
    ];
    let axes = |label: &str, unit: &str| (axis("", "", false), axis(label, unit, false));
    let points = |metric: &str| WORKERS_CASES.iter().map(|case| Point::named(*case, *case, metric)).collect();
    Design {
        name: "workers",
        title: "Worker processes under one memory limit",
        question: "Is a busy worker killed for memory that idle workers keep?",
        about: "Four processes in one memory cgroup of 1.5 times a worker's peak; each peaks (half in small blocks, \
                half in large ones), frees, and idles while the next one peaks. The peak is that of one worker \
                alone under the same allocator.",
        claims: vec![claim(
            "Retained pages of idle workers get the busy one killed: the everyday form of retain-large.",
            "reports on services in containers",
            None,
            &[],
        )],
        timeout: seconds(60),
        rounds: 1,
        timed: false,
        side_by_side: false,
        variants: &[],
        cases: vec![
            form(apart, "1500", if quick { "1" } else { "2" }),
            form(together, "0", if quick { "1" } else { "3" }),
        ],
        metrics: vec![
            metric("killed", "workers killed", Better::Less),
            metric("idle-rss", "most RSS of an idle worker", Better::Less),
        ],
        charts: vec![
            chart(
                "killed",
                "Workers killed, of 4",
                ChartKind::Bar,
                axes("killed", "count"),
                Better::Less,
                points("killed"),
            ),
            chart(
                "idle",
                "Most RSS of an idle worker",
                ChartKind::Bar,
                axes("RSS", "MiB"),
                Better::Less,
                points("idle-rss"),
            ),
        ],
        tables: vec![
            table("Peaks 1.5 s apart", columns(apart, &figures)),
            table("Peaks back to back", columns(together, &figures)),
        ],
        judge: judge_workers,
    }
}

fn judge_workers(view: &View, run: &Run) -> Vec<Verdict> {
    let of = |case: &'static str| judged(none_killed(view, case)).about(case);
    let mut verdicts = vec![of(WORKERS_CASES[0]).target(quiet(run)), of(WORKERS_CASES[1]).target(false)];
    for case in WORKERS_CASES {
        let rank = judge::rank(view, Figure::new("workers", case, "killed"), Better::Less);
        verdicts.push(rank.about(&format!("killed, {case}")).rank());
    }
    verdicts
}

fn none_killed(view: &View, case: &str) -> Result<Judged, Judged> {
    let figure = Figure::new("workers", case, "killed");
    median(view, figure, NEAP)?;
    let killed = view.values(figure, NEAP);
    let sum: f64 = killed.iter().sum();
    Ok(Judged::new(format!("{} of {} workers killed under neap", number(sum), 4 * killed.len()), Some(sum == 0.0)))
}

/// One survivor in twenty.
pub fn survivors(quick: bool) -> Design {
    let figures = [
        ("RSS before, MiB", "rss-base"),
        ("all live", "rss-full"),
        ("freed, at once", "rss-at-once"),
        ("after 2 s", "rss-idle"),
        ("pages with a live byte", "live-pages"),
        ("(after 2 s - before) / pages", "ratio"),
        ("page faults", "run-faults"),
    ];
    let axes = (axis("", "", false), axis("RSS", "MiB", false));
    let points =
        [("all live", "rss-full"), ("freed", "rss-at-once"), ("2 s later", "rss-idle"), ("least", "live-pages")]
            .map(|(label, metric)| Point::named(label, "blocks", metric));
    Design {
        name: "survivors",
        title: "One survivor in twenty",
        question: "How much of the memory around a few surviving small blocks goes back to the system?",
        about: "300,000 blocks of 512 B to 2 KiB, all freed but one in twenty, then 2 s idle.",
        claims: vec![claim(
            "276 to 283 MiB stay with mimalloc, snmalloc, rpmalloc and jemalloc's default; 74 with jemalloc's \
             background thread and a decay of 1 s.",
            "measurements before this project, on a 2-core virtual machine with Linux 6.18",
            Some(2026),
            &[("mimalloc, snmalloc, rpmalloc, jemalloc", "276 to 283 MiB"), ("jemalloc, background thread", "74 MiB")],
        )],
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: false,
        side_by_side: false,
        variants: &[JEMALLOC_BACKGROUND],
        cases: vec![Case::new("blocks", program("survivors", &[])).needs(512)],
        metrics: vec![
            metric("rss-idle", "RSS after 2 s idle", Better::Less),
            metric("ratio", "RSS against pages with a live byte", Better::Less),
        ],
        charts: vec![chart("rss", "Resident memory", ChartKind::Bar, axes, Better::Less, points.into())],
        tables: vec![table("RSS in MiB", columns("blocks", &figures))],
        judge: |view, run| {
            let figure = |metric| Figure::new("survivors", "blocks", metric);
            let line = "RSS without the program itself, against the pages that hold a live byte";
            let mut verdicts = vec![
                judge::at_most(view, figure("ratio"), NEAP, 1.10).about(line).target(quiet(run)),
                judge::rank(view, figure("rss-idle"), Better::Less).about("RSS after 2 s idle").rank(),
            ];
            if view.took_part("survivors", JEMALLOC_BACKGROUND) {
                let rss = figure("rss-idle");
                let judged = judge::ratio(view, (rss, JEMALLOC_BACKGROUND), (rss, "jemalloc"), 0.0, 0.5);
                verdicts.push(judged.about("jemalloc's background thread, RSS after 2 s idle").finding(false));
            }
            verdicts
        },
    }
}

/// 200,000 large blocks, replaced at random.
pub fn vmas(quick: bool) -> Design {
    let (blocks, replaced) = if quick { ("10000", "20000") } else { ("200000", "800000") };
    let figures = [
        ("mappings, most", "mappings"),
        ("at the end", "mappings-end"),
        ("vm.max_map_count", "max-map-count"),
        ("malloc refused", "refused"),
        ("wall, ms", "wall"),
        ("RSS, MiB", "rss"),
        ("page faults", "run-faults"),
    ];
    let axes = (axis("", "", false), axis("mappings", "count", false));
    let points = vec![Point::named("most", "blocks", "mappings"), Point::named("at the end", "blocks", "mappings-end")];
    Design {
        name: "vmas",
        title: "Mappings of many large blocks",
        question: "How near does an allocator come to the limit on the number of mappings?",
        about: "200,000 live blocks of 33 to 256 KiB of which only the first byte is written, replaced at random.",
        claims: vec![claim(
            "Purging inside of mappings splits them, up to vm.max_map_count; then mmap, mprotect and munmap fail.",
            "bug reports of several allocators",
            None,
            &[],
        )],
        timeout: seconds(120),
        rounds: 1,
        timed: false,
        side_by_side: false,
        variants: &[],
        cases: vec![Case::new("blocks", program("vmas", &[("blocks", blocks), ("replaced", replaced)])).needs(1024)],
        metrics: vec![
            metric("mappings", "most mappings", Better::Less),
            metric("refused", "malloc refused", Better::Less),
        ],
        charts: vec![chart("mappings", "Lines of /proc/self/maps", ChartKind::Dots, axes, Better::Less, points)],
        tables: vec![table("Lines of /proc/self/maps", columns("blocks", &figures))],
        judge: judge_vmas,
    }
}

fn judge_vmas(view: &View, _: &Run) -> Vec<Verdict> {
    let figure = |metric| Figure::new("vmas", "blocks", metric);
    let far_below = || {
        let limit = median(view, figure("max-map-count"), NEAP)?;
        if median(view, figure("refused"), NEAP)? > 0.0 {
            return Ok(Judged::new("malloc returned NULL under neap", Some(false)));
        }
        Ok(judge::at_most(view, figure("mappings"), NEAP, limit * FAR_BELOW).about("a tenth of vm.max_map_count"))
    };
    let rank = judge::rank(view, figure("mappings"), Better::Less).about("most mappings").rank();
    vec![judged(far_below()).target(true), rank]
}
