//! A table for people: every column that a trace has, one line for each fault. On a terminal as wide as that.

use std::io::{self, Write};

use super::top::shortened;
use crate::{Fault, Kind, Source, Tables};

/// The titles of the columns in front of the text.
const TITLES: [&str; 11] =
    ["FAULT", "TIME us", "CYCLES", "TOOK us", "PID", "TID", "", "MODE", "KIND", "PAGE", "ADDRESS"];
/// The title of the text.
const TEXT: &str = "INSTRUCTION / DATA";
/// How wide the columns are in a file.
const WIDTHS: [usize; 11] = [7, 14, 12, 9, 7, 7, 1, 4, 11, 5, 18];
/// Whether their cells begin at the left.
const LEFT: [bool; 11] = [false, false, false, false, false, false, true, true, true, false, true];

/// The least room for text beside the columns; with less it goes below them, behind the address.
const BESIDE: usize = 50;
/// Where text begins that is below the columns.
const INDENT: usize = 4;
/// The least room for a path.
const LEAST: usize = 20;

type Cells = [String; 11];

/// Writes a trace as a table.
pub fn table(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}  {TEXT}", in_columns(&TITLES.map(str::to_owned), &WIDTHS))?;
    let write = |tables: &Tables, fault: &Fault, out: &mut dyn Write| {
        let mut text = String::new();
        for part in parts(tables, fault, usize::MAX) {
            text.push_str(if part.starts_with("->") || text.is_empty() { "  " } else { " " });
            text.push_str(&part);
        }
        writeln!(out, "{}{}", in_columns(&cells(tables, fault), &WIDTHS), super::one_line(&text))
    };
    rest(source, &write, &|line, out| writeln!(out, "{line}"), out)
}

/// Writes a trace as a table for a terminal of `width` columns: columns are as narrow as what they have, the text is
/// beside them or below, and long paths are shortened in the middle.
pub fn table_within(source: &dyn Source, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut widths = TITLES.map(str::len);
    source.visit(&mut |fault| {
        let cells = cells(source.tables(), fault);
        widths.iter_mut().zip(cells).for_each(|(width, cell)| *width = (*width).max(cell.len()));
        Ok(())
    })?;
    let beside = widths.iter().sum::<usize>() + widths.len() + 1;
    let (count, indent) = if beside + BESIDE <= width { (TITLES.len(), beside) } else { (TITLES.len() - 1, INDENT) };
    let lines = |cells: &Cells, parts: Vec<String>, out: &mut dyn Write| {
        let front = in_columns(&cells[..count], &widths);
        let parts: Vec<String> = cells[count..].iter().cloned().chain(parts).collect();
        if count == cells.len() {
            return filled(format!("{front} "), &parts, indent, width, out);
        }
        writeln!(out, "{}", front.trim_end())?;
        filled(" ".repeat(indent - 1), &parts, indent, width, out)
    };
    lines(&TITLES.map(str::to_owned), vec![TEXT.to_owned()], out)?;
    // Below the columns the address is in front of the text.
    let address = if count == TITLES.len() { 0 } else { widths[count] + 1 };
    let room = width.saturating_sub(indent + address).max(LEAST);
    let write = |tables: &Tables, fault: &Fault, out: &mut dyn Write| {
        lines(&cells(tables, fault), parts(tables, fault, room), out)
    };
    let words = |line: &str, out: &mut dyn Write| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        filled(words[0].clone(), &words[1..], 2, width, out)
    };
    rest(source, &write, &words, out)
}

/// Writes one fault.
type WriteFault<'w> = dyn Fn(&Tables, &Fault, &mut dyn Write) -> io::Result<()> + 'w;

/// What follows the titles: the faults, sums of the kinds, and the footer.
fn rest(
    source: &dyn Source,
    write: &WriteFault<'_>,
    line: &dyn Fn(&str, &mut dyn Write) -> io::Result<()>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let tables = source.tables();
    let mut counts = [(0u64, 0u64); Kind::ALL.len()];
    source.visit(&mut |fault| {
        if let Some(count) = Kind::ALL.iter().position(|&kind| kind == fault.kind).map(|index| &mut counts[index]) {
            count.0 += 1;
            count.1 += u64::from(fault.service.unwrap_or(0));
        }
        write(tables, fault, out)
    })?;
    writeln!(out)?;
    for (kind, (count, took)) in Kind::ALL.into_iter().zip(counts).filter(|(_, (count, _))| *count != 0) {
        let took = took as f64 / 1e3;
        writeln!(out, "# {count:>9} {:<11} {took:>12.1} us  {}", kind.name(), kind.label())?;
    }
    tables.summary.lines().iter().try_for_each(|text| line(&format!("# {}", super::one_line(text)), out))
}

/// Cells beside each other.
fn in_columns(cells: &[String], widths: &[usize]) -> String {
    let cell = |((cell, width), left): ((&String, &usize), &bool)| match left {
        true => format!("{cell:<width$}"),
        false => format!("{cell:>width$}"),
    };
    cells.iter().zip(widths).zip(&LEFT).map(cell).collect::<Vec<_>>().join(" ")
}

/// Writes the parts behind `line`, each whole, in lines of `width` columns that begin at `indent`. What would move the
/// cursor is replaced: names come from files that are not trusted.
fn filled(mut line: String, parts: &[String], indent: usize, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let plain = |line: &str| line.replace(char::is_control, "?");
    let mut empty = true;
    for part in parts {
        if !empty && line.chars().count() + 1 + part.chars().count() > width {
            writeln!(out, "{}", plain(&line))?;
            line = " ".repeat(indent - 1);
        }
        line.push(' ');
        line.push_str(part);
        empty = false;
    }
    writeln!(out, "{}", plain(&line))
}

