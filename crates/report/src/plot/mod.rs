//! The values of charts, looked up in the rows and described in words; and charts as files of SVG: bars and dots, for
//! the README's picture and `neap lab show --charts`. The page draws its charts with a library (`page/chart.js`).

mod frame;
mod grid;
mod rows;
mod scale;
mod sheet;
mod svg;

use neap_results::judge::quantity;
pub use neap_results::judge::status_words;
use neap_results::{Better, Chart, ChartKind, View};

use frame::Size;
pub use frame::cell_text;
pub use grid::{Grid, GridRow, position_text};
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

fn drawing(chart: &Chart, experiment: &str, view: &View, size: Size, theme: Theme) -> Option<Drawing> {
    let mut grid = Grid::of(chart, experiment, view);
    if grid.is_empty() {
        return None;
    }
    let mut svg = Svg::new(theme);
    // Files have no lines: their points are dots.
    let kind = if chart.kind == ChartKind::Line { ChartKind::Dots } else { chart.kind };
    let chart = Chart { kind, ..chart.clone() };
    grid.sort(chart.better);
    let height = rows::draw(&mut svg, &chart, &grid, view, size);
    Some(Drawing { svg, height: height + 6.0, description: plain(&describe(&chart, &grid)) })
}

/// How a chart is drawn: a line needs two positions, and a quick run may have only one.
pub fn kind_of(chart: &Chart, grid: &Grid) -> ChartKind {
    if chart.kind == ChartKind::Line && grid.columns.len() == 1 { ChartKind::Dots } else { chart.kind }
}

/// A text without markdown's backquotes, which a picture would show.
pub fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// Draws one chart as a file of its own, with its title.
pub fn standalone(chart: &Chart, experiment: &str, view: &View, theme: Theme) -> Option<String> {
    let mut sheet = Sheet::new(theme);
    sheet.add(&[(chart, experiment)], view).then(|| sheet.finish(&chart.name))
}

/// The words in brackets behind a title.
pub fn better_words(better: Better) -> Option<&'static str> {
    match better {
        Better::Less => Some("less is better"),
        Better::More => Some("more is better"),
        Better::Neither => None,
    }
}

/// What a chart shows, in words.
pub fn describe(chart: &Chart, grid: &Grid) -> String {
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
    use neap_results::Experiment;

    fn drawn(number: usize, theme: Theme) -> String {
        let run = sample::run();
        let Experiment { name, charts, .. } = &run.experiments[0];
        standalone(&charts[number], name, &View::of(&run), theme).unwrap()
    }

    // Would catch a failed allocator that looks like one with a small bar.
    #[test]
    fn a_failure_is_shown_in_its_row() {
        let text = drawn(1, Theme::Light);
        assert!(text.contains(">failed: crashed (signal 11)<"), "{text}");
        assert_eq!(text.matches("<rect").count(), 3, "two bars on a background: {text}");
    }

    // Would catch a chart of many programs in which an allocator has no marker, or its failure one.
    #[test]
    fn many_positions_share_a_panel() {
        let run = sample::run();
        let mut chart = run.experiments[0].charts[1].clone();
        chart.kind = ChartKind::Dots;
        let names = (0..9).map(|n| neap_results::Point::named(format!("case {n}"), "1 MiB", "us"));
        chart.series[0].points = names.collect();
        let text = standalone(&chart, "calloc", &View::of(&run), Theme::Light).unwrap();
        assert_eq!(text.matches("<title>neap, case").count(), 9, "{text}");
        assert_eq!(text.matches("<title>other, case").count(), 0, "{text}");
        assert!(text.contains(">other<") && text.matches(">912 ns</text>").count() == 9, "{text}");
    }

    // Would catch colours of the wrong background.
    #[test]
    fn colours_follow_the_theme() {
        let (light, dark) = (drawn(0, Theme::Light), drawn(0, Theme::Dark));
        assert!(light.contains("color=\"#0072b2\"") && dark.contains("color=\"#56b4e9\""));
        assert_eq!(light.matches("calloc and free (less is better)</text>").count(), 1);
    }

    // Would catch a chart without data that becomes an empty frame.
    #[test]
    fn no_data_is_no_chart() {
        let run = sample::run();
        let chart = &run.experiments[0].charts[0];
        assert_eq!(standalone(chart, "other", &View::of(&run), Theme::Light), None);
    }
}
