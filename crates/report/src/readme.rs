//! The README's picture, and its table: figures of a run under four allocators.

use std::fmt::Write as _;

use neap_results::judge::number;
use neap_results::{Axis, Better, Chart, ChartKind, Figure, GLIBC, NEAP, Point, Run, Series, Value, View, means};

use crate::plot::{Sheet, escaped};
use crate::theme::Theme;

/// The markers around a part of the README that is made from a run.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The line before it.
    pub begin: &'static str,
    /// The line after it.
    pub end: &'static str,
}

/// The place of the table.
pub const TABLE: Place =
    Place { begin: "<!-- table: made by `cargo xtask documents` -->", end: "<!-- end of the table -->" };
/// The place of the picture.
pub const PICTURE: Place =
    Place { begin: "<!-- picture: made by `cargo xtask documents` -->", end: "<!-- end of the picture -->" };
/// The files of the picture: for light and dark pages.
pub const FILES: [(&str, Theme); 2] = [("docs/headline.svg", Theme::Light), ("docs/headline-dark.svg", Theme::Dark)];

/// The columns: name in the run, name in the table.
const ALLOCATORS: [(&str, &str); 4] =
    [(NEAP, "neap"), (GLIBC, "glibc"), ("mimalloc3", "mimalloc 3"), ("jemalloc", "jemalloc")];

/// One row: words, figure, what the figure is divided by.
const ROWS: [(&str, Figure, f64); 7] = [
    ("Python service, 8 threads: MiB under load", SERVICE_LOADED, 1.0),
    ("MiB one second after the load, caches emptied", SERVICE_REST, 1.0),
    ("20 rounds of 256 buffers of up to 32 MiB: seconds", LARGE_TIME, 1000.0),
    ("MiB one second after the last free", LARGE_REST, 1.0),
    (
        "19 in 20 of 300,000 small blocks freed: RSS after 2 s, relative to the OS pages with live blocks",
        Figure { experiment: "survivors", case: "blocks", metric: "ratio" },
        1.0,
    ),
    (
        "calloc + free of 100 MiB that is never touched, µs",
        Figure { experiment: "calloc", case: "untouched 100 MiB", metric: "median" },
        1.0,
    ),
    (
        "longest malloc or free while other threads' memory is purged, ms",
        Figure { experiment: "latency", case: "load", metric: "worst-undisturbed" },
        1000.0,
    ),
];
const SERVICE_LOADED: Figure = Figure { experiment: "service", case: "load", metric: "rss-loaded" };
const SERVICE_REST: Figure = Figure { experiment: "service", case: "load", metric: "rss-idle" };
const LARGE_TIME: Figure = Figure { experiment: "retain-large", case: "rounds", metric: "wall" };
const LARGE_REST: Figure = Figure { experiment: "retain-large", case: "rounds", metric: "rss-1s" };
/// From this fraction of the peak in huge pages on, the time of retain-large has a note: it is not comparable.
const HUGE_PART: f64 = 0.01;

/// The picture: above, what stays after the last free, from `pages`; below, time and memory of the allocation suite.
/// Each panel has its own order. Variants of allocators are left out. None if one of the experiments was not run.
pub fn picture(suite: &Run, pages: &Run, theme: Theme) -> Option<String> {
    Some(sheet(suite, pages, theme)?.finish("headline"))
}

/// The element of the README that shows the picture, with all its figures as alternative text.
pub fn element(suite: &Run, pages: &Run) -> Option<String> {
    let words = sheet(suite, pages, Theme::Light)?.words();
    let [(light, _), (dark, _)] = FILES;
    Some(format!(
        "<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"{dark}\">\n  \
         <img src=\"{light}\" alt=\"{}\">\n</picture>\n",
        escaped(&words)
    ))
}

