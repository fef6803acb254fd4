//! From processes to rows: figures, order, filter.

use clap::ValueEnum;
use neap_account::units::{columns, front, is_hidden};
use neap_collect::Process;
use serde::Serialize;
use std::cmp::Ordering;

/// A column, by which rows can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// Number of the process.
    Pid,
    /// Resident.
    Rss,
    /// Resident, with shared memory divided (PSS).
    Pss,
    /// What could be given back.
    Back,
    /// Live blocks.
    Live,
    /// Free blocks that the allocator keeps.
    Kept,
    /// Free bytes on OS pages that live blocks keep.
    Frag,
    /// Transparent huge pages.
    Huge,
    /// Swapped out.
    Swap,
    /// The malloc.
    Allocator,
    /// The container.
    Container,
    /// The program.
    Command,
}

impl Column {
    /// All, from left to right.
    pub const ALL: [Column; 12] = [
        Column::Pid,
        Column::Rss,
        Column::Pss,
        Column::Back,
        Column::Live,
        Column::Kept,
        Column::Frag,
        Column::Huge,
        Column::Swap,
        Column::Allocator,
        Column::Container,
        Column::Command,
    ];

    /// Its heading and width; the last column takes the rest.
    pub const fn head(self) -> (&'static str, usize) {
        match self {
            Column::Pid => ("PID", 7),
            Column::Rss => ("RSS", 5),
            Column::Pss => ("PSS", 5),
            Column::Back => ("BACK", 5),
            Column::Live => ("LIVE", 5),
            Column::Kept => ("KEPT", 5),
            Column::Frag => ("FRAG", 5),
            Column::Huge => ("HUGE", 5),
            Column::Swap => ("SWAP", 5),
            Column::Allocator => ("ALLOC", 8),
            Column::Container => ("CONTAINER", 12),
            Column::Command => ("COMMAND", 0),
        }
    }

    /// The columns that fit a width: the one of containers needs 95.
    pub fn shown(width: usize) -> impl Iterator<Item = Column> {
        Column::ALL.into_iter().filter(move |&column| column != Column::Container || width >= 95)
    }

    /// Whether it is aligned to the right.
    pub fn is_figure(self) -> bool {
        !matches!(self, Column::Allocator | Column::Container | Column::Command)
    }

    /// The column `step` places to the right.
    pub fn beside(self, step: isize) -> Column {
        let at = Column::ALL.iter().position(|&column| column == self).unwrap_or(0);
        let next = (at as isize + step).rem_euclid(Column::ALL.len() as isize);
        Column::ALL[next as usize]
    }
}

/// A process in the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub pid: u32,
    pub command: String,
    pub container: String,
    pub allocator: String,
    pub rss_bytes: u64,
    pub pss_bytes: Option<u64>,
    /// What could be given back.
    pub reclaimable_bytes: Option<u64>,
    pub live_bytes: Option<u64>,
    pub kept_bytes: Option<u64>,
    pub fragmentation_bytes: Option<u64>,
    pub huge_page_bytes: Option<u64>,
    pub swap_bytes: u64,
    pub cause: Option<String>,
    pub verdict: Option<String>,
    /// The kernel denies this user all but the light figures.
    pub denied: bool,
    /// It could not be read: it changed meanwhile, or ended.
    #[serde(skip)]
    pub failed: bool,
}

impl Row {
    /// The row of a process.
    pub fn of(process: &Process) -> Row {
        let rollup = process.rollup.map(|rollup| rollup.value);
        let brief = process.account.as_ref().map(|account| &account.value);
        Row {
            pid: process.pid,
            command: process.command.clone(),
            container: process.container.clone(),
            allocator: process.main_allocator().to_owned(),
            rss_bytes: process.light.rss,
            pss_bytes: rollup.and_then(|rollup| rollup.pss),
            reclaimable_bytes: process.reclaimable(),
            live_bytes: process.live(),
            kept_bytes: process.kept(),
            fragmentation_bytes: process.fragmentation(),
            huge_page_bytes: rollup.map(|rollup| rollup.huge),
            swap_bytes: process.light.swap,
            cause: brief.map(|brief| brief.cause.clone()),
            verdict: brief.map(|brief| brief.verdict.clone()),
            denied: process.denied,
            failed: process.failed.is_some(),
        }
    }

    fn figure(&self, column: Column) -> Option<u64> {
        match column {
            Column::Pid => Some(self.pid.into()),
            Column::Rss => Some(self.rss_bytes),
            Column::Pss => self.pss_bytes,
            Column::Back => self.reclaimable_bytes,
            Column::Live => self.live_bytes,
            Column::Kept => self.kept_bytes,
            Column::Frag => self.fragmentation_bytes,
            Column::Huge => self.huge_page_bytes,
            Column::Swap => Some(self.swap_bytes),
            Column::Allocator | Column::Container | Column::Command => None,
        }
    }

    fn word(&self, column: Column) -> &str {
        match column {
            Column::Allocator => &self.allocator,
            Column::Container => &self.container,
            _ => &self.command,
        }
    }

