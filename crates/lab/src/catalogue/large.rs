//! aligned: blocks of whole OS pages that come and go.

use neap_results::judge;
use neap_results::{Better, ChartKind, Column, Figure, NEAP, Point, Run, Verdict, View};

use super::{Case, Design, axis, chart, claim, metric, program, seconds, table};

/// What a figure of neap's may be against the best of the others.
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

/// The best of the others, for each case: `what` of `names`.
fn against_the_best(view: &View, experiment: &str, names: &[&str], (what, words): (&str, &str)) -> Vec<Verdict> {
    let judge = |case: &&str| {
        let figure = Figure::new(experiment, case, what);
        let best = view.best_peer(figure, Better::Less, |_| true).map_or(neap_results::GLIBC, |(best, _)| best);
        judge::ratio(view, (figure, NEAP), (figure, best), 0.0, OF_THE_BEST).about(&format!("{words}, {case}"))
    };
    names.iter().map(|case| judge(case).target(false)).collect()
}

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
            let mut verdicts = against_the_best(view, "aligned", &names, ("peak", "peak RSS"));
            verdicts.extend(against_the_best(view, "aligned", &names, ("cpu", "processor time")));
            verdicts
        },
    }
}
