//! An ELF file for the tracer: what `neap-layout` reads of it, and where its code is mapped. No I/O.

use neap_layout::Kind;
use neap_layout::binary::{NamedBy, Section, Symbol};
use object::read::elf::ElfFile64;
use object::{Architecture, Endianness, Object, ObjectKind, ObjectSegment, ObjectSymbol, elf};

/// The function that instrumented code calls.
const ENTER: &str = "__cyg_profile_func_enter";

/// A program or a library.
#[derive(Debug, Default)]
pub struct Binary {
    /// By address; one for each address.
    pub functions: Vec<Symbol>,
    /// Variables and constants, by address; one for each address.
    pub data: Vec<Symbol>,
    /// Sections that are in memory, by address.
    pub sections: Vec<Section>,
    /// Where the names come from.
    pub named_by: NamedBy,
    /// In hexadecimal digits.
    pub build_id: Option<String>,
    /// The parts that the kernel maps as executable.
    pub code: Vec<Segment>,
    /// Whether it runs at its link-time addresses.
    pub fixed: bool,
    /// Whether it is for this processor.
    pub native: bool,
    /// Whether its functions call a library when they are entered (`-finstrument-functions`).
    pub instrumented: bool,
}

/// A part of the file that is mapped as code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// In the file.
    pub offset: u64,
    /// Link-time.
    pub address: u64,
    /// In bytes.
    pub size: u64,
}

impl Binary {
    /// Of a file whose layout was read; `None` if it is damaged.
    pub fn of(layout: neap_layout::Binary, data: &[u8]) -> Option<Self> {
        let file = ElfFile64::<Endianness>::parse(data).ok()?;
        let neap_layout::Binary { sections, symbols, named_by, build_id } = layout;
        let is_code = |symbol: &Symbol| sections[symbol.section].kind == Kind::Text;
        let (functions, data) = symbols.into_iter().partition(is_code);
        Some(Self {
            functions,
            data,
            sections,
            named_by,
            build_id,
            code: file.segments().filter_map(|segment| code(&segment)).collect(),
            fixed: file.kind() == ObjectKind::Executable,
            native: cfg!(target_arch = "x86_64") && file.architecture() == Architecture::X86_64,
            instrumented: file.dynamic_symbols().any(|symbol| symbol.is_undefined() && symbol.name() == Ok(ENTER)),
        })
    }

    /// The name of a symbol's section.
    pub fn section_of(&self, symbol: &Symbol) -> &str {
        &self.sections[symbol.section].name
    }

    /// Drops functions in sections that are not mapped as code.
    pub fn keep_mapped(&mut self) {
        let Self { functions, code, .. } = self;
        let inside = |address: u64, segment: &Segment| address.wrapping_sub(segment.address) < segment.size;
        functions.retain(|function| code.iter().any(|segment| inside(function.address, segment)));
    }

    /// The difference between the program's addresses and the file's, from a part of the file that is mapped as code.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4095;
        let segment = self.code.iter().find(|segment| segment.offset & !PAGE == offset)?;
        Some(start.wrapping_sub(segment.address & !PAGE))
    }

    /// The bytes of code at an address, from the bytes of the file.
    pub fn code_at<'f>(&self, file: &'f [u8], address: u64, size: u64) -> Option<&'f [u8]> {
        let inside = |segment: &&Segment| address >= segment.address && address - segment.address < segment.size;
        let segment = self.code.iter().find(inside)?;
        let start = usize::try_from(address - segment.address + segment.offset).ok()?;
        file.get(start..start.checked_add(usize::try_from(size).ok()?)?)
    }

    /// The link-time address of a file offset that is mapped as code.
    pub fn code_address(&self, offset: u64) -> Option<u64> {
        let inside = |segment: &&Segment| offset >= segment.offset && offset - segment.offset < segment.size;
        let segment = self.code.iter().find(inside)?;
        Some(offset - segment.offset + segment.address)
    }

    /// The index of the function that contains an address.
    pub fn function(&self, address: u64) -> Option<usize> {
        let place = self.functions.partition_point(|function| function.address <= address).checked_sub(1)?;
        let function = &self.functions[place];
        (address - function.address < function.size).then_some(place)
    }

    /// The variable or constant at an address.
    pub fn datum(&self, address: u64) -> Option<&Symbol> {
        let end = self.data.partition_point(|symbol| symbol.address <= address);
        self.data[..end].last().filter(|symbol| address - symbol.address < symbol.size)
    }

    /// The data section at a file offset, and the address of that offset.
    pub fn section(&self, offset: u64) -> Option<(&Section, u64)> {
        let mut data = self.sections.iter().filter(|section| section.kind != Kind::Text);
        data.find_map(|section| {
            let within = offset.checked_sub(section.offset?).filter(|&within| within < section.size)?;
            Some((section, section.address + within))
        })
    }
}

