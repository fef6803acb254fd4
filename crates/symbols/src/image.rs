//! An ELF file: its symbols, and the conversion of file offsets to addresses.

use object::read::elf::ElfFile;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind, elf};

use crate::Bits;
use crate::stubs::{Stubs, Target};

/// The sections that unwinding needs.
const UNWIND_SECTIONS: [&str; 4] = [".text", ".eh_frame", ".eh_frame_hdr", ".got"];

/// An ELF file. All addresses are as the file states them.
pub struct Image<'d> {
    segments: Vec<Segment<'d>>,
    /// By address.
    symbols: Vec<Symbol<'d>>,
    /// The highest end of the symbols up to each one, which tells a search when to stop.
    reach: Vec<u64>,
    build_id: Option<&'d [u8]>,
    /// The name of the file with the debug information, and its checksum.
    debug_link: Option<(&'d [u8], u32)>,
    bits: Option<Bits>,
    has_lines: bool,
    /// The sections that unwinding needs.
    sections: Vec<(&'static str, u64, &'d [u8])>,
    /// Addresses and sizes of the sections that are in memory.
    ranges: Vec<(u64, u64)>,
    stubs: Stubs<'d>,
}

struct Segment<'d> {
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
    writable: bool,
    executable: bool,
    data: &'d [u8],
}

#[derive(Clone, Copy)]
struct Symbol<'d> {
    address: u64,
    size: u64,
    what: Option<What>,
    /// The lowest rank is best, where several symbols have the same address.
    rank: u8,
    name: &'d str,
}

/// The kind of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A function.
    Code,
    /// A variable.
    Data,
}

/// A symbol at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'d> {
    /// The linker's name.
    pub name: &'d str,
    /// Its address.
    pub address: u64,
    /// Its size; 0 where the file does not state it.
    pub size: u64,
    /// Whether it is not the function itself, but a stub that jumps to it (in a PLT).
    pub stub: bool,
}

impl<'d> Image<'d> {
    /// Parses a file; `None` if it is not ELF, or is damaged.
    pub fn parse(data: &'d [u8]) -> Option<Self> {
        let mut image = match object::FileKind::parse(data).ok()? {
            object::FileKind::Elf64 => Self::read::<elf::FileHeader64<object::Endianness>>(data),
            object::FileKind::Elf32 => Self::read::<elf::FileHeader32<object::Endianness>>(data),
            _ => None,
        }?;
        image.sort();
        Some(image)
    }

    fn read<Header: object::read::elf::FileHeader<Endian = object::Endianness>>(data: &'d [u8]) -> Option<Self> {
        let file = ElfFile::<Header>::parse(data).ok()?;
        let segments = file.segments().map(|segment| {
            let (offset, file_size) = segment.file_range();
            let flags = match segment.flags() {
                object::SegmentFlags::Elf { p_flags, .. } => p_flags.0,
                _ => 0,
            };
            Segment {
                offset,
                address: segment.address(),
                file_size,
                memory_size: segment.size(),
                writable: flags & elf::PF_W.0 != 0,
                executable: flags & elf::PF_X.0 != 0,
                data: segment.data().unwrap_or_default(),
            }
        });
        let symbols = file.symbols().chain(file.dynamic_symbols());
        Some(Self {
            segments: segments.collect(),
            symbols: symbols.filter_map(|symbol| Symbol::new(&symbol)).collect(),
            reach: Vec::new(),
            build_id: file.build_id().ok().flatten(),
            debug_link: file.gnu_debuglink().ok().flatten(),
            bits: match file.architecture() {
                object::Architecture::X86_64 => Some(Bits::Bits64),
                object::Architecture::I386 => Some(Bits::Bits32),
                _ => None,
            },
            has_lines: file.section_by_name(".debug_line").is_some(),
            sections: UNWIND_SECTIONS
                .iter()
                .filter_map(|&name| {
                    let section = file.section_by_name(name)?;
                    Some((name, section.address(), section.data().ok()?))
                })
                .collect(),
            ranges: file.sections().filter(in_memory).map(|section| (section.address(), section.size())).collect(),
            stubs: match file.architecture() {
                object::Architecture::X86_64 | object::Architecture::I386 => Stubs::read(&file),
                _ => Stubs::default(),
            },
        })
    }

