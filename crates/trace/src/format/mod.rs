//! The formats in which a trace is written, one module each.

use std::io::{self, Write};

use crate::text::file_name;
use crate::{Fault, PlaceId, Source, StackId, Tables};

mod classic;
mod csv;
mod firefox;
pub mod folded;
pub mod html;
pub mod json;
mod table;
mod top;

pub use self::csv::{COLUMNS, csv};
pub use classic::classic;
pub use firefox::firefox;
pub use folded::folded;
pub use html::html;
pub use json::json;
pub use table::{table, table_within};
pub use top::top;

/// A way of writing a trace.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `--help`.
    pub doc: &'static str,
    /// The ending of its file names.
    pub ending: &'static str,
    /// Writes a whole trace.
    pub write: fn(&dyn Source, &mut dyn Write) -> io::Result<()>,
    /// Whether it contains the footer. If its readers would take the footer for data, the footer is written elsewhere.
    pub footer: bool,
    /// Whether it shows kinds, service times and source lines, which cost more to find out.
    pub rich: bool,
}

/// All formats; the first is the default.
pub const FORMATS: &[Format] = &[
    Format {
        name: "classic",
        doc: "one line for each fault, as the tool of 2007 wrote it",
        ending: "",
        write: classic,
        footer: true,
        rich: false,
    },
    Format { name: "table", doc: "every column, for people", ending: "", write: table, footer: true, rich: true },
    Format {
        name: "json",
        doc: "the whole trace; `neap pagein diff` reads it",
        ending: ".json",
        write: json,
        footer: true,
        rich: true,
    },
    Format {
        name: "csv",
        doc: "every column, for spreadsheets and data frames",
        ending: ".csv",
        write: csv,
        footer: false,
        rich: true,
    },
    Format {
        name: "folded",
        doc: "stacks and their faults, for flame graphs",
        ending: ".folded",
        write: folded,
        footer: false,
        rich: false,
    },
    Format {
        name: "firefox",
        doc: "for the Firefox Profiler",
        ending: ".profile.json",
        write: firefox,
        footer: false,
        rich: true,
    },
    Format {
        name: "html",
        doc: "one page with charts and a table, for any browser",
        ending: ".html",
        write: html,
        footer: true,
        rich: true,
    },
];

impl Format {
    /// The format of that name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }
}

/// The text with line ends as escapes: paths and arguments may contain any characters.
fn one_line(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(['\n', '\r']) { text.replace('\n', "\\n").replace('\r', "\\r").into() } else { text.into() }
}

/// The faulting instruction and its callers, up to the outermost: addresses, and their places.
pub fn frames(
    tables: &Tables,
    ip: u64,
    code: Option<PlaceId>,
    stack: Option<StackId>,
) -> impl Iterator<Item = (u64, Option<PlaceId>)> {
    let nodes = stack.into_iter().flat_map(move |stack| tables.frames(stack)).enumerate();
    // The first node is the faulting instruction itself, except in kernel mode.
    let callers = nodes.filter(move |(index, node)| *index != 0 || node.address != ip);
    std::iter::once((ip, code)).chain(callers.map(|(_, node)| (node.address, node.place)))
}

/// The function at a place; without a symbol, the file's name and the address in it; without an object, the address.
pub fn function(tables: &Tables, address: u64, place: Option<PlaceId>) -> String {
    let Some(place) = place.map(|id| &tables.places[id]) else {
        return if address == 0 { "???".to_owned() } else { format!("{address:#x}") };
    };
    let name = place.symbol.map(|id| &tables.symbols[id].name).filter(|name| !name.is_empty());
    match (name, place.object) {
        (Some(name), _) => name.clone(),
        (None, Some(object)) => format!("{}+{:#x}", file_name(&tables.objects[object].path), place.address),
        (None, None) => format!("{:#x}", place.address),
    }
}

/// The file position of a fault's address, in a mapping of a file.
fn file_offset(tables: &Tables, fault: &Fault) -> Option<u64> {
    let mapping = &tables.mappings[fault.mapping?];
    mapping.object?;
    Some(mapping.offset.wrapping_add(fault.address.wrapping_sub(mapping.start)))
}

/// What lies at a fault's address: the variable, or the block and its allocation site.
fn data_text(tables: &Tables, fault: &Fault) -> Option<String> {
    if let Some(data) = fault.data {
        return Some(tables.describe_place(data));
    }
    let block = fault.block?;
    let site = tables.describe_site(block)?;
    Some(format!("{} bytes from {site}", tables.blocks[block].size))
}
