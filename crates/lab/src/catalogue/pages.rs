//! pagein, prefault, huge: page faults in order, in advance, and fewer of them.

use neap_results::judge::{self, Judged, number, quantity, times};
use neap_results::{Better, ChartKind, Figure, GLIBC, NEAP, Place, Point, Run, Series, Verdict, View};

use super::{
    Case, Design, MEMORY_PAPER, Who, Work, axis, chart, claim, columns, judged, median, metric, program, quiet,
    seconds, table,
};

/// The programs whose page faults are traced.
pub const TRACED: [&str; 2] = ["true", "cat"];
/// What a fault was for, as `neap pagein` names it.
pub const FAULT_KINDS: [&str; 6] = ["file-minor", "file-major", "cow", "anon", "zero", "other"];

/// Every page fault of a small program.
pub fn pagein(quick: bool) -> Design {
    let figures = [
        ("faults", "faults"),
        ("code", "code"),
        ("data", "data"),
        ("mapped from a file", "file-minor"),
        ("read from a disk", "file-major"),
        ("copied on write", "cow"),
        ("fresh memory", "anon"),
        ("zero page", "zero"),
        ("other", "other"),
        ("first to last, µs", "duration"),
    ];
    let kinds = figures[3..9].iter().map(|&(label, metric)| Point::named(label, "true", metric)).collect();
    let axes = (axis("", "", false), axis("faults", "count", false));
    let mut cases: Vec<Case> =
        TRACED.iter().map(|name| Case::new(*name, Work::Pagein(name)).word("program", *name)).collect();
    cases.truncate(if quick { 1 } else { 2 });
    Design {
        name: "pagein",
        title: "Every page fault of a small program",
        question: "Which pages does a program touch before it does anything, and what does its malloc add?",
        about: "neap pagein on `true` and `cat`, with each allocator preloaded: faults by subject and by kind. The \
                table of glibc's and neap's run is kept.",
        claims: vec![claim(
            "A table of all faults in order: number, page, C (code) or D (data), cycles since the first fault, \
             instruction, symbol, object. Reordering functions by it saves some 5 % of start-up time.",
            MEMORY_PAPER,
            Some(2007),
            &[("a line", "2 0x3000001000 C 58270 0x3000001080: _dl_start (in /lib64/ld-2.5.so)")],
        )],
        timeout: seconds(30),
        rounds: if quick { 1 } else { 3 },
        timed: false,
        side_by_side: false,
        variants: &[],
        cases,
        metrics: vec![metric("faults", "page faults", Better::Less), metric("anon", "fresh memory", Better::Less)],
        charts: vec![chart("kinds", "Page faults of `true` by kind", ChartKind::Bar, axes, Better::Less, kinds)],
        tables: TRACED.map(|name| table(&format!("Page faults of `{name}`"), columns(name, &figures))).into(),
        judge: |view, _| {
            let figure = |metric| Figure::new("pagein", "true", metric);
            let added = || {
                let (own, base) = (median(view, figure("faults"), NEAP)?, median(view, figure("faults"), GLIBC)?);
                Ok(Judged::new(format!("neap adds {} page faults to `true`", number(own - base)), None))
            };
            let rank = judge::rank(view, figure("faults"), Better::Less).about("page faults of `true`");
            vec![rank.rank(), judged(added()).figure()]
        },
    }
}

/// Ways of `prefault`: option, name in sentences.
const METHODS: [(&str, &str); 5] = [
    ("touch", "touch"),
    ("part", "populate the part"),
    ("whole", "populate all"),
    ("read", "populate for reading"),
    ("map", "MAP_POPULATE"),
];
/// Percent of the block that are used.
const USED: [&str; 2] = ["100", "25"];

fn prefault_case(method: &str, used: &str) -> String {
    format!("{method}, {used} % used")
}

