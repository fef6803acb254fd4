//! The first screen: a table of experiments and allocators, coloured by place, and one chart.

use std::fmt::Write as _;

use neap_results::judge::{number, quantity};
use neap_results::{Better, Chart, Experiment, Run, Value, View};

use super::chart;
use super::html::{Page, empty_cell, inline};
use crate::plot::{Grid, escaped, position_text};

/// Values that differ by no more than this have the same place.
const NEAR: f64 = 1.05;
/// The experiment whose chart is on the first screen, if it was run.
const SHOWN: &str = "retain-large";

/// One line of the table: what is compared, and each allocator's result.
struct Line<'a> {
    experiment: &'a Experiment,
    what: String,
    unit: &'a str,
    better: Better,
    cells: Vec<(String, Value)>,
}

/// Writes the table and the chart.
pub fn write(page: &mut Page, run: &Run, view: &View) {
    let lines: Vec<Line<'_>> = run.experiments.iter().filter_map(|one| line(one, view)).collect();
    let own: Vec<&String> = view.allocators().iter().filter(|name| view.base(name) == name.as_str()).collect();
    let part = |name: &&&String| lines.iter().any(|line| line.of(name) != Value::Absent);
    let allocators: Vec<&String> = own.iter().filter(part).copied().collect();
    if lines.is_empty() {
        return;
    }
    page.raw(
        "<section class=\"overview\" aria-labelledby=\"overview-title\">\n\
         <h2 id=\"overview-title\">Places</h2>\n<div class=\"scroll\" tabindex=\"0\">\n<table>\n<thead><tr>\
         <th scope=\"col\">Experiment</th>",
    );
    for name in &allocators {
        page.raw(&format!("<th scope=\"col\">{}</th>", escaped(name)));
    }
    page.raw("</tr></thead>\n<tbody>\n");
    for line in &lines {
        page.raw(&row(line, &allocators));
    }
    page.raw("</tbody>\n</table>\n</div>\n");
    page.raw(
        "<p class=\"muted\">The number in front is the place; values within 5 % share one. <q>1.25x</q> is 25 % more \
         time or memory than the best, or 20 % less work: the geometric mean over all positions of a chart. \
         Move over a chart for its values, drag to zoom, double-click to see all of it, choose a name in its legend \
         to turn it off or on.</p>\n\
         <noscript><p>Charts need scripts, which are off here. The tables have all values.</p></noscript>\n",
    );
    if let Some(one) = lines.iter().find(|line| line.experiment.name == SHOWN).or(lines.first())
        && let Some(shown) = first_chart(one.experiment, view)
    {
        chart::figure(page, shown, &one.experiment.name, view, "overview-chart");
    }
    page.raw("</section>\n");
}

impl Line<'_> {
    fn of(&self, allocator: &str) -> Value {
        self.cells.iter().find(|(name, _)| name == allocator).map_or(Value::Absent, |(_, value)| value.clone())
    }

    /// A value as it is compared and shown: memory that shrank counts as zero.
    fn cost(&self, value: f64) -> f64 {
        if self.better == Better::Less { value.max(0.0) } else { value }
    }

    /// The place of a value among all, from 1.
    fn place(&self, value: f64) -> usize {
        let value = self.cost(value);
        let medians = self.cells.iter().filter_map(|(_, value)| value.spread()).map(|spread| self.cost(spread.median));
        let ahead = |other: f64| match self.better {
            Better::More => other > value * NEAR,
            _ if value > 0.0 => other * NEAR < value,
            _ => other < value,
        };
        1 + medians.filter(|other| ahead(*other)).count()
    }
}

fn row(line: &Line<'_>, allocators: &[&String]) -> String {
    let name = escaped(&line.experiment.name);
    let mut html = format!(
        "<tr><th scope=\"row\"><a href=\"#{name}\">{name}</a> <span class=\"what\">{}</span></th>",
        inline(&line.what)
    );
    let last = allocators.iter().filter_map(|name| line.of(name).spread()).map(|spread| line.place(spread.median));
    let last = last.max().unwrap_or(1);
    for name in allocators {
        html += &match line.of(name) {
            Value::Is(spread) => {
                let place = line.place(spread.median);
                let class = match place {
                    1 => "first",
                    place if place == last => "last",
                    _ => "between",
                };
                let value = if line.unit == "x" {
                    format!(
                        "{}x",
                        if spread.median < 10.0 { format!("{:.2}", spread.median) } else { number(spread.median) }
                    )
                } else {
                    quantity(line.cost(spread.median), line.unit)
                };
                format!("<td class=\"{class}\"><b>{place}</b> {}</td>", escaped(&value))
            }
            other => empty_cell(&other),
        };
    }
    let _ = writeln!(html, "</tr>");
    html
}

/// The first chart in which less or more is better and allocators differ.
fn first_chart<'a>(experiment: &'a Experiment, view: &View) -> Option<&'a Chart> {
    experiment.charts.iter().filter(|chart| chart.better != Better::Neither).find(|chart| {
        let grid = Grid::of(chart, &experiment.name, view);
        let own = grid.rows.iter().filter(|row| row.series == 0 && view.base(&row.allocator) == row.allocator);
        let values = own.filter_map(|row| row.cells.last()?.spread()).map(|spread| spread.median);
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        least < most
    })
}

