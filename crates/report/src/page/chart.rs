//! A chart on the page: what its script draws, which cells have no value, and a table of its values.

use std::fmt::Write as _;

use neap_results::judge::quantity;
use neap_results::{Chart, ChartKind, NEAP, Position, Value, View};
use serde::Serialize;

use super::html::{Page, empty_cell, inline, value_html};
use crate::plot::{self, Grid, GridRow, better_words, cell_text, escaped, position_text, status_words};
use crate::theme::look;

/// What the page's script reads as JSON. Missing values are null.
#[derive(Serialize)]
struct Data<'a> {
    kind: &'static str,
    description: String,
    /// Places on the x axis, ascending; categories have the numbers from 0 on.
    xs: Vec<f64>,
    names: Option<Vec<String>>,
    /// The positions in words.
    texts: Vec<String>,
    #[serde(rename = "xLabel")]
    x_label: &'a str,
    #[serde(rename = "xUnit")]
    x_unit: &'a str,
    #[serde(rename = "xLog")]
    x_log: bool,
    #[serde(rename = "yUnit")]
    y_unit: &'a str,
    #[serde(rename = "yLog")]
    y_log: bool,
    rows: Vec<Series<'a>>,
    marks: Vec<f64>,
    places: Vec<f64>,
}

#[derive(Serialize)]
struct Series<'a> {
    name: &'a str,
    colours: [&'static str; 2],
    marker: String,
    hollow: bool,
    bold: bool,
    dash: Vec<u32>,
    mid: Vec<Option<f64>>,
    low: Vec<Option<f64>>,
    high: Vec<Option<f64>>,
    texts: Vec<String>,
}

/// Writes the figure of a chart; nothing where there is nothing to draw.
pub fn figure(page: &mut Page, chart: &Chart, experiment: &str, view: &View, id: &str) {
    let mut grid = Grid::of(chart, experiment, view);
    if grid.is_empty() {
        return;
    }
    let kind = plot::kind_of(chart, &grid);
    match kind {
        ChartKind::Line => grid.ascending(),
        _ => grid.sort(chart.better),
    }
    let better = better_words(chart.better).map_or(String::new(), |words| format!(" ({words})"));
    page.raw(&format!(
        "<figure class=\"chart\" id=\"{}\">\n<figcaption><strong>{}</strong>{better}</figcaption>\n",
        escaped(id),
        inline(&chart.title)
    ));
    page.raw("<div class=\"plot\"></div>\n<script type=\"application/json\" class=\"chart-data\">");
    page.raw(&json(&data(chart, kind, &grid, view)));
    page.raw("</script>\n");
    let lines = lines_across(chart, &grid);
    if !lines.is_empty() {
        page.classed("p", "muted", &lines);
    }
    let missing = without_value(&grid, chart);
    if !missing.is_empty() {
        page.classed("p", "failed", &missing);
    }
    page.raw("<details>\n<summary>The chart's values</summary>\n<div class=\"scroll\" tabindex=\"0\">\n");
    page.raw(&values(&grid, chart, view));
    page.raw("</div>\n</details>\n</figure>\n");
}

/// JSON inside an element. A `<` could end the element; in JSON it occurs only in strings.
fn json(data: &Data<'_>) -> String {
    // Texts and finite numbers can always be written as JSON.
    serde_json::to_string(data).unwrap_or_default().replace('<', "\\u003c")
}

