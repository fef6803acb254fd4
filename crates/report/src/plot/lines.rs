//! Line charts: one line for each row of the grid, with names at the right end, or below where there is no room.

use neap_results::{Axis, Chart, Position, Spread, Value, View};

use super::frame::{Frame, Size, cell_text};
use super::grid::{Grid, GridRow};
use super::scale::{Scale, thin, tick_text};
use super::svg::{Anchor, Svg, TEXT, width_of};
use crate::theme::{Ink, Look, look};

/// From one name to the next.
const NAME_STEP: f64 = 16.0;
/// A name with its marker in a legend.
const LEGEND_STEP: f64 = 20.0;

/// Draws into `svg`; gives the height that was needed.
pub fn draw(svg: &mut Svg, chart: &Chart, grid: &Grid, view: &View, size: Size) -> f64 {
    let width = size.width();
    let alone = grid.is_alone();
    let looks: Vec<Look> = grid.rows.iter().map(|row| look(view, &row.allocator, row.series, alone)).collect();
    let widest = |names: &mut dyn Iterator<Item = f64>| names.fold(0.0, f64::max);
    let name_width = widest(&mut grid.rows.iter().map(|row| width_of(&row.name, true)));
    let at_end = size == Size::Wide && grid.rows.len() <= 18;
    let top = 30.0;
    let plot_height = if size == Size::Wide { 300.0 } else { 250.0 };
    let y_values = grid.values().chain(chart.marks.iter().map(|mark| mark.value));
    let y = Scale::of(y_values, chart.y.log, top + plot_height, top);
    let ticks: Vec<(f64, String)> =
        y.ticks_of(&chart.y.unit).into_iter().map(|tick| (y.place(tick), tick_text(tick, &chart.y.unit))).collect();
    let left = widest(&mut ticks.iter().map(|(_, text)| width_of(text, false))) + 10.0;
    let right = if at_end { width - name_width.min(width * 0.4) - 34.0 } else { width - 14.0 };
    let numbers: Vec<f64> = grid.columns.iter().enumerate().map(|(place, x)| number(x, place)).collect();
    let x = Scale::tight(numbers.iter().copied(), chart.x.log, left + 8.0, right - 8.0);
    let frame = Frame { left, right, top, bottom: top + plot_height };
    axes(svg, chart, grid, &frame, &ticks, &x, &numbers);
    // neap last, so that it lies on top.
    let mut order: Vec<usize> = (0..grid.rows.len()).collect();
    order.sort_by_key(|&row| looks[row].bold);
    for row in order {
        line(svg, chart, grid, row, looks[row], (&x, &y), &numbers);
    }
    for mark in &chart.marks {
        let place = y.place(mark.value);
        svg.line(Ink::Mark, (frame.left, place), (frame.right, place), 1.5, "5 3");
        svg.label(Ink::Mark, (frame.left + 6.0, place - 5.0), false, &mark.label);
    }
    places(svg, chart, grid, &frame, &x, &numbers);
    let below = frame.bottom + 44.0;
    if at_end {
        names_at_end(svg, grid, &looks, &frame, (&x, &y), &numbers);
        below
    } else {
        legend(svg, grid, &looks, below + 6.0, width)
    }
}

/// Lines upwards at figures that lie among the positions.
fn places(svg: &mut Svg, chart: &Chart, grid: &Grid, frame: &Frame, x: &Scale, numbers: &[f64]) {
    let among = |number: f64| numbers.iter().any(|&n| n <= number) && numbers.iter().any(|&n| n >= number);
    let shown = grid.places.iter().filter(|(_, number)| among(*number));
    for (at, (label, number)) in shown.enumerate() {
        let place = x.place(*number);
        svg.line(Ink::Mark, (place, frame.top), (place, frame.bottom), 1.5, "5 3");
        // Labels below each other, as two places may be near.
        let text = format!("{label}: {}", tick_text(*number, &chart.x.unit));
        svg.label(Ink::Mark, (place + 5.0, frame.top + 12.0 + NAME_STEP * at as f64), false, &text);
    }
}

