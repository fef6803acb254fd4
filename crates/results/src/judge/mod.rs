//! Pieces of verdicts: each reads a run's rows and says one thing, as a sentence with its figures.
//!
//! A piece gives a [`Judged`]: the sentence, and whether the condition holds. If the data have no answer, that is
//! `None` and the sentence says why. [`Judged::finding`] and its siblings make a verdict of it.

mod lead;
mod rank;
mod shape;
mod text;

pub use rank::{at_least, at_most, growth, rank, ratio, rivals};
pub use shape::{Fit, find_jump, fit_power, flat, jump, power};
pub use text::{number, quantity, size, spread_text, status_words, times, value_text};

use crate::{Better, Figure};
use crate::{Kind, Value, Verdict, View};

/// A sentence on the data, and whether the condition holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The sentence, with its figures; no full stop at its end.
    pub text: String,
    /// Whether the condition holds; none if the data have no answer.
    pub holds: Option<bool>,
}

impl Judged {
    /// A sentence with its answer.
    pub fn new(text: impl Into<String>, holds: Option<bool>) -> Judged {
        Judged { text: text.into(), holds }
    }

    /// No answer in the data, and why.
    pub fn open(why: impl Into<String>) -> Judged {
        Judged::new(why, None)
    }

    /// The sentence after some words that say what it is about.
    pub fn about(self, words: &str) -> Judged {
        Judged { text: format!("{words}: {}", self.text), ..self }
    }

    /// Both sentences; holds where both do.
    pub fn and(self, other: Judged) -> Judged {
        let holds = match (self.holds, other.holds) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
        Judged { text: format!("{}; {}", self.text, other.text), holds }
    }

    /// A verdict on a published finding.
    pub fn finding(self, must_hold: bool) -> Verdict {
        self.verdict(Kind::Finding, must_hold)
    }

    /// A verdict on neap's rank.
    pub fn rank(self) -> Verdict {
        self.verdict(Kind::Rank, false)
    }

    /// A verdict on a goal.
    pub fn target(self, must_hold: bool) -> Verdict {
        self.verdict(Kind::Target, must_hold)
    }

    /// A figure without a goal.
    pub fn figure(self) -> Verdict {
        Verdict { holds: None, ..self.verdict(Kind::Figure, false) }
    }

    fn verdict(self, kind: Kind, must_hold: bool) -> Verdict {
        Verdict { text: self.text, holds: self.holds, must_hold, kind }
    }
}

/// The median of a figure, or the sentence on its absence. A failure of the allocator counts as not holding.
/// [`need_other`] is for an allocator that is only compared with.
pub fn need(view: &View, figure: Figure, allocator: &str) -> Result<f64, Judged> {
    match view.value(figure, allocator) {
        Value::Is(spread) => Ok(spread.median),
        Value::Failed(status) => Err(Judged::new(format!("{allocator} failed ({status})"), Some(false))),
        Value::Skipped(status) => Err(Judged::open(format!("{allocator}: {status}"))),
        Value::Absent => Err(Judged::open(format!("{allocator} was not run on {}", figure.case))),
    }
}

/// As [`need`] for an allocator that is only compared with: its failure gives no answer.
pub fn need_other(view: &View, figure: Figure, allocator: &str) -> Result<f64, Judged> {
    need(view, figure, allocator).map_err(|judged| Judged { holds: None, ..judged })
}

/// The metric of many cases of one allocator, as points: `(x, median)`.
pub fn points(view: &View, figures: &[(f64, Figure)], allocator: &str) -> Result<Vec<(f64, f64)>, Judged> {
    let with = |(x, figure): &(f64, Figure)| need(view, *figure, allocator).map(|y| (*x, y));
    let present: Vec<_> =
        figures.iter().filter(|(_, figure)| view.value(*figure, allocator) != Value::Absent).collect();
    if present.is_empty() {
        return Err(Judged::open(format!("{allocator} was not run")));
    }
    present.into_iter().map(with).collect()
}

/// The word for the best value in sentences.
pub(crate) fn word(better: Better) -> &'static str {
    match better {
        Better::Less => "least",
        Better::More => "most",
        Better::Neither => "first",
    }
}
