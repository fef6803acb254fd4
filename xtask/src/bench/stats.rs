//! Medians, spreads, ratios within a round, geometric means.

use std::collections::BTreeMap;

use super::data::{Row, Table};

/// The median; of an even count the mean of the middle two. NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The geometric mean. NaN for no values.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().map(|v| v.ln()).sum();
    (sum / values.len() as f64).exp()
}

/// Median, least and greatest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least value.
    pub min: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; none for no values.
    pub fn of(values: &[f64]) -> Option<Spread> {
        if values.is_empty() {
            return None;
        }
        Some(Spread {
            median: median(values),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

/// All runs of one workload, thread count and allocator.
#[derive(Debug, Default)]
pub struct Cell<'a> {
    /// In the order of the rounds.
    pub rows: Vec<&'a Row>,
}

impl Cell<'_> {
    /// The status of the first run that failed.
    pub fn failure(&self) -> Option<&str> {
        self.rows.iter().find(|row| !row.is_ok()).map(|row| row.status.as_str())
    }

    /// Spread of one figure over the good runs.
    pub fn spread(&self, figure: Figure) -> Option<Spread> {
        let good = self.rows.iter().filter(|row| row.is_ok());
        Spread::of(&good.map(|row| figure(row)).collect::<Vec<_>>())
    }

    /// Spread of the ratio to `base`, each taken within one round; none where a run failed.
    pub fn ratio(&self, base: &Cell, figure: Figure) -> Option<Spread> {
        if self.failure().is_some() {
            return None;
        }
        let pair = |row: &&Row| {
            let other = base.rows.iter().find(|b| b.round == row.round && b.is_ok())?;
            Some(figure(row) / figure(other))
        };
        Spread::of(&self.rows.iter().filter_map(pair).collect::<Vec<_>>())
    }
}

/// Takes one figure from a row.
pub type Figure = fn(&Row) -> f64;

/// Wall time.
pub fn wall(row: &Row) -> f64 {
    row.wall_ms
}

/// CPU time, user and system.
pub fn cpu(row: &Row) -> f64 {
    row.user_ms + row.sys_ms
}

/// Peak resident memory.
pub fn rss(row: &Row) -> f64 {
    row.peak_rss_kib as f64
}

/// Minor page faults.
pub fn faults(row: &Row) -> f64 {
    row.minor_faults as f64
}

/// The cells of a table by thread count, workload and allocator.
pub type Cells<'a> = BTreeMap<(u32, &'a str, &'a str), Cell<'a>>;

/// Sorts the rows of a table into cells.
pub fn cells(table: &Table) -> Cells<'_> {
    let mut cells = Cells::new();
    for row in &table.rows {
        let key = (row.threads, row.workload.as_str(), row.allocator.as_str());
        cells.entry(key).or_default().rows.push(row);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a median that is off by one place, or a mean that is not geometric.
    #[test]
    fn medians_and_means() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12);
        assert!((geometric_mean(&[0.25, 1.0]) - 0.5).abs() < 1e-12);
    }

    fn row(round: u32, status: &str, wall_ms: f64) -> Row {
        let line = format!("{status} {} 0 0 1 1 0 ff", wall_ms * 1e6);
        let mut row = Row::parse(&line, "trees", 1, "any").unwrap();
        row.round = round;
        row
    }

    // Would catch ratios that pair runs of different rounds, or that hide a failed run.
    #[test]
    fn ratios_are_taken_within_a_round() {
        let base = [row(1, "ok", 10.0), row(2, "ok", 20.0)];
        let fast = [row(2, "ok", 10.0), row(1, "ok", 5.0)];
        let cell = |rows: &'static [Row]| Cell { rows: rows.iter().collect() };
        let base = cell(Vec::from(base).leak());
        let ratio = cell(Vec::from(fast).leak()).ratio(&base, wall).unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (0.5, 0.5, 0.5));
        let failed = cell(vec![row(1, "ok", 5.0), row(2, "signal:11", 1.0)].leak());
        assert_eq!(failed.ratio(&base, wall), None);
        assert_eq!(failed.failure(), Some("signal:11"));
    }
}
