//! What the kinds of charts share: their width, and the text of a value.

use neap_results::Value;
pub use neap_results::judge::value_text as cell_text;
use neap_results::judge::{number, quantity};

/// How wide a chart is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 900 pixels: as wide as the sheet.
    Wide,
    /// Two side by side are as wide as the sheet.
    Half,
}

impl Size {
    /// Pixels.
    pub fn width(self) -> f64 {
        match self {
            Size::Wide => 900.0,
            Size::Half => 440.0,
        }
    }
}

/// A value without its range, or in short why there is none: the page has a program's last words under the chart.
pub fn short_cell_text(cell: &Value, unit: &str) -> String {
    match cell {
        Value::Is(spread) if unit == "ratio" => number(spread.median),
        Value::Is(spread) => quantity(spread.median, unit),
        Value::Failed(status) => {
            let short = status.split(" (").next().unwrap_or_default();
            cell_text(&Value::Failed(short.to_owned()), unit)
        }
        Value::Skipped(_) => "skipped".into(),
        Value::Absent => cell_text(cell, unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a program's last words that run out of the picture, and a failure without its kind.
    #[test]
    fn failures_are_short() {
        let text = |value: Value| short_cell_text(&value, "ms");
        assert_eq!(text(Value::Failed("exit:3 (mmap: Cannot allocate memory)".into())), "failed: exit status 3");
        assert_eq!(text(Value::Failed("signal:11".into())), "failed: crashed (signal 11)");
        assert_eq!(text(Value::Skipped("skipped: no pages in the pool".into())), "skipped");
    }
}