    /// The address of the symbol with this linker's name.
    pub fn named(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }

    /// Adds the symbols of this file's debug file, which has the same addresses.
    pub fn add_symbols(&mut self, other: Image<'d>) {
        self.symbols.extend(other.symbols);
        self.sort();
    }

    /// The address of a mapping that begins at a file offset. `writable` and `executable` are the mapping's: they
    /// select the segment where two share a page of the file.
    pub fn address(&self, offset: u64, writable: bool, executable: bool) -> Option<u64> {
        // Segments are mapped in whole pages, and .bss extends beyond the file's part.
        const PAGE: u64 = 4095;
        let covers = |segment: &&Segment<'_>| {
            let size = if segment.writable { segment.memory_size } else { segment.file_size };
            offset >= segment.offset & !PAGE
                && offset < (segment.offset.saturating_add(size).saturating_add(PAGE)) & !PAGE
        };
        // RELRO makes parts of a writable segment read-only, so the flags alone do not decide.
        let likeness = |segment: &&Segment<'_>| {
            let begins = u8::from(segment.offset & !PAGE == offset);
            2 * begins
                + 2 * u8::from(segment.executable == executable)
                + u8::from(segment.writable == writable)
                + u8::from(segment.writable)
        };
        let segment = self.segments.iter().filter(covers).max_by_key(likeness)?;
        Some(segment.address.wrapping_add(offset).wrapping_sub(segment.offset))
    }

    /// The symbol at an address.
    pub fn find(&self, address: u64, what: What) -> Option<Found<'d>> {
        let end = self.symbols.partition_point(|symbol| symbol.address <= address);
        let fits = |symbol: &&Symbol<'_>| symbol.what.is_none_or(|is| is == what);
        // The one that fits and begins last.
        let mut nearest = None;
        for index in (0..end).rev() {
            let symbol = &self.symbols[index];
            if fits(&symbol) {
                if address - symbol.address < symbol.size {
                    return Some(symbol.found());
                }
                nearest.get_or_insert(index);
            }
            if self.reach[index] <= address && (nearest.is_some() || end - index > 64) {
                break;
            }
        }
        if what == What::Data {
            return None;
        }
        if let Some((start, size)) = self.stubs.at(address) {
            return self.stub(start, size);
        }
        // Assembler code often does not state sizes: such a symbol extends to the next one, or to the end of its
        // section. A label within a function ends with the function.
        let index = nearest?;
        let symbol = &self.symbols[index];
        let alone = symbol.size == 0 && self.reach[index] <= symbol.address;
        (alone && self.same_section(symbol.address, address)).then(|| symbol.found())
    }

    /// The stub at an address, named after its target.
    fn stub(&self, start: u64, size: u64) -> Option<Found<'d>> {
        let code = self.bytes(start)?;
        let code = code.get(..usize::try_from(size).ok()?).unwrap_or(code);
        let name = match self.stubs.target(start, code, self.bits?)? {
            Target::Name(name) => name,
            Target::Chosen(by) => self.stubs.at(by).is_none().then(|| self.find(by, What::Code))??.name,
        };
        Some(Found { name, address: start, size, stub: true })
    }

    /// The name of the function called by the instruction before a return address: `call function`, or `call [slot]`
    /// with the slot of a function of another object. `None` where the target depends on registers.
    pub fn called(&self, behind: u64) -> Option<&'d str> {
        /// `call rel32`, and `call [rip+rel32]`.
        const DIRECT: u8 = 0xe8;
        const INDIRECT: [u8; 2] = [0xff, 0x15];
        if self.bits != Some(Bits::Bits64) {
            return None;
        }
        let code: &[u8; 6] = self.bytes(behind.checked_sub(6)?)?.first_chunk()?;
        let [.., a, b, c, d] = *code;
        let target = behind.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])));
        if code[..2] == INDIRECT {
            return self.stubs.named_slot(target);
        }
        // Any bytes may look like a call: a real one leads to the beginning of a function.
        let found = (code[1] == DIRECT).then(|| self.find(target, What::Code)).flatten()?;
        (found.address == target).then_some(found.name)
    }

    /// The bytes at an address, up to the end of its segment.
    pub fn bytes(&self, address: u64) -> Option<&'d [u8]> {
        let segment = self
            .segments
            .iter()
            .find(|segment| address >= segment.address && address - segment.address < segment.file_size)?;
        segment.data.get(usize::try_from(address - segment.address).ok()?..)
    }

    /// The build id.
    pub fn build_id(&self) -> Option<&'d [u8]> {
        self.build_id
    }

    /// The name of the debug file, if one is linked.
    pub fn debug_link(&self) -> Option<&'d [u8]> {
        self.debug_link.map(|(name, _)| name)
    }

    /// Whether another file with these bytes is the debug file of this one: it has the same build id; or, if one of
    /// them has no build id, the checksum of the debug link.
    pub fn is_described_by(&self, other: &Image<'_>, bytes: &[u8]) -> bool {
        match (self.build_id, other.build_id, self.debug_link) {
            (Some(own), Some(others), _) => own == others,
            (_, _, Some((_, sum))) => checksum(bytes) == sum,
            _ => false,
        }
    }

    /// The mode in which its code runs, where that is known.
    pub fn bits(&self) -> Option<Bits> {
        self.bits
    }

    /// A section that unwinding needs (`.text`, `.eh_frame`, `.eh_frame_hdr`): its address and its bytes.
    pub fn section(&self, name: &str) -> Option<(u64, &'d [u8])> {
        self.sections.iter().find(|section| section.0 == name).map(|&(_, address, data)| (address, data))
    }

    /// Whether it has source lines.
    pub fn has_lines(&self) -> bool {
        self.has_lines
    }

    fn same_section(&self, one: u64, other: u64) -> bool {
        self.ranges.iter().any(|&(start, size)| {
            let inside = |address: u64| address >= start && address - start < size;
            inside(one) && inside(other)
        })
    }

    fn sort(&mut self) {
        // The best of several comes last, where the search begins.
        self.symbols.sort_by(|a, b| (a.address, a.size.min(1), b.rank).cmp(&(b.address, b.size.min(1), a.rank)));
        let mut highest = 0;
        self.reach.clear();
        self.reach.extend(self.symbols.iter().map(|symbol| {
            highest = highest.max(symbol.address.saturating_add(symbol.size));
            highest
        }));
    }
}