fn code<'d>(segment: &impl ObjectSegment<'d>) -> Option<Segment> {
    let (offset, _) = segment.file_range();
    let executable = matches!(segment.flags(), object::SegmentFlags::Elf { p_flags, .. }
        if p_flags.0 & elf::PF_X.0 != 0);
    executable.then_some(Segment { offset, address: segment.address(), size: segment.size() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Binary {
        let file = std::env::current_exe().and_then(std::fs::read).expect("this program");
        let layout = neap_layout::Binary::parse(&file).expect("an ELF file");
        Binary::of(layout, &file).expect("an ELF file")
    }

    /// Catches functions that are missing, doubled, out of order, or not code.
    #[test]
    fn functions_are_code_and_one_for_an_address() {
        let binary = own();
        assert!(binary.named_by == NamedBy::All && binary.functions.len() > 1000, "{}", binary.functions.len());
        assert!(binary.functions.is_sorted_by(|a, b| a.address < b.address));
        let within = |function: &Symbol| {
            let inside = |code: &Segment| (code.address..code.address + code.size).contains(&function.address);
            binary.code.iter().any(inside)
        };
        assert!(binary.functions.iter().all(within));
        assert!(binary.functions.iter().all(|function| function.size > 0 || binary.section_of(function) != ".text"));
        let main = binary.functions.iter().find(|function| function.name == "main").expect("main");
        assert_eq!((binary.section_of(main), &main.file), (".text", &None));
    }

    /// Catches data with the name or section of another object.
    #[test]
    fn data_have_names_and_sections() {
        let symbol = |name: &str, address, size| Symbol {
            name: name.to_owned(),
            aliases: Vec::new(),
            section: 0,
            address,
            size,
            file: None,
        };
        let (name, offset, kind) = (".data".to_owned(), Some(0x80), Kind::Data);
        let section = Section { name, offset, address: 0x100, size: 0x40, align: 1, kind };
        let data = vec![symbol("a", 0x100, 8), symbol("b", 0x110, 8)];
        let binary = Binary { data, sections: vec![section.clone()], ..Binary::default() };
        let name = |address| binary.datum(address).map(|symbol| symbol.name.as_str());
        assert_eq!(
            [name(0xff), name(0x107), name(0x108), name(0x110), name(0x118)],
            [None, Some("a"), None, Some("b"), None]
        );
        assert_eq!([binary.section(0xbf), binary.section(0xc0)], [Some((&section, 0x13f)), None]);
        let own = own();
        assert!(own.data.iter().all(|symbol| symbol.size > 0) && own.data.is_sorted_by(|a, b| a.address < b.address));
        for (name, is_data) in [(".rodata", true), (".data", true), (".bss", false), (".text", false)] {
            let section = own.sections.iter().find(|section| section.name == name).expect(name);
            let found = section.offset.and_then(|offset| own.section(offset));
            assert_eq!(found.is_some_and(|(found, _)| found.name == name), is_data, "{name}");
        }
    }

    /// Catches a mapping of a position-independent file that counts as one at its link-time addresses.
    #[test]
    fn where_it_is_mapped() {
        let code = vec![Segment { offset: 0x1040, address: 0x2040, size: 0x500 }];
        let binary = Binary { code, ..Binary::default() };
        assert_eq!(binary.bias(0x7f00_0000_2000, 0x1000), Some(0x7f00_0000_0000));
        assert_eq!(binary.bias(0x2000, 0x1000), Some(0));
        assert_eq!(binary.bias(0x2000, 0), None);
    }
}
