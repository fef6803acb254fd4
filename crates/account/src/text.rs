//! A report as text, in lines of at most 80 columns.

use crate::container::Container;
use crate::model::{Account, Doubt, Kind, Remedy, Report};
use crate::units::{bytes, columns, fit, fit_front, front, percent, plain};

/// Columns of a line.
const COLUMNS: usize = 80;
/// Accounts below this many thousandths of Rss are one line, unless all are shown.
const SMALL: u64 = 5;

/// The style of a report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// With bold text and colour.
    pub colour: bool,
    /// With small accounts.
    pub all: bool,
    /// With what is known to be unsure.
    pub check: bool,
}

/// The report as text.
pub fn text(report: &Report, style: Style) -> String {
    let bold = |text: &str| bold(text, style);
    let mut out = String::new();
    let command = plain(&report.command.join(" "));
    let pid = format!(" ({})", report.pid);
    let moment = report.moment.as_ref().map_or(String::new(), |moment| format!(", {moment}"));
    let room = (COLUMNS - pid.len()).saturating_sub(columns(&moment)).min(56);
    out.push_str(&bold(&(fit_front(&command, room) + &pid)));
    out.push_str(&moment);
    out.push('\n');
    out.push_str(&format!(
        "Rss {}, Pss {}, private {}, swapped {}; {}\n",
        bytes(report.rss_bytes),
        bytes(report.pss_bytes),
        bytes(report.private_bytes),
        bytes(report.swap_bytes),
        if report.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", report.threads) }
    ));
    if let Some((low, high)) = report.rss_range {
        out.push_str(&format!("It changed while it was read: Rss from {} to {}.\n", bytes(low), bytes(high)));
    }
    out.push('\n');
    out.push_str(&bold(&wrapped(&plain(&report.verdict), 0)));
    out.push('\n');
    table(&mut out, &report.accounts, report.rss_bytes, style);
    for apart in &report.apart {
        let line = format!("{:>10}        not in Rss: {}", bytes(apart.bytes), apart.text);
        out.push_str(&format!("{}\n", fit_front(&line, COLUMNS)));
    }
    heaps(&mut out, report);
    remedies(&mut out, &report.remedies, &bold);
    for note in &report.notes {
        out.push_str(&wrapped(&format!("Note: {}", plain(note)), 6));
    }
    if style.check {
        doubts(&mut out, &report.doubts, &bold);
    }
    out
}

/// What is known to be unsure, the largest first.
fn doubts(out: &mut String, doubts: &[Doubt], bold: &dyn Fn(&str) -> String) {
    if doubts.is_empty() {
        out.push_str("\nNothing in this report is known to be unsure.\n");
        return;
    }
    out.push_str(&format!("\n{}\n", bold("Unsure")));
    for doubt in doubts {
        let size = if doubt.bytes == 0 { String::new() } else { bytes(doubt.bytes) };
        out.push_str(&wrapped(&format!("{size:>10}  {}", plain(&doubt.text)), 12));
    }
}

/// The account of a container as text.
pub fn container(of: &Container, style: Style) -> String {
    let bold = |text: &str| bold(text, style);
    let mut out = bold(&wrapped(&format!("cgroup {}", plain(&of.path)), 7));
    let limit = of.limit_bytes.map_or("no limit".to_owned(), |limit| format!("limit {}", bytes(limit)));
    out.push_str(&format!("charged {}, {limit}; {}\n\n", bytes(of.rss_bytes), processes(of.processes.len())));
    out.push_str(&bold(&wrapped(&plain(&of.verdict), 0)));
    out.push('\n');
    table(&mut out, &of.accounts, of.rss_bytes, style);
    if !of.processes.is_empty() {
        out.push_str("\nProcesses (Rss, Pss):\n");
    }
    for process in of.processes.iter().take(if style.all { usize::MAX } else { 10 }) {
        let name = fit_front(&plain(&process.command), 44);
        out.push_str(&format!(
            "{:>10} {:>10}  {} {name}\n",
            bytes(process.rss_bytes),
            bytes(process.pss_bytes),
            process.pid
        ));
    }
    remedies(&mut out, &of.remedies, &bold);
    for note in &of.notes {
        out.push_str(&wrapped(&format!("Note: {}", plain(note)), 6));
    }
    out
}

/// Bold, except the line break.
fn bold(text: &str, style: Style) -> String {
    let end = text.trim_end_matches('\n').len();
    if style.colour { format!("\x1b[1m{}\x1b[0m{}", &text[..end], &text[end..]) } else { text.to_owned() }
}

/// A number of processes in words.
pub(crate) fn processes(count: usize) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// The accounts, one a line: bytes, percent, kind, owner.
fn table(out: &mut String, accounts: &[Account], whole: u64, style: Style) {
    let (mut small, mut count) = (0, 0);
    for account in accounts.iter().filter(|account| account.bytes > 0 || account.swap_bytes > 0) {
        if !style.all && account.bytes < whole / 1000 * SMALL && account.bytes < 16 << 20 && account.kind != Kind::Other
        {
            small += account.bytes;
            count += 1;
            continue;
        }
        let head = format!(
            "{:>10} {:>3} %  {:<19} ",
            bytes(account.bytes),
            percent(account.bytes, whole),
            account.kind.label()
        );
        out.push_str(&head);
        let (owner, room) = (plain(&account.owner), COLUMNS - columns(&head));
        // Paths differ at their ends.
        let owner = if owner.starts_with('/') { fit(&owner, room) } else { fit_front(&owner, room) };
        out.push_str(&format!("{owner}\n"));
        if let Some(note) = &account.note {
            let indent = 18;
            out.push_str(&wrapped(&format!("{}{}", " ".repeat(indent), plain(note)), indent));
        }
    }
    if count > 0 {
        out.push_str(&format!(
            "{:>10} {:>3} %  {count} smaller accounts (--all shows them)\n",
            bytes(small),
            percent(small, whole)
        ));
    }
}

