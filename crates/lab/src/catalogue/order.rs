//! order: a program whose start needs little of what it has, before and after `neap order`.

use neap_results::judge::{Judged, number};
use neap_results::{Better, ChartKind, Figure, GLIBC, Point, View};

use super::{
    Case, Design, MEMORY_PAPER, Who, Work, axis, chart, claim, columns, judged, median, metric, seconds, table,
};

/// The layouts: name, and whether data are placed too.
const LAYOUTS: [(&str, bool); 2] = [("functions", false), ("functions and data", true)];

/// A program with another layout.
pub fn order(quick: bool) -> Design {
    let pairs = if quick { 5 } else { 20 };
    let case = |(name, data)| {
        let work = Work::Order { data, pairs };
        Case::new(name, work).word("placed", name).under(Who::First)
    };
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
    let axes = (axis("", "", false), axis("page faults", "count", false));
    let mut points = vec![Point::named("the linker's order", LAYOUTS[0].0, "faults-before")];
    points.extend(LAYOUTS.map(|(name, _)| Point::named(name, name, "faults")));
    Design {
        name: "order",
        title: "A program laid out by what its start needs",
        question: "What does it save to place functions and data that a start needs next to each other?",
        about: "A program of 2,000 functions of 1 KiB, each with a constant and a variable of 512 bytes, calls 100 of \
                them, scattered. neap order traces it and it is linked again by GNU ld: with its functions in order, \
                and with its data too. Then both programs run in turn.",
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
        cases: LAYOUTS.map(case).into(),
        metrics: vec![metric("faults", "page faults", Better::Less), metric("ratio", "time, ratio", Better::Less)],
        charts: vec![chart("faults", "Page faults of a start", ChartKind::Bar, axes, Better::Less, points)],
        tables: LAYOUTS.map(|(name, _)| table(&format!("In order: {name}"), columns(name, &figures))).into(),
        judge: |view, _| {
            let [functions, data] = LAYOUTS.map(|(name, _)| judged(gain(view, name)).about(name));
            // What was published is of functions alone.
            vec![functions.finding(false), Judged { holds: None, ..data }.told()]
        },
    }
}

/// What a layout saves of faults and of time.
fn gain(view: &View, case: &str) -> Result<Judged, Judged> {
    let of = |metric| {
        let figure = Figure::new("order", case, metric);
        let first = view.allocators().iter().find(|name| view.median(figure, name).is_some());
        median(view, figure, first.map_or(GLIBC, String::as_str)).map_err(|judged| Judged { holds: None, ..judged })
    };
    let (before, after, ratio) = (of("faults-before")?, of("faults")?, of("ratio")?);
    let text =
        format!("{} page faults instead of {}, and {:.0} % of the time", number(after), number(before), 100.0 * ratio);
    Ok(Judged::new(text, Some(after < before && ratio <= 0.95)))
}
