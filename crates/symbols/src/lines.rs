//! Source lines.

use std::borrow::Cow;

use addr2line::gimli::{self, EndianSlice, RunTimeEndian};
use object::{Object, ObjectSection};

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The file, with the directory of its compilation.
    pub file: String,
    /// The line; 0 where it is not known.
    pub line: u32,
}

type Slice = EndianSlice<'static, RunTimeEndian>;

/// The debug information of a file. It is parsed only on request.
///
/// Compressed sections are uncompressed permanently: `leak` stores their bytes for the rest of the process.
pub struct Lines(addr2line::Context<Slice>);

impl Lines {
    /// The debug information of an ELF file; `None` if there is none that can be read. `leak` keeps bytes for the rest
    /// of the process.
    pub fn parse(data: &'static [u8], leak: &dyn Fn(Vec<u8>) -> &'static [u8]) -> Option<Self> {
        let file = object::File::parse(data).ok()?;
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let load = |id: gimli::SectionId| -> Result<Slice, gimli::Error> {
            let section = file.section_by_name(id.name());
            let bytes: &'static [u8] = match section.and_then(|section| section.uncompressed_data().ok()) {
                Some(Cow::Borrowed(bytes)) => bytes,
                Some(Cow::Owned(bytes)) => leak(bytes),
                None => &[],
            };
            Ok(EndianSlice::new(bytes, endian))
        };
        let dwarf = gimli::Dwarf::load(load).ok()?;
        addr2line::Context::from_dwarf(dwarf).ok().map(Self)
    }

    /// The functions at an address, inlined ones first, with their (mangled) names and lines; empty without debug
    /// information.
    pub fn functions(&self, address: u64) -> Vec<(Option<String>, Option<Line>)> {
        let mut functions = Vec::new();
        let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() else { return functions };
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.and_then(|name| name.raw_name().map(|name| name.into_owned()).ok());
            let line = frame
                .location
                .and_then(|location| Some(Line { file: location.file?.to_owned(), line: location.line.unwrap_or(0) }));
            functions.push((name, line));
        }
        functions
    }

    /// The line of an address.
    pub fn find(&self, address: u64) -> Option<Line> {
        let location = self.0.find_location(address).ok().flatten()?;
        Some(Line { file: location.file?.to_owned(), line: location.line.unwrap_or(0) })
    }
}
