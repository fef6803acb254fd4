//! An ELF file: its sections, and the functions and objects in them.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind, elf};

/// The size of an OS page in bytes.
pub const PAGE: u64 = 4096;

/// Limit on the size of a section, function or object, in bytes: larger ones are ignored, because OS pages are counted
/// one by one.
pub(crate) const LARGEST: u64 = 1 << 36;

/// A program or a library. All addresses are link-time.
#[derive(Clone, Debug, Default)]
pub struct Binary {
    /// Sections that are in memory, by address; without thread-local ones that have no contents.
    pub sections: Vec<Section>,
    /// By address; one for each address.
    pub symbols: Vec<Symbol>,
    /// Where their names come from.
    pub named_by: NamedBy,
    /// In hexadecimal digits.
    pub build_id: Option<String>,
}

/// The table that the names of functions come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamedBy {
    /// `.symtab`, with the functions that are not exported.
    #[default]
    All,
    /// `.dynsym`: exported functions only.
    Exported,
    /// No function has a name.
    None,
}

/// How the system treats the OS pages of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Code, read from the file.
    Text,
    /// Constants, read from the file.
    ReadOnly,
    /// Written by the dynamic linker, then read only: `.data.rel.ro`, `.got`, tables of constructors.
    Relro,
    /// Variables with a value in the file.
    Data,
    /// Variables that begin as zero.
    Bss,
}

/// A section of the linked file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Address of its first byte.
    pub address: u64,
    /// In bytes.
    pub size: u64,
    /// File offset of its first byte; `None` if it begins as zero.
    pub offset: Option<u64>,
    /// In bytes, a power of two.
    pub align: u64,
    /// What it holds.
    pub kind: Kind,
}

/// A function or an object with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The linker's name; of several at an address, a global one before a weak one before a local one.
    pub name: String,
    /// The other names of the address, with those of folded functions.
    pub aliases: Vec<String>,
    /// The index of its section in [`Binary::sections`].
    pub section: usize,
    /// Address of its first byte.
    pub address: u64,
    /// In bytes; 0 in `.init` and `.fini`.
    pub size: u64,
    /// The source file of a local symbol.
    pub file: Option<String>,
}

/// Why bytes cannot be read: they are no 64-bit ELF file, or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotElf(String);

impl NotElf {
    pub(crate) fn new(message: String) -> Self {
        Self(message)
    }
}

impl Kind {
    /// All kinds, in the order of most files.
    pub const ALL: [Kind; 5] = [Kind::Text, Kind::ReadOnly, Kind::Relro, Kind::Data, Kind::Bss];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::ReadOnly => "rodata",
            Kind::Relro => "relro",
            Kind::Data => "data",
            Kind::Bss => "bss",
        }
    }
}

impl Section {
    /// The numbers of the OS pages that it occupies.
    pub fn pages(&self) -> Range<u64> {
        pages(self.address, self.size)
    }
}

/// The numbers of the OS pages that a range occupies.
pub fn pages(address: u64, size: u64) -> Range<u64> {
    match size {
        0 => 0..0,
        _ => address / PAGE..address.saturating_add(size - 1) / PAGE + 1,
    }
}

