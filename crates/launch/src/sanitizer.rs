//! Recognises programs that were built with a sanitizer that has its own malloc.
//!
//! AddressSanitizer and related tools find errors through their own allocator. With `libneap.so` in front of it they
//! abort (AddressSanitizer), refuse the address space (ThreadSanitizer) or find nothing (LeakSanitizer); where the
//! runtime is linked into the program, the program's malloc comes first and neap has no effect.
//! UndefinedBehaviorSanitizer has no allocator, so it does not count.

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use object::{Endianness, ReadRef};

/// A sanitizer with an allocator of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Sanitizer {
    /// Its name in the compilers' manuals.
    pub name: &'static str,
    /// The name of its runtime: `asan` in `libasan.so.8`.
    runtime: &'static str,
    /// The function that instrumented code calls before main; the runtime defines it.
    init: &'static str,
}

const TABLE: &[Sanitizer] = &[
    Sanitizer { name: "AddressSanitizer", runtime: "asan", init: "__asan_init" },
    Sanitizer { name: "HWAddressSanitizer", runtime: "hwasan", init: "__hwasan_init" },
    Sanitizer { name: "ThreadSanitizer", runtime: "tsan", init: "__tsan_init" },
    Sanitizer { name: "MemorySanitizer", runtime: "msan", init: "__msan_init" },
    Sanitizer { name: "LeakSanitizer", runtime: "lsan", init: "__lsan_init" },
];

/// A sanitizer whose runtime is linked into the program and exports no name of its own.
static UNKNOWN: Sanitizer = Sanitizer { name: "a sanitizer", runtime: "", init: "" };

impl Sanitizer {
    /// The sanitizer whose runtime this library is, by file name: `libasan.so.8` of GCC, `libclang_rt.asan-x86_64.so`
    /// of Clang.
    pub fn of_library(file_name: &[u8]) -> Option<&'static Self> {
        TABLE.iter().find(|sanitizer| {
            let runtime = |prefix: &[u8], ends: &[u8]| {
                let rest =
                    file_name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(sanitizer.runtime.as_bytes()));
                rest.and_then(<[u8]>::first).is_some_and(|end| ends.contains(end))
            };
            runtime(b"lib", b".") || runtime(b"libclang_rt.", b".-_")
        })
    }
}

/// The sanitizer that the program in `data` was built with.
pub fn find<'data, R: ReadRef<'data>>(data: R) -> object::read::Result<Option<&'static Sanitizer>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let found = by_symbols(header, data)?;
    if found.is_some() { Ok(found) } else { by_libraries(header, data) }
}

/// By the dynamic symbols, which are found through the section headers.
fn by_symbols<'data, R: ReadRef<'data>>(
    header: &FileHeader64<Endianness>,
    data: R,
) -> object::read::Result<Option<&'static Sanitizer>> {
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let table = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    let (mut own_malloc, mut runtime) = (false, false);
    for symbol in table.iter() {
        let name = symbol.name(endian, table.strings())?;
        let defined = symbol.st_shndx(endian) != elf::SHN_UNDEF;
        // A weak reference only tests whether a sanitizer is present.
        if defined || symbol.st_bind() != elf::STB_WEAK {
            let found = TABLE.iter().find(|sanitizer| sanitizer.init.as_bytes() == name);
            if found.is_some() {
                return Ok(found);
            }
        }
        own_malloc |= defined && name == b"malloc";
        runtime |= name.starts_with(b"__sanitizer_");
    }
    // GCC's static runtimes export malloc, and of their own names only weak references.
    Ok((own_malloc && runtime).then_some(&UNKNOWN))
}

/// By the libraries that the program needs.
fn by_libraries<'data, R: ReadRef<'data>>(
    header: &FileHeader64<Endianness>,
    data: R,
) -> object::read::Result<Option<&'static Sanitizer>> {
    let endian = header.endian()?;
    let segments = header.program_headers(endian, data)?;
    for segment in segments {
        let Some(entries) = segment.dynamic(endian, data)? else { continue };
        let values = |tag| entries.iter().filter(move |e| e.d_tag(endian) == tag).map(move |e| e.d_val(endian));
        let Some(strings) = values(elf::DT_STRTAB).next() else { continue };
        for offset in values(elf::DT_NEEDED) {
            let Some(at) = strings.checked_add(offset) else { continue };
            // The longest name of a runtime, and its terminator.
            let name = segments.iter().find_map(|s| s.data_range(endian, data, at, 24).ok().flatten());
            let found = name.and_then(Sanitizer::of_library);
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches runtimes that are not recognised by their file name, and other libraries that are.
    #[test]
    fn runtimes_are_told_by_their_file_names() {
        let name_of = |file: &str| Sanitizer::of_library(file.as_bytes()).map(|sanitizer| sanitizer.name);
        assert_eq!(name_of("libasan.so.8"), Some("AddressSanitizer"));
        assert_eq!(name_of("libhwasan.so.0"), Some("HWAddressSanitizer"));
        assert_eq!(name_of("libtsan.so.2"), Some("ThreadSanitizer"));
        assert_eq!(name_of("liblsan.so.0"), Some("LeakSanitizer"));
        assert_eq!(name_of("libclang_rt.asan-x86_64.so"), Some("AddressSanitizer"));
        assert_eq!(name_of("libclang_rt.tsan.so"), Some("ThreadSanitizer"));
        for other in
            ["libubsan.so.1", "libasano.so", "libc.so.6", "asan.so", "libclang_rt.ubsan_standalone.so", "lib", ""]
        {
            assert_eq!(name_of(other), None, "{other}");
        }
    }

    /// Catches ordinary programs that count as built with a sanitizer.
    #[test]
    fn ordinary_programs_have_none() {
        for program in ["/bin/sh", "/bin/true"] {
            let file = std::fs::read(program).expect("every Linux has it");
            assert_eq!(find(file.as_slice()), Ok(None), "{program}");
        }
    }
}