fn sheet(suite: &Run, pages: &Run, theme: Theme) -> Option<Sheet> {
    let allocators = |run: &Run| {
        let own = run.allocators.iter().filter(|one| one.base.is_none());
        own.map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    let bars = |title: &str, what: &str, unit: &str, (case, metric): (&str, &str), run: &Run| Chart {
        name: metric.into(),
        title: title.into(),
        kind: ChartKind::Bar,
        y: Axis { label: what.into(), unit: unit.into(), log: false },
        better: Better::Less,
        series: vec![Series { label: String::new(), points: vec![Point::named("", case, metric)] }],
        allocators: allocators(run),
        ..Chart::default()
    };
    let held = |title: &str, what: &str, figure: Figure| bars(title, what, "MiB", (figure.case, figure.metric), pages);
    let large = held(
        "Memory held 1 s after everything was freed",
        "after 20 rounds of 256 buffers of up to 32 MiB",
        LARGE_REST,
    );
    let service = held(
        "Memory of a Python service 1 s after its load",
        "8 threads, JSON in growing buffers; caches emptied",
        SERVICE_REST,
    );
    let means = means::run(suite, "suite")?;
    let mean = |title: &str, metric| {
        bars(title, "15 programs, geometric mean, glibc = 1", "ratio", (means::CASE, metric), &means)
    };
    let [time, peak] = means::METRICS;
    let (time, peak) = (mean("Time of the allocation suite", time), mean("Peak memory of the allocation suite", peak));
    let mut sheet = Sheet::clear(theme);
    let (pages, means) = (View::of(pages), View::of(&means));
    let all = sheet.add(&[(&large, LARGE_REST.experiment), (&service, SERVICE_REST.experiment)], &pages)
        && sheet.add(&[(&time, "suite"), (&peak, "suite")], &means);
    all.then_some(sheet)
}

/// The table. None if neap lacks one of its figures.
pub fn table(run: &Run) -> Option<String> {
    let view = View::of(run);
    let mut text = format!("| | {} |\n|---|{}\n", ALLOCATORS.map(|(_, title)| title).join(" | "), "---:|".repeat(4));
    for (words, figure, by) in ROWS {
        view.median(figure, NEAP)?;
        let cell = |(name, _): (&str, &str)| match view.value(figure, name) {
            Value::Is(spread) => {
                let note = if figure == LARGE_TIME && in_huge_pages(&view, name) { " (huge pages)" } else { "" };
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
    let of = |metric| view.median(Figure { metric, ..LARGE_TIME }, allocator);
    of("huge").zip(of("peak")).is_some_and(|(huge, peak)| huge > peak * HUGE_PART)
}

impl Place {
    /// The README with `text` in this place. None if it has no such place.
    pub fn with(self, readme: &str, text: &str) -> Option<String> {
        let (before, rest) = readme.split_once(self.begin)?;
        let (_, after) = rest.split_once(self.end)?;
        Some(format!("{before}{}\n\n{text}\n{}{after}", self.begin, self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::{Allocator, Case, Experiment, Row};

    fn row(figure: Figure, allocator: &str, status: &str, value: f64) -> Row {
        Row {
            experiment: figure.experiment.into(),
            case: figure.case.into(),
            metric: figure.metric.into(),
            allocator: allocator.into(),
            round: 1,
            status: status.into(),
            unit: "MiB".into(),
            value,
            ..Row::default()
        }
    }

    fn run(rows: Vec<Row>) -> Run {
        let allocators = ALLOCATORS.map(|(name, _)| Allocator { name: name.into(), ..Allocator::default() }).into();
        Run { rows, allocators, ..Run::default() }
    }

    // Would catch a figure in the wrong unit, a failure that reads like a figure, huge pages that are not named.
    #[test]
    fn the_table_has_its_figures() {
        let mut rows: Vec<Row> = ROWS.iter().map(|(_, figure, _)| row(*figure, NEAP, "ok", 1234.5)).collect();
        for (metric, value) in [("wall", 600.0), ("huge", 5000.0), ("peak", 5001.0)] {
            rows.push(row(Figure { metric, ..LARGE_TIME }, "mimalloc3", "ok", value));
        }
        rows.push(row(ROWS[4].1, "jemalloc", "signal:11", 0.0));
        let text = table(&run(rows)).unwrap();
        assert!(text.starts_with("| | neap | glibc | mimalloc 3 | jemalloc |\n|---|---:|---:|---:|---:|\n"), "{text}");
        assert!(text.contains("seconds | 1.23 | - | 0.600 (huge pages) | - |\n"), "{text}");
        assert!(text.contains("live blocks | 1234 | - | - | failed |\n"), "{text}");
        assert_eq!(text.lines().count(), 9);
        assert!(table(&Run::default()).is_none());
    }

    // Would catch half a picture, panels in one order for all, a panel without an allocator's figure in its words, a
    // background that hides a dark page, and a bar too small to be seen.
    #[test]
    fn the_picture_has_its_panels() {
        let values = [(NEAP, 2.0, 0.9), (GLIBC, 3327.0, 1.0), ("mimalloc3", 5110.0, 0.8), ("jemalloc", 196.0, 0.7)];
        let pages = values
            .iter()
            .flat_map(|(name, value, _)| [row(LARGE_REST, name, "ok", *value), row(SERVICE_REST, name, "ok", *value)]);
        let pages = run(pages.collect());
        let figure = |metric| Figure::new("suite", "trees", metric);
        let suite = values.iter().flat_map(|(name, _, ratio)| {
            [row(figure("wall"), name, "ok", *ratio), row(figure("peak"), name, "ok", 1.0)]
        });
        let mut suite = run(suite.collect());
        let cases = vec![Case { name: "trees".into(), ..Case::default() }];
        suite.experiments = vec![Experiment { name: "suite".into(), cases, ..Experiment::default() }];
        assert!(picture(&suite, &Run::default(), Theme::Light).is_none() && element(&Run::default(), &pages).is_none());
        let text = picture(&suite, &pages, Theme::Dark).unwrap();
        assert_eq!(text.matches("translate(").count(), 4, "{text}");
        assert_eq!(text.matches("<rect ").count(), 16, "only bars: {text}");
        assert!(text.contains("width=\"2.5\""), "{text}");
        let words = element(&suite, &pages).unwrap();
        let held = "neap: 2 MiB. jemalloc: 196 MiB. glibc: 3.25 GiB. mimalloc3: 4.99 GiB.";
        assert_eq!(words.matches(held).count(), 2, "{words}");
        assert!(words.contains("jemalloc: 0.700. mimalloc3: 0.800. neap: 0.900. glibc: 1."), "{words}");
    }

    // Would catch a loss of text around a part, and a second run that changes more than the part.
    #[test]
    fn a_part_has_its_place() {
        let readme = format!("above\n\n{}\n\nold\n\n{}\n\nbelow\n", TABLE.begin, TABLE.end);
        let new = TABLE.with(&readme, "| new |\n").unwrap();
        assert_eq!(new, format!("above\n\n{}\n\n| new |\n\n{}\n\nbelow\n", TABLE.begin, TABLE.end));
        assert_eq!(TABLE.with(&new, "| new |\n").unwrap(), new);
        assert!(PICTURE.with(&new, "").is_none());
    }
}
