//! An ELF file as the tracer sees it: its functions, and where its code is mapped. No I/O.

use object::read::elf::ElfFile64;
use object::{
    Architecture, Endianness, Object, ObjectKind, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind, elf,
};

/// The function that instrumented code calls.
const ENTER: &str = "__cyg_profile_func_enter";

/// A program or a library.
#[derive(Debug, Default)]
pub struct Binary {
    /// By address; one for each address.
    pub functions: Vec<Symbol>,
    /// Variables and constants with a size, by address; one for each address.
    pub data: Vec<Symbol>,
    /// Sections of data that are in the file and in memory.
    pub sections: Vec<Section>,
    /// Where the names are from.
    pub named_by: Names,
    /// Function symbols without a size, which may stand before data.
    pub without_size: usize,
    /// Its build id.
    pub build_id: Option<Vec<u8>>,
    /// Where its code is: what the kernel maps as executable.
    pub code: Vec<Segment>,
    /// Whether it runs at its link-time addresses.
    pub fixed: bool,
    /// Whether it is for this processor.
    pub native: bool,
    /// Whether its functions call a library when they are entered (`-finstrument-functions`).
    pub instrumented: bool,
}

/// Which table the names of functions are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// `.symtab`, with the functions that are not exported.
    #[default]
    All,
    /// `.dynsym`: exported functions only.
    Exported,
    /// There is no function with a name.
    None,
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

/// A section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// `.rodata`, ...
    pub name: String,
    /// In the file.
    pub offset: u64,
    /// Link-time.
    pub address: u64,
    /// In bytes.
    pub size: u64,
}

/// A function, a variable or a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// As the linker knows it; of several at an address the one that most other files see.
    pub name: String,
    /// Its section in the linked file.
    pub section: String,
    /// Link-time.
    pub address: u64,
    /// In bytes; 0 in `.init` and `.fini`.
    pub size: u64,
    /// The source file of a local symbol.
    pub file: Option<String>,
}

