//! docs/attributes.md: its tables, from the table.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::model::{Attribute, Of, Torture};
use super::table::TABLE;
use crate::place::root;

/// The document, relative to the root.
pub const PAGE: &str = "docs/attributes.md";
const BEGIN: &str = "<!-- from xtask/src/attributes/table.rs, by `cargo xtask documents` -->\n";
const END: &str = "<!-- end of the tables -->\n";

/// Writes the document into a folder.
pub fn write(folder: &Path) -> Result<()> {
    let there = fs::read_to_string(root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let path = folder.join(PAGE);
    fs::write(&path, renewed(&there)?).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("written: {}", path.display());
    Ok(())
}

/// The document with new tables.
pub fn renewed(there: &str) -> Result<String> {
    let marks = || format!("{PAGE} lacks a mark of its tables");
    let (before, rest) = there.split_once(BEGIN).with_context(marks)?;
    let (_, after) = rest.split_once(END).with_context(marks)?;
    let mut text = format!("{before}{BEGIN}");
    for kind in TABLE {
        let head = "| what changes | by | of | neap promises | held by |\n|---|---|---|---|---|";
        write!(text, "\n## {}\n\n{head}\n", kind.title)?;
        for attribute in kind.attributes {
            writeln!(text, "{}", row(attribute))?;
        }
    }
    Ok(format!("{text}\n{END}{after}"))
}

fn row(attribute: &Attribute) -> String {
    let Attribute { what, calls, of, promise, tests, torture } = attribute;
    let of = match of {
        Of::Thread => "thread",
        Of::Process => "process",
        Of::Block => "block",
    };
    let mut held: Vec<String> = tests.iter().map(|(file, case)| format!("`{file}`: `{case}`")).collect();
    held.push(match torture {
        Torture::Changes(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("`+{name}`")).collect();
            format!("torture: {}", names.join(", "))
        }
        Torture::Actor(name) => format!("torture: `{name}`"),
        Torture::Not(why) => format!("not by torture: {why}"),
    });
    let line = format!("| {what} | {calls} | {of} | {promise} | {} |", held.join("; "));
    assert_eq!(line.matches('|').count(), 6, "a bar would start another column: {line}");
    line
}
