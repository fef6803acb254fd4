//! A table once, and JSON.

use crate::args::TopArgs;
use crate::rows::{self, Column, Row};
use neap_collect::Collector;
use neap_launch::error::Error;
use neap_launch::sys;

/// Wide enough for whatever reads it: lines are not cut.
const WIDTH: usize = 4096;

/// Prints all processes once.
pub fn print(args: &TopArgs, collector: &Collector) -> Result<u8, Error> {
    let mut rows: Vec<Row> = collector.processes().map(Row::of).collect();
    rows::sort(&mut rows, args.sort, false);
    if args.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|error| Error::failed(error.to_string()))?;
        return sys::print((text + "\n").as_bytes());
    }
    let mut text = rows::line(|column: Column| column.head().0.to_owned(), WIDTH) + "\n";
    for row in &rows {
        text.push_str(&rows::line(|column| row.text(column), WIDTH));
        text.push('\n');
    }
    sys::print(text.as_bytes())
}
