//! Shapes of series: a jump at a round, growth with a power of the size, flatness.

use super::{Judged, number, quantity, times};

/// The position of the first value that is at least `factor` times the greatest before it, if no later value falls
/// below that. Values before it count as at least `floor`.
pub fn find_jump(values: &[f64], factor: f64, floor: f64) -> Option<usize> {
    (1..values.len()).find(|&place| {
        let before = values[..place].iter().copied().fold(floor, f64::max);
        values[place..].iter().all(|value| *value >= before * factor)
    })
}

/// Whether a series of rounds (numbered from 1) jumps and stays up: `1 MiB in rounds 1 to 6, 3 GiB from round 7 on`.
pub fn jump(rounds: &[f64], unit: &str, factor: f64, floor: f64) -> Judged {
    if rounds.len() < 2 {
        return Judged::open("fewer than two rounds");
    }
    let range = |part: &[f64]| {
        let (least, most) = part.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
        match least == most {
            true => quantity(most, unit),
            false => format!("{} to {}", quantity(least, unit), quantity(most, unit)),
        }
    };
    match find_jump(rounds, factor, floor) {
        Some(place) => {
            let (before, after) = rounds.split_at(place);
            let text = format!(
                "{} in round{} 1 to {place}, {} from round {} on",
                range(before),
                if place == 1 { "" } else { "s" },
                range(after),
                place + 1
            );
            Judged::new(text.replace("round 1 to 1", "round 1"), Some(true))
        }
        None => Judged::new(format!("no jump in {} rounds: {}", rounds.len(), range(rounds)), Some(false)),
    }
}

/// A power law through points: `y = factor * x ^ slope`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The exponent: 0 is flat, 1 linear.
    pub slope: f64,
    /// How much of the spread of log y it explains, 0 to 1.
    pub r2: f64,
}

/// Least squares on both logarithms. None for fewer than two different x, or for values of zero and less.
pub fn fit_power(points: &[(f64, f64)]) -> Option<Fit> {
    if points.iter().any(|(x, y)| *x <= 0.0 || *y <= 0.0) {
        return None;
    }
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let mean_x = logs.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logs.iter().map(|(_, y)| y).sum::<f64>() / count;
    let sxx: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let syy: f64 = logs.iter().map(|(_, y)| (y - mean_y).powi(2)).sum();
    let sxy: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    if sxx <= 0.0 {
        return None;
    }
    let r2 = if syy <= 0.0 { 1.0 } else { sxy * sxy / (sxx * syy) };
    Some(Fit { slope: sxy / sxx, r2 })
}

/// Whether y grows with a power of x between `low` and `high`: linear is 0.9 to 1.1, constant is -0.1 to 0.1.
pub fn power(what: &str, points: &[(f64, f64)], low: f64, high: f64) -> Judged {
    match fit_power(points) {
        None => Judged::open(format!("{what}: too few sizes to tell")),
        Some(Fit { slope, r2 }) => {
            let text = format!(
                "{what} grows with the power {slope:.2} of the size (1 is linear; {:.0} % of the spread explained)",
                r2 * 100.0
            );
            Judged::new(text, Some((low..=high).contains(&slope)))
        }
    }
}

/// Whether no value is more than `factor` times another.
pub fn flat(what: &str, points: &[(f64, f64)], unit: &str, factor: f64) -> Judged {
    let least = points.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    let most = points.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    let (Some(least), Some(most)) = (least, most) else {
        return Judged::open(format!("{what}: no values"));
    };
    let spread = if least.1 == most.1 { 1.0 } else { most.1 / least.1 };
    let text = format!(
        "{what}: from {} to {}, {} (limit: {})",
        quantity(least.1, unit),
        quantity(most.1, unit),
        times(spread),
        number(factor)
    );
    Judged::new(text, Some(spread <= factor && least.1 >= 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a jump that is found a round early or late, or seen in a spike that goes back.
    #[test]
    fn jumps() {
        let mut rounds = [1.4; 6].to_vec();
        rounds.extend([3300.0, 3400.0, 3350.0]);
        assert_eq!(find_jump(&rounds, 10.0, 0.1), Some(6));
        let text = "1.40 MiB in rounds 1 to 6, 3.22 GiB to 3.32 GiB from round 7 on";
        assert_eq!(jump(&rounds, "MiB", 10.0, 0.1), Judged::new(text, Some(true)));
        rounds.push(1.4);
        assert_eq!(find_jump(&rounds, 10.0, 0.1), None);
        let text = "no jump in 3 rounds: 1 MiB to 2 MiB";
        assert_eq!(jump(&[1.0, 2.0, 1.5], "MiB", 10.0, 0.1), Judged::new(text, Some(false)));
        assert_eq!(jump(&[1.0], "MiB", 10.0, 0.1).holds, None);
        let text = "0.500 MiB in round 1, 30 MiB to 65 MiB from round 2 on";
        assert_eq!(jump(&[0.5, 30.0, 31.0, 65.0], "MiB", 10.0, 0.1).text, text);
    }

    // Would catch a slope of the wrong axis, or growth that passes as linear.
    #[test]
    fn slopes() {
        let points = |f: fn(f64) -> f64| [1.0, 4.0, 16.0, 256.0].map(|x| (x, f(x)));
        let linear = fit_power(&points(|x| 3.0 * x)).unwrap();
        assert!((linear.slope - 1.0).abs() < 1e-12 && (linear.r2 - 1.0).abs() < 1e-12);
        assert!((fit_power(&points(|x| x * x)).unwrap().slope - 2.0).abs() < 1e-12);
        let constant = fit_power(&points(|_| 7.0)).unwrap();
        assert_eq!((constant.slope, constant.r2), (0.0, 1.0));
        assert_eq!(power("time", &points(|x| 3.0 * x), 0.9, 1.1).holds, Some(true));
        assert_eq!(power("time", &points(f64::sqrt), 0.9, 1.1).holds, Some(false));
        assert_eq!(power("time", &[(1.0, 1.0)], 0.9, 1.1).holds, None);
        assert_eq!(fit_power(&[(1.0, 0.0), (2.0, 1.0)]), None);
    }

    // Would catch a size that sticks out and is not seen.
    #[test]
    fn flatness() {
        let judged = flat("neap", &[(1.0, 0.7), (2.0, 1.4)], "us", 3.0);
        assert_eq!(judged, Judged::new("neap: from 700 ns to 1.40 µs, 2 times (limit: 3)", Some(true)));
        assert_eq!(flat("neap", &[(1.0, 0.7), (2.0, 2.8)], "us", 3.0).holds, Some(false));
        assert_eq!(flat("neap", &[], "us", 3.0).holds, None);
    }
}
