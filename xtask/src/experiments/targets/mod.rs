//! What neap is to reach, computed from the data: one line per target.

mod memory;
mod time;

use std::fmt;

use super::view::{Better, Figure, Value, View};

/// One target and whether it was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// What is asked for.
    pub line: String,
    /// What came of it.
    pub verdict: Verdict,
}

/// Whether a target was reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Reached, by this figure.
    Met(String),
    /// Not reached: the figure against the goal.
    Missed(String),
    /// The data does not say: why.
    Open(String),
    /// A figure without a goal.
    Told(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Met(figure) => write!(f, "met: {figure}"),
            Verdict::Missed(figure) => write!(f, "**missed**: {figure}"),
            Verdict::Open(reason) => write!(f, "not measured: {reason}"),
            Verdict::Told(figure) => write!(f, "{figure}"),
        }
    }
}

/// A verdict, or one that came up early because a figure is missing.
type Judged = Result<Verdict, Verdict>;

/// The targets of one experiment.
pub fn of(view: &View, experiment: &str) -> Vec<Target> {
    match experiment {
        "calloc" => time::calloc(view),
        "recycled" => memory::recycled(view),
        "retain-large" => memory::retain_large(view),
        "retain-small" => memory::retain_small(view),
        "ebizzy" => time::ebizzy(view),
        "survivors" => memory::survivors(view),
        "workers" => memory::workers(view),
        "latency" => time::latency(view),
        "redis" => memory::redis(view),
        "vmas" => memory::vmas(view),
        _ => Vec::new(),
    }
}

fn target(line: impl Into<String>, judged: Judged) -> Target {
    Target { line: line.into(), verdict: judged.unwrap_or_else(|early| early) }
}

/// The median of a figure of neap or another allocator, or the verdict that its absence is.
fn need(view: &View, figure: Figure, allocator: &str) -> Result<f64, Verdict> {
    match view.value(figure, allocator) {
        Value::Is(spread) => Ok(spread.median),
        Value::Failed(status) if status.starts_with("skipped") => Err(Verdict::Open(status)),
        Value::Failed(status) => Err(Verdict::Missed(format!("{allocator} failed ({status})"))),
        Value::Absent => Err(Verdict::Open(format!("{allocator} was not run on {}", figure.case))),
    }
}

/// As [`need`] for an allocator that is only compared with: its failure is no miss of neap's.
fn need_other(view: &View, figure: Figure, allocator: &str) -> Result<f64, Verdict> {
    need(view, figure, allocator).map_err(|early| match early {
        Verdict::Missed(reason) => Verdict::Open(reason),
        other => other,
    })
}

/// Whether a value is at most a goal.
fn at_most(value: f64, goal: f64, unit: &str) -> Verdict {
    let (value_text, goal_text) = (number(value), number(goal));
    if value <= goal {
        Verdict::Met(format!("{value_text}{unit}, at most {goal_text}{unit}"))
    } else {
        Verdict::Missed(format!("{value_text}{unit} against {goal_text}{unit}"))
    }
}

/// Whether a median of `allocator` is at most a goal.
fn median_at_most(view: &View, figure: Figure, allocator: &str, goal: f64, unit: &str) -> Judged {
    Ok(at_most(need(view, figure, allocator)?, goal, unit))
}

/// The best peer that `admit` lets in, and the ratio of `allocator` to it within a round.
fn ratio_to_best<'a>(
    view: &'a View,
    figure: Figure,
    allocator: &str,
    better: Better,
    admit: impl Fn(&str) -> bool,
) -> Result<(&'a str, f64), Verdict> {
    need(view, figure, allocator)?;
    let Some((best, median)) = view.best_peer(figure, better, admit) else {
        return Err(Verdict::Open(format!("no peer has a figure on {}", figure.case)));
    };
    // A best of nothing at all (no faults, no calls) has no ratio; then only nothing is as good.
    if median == 0.0 {
        let own = need(view, figure, allocator)?;
        return Ok((best, if own == 0.0 { 1.0 } else { f64::INFINITY }));
    }
    let ratio = view.ratio(figure, allocator, best);
    ratio.map(|ratio| (best, ratio)).ok_or_else(|| Verdict::Open(format!("no round has {allocator} and {best}")))
}

