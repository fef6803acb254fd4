//! The report as text: one line of totals, a table of mappings, and what is unknown.

use std::collections::BTreeSet;

use neap_hugetlb::size;
use neap_launch::fit::shortened;
use neap_launch::units::{bytes, counted, seconds};

use super::report::{Amounts, Entry, Report};

/// Where the name of a mapping begins if it has a line of its own, below its amounts.
const INDENT: usize = 4;
/// Minimum columns for a name.
const LEAST: usize = 20;
/// Mappings with fewer bytes are left out, unless all are requested.
const SMALL: u64 = 1 << 20;

/// The whole text, in lines of `width` columns; `all`: with small mappings.
pub fn text(report: &Report, all: bool, width: usize) -> String {
    let mut text = format!("{}\n", totals(report));
    let shown: Vec<_> = report.mappings.iter().filter(|entry| all || entry.amounts.resident >= SMALL).collect();
    if !shown.is_empty() {
        let sizes: BTreeSet<u64> = shown.iter().flat_map(|entry| entry.amounts.by_page.keys().copied()).collect();
        text.push_str(&table(&shown, &sizes, width));
    }
    let left: Vec<u64> = report.mappings.iter().map(|entry| entry.amounts.resident).skip(shown.len()).collect();
    if !left.is_empty() {
        let (number, sum) = (left.len() as u64, left.iter().sum());
        text.push_str(&format!(
            "and {} with {}: --all shows them\n",
            counted(number, "smaller mapping", "smaller mappings"),
            bytes(sum)
        ));
    }
    if report.cost.read_bytes > 0 {
        let time = seconds(std::time::Duration::try_from_secs_f64(report.cost.read_seconds).unwrap_or_default());
        text.push_str(&format!("{} of huge pages were read for zeros in {time}\n", bytes(report.cost.read_bytes)));
    }
    for why in &report.missing {
        text.push_str(&format!("not known: {why}\n"));
    }
    text
}

/// A line for each mapping: columns are as wide as what they have, and long names are shortened. Where even those have no
/// room beside the columns, they are below them.
fn table(shown: &[&Entry], sizes: &BTreeSet<u64>, width: usize) -> String {
    let titles = sizes.iter().map(|size| size::text(*size));
    let titles = ["resident".to_owned()].into_iter().chain(titles);
    let titles = titles.chain(["zero".to_owned(), "could be huge".to_owned()]).collect();
    let row = |entry: &&Entry| {
        let name = if entry.name.is_empty() { "[anon]" } else { &entry.name };
        let place = format!("{}-{} {} ", entry.start, entry.end, entry.permissions);
        (cells(&entry.amounts, sizes), place, name.to_owned())
    };
    let titles = (titles, "mapping".to_owned(), String::new());
    let rows: Vec<_> = std::iter::once(titles).chain(shown.iter().map(row)).collect();
    let widest = |at: usize| rows.iter().map(|(cells, ..)| cells[at].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..sizes.len() + 3).map(widest).collect();
    let beside: usize = widths.iter().map(|width| width + 2).sum();
    let needed = |(_, place, name): &(Vec<String>, String, String)| place.len() + name.chars().count().min(LEAST);
    let below = beside + rows.iter().map(needed).max().unwrap_or(0) > width;
    let indent = if below { INDENT } else { beside };
    let mut text = String::new();
    for (cells, place, name) in rows {
        let cells: Vec<_> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let end = if below { format!("\n{:INDENT$}", "") } else { "  ".to_owned() };
        let room = width.saturating_sub(indent + place.len()).max(LEAST);
        text.push_str(&format!("{}{end}{place}{}\n", cells.join("  "), shortened(&name, room)));
    }
    text
}

fn cells(amounts: &Amounts, sizes: &BTreeSet<u64>) -> Vec<String> {
    let amount = |bytes_of: u64| if bytes_of == 0 { "-".to_owned() } else { bytes(bytes_of) };
    let mut cells = vec![amount(amounts.resident)];
    cells.extend(sizes.iter().map(|size| amount(amounts.by_page.get(size).copied().unwrap_or(0))));
    // Where nothing was read, zeros are unknown.
    cells.push(if amounts.read == 0 { "-".to_owned() } else { bytes(amounts.zero) });
    cells.push(amount(amounts.could_be_huge));
    cells
}

/// `process 7 (server): 300.0 MiB resident: 44.0 MiB in pages of 4 KiB, 256.0 MiB in pages of 2 MiB; ...`.
fn totals(report: &Report) -> String {
    let total = &report.total;
    let parts = total.by_page.iter().map(|(size, held)| format!("{} in pages of {}", bytes(*held), size::text(*size)));
    let mut line = format!(
        "process {} ({}): {} resident: {}",
        report.pid,
        report.name,
        bytes(total.resident),
        parts.collect::<Vec<_>>().join(", ")
    );
    if total.parts > 0 {
        line.push_str(&format!("; {} are parts of huge pages that are not mapped whole", bytes(total.parts)));
    }
    if total.read > 0 {
        line.push_str(&format!("; waste: {} of huge pages are zero", bytes(total.zero)));
    }
    if total.could_be_huge > 0 {
        let more = match total.to_add {
            0 => "without more memory".to_owned(),
            more => format!("with {} more memory", bytes(more)),
        };
        line.push_str(&format!("; {} could be in huge pages, {more}", bytes(total.could_be_huge)));
    }
    line
}
