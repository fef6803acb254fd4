//! Ranks and ratios: neap's place, the shortfall, goals.

use super::{Judged, need, need_other, number, quantity, times, word};
use crate::{Better, Figure, NEAP, Ratio, Spread, Value, View};

/// A peer that is better or worse by at most this factor may be so by chance; beyond it the medians decide.
const NEAR: f64 = 1.05;

/// neap and the peers that it is ranked with, from the best: all allocators that have the figure, without neap's
/// variants.
pub fn rivals<'a>(view: &'a View, figure: Figure, better: Better) -> Vec<(&'a str, f64)> {
    let mut ranked = view.ranked(figure, better);
    ranked.retain(|(name, _)| *name == NEAP || view.base(name) != NEAP);
    ranked.iter_mut().for_each(|(_, value)| *value = cost(*value, better));
    ranked
}

/// A cost below zero counts as zero: memory can shrink when the process gives back what it had before.
fn cost(value: f64, better: Better) -> f64 {
    if better == Better::Less { value.max(0.0) } else { value }
}

/// neap's rank in a figure: first, or the shortfall with the figures of both and the ratio within a round. A peer
/// shares neap's place if it differs by 5 % at most, and not in the same direction in every round (the interval of the
/// ratio contains 1). Peers that failed are named.
pub fn rank(view: &View, figure: Figure, better: Better) -> Judged {
    let own = match need(view, figure, NEAP) {
        Ok(own) => cost(own, better),
        Err(judged) => return judged,
    };
    let ranked = rivals(view, figure, better);
    let unit = view.unit(figure);
    let own_text = quantity(own, unit);
    let failed = failed_text(view, figure);
    let count = ranked.len();
    if count < 2 {
        return Judged::open(format!("neap alone: {own_text}{failed}"));
    }
    let place = ranked.iter().position(|(name, _)| *name == NEAP).unwrap_or(0);
    let others: Vec<(usize, &str, f64)> =
        ranked.iter().enumerate().map(|(at, (name, value))| (at, *name, *value)).collect();
    let (level, apart): (Vec<_>, Vec<_>) = others
        .into_iter()
        .filter(|(at, ..)| *at != place)
        .partition(|(_, name, value)| *value == own || !is_clear(view, figure, name));
    let names: Vec<&str> = level.iter().map(|(_, name, _)| *name).collect();
    let ahead = apart.iter().filter(|(at, ..)| *at < place).count();
    let text = match (apart.first().filter(|_| ahead > 0), level.first()) {
        (Some((at, best, value)), _) => format!(
            "neap is {} of {count} with {own_text}{}; {best} {} with {}{}",
            ordinal(ahead + 1),
            if names.is_empty() { String::new() } else { format!(", level with {}", list(&names)) },
            // One that is level with neap may have a better median than all that are ahead.
            if *at == 0 { format!("has the {}", word(better)) } else { "is ahead".into() },
            quantity(*value, unit),
            ratio_of(view, figure, (NEAP, best))
                .map_or(String::new(), |ratio| format!(" (neap: {})", times(ratio.ratio)))
        ),
        (None, None) => {
            let next = apart.first().map(|(_, name, value)| {
                let factor = ratio_of(view, figure, (name, NEAP)).map(|ratio| format!(" ({})", times(ratio.ratio)));
                format!(", {name} next with {}{}", quantity(*value, unit), factor.unwrap_or_default())
            });
            format!("neap is first of {count} with {own_text}{}", next.unwrap_or_default())
        }
        (None, Some(_)) if level.iter().all(|(_, _, value)| *value == own) => {
            format!("neap is first of {count} with {own_text}, as {}", list(&names))
        }
        (None, Some((_, near, value))) => {
            let within = ratio_of(view, figure, (NEAP, near)).map(|ratio| match ratio.count {
                0 | 1 => format!(" ({})", times(ratio.ratio)),
                _ => {
                    let (low, high) = (number(ratio.low), number(ratio.high));
                    format!(", and {} [{low}, {high}] within a round", times(ratio.ratio))
                }
            });
            format!(
                "neap ties for first of {count} with {}: {own_text} against {} of {near}{}",
                list(&names),
                quantity(*value, unit),
                within.unwrap_or_default()
            )
        }
    };
    Judged::new(text + &failed, Some(ahead == 0))
}

