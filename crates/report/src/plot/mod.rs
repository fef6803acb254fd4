//! Charts as SVG: looked up in the rows, drawn for wide and narrow screens, and described in words.
//!
//! The charts are written element by element instead of by a chart crate: `plotters` writes flat elements with fixed
//! colours, so that a page cannot turn them dark, name their points or tell what they show; others want JavaScript.
//! What is here are two kinds of charts and a scale.

mod frame;
mod grid;
mod lines;
mod rows;
mod scale;
mod sheet;
mod svg;

use neap_results::judge::quantity;
pub use neap_results::judge::status_words;
use neap_results::{Better, Chart, ChartKind, View};

pub use frame::{Size, cell_text};
pub use grid::{Grid, GridRow};
pub use lines::position_text;
pub use sheet::Sheet;
pub use svg::escaped;

use crate::theme::Theme;
use svg::Svg;

/// A chart without the frame of a file.
struct Drawing {
    svg: Svg,
    height: f64,
    /// What it shows, in words.
    description: String,
}

/// Draws one chart of an experiment; none where there is nothing to draw. `id` must be unique on the page.
pub fn draw(chart: &Chart, experiment: &str, view: &View, size: Size, theme: Theme, id: &str) -> Option<String> {
    let Drawing { svg, height, description } = drawing(chart, experiment, view, size, theme)?;
    let description = format!("{description} The table has all values.");
    Some(svg.finish((size.width(), height), id, &plain(&chart.title), &description))
}

fn drawing(chart: &Chart, experiment: &str, view: &View, size: Size, theme: Theme) -> Option<Drawing> {
    let mut grid = Grid::of(chart, experiment, view);
    if grid.is_empty() {
        return None;
    }
    let mut svg = Svg::new(theme);
    let height = match kind_of(chart, &grid) {
        ChartKind::Line => lines::draw(&mut svg, chart, &grid, view, size),
        kind => {
            let chart = Chart { kind, ..chart.clone() };
            grid.sort(chart.better);
            rows::draw(&mut svg, &chart, &grid, view, size)
        }
    };
    Some(Drawing { svg, height: height + 6.0, description: plain(&describe(chart, &grid)) })
}

/// A line needs two positions: a quick run has one of some.
fn kind_of(chart: &Chart, grid: &Grid) -> ChartKind {
    if chart.kind == ChartKind::Line && grid.columns.len() == 1 { ChartKind::Dots } else { chart.kind }
}

/// A text without the backquotes of markdown: a picture has no such letters.
pub fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// Draws one chart as a file of its own, with its title.
pub fn standalone(chart: &Chart, experiment: &str, view: &View, theme: Theme) -> Option<String> {
    let mut sheet = Sheet::new(theme);
    sheet.add(&[(chart, experiment)], view).then(|| sheet.finish(&chart.name))
}

/// What stands in brackets behind a title.
pub fn better_words(better: Better) -> Option<&'static str> {
    match better {
        Better::Less => Some("less is better"),
        Better::More => Some("more is better"),
        Better::Neither => None,
    }
}

