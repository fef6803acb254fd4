//! order: a program whose start needs a small part of its code and data, before and after `neap order`.

use neap_results::judge::{Judged, number};
use neap_results::{Better, ChartKind, Figure, GLIBC, Point, View};

use super::{
    Case, Design, MEMORY_PAPER, Who, Work, axis, chart, claim, columns, judged, median, metric, quiet, seconds, table,
};

/// The layouts: name, and whether data are placed too.
const LAYOUTS: [(&str, bool); 2] = [("functions", false), ("functions and data", true)];

/// The program of many functions, and what a trace may add to its start, in ms.
const MANY: &str = "a trace of 50,000 functions";
const TRACE_MS: f64 = 500.0;

/// A program with another layout.
pub fn order(quick: bool) -> Design {
    let pairs = if quick { 5 } else { 20 };
    let case = |(name, data)| {
        let work = Work::Order { data, pairs };
        Case::new(name, work).word("placed", name).under(Who::First)
    };
    let many = Case::new(MANY, Work::OrderTrace { pairs }).under(Who::First);
    let figures = [
        ("page faults before", "faults-before"),
        ("after", "faults"),
        ("without fault-around before", "exact-before"),
        ("after", "exact"),
        ("pages of code before", "code-before"),
        ("after", "code"),
        ("pages of data before", "data-before"),
        ("after", "data"),
        ("ms before", "ms-before"),
        ("after", "ms"),
        ("after / before", "ratio"),
    ];
    let traced = [
        ("ms alone", "alone-ms"),
        ("ms traced", "traced-ms"),
        ("ms more", "over-ms"),
        ("least", "over-least-ms"),
        ("most", "over-most-ms"),
    ];
    let axes = (axis("", "", false), axis("page faults", "count", false));
    let mut points = vec![Point::named("the linker's order", LAYOUTS[0].0, "faults-before")];
    points.extend(LAYOUTS.map(|(name, _)| Point::named(name, name, "faults")));
    Design {
        name: "order",
        title: "A program laid out by what its start needs",
        question: "What does it save to place functions and data that a start needs next to each other?",
        about: "A program of 2,000 functions of 1 KiB, each with a constant and a variable of 512 bytes, calls 100 of \
                them, scattered. neap order traces it and it is linked again by GNU ld: with its functions in order, \
                and with its data too. Then both programs run in turn. Another program has 50,000 functions, of \
                which it calls 5,000: it runs alone and under neap order trace, in turn.",
        claims: vec![claim(
            "Reordering functions alone saves some 5 % of start-up time; there are fewer page faults.",
            MEMORY_PAPER,
            Some(2007),
            &[("start-up time saved", "5 %")],
        )],
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[],
        cases: LAYOUTS.map(case).into_iter().chain([many]).collect(),
        metrics: vec![metric("faults", "page faults", Better::Less), metric("ratio", "time, ratio", Better::Less)],
        charts: vec![chart("faults", "Page faults of a start", ChartKind::Bar, axes, Better::Less, points)],
        tables: LAYOUTS
            .map(|(name, _)| table(&format!("In order: {name}"), columns(name, &figures)))
            .into_iter()
            .chain([table("A trace of 50,000 functions, 5,000 entered", columns(MANY, &traced))])
            .collect(),
        judge: |view, run| {
            let [functions, data] = LAYOUTS.map(|(name, _)| judged(gain(view, name)).about(name));
            // The published figures are of functions alone.
            vec![
                functions.finding(false),
                Judged { holds: None, ..data }.figure(),
                judged(cost(view)).target(quiet(run)),
            ]
        },
    }
}

/// A figure of a case, of the allocator that it was run under.
fn of(view: &View, case: &str, metric: &str) -> Result<f64, Judged> {
    let figure = Figure::new("order", case, metric);
    let first = view.allocators().iter().find(|name| view.median(figure, name).is_some());
    median(view, figure, first.map_or(GLIBC, String::as_str)).map_err(|judged| Judged { holds: None, ..judged })
}

/// What a trace adds to a start.
fn cost(view: &View) -> Result<Judged, Judged> {
    let (alone, over) = (of(view, MANY, "alone-ms")?, of(view, MANY, "over-ms")?);
    let text = format!("{MANY} adds {} ms to a start of {} ms (limit: {TRACE_MS} ms)", number(over), number(alone));
    Ok(Judged::new(text, Some(over <= TRACE_MS)))
}

/// What a layout saves of faults and of time.
fn gain(view: &View, case: &str) -> Result<Judged, Judged> {
    let of = |metric| of(view, case, metric);
    let (before, after, ratio) = (of("faults-before")?, of("faults")?, of("ratio")?);
    let text =
        format!("{} page faults instead of {}, and {:.0} % of the time", number(after), number(before), 100.0 * ratio);
    Ok(Judged::new(text, Some(after < before && ratio <= 0.95)))
}