/// `; failed: a and b`: the peers that were run and have no figure. Empty if there are none.
fn failed_text(view: &View, figure: Figure) -> String {
    let rival = |name: &&String| view.base(name) != NEAP;
    let failed = |name: &&String| matches!(view.value(figure, name), Value::Failed(_));
    let names: Vec<&str> = view.allocators().iter().filter(rival).filter(failed).map(String::as_str).collect();
    if names.is_empty() { String::new() } else { format!("; failed: {}", list(&names)) }
}

/// The ratio within a round. None with values below zero, such as memory that shrinks: its ratio would mean nothing.
fn ratio_of(view: &View, figure: Figure, (of, to): (&str, &str)) -> Option<Ratio> {
    let below = |name| view.values(figure, name).iter().any(|value| *value < 0.0);
    if below(of) || below(to) { None } else { view.ratio(figure, of, to) }
}

/// Whether the difference between `name` and neap is clear: more than [`NEAR`], or an interval without 1; with too few
/// rounds for an interval, ranges that do not overlap. It is not clear if the rounds contradict the medians.
fn is_clear(view: &View, figure: Figure, name: &str) -> bool {
    // A figure of zero or below has no ratio; then every difference counts.
    let Some(ratio) = ratio_of(view, figure, (NEAP, name)) else { return true };
    let range = |name| Spread::of(&view.values(figure, name));
    let Some((own, other)) = range(NEAP).zip(range(name)) else { return false };
    if (ratio.ratio > 1.0) != (own.median > other.median) {
        return false;
    }
    if ratio.ratio > NEAR || ratio.ratio < 1.0 / NEAR {
        return true;
    }
    if ratio.confidence >= crate::stats::CLEAR {
        return ratio.is_clear();
    }
    ratio.count > 1 && (own.min > other.max || own.max < other.min)
}