impl Binary {
    /// Reads a file; none if it is not an ELF file of 64 bits, or is damaged.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let file = ElfFile64::<Endianness>::parse(data).ok()?;
        let mut binary = Self {
            build_id: file.build_id().ok().flatten().map(<[u8]>::to_vec),
            sections: file.sections().filter_map(|section| data_section(&section)).collect(),
            code: file.segments().filter_map(|segment| code(&segment)).collect(),
            fixed: file.kind() == ObjectKind::Executable,
            native: cfg!(target_arch = "x86_64") && file.architecture() == Architecture::X86_64,
            instrumented: file.dynamic_symbols().any(|symbol| symbol.is_undefined() && symbol.name() == Ok(ENTER)),
            ..Self::default()
        };
        binary.read(&file, file.symbols());
        if binary.functions.is_empty() {
            binary.named_by = Names::Exported;
            binary.read(&file, file.dynamic_symbols());
        }
        if binary.functions.is_empty() {
            binary.named_by = Names::None;
        }
        Some(binary)
    }

    /// Takes the functions of the file with the debug information of this one, if it is that and has more.
    pub fn take_names(&mut self, debug: Binary) {
        if debug.build_id.is_some() && debug.build_id == self.build_id && debug.named_by == Names::All {
            (self.functions, self.data, self.named_by) = (debug.functions, debug.data, debug.named_by);
            self.without_size = debug.without_size;
        }
    }

    /// Leaves out functions of sections that no process has in its code.
    pub fn keep_mapped(&mut self) {
        let Self { functions, code, .. } = self;
        let inside = |address: u64, segment: &Segment| address.wrapping_sub(segment.address) < segment.size;
        functions.retain(|function| code.iter().any(|segment| inside(function.address, segment)));
    }

    /// By how much the program's addresses differ from those of the file, where a part of the file is mapped as code.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4095;
        let segment = self.code.iter().find(|segment| segment.offset & !PAGE == offset)?;
        Some(start.wrapping_sub(segment.address & !PAGE))
    }

    /// The bytes of code at an address, from those of the file.
    pub fn code_at<'f>(&self, file: &'f [u8], address: u64, size: u64) -> Option<&'f [u8]> {
        let inside = |segment: &&Segment| address >= segment.address && address - segment.address < segment.size;
        let segment = self.code.iter().find(inside)?;
        let start = usize::try_from(address - segment.address + segment.offset).ok()?;
        file.get(start..start.checked_add(usize::try_from(size).ok()?)?)
    }

    /// The link-time address of a place in the file that is mapped as code.
    pub fn code_address(&self, offset: u64) -> Option<u64> {
        let inside = |segment: &&Segment| offset >= segment.offset && offset - segment.offset < segment.size;
        let segment = self.code.iter().find(inside)?;
        Some(offset - segment.offset + segment.address)
    }

    /// The place of the function that an address lies in.
    pub fn function(&self, address: u64) -> Option<usize> {
        let place = self.functions.partition_point(|function| function.address <= address).checked_sub(1)?;
        let function = &self.functions[place];
        (address - function.address < function.size).then_some(place)
    }

    fn read<'d>(&mut self, file: &ElfFile64<'d>, symbols: impl Iterator<Item = impl ObjectSymbol<'d>>) {
        let sections: Vec<(String, bool, u64, u64)> = file
            .sections()
            .map(|section| {
                let executable = matches!(section.flags(), object::SectionFlags::Elf { sh_flags, .. }
                    if sh_flags.0 & elf::SHF_EXECINSTR.0 != 0);
                (section.name().unwrap_or_default().to_owned(), executable, section.address(), section.size())
            })
            .collect();
        let places: std::collections::HashMap<_, _> =
            file.sections().enumerate().map(|(place, section)| (section.index(), place)).collect();
        let (mut functions, mut data, mut source) = (Vec::new(), Vec::new(), None);
        for symbol in symbols {
            if symbol.kind() == SymbolKind::File {
                source = symbol.name().ok().filter(|name| !name.is_empty()).map(str::to_owned);
            }
            let is_code = symbol.kind() == SymbolKind::Text;
            if !is_code && symbol.kind() != SymbolKind::Data || symbol.is_undefined() {
                continue;
            }
            let Some(place) = symbol.section_index().and_then(|index| places.get(&index)) else { continue };
            let (section, executable, start, length) = &sections[*place];
            let Ok(name) = symbol.name_bytes() else { continue };
            let inside = (*start..start.saturating_add(*length)).contains(&symbol.address());
            if is_code != *executable || name.is_empty() || !inside {
                continue;
            }
            // Assembler code may call a table of constants in .text a function, but states no size then.
            if symbol.size() == 0 && !matches!(section.as_str(), ".init" | ".fini") {
                self.without_size += usize::from(is_code);
                continue;
            }
            let rank = match (symbol.is_local(), symbol.is_weak()) {
                (true, _) => 2,
                (false, true) => 1,
                (false, false) => 0,
            };
            let file = if symbol.is_local() { source.clone() } else { None };
            let name = String::from_utf8_lossy(name).into_owned();
            let name = name.split('@').next().filter(|name| !name.is_empty()).unwrap_or(&name).to_owned();
            let (section, address, size) = (section.clone(), symbol.address(), symbol.size());
            let found = if is_code { &mut functions } else { &mut data };
            found.push((rank, Symbol { name, section, address, size, file }));
        }
        (self.functions, self.data) = (best(functions), best(data));
    }

    /// The variable or constant at an address.
    pub fn datum(&self, address: u64) -> Option<&Symbol> {
        let end = self.data.partition_point(|symbol| symbol.address <= address);
        self.data[..end].last().filter(|symbol| address - symbol.address < symbol.size)
    }

    /// The section of data at a place in the file, and the address of that place.
    pub fn section(&self, offset: u64) -> Option<(&Section, u64)> {
        let inside = |section: &&Section| offset >= section.offset && offset - section.offset < section.size;
        let section = self.sections.iter().find(inside)?;
        Some((section, section.address.wrapping_add(offset - section.offset)))
    }
}

/// By address, one for each: that of the lowest rank, then by name.
fn best(mut found: Vec<(u8, Symbol)>) -> Vec<Symbol> {
    found.sort_by(|(a_rank, a), (b_rank, b)| (a.address, a_rank, &a.name).cmp(&(b.address, b_rank, &b.name)));
    found.dedup_by_key(|(_, symbol)| symbol.address);
    found.into_iter().map(|(_, symbol)| symbol).collect()
}