/// Whether `allocator` takes at most `goal` times what the best peer takes.
fn at_most_best(view: &View, figure: Figure, allocator: &str, goal: f64, admit: impl Fn(&str) -> bool) -> Judged {
    let (best, ratio) = ratio_to_best(view, figure, allocator, Better::Less, admit)?;
    if ratio.is_infinite() {
        let own = number(need(view, figure, allocator)?);
        return Ok(Verdict::Missed(format!("{own} against none under {best}")));
    }
    Ok(at_most(ratio, goal, &format!(" times {best}")))
}

/// A number with three significant digits or all of its whole ones.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    let places = match magnitude {
        m if !m.is_finite() || m >= 100.0 || m == 0.0 => 0,
        m if m >= 10.0 => 1,
        m if m >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if value.fract() == 0.0 { format!("{value:.0}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::data::Row;
    use super::super::view::tests::row;
    use super::*;

    const WALL: Figure = Figure { experiment: "e", case: "c", metric: "wall" };

    fn view(rows: &[Row]) -> View {
        View::of(rows, ["glibc", "neap", "other", "third"].map(String::from).into(), 2)
    }

    // Would catch a goal that counts as missed where it is just reached.
    #[test]
    fn the_goal_itself_is_met() {
        assert_eq!(at_most(8.0, 8.0, " MiB").to_string(), "met: 8 MiB, at most 8 MiB");
        assert_eq!(at_most(8.25, 8.0, " MiB").to_string(), "**missed**: 8.25 MiB against 8 MiB");
    }

    // Would catch a crash of neap that reads as "not measured", and a crash of a peer that reads as neap's miss.
    #[test]
    fn failures_are_whose_they_are() {
        let failed = |name| Row { status: "signal:11".into(), metric: String::new(), ..row(WALL, name, 1, 0.0) };
        let view = view(&[failed("neap"), failed("other")]);
        assert!(matches!(need(&view, WALL, "neap"), Err(Verdict::Missed(_))));
        assert!(matches!(need_other(&view, WALL, "other"), Err(Verdict::Open(_))));
        assert!(matches!(need(&view, WALL, "glibc"), Err(Verdict::Open(_))));
        assert!(matches!(at_most_best(&view, WALL, "neap", 1.0, |_| true), Err(Verdict::Missed(_))));
    }

    // Would catch a skipped experiment that counts as a miss.
    #[test]
    fn skipped_is_not_missed() {
        let skipped = Row { status: "skipped: needs root".into(), metric: String::new(), ..row(WALL, "neap", 1, 0.0) };
        assert_eq!(need(&view(&[skipped]), WALL, "neap"), Err(Verdict::Open("skipped: needs root".into())));
    }

    // Would catch a comparison with any other than the best peer that is let in.
    #[test]
    fn the_best_peer_is_the_measure() {
        let rows =
            [("glibc", 4.0), ("neap", 3.0), ("other", 2.0), ("third", 0.0)].map(|(name, v)| row(WALL, name, 1, v));
        let view = view(&rows);
        let admit = |name: &str| name != "third";
        let judged = at_most_best(&view, WALL, "neap", 1.05, admit).unwrap();
        assert_eq!(judged.to_string(), "**missed**: 1.50 times other against 1.05 times other");
        assert_eq!(ratio_to_best(&view, WALL, "neap", Better::More, admit), Ok(("glibc", 0.75)));
        let judged = at_most_best(&view, WALL, "neap", 1.05, |_| true).unwrap();
        assert_eq!(judged.to_string(), "**missed**: 3 against none under third");
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.12345, 1.0, 1.234, 12.34, 1234.6, 0.79].map(number);
        assert_eq!(texts, ["0", "0.123", "1", "1.23", "12.3", "1235", "0.790"]);
    }
}
