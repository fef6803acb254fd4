//! The text formats: OpenMetrics 1.0, and Prometheus' own 0.0.4, which node_exporter and older servers read.
//!
//! ```text
//! # HELP neap_process_page_faults Page faults.                 # HELP neap_process_page_faults_total Page faults.
//! # TYPE neap_process_page_faults counter                      # TYPE neap_process_page_faults_total counter
//! neap_process_page_faults_total{pid="1"} 7                    neap_process_page_faults_total{pid="1"} 7
//! # EOF
//! ```

use crate::family::{Family, Labels, Number, Sink, Type, label};
use std::fmt::Write;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

impl Format {
    /// The format that a client requests.
    pub fn accepted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// Its content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes a page.
#[derive(Debug)]
pub struct Page {
    text: String,
    format: Format,
    /// The metric whose samples follow.
    family: Option<Family>,
}

impl Page {
    /// An empty page.
    pub fn new(format: Format) -> Self {
        Page { text: String::with_capacity(64 << 10), format, family: None }
    }

    /// The text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

impl Sink for Page {
    fn family(&mut self, family: &Family) {
        self.family = Some(*family);
        let (name, ending) = (family.name, family.ending());
        let (name, word) = match (self.format, family.of) {
            (Format::OpenMetrics, Type::Counter) => (name.to_owned(), "counter"),
            (Format::Prometheus, Type::Counter) => (format!("{name}{ending}"), "counter"),
            _ => (format!("{name}{ending}"), "gauge"),
        };
        let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {word}", family.help);
        if self.format == Format::OpenMetrics && !family.unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {}", family.unit);
        }
    }

    fn sample(&mut self, labels: &Labels, more: Option<(&'static str, &str)>, value: Number) {
        let Some(family) = self.family else { return };
        let (name, ending, text) = (family.name, family.ending(), &labels.text);
        let more = more.map(|(name, value)| label(name, value)).unwrap_or_default();
        let between = if text.is_empty() || more.is_empty() { "" } else { "," };
        let _ = match text.is_empty() && more.is_empty() {
            true => writeln!(self.text, "{name}{ending} {value}"),
            false => writeln!(self.text, "{name}{ending}{{{text}{between}{more}}} {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTER: Family = Family { name: "a_bytes", of: Type::Counter, unit: "bytes", help: "A." };

    /// Catches counters with the wrong name in one of the formats, and a page without its end mark.
    #[test]
    fn both_formats() {
        let page = |format| {
            let mut page = Page::new(format);
            page.family(&COUNTER);
            page.sample(&Labels::new(vec![("x", "1".into())]), None, Number::Whole(7));
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
}
