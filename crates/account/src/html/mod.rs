//! One complete page of HTML, for any browser, without a network or scripts. `page.html` and `page.css` are the frame
//! (with the style that all pages of neap share); this module makes the contents from a report.

use crate::container::Container;
use crate::model::{Account, HeapFigures, Kind, Remedy, Report};
use crate::text::{gain, processes};
use crate::units::{bytes, fit_front, percent, plain};
use neap_trace::format::html::{BASE_STYLE, escaped, fill};
use std::io::{self, Write};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// Writes the account of a process.
pub fn page(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let moment = report.moment.as_ref().map_or(String::new(), |moment| format!(", {moment}"));
    let facts = format!(
        "Rss {}, Pss {}, private {}, swapped {}; {} thread{}{moment}",
        bytes(report.rss_bytes),
        bytes(report.pss_bytes),
        bytes(report.private_bytes),
        bytes(report.swap_bytes),
        report.threads,
        if report.threads == 1 { "" } else { "s" },
    );
    let mut sections = accounts(&report.accounts, report.rss_bytes, true);
    sections.push_str(&remedies(&report.remedies));
    sections.push_str(&heaps(&report.heaps));
    let apart: Vec<String> =
        report.apart.iter().map(|apart| format!("{}: {}", apart.text, bytes(apart.bytes))).collect();
    sections.push_str(&list("Not in Rss", &apart));
    sections.push_str(&list("Notes", &report.notes));
    let whole = format!("Resident memory: {}", bytes(report.rss_bytes));
    let parts = Parts {
        title: format!("{} ({})", fit_front(&report.command.join(" "), LONGEST), report.pid),
        facts,
        verdict: &report.verdict,
        whole,
        bar: bar(&report.accounts, report.rss_bytes),
        sections,
    };
    parts.write(out)
}

/// Writes the account of a cgroup.
pub fn container(of: &Container, out: &mut dyn Write) -> io::Result<()> {
    let limit = of.limit_bytes.map_or("no limit".to_owned(), |limit| format!("limit {}", bytes(limit)));
    let mut sections = accounts(&of.accounts, of.rss_bytes, false);
    sections.push_str(&remedies(&of.remedies));
    let rows = of.processes.iter().map(|process| {
        let figures =
            [process.rss_bytes, process.pss_bytes].map(|figure| format!("<td class=\"number\">{}</td>", bytes(figure)));
        let command = text(&fit_front(&process.command, LONGEST));
        format!("<tr>{}<td class=\"owner\">{} {command}</td></tr>", figures.concat(), process.pid)
    });
    let rows: Vec<String> = rows.collect();
    if !rows.is_empty() {
        sections.push_str(&table("Processes", "processes", &["Rss", "Pss", "process"], &rows));
    }
    sections.push_str(&list("Notes", &of.notes));
    let parts = Parts {
        title: format!("cgroup {}", of.path),
        facts: format!("{limit}; {}", processes(of.processes.len())),
        verdict: &of.verdict,
        whole: format!("Charged memory: {}", bytes(of.rss_bytes)),
        bar: bar(&of.accounts, of.rss_bytes),
        sections,
    };
    parts.write(out)
}

struct Parts<'r> {
    title: String,
    facts: String,
    verdict: &'r str,
    whole: String,
    bar: String,
    sections: String,
}

impl Parts<'_> {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        fill(PAGE, out, &mut |mark, out| match mark {
            "title" => write!(out, "{}", text(&self.title)),
            "style" => write!(out, "{BASE_STYLE}{STYLE}"),
            "facts" => write!(out, "{}", text(&self.facts)),
            "verdict" => write!(out, "{}", with_code(self.verdict)),
            "whole" => write!(out, "{}", text(&self.whole)),
            "bar" => write!(out, "{}", self.bar),
            "sections" => write!(out, "{}", self.sections),
            _ => Ok(()),
        })
    }
}

/// Columns of a command line.
const LONGEST: usize = 160;

