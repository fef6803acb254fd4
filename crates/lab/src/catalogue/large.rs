//! aligned, regrow: blocks of whole OS pages that come and go, or grow.

use neap_results::{Better, ChartKind, Column, Figure, Point, Run};

use super::{Case, Design, against_the_best, against_the_best_of, axis, chart, claim, metric, program, seconds, table};

/// Limit of neap's figures as a multiple of the best peer's.
const OF_THE_BEST: f64 = 1.10;

/// `aligned`: name, alignment, least and greatest length, live blocks, and bytes that are touched of each.
const ALIGNED: [(&str, [&str; 5]); 9] = [
    ("64 B, to 256 B", ["64", "64", "256", "100", "0"]),
    ("4 KiB, to 16 KiB", ["4096", "64", "16384", "100", "0"]),
    ("128 KiB, 192 KiB", ["131072", "196608", "196608", "50", "0"]),
    ("128 KiB, to 512 KiB", ["131072", "64", "524288", "75", "0"]),
    ("2 MiB, 64 B", ["2097152", "64", "64", "100", "0"]),
    ("2 MiB, 2 MiB", ["2097152", "2097152", "2097152", "75", "0"]),
    ("2 MiB, to 8 MiB", ["2097152", "64", "8388608", "50", "0"]),
    ("64 MiB, 96 MiB", ["67108864", "100663296", "100663296", "50", "65536"]),
    ("1 GiB, 64 B", ["1073741824", "64", "64", "100", "0"]),
];

/// `regrow`: name, greatest length in KiB, percent of each growth, vectors, threads and rounds.
const REGROW: [(&str, [&str; 5]); 7] = [
    ("1 vector", ["2048", "200", "1", "1", "330"]),
    ("2 vectors", ["2048", "200", "2", "1", "330"]),
    ("4 vectors", ["2048", "200", "4", "1", "330"]),
    ("4 vectors, by 1.5", ["2048", "150", "4", "1", "330"]),
    ("4 vectors, 2 threads", ["2048", "200", "4", "2", "330"]),
    ("16 vectors to 512 KiB", ["512", "200", "16", "1", "330"]),
    ("4 vectors to 16 MiB", ["16384", "200", "4", "1", "40"]),
];

/// Aligned blocks that are replaced.
pub fn aligned(quick: bool) -> Design {
    let replaced = if quick { "100" } else { "600" };
    let case = |(name, values): (&'static str, [&'static str; 5])| {
        let names = ["align", "least", "most", "live", "touch"];
        let arguments: Vec<_> = names.into_iter().zip(values).chain([("replaced", replaced)]).collect();
        Case::new(name, program("aligned", &arguments)).word("blocks", name).needs(1024)
    };
    let names = ALIGNED.map(|(name, _)| name);
    let points = |metric: &str| names.iter().map(|&name| Point::named(name, name, metric)).collect();
    let columns = |metric: &str| names.iter().map(|&name| Column::new(name, name, metric)).collect();
    let axes = |label: &str, unit: &str| (axis("", "", false), axis(label, unit, true));
    Design {
        name: "aligned",
        title: "Aligned blocks that come and go",
        question: "Does memory grow when aligned blocks are replaced by others?",
        about: "50 to 100 live blocks of one alignment, of one length or of random lengths; blocks chosen at random \
                are freed and replaced. Every 4 KiB are written, in the case of 96 MiB the first 64 KiB.",
        claims: vec![claim(
            "An allocator that looks for a free range of length + alignment never finds the hole that an aligned block \
             left, so memory grows with each replacement.",
            "an earlier version of neap",
            Some(2026),
            &[("150 MiB live, aligned to 2 MiB, replaced 600 times", "1,021 MiB")],
        )],
        timeout: seconds(60),
        rounds: 3,
        timed: true,
        side_by_side: false,
        variants: &[],
        cases: ALIGNED.map(case).into(),
        metrics: vec![
            metric("peak", "peak resident memory", Better::Less),
            metric("cpu", "processor time", Better::Less),
            metric("faults", "page faults", Better::Less),
        ],
        charts: vec![
            chart("peak", "Peak RSS", ChartKind::Bar, axes("peak RSS", "MiB"), Better::Less, points("peak")),
            chart("cpu", "Processor time", ChartKind::Bar, axes("time", "ms"), Better::Less, points("cpu")),
        ],
        tables: vec![
            table("Peak RSS, MiB", columns("peak")),
            table("live, MiB", columns("live")),
            table("processor time, ms", columns("cpu")),
        ],
        judge: |view, _: &Run| {
            let names = ALIGNED.map(|(name, _)| name);
            // Peaks are counted from the start of the work. A peer that grows by less than the live bytes had that
            // memory resident before, in a huge page.
            let grew = |case: &str, peer: &str| {
                let median = |metric| view.median(Figure::new("aligned", case, metric), peer);
                median("peak") >= median("live")
            };
            let memory = ("peak", "peak RSS");
            let mut verdicts = against_the_best_of(view, "aligned", &names, memory, OF_THE_BEST, grew);
            verdicts.extend(against_the_best(view, "aligned", &names, ("cpu", "processor time"), OF_THE_BEST));
            verdicts
        },
    }
}

