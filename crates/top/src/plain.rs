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
    unread(&rows, args.wait).into_iter().for_each(tell);
    Ok(result)
}

/// Says for how many processes the figures of accounts are missing, and why, a line for each cause; nothing if they are
/// there for all.
fn unread(rows: &[Row], wait: Duration) -> Vec<String> {
    let without: Vec<&Row> = rows.iter().filter(|row| row.verdict.is_none()).collect();
    if without.is_empty() {
        return Vec::new();
    }
    let denied = without.iter().filter(|row| row.denied).count();
    let failed = without.iter().filter(|row| row.failed && !row.denied).count();
    let read = rows.len() - without.len();
    let wait = wait.as_secs_f64();
    let reasons = [
        (without.len() - denied - failed, format!("not reached within {wait} s; --wait TIME sets another time")),
        (denied, "reading them was refused".to_owned()),
        (failed, "they ended or could not be read".to_owned()),
    ];
    let head = format!("neap: {read} of {} processes have an account (BACK, FRAG, KEPT)", rows.len());
    let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
    std::iter::once(head).chain(reasons.map(|(count, why)| format!("neap: {count} have none: {why}"))).collect()
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
        assert_eq!(unread(&[read.clone(), read.clone()], wait), [""; 0]);
        let lines = unread(&[read, row(None, false), row(None, false), row(None, true)], wait);
        let expected = [
            "neap: 1 of 4 processes have an account (BACK, FRAG, KEPT)",
            "neap: 2 have none: not reached within 1.5 s; --wait TIME sets another time",
            "neap: 1 have none: reading them was refused",
        ];
        assert_eq!(lines, expected);
    }
}