/// The number that stands for a position; categories are one apart.
fn number(position: &Position, place: usize) -> f64 {
    match position {
        Position::At(number) => *number,
        Position::Named(_) => place as f64,
    }
}

/// The words for a position.
pub fn position_text(position: &Position, axis: &Axis) -> String {
    match position {
        Position::At(number) => tick_text(*number, &axis.unit),
        Position::Named(name) => name.clone(),
    }
}

fn axes(svg: &mut Svg, chart: &Chart, grid: &Grid, frame: &Frame, ticks: &[(f64, String)], x: &Scale, numbers: &[f64]) {
    let log = |axis: &Axis| if axis.log { ", log scale" } else { "" };
    svg.text(Ink::Muted, (2.0, 14.0), Anchor::Start, false, &format!("{}{}", chart.y.label, log(&chart.y)));
    for (place, text) in ticks {
        svg.line(Ink::Grid, (frame.left, *place), (frame.right, *place), 1.0, "");
        svg.text(Ink::Muted, (frame.left - 6.0, place + TEXT / 3.0), Anchor::End, false, text);
    }
    let texts: Vec<String> = grid.columns.iter().map(|column| position_text(column, &chart.x)).collect();
    let places: Vec<f64> = numbers.iter().map(|number| x.place(*number)).collect();
    let widths: Vec<f64> = texts.iter().map(|text| width_of(text, false)).collect();
    for kept in thin(&places, &widths, 6.0) {
        svg.line(Ink::Muted, (places[kept], frame.bottom), (places[kept], frame.bottom + 5.0), 1.0, "");
        // The last one must not leave the picture.
        let middle = places[kept].min(frame.right + 14.0 - widths[kept] / 2.0).max(widths[kept] / 2.0);
        svg.text(Ink::Muted, (middle, frame.bottom + 18.0), Anchor::Middle, false, &texts[kept]);
    }
    svg.line(Ink::Muted, (frame.left, frame.bottom), (frame.right, frame.bottom), 1.0, "");
    let middle = (frame.left + frame.right) / 2.0;
    let label = format!("{}{}", chart.x.label, log(&chart.x));
    svg.text(Ink::Muted, (middle, frame.bottom + 36.0), Anchor::Middle, false, &label);
}

fn line(svg: &mut Svg, chart: &Chart, grid: &Grid, row: usize, look: Look, (x, y): (&Scale, &Scale), numbers: &[f64]) {
    let row = &grid.rows[row];
    svg.open(look.ink, "");
    let found: Vec<Option<(f64, Spread)>> =
        row.cells.iter().zip(numbers).map(|(cell, number)| Some((x.place(*number), cell.spread()?))).collect();
    // A gap stays a gap: nothing was measured there.
    for part in found.split(Option::is_none) {
        let points: Vec<(f64, f64)> = part.iter().flatten().map(|(x, spread)| (*x, y.place(spread.median))).collect();
        if points.len() > 1 {
            svg.path(&points, if look.bold { 3.0 } else { 1.7 }, look.dash);
        }
    }
    for ((place, column), found) in grid.columns.iter().enumerate().zip(&found) {
        let Some((x, spread)) = found else { continue };
        let text = cell_text(&row.cells[place], &chart.y.unit);
        svg.open(look.ink, &format!("{}, {}: {text}", row.name, position_text(column, &chart.x)));
        let (low, high) = (y.place(spread.min), y.place(spread.max));
        if (low - high).abs() > 6.0 {
            svg.line(look.ink, (*x, low), (*x, high), 1.0, "");
        }
        svg.marker(look.marker, (*x, y.place(spread.median)), if look.bold { 4.5 } else { 3.5 }, look.hollow);
        svg.close();
    }
    svg.close();
}

