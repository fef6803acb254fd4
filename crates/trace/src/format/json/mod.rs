//! JSON: the whole trace, tables and faults, and the reader of it.
//!
//! ```json
//! {
//! "neap_trace": 1,
//! "summary": {"neap": "0.1.0", "command": ["ls"], "pid": 7, "backend": "perf", "faults": 2, ...},
//! "clock": {"tsc": [1653281, 22], "measured": true, "origin": 81723, "wall": 0},
//! "processes": [{"pid": 7, "image": 0, "parent": null, "name": "ls", ...}],
//! "threads": [{"tid": 7, "process": 0, ...}],
//! "objects": [{"path": "/usr/bin/ls", "build_id": "af6c..."}],
//! "mappings": [{"process": 0, "start": "0x5581000", "end": "0x5585000", "offset": "0x0", "kind": "file", ...}],
//! "symbols": [{"name": "main", "linkage_name": null, "object": 0, "address": "0x4000", "size": 80}],
//! "lines": [{"file": "ls.c", "line": 1673}],
//! "places": [{"address": "0x4010", "object": 0, "symbol": 0, "offset": 16, "line": 0}],
//! "stacks": [{"parent": null, "address": "0x5581010", "place": 0}],
//! "blocks": [],
//! "faults": [
//! {"number": 1, "time": 0, "service": 700, "thread": 0, "address": "0x5584000", "page_shift": 12, ...}
//! ]
//! }
//! ```
//!
//! The members are the fields of [`Tables`](crate::Tables) and [`Fault`](crate::Fault), with their names and meanings;
//! `process`, `object`, `symbol`, `mapping`, `code` and so on are positions in the arrays, from 0. Addresses are
//! hexadecimal strings, times are nanoseconds. Each row is on a line of its own. Unknown fields of a fault are left
//! out.
//!
//! `neap_trace` is the version: it changes when a member changes its meaning or is removed, not when members are added.
//! Readers skip members that they do not know.

mod read;

use std::io::{self, Write};

use serde::Serialize;

use crate::{Id, Source, Table};

pub use read::{See, read};

/// The version of the format.
pub const VERSION: u64 = 1;

/// Writes a trace as JSON.
pub fn json(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    let tables = source.tables();
    write!(out, "{{\n\"neap_trace\": {VERSION}")?;
    member("summary", &tables.summary, out)?;
    member("clock", &tables.clock, out)?;
    rows("processes", &tables.processes, out)?;
    rows("threads", &tables.threads, out)?;
    rows("objects", &tables.objects, out)?;
    rows("mappings", &tables.mappings, out)?;
    rows("symbols", &tables.symbols, out)?;
    rows("lines", &tables.lines, out)?;
    rows("places", &tables.places, out)?;
    rows("stacks", &tables.stacks, out)?;
    rows("blocks", &tables.blocks, out)?;
    let mut separator = "";
    out.write_all(b",\n\"faults\": [")?;
    source.visit(&mut |fault| {
        writeln!(out, "{separator}")?;
        separator = ",";
        Ok(serde_json::to_writer(&mut *out, fault)?)
    })?;
    out.write_all(b"\n]\n}\n")
}

fn member(name: &str, value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    write!(out, ",\n\"{name}\": ")?;
    Ok(serde_json::to_writer(out, value)?)
}

fn rows<I: Id, T: Serialize>(name: &str, table: &Table<I, T>, out: &mut dyn Write) -> io::Result<()> {
    write!(out, ",\n\"{name}\": [")?;
    for (id, row) in table.iter() {
        out.write_all(if id.index() == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, row)?;
    }
    out.write_all(b"]")
}
