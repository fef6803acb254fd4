//! Medians, spreads, and ratios with a confidence interval.
//!
//! The intervals assume nothing about the distribution of the values: times have long tails, and a run has few rounds.
//! They are those of the sign test (pairs) and of the Mann-Whitney test (two runs), exact for any count. With few
//! rounds the confidence is low, so each ratio has its own: 75 % with three pairs, 94 % with five, 98 % with seven.

/// The target confidence: the narrowest interval that reaches it is used.
pub const CONFIDENCE: f64 = 0.95;
/// The least confidence with which a ratio is called clear. Five pairs reach it, or three values against three.
pub const CLEAR: f64 = 0.9;

/// The value at `part` (0 to 1) of the sorted values, interpolated between two. NaN for no values.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = part.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// The median; of an even count the mean of the middle two. NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The geometric mean. NaN for no values.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().map(|v| v.ln()).sum();
    (sum / values.len() as f64).exp()
}

/// Median, quartiles, least and greatest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// How many values.
    pub count: usize,
    /// The least value.
    pub min: f64,
    /// A quarter of the values is below.
    pub q1: f64,
    /// The median.
    pub median: f64,
    /// A quarter of the values is above.
    pub q3: f64,
    /// The greatest value.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; none for no values.
    pub fn of(values: &[f64]) -> Option<Spread> {
        (!values.is_empty()).then(|| Spread {
            count: values.len(),
            min: quantile(values, 0.0),
            q1: quantile(values, 0.25),
            median: median(values),
            q3: quantile(values, 0.75),
            max: quantile(values, 1.0),
        })
    }

    /// The interquartile range: half of the values are in it.
    pub fn iqr(&self) -> f64 {
        self.q3 - self.q1
    }

    /// The interquartile range as a fraction of the median; zero if the quartiles are equal.
    pub fn relative(&self) -> f64 {
        if self.iqr() == 0.0 { 0.0 } else { self.iqr() / self.median.abs() }
    }
}

/// A ratio with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Ratio {
    /// The median of the ratios.
    pub ratio: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The confidence of the interval, 0 to 1.
    pub confidence: f64,
    /// The number of pairs, or of values on the smaller side.
    pub count: usize,
}

impl Ratio {
    /// The ratio of pairs `(value, base)`, each of one round. None without pairs, or where a base is zero.
    pub fn paired(pairs: &[(f64, f64)]) -> Option<Ratio> {
        if pairs.iter().any(|(_, base)| *base == 0.0) {
            return None;
        }
        let ratios: Vec<f64> = pairs.iter().map(|(value, base)| value / base).collect();
        Ratio::within(ratios, pairs.len(), &binomial(pairs.len()))
    }

    /// The ratio of values to bases that were measured apart. None without values, or where a base is zero.
    pub fn apart(values: &[f64], bases: &[f64]) -> Option<Ratio> {
        if bases.contains(&0.0) {
            return None;
        }
        let ratios = bases.iter().flat_map(|base| values.iter().map(move |value| value / base)).collect();
        Ratio::within(ratios, values.len().min(bases.len()), &mann_whitney(values.len(), bases.len()))
    }

    /// The narrowest interval between two of the ratios that reaches [`CONFIDENCE`], else the widest. `chances[k]` is
    /// the chance that `k` of the ratios are below the true one.
    fn within(mut ratios: Vec<f64>, count: usize, chances: &[f64]) -> Option<Ratio> {
        ratios.sort_by(f64::total_cmp);
        let last = ratios.len().checked_sub(1)?;
        // Leaving out the `cut` lowest and highest ratios leaves out the chances 0..=cut on both sides.
        let confidence = |cut: usize| 1.0 - 2.0 * chances[..=cut].iter().sum::<f64>();
        let cut = (0..=last / 2).rev().find(|&cut| confidence(cut) >= CONFIDENCE).unwrap_or(0);
        let ratio = median(&ratios);
        Some(Ratio { ratio, low: ratios[cut], high: ratios[last - cut], confidence: confidence(cut).max(0.0), count })
    }

    /// Whether the ratio is clear: the interval does not contain 1, and its confidence is [`CLEAR`] or more.
    pub fn is_clear(&self) -> bool {
        self.confidence >= CLEAR && (self.low > 1.0 || self.high < 1.0)
    }
}

/// The chances of 0 to `n` heads in `n` throws of a coin.
fn binomial(n: usize) -> Vec<f64> {
    let mut chances = vec![1.0];
    for _ in 0..n {
        let next = |k: usize| {
            let below = k.checked_sub(1).map_or(0.0, |k| chances[k]);
            (below + chances.get(k).copied().unwrap_or(0.0)) / 2.0
        };
        chances = (0..=chances.len()).map(next).collect();
    }
    chances
}

