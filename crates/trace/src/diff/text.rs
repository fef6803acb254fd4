//! A comparison for people.

use std::io::{self, Write};

use super::{Change, Diff, Totals};

/// Writes a comparison as text: the first `limit` changed lines of each list.
pub fn text([before, after]: [(&str, &Totals); 2], diff: &Diff, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    for (label, (name, totals)) in [("before", before), ("after", after)] {
        let command = if totals.command.is_empty() { String::new() } else { format!(": {}", totals.command.join(" ")) };
        writeln!(out, "{label:>9}  {}", clean(&format!("{name}{command}")))?;
    }
    writeln!(out, "\n{:>9} {:>9} {:>10}", "BEFORE", "AFTER", "DIFFERENCE")?;
    line(&diff.faults, out)?;
    list("kinds", &diff.kinds, limit, out)?;
    list("functions", &diff.functions, limit, out)?;
    list("mappings", &diff.mappings, limit, out)?;
    list("pages of files", &diff.pages, limit, out)
}

fn list(title: &str, changes: &[Change], limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let changed = changes.iter().filter(|change| change.difference() != 0).count();
    match changes.len() - changed {
        0 => writeln!(out, "\n{title}")?,
        same => writeln!(out, "\n{title} ({same} did not change)")?,
    }
    // Changed lines come first.
    changes.iter().take(changed.min(limit)).try_for_each(|change| line(change, out))?;
    if changed > limit {
        writeln!(out, "{:>30}  and {} more", "", changed - limit)?;
    }
    Ok(())
}

fn line(change: &Change, out: &mut dyn Write) -> io::Result<()> {
    let difference = match change.difference() {
        0 => "0".to_owned(),
        other => format!("{other:+}"),
    };
    writeln!(out, "{:>9} {:>9} {difference:>10}  {}", change.before, change.after, clean(&change.name))
}

/// Names come from untrusted files: replaces characters that would move the cursor.
fn clean(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Counts;

    /// Catches columns that shift, limits that hide lines without a note, and control characters.
    #[test]
    fn the_whole_text() {
        let counts = |rows: &[(&str, u64)]| -> Counts { rows.iter().map(|&(name, n)| (name.to_owned(), n)).collect() };
        let before = Totals {
            command: vec!["ls".into(), "-l".into()],
            faults: 12,
            kinds: counts(&[("anon", 5), ("cow", 7)]),
            functions: counts(&[("main (ls)", 12)]),
            mappings: counts(&[("ls", 12)]),
            pages: counts(&[("ls+0x1000", 12)]),
        };
        let after = Totals {
            faults: 9,
            kinds: counts(&[("anon", 2), ("cow", 7)]),
            functions: counts(&[("ma\x1bin (ls)", 4), ("f (ls)", 5)]),
            ..Totals::default()
        };
        let diff = Diff::new(&before, &after);
        let mut out = Vec::new();
        text([("a.json", &before), ("b.csv", &after)], &diff, 2, &mut out).expect("memory takes everything");
        let wanted = "   before  a.json: ls -l
    after  b.csv

   BEFORE     AFTER DIFFERENCE
       12         9         -3  faults

kinds (1 did not change)
        5         2         -3  anon

functions
       12         0        -12  main (ls)
        0         5         +5  f (ls)
                                and 1 more

mappings
       12         0        -12  ls

pages of files
       12         0        -12  ls+0x1000
";
        assert_eq!(String::from_utf8(out).expect("UTF-8"), wanted);
    }
}
