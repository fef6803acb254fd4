//! Axes: from values to places, and where the ticks are.

use neap_results::judge::quantity;

/// From values to places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The values at both ends.
    low: f64,
    high: f64,
    log: bool,
    /// The places of both ends.
    from: f64,
    to: f64,
}

/// The base of a logarithmic axis.
const DECADE: f64 = 10.0;

impl Scale {
    /// A scale for all `values`, from place `from` to place `to`. A linear one starts at zero or below; a logarithmic
    /// one at a round number at or below the least value above zero.
    pub fn of(values: impl Iterator<Item = f64>, log: bool, from: f64, to: f64) -> Scale {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if log {
            let least = values.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
            let (low, high) = if least.is_finite() { (round_down(least), round_up(most)) } else { (1.0, DECADE) };
            (low, if high > low { high } else { low * DECADE })
        } else {
            let least = values.iter().copied().fold(0.0, f64::min);
            let most = if most > least { most } else { least + 1.0 };
            // Up to the next half of a tick, to leave little empty room.
            let part = step(most - least, 5.0) / 2.0;
            ((least / part * 5.0).floor() * part / 5.0, (most / part).ceil() * part)
        };
        Scale { low, high, log, from, to }
    }

    /// The place of a value. On a logarithmic scale zero and less are at the lower end.
    pub fn place(&self, value: f64) -> f64 {
        let part = match self.log {
            true if value <= self.low => 0.0,
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// [`Scale::ticks`], round in the unit that they are shown in: from 2 GiB on, in GiB.
    pub fn ticks_of(&self, unit: &str) -> Vec<f64> {
        const GIB: f64 = 1024.0;
        if unit != "MiB" || self.log || self.high < 2.0 * GIB {
            return self.ticks();
        }
        let gib = Scale { low: self.low / GIB, high: self.high / GIB, ..*self };
        gib.ticks().into_iter().map(|tick| tick * GIB).collect()
    }

    /// About five round values. On a logarithmic scale these are the decades, or with few decades also 2 and 5 times
    /// them.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step = step(self.high - self.low, 5.0);
            let (first, last) = ((self.low / step - 1e-6).ceil() as i64, (self.high / step + 1e-6).floor() as i64);
            return (first..=last).map(|count| count as f64 * step).collect();
        }
        let decades = (self.high / self.low).log10();
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let parts: &[f64] = if decades <= 1.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / 7.0).ceil().max(1.0) as usize;
        let all =
            (first..=last).step_by(every).flat_map(|power| parts.iter().map(move |part| part * 10f64.powi(power)));
        all.filter(|tick| *tick >= self.low * 0.999 && *tick <= self.high * 1.001).collect()
    }
}

/// 1, 2 or 5 times a power of ten, so that about `count` steps fill `range`.
fn step(range: f64, count: f64) -> f64 {
    let power = 10f64.powf((range / count).log10().floor());
    let part = range / count / power;
    power * [1.0, 2.0, 5.0].into_iter().find(|round| part <= *round * 1.0001).unwrap_or(DECADE)
}

/// The greatest of 1, 2, 5, 10, ... that is at most `value`.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    power * [5.0, 2.0, 1.0].into_iter().find(|part| part * power <= value * 1.0001).unwrap_or(1.0)
}

/// The least of 1, 2, 5, 10, ... that is at least `value`.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    power * [1.0, 2.0, 5.0].into_iter().find(|part| part * power >= value * 0.9999).unwrap_or(DECADE)
}

/// The label of a tick.
pub fn tick_text(value: f64, unit: &str) -> String {
    if value == 0.0 {
        return "0".into();
    }
    // Ticks are round: `0.4`, not `0.400`.
    let text = quantity(value, unit);
    let (number, rest) = text.split_at(text.find([' ', '/']).unwrap_or(text.len()));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number}{rest}")
}

/// Chooses among labels at `places` so that no two touch: the first, the last if there is room, and what fits between.
pub fn thin(places: &[f64], widths: &[f64], gap: f64) -> Vec<usize> {
    let Some(last) = places.len().checked_sub(1) else { return Vec::new() };
    let free = |a: usize, b: usize| places[b] - places[a] >= (widths[a] + widths[b]) / 2.0 + gap;
    let mut kept = vec![0];
    for place in 1..places.len() {
        let before = kept[kept.len() - 1];
        if free(before, place) && (place == last || free(place, last)) {
            kept.push(place);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch an axis that cuts off its greatest value, or bars that do not start at zero.
    #[test]
    fn a_linear_scale_holds_its_values() {
        let scale = Scale::of([3.0, 47.0].into_iter(), false, 0.0, 100.0);
        assert_eq!(scale.place(0.0), 0.0);
        assert!(scale.place(47.0) <= 100.0 && scale.place(47.0) > 80.0);
        assert_eq!(scale.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        let below = Scale::of([-3.0, 4.0].into_iter(), false, 0.0, 100.0);
        assert!(below.place(-3.0) >= 0.0 && below.place(0.0) > below.place(-3.0) + 30.0);
        assert!(below.ticks().contains(&0.0), "{:?}", below.ticks());
        assert_eq!(Scale::of([0.0].into_iter(), false, 0.0, 1.0).place(0.0), 0.0);
    }

    // Would catch equal factors at unequal distances, and zeros without a place.
    #[test]
    fn a_logarithmic_scale() {
        let scale = Scale::of([0.0, 1.0, 1000.0].into_iter(), true, 0.0, 300.0);
        assert_eq!([0.0, 1.0, 10.0, 100.0, 1000.0].map(|v| scale.place(v).round()), [0.0, 0.0, 100.0, 200.0, 300.0]);
        assert_eq!(scale.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Scale::of([3.0, 8.0].into_iter(), true, 0.0, 1.0).ticks(), [2.0, 5.0, 10.0]);
        assert!(Scale::of([0.0].into_iter(), true, 0.0, 1.0).place(0.0).is_finite());
    }

    // Would catch an axis of GiB with ticks at 1.95 GiB.
    #[test]
    fn ticks_are_round_in_their_unit() {
        let scale = Scale::of([5714.0].into_iter(), false, 0.0, 1.0);
        let texts: Vec<String> = scale.ticks_of("MiB").into_iter().map(|tick| tick_text(tick, "MiB")).collect();
        assert_eq!(texts, ["0", "2 GiB", "4 GiB"]);
        assert_eq!(scale.ticks_of("ms"), scale.ticks());
    }

    // Would catch labels on top of each other.
    #[test]
    fn labels_keep_their_distance() {
        assert_eq!(thin(&[0.0, 5.0, 40.0, 80.0, 84.0], &[10.0; 5], 2.0), [0, 2, 4]);
        assert_eq!(thin(&[0.0, 50.0], &[10.0; 2], 2.0), [0, 1]);
        assert!(thin(&[], &[], 2.0).is_empty());
    }

    // Would catch ticks with a unit that does not suit them.
    #[test]
    fn texts() {
        assert_eq!([0.0, 0.1, 1000.0].map(|v| tick_text(v, "us")), ["0", "100 ns", "1 ms"]);
        assert_eq!(tick_text(0.4, ""), "0.4");
        assert_eq!([1.5, 20.0].map(|v| tick_text(v, "MiB")), ["1.5 MiB", "20 MiB"]);
    }
}