impl<'d> Symbol<'d> {
    fn new(symbol: &impl ObjectSymbol<'d>) -> Option<Self> {
        if symbol.is_undefined() || symbol.address() == 0 {
            return None;
        }
        let what = match symbol.kind() {
            SymbolKind::Text => Some(What::Code),
            SymbolKind::Data => Some(What::Data),
            SymbolKind::Label | SymbolKind::Unknown => None,
            // Sections, files, offsets in thread-local storage.
            _ => return None,
        };
        let name = symbol.name().ok().filter(|name| !name.is_empty() && !name.starts_with('$'))?;
        // A global name ranks before a weak one, a weak one before a local one, and among equals a public name before
        // an internal one (`malloc` before `__libc_malloc`).
        let binding = match (symbol.is_local(), symbol.is_weak()) {
            (true, _) => 4,
            (false, true) => 2,
            (false, false) => 0,
        };
        let rank = binding + u8::from(name.starts_with("__"));
        Some(Self { address: symbol.address(), size: symbol.size(), what, rank, name })
    }

    fn found(&self) -> Found<'d> {
        // Versions are not part of the name.
        let name = self.name.split('@').next().filter(|name| !name.is_empty()).unwrap_or(self.name);
        Found { name, address: self.address, size: self.size, stub: false }
    }
}

/// Whether a section is in memory when the program runs.
fn in_memory<'d>(section: &impl ObjectSection<'d>) -> bool {
    matches!(section.flags(), object::SectionFlags::Elf { sh_flags, .. } if sh_flags.0 & elf::SHF_ALLOC.0 != 0)
}

/// The checksum of debug links: CRC-32 as in zlib.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let (mut value, mut bit) = (index as u32, 0);
            while bit < 8 {
                value = if value & 1 == 0 { value >> 1 } else { value >> 1 ^ 0xedb8_8320 };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |sum, &byte| sum >> 8 ^ TABLE[usize::from(sum as u8 ^ byte)])
}