/// `first`, `second`, `third`, `4th`, `21st`.
fn ordinal(place: usize) -> String {
    match place {
        1 => "first".into(),
        2 => "second".into(),
        3 => "third".into(),
        n if n % 10 == 1 && n % 100 != 11 => format!("{n}st"),
        n if n % 10 == 2 && n % 100 != 12 => format!("{n}nd"),
        n if n % 10 == 3 && n % 100 != 13 => format!("{n}rd"),
        n => format!("{n}th"),
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The ratio of one figure to another, within a round: neap's to a peer's, or two policies, or with and without a
/// remedy. Holds if `low <= ratio <= high`.
pub fn ratio(view: &View, of: (Figure, &str), to: (Figure, &str), low: f64, high: f64) -> Judged {
    if let Err(judged) = need(view, of.0, of.1) {
        return judged;
    }
    if let Err(judged) = need_other(view, to.0, to.1) {
        return judged;
    }
    let Some(ratio) = view.ratio_of(of, to) else {
        return Judged::open(format!("no round has both {} and {}", of.1, to.1));
    };
    let name = |(figure, allocator): (Figure, &str), other: (Figure, &str)| {
        if allocator != other.1 { allocator.to_owned() } else { format!("{allocator} ({})", figure.case) }
    };
    let goal = match (low <= 0.0, high.is_infinite()) {
        (true, true) => String::new(),
        (true, false) => format!(" (limit: {})", number(high)),
        (false, true) => format!(" (expected: at least {})", number(low)),
        (false, false) => format!(" (expected: {} to {})", number(low), number(high)),
    };
    let holds = (low..=high).contains(&ratio.ratio);
    let interval = if ratio.count > 1 && ratio.low != ratio.high {
        format!(" [{}, {}]", number(ratio.low), number(ratio.high))
    } else {
        String::new()
    };
    let text = format!("{} has {} that of {}{interval}{goal}", name(of, to), times(ratio.ratio), name(to, of));
    Judged::new(text, Some(holds))
}

/// Whether the median of an allocator is at most a goal.
pub fn at_most(view: &View, figure: Figure, allocator: &str, goal: f64) -> Judged {
    goal_of(view, figure, allocator, goal, "limit:", |value| value <= goal)
}

/// Whether the median of an allocator is at least a goal.
pub fn at_least(view: &View, figure: Figure, allocator: &str, goal: f64) -> Judged {
    goal_of(view, figure, allocator, goal, "expected: at least", |value| value >= goal)
}

fn goal_of(view: &View, figure: Figure, allocator: &str, goal: f64, words: &str, so: impl Fn(f64) -> bool) -> Judged {
    let unit = view.unit(figure);
    match need(view, figure, allocator) {
        Err(judged) => judged,
        Ok(value) => {
            let text = format!("{allocator} has {} ({words} {})", quantity(value, unit), quantity(goal, unit));
            Judged::new(text, Some(so(value)))
        }
    }
}

/// Whether a figure grew from one metric or case to another by at least `factor`, under one allocator.
pub fn growth(view: &View, from: Figure, to: Figure, allocator: &str, factor: f64) -> Judged {
    let pair = need(view, from, allocator).and_then(|a| Ok((a, need(view, to, allocator)?)));
    let (before, after) = match pair {
        Ok(pair) => pair,
        Err(judged) => return Judged { holds: None, ..judged },
    };
    let unit = view.unit(to);
    let text = format!(
        "{allocator}: from {} to {}, {}",
        quantity(before, view.unit(from)),
        quantity(after, unit),
        times(after / before)
    );
    Judged::new(text, Some(after >= before * factor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::{bad, row, run};
    use crate::{Row, View};

    const WALL: Figure = Figure { experiment: "e", case: "c", metric: "wall" };

    fn view(values: &[(&str, &[f64])]) -> View {
        let mut rows: Vec<Row> = Vec::new();
        for (name, values) in values {
            rows.extend(values.iter().zip(1..).map(|(value, round)| row(WALL, name, round, *value)));
        }
        View::of(&run(&["glibc", "neap", "neap-lazy=neap", "other"], rows))
    }

    // Would catch a shortfall that is passed over, or shown without its figures.
    #[test]
    fn a_shortfall_is_reported() {
        let view = view(&[("neap", &[20.0; 5]), ("glibc", &[40.0; 5]), ("other", &[10.0; 5])]);
        let judged = rank(&view, WALL, Better::Less);
        let text = "neap is second of 3 with 20 ms; other has the least with 10 ms (neap: 2 times)";
        assert_eq!(judged, Judged::new(text, Some(false)));
        let judged = rank(&view, WALL, Better::More);
        let text = "neap is second of 3 with 20 ms; glibc has the most with 40 ms (neap: 0.500 times)";
        assert_eq!(judged, Judged::new(text, Some(false)));
    }

    // Would catch a first place that is not seen, and a variant of neap that takes it away.
    #[test]
    fn first_is_first() {
        let view = view(&[("neap", &[10.0; 5]), ("glibc", &[40.0; 5]), ("neap-lazy", &[1.0; 5])]);
        let text = "neap is first of 2 with 10 ms, glibc next with 40 ms (4 times)";
        assert_eq!(rank(&view, WALL, Better::Less), Judged::new(text, Some(true)));
    }

    // Would catch noise that is read as a rank, and a clear difference that is read as noise.
    #[test]
    fn noise_shares_a_place() {
        let near = view(&[("neap", &[10.0, 11.0, 9.0, 10.0, 12.0]), ("other", &[9.0, 12.0, 8.0, 10.0, 11.0])]);
        let judged = rank(&near, WALL, Better::Less);
        assert_eq!(judged.holds, Some(true), "{judged:?}");
        let near = view(&[("neap", &[10.1, 11.1, 9.1, 10.1, 12.1]), ("other", &[10.0, 11.0, 9.0, 10.0, 12.0])]);
        let judged = rank(&near, WALL, Better::Less);
        assert!(judged.holds == Some(false) && judged.text.contains("second of 2"), "{judged:?}");
        // Two rounds give no interval: ranges apart are clear, ranges that touch are not.
        let few = view(&[("neap", &[10.3, 10.4]), ("other", &[10.1, 10.2])]);
        assert_eq!(rank(&few, WALL, Better::Less).holds, Some(false));
        let few = view(&[("neap", &[10.3, 10.4]), ("other", &[10.1, 10.35])]);
        assert_eq!(rank(&few, WALL, Better::Less).holds, Some(true));
    }

    // Would catch a place that is shared with a peer that is a little better, but not with one that is a little worse.
    #[test]
    fn a_place_is_shared_both_ways() {
        let near = view(&[("neap", &[10.0, 11.0, 9.0]), ("other", &[10.2, 10.9, 9.1]), ("glibc", &[20.0; 3])]);
        let judged = rank(&near, WALL, Better::Less);
        let text = "neap ties for first of 3 with other: 10 ms against 10.2 ms of other, and 0.989 times \
                    [0.980, 1.01] within a round";
        assert_eq!(judged, Judged::new(text, Some(true)));
        // Behind a third allocator both are second.
        let third = view(&[("neap", &[10.0, 11.0, 9.0]), ("other", &[9.9, 11.1, 9.1]), ("glibc", &[5.0; 3])]);
        let judged = rank(&third, WALL, Better::Less);
        let text = "neap is second of 3 with 10 ms, level with other; glibc has the least with 5 ms (neap: 2 times)";
        assert_eq!(judged, Judged::new(text, Some(false)));
    }

    // Would catch a clear lead from one round, and a rank from rounds that contradict the medians.
    #[test]
    fn what_rounds_do_not_show_is_no_rank() {
        let one = view(&[("neap", &[10.0]), ("other", &[10.1])]);
        let text = "neap ties for first of 2 with other: 10 ms against 10.1 ms of other (0.990 times)";
        assert_eq!(rank(&one, WALL, Better::Less), Judged::new(text, Some(true)));
        let one = view(&[("neap", &[10.0]), ("other", &[9.0])]);
        assert_eq!(rank(&one, WALL, Better::Less).holds, Some(false));
        // By the medians 11 against 5, but half in two rounds of three.
        let contrary = view(&[("neap", &[11.0, 2.5, 12.0]), ("other", &[22.0, 5.0, 4.0])]);
        let judged = rank(&contrary, WALL, Better::Less);
        assert!(judged.holds == Some(true) && judged.text.contains("ties for first"), "{judged:?}");
        // One that is ahead in every round does not have the least if the median of one that is level is less.
        let rounds: [(&str, &[f64]); 3] =
            [("neap", &[11.0, 2.5, 12.0]), ("other", &[22.0, 5.0, 4.0]), ("glibc", &[8.0, 2.0, 9.0])];
        let text = "neap is second of 3 with 11 ms, level with other; glibc is ahead with 8 ms (neap: 1.33 times)";
        assert_eq!(rank(&view(&rounds), WALL, Better::Less), Judged::new(text, Some(false)));
    }

    // Would catch a first place that hides the peers that failed.
    #[test]
    fn who_failed_is_named() {
        let mut rows = vec![row(WALL, "neap", 1, 1.0), row(WALL, "glibc", 1, 2.0)];
        rows.extend([bad(WALL, "other", 1, "signal:11"), bad(WALL, "neap-lazy", 1, "timeout")]);
        let view = View::of(&run(&["glibc", "neap", "neap-lazy=neap", "other"], rows));
        let text = "neap is first of 2 with 1 ms, glibc next with 2 ms (2 times); failed: other";
        assert_eq!(rank(&view, WALL, Better::Less), Judged::new(text, Some(true)));
    }

    // Would catch a peer that is five times quicker and shares the place because one of its rounds was slow.
    #[test]
    fn far_off_is_not_near() {
        let far = view(&[("neap", &[3.0; 5]), ("other", &[0.6, 0.5, 0.6, 0.5, 7.0])]);
        assert_eq!(rank(&far, WALL, Better::Less).holds, Some(false));
        let equal = view(&[("neap", &[0.0; 3]), ("other", &[0.0; 3])]);
        assert_eq!(rank(&equal, WALL, Better::Less), Judged::new("neap is first of 2 with 0 s, as other", Some(true)));
        // Memory that shrinks is better, and a factor would mean nothing.
        let below = view(&[("neap", &[0.1; 3]), ("other", &[-0.5; 3])]);
        let text = "neap is second of 2 with 100 µs; other has the least with 0 s";
        assert_eq!(rank(&below, WALL, Better::Less), Judged::new(text, Some(false)));
        let none = view(&[("neap", &[1.0, 0.0, 1.0]), ("other", &[0.0; 3])]);
        let judged = rank(&none, WALL, Better::Less);
        assert_eq!(judged, Judged::new("neap is second of 2 with 1 ms; other has the least with 0 s", Some(false)));
    }

    // Would catch a crash of neap that reads as "not measured", and a crash of a peer that reads as neap's.
    #[test]
    fn failures_are_whose_they_are() {
        let rows = vec![bad(WALL, "neap", 1, "signal:11"), row(WALL, "other", 1, 1.0)];
        let judged = rank(&View::of(&run(&["neap", "other"], rows)), WALL, Better::Less);
        assert_eq!(judged, Judged::new("neap failed (signal:11)", Some(false)));
        let rows = vec![bad(WALL, "other", 1, "timeout"), row(WALL, "neap", 1, 1.0)];
        let view = View::of(&run(&["neap", "other"], rows));
        let judged = ratio(&view, (WALL, "neap"), (WALL, "other"), 0.0, 1.0);
        assert_eq!(judged, Judged::new("other failed (timeout)", None));
        assert_eq!(rank(&view, WALL, Better::Less).holds, None);
    }

    // Would catch a goal that counts as missed where it is just reached, and a sentence without the goal.
    #[test]
    fn goals() {
        let view = view(&[("neap", &[10.0; 5]), ("other", &[40.0; 5])]);
        let judged = at_most(&view, WALL, "neap", 10.0);
        assert_eq!(judged, Judged::new("neap has 10 ms (limit: 10 ms)", Some(true)));
        assert_eq!(at_most(&view, WALL, "neap", 9.9).holds, Some(false));
        assert_eq!(at_least(&view, WALL, "neap", 10.1).holds, Some(false));
        let judged = ratio(&view, (WALL, "neap"), (WALL, "other"), 0.0, 0.25);
        assert_eq!(judged, Judged::new("neap has 0.250 times that of other (limit: 0.250)", Some(true)));
        assert_eq!(ratio(&view, (WALL, "other"), (WALL, "neap"), 5.0, f64::INFINITY).holds, Some(false));
    }

    // Would catch growth that is measured the wrong way round.
    #[test]
    fn growth_is_from_the_first_to_the_second() {
        let later = Figure { metric: "later", ..WALL };
        let rows = vec![row(WALL, "glibc", 1, 1.5), row(later, "glibc", 1, 3300.0)];
        let view = View::of(&run(&["glibc"], rows));
        let judged = growth(&view, WALL, later, "glibc", 100.0);
        assert_eq!(judged, Judged::new("glibc: from 1.50 ms to 3.30 s, 2200 times", Some(true)));
        assert_eq!(growth(&view, later, WALL, "glibc", 2.0).holds, Some(false));
    }

    // Would catch `21th`.
    #[test]
    fn places_have_their_endings() {
        let places = [1, 4, 11, 12, 13, 21, 22, 23, 111, 112].map(ordinal);
        assert_eq!(places, ["first", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "111th", "112th"]);
    }
}