/// The chances that in 0 to `m * n` of all pairs the first value is above the second, where `m` and `n` values come
/// from one distribution.
fn mann_whitney(m: usize, n: usize) -> Vec<f64> {
    // ways[i][j][u] counts the orders of i first and j second values with u such pairs. The greatest value is a first
    // one, and then above all j, or a second one.
    let mut ways: Vec<Vec<Vec<f64>>> = Vec::with_capacity(m + 1);
    for i in 0..=m {
        let mut row: Vec<Vec<f64>> = Vec::with_capacity(n + 1);
        for j in 0..=n {
            let mut counts = vec![0.0; i * j + 1];
            if i == 0 || j == 0 {
                counts[0] = 1.0;
            } else {
                for (u, ways) in ways[i - 1][j].iter().enumerate() {
                    counts[u + j] += ways;
                }
                for (u, ways) in row[j - 1].iter().enumerate() {
                    counts[u] += ways;
                }
            }
            row.push(counts);
        }
        ways.push(row);
    }
    let counts = &ways[m][n];
    let total: f64 = counts.iter().sum();
    counts.iter().map(|ways| ways / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a median or quartile that is off by one place, or a mean that is not geometric.
    #[test]
    fn medians_quartiles_means() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        let spread = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!((spread.min, spread.q1, spread.median, spread.q3, spread.max), (1.0, 2.0, 3.0, 4.0, 5.0));
        assert_eq!((spread.iqr(), spread.count), (2.0, 5));
        assert!((spread.relative() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(Spread::of(&[0.0]).unwrap().relative(), 0.0);
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12);
    }

    // Would catch an interval that promises more than the count of rounds can give.
    #[test]
    fn the_confidence_of_pairs_is_that_of_the_sign_test() {
        let pairs = |n: usize| (1..=n).map(|i| (i as f64, 1.0)).collect::<Vec<_>>();
        let three = Ratio::paired(&pairs(3)).unwrap();
        assert_eq!((three.low, three.ratio, three.high, three.confidence), (1.0, 2.0, 3.0, 0.75));
        let five = Ratio::paired(&pairs(5)).unwrap();
        assert_eq!((five.low, five.high, five.confidence), (1.0, 5.0, 0.9375));
        // Of nine, one on each side may be left out: 1 - 2 (1 + 9) / 512.
        let nine = Ratio::paired(&pairs(9)).unwrap();
        assert_eq!((nine.low, nine.high), (2.0, 8.0));
        assert!((nine.confidence - (1.0 - 20.0 / 512.0)).abs() < 1e-12);
        assert_eq!(Ratio::paired(&pairs(1)).unwrap().confidence, 0.0);
    }

    // Would catch ratios that mix pairs of rounds: a slow round slows both, and shows nothing.
    #[test]
    fn pairs_stay_together() {
        let ratio = Ratio::paired(&[(10.0, 5.0), (1000.0, 500.0), (20.0, 10.0)]).unwrap();
        assert_eq!((ratio.low, ratio.ratio, ratio.high), (2.0, 2.0, 2.0));
        assert_eq!(Ratio::paired(&[(1.0, 0.0)]), None);
        assert_eq!(Ratio::paired(&[]), None);
    }

    // Would catch wrong chances of the Mann-Whitney test: its tables have 1 in 20 for 3 and 3, 1 in 252 for 5 and 5.
    #[test]
    fn the_confidence_of_two_runs_is_that_of_mann_whitney() {
        let three = Ratio::apart(&[2.0, 2.1, 2.2], &[1.0, 1.1, 1.2]).unwrap();
        assert!((three.confidence - 0.9).abs() < 1e-12);
        assert!((three.low - 2.0 / 1.2).abs() < 1e-12 && (three.high - 2.2).abs() < 1e-12);
        assert!(three.is_clear());
        let five = mann_whitney(5, 5);
        assert!((five[0] - 1.0 / 252.0).abs() < 1e-12);
        // Known critical value of U for 5 and 5 at 5 %, two-sided: 2.
        assert!(2.0 * five[..=2].iter().sum::<f64>() <= 0.05 && 2.0 * five[..=3].iter().sum::<f64>() > 0.05);
        assert_eq!(Ratio::apart(&[1.0], &[1.0]).unwrap().confidence, 0.0);
    }

    // Would catch a difference that is called clear although the interval contains 1, or from too few rounds.
    #[test]
    fn clear_needs_the_interval_and_the_confidence() {
        assert!(Ratio::paired(&[(2.0, 1.0); 5]).unwrap().is_clear());
        assert!(!Ratio::paired(&[(2.0, 1.0); 3]).unwrap().is_clear());
        let mixed = [(2.0, 1.0), (2.0, 1.0), (2.0, 1.0), (2.0, 1.0), (0.9, 1.0)];
        assert!(!Ratio::paired(&mixed).unwrap().is_clear());
    }
}
