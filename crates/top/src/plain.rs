//! A single table, and JSON.

use crate::args::TopArgs;
use crate::rows::{self, Column, Row};
use crate::sys;
use neap_collect::Collector;
use neap_launch::error::Error;

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
    neap_launch::sys::print(text.as_bytes())
}