/// Memory made resident before it is used.
pub fn prefault(quick: bool) -> Design {
    let mib = if quick { "64" } else { "256" };
    let (mut cases, mut tables, mut charts) = (Vec::new(), Vec::new(), Vec::new());
    for used in USED {
        for (method, words) in METHODS {
            let work = program("prefault", &[("method", method), ("used", used), ("mib", mib)]);
            let case = Case::new(prefault_case(method, used), work).word("method", words);
            // What mmap gives does not depend on the allocator.
            let who = if method == "map" { Who::First } else { Who::All };
            cases.push(case.number("used", used.parse().unwrap_or(100.0)).under(who).needs(512));
        }
        for (metric, title, unit) in [
            ("total", "time until used, ms", "ms"),
            ("rss", "resident memory, MiB", "MiB"),
            ("faults", "page faults", "count"),
        ] {
            let column =
                |(method, words): (&str, &str)| neap_results::Column::new(words, prefault_case(method, used), metric);
            tables.push(table(&format!("{used} % used: {title}"), METHODS.map(column).into()));
            let points = METHODS.map(|(method, words)| Point::named(words, prefault_case(method, used), metric)).into();
            let axes = (axis("", "", false), axis(title, unit, false));
            let (name, title) = (format!("{metric}-{used}"), format!("{used} % of the block used: {title}"));
            charts.push(chart(&name, &title, ChartKind::Bar, axes, Better::Less, points));
        }
    }
    Design {
        name: "prefault",
        title: "Memory made resident in advance",
        question: "What does it save to make pages resident in one call, and what does it waste?",
        about: "A block of 256 MiB (64 with --quick), of which all or a quarter is then written, one byte in each \
                4 KiB: without preparation, after MADV_POPULATE_WRITE over the part or over all, after \
                MADV_POPULATE_READ, and with MAP_POPULATE.",
        claims: vec![claim(
            "One call replaces many faults; populating a whole mapping wastes memory where pages stay unused.",
            MEMORY_PAPER,
            Some(2007),
            &[],
        )],
        timeout: seconds(60),
        rounds: if quick { 2 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[],
        cases,
        metrics: vec![
            metric("total", "time until used", Better::Less),
            metric("rss", "resident memory", Better::Less),
            metric("faults", "page faults", Better::Less),
        ],
        charts,
        tables,
        judge: judge_prefault,
    }
}

fn judge_prefault(view: &View, _: &Run) -> Vec<Verdict> {
    let (full, part) = (USED[0], USED[1]);
    let [touched, populated] = ["touch", "part"].map(|method| prefault_case(method, full));
    let [few, whole] = ["touch", "whole"].map(|method| prefault_case(method, part));
    fn total(case: &str) -> Figure<'_> {
        Figure::new("prefault", case, "total")
    }
    let rss = |case| Figure::new("prefault", case, "rss");
    let of = |case| (total(case), GLIBC);
    let rank = |case, words: &str| judge::rank(view, total(case), Better::Less).about(words).rank();
    vec![
        judge::ratio(view, of(&populated), of(&touched), 0.0, 0.95)
            .about("time, one call for all pages")
            .finding(false),
        judge::ratio(view, (rss(&whole), GLIBC), (rss(&few), GLIBC), 3.0, f64::INFINITY)
            .about("memory, a quarter used")
            .finding(true),
        rank(&touched, "time of a block touched page by page"),
        rank(&populated, "time of a block populated in one call"),
    ]
}

/// Kinds of memory: option, name, whether it takes pages from the pool of hugetlb.
pub const HUGE_KINDS: [(&str, &str, bool); 6] = [
    ("small", "4 KiB pages", false),
    ("mthp", "mTHP 64 KiB", false),
    ("thp", "THP", false),
    ("file", "hugetlb, file", true),
    ("sysv", "hugetlb, SysV", true),
    ("mmap", "hugetlb, MAP_HUGETLB", true),
];
/// The powers of two that are walked.
const BITS: (u32, u32) = (10, 30);
/// The case in which each allocator returns the memory, and its size.
const FROM_MALLOC: (&str, u32) = ("malloc, 512 MiB", 29);
/// The walk over blocks of malloc under neap with huge pages.
const ADAPTIVE: (&str, &str) = ("malloc, neap with huge=adaptive", "neap-adaptive");
/// Limit on the walk over a block of malloc before it is measured, in ms for each huge page that it could have: for
/// neap's promotion, and for the other allocators. An allocator may make its pages huge some time after they were
/// touched.
const SETTLE_MS: (u32, u32) = (120, 12);

fn step(bits: u32) -> String {
    format!("ns-{bits:02}")
}

