//! A summary for a terminal: the functions and mappings with the most faults, or, where times are known, the most time.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::text::file_name;
use crate::{Fault, Source, Tables};

/// Width of the columns in front of the names.
const NUMBERS: usize = 22;
/// Minimum width of a name, however narrow the terminal is.
const LEAST: usize = 20;

/// Faults, and the nanoseconds that they took.
type Sums = HashMap<String, (u64, u64)>;

/// Writes the first `limit` functions, mappings and allocation sites, in lines of `width` columns.
pub fn top(source: &dyn Source, limit: usize, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let tables = source.tables();
    let (mut functions, mut mappings, mut sites) = (Sums::new(), Sums::new(), Sums::new());
    let mut timed = false;
    source.visit(&mut |fault| {
        timed |= fault.service.is_some();
        add(&mut functions, function(tables, fault), fault);
        let mapping = fault.mapping.map(|id| tables.mappings[id].describe(tables));
        add(&mut mappings, mapping.unwrap_or_else(|| "[unknown]".to_owned()), fault);
        if let Some(site) = fault.block.and_then(|block| tables.describe_site(block)) {
            add(&mut sites, site, fault);
        }
        Ok(())
    })?;
    for (title, sums) in [("FUNCTION", functions), ("MAPPING", mappings), ("ALLOCATED BY", sites)] {
        if !sums.is_empty() {
            list(title, sums, timed, limit, width, out)?;
        }
    }
    Ok(())
}

fn add(sums: &mut Sums, name: String, fault: &Fault) {
    let sum = sums.entry(name).or_default();
    sum.0 += 1;
    sum.1 += u64::from(fault.service.unwrap_or(0));
}

/// The function of an instruction, with its object's file name.
fn function(tables: &Tables, fault: &Fault) -> String {
    let name = super::function(tables, fault.ip, fault.code);
    let place = fault.code.map(|id| &tables.places[id]);
    match place.filter(|place| place.symbol.is_some()).and_then(|place| place.object) {
        Some(object) => format!("{name} ({})", file_name(&tables.objects[object].path)),
        None => name,
    }
}

fn list(title: &str, sums: Sums, timed: bool, limit: usize, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut rows: Vec<(String, (u64, u64))> = sums.into_iter().collect();
    let key = |&(faults, time): &(u64, u64)| if timed { (time, faults) } else { (faults, 0) };
    rows.sort_by(|a, b| key(&b.1).cmp(&key(&a.1)).then_with(|| a.0.cmp(&b.0)));
    let time = |text: &str| if timed { format!("{text:>10}  ") } else { " ".to_owned() };
    writeln!(out, "\n{:>9} {}{title}", "FAULTS", time("TIME"))?;
    for (name, (faults, took)) in rows.iter().take(limit) {
        let name = shortened(name, width.saturating_sub(NUMBERS).max(LEAST));
        writeln!(out, "{faults:>9} {}{name}", time(&duration(*took)))?;
    }
    match rows.len().saturating_sub(limit) {
        0 => Ok(()),
        more => writeln!(out, "{:>9} {}and {more} more", "", time("")),
    }
}

/// Three digits, in the unit that fits.
fn duration(ns: u64) -> String {
    let (unit, value) = match ns {
        0..1_000_000 => ("us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => ("ms", ns as f64 / 1e6),
        _ => ("s", ns as f64 / 1e9),
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

/// Shortens the text to this width by leaving out the middle. Names come from untrusted files, so characters that would
/// move the cursor are replaced.
pub(super) fn shortened(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    if letters.len() <= width {
        return letters.into_iter().collect();
    }
    // The end of a path or a function says more than its beginning.
    let begin = (width - 1) / 3;
    let end = letters.len() - (width - 1 - begin);
    letters[..begin].iter().chain(&['…']).chain(&letters[end..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Process, Recorded, Thread};

    /// Catches a wrong order, lines that are wider than the terminal, and names that move the cursor.
    #[test]
    fn lists_fit_the_terminal() {
        let mut trace = Recorded::default();
        let row = Process { pid: 1, image: 0, parent: None, name: String::new(), path: None, start: 0, end: None };
        let process = trace.tables.processes.push(row);
        let row = Thread { tid: 1, process, name: String::new(), start: 0, end: None };
        let thread = trace.tables.threads.push(row);
        // 0x1000 faults once and long, 0x2000 twice and briefly.
        for (ip, service) in [(0x2000, 100), (0x1000, 5_000_000), (0x2000, 100)] {
            let number = trace.faults.len() as u64 + 1;
            trace.faults.push(Fault { service: Some(service), ..Fault::new(number, thread, 0, ip) });
        }
        let text = |trace: &Recorded, limit| {
            let mut out = Vec::new();
            top(trace, limit, 40, &mut out).expect("memory takes everything");
            String::from_utf8(out).expect("UTF-8")
        };
        let whole = text(&trace, 10);
        assert!(whole.contains("        1    5.00 ms  0x1000\n        2    0.20 us  0x2000\n"), "{whole}");
        assert!(whole.contains("        3    5.00 ms  [unknown]\n"), "{whole}");
        assert!(text(&trace, 1).contains("and 1 more"));
        for fault in &mut trace.faults {
            fault.service = None;
        }
        let counted = text(&trace, 10);
        assert!(counted.starts_with("\n   FAULTS  FUNCTION\n        2  0x2000\n        1  0x1000\n"), "{counted}");
        let long = "/a/very/long/path/with\x1b/many/folders/libsomething.so.6";
        assert_eq!(shortened(long, 24), "/a/very…ibsomething.so.6");
        assert_eq!(shortened("a\x1bb", 24), "a?b");
    }
}