/// The parts of heaps, the largest first.
fn heaps(out: &mut String, report: &Report) {
    const MOST: usize = 6;
    let known: Vec<_> = report.heaps.iter().filter(|of| of.live_blocks + of.free_bytes > 0).collect();
    if known.is_empty() {
        return;
    }
    out.push_str("\nHeaps               resident       live       kept fragmented     blocks\n");
    for of in known.iter().take(MOST) {
        let name = fit(&plain(&format!("{}, {}", of.allocator, of.part)), 28);
        let figures = [of.resident_bytes, of.live_bytes, of.kept_bytes, of.fragmentation_bytes].map(bytes);
        let [resident, live, kept, fragmented] = figures;
        if name.chars().count() > 17 {
            out.push_str(&format!("{name}\n{:<17}", ""));
        } else {
            out.push_str(&format!("{name:<17}"));
        }
        out.push_str(&format!(" {resident:>10} {live:>10} {kept:>10} {fragmented:>10} {:>10}\n", of.live_blocks));
    }
    if known.len() > MOST {
        let rest: u64 = known[MOST..].iter().map(|of| of.resident_bytes).sum();
        let kept: u64 = known[MOST..].iter().map(|of| of.kept_bytes).sum();
        out.push_str(&format!(
            "{} more parts: {} resident, {} of it kept\n",
            known.len() - MOST,
            bytes(rest),
            bytes(kept)
        ));
    }
}

fn remedies(out: &mut String, remedies: &[Remedy], bold: &dyn Fn(&str) -> String) {
    if remedies.is_empty() {
        return;
    }
    out.push_str(&format!("\n{}\n", bold("What would help")));
    for remedy in remedies {
        let gain = gain(remedy);
        out.push_str(&wrapped(&format!("{gain:>10}  {}", plain(&remedy.text)), 12));
        if !remedy.command.is_empty() {
            // Not wrapped, because users copy it.
            out.push_str(&format!("{:12}{}\n", "", plain(&remedy.command)));
        }
    }
}

/// What a remedy gives back, in at most 11 columns.
pub(crate) fn gain(remedy: &Remedy) -> String {
    match remedy.bytes {
        0 => "?".to_owned(),
        most if remedy.least_bytes < most => format!("≤{}", bytes(most)),
        most => bytes(most),
    }
}

/// A text in lines that fit; all after the first are indented. A word that is longer than a line is split.
pub fn wrapped(text: &str, indent: usize) -> String {
    let lead = text.len() - text.trim_start().len();
    let mut out = String::new();
    let mut line = text[..lead].to_owned();
    let (mut width, mut empty) = (lead, true);
    for mut word in text.trim_start().split(' ') {
        loop {
            let blank = usize::from(!empty);
            if width + blank + columns(word) <= COLUMNS {
                line.push_str(&" "[..blank]);
                line.push_str(word);
                width += blank + columns(word);
                empty = false;
                break;
            }
            if empty {
                let part = front(word, COLUMNS.saturating_sub(width).max(2));
                line.push_str(&word[..part]);
                word = &word[part..];
            }
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            (width, empty) = (indent, true);
        }
    }
    out.push_str(line.trim_end());
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mapping;
    use crate::{Seen, report};

    /// Catches lines that a terminal of 80 columns wraps, and names that change the terminal's state.
    #[test]
    fn lines_fit() {
        let long = format!("/opt/{}/lib\u{1b}[31m.so", "a-long-folder/データ".repeat(20));
        let mut mappings = vec![mapping(0x1000, 80 << 20, &long), mapping(0x1000_0000, 7 << 20, "[heap]")];
        mappings.push(mapping(0x3000_0000, 9 << 20, &format!("[anon:{}]", "name ".repeat(40))));
        let mut of = Seen { pid: 4_194_303, mappings, command: vec![long.clone(), "x".repeat(200)], ..Seen::default() };
        of.total.rss = 96 << 20;
        of.page_tables = 1 << 20;
        let report = Report { moment: Some("at its peak, after 86400.25 s".into()), ..report(&of) };
        let text = text(&report, Style { colour: false, all: true, check: true });
        // Commands are not wrapped.
        for line in text.lines().filter(|line| !line.contains("neap profile")) {
            assert!(columns(line) <= COLUMNS, "{}: {line}", columns(line));
        }
        assert!(!text.contains('\u{1b}') && text.contains("83 %"), "{text}");
    }

    /// Catches words that are lost or joined where a line is broken.
    #[test]
    fn texts_are_wrapped() {
        let words: Vec<String> = (0..60).map(|n| format!("word{n}")).collect();
        let text = wrapped(&words.join(" "), 4);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), words);
        assert!(
            text.lines().all(|line| line.len() <= COLUMNS)
                && text.lines().nth(1).is_some_and(|l| l.starts_with("    w"))
        );
        let text = wrapped(&format!("see {}", "long-".repeat(40)), 4);
        assert!(text.lines().all(|line| line.len() <= COLUMNS) && text.lines().count() == 4, "{text}");
        assert_eq!(text.split_whitespace().collect::<String>(), format!("see{}", "long-".repeat(40)));
    }
}
