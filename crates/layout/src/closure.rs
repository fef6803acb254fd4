//! The object files that a program needs, found without a run: the transitive closure of the references from its entry
//! symbols, and an order for these files.
//!
//! A reference counts whether it is ever followed or not, so a closure contains more than a start needs.

use std::collections::{HashMap, HashSet};

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol};

use crate::binary::NotElf;

/// What the entry symbols reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closure {
    /// Object files in the order in which they are reached: each before those it refers to, depth first. A member of an
    /// archive is `archive(member)`.
    pub reached: Vec<String>,
    /// The others, in the order of the arguments.
    pub rest: Vec<String>,
    /// Symbols that no file defines, in order: those of shared libraries.
    pub undefined: Vec<String>,
}

#[derive(Default)]
struct File {
    name: String,
    /// In the order of the symbol table.
    refers: Vec<String>,
}

#[derive(Default)]
struct Files {
    files: Vec<File>,
    /// The file that defines a symbol: a strong definition before a weak one, otherwise the first.
    defined: HashMap<String, (bool, usize)>,
}

impl Files {
    fn add(&mut self, name: String, data: &[u8]) -> Result<(), NotElf> {
        let file = object::File::parse(data).map_err(|error| NotElf::new(format!("{name}: {error}")))?;
        let place = self.files.len();
        let mut refers = Vec::new();
        for symbol in file.symbols() {
            let Some(symbol_name) = symbol.name().ok().filter(|name| !name.is_empty()) else { continue };
            if symbol.is_undefined() {
                refers.push(symbol_name.to_owned());
            } else if symbol.is_global() {
                let strong = !symbol.is_weak();
                let known = self.defined.entry(symbol_name.to_owned()).or_insert((strong, place));
                if strong && !known.0 {
                    *known = (strong, place);
                }
            }
        }
        self.files.push(File { name, refers });
        Ok(())
    }

    fn add_archive(&mut self, name: &str, data: &[u8]) -> Result<(), NotElf> {
        let damaged = |error: object::Error| NotElf::new(format!("{name}: {error}"));
        let archive = ArchiveFile::parse(data).map_err(damaged)?;
        for member in archive.members() {
            let member = member.map_err(damaged)?;
            let member_name = String::from_utf8_lossy(member.name()).into_owned();
            let data = member.data(data).map_err(damaged)?;
            // Rust's archives contain a member with metadata.
            if data.starts_with(b"\x7fELF") {
                self.add(format!("{name}({member_name})"), data)?;
            }
        }
        Ok(())
    }
}

/// The closure of entry symbols over named object files and archives.
pub fn closure(entries: &[&str], files: &[(&str, &[u8])]) -> Result<Closure, NotElf> {
    let mut all = Files::default();
    for &(name, data) in files {
        match data.starts_with(b"!<arch>\n") {
            true => all.add_archive(name, data)?,
            false => all.add(name.to_owned(), data)?,
        }
    }
    let mut closure = Closure::default();
    let (mut reached, mut seen) = (HashSet::new(), HashSet::new());
    let mut waiting: Vec<&str> = entries.iter().rev().copied().collect();
    while let Some(symbol) = waiting.pop() {
        if !seen.insert(symbol) {
            continue;
        }
        match all.defined.get(symbol) {
            None => closure.undefined.push(symbol.to_owned()),
            Some(&(_, place)) if reached.insert(place) => {
                closure.reached.push(all.files[place].name.clone());
                waiting.extend(all.files[place].refers.iter().rev().map(String::as_str));
            }
            Some(_) => {}
        }
    }
    let rest = all.files.iter().enumerate().filter(|(place, _)| !reached.contains(place));
    closure.rest = rest.map(|(_, file)| file.name.clone()).collect();
    Ok(closure)
}
