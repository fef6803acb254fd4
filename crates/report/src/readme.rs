//! The README's picture, and its table of what pages cost: five figures of a run under four allocators.

use std::fmt::Write as _;

use neap_results::judge::number;
use neap_results::{Axis, Better, Chart, ChartKind, Figure, GLIBC, NEAP, Point, Run, Series, Value, View, means};

use crate::plot::Sheet;
use crate::theme::Theme;

/// What stands before and after the table in the README.
pub const BEGIN: &str = "<!-- made by `cargo xtask documents`: do not edit by hand -->";
/// See [`BEGIN`].
pub const END: &str = "<!-- end of the table -->";

/// The columns: name in the run, name in the table.
const ALLOCATORS: [(&str, &str); 4] =
    [(NEAP, "neap"), (GLIBC, "glibc"), ("mimalloc3", "mimalloc 3"), ("jemalloc", "jemalloc")];

/// One row: words, figure, what the figure is divided by.
const ROWS: [(&str, Figure, f64); 5] = [
    (
        "calloc + free of 100 MiB that nobody touches, µs",
        Figure { experiment: "calloc", case: "untouched 100 MiB", metric: "median" },
        1.0,
    ),
    (
        "20 rounds of 256 buffers of up to 32 MiB: seconds",
        Figure { experiment: "retain-large", case: "rounds", metric: "wall" },
        1000.0,
    ),
    (
        "and MiB that stay a second after the last free",
        Figure { experiment: "retain-large", case: "rounds", metric: "rss-1s" },
        1.0,
    ),
    (
        "1 in 20 of 300,000 small blocks survives: RSS against the pages they need, after 2 s",
        Figure { experiment: "survivors", case: "blocks", metric: "ratio" },
        1.0,
    ),
    (
        "longest malloc or free while others' memory is purged, ms",
        Figure { experiment: "latency", case: "load", metric: "worst-undisturbed" },
        1000.0,
    ),
];
/// The rows of retain-large: its time, and what stays.
const TIME: usize = 1;
const REST: usize = 2;
/// Its time is not comparable where this part of the peak lay in huge pages.
const HUGE_PART: f64 = 0.01;

/// The picture: time and memory of retain-large, from `pages`, where those who are quick keep what was freed, or it takes
/// them long to give it back; below them the means of the allocation suite. Variants of allocators are left out. None where
/// one of the two was not run.
pub fn picture(suite: &Run, pages: &Run, theme: Theme) -> Option<String> {
    let bars = |title: &str, name: &str, figure: Figure, (label, unit): (&str, &str)| Chart {
        name: name.into(),
        title: title.into(),
        kind: ChartKind::Bar,
        y: Axis { label: label.into(), unit: unit.into(), log: false },
        better: Better::Less,
        series: vec![Series { label: String::new(), points: vec![Point::named("", figure.case, figure.metric)] }],
        allocators: pages.allocators.iter().filter(|one| one.base.is_none()).map(|one| one.name.clone()).collect(),
        ..Chart::default()
    };
    let (time, rest) = (ROWS[TIME].1, ROWS[REST].1);
    let time = bars("20 rounds of large buffers, all freed", "time", time, ("wall time", "ms"));
    let rest = bars("Resident a second after the last free", "rest", rest, ("resident memory", "MiB"));
    let means = means::run(suite, "suite")?;
    let mut sheet = Sheet::new(theme);
    let all = sheet.add(&[&time, &rest], ROWS[TIME].1.experiment, &View::of(pages))
        && sheet.add(&[&means::chart()], "suite", &View::of(&means));
    all.then(|| sheet.finish("headline"))
}

/// The table. None where the run lacks one of its figures altogether.
pub fn table(run: &Run) -> Option<String> {
    let view = View::of(run);
    let mut text = format!("| | {} |\n|---|{}\n", ALLOCATORS.map(|(_, title)| title).join(" | "), "---:|".repeat(4));
    for (place, (words, figure, by)) in ROWS.iter().enumerate() {
        view.median(*figure, NEAP)?;
        let cell = |(name, _): (&str, &str)| match view.value(*figure, name) {
            Value::Is(spread) => {
                let note = if place == TIME && in_huge_pages(&view, name) { " (huge pages)" } else { "" };
                format!("{}{note}", number(spread.median / by))
            }
            Value::Failed(_) => "failed".into(),
            Value::Skipped(_) | Value::Absent => "-".into(),
        };
        let _ = writeln!(text, "| {words} | {} |", ALLOCATORS.map(cell).join(" | "));
    }
    Some(text)
}

fn in_huge_pages(view: &View, allocator: &str) -> bool {
    let of = |metric| view.median(Figure { metric, ..ROWS[TIME].1 }, allocator);
    of("huge").zip(of("peak")).is_some_and(|(huge, peak)| huge > peak * HUGE_PART)
}

/// The README with the table in its place. None where it has no such place.
pub fn with_table(readme: &str, table: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::{Allocator, Row};

    // Would catch a figure in the wrong unit, a failure that reads like a figure, huge pages that are not named.
    #[test]
    fn the_table_has_its_figures() {
        let row = |figure: Figure, allocator: &str, status: &str, value| Row {
            experiment: figure.experiment.into(),
            case: figure.case.into(),
            metric: figure.metric.into(),
            allocator: allocator.into(),
            round: 1,
            status: status.into(),
            value,
            ..Row::default()
        };
        let mut rows: Vec<Row> = ROWS.iter().map(|(_, figure, _)| row(*figure, NEAP, "ok", 1234.5)).collect();
        let large = ROWS[1].1;
        for (metric, value) in [("wall", 600.0), ("huge", 5000.0), ("peak", 5001.0)] {
            rows.push(row(Figure { metric, ..large }, "mimalloc3", "ok", value));
        }
        rows.push(row(ROWS[3].1, "jemalloc", "signal:11", 0.0));
        let allocators = ALLOCATORS.map(|(name, _)| Allocator { name: name.into(), ..Allocator::default() }).into();
        let run = Run { rows, allocators, ..Run::default() };
        let text = table(&run).unwrap();
        assert!(text.starts_with("| | neap | glibc | mimalloc 3 | jemalloc |\n|---|---:|---:|---:|---:|\n"), "{text}");
        assert!(text.contains("seconds | 1.23 | - | 0.600 (huge pages) | - |\n"), "{text}");
        assert!(text.contains("after 2 s | 1234 | - | - | failed |\n"), "{text}");
        assert_eq!(text.lines().count(), 7);
        assert!(table(&Run::default()).is_none());
        assert!(picture(&Run::default(), &run, Theme::Light).is_none(), "half a picture");
    }

    // Would catch words around the table that are lost, and a second run that changes more than the table.
    #[test]
    fn the_table_has_its_place() {
        let readme = format!("above\n\n{BEGIN}\n\nold\n\n{END}\n\nbelow\n");
        let new = with_table(&readme, "| new |\n").unwrap();
        assert_eq!(new, format!("above\n\n{BEGIN}\n\n| new |\n\n{END}\n\nbelow\n"));
        assert_eq!(with_table(&new, "| new |\n").unwrap(), new);
        assert!(with_table("no place", "").is_none());
    }
}
