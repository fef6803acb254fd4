//! Comma-separated values (RFC 4180): a line of names, then a line for each fault. Unknown values are empty.
//!
//! The columns are [`COLUMNS`]; new ones are added at the end. The footer is not written.

use std::io::{self, Write};

use serde::Serialize;

use crate::{Fault, Source, Tables};

/// The names of the columns.
pub const COLUMNS: [&str; 38] = [
    "number",
    "time_ns",
    "cycles",
    "service_ns",
    "pid",
    "tid",
    "process",
    "thread",
    "mode",
    "subject",
    "access",
    "kind",
    "guessed",
    "page",
    "page_size",
    "address",
    "ip",
    "symbol",
    "symbol_offset",
    "object",
    "object_address",
    "source",
    "line",
    "mapping",
    "mapping_kind",
    "protection",
    "file_offset",
    "data_symbol",
    "data_offset",
    "block_address",
    "block_size",
    "stack",
    "site_symbol",
    "site_offset",
    "site_object",
    "site_source",
    "site_line",
    "site_stack",
];

/// A line, in the order of [`COLUMNS`].
#[derive(Serialize)]
struct Row<'a> {
    number: u64,
    time_ns: u64,
    cycles: Option<u64>,
    service_ns: Option<u32>,
    pid: u32,
    tid: u32,
    process: &'a str,
    thread: &'a str,
    mode: &'static str,
    subject: char,
    access: &'static str,
    kind: &'static str,
    guessed: bool,
    page: Hex,
    page_size: Option<u64>,
    address: Hex,
    ip: Hex,
    symbol: Option<&'a str>,
    symbol_offset: Option<Hex>,
    object: Option<&'a str>,
    object_address: Option<Hex>,
    source: Option<&'a str>,
    line: Option<u32>,
    mapping: Option<String>,
    mapping_kind: Option<&'static str>,
    protection: Option<crate::Protection>,
    file_offset: Option<Hex>,
    data_symbol: Option<&'a str>,
    data_offset: Option<Hex>,
    block_address: Option<Hex>,
    block_size: Option<u64>,
    stack: Option<String>,
    site_symbol: Option<&'a str>,
    site_offset: Option<Hex>,
    site_object: Option<&'a str>,
    site_source: Option<&'a str>,
    site_line: Option<u32>,
    site_stack: Option<String>,
}

/// Prints as `0x7f00`.
#[derive(Serialize)]
#[serde(transparent)]
struct Hex(#[serde(with = "crate::text::hex")] u64);

/// Writes a trace as comma-separated values.
pub fn csv(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    let tables = source.tables();
    let mut writer = ::csv::WriterBuilder::new().has_headers(false).from_writer(out);
    writer.write_record(COLUMNS)?;
    source.visit(&mut |fault| Ok(writer.serialize(row(tables, fault))?))?;
    writer.flush()
}

fn row<'a>(tables: &'a Tables, fault: &Fault) -> Row<'a> {
    let thread = &tables.threads[fault.thread];
    let process = &tables.processes[thread.process];
    let code = fault.code.map(|id| &tables.places[id]);
    let data = fault.data.map(|id| &tables.places[id]);
    let line = code.and_then(|place| place.line).map(|id| &tables.lines[id]);
    let mapping = fault.mapping.map(|id| &tables.mappings[id]);
    let block = fault.block.map(|id| &tables.blocks[id]);
    let site_stack = block.and_then(|block| block.site);
    let site = fault.block.and_then(|block| tables.site(block)).and_then(|node| node.place);
    let site = site.map(|id| &tables.places[id]);
    let site_line = site.and_then(|place| place.line).map(|id| &tables.lines[id]);
    let symbol_of = |place: &crate::Place| place.symbol.map(|id| tables.symbols[id].name.as_str());
    Row {
        number: fault.number,
        time_ns: fault.time,
        cycles: tables.clock.cycles(fault.time),
        service_ns: fault.service,
        pid: process.pid,
        tid: thread.tid,
        process: &process.name,
        thread: &thread.name,
        mode: fault.mode.name(),
        subject: fault.subject.letter(),
        access: fault.access.name(),
        kind: fault.kind.name(),
        guessed: fault.guessed,
        page: Hex(fault.page()),
        page_size: fault.page_shift.and_then(|shift| 1u64.checked_shl(shift.into())),
        address: Hex(fault.address),
        ip: Hex(fault.ip),
        symbol: code.and_then(symbol_of),
        symbol_offset: code.filter(|place| place.symbol.is_some()).map(|place| Hex(place.offset)),
        object: code.and_then(|place| place.object).map(|id| tables.objects[id].path.as_str()),
        object_address: code.filter(|place| place.object.is_some()).map(|place| Hex(place.address)),
        source: line.map(|line| line.file.as_str()),
        line: line.map(|line| line.line),
        mapping: mapping.map(|mapping| mapping.describe(tables)),
        mapping_kind: mapping.map(|mapping| mapping.kind.name()),
        protection: mapping.map(|mapping| mapping.protection),
        file_offset: super::file_offset(tables, fault).map(Hex),
        data_symbol: data.and_then(symbol_of),
        data_offset: data.filter(|place| place.symbol.is_some()).map(|place| Hex(place.offset)),
        block_address: block.map(|block| Hex(block.address)),
        block_size: block.map(|block| block.size),
        stack: fault.stack.is_some().then(|| super::folded::stack_text(tables, fault)),
        site_symbol: site.and_then(symbol_of),
        site_offset: site.filter(|place| place.symbol.is_some()).map(|place| Hex(place.offset)),
        site_object: site.and_then(|place| place.object).map(|id| tables.objects[id].path.as_str()),
        site_source: site_line.map(|line| line.file.as_str()),
        site_line: site_line.map(|line| line.line),
        site_stack: site_stack.map(|stack| super::folded::site_text(tables, stack)),
    }
}