    /// The text in a column, without hidden characters of a program's name.
    pub fn text(&self, column: Column) -> String {
        match (column, self.figure(column)) {
            (Column::Pid, _) => self.pid.to_string(),
            _ if !column.is_figure() && self.word(column).is_empty() => "-".to_owned(),
            _ if !column.is_figure() => self.word(column).replace(is_hidden, "?"),
            (_, Some(bytes)) => short(bytes),
            (_, None) => "-".to_owned(),
        }
    }
}

/// `0`, `12K`, `1.5M`, `999M`: five characters at most.
pub fn short(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 999.5 && unit < 5 {
        value /= 1024.0;
        unit += 1;
    }
    let letter = ['K', 'M', 'G', 'T', 'P', 'E'][unit];
    if value < 9.95 { format!("{value:.1}{letter}") } else { format!("{value:.0}{letter}") }
}

/// Sorts rows: figures from large to small, unknown ones last, pids and words ascending; equal ones by RSS.
pub fn sort(rows: &mut [Row], column: Column, turned: bool) {
    rows.sort_by(|a, b| {
        let order = match column {
            Column::Pid => a.pid.cmp(&b.pid),
            _ if column.is_figure() => b.figure(column).cmp(&a.figure(column)),
            _ => a.word(column).cmp(b.word(column)),
        };
        let order = if turned { order.reverse() } else { order };
        match order {
            Ordering::Equal => b.rss_bytes.cmp(&a.rss_bytes).then(a.pid.cmp(&b.pid)),
            order => order,
        }
    });
}

/// Whether a row matches the filter.
pub fn has(row: &Row, words: &str) -> bool {
    let words = words.to_lowercase();
    let of = [&row.command, &row.container, &row.allocator].map(|text| text.to_lowercase());
    words.is_empty() || of.iter().any(|text| text.contains(&words)) || row.pid.to_string() == words
}

/// A row as a line that fits a width.
pub fn line(texts: impl Fn(Column) -> String, width: usize) -> String {
    let mut line = String::new();
    for column in Column::shown(width) {
        let (text, room) = (texts(column), column.head().1);
        match column {
            Column::Command => line.push_str(&text),
            _ if column.is_figure() => line.push_str(&format!("{text:>room$} ")),
            _ => {
                let text = &text[..front(&text, room)];
                line.push_str(&format!("{text}{} ", " ".repeat(room - columns(text))));
            }
        }
    }
    line.truncate(front(&line, width));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a name whose symbols are wider as emojis, which once ended neap and would shift other columns.
    #[test]
    fn names_keep_their_columns() {
        let container = "\u{2764}\u{fe0f}".repeat(40);
        let row = Row { container, ..Row::default() };
        let line = line(|column| row.text(column), 120);
        assert!(columns(&line) <= 120 && line.contains('\u{2764}'), "{line}");
    }

    /// Catches figures that do not fit their column.
    #[test]
    fn figures_are_short() {
        assert_eq!((short(0), short(1023), short(1024)), ("0".into(), "1023".into(), "1.0K".into()));
        assert_eq!((short(10 << 20), short((1 << 20) - 1)), ("10M".into(), "1.0M".into()));
        for shift in 0..64 {
            for bytes in [1u64 << shift, (1u64 << shift) - 1, (1u64 << shift) / 10 * 9] {
                assert!(short(bytes).len() <= 5, "{bytes}: {}", short(bytes));
            }
        }
    }

    /// Catches unknown figures before known ones, and lines that are wider than the screen.
    #[test]
    fn rows_are_sorted_and_fit() {
        let row = |pid, back, rss| Row {
            pid,
            reclaimable_bytes: back,
            rss_bytes: rss,
            command: "x".repeat(99),
            ..Row::default()
        };
        let mut rows = [row(1, None, 9), row(2, Some(1), 1), row(3, Some(7), 1), row(4, None, 10)];
        let order = |rows: &[Row]| rows.iter().map(|row| row.pid).collect::<Vec<_>>();
        sort(&mut rows, Column::Back, false);
        assert_eq!(order(&rows), [3, 2, 4, 1]);
        sort(&mut rows, Column::Pid, true);
        assert_eq!(order(&rows), [4, 3, 2, 1]);
        for width in [10, 80, 120] {
            assert_eq!(line(|column| rows[0].text(column), width).chars().count(), width);
        }
        assert!(!Column::shown(80).any(|column| column == Column::Container));
        assert_eq!(Column::Pid.beside(-1), Column::Command);
    }

    /// Catches a name that moves the cursor, and filters that depend on case.
    #[test]
    fn names_and_filters() {
        let row = Row { pid: 47, command: "a\u{1b}[2J".into(), allocator: "glibc".into(), ..Row::default() };
        assert_eq!(row.text(Column::Command), "a?[2J");
        assert!(has(&row, "GLIB") && has(&row, "47") && has(&row, "") && !has(&row, "neap"));
    }
}