fn data<'a>(chart: &'a Chart, kind: ChartKind, grid: &'a Grid, view: &View) -> Data<'a> {
    let numbers = kind == ChartKind::Line && grid.columns.iter().all(|column| matches!(column, Position::At(_)));
    let texts: Vec<String> = grid.columns.iter().map(|column| position_text(column, &chart.x)).collect();
    let place = |(place, column): (usize, &Position)| match column {
        Position::At(number) if numbers => *number,
        _ => place as f64,
    };
    let alone = grid.is_alone();
    let series = |row: &'a GridRow| {
        let look = look(view, &row.allocator, row.series, alone);
        let of = |part: fn(neap_results::Spread) -> f64| -> Vec<Option<f64>> {
            row.cells.iter().map(|cell| cell.spread().map(part).filter(|value| value.is_finite())).collect()
        };
        Series {
            name: &row.name,
            colours: look.ink.colours(),
            marker: format!("{:?}", look.marker).to_lowercase(),
            hollow: look.hollow,
            bold: look.bold,
            dash: look.dash.split_whitespace().filter_map(|number| number.parse().ok()).collect(),
            mid: of(|spread| spread.median),
            low: of(|spread| spread.min),
            high: of(|spread| spread.max),
            texts: row
                .cells
                .iter()
                .map(|cell| if *cell == Value::Absent { "-".into() } else { cell_text(cell, &chart.y.unit) })
                .collect(),
        }
    };
    Data {
        kind: match kind {
            ChartKind::Line => "line",
            ChartKind::Bar => "bar",
            ChartKind::Dots => "dots",
        },
        description: plot::plain(&plot::describe(chart, grid)),
        xs: grid.columns.iter().enumerate().map(place).collect(),
        names: (!numbers).then(|| texts.clone()),
        texts,
        x_label: &chart.x.label,
        x_unit: &chart.x.unit,
        x_log: chart.x.log,
        y_unit: &chart.y.unit,
        y_log: chart.y.log && kind != ChartKind::Bar,
        rows: grid.rows.iter().map(series).collect(),
        marks: chart.marks.iter().map(|mark| mark.value).collect(),
        places: if numbers { grid.places.iter().map(|(_, place)| *place).collect() } else { Vec::new() },
    }
}

/// `Dashed: published for glibc 2.28, 8.00 ms.` Empty where there are no lines across.
fn lines_across(chart: &Chart, grid: &Grid) -> String {
    let with = |label: &str, value: f64, unit: &str| match label {
        "" => quantity(value, unit),
        label => format!("{label}, {}", quantity(value, unit)),
    };
    let marks = chart.marks.iter().map(|mark| with(&mark.label, mark.value, &chart.y.unit));
    let places = grid.places.iter().map(|(label, place)| with(label, *place, &chart.x.unit));
    let all: Vec<String> = marks.chain(places).collect();
    if all.is_empty() { String::new() } else { format!("Dashed: {}.", all.join("; ")) }
}

/// `Failed: other at 1 MiB: crashed (signal 11). Skipped: other at 64 KiB: no pool.` Empty if all cells have values.
fn without_value(grid: &Grid, chart: &Chart) -> String {
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    for (row, column, status) in grid.without_value() {
        let cell = format!("{} at {}", row.name, position_text(column, &chart.x));
        match status.strip_prefix("skipped: ") {
            Some(why) => skipped.push(format!("{cell}: {why}")),
            None => failed.push(format!("{cell}: {}", status_words(status))),
        }
    }
    let sentence =
        |(word, cells): (&str, Vec<String>)| (!cells.is_empty()).then(|| format!("{word}: {}.", cells.join("; ")));
    [("Failed", failed), ("Skipped", skipped)].into_iter().filter_map(sentence).collect::<Vec<_>>().join(" ")
}

fn values(grid: &Grid, chart: &Chart, view: &View) -> String {
    let mut html = format!("<table>\n<caption>{}</caption>\n<thead><tr><th scope=\"col\"></th>", inline(&chart.title));
    for column in &grid.columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(&position_text(column, &chart.x)));
    }
    html += "</tr></thead>\n<tbody>\n";
    for row in &grid.rows {
        let own = if view.base(&row.allocator) == NEAP { " class=\"own\"" } else { "" };
        let _ = write!(html, "<tr{own}><th scope=\"row\">{}</th>", escaped(&row.name));
        for cell in &row.cells {
            html += &match cell {
                Value::Is(_) => format!("<td>{}</td>", value_html(&cell_text(cell, &chart.y.unit))),
                _ => empty_cell(cell),
            };
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table>\n"
}
