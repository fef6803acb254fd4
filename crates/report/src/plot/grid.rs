//! A chart's values: positions across, allocators (and their series) down.

use neap_results::{Axis, Better, Chart, Figure, Place, Position, Value, View};

use super::scale::tick_text;

/// The values of a chart, looked up.
#[derive(Debug, Default)]
pub struct Grid {
    /// From left to right, each once.
    pub columns: Vec<Position>,
    /// One for each allocator and series that has anything to show.
    pub rows: Vec<GridRow>,
    /// Places on the x axis with their labels, as far as an allocator has the figure.
    pub places: Vec<(String, f64)>,
}

/// The values of one allocator in one series.
#[derive(Debug)]
pub struct GridRow {
    /// Its label.
    pub name: String,
    /// Its allocator.
    pub allocator: String,
    /// Which series.
    pub series: usize,
    /// One for each column.
    pub cells: Vec<Value>,
}

impl Grid {
    /// Looks the values of a chart up.
    pub fn of(chart: &Chart, experiment: &str, view: &View) -> Grid {
        let mut columns: Vec<Position> = Vec::new();
        for point in chart.series.iter().flat_map(|series| &series.points) {
            if !columns.contains(&point.x) {
                columns.push(point.x.clone());
            }
        }
        let several = chart.series.len() > 1;
        let allocators = match chart.allocators.as_slice() {
            [] => view.allocators(),
            some => some,
        };
        let mut rows = Vec::new();
        for allocator in allocators {
            for (number, series) in chart.series.iter().enumerate() {
                let value = |x: &Position| {
                    let point = series.points.iter().find(|point| point.x == *x);
                    point.map_or(Value::Absent, |point| {
                        view.value(Figure::new(experiment, &point.case, &point.metric), allocator)
                    })
                };
                let cells: Vec<Value> = columns.iter().map(value).collect();
                if cells.iter().any(|cell| *cell != Value::Absent) {
                    let name = match (several, series.label.as_str()) {
                        (true, label) if !label.is_empty() => format!("{allocator}, {label}"),
                        _ => allocator.clone(),
                    };
                    rows.push(GridRow { name, allocator: allocator.clone(), series: number, cells });
                }
            }
        }
        let place = |place: &Place| {
            let figure = Figure::new(experiment, &place.case, &place.metric);
            let found = allocators.iter().find_map(|allocator| view.median(figure, allocator));
            found.map(|number| (place.label.clone(), number))
        };
        let places = chart.places.iter().filter_map(place).collect();
        let mut grid = Grid { columns, rows, places };
        grid.drop_empty_columns();
        grid.shorten_names(chart);
        grid
    }

    /// Drops cases that were not run: a quick run has fewer.
    fn drop_empty_columns(&mut self) {
        let used = |column: usize| self.rows.iter().any(|row| row.cells[column] != Value::Absent);
        let used: Vec<bool> = (0..self.columns.len()).map(used).collect();
        let mut keep = used.iter();
        self.columns.retain(|_| *keep.next().unwrap_or(&false));
        for row in &mut self.rows {
            let mut keep = used.iter();
            row.cells.retain(|_| *keep.next().unwrap_or(&false));
        }
    }

    /// With one allocator only, the names of the series are enough.
    fn shorten_names(&mut self, chart: &Chart) {
        if self.is_alone() && chart.series.len() > 1 {
            for row in &mut self.rows {
                row.name.clone_from(&chart.series[row.series].label);
            }
        }
    }

