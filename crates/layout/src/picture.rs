//! A picture of a binary: its OS pages by kind, those that a start touches, and the functions on each. One page of HTML
//! without scripts, which is also well-formed XML.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::binary::{Binary, Kind, PAGE, pages};
use crate::estimate::Estimate;
use crate::trace::Trace;

/// Limit on the names of untouched functions that are shown for an OS page.
const OTHERS: usize = 5;

const STYLE: &str = "\
:root{color-scheme:light dark;--touched:#1f6feb;--other:#d0d7de;--text:#1f2328;--back:#fff}
@media (prefers-color-scheme:dark){:root{--touched:#58a6ff;--other:#30363d;--text:#e6edf3;--back:#0d1117}}
body{font:14px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:76rem;margin:2rem auto;padding:0 1rem}
h1,h2,th{overflow-wrap:anywhere}.wide{overflow-x:auto}table{border-collapse:collapse}td,th{padding:.1rem .8rem;text-align:right}th:first-child{text-align:left}
.map{display:flex;flex-wrap:wrap;gap:1px;max-width:calc(64*11px)}
i{width:10px;height:10px;background:var(--other)}i.touched{background:var(--touched)}
.pair{display:flex;flex-wrap:wrap;gap:2rem}section{flex:1 1 24rem;min-width:0;max-width:calc(64*11px)}";

/// A binary and its trace.
pub struct Subject<'s> {
    /// The title.
    pub name: &'s str,
    /// The trace, of this build.
    pub trace: &'s Trace,
    /// The build.
    pub binary: &'s Binary,
}

/// An OS page of one kind.
#[derive(Default)]
struct Page<'p> {
    /// What a start touches there.
    touched: Vec<&'p str>,
    /// The other functions and objects that begin there.
    others: Vec<&'p str>,
    /// Whether a part without a name is touched.
    nameless: bool,
}

/// Draws one, or several next to each other: the first is the old layout.
pub fn page(subjects: &[Subject<'_>]) -> String {
    let names: Vec<String> = subjects.iter().map(|subject| escaped(subject.name)).collect();
    let title = format!("OS pages of {}", names.join(" and "));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{title}</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p>Each square is an OS page of 4 KiB, in the order of addresses; <i class=\"touched\" style=\"display:inline-block\"></i> \
         is touched by the traced runs. Rest the pointer on one for the functions and data on it.</p>\n"
    );
    totals(&mut html, subjects, &names);
    html.push_str("<div class=\"pair\">\n");
    for (subject, name) in subjects.iter().zip(&names) {
        let _ = writeln!(html, "<section>\n<h2>{name}</h2>");
        for (kind, map) in maps(subject) {
            let touched = map.values().filter(|page| page.is_touched()).count();
            let _ =
                writeln!(html, "<h3>{}: {touched} of {} OS pages</h3>\n<div class=\"map\">", kind.name(), map.len());
            map.iter().for_each(|(number, page)| page.draw(*number, &mut html));
            html.push_str("</div>\n");
        }
        html.push_str("</section>\n");
    }
    html + "</div>\n</body>\n</html>\n"
}

/// The table of what the runs touch.
fn totals(html: &mut String, subjects: &[Subject<'_>], names: &[String]) {
    html.push_str("<div class=\"wide\">\n<table>\n<tr><th></th>");
    for name in names {
        let _ = write!(html, "<th>{name}</th><th>packed</th><th>faults</th>");
    }
    html.push_str("</tr>\n");
    let estimates: Vec<Estimate> = subjects.iter().map(|subject| Estimate::of(subject.trace, subject.binary)).collect();
    let kinds = Kind::ALL.into_iter().filter(|kind| estimates.iter().any(|estimate| estimate.kinds.contains_key(kind)));
    for kind in kinds.map(Some).chain([None]) {
        let _ = write!(html, "<tr><th>{}</th>", kind.map_or("all", Kind::name));
        for estimate in &estimates {
            let line = kind.map_or(estimate.total, |kind| estimate.kinds.get(&kind).copied().unwrap_or_default());
            let (now, packed) = (line.now, line.packed);
            let _ = write!(html, "<td>{}</td><td>{}</td><td>{}</td>", now.pages, packed.pages, now.faults_around);
        }
        html.push_str("</tr>\n");
    }
    html.push_str(
        "</table>\n</div>\n<p>OS pages that are touched, the fewest that would do, and faults with fault-around.</p>\n",
    );
}

/// The OS pages of each kind. Without traced data only code is shown.
fn maps<'s>(subject: &Subject<'s>) -> BTreeMap<Kind, BTreeMap<u64, Page<'s>>> {
    let (trace, binary) = (subject.trace, subject.binary);
    let mut maps: BTreeMap<Kind, BTreeMap<u64, Page<'s>>> = BTreeMap::new();
    for section in binary.sections.iter().filter(|section| section.kind == Kind::Text || !trace.data.is_empty()) {
        let map = maps.entry(section.kind).or_default();
        section.pages().for_each(|page| _ = map.entry(page).or_default());
    }
    let functions = trace.functions.iter().map(|function| (function.address, function.size, Some(&*function.name)));
    let data = trace.data.iter().map(|data| (data.address, data.size, data.name.as_deref()));
    for (address, size, name) in functions.chain(data) {
        let Some(map) = binary.section_at(address).and_then(|section| maps.get_mut(&section.kind)) else {
            continue;
        };
        for number in pages(address, size.max(1)) {
            let Some(page) = map.get_mut(&number) else {
                continue;
            };
            match name {
                Some(name) => page.touched.push(name),
                None => page.nameless = true,
            }
        }
    }
    for symbol in &binary.symbols {
        let page = maps.get_mut(&binary.kind(symbol)).and_then(|map| map.get_mut(&(symbol.address / PAGE)));
        if let Some(page) = page.filter(|page| !page.touched.contains(&&*symbol.name)) {
            page.others.push(&symbol.name);
        }
    }
    maps
}

