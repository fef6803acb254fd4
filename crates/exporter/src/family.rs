//! Metrics, their labels and values, for each format.

use std::fmt;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A value now.
    Gauge,
    /// A value that only grows; its samples end in `_total`.
    Counter,
    /// A text in a label; its samples end in `_info`.
    Info,
}

/// A metric. Its name ends in its unit, without `_total` or `_info`.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name.
    pub name: &'static str,
    /// Its type.
    pub of: Type,
    /// `bytes`, `seconds`, or nothing.
    pub unit: &'static str,
    /// A sentence on it.
    pub help: &'static str,
}

impl Family {
    /// The ending of its samples.
    pub fn ending(&self) -> &'static str {
        match self.of {
            Type::Gauge => "",
            Type::Counter => "_total",
            Type::Info => "_info",
        }
    }
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Bytes, events.
    Whole(u64),
    /// Seconds, in milliseconds at the finest.
    Seconds(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(number) => number.fmt(f),
            Number::Seconds(number) => write!(f, "{number:.3}"),
        }
    }
}

/// Names and values of labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// In their order.
    pub pairs: Vec<(&'static str, String)>,
    /// The same as `a="b",c="d"`, made once because a process has some thirty lines.
    pub text: String,
}

impl Labels {
    /// Labels from pairs.
    pub fn new(pairs: Vec<(&'static str, String)>) -> Labels {
        let text = pairs.iter().map(|(name, value)| label(name, value)).collect::<Vec<_>>().join(",");
        Labels { pairs, text }
    }
}

/// A label, escaped.
pub fn label(name: &str, value: &str) -> String {
    let mut text = format!("{name}=\"");
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

/// Where metrics go.
pub trait Sink {
    /// Begins a metric.
    fn family(&mut self, family: &Family);
    /// A sample of it, with an optional further label.
    fn sample(&mut self, labels: &Labels, more: Option<(&'static str, &str)>, value: Number);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches names of programs that end a label.
    #[test]
    fn labels_are_escaped() {
        let labels = Labels::new(vec![("c", "a\"b\\c\nd".into()), ("e", String::new())]);
        assert_eq!(labels.text, "c=\"a\\\"b\\\\c\\nd\",e=\"\"");
    }
}
