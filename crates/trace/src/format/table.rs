//! A table for people: every column that a trace has, one line for each fault.

use std::io::{self, Write};

use crate::{Fault, Kind, Source, Tables};

/// Writes a trace as a table.
pub fn table(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    let tables = source.tables();
    writeln!(
        out,
        "{:>7} {:>14} {:>12} {:>9} {:>7} {:>7} {:<1} {:<4} {:<11} {:>5} {:<18}  INSTRUCTION / DATA",
        "FAULT", "TIME us", "CYCLES", "TOOK us", "PID", "TID", "", "MODE", "KIND", "PAGE", "ADDRESS"
    )?;
    let mut counts = [(0u64, 0u64); Kind::ALL.len()];
    source.visit(&mut |fault| {
        if let Some(count) = Kind::ALL.iter().position(|&kind| kind == fault.kind).map(|index| &mut counts[index]) {
            count.0 += 1;
            count.1 += u64::from(fault.service.unwrap_or(0));
        }
        line(tables, fault, out)
    })?;
    writeln!(out)?;
    for (kind, (count, took)) in Kind::ALL.into_iter().zip(counts).filter(|(_, (count, _))| *count != 0) {
        let took = took as f64 / 1e3;
        writeln!(out, "# {count:>9} {:<11} {took:>12.1} us  {}", kind.name(), kind.label())?;
    }
    tables.summary.lines().iter().try_for_each(|text| writeln!(out, "# {}", super::one_line(text)))
}

fn line(tables: &Tables, fault: &Fault, out: &mut dyn Write) -> io::Result<()> {
    let thread = &tables.threads[fault.thread];
    let cycles = tables.clock.cycles(fault.time).map_or_else(|| "-".to_owned(), |cycles| cycles.to_string());
    let took = fault.service.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", f64::from(ns) / 1e3));
    // A guess is marked: `anon?`.
    let kind = format!("{}{}", fault.kind.name(), if fault.guessed { "?" } else { "" });
    write!(
        out,
        "{:>7} {:>14.1} {cycles:>12} {took:>9} {:>7} {:>7} {:<1} {:<4} {kind:<11} {:>5} {:<#18x}  ",
        fault.number,
        fault.time as f64 / 1e3,
        tables.processes[thread.process].pid,
        thread.tid,
        fault.subject.letter(),
        if fault.mode == crate::Mode::Kernel { "kern" } else { "user" },
        fault.page_shift.map_or_else(|| "-".to_owned(), size),
        fault.address,
    )?;
    let mut text = match fault.code {
        Some(place) => place_text(tables, place),
        None => format!("{:#x}", fault.ip),
    };
    if let Some(mapping) = fault.mapping.map(|id| &tables.mappings[id]) {
        text.push_str(&format!("  -> {}", mapping.describe(tables)));
        if let Some(offset) = super::file_offset(tables, fault) {
            text.push_str(&format!("+{offset:#x}"));
        }
    }
    if let Some(data) = fault.data {
        text.push_str(&format!(" ({})", tables.describe_place(data)));
    }
    if let Some(block) = fault.block.map(|id| &tables.blocks[id]) {
        text.push_str(&format!(" (block of {} bytes at {:#x}", block.size, block.address));
        if let Some(site) = fault.block.and_then(|block| tables.site(block)) {
            text.push_str(" from ");
            match site.place {
                Some(place) => text.push_str(&place_text(tables, place)),
                None => text.push_str(&format!("{:#x}", site.address)),
            }
        }
        text.push(')');
    }
    let frames = fault.stack.into_iter().flat_map(|stack| tables.frames(stack));
    // The first frame is the faulting instruction itself, except in kernel mode.
    for node in frames.filter(|node| node.address != fault.ip) {
        text.push_str(" <- ");
        match node.place {
            Some(place) => text.push_str(&tables.describe_place(place)),
            None => text.push_str(&format!("{:#x}", node.address)),
        }
    }
    writeln!(out, "{}", super::one_line(&text))
}

/// `symbol+0x12 (file.c:34) in /path`.
fn place_text(tables: &Tables, place: crate::PlaceId) -> String {
    let row = &tables.places[place];
    let mut text = tables.describe_place(place);
    if let Some(line) = row.line.map(|id| &tables.lines[id]) {
        text.push_str(&format!(" ({}:{})", line.file, line.line));
    }
    if let Some(object) = row.object.map(|id| &tables.objects[id]) {
        text.push_str(&format!(" in {}", object.path));
    }
    text
}

/// A power of two of bytes: `4K`, `2M`, `1G`.
fn size(shift: u8) -> String {
    match shift {
        10..20 => format!("{}K", 1u64 << (shift - 10)),
        20..30 => format!("{}M", 1u64 << (shift - 20)),
        30..63 => format!("{}G", 1u64 << (shift - 30)),
        _ => format!("2^{shift}"),
    }
}