impl Page<'_> {
    fn is_touched(&self) -> bool {
        self.nameless || !self.touched.is_empty()
    }

    fn draw(&self, number: u64, html: &mut String) {
        let mut title = format!("{:#x}", number * PAGE);
        for name in &self.touched {
            let _ = write!(title, "\n{name}");
        }
        if self.nameless {
            title.push_str("\n(no name)");
        }
        if !self.others.is_empty() {
            let (shown, more) = self.others.split_at(self.others.len().min(OTHERS));
            let _ = write!(title, "\nnot touched: {}", shown.join(", "));
            if !more.is_empty() {
                let _ = write!(title, " and {} more", more.len());
            }
        }
        let class = if self.is_touched() { " class=\"touched\"" } else { "" };
        let _ = writeln!(html, "<i{class} title=\"{}\"></i>", escaped(&title));
    }
}

/// Escapes a text for content, or for an attribute in double quotes. Names of functions may contain anything.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // In XML a line end in an attribute is read as a space.
            '\n' => escaped.push_str("&#10;"),
            control if control.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary::{Section, Symbol};
    use crate::trace::{TracedBinary, TracedData, TracedFunction};

    fn binary() -> Binary {
        let section = |name: &str, address, size, kind| Section {
            name: name.to_owned(),
            address,
            size,
            offset: None,
            align: 16,
            kind,
        };
        let symbol = |name: &str, address| {
            let (section, aliases) = (usize::from(address >= 0x9000), Vec::new());
            Symbol { name: name.to_owned(), aliases, section, address, size: 100, file: None }
        };
        Binary {
            sections: vec![section(".text", 0x1000, 0x3000, Kind::Text), section(".data", 0x9010, 16, Kind::Data)],
            symbols: vec![symbol("f<\"a&b\u{7}\">", 0x1fff), symbol("other", 0x1100), symbol("datum", 0x9010)],
            ..Binary::default()
        }
    }

    fn trace() -> Trace {
        let (address, size, section) = (0x1fff, 100, ".text".to_owned());
        let name = "f<\"a&b\u{7}\">".to_owned();
        let function = TracedFunction { name, section, address, size, runs: 1, ..Default::default() };
        Trace { functions: vec![function], ..Trace::new(TracedBinary::default()) }
    }

    /// Checks that each element is closed in the right place.
    fn check(html: &str) {
        let mut open = Vec::new();
        for part in html.strip_prefix("<!DOCTYPE html>").expect("HTML").split('<').skip(1) {
            let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("not closed: {part}"));
            assert!(tag.matches('"').count() % 2 == 0 && !text.contains('>'), "{part}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "{part}");
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().expect("a name"));
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    /// Catches a page that is not well-formed, names that are not escaped, missing OS pages, and a wrong colour.
    #[test]
    fn pages_and_names() {
        let (binary, mut trace) = (binary(), trace());
        let subject = |trace: &Trace| page(&[Subject { name: "a<b>", trace, binary: &binary }]);
        let html = subject(&trace);
        check(&html);
        assert!(html.contains("<h2>a&lt;b&gt;</h2>") && html.contains("text: 2 of 3 OS pages"), "{html}");
        let square = |title: &str| format!("<i class=\"touched\" title=\"{title}\"></i>\n");
        let name = "f&lt;&quot;a&amp;b\u{fffd}&quot;&gt;";
        for title in [format!("0x1000&#10;{name}&#10;not touched: other"), format!("0x2000&#10;{name}")] {
            assert!(html.contains(&square(&title)), "{title}: {html}");
        }
        assert!(html.contains("<i title=\"0x3000\"></i>\n") && !html.contains("0x9000"), "{html}");
        trace.data =
            vec![TracedData { address: 0x9000, size: PAGE, section: ".data".to_owned(), ..Default::default() }];
        assert!(!subject(&trace).contains("data: 1 of"));
        trace.data[0].address = 0x9010;
        let html = subject(&trace);
        assert!(html.contains(&square("0x9000&#10;(no name)&#10;not touched: datum")), "{html}");
    }

    /// Catches the second of two that is not drawn, totals that are swapped, and a function without a size (`.init`)
    /// that does not count.
    #[test]
    fn before_and_after() {
        let (binary, trace) = (binary(), trace());
        let mut later = trace.clone();
        (later.functions[0].address, later.functions[0].size) = (0x1100, 0);
        let subject = |name, trace| Subject { name, trace, binary: &binary };
        let html = page(&[subject("old", &trace), subject("new", &later)]);
        check(&html);
        assert!(html.contains("<tr><th>text</th><td>2</td><td>1</td><td>1</td><td>1</td><td>1</td><td>1</td></tr>"));
        let (old, new) = html.split_once("<h2>new</h2>").expect("both");
        assert!(old.contains("<h2>old</h2>") && old.contains("text: 2 of 3") && new.contains("text: 1 of 3"));
    }
}