/// Names beside the last points, moved apart where they would touch.
fn names_at_end(svg: &mut Svg, grid: &Grid, looks: &[Look], frame: &Frame, (x, y): (&Scale, &Scale), numbers: &[f64]) {
    let end = |row: &GridRow| {
        let last = row.cells.iter().zip(numbers).rev().find_map(|(cell, x)| Some((*x, cell.spread()?)));
        last.map(|(number, spread)| (x.place(number), y.place(spread.median)))
    };
    let mut names: Vec<(usize, (f64, f64))> =
        grid.rows.iter().enumerate().map(|(i, row)| (i, end(row).unwrap_or((frame.right, frame.bottom)))).collect();
    names.sort_by(|a, b| a.1.1.total_cmp(&b.1.1));
    let wanted: Vec<f64> = names.iter().map(|(_, (_, y))| *y).collect();
    let places = apart(&wanted, NAME_STEP, frame.top + 4.0, frame.bottom + 8.0);
    let name_x = frame.right + 16.0;
    for ((row, (end_x, end_y)), place) in names.into_iter().zip(places) {
        let look = looks[row];
        if end(&grid.rows[row]).is_some() {
            svg.line(look.ink, (end_x + 6.0, end_y), (name_x - 3.0, place), 0.8, "");
        }
        svg.open(look.ink, "");
        svg.marker(look.marker, (name_x + 4.0, place), 4.0, look.hollow);
        svg.close();
        let failed = grid.rows[row].cells.iter().any(|cell| matches!(cell, Value::Failed(_)));
        let name = format!("{}{}", grid.rows[row].name, if failed { " \u{2717}" } else { "" });
        svg.text(Ink::Text, (name_x + 12.0, place + TEXT / 3.0), Anchor::Start, look.bold, &name);
    }
}

/// Sorted places, moved as little as needed to be `step` apart, between `low` and `high` where they fit.
pub fn apart(wanted: &[f64], step: f64, low: f64, high: f64) -> Vec<f64> {
    // Groups of neighbours that touch: first index, count, place of the first.
    let mut groups: Vec<(usize, usize, f64)> = Vec::new();
    for (index, place) in wanted.iter().enumerate() {
        groups.push((index, 1, place.clamp(low, high)));
        while let [.., a, b] = groups[..] {
            if a.2 + a.1 as f64 * step <= b.2 {
                break;
            }
            groups.pop();
            groups.pop();
            let count = a.1 + b.1;
            // The mean of where each would begin the group.
            let ideal = (a.0..a.0 + count).map(|i| wanted[i] - (i - a.0) as f64 * step).sum::<f64>() / count as f64;
            let last = high - (count - 1) as f64 * step;
            groups.push((a.0, count, ideal.min(last).max(low)));
        }
    }
    groups.iter().flat_map(|(_, count, first)| (0..*count).map(move |i| first + i as f64 * step)).collect()
}

/// Names with markers and dashes below the plot, in as many columns as fit.
pub fn legend(svg: &mut Svg, grid: &Grid, looks: &[Look], top: f64, width: f64) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch names on top of each other or outside of the picture.
    #[test]
    fn names_are_moved_apart() {
        assert_eq!(apart(&[10.0, 100.0], 15.0, 0.0, 200.0), [10.0, 100.0]);
        assert_eq!(apart(&[100.0, 100.0, 100.0], 15.0, 0.0, 200.0), [85.0, 100.0, 115.0]);
        assert_eq!(apart(&[199.0, 200.0], 15.0, 0.0, 200.0), [185.0, 200.0]);
        let many = apart(&[0.0; 9], 15.0, 0.0, 200.0);
        assert!(many.windows(2).all(|pair| pair[1] - pair[0] >= 15.0) && many[0] == 0.0);
        let mixed = apart(&[50.0, 52.0, 60.0, 190.0, 191.0], 15.0, 0.0, 200.0);
        assert!(mixed.windows(2).all(|pair| pair[1] - pair[0] > 14.999), "{mixed:?}");
    }
}
