//! One self-contained page of HTML: charts, tables and the faults, for any browser, without a network.
//!
//! `page.html`, `page.css` and `page.js` make the page; this module inserts the tables as JSON, and the faults packed
//! (see `pack.rs`), some 25 characters each. The page shows the first `SHOWN` faults.

mod pack;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use self::pack::Packer;
use crate::{Fault, Kind, PlaceId, Source, StackId, Tables};

/// Limit on the faults in the page: what a browser still handles with ease.
const SHOWN: u64 = 300_000;

const PAGE: &str = include_str!("page.html");
/// What all pages of neap have in common: colours, texts, controls, tables.
pub const BASE_STYLE: &str = include_str!("base.css");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Writes a trace as a page.
pub fn html(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    html_of(source, SHOWN, out)
}

fn html_of(source: &dyn Source, shown: u64, out: &mut dyn Write) -> io::Result<()> {
    let tables = source.tables();
    let mut texts = Texts::default();
    let mut packer = Packer::default();
    let mut total = 0;
    source.visit(&mut |fault| {
        total += 1;
        if total <= shown {
            let code = texts.instruction(tables, fault);
            let data = super::data_text(tables, fault).map(|text| texts.text(text));
            let callers = texts.callers(tables, fault);
            packer.push(fault, code, data, callers);
        }
        Ok(())
    })?;
    let data = data(tables, &texts, total, total.min(shown));
    fill(PAGE, out, &mut |mark, out| match mark {
        "title" => write!(out, "{}", escaped(&title(tables))),
        "style" => write!(out, "{BASE_STYLE}{STYLE}"),
        "footer" => write_footer(tables, out),
        "data" => write_data(&data, out),
        "faults" => packer.write_base64(out),
        "script" => out.write_all(SCRIPT.as_bytes()),
        _ => Ok(()),
    })
}