    /// Whether all rows are of one allocator.
    pub fn is_alone(&self) -> bool {
        self.rows.windows(2).all(|pair| pair[0].allocator == pair[1].allocator) && self.rows.len() > 1
    }

    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.cells).all(|cell| cell.spread().is_none())
    }

    /// All values: least, median and greatest of each.
    pub fn values(&self) -> impl Iterator<Item = f64> {
        let spreads = self.rows.iter().flat_map(|row| &row.cells).filter_map(Value::spread);
        spreads.flat_map(|spread| [spread.min, spread.median, spread.max])
    }

    /// Sorts columns that are numbers.
    pub fn ascending(&mut self) {
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        order.sort_by(|&a, &b| match (&self.columns[a], &self.columns[b]) {
            (Position::At(a), Position::At(b)) => a.total_cmp(b),
            _ => std::cmp::Ordering::Equal,
        });
        self.columns = order.iter().map(|&at| self.columns[at].clone()).collect();
        for row in &mut self.rows {
            row.cells = order.iter().map(|&at| row.cells[at].clone()).collect();
        }
    }

    /// Puts the best row of the first column first; rows without a value there last.
    pub fn sort(&mut self, better: Better) {
        let key = |row: &GridRow| row.cells.first().and_then(Value::spread).map(|spread| spread.median);
        self.rows.sort_by(|a, b| match (key(a), key(b), better) {
            (_, _, Better::Neither) => std::cmp::Ordering::Equal,
            (Some(a), Some(b), Better::Less) => a.total_cmp(&b),
            (Some(a), Some(b), Better::More) => b.total_cmp(&a),
            (a, b, _) => b.is_some().cmp(&a.is_some()),
        });
    }

    /// Cells that failed or were skipped: row, column, and why.
    pub fn without_value(&self) -> Vec<(&GridRow, &Position, &str)> {
        let mut all = Vec::new();
        for row in &self.rows {
            for (cell, column) in row.cells.iter().zip(&self.columns) {
                if let Value::Failed(status) | Value::Skipped(status) = cell {
                    all.push((row, column, status.as_str()));
                }
            }
        }
        all
    }
}

/// The words for a position.
pub fn position_text(position: &Position, axis: &Axis) -> String {
    match position {
        Position::At(number) => tick_text(*number, &axis.unit),
        Position::Named(name) => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use neap_results::{Point, Series};

    // Would catch allocators that were not run among those that were, and a failed one that is left out.
    #[test]
    fn rows_and_columns() {
        let run = sample::run();
        let view = View::of(&run);
        let grid = Grid::of(&run.experiments[0].charts[0], "calloc", &view);
        let names: Vec<_> = grid.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["glibc", "neap", "other"]);
        assert_eq!(grid.columns, [Position::At(65536.0), Position::At(1048576.0)]);
        let failures: Vec<_> = grid.without_value().into_iter().map(|(row, _, why)| (row.name.as_str(), why)).collect();
        assert_eq!(failures, [("other", "signal:11")]);
    }

    // Would catch an order in which the worst is the first, or a failure is.
    #[test]
    fn the_best_comes_first() {
        let run = sample::run();
        let mut grid = Grid::of(&run.experiments[0].charts[1], "calloc", &View::of(&run));
        let names = |grid: &Grid| grid.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        grid.sort(Better::Less);
        assert_eq!(names(&grid), ["neap", "glibc", "other"]);
        grid.sort(Better::More);
        assert_eq!(names(&grid), ["glibc", "neap", "other"]);
    }

    // Would catch names that repeat the only allocator, and series that look alike.
    #[test]
    fn series_have_names() {
        let run = sample::run();
        let series = |label: &str, case: &str| Series { label: label.into(), points: vec![Point::at(1.0, case, "us")] };
        let mut chart = Chart { series: vec![series("a", "64 KiB"), series("b", "1 MiB")], ..Chart::default() };
        let names = |chart: &Chart| {
            let grid = Grid::of(chart, "calloc", &View::of(&run));
            grid.rows.into_iter().map(|row| row.name).collect::<Vec<_>>()
        };
        chart.allocators = vec!["neap".into()];
        assert_eq!(names(&chart), ["a", "b"]);
        chart.allocators.push("glibc".into());
        assert_eq!(names(&chart), ["neap, a", "neap, b", "glibc, a", "glibc, b"]);
    }
}