/// A text with commands in backquotes.
fn with_code(words: &str) -> String {
    let parts: Vec<&str> = words.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return text(words);
    }
    let part = |(at, part): (usize, &&str)| match at % 2 {
        0 => text(part),
        _ => format!("<code>{}</code>", text(part)),
    };
    parts.iter().enumerate().map(part).collect()
}

/// A text in HTML, without control characters.
fn text(text: &str) -> String {
    escaped(&plain(text)).to_string()
}

/// The groups of the bar: class of the colour, label, kinds.
const GROUPS: &[(&str, &str, &[Kind])] = &[
    ("live", "live blocks", &[Kind::HeapLive, Kind::Heap]),
    ("kept", "free, kept", &[Kind::HeapFree, Kind::LazyFree]),
    ("fragmented", "fragmentation and metadata", &[Kind::HeapFragmentation, Kind::HeapMetadata]),
    ("zero", "zeros in huge pages", &[Kind::HugeZero]),
    ("runtime", "runtime heap, generated code", &[Kind::RuntimeHeap, Kind::Jit]),
    ("private", "other private memory", &[Kind::Anonymous]),
    ("stack", "stacks, thread-local", &[Kind::Stack, Kind::ThreadLocal]),
    ("file", "files", &[Kind::File]),
    ("shared", "shared memory", &[Kind::Shared]),
    ("other", "other", &[Kind::Vdso, Kind::Guard, Kind::Other]),
];

/// The bar, and its legend.
fn bar(accounts: &[Account], whole: u64) -> String {
    let (mut bar, mut legend) = (String::new(), String::new());
    for (class, label, kinds) in GROUPS {
        let sum: u64 =
            accounts.iter().filter(|account| kinds.contains(&account.kind)).map(|account| account.bytes).sum();
        if sum == 0 || whole == 0 {
            continue;
        }
        let width = sum as f64 * 100.0 / whole as f64;
        let colour = format!("background: var(--{class})");
        bar.push_str(&format!(
            "<span style=\"width: {width:.3}%; {colour}\" title=\"{label}: {}\"></span>",
            bytes(sum)
        ));
        legend.push_str(&format!("<li><span class=\"swatch\" style=\"{colour}\"></span>{label} {}</li>", bytes(sum)));
    }
    format!("<div class=\"bar\" aria-hidden=\"true\">{bar}</div>\n<ul class=\"legend\">{legend}</ul>\n")
}

/// The accounts; those of a container have no figures of mappings.
fn accounts(accounts: &[Account], whole: u64, mapped: bool) -> String {
    let row = |account: &Account| {
        let share = account.bytes as f64 * 100.0 / whole.max(1) as f64;
        let note =
            account.note.as_ref().map_or(String::new(), |note| format!("<span class=\"sub\">{}</span>", text(note)));
        let wide = [account.pss_bytes, account.private_bytes, account.reserved_bytes];
        let wide = wide.iter().filter(|_| mapped).map(|of| format!("<td class=\"number wide\">{}</td>", bytes(*of)));
        format!(
            "<tr><td class=\"number\">{}<div class=\"share\" style=\"width: {share:.2}%\"></div></td>\
             <td class=\"number\">{} %</td><td class=\"kind\">{}</td><td class=\"owner\">{}{note}</td>{}</tr>",
            bytes(account.bytes),
            percent(account.bytes, whole),
            account.kind.label(),
            text(&account.owner),
            wide.collect::<String>(),
        )
    };
    let rows: Vec<String> = accounts.iter().map(row).collect();
    let head = ["resident", "part", "kind", "owner", "Pss", "private", "reserved"];
    table("Accounts", "accounts", &head[..if mapped { 7 } else { 4 }], &rows)
}

