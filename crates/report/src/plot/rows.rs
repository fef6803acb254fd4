//! Bars and dots: a panel for each position, in it a row for each allocator, with its name and its figure.

use neap_results::{Chart, ChartKind, Value, View};

use super::frame::{Size, cell_text, short_cell_text};
use super::grid::{Grid, GridRow, position_text};
use super::scale::{Scale, thin, tick_text};
use super::svg::{Anchor, Svg, TEXT, width_of};
use crate::theme::{Ink, Look, Marker, look};

/// From one row to the next.
const STEP: f64 = 24.0;
/// From one row of a legend to the next.
const LEGEND_STEP: f64 = 20.0;
/// The height of a bar.
const BAR: f64 = 15.0;
/// A bar is drawn at least this wide, so that it is seen.
const LEAST: f64 = 2.5;
/// With more positions than this, a panel for each would make the chart too long.
const MANY: usize = 8;
/// Between panels side by side.
const GUTTER: f64 = 20.0;

/// Where a panel is.
struct Panel {
    left: f64,
    top: f64,
    width: f64,
    /// The width of the names.
    names: f64,
}

/// Draws into `svg`; returns the height.
pub fn draw(svg: &mut Svg, chart: &Chart, grid: &Grid, view: &View, size: Size) -> f64 {
    let width = size.width();
    let transposed = grid.rows.len() == 1 && grid.columns.len() > 1;
    if transposed {
        return single(svg, chart, grid, view, width);
    }
    if grid.columns.len() > MANY && chart.kind == ChartKind::Dots {
        return together(svg, chart, grid, view, size);
    }
    let columns = if size == Size::Wide { grid.columns.len().clamp(1, 2) } else { 1 };
    let names = grid.rows.iter().map(|row| width_of(&row.name, true)).fold(0.0, f64::max) + 10.0;
    let heads = grid.columns.len() > 1;
    let each = (width - GUTTER * (columns - 1) as f64) / columns as f64;
    let height = f64::from(u8::from(heads)) * 22.0 + STEP * grid.rows.len() as f64 + 26.0;
    let first = 22.0;
    axis_title(svg, chart);
    for (number, position) in grid.columns.iter().enumerate() {
        let (column, line) = (number % columns, number / columns);
        let top = first + line as f64 * (height + 10.0);
        let panel = Panel { left: column as f64 * (each + GUTTER), top, width: each, names };
        let title = if heads { position_text(position, &chart.x) } else { String::new() };
        // A case that does not depend on the allocator was run under one only.
        let cells = grid.rows.iter().map(|row| (row, &row.cells[number]));
        let cells: Vec<(&GridRow, &Value)> = cells.filter(|(_, cell)| **cell != Value::Absent).collect();
        let names: Vec<&str> = cells.iter().map(|(row, _)| row.name.as_str()).collect();
        draw_panel(svg, chart, grid, view, &panel, &title, &names, &cells);
    }
    first + grid.columns.len().div_ceil(columns) as f64 * (height + 10.0) - 10.0
}

/// Many positions: a row for each, in it a marker for each allocator, and neap's figure at the right.
fn together(svg: &mut Svg, chart: &Chart, grid: &Grid, view: &View, size: Size) -> f64 {
    let width = size.width();
    axis_title(svg, chart);
    let looks: Vec<Look> = grid.rows.iter().map(|row| look(view, &row.allocator, row.series, false)).collect();
    let top = legend(svg, grid, &looks, 36.0, width) + 8.0;
    let names: Vec<String> = grid.columns.iter().map(|position| position_text(position, &chart.x)).collect();
    let left = names.iter().map(|name| width_of(name, false)).fold(0.0, f64::max) + 10.0;
    let own = grid.rows.iter().position(|row| row.allocator == neap_results::NEAP);
    let figure =
        |place: usize| own.map_or(String::new(), |own| short_cell_text(&grid.rows[own].cells[place], &chart.y.unit));
    let widest = (0..names.len()).map(|place| width_of(&figure(place), true)).fold(0.0, f64::max);
    let scale = Scale::of(grid.values(), chart.y.log, left, width - widest.min(110.0) - 14.0);
    let bottom = top + STEP * names.len() as f64;
    grid_lines(svg, &scale, &chart.y.unit, top, bottom);
    // neap last, so that it lies on top.
    let mut order: Vec<usize> = (0..grid.rows.len()).collect();
    order.sort_by_key(|&row| looks[row].bold);
    for (place, name) in names.iter().enumerate() {
        let middle = top + STEP * place as f64 + STEP / 2.0;
        svg.text(Ink::Text, (left - 8.0, middle + TEXT / 3.0), Anchor::End, false, name);
        svg.line(Ink::Grid, (left, middle), (width - widest - 14.0, middle), 1.0, "");
        for &row in &order {
            let (cell, look) = (&grid.rows[row].cells[place], looks[row]);
            let Some(spread) = cell.spread() else { continue };
            svg.open(look.ink, &format!("{}, {name}: {}", grid.rows[row].name, cell_text(cell, &chart.y.unit)));
            let radius = if look.bold { 5.5 } else { 4.0 };
            svg.marker(look.marker, (scale.place(spread.median), middle), radius, look.hollow);
            svg.close();
        }
        svg.text(Ink::Text, (width - 2.0, middle + TEXT / 3.0), Anchor::End, true, &figure(place));
    }
    if own.is_some() {
        svg.text(Ink::Muted, (width - 2.0, top - 2.0), Anchor::End, true, "neap");
    }
    bottom + 26.0
}