fn data_section<'d>(section: &impl ObjectSection<'d>) -> Option<Section> {
    let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { return None };
    let wanted = sh_flags.0 & (elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0) == elf::SHF_ALLOC.0;
    let (name, address, size) = (section.name().ok()?.to_owned(), section.address(), section.size());
    let (offset, _) = section.file_range().filter(|_| wanted)?;
    Some(Section { name, offset, address, size })
}

fn code<'d>(segment: &impl ObjectSegment<'d>) -> Option<Segment> {
    let (offset, _) = segment.file_range();
    let executable = matches!(segment.flags(), object::SegmentFlags::Elf { p_flags, .. }
        if p_flags.0 & elf::PF_X.0 != 0);
    executable.then_some(Segment { offset, address: segment.address(), size: segment.size() })
}

/// The name of the file with the debug information of a build, below `/usr/lib/debug`.
pub fn debug_name(build_id: &[u8]) -> Option<String> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!(".build-id/{first:02x}/{rest}.debug"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Binary {
        let file = std::env::current_exe().and_then(std::fs::read).expect("this program");
        Binary::parse(&file).expect("an ELF file")
    }

    /// Catches functions that are missing, doubled, out of order, or not code.
    #[test]
    fn functions_are_code_and_one_for_an_address() {
        let binary = own();
        assert!(binary.named_by == Names::All && binary.functions.len() > 1000, "{}", binary.functions.len());
        assert!(binary.functions.is_sorted_by(|a, b| a.address < b.address));
        let within = |function: &Symbol| {
            let inside = |code: &Segment| (code.address..code.address + code.size).contains(&function.address);
            binary.code.iter().any(inside)
        };
        assert!(binary.functions.iter().all(within));
        assert!(binary.functions.iter().all(|function| function.size > 0 || function.section != ".text"));
        let main = binary.functions.iter().find(|function| function.name == "main").expect("main");
        assert_eq!((main.section.as_str(), &main.file), (".text", &None));
    }

    /// Catches data whose name or section is that of another.
    #[test]
    fn data_have_names_and_sections() {
        let symbol = |name: &str, address, size| Symbol {
            name: name.to_owned(),
            section: ".data".to_owned(),
            address,
            size,
            file: None,
        };
        let section = Section { name: ".data".to_owned(), offset: 0x80, address: 0x100, size: 0x40 };
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
        assert!([".rodata", ".data"].iter().all(|name| own.sections.iter().any(|section| section.name == *name)));
        assert!(own.sections.iter().all(|section| section.name != ".bss" && section.name != ".text"));
    }

    /// Catches a mapping of a position-independent file that is taken for one at its link-time addresses.
    #[test]
    fn where_it_is_mapped() {
        let code = vec![Segment { offset: 0x1040, address: 0x2040, size: 0x500 }];
        let binary = Binary { code, ..Binary::default() };
        assert_eq!(binary.bias(0x7f00_0000_2000, 0x1000), Some(0x7f00_0000_0000));
        assert_eq!(binary.bias(0x2000, 0x1000), Some(0));
        assert_eq!(binary.bias(0x2000, 0), None);
    }

    /// Catches names of a debug file of another build.
    #[test]
    fn names_are_of_the_same_build() {
        let stripped = |id: u8| Binary { build_id: Some(vec![id, 2, 255]), named_by: Names::None, ..Binary::default() };
        let debug = || Binary { build_id: Some(vec![1, 2, 255]), ..own() };
        let (mut same, mut other) = (stripped(1), stripped(7));
        same.take_names(debug());
        other.take_names(debug());
        assert!(!same.functions.is_empty() && same.named_by == Names::All);
        assert!(other.functions.is_empty() && other.named_by == Names::None);
        assert_eq!(debug_name(&[1, 2, 255]).as_deref(), Some(".build-id/01/02ff.debug"));
    }

    /// Catches a panic on damaged files.
    #[test]
    fn damaged_files_are_none() {
        let file = std::fs::read("/bin/sh").expect("every Linux has /bin/sh");
        assert!(
            Binary::parse(&file).is_some_and(|binary| binary.functions.is_empty() || binary.named_by != Names::None)
        );
        for length in [0, 4, 40, 64] {
            assert!(Binary::parse(&file[..length]).is_none(), "{length} bytes");
        }
    }
}
