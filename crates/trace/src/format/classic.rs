//! The classic format: the columns that a valgrind tool of 2007 printed, and the footer in lines that begin with `#`.
//!
//! ```text
//! 2 0x3000001000 C 58270 0x3000001080: _dl_start (in /lib64/ld-2.5.so)
//! | |            | |     |             |             |
//! | |            | |     |             |             object of the instruction
//! | |            | |     |             symbol of the instruction, ??? if none is known
//! | |            | |     address of the instruction
//! | |            | cycles since the first fault (nanoseconds where the processor's counter is not known)
//! | |            C: code, D: data
//! | address of the page
//! number
//! ```

use std::io::{self, Write};

use crate::{Fault, Source, Tables};

/// Writes a trace in the classic format.
pub fn classic(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    let tables = source.tables();
    source.visit(&mut |fault| line(tables, fault, out))?;
    if tables.clock.tsc.is_none() {
        writeln!(out, "# the fourth column is nanoseconds: the kernel does not say how long a cycle is")?;
    }
    tables.summary.lines().iter().try_for_each(|text| writeln!(out, "# {}", super::one_line(text)))
}

fn line(tables: &Tables, fault: &Fault, out: &mut dyn Write) -> io::Result<()> {
    let (number, page, letter) = (fault.number, fault.address & !0xfff, fault.subject.letter());
    let cycles = tables.clock.cycles(fault.time).unwrap_or(fault.time);
    write!(out, "{number} {page:#x} {letter} {cycles} {:#x}: ", fault.ip)?;
    let place = fault.code.map(|id| &tables.places[id]);
    match place.and_then(|place| place.symbol) {
        Some(symbol) => out.write_all(super::one_line(&tables.symbols[symbol].name).as_bytes())?,
        None => out.write_all(b"???")?,
    }
    match place.and_then(|place| place.object) {
        Some(object) => writeln!(out, " (in {})", super::one_line(&tables.objects[object].path)),
        None => writeln!(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;

    fn fault(number: u64, thread: ThreadId) -> Fault {
        Fault { subject: Subject::Code, ..Fault::new(number, thread, 0x30_0000_1080, 0x30_0000_1080) }
    }

    /// Catches any change of a column: others parse these lines.
    #[test]
    fn the_line_of_2007() {
        let mut trace = Recorded::default();
        let tables = &mut trace.tables;
        tables.clock.tsc = Some((1 << 10, 10));
        let process = tables.processes.push(Process {
            pid: 7,
            image: 0,
            parent: None,
            name: "ls".into(),
            path: None,
            start: 0,
            end: None,
        });
        let thread = tables.threads.push(Thread { tid: 7, process, name: "ls".into(), start: 0, end: None });
        let object = tables.objects.push(Object::new("/lib64/ld-2.5.so"));
        let symbol = tables.symbols.push(Symbol {
            name: "_dl_start".into(),
            linkage_name: None,
            object: Some(object),
            address: 0x1080,
            size: 0,
        });
        let place = Place { address: 0x1080, object: Some(object), symbol: Some(symbol), offset: 0, line: None };
        let known = tables.places.push(place);
        let unknown = tables.places.push(Place { symbol: None, ..place });
        trace.faults = vec![
            Fault { subject: Subject::Data, address: 0x30_0000_0fff, ..fault(1, thread) },
            Fault { time: 58270, code: Some(known), ..fault(2, thread) },
            Fault { time: 58271, code: Some(unknown), ..fault(3, thread) },
        ];
        trace.tables.summary.command = vec!["ls".into(), "a\nb".into()];
        let mut text = Vec::new();
        classic(&trace, &mut text).expect("memory takes everything");
        let text = String::from_utf8(text).expect("UTF-8");
        let (faults, footer): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| !line.starts_with('#'));
        assert_eq!(
            faults,
            [
                "1 0x3000000000 D 0 0x3000001080: ???",
                "2 0x3000001000 C 58270 0x3000001080: _dl_start (in /lib64/ld-2.5.so)",
                "3 0x3000001000 C 58271 0x3000001080: ??? (in /lib64/ld-2.5.so)",
            ]
        );
        assert!(footer.contains(&"# command: ls a\\nb"), "{footer:?}");
    }
}
