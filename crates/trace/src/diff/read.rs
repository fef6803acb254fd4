//! Reads traces to compare.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead};

use super::{Instruction, Totals, add, mapping_name, page_name};
use crate::format::json;
use crate::{Fault, Kind, MappingId, PlaceId, Tables};

/// Why a file cannot be compared.
#[derive(Debug)]
pub enum Unreadable {
    /// It is empty.
    Empty,
    /// It is a trace in a format that lacks some of what is compared.
    Format(&'static str),
    /// neap did not write it.
    NotATrace,
    /// It cannot be read, is cut, or is not in the version that this neap reads.
    Json(serde_json::Error),
    /// The same, for comma-separated values.
    Csv(csv::Error),
    /// A line of comma-separated values has no number where one is needed: the line, and the column.
    Value(u64, &'static str),
    /// A column of comma-separated values is missing.
    Column(&'static str),
    /// The system does not let it be read.
    Io(io::Error),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::Format(name) => write!(f, "it is in the format {name}, and only json and csv can be compared"),
            Self::NotATrace => f.write_str("it is no trace of neap pagein"),
            Self::Json(error) => write!(f, "{error}"),
            Self::Csv(error) => write!(f, "{error}"),
            Self::Value(line, column) => write!(f, "line {line} has no number in the column {column}"),
            Self::Column(column) => write!(f, "it has no column {column}"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Reads and counts a trace in the format json or csv.
pub fn read(reader: &mut dyn BufRead) -> Result<Totals, Unreadable> {
    let start = reader.fill_buf().map_err(Unreadable::Io)?;
    let Some(first) = start.iter().position(|byte| !byte.is_ascii_whitespace()) else {
        return Err(if start.is_empty() { Unreadable::Empty } else { unknown(start) });
    };
    match &start[first..] {
        [b'{', ..] => from_json(reader),
        rest if rest.starts_with(b"number,") => from_csv(reader),
        _ => Err(unknown(start)),
    }
}

/// Names another format by how the file starts.
fn unknown(start: &[u8]) -> Unreadable {
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        [b"FAULT", b"TIME", ..] => Unreadable::Format("table"),
        [number, page, b"C" | b"D", ..] if is_number(number) && page.starts_with(b"0x") => {
            Unreadable::Format("classic")
        }
        [b"<!doctype", ..] => Unreadable::Format("html"),
        [.., count] if is_number(count) && line.contains(&b';') => Unreadable::Format("folded"),
        _ => Unreadable::NotATrace,
    }
}

fn is_number(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}

/// Faults by what they refer to; names are looked up when everything is read.
#[derive(Default)]
struct ById {
    faults: u64,
    kinds: HashMap<Kind, u64>,
    code: HashMap<Option<PlaceId>, u64>,
    mappings: HashMap<Option<MappingId>, u64>,
    pages: HashMap<(MappingId, u64), u64>,
}

impl ById {
    fn add(&mut self, tables: &Tables, fault: &Fault) {
        self.faults += 1;
        *self.kinds.entry(fault.kind).or_default() += 1;
        *self.code.entry(fault.code).or_default() += 1;
        *self.mappings.entry(fault.mapping).or_default() += 1;
        // Pages of anonymous memory are not compared, and there can be millions.
        let compared = |id: &MappingId| tables.mappings.get(*id).is_none_or(|mapping| mapping.object.is_some());
        if let Some(mapping) = fault.mapping.filter(compared) {
            *self.pages.entry((mapping, fault.address & !0xfff)).or_default() += 1;
        }
    }

    fn totals(self, tables: Tables) -> Totals {
        let mut totals = Totals { faults: self.faults, ..Totals::default() };
        for (kind, count) in self.kinds {
            add(&mut totals.kinds, kind.name().to_owned(), count);
        }
        for (code, count) in self.code {
            let place = code.map(|id| &tables.places[id]);
            let instruction = Instruction {
                symbol: place.and_then(|place| place.symbol).and_then(|id| named(&tables.symbols[id].name)),
                object: place.and_then(|place| place.object).and_then(|id| named(&tables.objects[id].path)),
                address: place.map_or(0, |place| place.address),
            };
            add(&mut totals.functions, instruction.name(), count);
        }
        for (mapping, count) in self.mappings {
            let name = mapping.map(|id| tables.mappings[id].describe(&tables));
            add(&mut totals.mappings, mapping_name(name.as_deref().and_then(named)).to_owned(), count);
        }
        for ((mapping, address), count) in self.pages {
            let mapping = &tables.mappings[mapping];
            let name = mapping.describe(&tables);
            if mapping.object.is_some() && !name.is_empty() {
                let offset = mapping.offset.wrapping_add(address.wrapping_sub(mapping.start));
                add(&mut totals.pages, page_name(&name, offset), count);
            }
        }
        totals.command = tables.summary.command;
        totals
    }
}

/// An empty name counts as missing, as in JSON.
fn named(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}

fn from_json(reader: &mut dyn BufRead) -> Result<Totals, Unreadable> {
    let mut counts = ById::default();
    let tables = json::read(reader, &mut |tables: &Tables, fault: &Fault| counts.add(tables, fault))
        .map_err(Unreadable::Json)?;
    Ok(counts.totals(tables))
}

/// The positions of the columns that are compared.
struct Columns {
    kind: usize,
    symbol: usize,
    object: usize,
    object_address: usize,
    mapping: usize,
    file_offset: usize,
}

impl Columns {
    fn find(names: &csv::StringRecord) -> Result<Self, Unreadable> {
        let find =
            |wanted: &'static str| names.iter().position(|name| name == wanted).ok_or(Unreadable::Column(wanted));
        Ok(Self {
            kind: find("kind")?,
            symbol: find("symbol")?,
            object: find("object")?,
            object_address: find("object_address")?,
            mapping: find("mapping")?,
            file_offset: find("file_offset")?,
        })
    }
}

fn from_csv(reader: &mut dyn BufRead) -> Result<Totals, Unreadable> {
    let mut reader = csv::Reader::from_reader(reader);
    let columns = Columns::find(reader.headers().map_err(Unreadable::Csv)?)?;
    let mut totals = Totals::default();
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(Unreadable::Csv)? {
        let line = record.position().map_or(0, csv::Position::line);
        let text = |column: usize| record.get(column).and_then(named);
        let number = |column: usize, name| match text(column) {
            Some(text) => crate::text::hex::parse(text).map(Some).ok_or(Unreadable::Value(line, name)),
            None => Ok(None),
        };
        let instruction = Instruction {
            symbol: text(columns.symbol),
            object: text(columns.object),
            address: number(columns.object_address, "object_address")?.unwrap_or(0),
        };
        let mapping = text(columns.mapping);
        totals.faults += 1;
        add(&mut totals.kinds, text(columns.kind).unwrap_or("unknown").to_owned(), 1);
        add(&mut totals.functions, instruction.name(), 1);
        add(&mut totals.mappings, mapping_name(mapping).to_owned(), 1);
        if let (Some(mapping), Some(offset)) = (mapping, number(columns.file_offset, "file_offset")?) {
            add(&mut totals.pages, page_name(mapping, offset), 1);
        }
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        match read(&mut text.as_bytes()) {
            Ok(totals) => panic!("{text:?} was read: {totals:?}"),
            Err(why) => why.to_string(),
        }
    }

    /// Catches files that pass as traces, and formats that are not named.
    #[test]
    fn other_files_are_refused() {
        assert_eq!(why(""), "it is empty");
        assert_eq!(why(" \n"), "it is no trace of neap pagein");
        assert_eq!(why("\x7fELF"), "it is no trace of neap pagein");
        let only = "and only json and csv can be compared";
        assert_eq!(why("1 0x3000000000 D 0 0x3000001080: ???\n"), format!("it is in the format classic, {only}"));
        assert_eq!(why("  FAULT        TIME us  CYCLES\n"), format!("it is in the format table, {only}"));
        assert_eq!(why("<!doctype html>\n"), format!("it is in the format html, {only}"));
        assert_eq!(why("main;load 17\n"), format!("it is in the format folded, {only}"));
        assert!(why("{}").starts_with("it has no member \"neap_trace\""), "{}", why("{}"));
        assert!(why("{\"meta\": {}, \"threads\": []}").contains("Firefox Profiler"));
        assert!(why("{\"neap_trace\": 2}").contains("version 2"), "{}", why("{\"neap_trace\": 2}"));
        assert!(why("{\"neap_trace\": 1, \"faults\": [").contains("EOF"));
        let fault = "{\"number\":1,\"time\":0,\"thread\":3,\"address\":\"0x0\",\"subject\":\"code\",\
            \"access\":\"read\",\"kind\":\"anon\",\"ip\":\"0x0\",\"mode\":\"user\"}";
        let broken = format!("{{\"neap_trace\": 1, \"faults\": [{fault}]}}");
        assert!(why(&broken).starts_with("it refers to a thread"), "{}", why(&broken));
        assert_eq!(why("number,kind\n1,anon\n"), "it has no column symbol");
        let names = "number,kind,symbol,object,object_address,mapping,file_offset\n";
        assert_eq!(why(&format!("{names}1,anon,,,x,,\n")), "line 2 has no number in the column object_address");
        assert!(why(&format!("{names}1,anon\n")).contains("line: 2"));
    }
}