/// Names with markers and dashes above the plot, in as many columns as fit, at most four; returns where it ends.
fn legend(svg: &mut Svg, grid: &Grid, looks: &[Look], top: f64, width: f64) -> f64 {
    let widest = grid.rows.iter().map(|row| width_of(&row.name, row.name.contains("neap"))).fold(0.0, f64::max) + 46.0;
    let columns = ((width / widest).floor() as usize).clamp(1, 4);
    for (number, (row, look)) in grid.rows.iter().zip(looks).enumerate() {
        let left = (number % columns) as f64 * (width / columns as f64) + 4.0;
        let middle = top + (number / columns) as f64 * LEGEND_STEP;
        svg.open(look.ink, "");
        svg.path(&[(left, middle), (left + 28.0, middle)], if look.bold { 3.0 } else { 1.7 }, look.dash);
        svg.marker(look.marker, (left + 14.0, middle), 4.0, look.hollow);
        svg.close();
        svg.text(Ink::Text, (left + 34.0, middle + TEXT / 3.0), Anchor::Start, look.bold, &row.name);
    }
    top + grid.rows.len().div_ceil(columns) as f64 * LEGEND_STEP
}

/// One allocator only: positions down.
fn single(svg: &mut Svg, chart: &Chart, grid: &Grid, view: &View, width: f64) -> f64 {
    let texts: Vec<String> = grid.columns.iter().map(|position| position_text(position, &chart.x)).collect();
    let names = texts.iter().map(|text| width_of(text, false)).fold(0.0, f64::max) + 10.0;
    let panel = Panel { left: 0.0, top: 22.0, width, names };
    axis_title(svg, chart);
    let row = &grid.rows[0];
    let cells: Vec<(&GridRow, &Value)> = row.cells.iter().map(|cell| (row, cell)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    draw_panel(svg, chart, grid, view, &panel, &row.name, &texts, &cells);
    22.0 + 22.0 + STEP * cells.len() as f64 + 26.0
}

fn axis_title(svg: &mut Svg, chart: &Chart) {
    let log = if chart.y.log { ", log scale" } else { "" };
    svg.text(Ink::Muted, (2.0, 14.0), Anchor::Start, false, &format!("{}{log}", chart.y.label));
}

#[expect(clippy::too_many_arguments, reason = "a panel is drawn from all of the chart")]
fn draw_panel(
    svg: &mut Svg,
    chart: &Chart,
    grid: &Grid,
    view: &View,
    panel: &Panel,
    title: &str,
    names: &[&str],
    cells: &[(&GridRow, &Value)],
) {
    let mut top = panel.top;
    let left = panel.left + panel.names;
    if !title.is_empty() {
        svg.text(Ink::Text, (left, top + 14.0), Anchor::Start, true, title);
        top += 22.0;
    }
    // The same scale in all panels, so that lengths can be compared.
    let all = grid.rows.iter().flat_map(|row| &row.cells).filter(|cell| cell.spread().is_some());
    let widest = all.map(|cell| width_of(&short_cell_text(cell, &chart.y.unit), true));
    let right = panel.left + panel.width - widest.fold(0.0, f64::max) - 12.0;
    let log = chart.y.log && chart.kind != ChartKind::Bar;
    let values = grid.values().chain(chart.marks.iter().map(|mark| mark.value));
    let scale = Scale::of(values, log, left, right.max(left + 40.0));
    let bottom = top + STEP * cells.len() as f64;
    grid_lines(svg, &scale, &chart.y.unit, top, bottom);
    let mut texts = Vec::new();
    for (number, ((row, cell), name)) in cells.iter().zip(names).enumerate() {
        let middle = top + STEP * number as f64 + STEP / 2.0;
        let own = view.base(&row.allocator) == neap_results::NEAP;
        let bold = row.allocator == neap_results::NEAP && *name == row.name;
        svg.text(Ink::Text, (left - 8.0, middle + TEXT / 3.0), Anchor::End, bold, name);
        let look = look(view, &row.allocator, row.series, false);
        let ink = if own { Ink::Series(0) } else { Ink::Other };
        let Some(spread) = cell.spread() else {
            let ink = if matches!(cell, Value::Failed(_)) { Ink::Mark } else { Ink::Muted };
            let text = short_cell_text(cell, &chart.y.unit);
            svg.text(ink, (left + 4.0, middle + TEXT / 3.0), Anchor::Start, false, &text);
            continue;
        };
        svg.open(ink, &format!("{name}: {}", cell_text(cell, &chart.y.unit)));
        let (zero, place) = (scale.place(if log { f64::MIN_POSITIVE } else { 0.0 }), scale.place(spread.median));
        if chart.kind == ChartKind::Bar {
            let (from, to) = (zero.min(place), zero.max(place));
            svg.bar((from, middle - BAR / 2.0), ((to - from).max(LEAST), BAR), look.hollow);
        } else {
            svg.line(ink, (left, middle), (place, middle), 1.0, "1 3");
        }
        let (low, high) = (scale.place(spread.min), scale.place(spread.max));
        if high - low > 3.0 {
            let ink = if chart.kind == ChartKind::Bar { Ink::Text } else { ink };
            svg.line(ink, (low, middle), (high, middle), 1.4, "");
            for end in [low, high] {
                svg.line(ink, (end, middle - 4.0), (end, middle + 4.0), 1.4, "");
            }
        }
        if chart.kind != ChartKind::Bar {
            svg.marker(if own { Marker::Circle } else { Marker::Diamond }, (place, middle), 5.0, look.hollow);
        }
        svg.close();
        texts.push((place.max(high) + 8.0, middle, bold, short_cell_text(cell, &chart.y.unit)));
    }
    for mark in &chart.marks {
        let place = scale.place(mark.value);
        svg.line(Ink::Mark, (place, top - 2.0), (place, bottom), 1.5, "5 3");
        svg.label(Ink::Mark, (place + 5.0, top + 4.0), false, &mark.label);
    }
    for (x, middle, bold, text) in texts {
        // Moves a text that would be on a mark to the right of it.
        let crosses = |place: &f64| (x - 4.0..x + width_of(&text, bold) + 4.0).contains(place);
        let mut places: Vec<f64> = chart.marks.iter().map(|mark| scale.place(mark.value)).collect();
        places.sort_by(f64::total_cmp);
        let x = places.iter().rev().find(|place| crosses(place)).map_or(x, |place| place + 6.0);
        svg.label(Ink::Text, (x, middle + TEXT / 3.0), bold, &text);
    }
}

fn grid_lines(svg: &mut Svg, scale: &Scale, unit: &str, top: f64, bottom: f64) {
    let ticks = scale.ticks_of(unit);
    let places: Vec<f64> = ticks.iter().map(|tick| scale.place(*tick)).collect();
    for place in &places {
        svg.line(Ink::Grid, (*place, top), (*place, bottom + 4.0), 1.0, "");
    }
    let texts: Vec<String> = ticks.iter().map(|tick| tick_text(*tick, unit)).collect();
    let widths: Vec<f64> = texts.iter().map(|text| width_of(text, false)).collect();
    for kept in thin(&places, &widths, 8.0) {
        svg.text(Ink::Muted, (places[kept], bottom + 17.0), Anchor::Middle, false, &texts[kept]);
    }
}
