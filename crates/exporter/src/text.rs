//! The text formats: OpenMetrics 1.0, and Prometheus' own 0.0.4, which node_exporter and older servers read.
//!
//! ```text
//! # HELP neap_process_page_faults Page faults.                 # HELP neap_process_page_faults_total Page faults.
//! # TYPE neap_process_page_faults counter                      # TYPE neap_process_page_faults_total counter
//! neap_process_page_faults_total{pid="1"} 7                    neap_process_page_faults_total{pid="1"} 7
//! # EOF
//! ```

use std::fmt::{Display, Write};

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

impl Format {
    /// The one that a client asks for.
    pub fn accepted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// Its type of content.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A value now.
    Gauge,
    /// What only grows; its samples end in `_total`.
    Counter,
    /// A text in a label; its samples end in `_info`.
    Info,
}

/// A metric. Its name ends in its unit, and has no `_total` or `_info`.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name.
    pub name: &'static str,
    /// What it is.
    pub of: Type,
    /// `bytes`, `seconds`, or nothing.
    pub unit: &'static str,
    /// In a sentence.
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

/// Writes a page.
#[derive(Debug)]
pub struct Page {
    text: String,
    format: Format,
    /// Whose samples follow.
    family: Option<Family>,
}

impl Page {
    /// An empty one.
    pub fn new(format: Format) -> Self {
        Page { text: String::with_capacity(64 << 10), format, family: None }
    }

    /// Begins a metric; its lines come with its first sample.
    pub fn family(&mut self, family: &Family) {
        self.family = Some(*family);
        let (name, ending) = (family.name, family.ending());
        let (name, word) = match (self.format, family.of) {
            (Format::OpenMetrics, Type::Info) => (name.to_owned(), "info"),
            (Format::OpenMetrics, Type::Counter) => (name.to_owned(), "counter"),
            (Format::Prometheus, Type::Counter) => (format!("{name}{ending}"), "counter"),
            _ => (format!("{name}{ending}"), "gauge"),
        };
        let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {word}", family.help);
        if self.format == Format::OpenMetrics && !family.unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {}", family.unit);
        }
    }

    /// A sample of the metric. `labels` is `a="b",c="d"`, escaped.
    pub fn sample(&mut self, labels: &str, value: impl Display) {
        let Some(family) = self.family else { return };
        let (name, ending) = (family.name, family.ending());
        let _ = match labels.is_empty() {
            true => writeln!(self.text, "{name}{ending} {value}"),
            false => writeln!(self.text, "{name}{ending}{{{labels}}} {value}"),
        };
    }

    /// The text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
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

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTER: Family = Family { name: "a_bytes", of: Type::Counter, unit: "bytes", help: "A." };

    /// Catches counters with the wrong name in one of the formats, and a page that has no end.
    #[test]
    fn both_formats() {
        let page = |format| {
            let mut page = Page::new(format);
            page.family(&COUNTER);
            page.sample("x=\"1\"", 7);
            page.finish()
        };
        assert_eq!(
            page(Format::OpenMetrics),
            "# HELP a_bytes A.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"1\"} 7\n# EOF\n"
        );
        assert_eq!(
            page(Format::Prometheus),
            "# HELP a_bytes_total A.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"1\"} 7\n"
        );
        assert_eq!(Format::accepted("application/openmetrics-text;version=1.0.0,*/*;q=0.1"), Format::OpenMetrics);
        assert_eq!(Format::accepted("text/plain"), Format::Prometheus);
    }

    /// Catches names of programs that end a label.
    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("c", "a\"b\\c\nd"), "c=\"a\\\"b\\\\c\\nd\"");
    }
}