/// What a chart shows, in words.
fn describe(chart: &Chart, grid: &Grid) -> String {
    let kind = match kind_of(chart, grid) {
        ChartKind::Line => "Line chart",
        ChartKind::Bar => "Bar chart",
        ChartKind::Dots => "Dot chart",
    };
    let by = if chart.x.label.is_empty() { String::new() } else { format!(", by {}", chart.x.label) };
    let mut text = format!("{kind}: {}{by}.", chart.y.label);
    for row in &grid.rows {
        let at = |place: usize| match row.cells[place].spread() {
            Some(spread) => quantity(spread.median, &chart.y.unit),
            None => cell_text(&row.cells[place], ""),
        };
        let name = |place: usize| position_text(&grid.columns[place], &chart.x);
        let last = grid.columns.len() - 1;
        text += &match last {
            0 => format!(" {}: {}.", row.name, at(0)),
            _ => format!(" {}: {} at {}, {} at {}.", row.name, at(0), name(0), at(last), name(last)),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use neap_results::{Experiment, Place, Row};

    fn drawn(number: usize, size: Size, theme: Theme) -> String {
        let run = sample::run();
        let Experiment { name, charts, .. } = &run.experiments[0];
        draw(&charts[number], name, &View::of(&run), size, theme, "c").unwrap()
    }

    // Would catch an allocator without its line, name or marker.
    #[test]
    fn every_allocator_is_in_a_line_chart() {
        for size in [Size::Wide, Size::Narrow] {
            let text = drawn(0, size, Theme::Page);
            for name in [">glibc<", ">neap<", ">other"] {
                assert!(text.contains(name), "{name} in {text}");
            }
            // neap and glibc have two points each, the other one.
            assert_eq!(
                text.matches("<path d=\"M").count() - text.matches("Z\"").count(),
                if size == Size::Wide { 2 } else { 2 + 3 }
            );
            assert!(text.contains("<title>neap, 64 KiB: 731 ns</title>"), "{text}");
        }
    }

    // Would catch a failed allocator that looks like one with a small bar.
    #[test]
    fn a_failure_is_shown_in_its_row() {
        let text = drawn(1, Size::Wide, Theme::Page);
        assert!(text.contains(">failed: crashed (signal 11)<"), "{text}");
        assert_eq!(text.matches("<rect").count(), 2, "{text}");
    }

    // Would catch a chart of many programs in which an allocator has no marker, or its failure one.
    #[test]
    fn many_positions_share_a_panel() {
        let run = sample::run();
        let mut chart = run.experiments[0].charts[1].clone();
        chart.kind = ChartKind::Dots;
        let names = (0..9).map(|n| neap_results::Point::named(format!("case {n}"), "1 MiB", "us"));
        chart.series[0].points = names.collect();
        for size in [Size::Wide, Size::Narrow] {
            let text = draw(&chart, "calloc", &View::of(&run), size, Theme::Page, "c").unwrap();
            assert_eq!(text.matches("<title>neap, case").count(), 9, "{text}");
            assert_eq!(text.matches("<title>other, case").count(), 0, "{text}");
            assert!(text.contains(">other<") && text.matches(">912 ns</text>").count() == 9, "{text}");
        }
    }

    // Would catch lines through one point, which say nothing.
    #[test]
    fn one_position_is_no_line() {
        let run = sample::run();
        let mut chart = run.experiments[0].charts[0].clone();
        chart.title = "calloc of `64 KiB`".into();
        chart.series[0].points.truncate(1);
        let text = draw(&chart, "calloc", &View::of(&run), Size::Wide, Theme::Page, "c").unwrap();
        assert!(text.contains("Dot chart: ") && text.contains(">calloc of 64 KiB</title>"), "{text}");
    }

    // Would catch a place that is not drawn, one beyond the axis that is, and one without a figure that ends the report.
    #[test]
    fn places_on_the_axis_are_marked() {
        let mut run = sample::run();
        let row = run.rows[0].clone();
        for (metric, value) in [("reach", 262_144.0), ("beyond", 1e12)] {
            run.rows.push(Row { case: "64 KiB".into(), metric: metric.into(), value, ..row.clone() });
        }
        let mut chart = run.experiments[0].charts[0].clone();
        chart.places = ["reach", "beyond", "unknown"]
            .map(|name| Place { label: name.into(), case: "64 KiB".into(), metric: name.into() })
            .into();
        let text = draw(&chart, "calloc", &View::of(&run), Size::Wide, Theme::Page, "c").unwrap();
        assert!(text.contains(">reach: 256 KiB<"), "{text}");
        assert!(!text.contains("beyond") && !text.contains("unknown"), "{text}");
    }

    // Would catch a picture without words for those who do not see it.
    #[test]
    fn a_chart_is_described_in_words() {
        let text = drawn(0, Size::Wide, Theme::Page);
        assert!(text.contains("role=\"img\" aria-labelledby=\"c-t c-d\""), "{text}");
        assert!(text.contains("neap: 731 ns at 64 KiB, 912 ns at 1 MiB."), "{text}");
        assert!(text.contains("other: 1 µs at 64 KiB, failed: crashed (signal 11) at 1 MiB."), "{text}");
    }

    // Would catch an export that lacks its title, its colours or its description.
    #[test]
    fn a_chart_stands_alone() {
        let run = sample::run();
        let chart = &run.experiments[0].charts[0];
        let text = standalone(chart, "calloc", &View::of(&run), Theme::Dark).unwrap();
        assert!(text.contains(">calloc and free (less is better)</text>") && text.contains("color=\"#56b4e9\""));
        assert!(text.contains("<desc id=\"sizes-d\">Line chart: "), "{text}");
        assert_eq!((text.matches("<svg").count(), text.matches("</svg>").count()), (1, 1));
    }

    // Would catch an empty frame for an experiment that was skipped.
    #[test]
    fn nothing_is_drawn_of_nothing() {
        let run = sample::run();
        let chart = &run.experiments[0].charts[0];
        assert_eq!(draw(chart, "other", &View::of(&run), Size::Wide, Theme::Page, "c"), None);
    }
}
