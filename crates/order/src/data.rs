//! Which data a program touched: from its faults, and from the code that it entered. No I/O.
//!
//! A fault names the first object that is touched on an OS page. Others on the page are found through the instructions
//! of the functions that were entered: an object on a touched page counts if one of them refers to it.

use std::collections::{BTreeMap, BTreeSet};

use neap_layout::binary::Symbol;
use neap_layout::{Trace, TracedData};

use crate::binary::Binary;
use crate::pages::Datum;

const PAGE: u64 = 4096;

/// The touched objects, by address, each once.
pub fn touched(trace: &Trace, binary: &Binary, bytes: &[u8], faults: &[Datum]) -> Vec<TracedData> {
    let mut data: BTreeMap<u64, TracedData> = BTreeMap::new();
    // The OS pages, and whether they were written.
    let mut pages: BTreeMap<u64, bool> = BTreeMap::new();
    for &Datum { address, offset, write } in faults {
        let section = binary.section(offset);
        if let Some(address) = address.or(section.map(|(_, address)| address)) {
            *pages.entry(address / PAGE).or_default() |= write;
        }
        let datum = match (address.and_then(|at| binary.datum(at)), section) {
            (Some(symbol), _) => named(binary, symbol, write),
            (None, Some((section, address))) => {
                let (section, address) = (section.name.clone(), address & !(PAGE - 1));
                TracedData { name: None, section, address, size: PAGE, runs: 1, write }
            }
            (None, None) => continue,
        };
        data.entry(datum.address).or_insert(datum).write |= write;
    }
    for symbol in referred(trace, binary, bytes) {
        let last = symbol.address.saturating_add(symbol.size.max(1) - 1);
        let mut on = pages.range(symbol.address / PAGE..=last / PAGE).peekable();
        if on.peek().is_some() {
            let write = on.any(|(_, write)| *write);
            data.entry(symbol.address).or_insert_with(|| named(binary, symbol, write));
        }
    }
    data.into_values().collect()
}

fn named(binary: &Binary, symbol: &Symbol, write: bool) -> TracedData {
    let (name, section) = (Some(symbol.name.clone()), binary.section_of(symbol).to_owned());
    TracedData { name, section, address: symbol.address, size: symbol.size, runs: 1, write }
}

/// The objects that the functions of a trace refer to, each once.
fn referred<'b>(trace: &Trace, binary: &'b Binary, bytes: &[u8]) -> Vec<&'b Symbol> {
    let mut found = BTreeSet::new();
    for function in &trace.functions {
        let Some(code) = binary.code_at(bytes, function.address, function.size) else { continue };
        references(code, function.address, binary, &mut found);
    }
    found.into_iter().map(|place| &binary.data[place]).collect()
}

/// Adds the indexes of the objects that the code at an address refers to. The instructions are not decoded: any four
/// bytes count that follow an RIP-relative operand byte (mod 0, r/m 5) and are the distance to an object, or that are
/// an object's address in a program that is not position-independent. So an object may be found by chance.
fn references(code: &[u8], address: u64, binary: &Binary, found: &mut BTreeSet<usize>) {
    let data = &binary.data;
    let object = |at: u64| {
        let place = data.partition_point(|symbol| symbol.address <= at).checked_sub(1)?;
        (at - data[place].address < data[place].size).then_some(place)
    };
    for (at, window) in code.windows(5).enumerate() {
        let Ok(field) = <[u8; 4]>::try_from(&window[1..]) else { continue };
        if window[0] & 0xc7 == 0x05 {
            // The distance is counted from the instruction's end.
            let end = address + at as u64 + 5 + operand(&code[..at], window[0]);
            found.extend(object(end.wrapping_add_signed(i64::from(i32::from_le_bytes(field)))));
        }
        if binary.fixed {
            found.extend(object(u64::from(u32::from_le_bytes(field))));
        }
    }
}

/// Number of bytes of an instruction behind its address: those of an immediate operand. `before` ends with the opcode.
fn operand(before: &[u8], mod_rm: u8) -> u64 {
    let tests = mod_rm & 0x30 == 0;
    match *before {
        [.., 0x0f, 0x3a, _] | [.., 0x0f, 0x70 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6] => 1,
        [.., 0x0f, _] => 0,
        [.., 0x66, 0x69 | 0x81 | 0xc7] => 2,
        [.., 0x69 | 0x81 | 0xc7] => 4,
        [.., 0x66, 0xf7] if tests => 2,
        [.., 0xf7] if tests => 4,
        [.., 0xf6] if tests => 1,
        [.., 0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6] => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, address: u64, size: u64) -> Symbol {
        Symbol { name: name.to_owned(), aliases: Vec::new(), section: 0, address, size, file: None }
    }

    /// Catches operands that count as distances, and an object next to the one that is meant.
    #[test]
    fn references_of_code() {
        let data = vec![symbol("a", 0x401_0000, 4), symbol("b", 0x401_0004, 4), symbol("c", 0x402_0000, 0x100)];
        let mut binary = Binary { data, ..Binary::default() };
        let find = |binary: &Binary, code: &[u8], address: u64| {
            let mut found = BTreeSet::new();
            references(code, address, binary, &mut found);
            found.into_iter().map(|place| binary.data[place].name.as_str()).collect::<String>()
        };
        let distance = |from: u64, to: u64| (to.wrapping_sub(from) as u32).to_le_bytes();
        // mov b(%rip), %eax; cmpl $1, b(%rip); lea c+0x80(%rip), %rdi; mov $c, %edi; mov $3, %eax
        for (head, end, tail, to, wanted) in [
            (&[0x8b, 0x05][..], 6, &[][..], 0x401_0004, "b"),
            (&[0x83, 0x3d], 7, &[1], 0x401_0004, "b"),
            (&[0xc7, 0x05], 10, &[1, 0, 0, 0], 0x401_0004, "b"),
            (&[0x66, 0xc7, 0x05], 9, &[1, 0], 0x401_0004, "b"),
            (&[0x0f, 0xb6, 0x05], 7, &[], 0x401_0004, "b"),
            (&[0x48, 0x8d, 0x3d], 7, &[], 0x402_0080, "c"),
            (&[0x48, 0x8d, 0x3d], 7, &[], 0x402_0100, ""),
        ] {
            let code = [head, &distance(0x40_0000 + end, to)[..], tail].concat();
            assert_eq!(find(&binary, &code, 0x40_0000), wanted, "{code:x?}");
        }
        let absolute = [0xbf, 0, 0, 2, 4];
        assert_eq!(find(&binary, &absolute, 0), "");
        binary.fixed = true;
        assert_eq!(find(&binary, &absolute, 0), "c");
    }
}
