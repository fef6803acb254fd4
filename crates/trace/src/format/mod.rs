//! The formats in which a trace is written, one module each.

use std::io::{self, Write};

use crate::Source;

mod classic;
mod table;

pub use classic::classic;
pub use table::table;

/// A way of writing a trace.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What it is called on the command line.
    pub name: &'static str,
    /// One line for `--help`.
    pub doc: &'static str,
    /// Writes a whole trace.
    pub write: fn(&dyn Source, &mut dyn Write) -> io::Result<()>,
}

/// All formats; the first is the default.
pub const FORMATS: &[Format] = &[
    Format { name: "classic", doc: "one line for each fault, as the tool of 2007 wrote it", write: classic },
    Format { name: "table", doc: "every column, for people", write: table },
];

impl Format {
    /// The format of that name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }
}

/// The text with ends of lines written as escapes: paths and arguments may contain any.
fn one_line(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(['\n', '\r']) { text.replace('\n', "\\n").replace('\r', "\\r").into() } else { text.into() }
}
