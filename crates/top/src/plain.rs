//! A single table, and JSON.

use crate::args::TopArgs;
use crate::rows::{self, Column, Row};
use crate::sys;
use neap_collect::Collector;
use neap_launch::error::{Error, tell};
use std::time::Duration;

/// The width without a terminal: lines are cut for terminals only.
const WIDTH: usize = 4096;

/// Prints all processes once.
pub fn print(args: &TopArgs, collector: &Collector) -> Result<u8, Error> {
    let mut rows: Vec<Row> = collector.processes().map(Row::of).collect();
    rows::sort(&mut rows, args.sort, false);
    if args.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|error| Error::failed(error.to_string()))?;
        return neap_launch::sys::print((text + "\n").as_bytes());
    }
    let width = sys::size().map_or(WIDTH, |(width, _)| width.into());
    let mut text = rows::line(|column: Column| column.head().0.to_owned(), width) + "\n";
    for row in &rows {
        text.push_str(&rows::line(|column| row.text(column), width));
        text.push('\n');
    }
    let result = neap_launch::sys::print(text.as_bytes())?;
    if let Some(line) = unread(&rows, args.wait) {
        tell(format_args!("{line}"));
    }
    Ok(result)
}

/// Says for how many processes the figures of accounts are missing, and why; none if they are there for all.
fn unread(rows: &[Row], wait: Duration) -> Option<String> {
    let without: Vec<&Row> = rows.iter().filter(|row| row.verdict.is_none()).collect();
    let denied = without.iter().filter(|row| row.denied).count();
    let failed = without.iter().filter(|row| row.failed && !row.denied).count();
    let wait = wait.as_secs_f64();
    let reasons = [
        (without.len() - denied - failed, format!("not reached within {wait} s; --wait TIME sets another time")),
        (denied, "this user may not read them".to_owned()),
        (failed, "they ended or could not be read".to_owned()),
    ];
    let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
    let reasons: Vec<String> = reasons.map(|(count, why)| format!("{count} without ({why})")).collect();
    let read = rows.len() - without.len();
    (!reasons.is_empty()).then(|| {
        format!("neap: {read} of {} processes have an account (BACK, FRAG, KEPT): {}", rows.len(), reasons.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a table in which most figures are missing, without a word.
    #[test]
    fn what_is_missing_is_said() {
        let row = |verdict: Option<&str>, denied| Row { verdict: verdict.map(str::to_owned), denied, ..Row::default() };
        let read = row(Some("live"), false);
        let wait = Duration::from_millis(1500);
        assert_eq!(unread(&[read.clone(), read.clone()], wait), None);
        let line = unread(&[read, row(None, false), row(None, false), row(None, true)], wait).expect("a line");
        assert!(line.contains("1 of 4 processes have an account (BACK, FRAG, KEPT): 2 without (not reached"), "{line}");
        assert!(
            line.contains("within 1.5 s;") && line.ends_with(", 1 without (this user may not read them)"),
            "{line}"
        );
    }
}
