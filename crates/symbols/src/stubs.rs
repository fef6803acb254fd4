//! Stubs made by the linker (PLT): a few instructions that jump to a function of another object, through an address in
//! a slot of a table. No symbol names them, but the relocations of the slots do. x86 only.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use object::read::elf::ElfFile;
use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, SymbolIndex};

use crate::Bits;

/// Sections of stubs.
const SECTIONS: [&str; 4] = [".plt", ".plt.sec", ".plt.got", ".iplt"];
/// Sections of relocations, for 64-bit and for 32-bit files. The first has those of `.plt`, in the order of its stubs;
/// the second those of `.plt.got`, among many others.
const RELOCATIONS: [(&str, &str); 2] = [(".rela.plt", ".rel.plt"), (".rela.dyn", ".rel.dyn")];

/// The stubs of a file.
#[derive(Default)]
pub struct Stubs<'d> {
    sections: Vec<Section>,
    /// The base of the slots for position-independent 32-bit code.
    table: u64,
    /// Slots and their targets, in the order of `.rela.plt`: stubs contain their index.
    numbered: Vec<(u64, Target<'d>)>,
    /// The same, with those of `.plt.got`, by address.
    slots: Vec<(u64, Target<'d>)>,
}

#[derive(Clone, Copy)]
struct Section {
    start: u64,
    size: u64,
    /// The size of one stub.
    stub: u64,
}

/// The target of a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'d> {
    /// The function of this name.
    Name(&'d str),
    /// The result of the resolver function at this address.
    Chosen(u64),
}

/// The operand by which a stub refers to its target.
enum Operand {
    /// The address of its slot.
    Slot(u64),
    /// The number of its slot.
    Number(u64),
}

impl<'d> Stubs<'d> {
    /// Reads the sections and relocations of a file.
    pub fn read<Header: object::read::elf::FileHeader<Endian = object::Endianness>>(
        file: &ElfFile<'d, Header>,
    ) -> Self {
        let mut stubs = Self::default();
        for name in SECTIONS {
            let Some(section) = file.section_by_name(name) else { continue };
            let marked = section.data().is_ok_and(|data| data.starts_with(&[0xf3, 0x0f, 0x1e]));
            let stub = if name == ".plt.got" && !marked { 8 } else { 16 };
            stubs.sections.push(Section { start: section.address(), size: section.size(), stub });
        }
        let table = file.section_by_name(".got.plt").or_else(|| file.section_by_name(".got"));
        stubs.table = table.map_or(0, |table| table.address());
        let [plt, other] = RELOCATIONS.map(|names| relocations(file, names));
        stubs.numbered = plt;
        stubs.slots = stubs.numbered.iter().copied().chain(other).collect();
        stubs.slots.sort_by_key(|&(slot, _)| slot);
        stubs
    }

    /// The stub at an address: its first address and its size.
    pub fn at(&self, address: u64) -> Option<(u64, u64)> {
        let section = self.sections.iter().find(|s| address >= s.start && address - s.start < s.size)?;
        let inside = address - section.start;
        Some((section.start + inside / section.stub * section.stub, section.stub))
    }

    /// The function whose address a slot holds, if it has a name.
    pub fn named_slot(&self, slot: u64) -> Option<&'d str> {
        let index = self.slots.binary_search_by_key(&slot, |&(slot, _)| slot).ok()?;
        match self.slots[index].1 {
            Target::Name(name) => Some(name),
            Target::Chosen(_) => None,
        }
    }

    /// The target of the stub at this address with these bytes.
    pub fn target(&self, address: u64, code: &[u8], bits: Bits) -> Option<Target<'d>> {
        match operand(address, code, bits, self.table)? {
            Operand::Number(number) => self.numbered.get(usize::try_from(number).ok()?).map(|&(_, target)| target),
            Operand::Slot(slot) => {
                let index = self.slots.binary_search_by_key(&slot, |&(slot, _)| slot).ok()?;
                Some(self.slots[index].1)
            }
        }
    }
}