impl Binary {
    /// Parses a file.
    pub fn parse(data: &[u8]) -> Result<Self, NotElf> {
        let file = ElfFile64::<Endianness>::parse(data).map_err(|error| NotElf(error.to_string()))?;
        let endian = file.endian();
        let relro = file.elf_program_headers().iter().find(|header| header.p_type(endian) == elf::PT_GNU_RELRO);
        let relro = relro.map_or(0..0, |header| {
            let start = header.p_vaddr(endian);
            start..start.saturating_add(header.p_memsz(endian))
        });
        let mut found = Vec::new();
        for section in file.sections() {
            let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
            let has = |flag: elf::SectionFlags| sh_flags.0 & flag.0 != 0;
            let zero = section.kind().is_bss();
            if !has(elf::SHF_ALLOC) || (has(elf::SHF_TLS) && zero) {
                continue;
            }
            let kind = match (has(elf::SHF_EXECINSTR), has(elf::SHF_WRITE)) {
                (true, _) => Kind::Text,
                (false, false) => Kind::ReadOnly,
                (false, true) if relro.contains(&section.address()) => Kind::Relro,
                (false, true) if zero => Kind::Bss,
                (false, true) => Kind::Data,
            };
            let name = section.name().unwrap_or_default().to_owned();
            let (address, size, align) = (section.address(), section.size(), section.align().max(1));
            if size > LARGEST || address.checked_add(size).is_none() {
                return Err(NotElf(format!("the section {name} has {size} bytes at {address:#x}")));
            }
            let offset = section.file_range().map(|(offset, _)| offset);
            found.push((section.index(), Section { name, address, size, offset, align, kind }));
        }
        found.sort_by_key(|(_, section)| section.address);
        let places: HashMap<_, _> = found.iter().enumerate().map(|(place, found)| (found.0, place)).collect();
        let sections: Vec<Section> = found.into_iter().map(|(_, section)| section).collect();
        let has_functions =
            |symbols: &[Symbol]| symbols.iter().any(|symbol| sections[symbol.section].kind == Kind::Text);
        let (mut symbols, mut named_by) = (read(file.symbols(), &sections, &places), NamedBy::All);
        if !has_functions(&symbols) {
            (symbols, named_by) = (read(file.dynamic_symbols(), &sections, &places), NamedBy::Exported);
        }
        if !has_functions(&symbols) {
            named_by = NamedBy::None;
        }
        let build_id = file.build_id().ok().flatten();
        let build_id = build_id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect());
        Ok(Self { sections, symbols, named_by, build_id })
    }

    /// Takes the names of the debug file of this one, if it is of the same build and has more names.
    pub fn take_names(&mut self, debug: Binary) {
        if debug.build_id.is_none() || debug.build_id != self.build_id || debug.named_by != NamedBy::All {
            return;
        }
        // Its sections may have other indexes.
        let place =
            |of: &Section| self.sections.iter().position(|own| own.name == of.name && own.address == of.address);
        let places: Vec<Option<usize>> = debug.sections.iter().map(place).collect();
        let own = |symbol: Symbol| Some(Symbol { section: places[symbol.section]?, ..symbol });
        self.symbols = debug.symbols.into_iter().filter_map(own).collect();
        self.named_by = NamedBy::All;
    }

    /// The name of the debug file of this build, below `/usr/lib/debug`.
    pub fn debug_name(&self) -> Option<String> {
        let (first, rest) = self.build_id.as_ref()?.split_at_checked(2)?;
        Some(format!(".build-id/{first}/{rest}.debug"))
    }

    /// The section at an address.
    pub fn section_at(&self, address: u64) -> Option<&Section> {
        let end = self.sections.partition_point(|section| section.address <= address);
        self.sections[..end].iter().rev().find(|section| address - section.address < section.size)
    }

    /// The kind of a symbol.
    pub fn kind(&self, symbol: &Symbol) -> Kind {
        self.sections[symbol.section].kind
    }
}

fn read<'d>(
    symbols: impl Iterator<Item = impl ObjectSymbol<'d>>,
    sections: &[Section],
    places: &HashMap<object::SectionIndex, usize>,
) -> Vec<Symbol> {
    let (mut found, mut source) = (Vec::new(), None);
    for symbol in symbols {
        let Ok(name) = symbol.name_bytes().map(String::from_utf8_lossy) else { continue };
        if symbol.kind() == SymbolKind::File {
            source = (!name.is_empty()).then(|| name.to_string());
        }
        let Some(&place) = symbol.section_index().and_then(|index| places.get(&index)) else { continue };
        let section = &sections[place];
        let fits = match section.kind {
            Kind::Text => symbol.kind() == SymbolKind::Text,
            _ => symbol.kind() == SymbolKind::Data,
        };
        // Assembler code may declare a table of constants in .text as a function, but then states no size.
        let sized = symbol.size() > 0 || matches!(section.name.as_str(), ".init" | ".fini");
        let inside = symbol.address().wrapping_sub(section.address) < section.size;
        if !fits || !sized || !inside || name.is_empty() {
            continue;
        }
        // Versions are not part of the name.
        let name = name.split('@').next().filter(|name| !name.is_empty()).unwrap_or(&name).to_owned();
        let rank = if symbol.is_local() { 2 } else { u8::from(symbol.is_weak()) };
        let file = if symbol.is_local() { source.clone() } else { None };
        let (address, size) = (symbol.address(), symbol.size());
        found.push((rank, Symbol { name, aliases: Vec::new(), section: place, address, size, file }));
    }
    found.sort_by(|(a_rank, a), (b_rank, b)| (a.address, a_rank, &a.name).cmp(&(b.address, b_rank, &b.name)));
    let mut symbols: Vec<Symbol> = Vec::with_capacity(found.len());
    for (_, symbol) in found {
        match symbols.last_mut().filter(|last| last.address == symbol.address) {
            None => symbols.push(symbol),
            Some(last) => {
                last.size = last.size.max(symbol.size);
                if last.name != symbol.name && !last.aliases.contains(&symbol.name) {
                    last.aliases.push(symbol.name);
                }
            }
        }
    }
    symbols
}

impl fmt::Display for NotElf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an ELF file of 64 bits: {}", self.0)
    }
}

impl std::error::Error for NotElf {}
