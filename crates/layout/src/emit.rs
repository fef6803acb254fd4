//! Order files, in the format of each linker.
//!
//! | linker | option | format |
//! |---|---|---|
//! | lld | `--symbol-ordering-file=FILE` | symbols, one a line |
//! | GNU ld from 2.43 on | `--section-ordering-file=FILE` | output sections, each with the input sections to place first |
//! | older GNU ld | `-T FILE` | its own script (`ld --verbose`), with the input sections placed first |
//! | gold | `--section-ordering-file=FILE` | input sections, one a line |
//! | any | the order of its arguments | object files, one a line |
//!
//! lld moves the sections that hold the symbols, whatever their names. The others use the names of input sections,
//! which a linked file does not have: they follow from the names of symbols in programs that are compiled with
//! `-ffunction-sections -fdata-sections`, as Rust's are. mold has no such option: the order of object files determines
//! its layout.

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write;

use object::{Object, ObjectSymbol};

use crate::binary::{Kind, NotElf};
use crate::order::{Item, Order};

/// For each kind: the output section, and the prefixes of the names of input sections before the symbol's name.
const SECTIONS: [(Kind, &str, &[&str]); 5] = [
    (Kind::Text, ".text", &[".text.", ".text.startup.", ".text.hot.", ".text.unlikely.", ".text.exit."]),
    (Kind::ReadOnly, ".rodata", &[".rodata."]),
    (Kind::Relro, ".data.rel.ro", &[".data.rel.ro.local.", ".data.rel.ro."]),
    (Kind::Data, ".data", &[".data.", ".data.rel.", ".data.rel.local."]),
    (Kind::Bss, ".bss", &[".bss."]),
];

/// A linker script has no output section of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSection(&'static str);

/// For lld.
pub fn lld(order: &Order) -> String {
    order.items.iter().flat_map(names).fold(String::new(), |text, name| text + name + "\n")
}

/// For gold.
pub fn gold(order: &Order) -> String {
    let mut text = String::new();
    for (kind, _, prefixes) in SECTIONS {
        for name in of_kind(order, kind).filter(is_plain) {
            for prefix in prefixes {
                let _ = writeln!(text, "{prefix}{name}");
            }
        }
    }
    text
}

/// For GNU ld from 2.43 on.
pub fn ld(order: &Order) -> String {
    let mut text = String::new();
    for (kind, output, prefixes) in SECTIONS {
        let patterns = patterns(order, kind, prefixes);
        if !patterns.is_empty() {
            let _ = writeln!(text, "{output} : {{\n{patterns}}}");
        }
    }
    text
}

/// For older GNU ld: its script, as `ld --verbose` prints it with the options of the link, including the text before
/// and after the script.
pub fn ld_script(order: &Order, script: &str) -> Result<String, NoSection> {
    let rule = |line: &str| line.starts_with("=====");
    let mut text = match script.lines().any(rule) {
        true => script
            .lines()
            .skip_while(|line| !rule(line))
            .skip(1)
            .take_while(|line| !rule(line))
            .fold(String::new(), |text, line| text + line + "\n"),
        false => script.to_owned(),
    };
    for (kind, output, prefixes) in SECTIONS {
        let patterns = patterns(order, kind, prefixes);
        if !patterns.is_empty() {
            let place = opening(&text, output).ok_or(NoSection(output))?;
            text.insert_str(place, &format!("\n{patterns}"));
        }
    }
    Ok(text)
}

/// Object files in the order of the first function or object that each defines; those without any follow in their old
/// order.
pub fn objects(order: &Order, files: &[(&str, &[u8])]) -> Result<String, NotElf> {
    let ranks: HashMap<&str, usize> =
        order.items.iter().enumerate().flat_map(|(rank, item)| names(item).map(move |name| (name, rank))).collect();
    let mut ranked = Vec::new();
    for &(name, data) in files {
        let file = object::File::parse(data).map_err(|error| NotElf::new(format!("{name}: {error}")))?;
        let defined = file.symbols().filter(|symbol| symbol.is_definition());
        let rank = defined.filter_map(|symbol| ranks.get(symbol.name().ok()?)).min().copied();
        ranked.push((rank.unwrap_or(usize::MAX), name));
    }
    ranked.sort_by_key(|ranked| ranked.0);
    Ok(ranked.iter().fold(String::new(), |text, (_, name)| text + name + "\n"))
}

fn names(item: &Item) -> impl Iterator<Item = &str> {
    std::iter::once(&item.name).chain(&item.aliases).map(String::as_str)
}

fn of_kind(order: &Order, kind: Kind) -> impl Iterator<Item = &str> {
    order.items.iter().filter(move |item| item.kind == kind).flat_map(names)
}

/// Whether GNU ld and gold read a name literally, not as a pattern or as several names.
fn is_plain(name: &&str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte))
}

/// The input sections of a kind, in the syntax of a GNU ld script.
fn patterns(order: &Order, kind: Kind, prefixes: &[&str]) -> String {
    of_kind(order, kind).filter(is_plain).fold(String::new(), |mut text, name| {
        let sections: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}{name}")).collect();
        let _ = writeln!(text, "    *({})", sections.join(" "));
        text
    })
}

/// The offset after the brace that opens an output section.
fn opening(script: &str, output: &str) -> Option<usize> {
    let mut at = 0;
    for line in script.split_inclusive('\n') {
        let named = line.trim_start().strip_prefix(output);
        if named.is_some_and(|rest| rest.starts_with(|next: char| next.is_whitespace() || next == ':')) {
            return Some(at + script[at..].find('{')? + 1);
        }
        at += line.len();
    }
    None
}

impl fmt::Display for NoSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the linker's script has no output section {}", self.0)
    }
}

impl std::error::Error for NoSection {}