/// The function slots among the relocations of a section, in their order.
///
/// ```text
/// struct Elf64_Rela { u64 r_offset; u32 type, symbol (as r_info); u64 r_addend; };
/// struct Elf32_Rel  { u32 r_offset; u8 type; u8 symbol[3] (as r_info); };
/// ```
fn relocations<'d, Header: object::read::elf::FileHeader<Endian = object::Endianness>>(
    file: &ElfFile<'d, Header>,
    (of_64_bits, of_32_bits): (&str, &str),
) -> Vec<(u64, Target<'d>)> {
    const GLOB_DAT: u64 = 6;
    const JUMP_SLOT: u64 = 7;
    const IRELATIVE: u64 = 37;
    let symbols = file.dynamic_symbol_table();
    let name =
        |index: u64| symbols.as_ref()?.symbol_by_index(SymbolIndex(usize::try_from(index).ok()?)).ok()?.name().ok();
    let read = |name: &str| file.section_by_name(name).and_then(|section| section.data().ok()).unwrap_or_default();
    let word = |entry: &[u8], at: usize| {
        entry.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
    };
    let target = |kind: u64, symbol: u64, addend: u64| match kind {
        GLOB_DAT | JUMP_SLOT => name(symbol).filter(|name| !name.is_empty()).map(Target::Name),
        IRELATIVE => Some(Target::Chosen(addend)),
        _ => None,
    };
    if file.is_64() {
        let entries = read(of_64_bits).chunks_exact(24);
        let entries = entries.map(|entry| (word(entry, 0), word(entry, 8), word(entry, 16)));
        entries
            .filter_map(|(slot, info, addend)| Some((slot, target(info & 0xffff_ffff, info >> 32, addend)?)))
            .collect()
    } else {
        // The types have the same numbers, except for IRELATIVE, whose addend is in the slot.
        let entries = read(of_32_bits).chunks_exact(8).map(|entry| word(entry, 0));
        let entries = entries.map(|entry| (entry & 0xffff_ffff, entry >> 32));
        entries.filter_map(|(slot, info)| Some((slot, target(info & 0xff, info >> 8, 0)?))).collect()
    }
}

/// The operand of the first instructions of a stub: `jmp [slot]`, or `push number`.
fn operand(address: u64, code: &[u8], bits: Bits, table: u64) -> Option<Operand> {
    const INSTRUCTIONS: usize = 3;
    let mut decoder = Decoder::with_ip(bits.number(), code, address, DecoderOptions::NONE);
    for _ in 0..INSTRUCTIONS {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        if instruction.is_jmp_near_indirect() && instruction.op0_kind() == OpKind::Memory {
            let displacement = instruction.memory_displacement64();
            return match instruction.memory_base() {
                Register::RIP | Register::EIP => Some(Operand::Slot(instruction.ip_rel_memory_address())),
                Register::None => Some(Operand::Slot(displacement & 0xffff_ffff)),
                Register::EBX => Some(Operand::Slot(table.wrapping_add(displacement) & 0xffff_ffff)),
                _ => None,
            };
        }
        if instruction.mnemonic() == Mnemonic::Push && instruction.op0_kind() != OpKind::Memory {
            return Some(Operand::Number(instruction.immediate(0)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stubs() -> Stubs<'static> {
        let slots = vec![(0x4000, Target::Name("puts")), (0x4008, Target::Chosen(0x1800))];
        Stubs {
            sections: vec![
                Section { start: 0x1020, size: 0x40, stub: 16 },
                Section { start: 0x1060, size: 8, stub: 8 },
            ],
            table: 0x3ff0,
            numbered: slots.clone(),
            slots,
        }
    }

    /// Catches stubs that get another one's name, for each form that linkers make.
    #[test]
    fn forms_of_stubs() {
        let stubs = stubs();
        assert_eq!((stubs.at(0x101f), stubs.at(0x1020)), (None, Some((0x1020, 16))));
        assert_eq!((stubs.at(0x104f), stubs.at(0x1067)), (Some((0x1040, 16)), Some((0x1060, 8))));
        let target = |code: &[u8], bits| stubs.target(0x1030, code, bits);
        // jmp [rip+0x2fca]: to 0x4000; the same behind endbr64, with bnd.
        let puts = Some(Target::Name("puts"));
        assert_eq!(target(&[0xff, 0x25, 0xca, 0x2f, 0, 0, 0x68, 0, 0, 0, 0], Bits::Bits64), puts);
        assert_eq!(target(&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0xc5, 0x2f, 0, 0], Bits::Bits64), puts);
        // endbr64; push 1; bnd jmp: the number of the slot.
        let chosen = Some(Target::Chosen(0x1800));
        assert_eq!(target(&[0xf3, 0x0f, 0x1e, 0xfa, 0x68, 1, 0, 0, 0, 0xf2, 0xe9, 0, 0, 0, 0], Bits::Bits64), chosen);
        // jmp [0x4008], jmp [ebx+0x10].
        assert_eq!(target(&[0xff, 0x25, 0x08, 0x40, 0, 0], Bits::Bits32), chosen);
        assert_eq!(target(&[0xff, 0xa3, 0x10, 0, 0, 0], Bits::Bits32), puts);
        // The first stub, which calls the dynamic linker: push [rip+2]; jmp [rip+4].
        assert_eq!(target(&[0xff, 0x35, 2, 0, 0, 0, 0xff, 0x25, 4, 0, 0, 0], Bits::Bits64), None);
        assert_eq!(target(&[], Bits::Bits64), None);
    }
}