/// Writes a page, replacing its marks (`<!--mark-->`) by what `write` writes.
pub fn fill(
    page: &str,
    out: &mut dyn Write,
    write: &mut dyn FnMut(&str, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    for part in page.split("<!--") {
        // The text before the first mark; otherwise a mark, and the text after it.
        match part.split_once("-->") {
            None => out.write_all(part.as_bytes())?,
            Some((mark, rest)) => {
                write(mark, out)?;
                out.write_all(rest.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Writes JSON for a page's script. `<` could end the element; in JSON it occurs only in strings, where it can be
/// escaped.
pub fn write_data(data: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(serde_json::to_string(data)?.replace('<', "\\u003c").as_bytes())
}

/// The JSON for the page's script.
#[derive(Serialize)]
struct Data<'a> {
    /// Faults in the trace, and in the page.
    total: u64,
    shown: u64,
    /// Names and labels, in the order of [`Kind::ALL`].
    kinds: Vec<[&'static str; 2]>,
    /// pid and name.
    processes: Vec<(u32, &'a str)>,
    /// tid, name, and position of the process.
    threads: Vec<(u32, &'a str, usize)>,
    mappings: Vec<Mapping>,
    /// Strings, each once.
    texts: &'a [String],
    /// Instructions: positions of the function, the object and the line in `texts` (-1: none), and the offset in the
    /// function.
    code: &'a [[i64; 4]],
    /// Callers: the position of the next outer one (-1: none), and of the function in `texts`. Outer callers come
    /// first.
    callers: &'a [[i64; 2]],
}

/// A mapping. Addresses are in pages of 4 KiB, so that JavaScript's numbers hold them.
#[derive(Serialize)]
struct Mapping {
    process: usize,
    /// The first page, and the number of pages.
    page: u64,
    pages: u64,
    name: String,
    protection: String,
    /// The position in the file; empty without one.
    offset: String,
}

fn data<'a>(tables: &'a Tables, texts: &'a Texts, total: u64, shown: u64) -> Data<'a> {
    use crate::Id;
    let mappings = tables.mappings.iter().map(|(_, row)| Mapping {
        process: row.process.index(),
        page: row.start >> 12,
        pages: (row.end.saturating_sub(row.start) >> 12).max(1),
        name: row.describe(tables),
        protection: row.protection.to_string(),
        offset: row.object.map(|_| format!("{:#x}", row.offset)).unwrap_or_default(),
    });
    Data {
        total,
        shown,
        kinds: Kind::ALL.map(|kind| [kind.name(), kind.label()]).to_vec(),
        processes: tables.processes.iter().map(|(_, row)| (row.pid, row.name.as_str())).collect(),
        threads: tables.threads.iter().map(|(_, row)| (row.tid, row.name.as_str(), row.process.index())).collect(),
        mappings: mappings.collect(),
        texts: &texts.texts,
        code: &texts.code,
        callers: &texts.callers,
    }
}

/// Strings, instructions and callers, each once.
#[derive(Default)]
struct Texts {
    texts: Vec<String>,
    known: HashMap<String, usize>,
    code: Vec<[i64; 4]>,
    instructions: HashMap<(Option<PlaceId>, u64), usize>,
    callers: Vec<[i64; 2]>,
    nodes: HashMap<StackId, i64>,
}

impl Texts {
    fn text(&mut self, text: String) -> usize {
        *self.known.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            self.texts.len() - 1
        })
    }

    /// The number of a fault's instruction.
    fn instruction(&mut self, tables: &Tables, fault: &Fault) -> usize {
        // The same place has different addresses in different processes.
        let key = (fault.code, if fault.code.is_some() { 0 } else { fault.ip });
        if let Some(&known) = self.instructions.get(&key) {
            return known;
        }
        let place = fault.code.map(|id| &tables.places[id]);
        let function = self.text(super::function(tables, fault.ip, fault.code)) as i64;
        let object = place.and_then(|place| place.object).map(|id| tables.objects[id].path.clone());
        let line = place.and_then(|place| place.line).map(|id| &tables.lines[id]);
        let line = line.map(|line| format!("{}:{}", line.file, line.line));
        let mut optional = |text: Option<String>| text.map_or(-1, |text| self.text(text) as i64);
        let (object, line) = (optional(object), optional(line));
        let offset = place.filter(|place| place.symbol.is_some()).map_or(0, |place| place.offset);
        self.code.push([function, object, line, i64::try_from(offset).unwrap_or(i64::MAX)]);
        self.instructions.insert(key, self.code.len() - 1);
        self.code.len() - 1
    }

    /// The number of a fault's innermost caller.
    fn callers(&mut self, tables: &Tables, fault: &Fault) -> Option<usize> {
        let stack = fault.stack?;
        let node = &tables.stacks[stack];
        // The first node is the faulting instruction itself, except in kernel mode.
        let innermost = if node.address == fault.ip { node.parent? } else { stack };
        let (mut unknown, mut next, mut outwards) = (Vec::new(), Some(innermost), -1);
        while let Some(id) = next {
            if let Some(&known) = self.nodes.get(&id) {
                outwards = known;
                break;
            }
            unknown.push(id);
            next = tables.stacks[id].parent;
        }
        for id in unknown.into_iter().rev() {
            let node = &tables.stacks[id];
            let function = self.text(super::function(tables, node.address, node.place)) as i64;
            self.callers.push([outwards, function]);
            outwards = self.callers.len() as i64 - 1;
            self.nodes.insert(id, outwards);
        }
        usize::try_from(outwards).ok()
    }
}

fn title(tables: &Tables) -> String {
    let summary = &tables.summary;
    match summary.command.as_slice() {
        [] => format!("Page faults of process {}", summary.pid),
        command => format!("Page faults of {}", command.join(" ")),
    }
}

fn write_footer(tables: &Tables, out: &mut dyn Write) -> io::Result<()> {
    tables.summary.lines().iter().try_for_each(|line| writeln!(out, "<li>{}</li>", escaped(line)))
}

/// Escapes a text for HTML outside of attributes.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' | '<' | '>' => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "&#{};", u32::from(letter));
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorded;

    /// Catches names that end their element, marks that remain, and texts that become marks.
    #[test]
    fn names_stay_text() {
        let mut trace = Recorded::default();
        trace.tables.summary.command = vec!["</title><script>alert(1)</script>".into(), "<!--data-->".into()];
        let mut page = Vec::new();
        html(&trace, &mut page).expect("memory takes everything");
        let page = String::from_utf8(page).expect("UTF-8");
        assert_eq!(page.matches("<script").count(), PAGE.matches("<script").count());
        assert_eq!(page.matches("</script").count(), PAGE.matches("</script").count());
        assert!(!page.contains("<!--"), "{page}");
        assert!(page.contains("&#60;/title&#62;"));
    }

    /// Catches anything that a browser would fetch.
    #[test]
    fn nothing_comes_from_elsewhere() {
        for part in [PAGE, BASE_STYLE, STYLE, SCRIPT] {
            for word in ["http:", "https:", "src=", "@import", "url(", "fetch(", "import ", "innerHTML"] {
                assert!(!part.contains(word), "{word}");
            }
        }
    }
}