/// Vectors that grow again and again.
pub fn regrow(quick: bool) -> Design {
    let case = |(name, values): (&'static str, [&'static str; 5])| {
        let names = ["most", "percent", "vectors", "threads", "rounds"];
        let mut arguments: Vec<_> = names.into_iter().zip(values).collect();
        if quick {
            arguments.push(("rounds", "20"));
        }
        Case::new(name, program("regrow", &arguments)).word("vectors", name).needs(1024)
    };
    let names = REGROW.map(|(name, _)| name);
    let points = |metric: &str| names.iter().map(|&name| Point::named(name, name, metric)).collect();
    let columns = |metric: &str| names.iter().map(|&name| Column::new(name, name, metric)).collect();
    let axes = |label: &str, unit: &str| (axis("", "", false), axis(label, unit, true));
    Design {
        name: "regrow",
        title: "Vectors that grow again and again",
        question: "What do vectors cost that grow by realloc, are freed, and grow again?",
        about: "Vectors grow in turn from 4 KiB to 2 MiB by a factor of 2, are written and freed, 330 times; also by \
                1.5, by two threads, and to other lengths.",
        claims: vec![claim(
            "An allocator that moves pages on growth, and gives them back when the vector is freed, pays page faults for \
             each vector again.",
            "an earlier version of neap",
            Some(2026),
            &[("two vectors, 330 times", "338,000 page faults"), ("with mimalloc 2.0", "1,900 page faults")],
        )],
        timeout: seconds(60),
        rounds: 3,
        timed: true,
        side_by_side: false,
        variants: &[],
        cases: REGROW.map(case).into(),
        metrics: vec![
            metric("cpu", "processor time", Better::Less),
            metric("faults", "page faults", Better::Less),
            metric("peak", "peak resident memory", Better::Less),
        ],
        charts: vec![
            chart("cpu", "Processor time", ChartKind::Bar, axes("time", "ms"), Better::Less, points("cpu")),
            chart("peak", "Peak RSS", ChartKind::Bar, axes("peak RSS", "MiB"), Better::Less, points("peak")),
        ],
        tables: vec![
            table("Processor time, ms", columns("cpu")),
            table("page faults", columns("faults")),
            table("peak RSS, MiB", columns("peak")),
        ],
        judge: |view, _: &Run| {
            let names = REGROW.map(|(name, _)| name);
            let judge = |figure| against_the_best(view, "regrow", &names, figure, OF_THE_BEST);
            [judge(("cpu", "processor time")), judge(("peak", "peak RSS"))].concat()
        },
    }
}