/// The line of an experiment: its first chart in which less or more is better, over all positions. If a position has
/// values at or below zero, whose ratio means nothing, only the last position counts.
fn line<'a>(experiment: &'a Experiment, view: &View) -> Option<Line<'a>> {
    let chart = first_chart(experiment, view)?;
    let mut grid = Grid::of(chart, &experiment.name, view);
    let first = grid.rows.first()?.series;
    grid.rows.retain(|row| row.series == first && view.base(&row.allocator) == row.allocator);
    let columns: Vec<usize> =
        (0..grid.columns.len()).filter(|&at| grid.rows.iter().any(|row| row.cells[at].spread().is_some())).collect();
    let best = |at: usize| {
        // Allocators that failed at another position have no mean, so they are not compared with.
        let whole = |row: &&crate::plot::GridRow| columns.iter().all(|&at| row.cells[at].spread().is_some());
        let all = grid.rows.iter().filter(whole).filter_map(|row| row.cells[at].spread()).map(|spread| spread.median);
        match chart.better {
            Better::More => all.fold(f64::NEG_INFINITY, f64::max),
            _ => all.fold(f64::INFINITY, f64::min),
        }
    };
    let title = |more: String| format!("{}{more}", chart.title);
    let positive = |at: &usize| grid.rows.iter().all(|row| row.cells[*at].spread().is_none_or(|s| s.median > 0.0));
    if columns.len() > 1 && columns.iter().all(positive) {
        let factor = |row: &crate::plot::GridRow| {
            let mut logs = Vec::new();
            for &at in &columns {
                match &row.cells[at] {
                    Value::Is(spread) => logs.push(match chart.better {
                        Better::More => (best(at) / spread.median).ln(),
                        _ => (spread.median / best(at)).ln(),
                    }),
                    // A mean over fewer positions cannot be compared with the others.
                    other => return other.clone(),
                }
            }
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            neap_results::Spread::of(&[mean]).map_or(Value::Absent, Value::Is)
        };
        let cells = grid.rows.iter().map(|row| (row.allocator.clone(), factor(row))).collect();
        let what = title(format!(", {} positions", columns.len()));
        return Some(Line { experiment, what, unit: "x", better: Better::Less, cells });
    }
    let &last = columns.last()?;
    let cells = grid.rows.iter().map(|row| (row.allocator.clone(), row.cells[last].clone())).collect();
    let at = position_text(&grid.columns[last], &chart.x);
    let what = title(if at.is_empty() { String::new() } else { format!(", {at}") });
    Some(Line { experiment, what, unit: &chart.y.unit, better: chart.better, cells })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    // Would catch places that are reversed for rates, shared places that are not shown as such, and failures with a
    // place.
    #[test]
    fn places_follow_what_is_better() {
        let cells = |values: &[(&str, f64)]| {
            let value = |value: f64| neap_results::Spread::of(&[value]).map_or(Value::Absent, Value::Is);
            values.iter().map(|(name, of)| ((*name).to_owned(), value(*of))).collect()
        };
        let experiment = Experiment::default();
        let mut line = Line {
            experiment: &experiment,
            what: String::new(),
            unit: "",
            better: Better::Less,
            cells: cells(&[("a", 100.0), ("b", 104.0), ("c", 200.0), ("d", 0.0)]),
        };
        assert_eq!([0.0, 100.0, 104.0, 200.0].map(|value| line.place(value)), [1, 2, 2, 4]);
        line.better = Better::More;
        assert_eq!([0.0, 100.0, 104.0, 200.0].map(|value| line.place(value)), [4, 2, 2, 1]);
    }

    // Would catch a winner with less than zero memory.
    #[test]
    fn nothing_is_the_least() {
        let experiment = Experiment::default();
        let value = |value: f64| neap_results::Spread::of(&[value]).map_or(Value::Absent, Value::Is);
        let cells = vec![("a".to_owned(), value(-0.5)), ("b".to_owned(), value(0.0))];
        let line = Line { experiment: &experiment, what: String::new(), unit: "MiB", better: Better::Less, cells };
        let html = row(&line, &[&"a".to_owned(), &"b".to_owned()]);
        assert_eq!(html.matches("<td class=\"first\"><b>1</b> 0 MiB</td>").count(), 2, "{html}");
    }

    // Would catch an allocator that failed at one position and has a mean over the others.
    #[test]
    fn a_failure_has_no_place() {
        let run = sample::run();
        let view = View::of(&run);
        let line = line(&run.experiments[0], &view).expect("it has charts");
        assert!(matches!(line.of("other"), Value::Failed(_)), "{:?}", line.cells);
        assert_eq!(line.unit, "x");
        let mut page = Page::new("t", "d");
        write(&mut page, &run, &view);
        let text = page.finish();
        let row = text.split("<tr>").find(|row| row.contains("href=\"#calloc\"")).expect("a line");
        assert!(row.contains("<td class=\"first\"><b>1</b> 1.26x</td>") && row.contains("failed: crashed"), "{row}");
    }
}
