//! Ratios of pairs, with their spread. No I/O.

use serde::Serialize;

/// What counts as an improvement: a median below this, and this share of the pairs below 1. If pairs do not differ,
/// nine or more of ten are below 1 in one case of a hundred.
const LESS: f64 = 0.99;
const PAIRS_LESS: f64 = 0.9;

/// After divided by before, over all pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median.
    pub median: f64,
    /// The lower quartile.
    pub low: f64,
    /// The upper quartile.
    pub high: f64,
    /// The share of pairs below 1.
    pub less: f64,
}

impl Ratio {
    /// Of pairs; `None` if a first value is 0, or there is no pair.
    pub fn of(before: &[f64], after: &[f64]) -> Option<Self> {
        let mut ratios: Vec<f64> = before.iter().zip(after).map(|(before, after)| after / before).collect();
        if ratios.is_empty() || before.contains(&0.0) {
            return None;
        }
        ratios.sort_by(f64::total_cmp);
        let less = ratios.partition_point(|&ratio| ratio < 1.0) as f64 / ratios.len() as f64;
        let [low, median, high] = [0.25, 0.5, 0.75].map(|part| quantile(&ratios, part));
        Some(Self { median, low, high, less })
    }

    /// Whether the second values are less: by at least 1 % in the median, and in nine of ten pairs at all.
    pub fn is_less(self) -> bool {
        self.median < LESS && self.less >= PAIRS_LESS
    }
}

/// The median; 0 for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() { 0.0 } else { quantile(&sorted, 0.5) }
}

/// A quantile of sorted values, at least one: interpolated between the two neighbours.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches ratios of medians instead of medians of ratios, and wrong quartiles.
    #[test]
    fn ratios_are_of_pairs() {
        let ratio = Ratio::of(&[1.0, 2.0, 4.0, 8.0, 16.0], &[1.0, 1.0, 1.0, 4.0, 12.0]).expect("pairs");
        assert_eq!(ratio, Ratio { median: 0.5, low: 0.5, high: 0.75, less: 0.8 });
        assert_eq!((median(&[3.0, 1.0]), median(&[])), (2.0, 0.0));
        assert_eq!((Ratio::of(&[0.0], &[1.0]), Ratio::of(&[], &[])), (None, None));
    }

    /// Catches noise that counts as an improvement.
    #[test]
    fn noise_is_no_improvement() {
        let less = |ratios: &[f64]| Ratio::of(&vec![1.0; ratios.len()], ratios).is_some_and(Ratio::is_less);
        let many = |low: usize, high: usize| [vec![0.9; low], vec![1.1; high]].concat();
        assert!(less(&many(1, 0)) && less(&many(9, 1)));
        assert!(!less(&many(8, 2)) && !less(&[0.995, 0.995]) && !less(&[1.0]));
    }
}