fn heaps(heaps: &[HeapFigures]) -> String {
    let row = |of: &HeapFigures| {
        let figures = [of.resident_bytes, of.live_bytes, of.kept_bytes, of.fragmentation_bytes];
        let figures = figures.map(|figure| format!("<td class=\"number\">{}</td>", bytes(figure))).concat();
        let wide = [bytes(of.cached_bytes), bytes(of.trimmable_bytes), of.live_blocks.to_string()];
        let wide = wide.map(|figure| format!("<td class=\"number wide\">{figure}</td>")).concat();
        format!("<tr><td>{}, {}</td>{figures}{wide}</tr>", text(&of.allocator), text(&of.part))
    };
    let rows: Vec<String> = heaps.iter().filter(|of| of.resident_bytes > 0).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["part", "resident", "live", "kept", "fragmented", "in caches", "trimmable", "live blocks"];
    table("Heaps", "heaps", &head, &rows)
}

/// Headings of columns that are not numbers.
const WORDS: [&str; 4] = ["kind", "owner", "part", "process"];
/// Headings of columns that a narrow screen leaves out.
const WIDE: [&str; 6] = ["Pss", "private", "reserved", "in caches", "trimmable", "live blocks"];

fn table(title: &str, class: &str, head: &[&str], rows: &[String]) -> String {
    let cell = |name: &&str| {
        let is_number = !WORDS.contains(name) || (class == "accounts" && *name == "part");
        let wide = WIDE.contains(name) && class != "processes";
        let class = match (is_number, wide, *name) {
            (true, true, _) => "number wide",
            (true, false, _) => "number",
            (_, _, "process") => "owner",
            (_, _, name) => name,
        };
        format!("<th scope=\"col\" class=\"{class}\">{name}</th>")
    };
    let head: String = head.iter().map(cell).collect();
    format!(
        "<section><h2>{title}</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\
         <table class=\"{class}\"><thead><tr>{head}</tr></thead>\n<tbody>\n{}\n</tbody></table></div></section>\n",
        rows.join("\n")
    )
}

fn remedies(remedies: &[Remedy]) -> String {
    if remedies.is_empty() {
        return String::new();
    }
    let item = |remedy: &Remedy| {
        let gain = if remedy.bytes > 0 { gain(remedy) } else { "not known".to_owned() };
        let command = match remedy.command.is_empty() {
            true => String::new(),
            false => format!("<code>{}</code>", text(&remedy.command)),
        };
        let (words, rule) = (text(&remedy.text), text(&remedy.rule));
        format!("<li><strong>{gain}</strong><div>{words}{command}<span class=\"sub\">Rule: {rule}</span></div></li>")
    };
    let items: String = remedies.iter().map(item).collect();
    format!("<section><h2>What would help</h2>\n<ul class=\"remedies\">{items}</ul></section>\n")
}

fn list(title: &str, items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("<li>{}</li>", text(item))).collect();
    format!("<section><h2>{title}</h2>\n<ul class=\"plain\">{items}</ul></section>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mapping;
    use crate::{Seen, report};

    fn made() -> String {
        let mappings = vec![mapping(0x1000, 80 << 20, "/<script>\"x\".so"), mapping(0x1000_0000, 7 << 20, "[heap]")];
        let mut of = Seen { pid: 7, mappings, command: vec!["</title><b>".into()], ..Seen::default() };
        of.total.rss = 87 << 20;
        let mut bytes = Vec::new();
        page(&report(&of), &mut bytes).expect("memory takes everything");
        String::from_utf8(bytes).expect("UTF-8")
    }

    /// Catches names that become markup, and marks of the frame that are not filled.
    #[test]
    fn names_stay_text() {
        let page = made();
        assert!(!page.contains("<script") && !page.contains("</title><b>") && !page.contains("<!--"), "{page}");
        assert!(page.contains("80.0 MiB") && page.contains("92 %"), "{page}");
    }

    /// Catches anything that a browser would fetch, and kinds that the bar leaves out.
    #[test]
    fn nothing_comes_from_elsewhere() {
        for word in ["http:", "https:", "src=", "@import", "url(", "<script"] {
            assert!(!PAGE.contains(word) && !STYLE.contains(word), "{word}");
        }
        for kind in Kind::ALL {
            assert_eq!(GROUPS.iter().filter(|(_, _, kinds)| kinds.contains(kind)).count(), 1, "{kind:?}");
        }
    }
}
