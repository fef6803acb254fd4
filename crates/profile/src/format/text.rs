//! The profile on a terminal: the meaning of the values, the operations (in profiles of time), and the top call sites.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::Options;
use crate::amount::{amount, change, share};
use crate::diff::Diff;
use crate::sites::{Row, sites};
use crate::time::operation;
use crate::{Profile, Unit, View, types};

/// Limit on the callers in a line.
const CALLERS: usize = 3;
/// Limit on the characters of a function's name.
const NAME: usize = 60;

/// Writes a profile as text.
pub fn text(profile: &Profile, options: Options, out: &mut dyn Write) -> io::Result<()> {
    plain(out, |out| whole(profile, options, out))
}

/// Writes without the control characters that names and notes of a file may contain: they would reach the terminal.
fn plain(out: &mut dyn Write, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
    let mut bytes = Vec::new();
    write(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    out.write_all(text.replace(|letter: char| letter.is_control() && letter != '\n', "?").as_bytes())
}

fn whole(profile: &Profile, options: Options, out: &mut dyn Write) -> io::Result<()> {
    let column = options.column;
    let of = &profile.types[column];
    writeln!(out, "{}", profile.title())?;
    writeln!(out, "{}", headline(profile, column))?;
    if profile.samples.iter().any(|sample| operation(sample).is_some()) {
        operations(profile, column, out)?;
    }
    let rows = sites(profile, column);
    let rows: Vec<&Row> = rows.iter().filter(|row| row.values[column] != 0).collect();
    let table = Table::new(profile, column, &rows);
    let total = profile.total(column);
    writeln!(out)?;
    table.write(profile, &rows[..rows.len().min(options.limit)], out)?;
    if rows.len() > options.limit {
        let rest = rows[options.limit..].iter().fold(0i64, |sum, row| sum.saturating_add(row.values[column]));
        let others = rows.len() - options.limit;
        writeln!(out, "{} more sites: {} ({})", others, amount(rest, &of.unit), share(rest, total))?;
    }
    notes(profile, out)
}

fn notes(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    if !profile.notes.is_empty() {
        writeln!(out)?;
    }
    profile.notes.iter().try_for_each(|note| writeln!(out, "# {}", note.replace('\n', " ")))
}

/// `live: 8.2 MiB in 1,234 blocks (inuse_space)`
fn headline(profile: &Profile, column: usize) -> String {
    let of = &profile.types[column];
    let total = profile.total(column);
    let view = View::ALL.into_iter().find(|view| view.main() == *of);
    let label: &str = match view {
        Some(view) => view.label(),
        None => &of.name,
    };
    let mut text = format!("{label}: {}", amount(total, &of.unit));
    let count = view.and_then(View::count).and_then(|count| profile.column(&count.name));
    if let Some(count) = count {
        let what = if view == Some(View::Time) { "samples" } else { "blocks" };
        text.push_str(&format!(" in {} {what}", amount(profile.total(count), &Unit::Count)));
    }
    if let Some(whole) = profile.whole.filter(|_| column == profile.shown) {
        text.push_str(&format!(", of {} ({})", amount(whole, &of.unit), share(total, whole)));
    }
    if let Some(period) = &profile.period {
        text.push_str(&format!("; one sample each {}", amount(period.value, &period.of.unit)));
    }
    text
}

fn operations(profile: &Profile, column: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    for sample in &profile.samples {
        let name = operation(sample).map_or_else(|| "unknown".to_owned(), |name| name.into_owned());
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(sample.values[column]);
    }
    let total = profile.total(column);
    let mut sums: Vec<(String, i64)> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    writeln!(out)?;
    sums.iter().try_for_each(|(name, sum)| {
        writeln!(out, "{:>10}  {:>7}  {name}", amount(*sum, &profile.types[column].unit), share(*sum, total))
    })
}

/// The columns of the table.
struct Table {
    column: usize,
    count: Option<usize>,
    /// Live bytes, besides what they pin.
    live: Option<usize>,
    growth: Option<usize>,
    oldest: bool,
    operation: bool,
}

impl Table {
    fn new(profile: &Profile, column: usize, rows: &[&Row]) -> Self {
        let of = &profile.types[column];
        let view = View::ALL.into_iter().find(|view| view.main() == *of);
        let growth = (view == Some(View::Heap)).then(|| profile.column(&types::GROWTH_SPACE.name)).flatten();
        Self {
            column,
            count: view.and_then(View::count).and_then(|count| profile.column(&count.name)),
            live: (view == Some(View::Pinned)).then(|| profile.column(&types::INUSE_SPACE.name)).flatten(),
            growth,
            oldest: view == Some(View::Heap) && rows.iter().any(|row| row.oldest.is_some()),
            operation: rows.iter().any(|row| row.site.operation.is_some()),
        }
    }

    fn write(&self, profile: &Profile, rows: &[&Row], out: &mut dyn Write) -> io::Result<()> {
        let of = &profile.types[self.column];
        let total = profile.total(self.column);
        let name = match of.unit {
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "time",
            _ => of.name.as_ref(),
        };
        let mut line = format!("{name:>10}  {:>7}", "share");
        let add = |line: &mut String, text: &str, width: usize| line.push_str(&format!("  {text:>width$}"));
        if let Some(count) = self.count {
            let name = if profile.types[count] == types::TIME_SAMPLES { "samples" } else { "blocks" };
            add(&mut line, name, 9);
        }
        if self.live.is_some() {
            add(&mut line, "live", 10);
        }
        if self.growth.is_some() {
            add(&mut line, "trend", 11);
        }
        if self.oldest {
            add(&mut line, "oldest", 8);
        }
        writeln!(out, "{line}  call site")?;
        for row in rows {
            let value = row.values[self.column];
            let mut line = format!("{:>10}  {:>7}", amount(value, &of.unit), share(value, total));
            if let Some(count) = self.count {
                add(&mut line, &amount(row.values[count], &Unit::Count), 9);
            }
            if let Some(live) = self.live {
                add(&mut line, &amount(row.values[live], &Unit::Bytes), 10);
            }
            if let Some(growth) = self.growth {
                add(&mut line, &change(row.values[growth], &Unit::Bytes), 11);
            }
            if self.oldest {
                let age = row.oldest.map(|age| amount(age, &Unit::Nanoseconds)).unwrap_or_default();
                add(&mut line, &age, 8);
            }
            writeln!(out, "{line}  {}", self.site(row))?;
        }
        Ok(())
    }

    fn site(&self, row: &Row) -> String {
        let mut text = String::new();
        if let Some(operation) = row.site.operation.as_ref().filter(|_| self.operation) {
            text.push_str(&format!("{operation}: "));
        }
        text.push_str(&shortened(&row.site.describe()));
        for caller in row.callers.iter().take(CALLERS) {
            text.push_str(&format!(" ← {}", shortened(caller)));
        }
        if row.callers.len() > CALLERS {
            text.push_str(" ← …");
        }
        text
    }
}

/// A name on one line, cut to the limit.
fn shortened(name: &str) -> String {
    let name = name.replace('\n', "?");
    if name.chars().count() <= NAME {
        return name;
    }
    let (begin, end) = (NAME / 2, NAME / 2 - 1);
    let letters: Vec<char> = name.chars().collect();
    let tail: String = letters[letters.len() - end..].iter().collect();
    letters[..begin].iter().collect::<String>() + "…" + &tail
}

/// Writes a comparison as text: what grew, and what shrank.
pub fn diff_text(diff: &Diff, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    plain(out, |out| whole_diff(diff, limit, out))
}

fn whole_diff(diff: &Diff, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let unit = &diff.unit;
    let growth = diff.after.saturating_sub(diff.before);
    writeln!(
        out,
        "{}: {} before, {} after: {}",
        diff.value,
        amount(diff.before, unit),
        amount(diff.after, unit),
        change(growth, unit)
    )?;
    writeln!(out, "\n{:>11}  {:>10}  {:>10}  call site", "change", "before", "after")?;
    let changed: Vec<_> = diff.sites.iter().filter(|change| change.growth() != 0).collect();
    let grew = changed.iter().filter(|change| change.growth() > 0).count();
    // Up to half of the lines show what shrank.
    let shrank = changed.len() - grew;
    let up = grew.min(limit.max(1) - shrank.min(limit / 2));
    let down = shrank.min(limit - up);
    let shown = changed[..up].iter().chain(&changed[changed.len() - down..]);
    for row in shown {
        writeln!(
            out,
            "{:>11}  {:>10}  {:>10}  {}",
            change(row.growth(), unit),
            amount(row.before, unit),
            amount(row.after, unit),
            shortened(&row.describe())
        )?;
    }
    let rest = changed.len() - up - down;
    if rest > 0 {
        writeln!(out, "{rest} more sites changed")?;
    }
    let same = diff.sites.len() - changed.len();
    writeln!(out, "{same} sites did not change")
}