/// What is in the columns.
fn cells(tables: &Tables, fault: &Fault) -> Cells {
    let thread = &tables.threads[fault.thread];
    [
        fault.number.to_string(),
        format!("{:.1}", fault.time as f64 / 1e3),
        tables.clock.cycles(fault.time).map_or_else(|| "-".to_owned(), |cycles| cycles.to_string()),
        fault.service.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", f64::from(ns) / 1e3)),
        tables.processes[thread.process].pid.to_string(),
        thread.tid.to_string(),
        fault.subject.letter().to_string(),
        if fault.mode == crate::Mode::Kernel { "kern" } else { "user" }.to_owned(),
        // A guess is marked: `anon?`.
        format!("{}{}", fault.kind.name(), if fault.guessed { "?" } else { "" }),
        fault.page_shift.map_or_else(|| "-".to_owned(), size),
        format!("{:#x}", fault.address),
    ]
}

/// What is behind the columns: the instruction, the data, the block and the callers, each in `room` columns.
fn parts(tables: &Tables, fault: &Fault, room: usize) -> Vec<String> {
    let mut parts = vec![match fault.code {
        Some(place) => place_text(tables, place, room),
        None => format!("{:#x}", fault.ip),
    }];
    let data = fault.data.map(|data| format!("({})", tables.describe_place(data)));
    match fault.mapping.map(|id| &tables.mappings[id]) {
        Some(mapping) => {
            let offset = super::file_offset(tables, fault).map_or(String::new(), |offset| format!("+{offset:#x}"));
            let data = data.map_or(String::new(), |data| format!(" {data}"));
            let path = fit(mapping.describe(tables), room, offset.chars().count() + data.chars().count() + 3);
            parts.push(format!("-> {path}{offset}{data}"));
        }
        None => parts.extend(data),
    }
    if let Some(block) = fault.block.map(|id| &tables.blocks[id]) {
        let mut text = format!("(block of {} bytes at {:#x}", block.size, block.address);
        if let Some(site) = fault.block.and_then(|block| tables.site(block)) {
            text.push_str(" from ");
            text.push_str(&match site.place {
                Some(place) => place_text(tables, place, room.saturating_sub(text.len() + 1)),
                None => format!("{:#x}", site.address),
            });
        }
        text.push(')');
        parts.push(text);
    }
    let frames = fault.stack.into_iter().flat_map(|stack| tables.frames(stack));
    // The first frame is the faulting instruction itself, except in kernel mode.
    let callers = frames.filter(|node| node.address != fault.ip);
    parts.extend(callers.map(|node| format!("<- {}", tables.describe_frame(node))));
    parts.into_iter().map(|part| fit(part, room, 0)).collect()
}

/// `symbol+0x12 (file.c:34) in /path`.
fn place_text(tables: &Tables, place: crate::PlaceId, room: usize) -> String {
    let row = &tables.places[place];
    let mut text = tables.describe_place(place);
    if let Some(line) = row.line.map(|id| &tables.lines[id]) {
        text.push_str(&format!(" ({}:{})", line.file, line.line));
    }
    if let Some(object) = row.object.map(|id| &tables.objects[id]) {
        let path = fit(object.path.clone(), room, text.chars().count() + 4);
        text.push_str(&format!(" in {path}"));
    }
    text
}

/// The text in the room that `used` columns leave, but not less than what shows a file's name.
fn fit(text: String, room: usize, used: usize) -> String {
    let room = room.saturating_sub(used).max(LEAST);
    if text.chars().count() <= room { text } else { shortened(&text, room) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Object, Place, Process, Recorded, Symbol, Thread};

    /// Two faults of a program with a long path.
    fn trace() -> Recorded {
        let mut trace = Recorded::default();
        let tables = &mut trace.tables;
        let row = Process { pid: 15125, image: 0, parent: None, name: String::new(), path: None, start: 0, end: None };
        let process = tables.processes.push(row);
        let thread = tables.threads.push(Thread { tid: 15125, process, name: String::new(), start: 0, end: None });
        let path = "/opt/some/where/versions/3.11.7/lib/python3.11/lib-dynload/libpython3.11.so.1.0";
        let object = tables.objects.push(Object::new(path));
        let symbol = Symbol { name: "_start".into(), linkage_name: None, object: Some(object), address: 0, size: 0 };
        let symbol = Some(tables.symbols.push(symbol));
        let place = tables.places.push(Place { address: 1, object: Some(object), symbol, offset: 4, line: None });
        for (number, time) in [(1, 0), (2, 29_943_000)] {
            let fault = Fault { service: Some(11_300), code: Some(place), ..Fault::new(number, thread, 0, 0x1000) };
            trace.faults.push(Fault { time, address: 0x7f96_c852_3110, ..fault });
        }
        trace
    }

    fn within(width: usize) -> String {
        let mut out = Vec::new();
        table_within(&trace(), width, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("UTF-8")
    }

    /// Catches lines that a terminal breaks anywhere, columns that are lost there, and paths without the file's name.
    #[test]
    fn lines_fit_the_terminal() {
        for width in [80, 100, 120, 160] {
            let text = within(width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
            for word in TITLES.into_iter().chain([TEXT, "29943.0", "11.3", "15125", "0x7f96c8523110", "_start+0x4 in "])
            {
                assert!(text.contains(word), "{width}: {word}\n{text}");
            }
            // At 160 the text is beside the columns, and has less room than below them at 120.
            assert!(text.contains("3.11.so.1.0\n") && text.contains('…') == (width != 120), "{width}\n{text}");
        }
        assert!(within(80).contains("\n    0x7f96c8523110 "), "{}", within(80));
        assert_eq!(within(160).lines().filter(|line| line.contains("_start")).count(), 2);
    }
}