/// A random walk over memory in pages of several sizes.
pub fn huge(quick: bool) -> Design {
    // 20 and 29 are among them, because the published figures are of 1 MiB and 512 MiB.
    let bits = if quick { (11, 29, 3) } else { (BITS.0, BITS.1, 1) };
    let mut cases = Vec::new();
    for (kind, name, pool) in HUGE_KINDS {
        let case = Case::new(name, Work::Huge { kind, bits, settle_ms: 0 }).word("memory", name).under(Who::First);
        // A walk that leaves no memory for other programs would show nothing.
        let case = case.needs((2u64 << bits.1) >> 20);
        // The three kinds of hugetlb use the same pages, so one round of each is enough.
        cases.push(case.at_most(if pool { 1 } else { u32::MAX }));
    }
    let (name, size) = FROM_MALLOC;
    let from_malloc = |name: &str, bits: (u32, u32, u32), settle_ms: u32| {
        let work = Work::Huge { kind: "malloc", bits, settle_ms };
        Case::new(name, work).word("memory", "malloc").needs((2u64 << bits.1) >> 20)
    };
    cases.push(from_malloc(ADAPTIVE.0, bits, SETTLE_MS.0).under(Who::Only(&[ADAPTIVE.1])).at_most(1));
    cases.push(from_malloc(name, (size, size, 1), SETTLE_MS.1));
    let walked: Vec<&str> = HUGE_KINDS.iter().map(|kind| kind.1).chain([ADAPTIVE.0]).collect();
    let series = walked.iter().map(|&name| Series {
        label: name.into(),
        points: (BITS.0..=BITS.1).map(|bits| Point::at((1u64 << bits) as f64, name, step(bits))).collect(),
    });
    let axes = (axis("bytes walked", "B", true), axis("time of a step", "ns", true));
    let mut walk = chart("walk", "Time of one step of the walk", ChartKind::Line, axes, Better::Less, Vec::new());
    walk.series = series.collect();
    walk.places = [("TLB reach, 4 KiB pages", HUGE_KINDS[0].1), ("TLB reach, 2 MiB pages", HUGE_KINDS[2].1)]
        .map(|(label, case)| Place { label: label.into(), case: case.into(), metric: "reach".into() })
        .into();
    let axes = (axis("", "", false), axis("time of a step", "ns", false));
    let from_malloc = vec![Point::named("512 MiB", name, step(size))];
    let shown = [(14, "16 KiB"), (17, "128 KiB"), (20, "1 MiB"), (23, "8 MiB"), (26, "64 MiB"), (29, "512 MiB")];
    let mut tables = Vec::new();
    for kind in walked {
        let columns = shown.map(|(bits, label)| neap_results::Column::new(label, kind, step(bits)));
        tables.push(table(&format!("ns per step, {kind}"), columns.into()));
    }
    tables.push(table(
        "Memory from malloc, 512 MiB",
        columns(name, &[("ns per step", &step(size)), ("in huge pages, MiB", "huge")]),
    ));
    Design {
        name: "huge",
        title: "What huge pages are worth",
        question: "How much faster is a random walk over much memory in huge pages?",
        about: "A random walk over a cyclic list, one pointer in each line of 64 bytes, in 4 KiB pages, in transparent \
                huge pages of 64 KiB and of 2 MiB, and in hugetlb pages by a file, by SysV shared memory and by \
                MAP_HUGETLB; then in blocks of malloc under neap with huge=adaptive, and in 512 MiB from each \
                allocator. These blocks are walked over before they are measured, until they are in huge pages, for at \
                most 120 ms for each such page with huge=adaptive and 12 ms otherwise. The chart shows what the \
                processor's TLB covers.",
        claims: vec![claim(
            "Huge pages gained 57 % at 2^20 bytes and 38 % at 512 MiB; with them a step stays near 250 cycles up to \
             2^27 bytes, where the 64 TLB entries of 2 MiB end.",
            MEMORY_PAPER,
            Some(2007),
            &[("gain at 2^20 bytes", "57 %"), ("gain at 512 MiB", "38 %"), ("flat until 2^27 bytes", "250 cycles")],
        )],
        timeout: seconds(400),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[ADAPTIVE.1],
        cases,
        metrics: vec![metric(&step(size), "time of a step, 512 MiB", Better::Less)],
        charts: vec![
            walk,
            chart("malloc", "512 MiB from each malloc", ChartKind::Bar, axes, Better::Less, from_malloc),
        ],
        tables,
        judge: judge_huge,
    }
}

/// `gains 38 %`, `loses 8 %`.
fn gained(percent: f64) -> String {
    format!("{} {:.0} %", if percent < 0.0 { "loses" } else { "gains" }, percent.abs())
}

fn judge_huge(view: &View, run: &Run) -> Vec<Verdict> {
    let [large, mebi] = [29, 20].map(step);
    let gain = |metric: &str, kind: &str, least: f64| -> Result<Judged, Judged> {
        let of = |case| {
            let figure = Figure::new("huge", case, metric);
            let first = view.allocators().iter().find(|name| view.median(figure, name).is_some());
            median(view, figure, first.map_or(GLIBC, String::as_str)).map_err(|judged| Judged { holds: None, ..judged })
        };
        let (small, huge) = (of(HUGE_KINDS[0].1)?, of(kind)?);
        let part = 100.0 * (small / huge - 1.0);
        let text = format!(
            "{kind} {}: {} a step against {} in 4 KiB pages, {}",
            gained(part),
            quantity(huge, "ns"),
            quantity(small, "ns"),
            times(small / huge)
        );
        Ok(Judged::new(text, Some(part >= least)))
    };
    let mut verdicts = vec![
        judged(gain(&large, "THP", 5.0)).about("512 MiB").finding(quiet(run)),
        judged(gain(&mebi, "THP", 5.0)).about("1 MiB").finding(false),
    ];
    for (_, kind, pool) in HUGE_KINDS {
        if pool || kind.starts_with("mTHP") {
            verdicts.push(judged(gain(&large, kind, 5.0)).about("512 MiB").finding(false));
        }
    }
    let adaptive = judged(gain(&large, ADAPTIVE.0, 5.0));
    verdicts.push(adaptive.about("512 MiB").target(false));
    let figure = Figure::new("huge", FROM_MALLOC.0, &large);
    verdicts.push(judge::rank(view, figure, Better::Less).about("a walk over 512 MiB from malloc").rank());
    verdicts
}
