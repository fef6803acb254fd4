//! Tests on texts, instructions, and on the test program itself as an ELF file.

use super::*;

/// Catches a mode of access that would turn a guess into a wrong certainty.
#[test]
fn instructions() {
    let b64 = |code: &[u8]| access(code, Bits::Bits64);
    assert_eq!(b64(&[0x8b, 0x07]), Some(Access::Read)); // mov eax, [rdi]
    assert_eq!(b64(&[0x89, 0x07]), Some(Access::Write)); // mov [rdi], eax
    assert_eq!(b64(&[0x01, 0x07]), Some(Access::Write)); // add [rdi], eax
    assert_eq!(b64(&[0x55]), Some(Access::Write)); // push rbp
    assert_eq!(b64(&[0xf3, 0x48, 0xab]), Some(Access::Write)); // rep stosq
    assert_eq!(b64(&[0xf3, 0xa4]), None); // rep movsb: either
    assert_eq!(b64(&[0x48, 0x8d, 0x07]), None); // lea rax, [rdi]
    assert_eq!(b64(&[0x31, 0xc0]), None); // xor eax, eax
    assert_eq!(b64(&[0xf0, 0x0f, 0xb1, 0x0f]), Some(Access::Write)); // lock cmpxchg [rdi], ecx
    assert_eq!(b64(&[]), None);
    assert_eq!(access(&[0x48], Bits::Bits32), None); // dec eax
}

/// Catches names that stay mangled, and plain ones that are changed.
#[test]
fn names() {
    assert_eq!(
        demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE").as_deref(),
        Some("core::fmt::Write::write_fmt")
    );
    assert_eq!(
        demangle("_ZNSt6vectorIiSaIiEE9push_backERKi").as_deref(),
        Some("std::vector<int, std::allocator<int> >::push_back(int const&)")
    );
    assert_eq!(demangle("_RNvC6_123foo3bar").as_deref(), Some("123foo::bar"));
    assert_eq!(demangle("main"), None);
    assert_eq!(demangle("_Z"), None);
}

/// Catches lines of listings that are read wrongly, and searches that find a neighbour.
#[test]
fn listings() {
    let map = Listing::perf_map(b"1000 20 first one\nrubbish\n0x2000 10 second\n1000 20 newer\nzz 1 x\n");
    assert_eq!(map.find(0x1010), Some(("newer", 0x1000, 0x20)));
    assert_eq!(map.find(0x1020), None);
    assert_eq!(map.find(0x2000).map(|found| found.0), Some("second"));
    assert_eq!(map.find(0xfff), None);
    let kernel =
        Listing::kallsyms(b"ffffffff81000000 T _stext\nffffffff81000100 t f\t[mod]\nffffffff81000180 d data\n");
    assert_eq!(kernel.find(0xffff_ffff_8100_0190).map(|found| found.0), Some("f"));
    assert!(Listing::kallsyms(b"0000000000000000 T _stext\n").is_empty());
}

/// A function to find; not inlined, and with a known name.
#[inline(never)]
fn to_be_found() -> u32 {
    std::hint::black_box(7)
}

static DATA_TO_BE_FOUND: [u64; 4] = [1, 2, 3, 4];

/// Catches symbols, data, bytes and lines that are not found in a real file: this test program.
#[test]
fn the_test_program_itself() {
    let bytes: &'static [u8] = std::fs::read(std::env::current_exe().expect("a path")).expect("readable").leak();
    let image = Image::parse(bytes).expect("ELF");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let address_of = |pointer: usize| {
        let line = maps.lines().find(|line| {
            let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
            let hex = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
            (hex(start)..hex(end)).contains(&pointer)
        });
        let words: Vec<&str> = line.expect("mapped").split_whitespace().collect();
        let start = usize::from_str_radix(words[0].split('-').next().expect("start"), 16).expect("hexadecimal");
        let offset = u64::from_str_radix(words[2], 16).expect("hexadecimal");
        image.address(offset, words[1].contains('w'), words[1].contains('x')).expect("a segment")
            + (pointer - start) as u64
    };
    assert_eq!(to_be_found(), 7);
    let code = address_of(to_be_found as fn() -> u32 as usize);
    let found = image.find(code + 1, What::Code).expect("a symbol");
    assert_eq!((demangle(found.name).as_deref(), found.address), (Some("neap_symbols::tests::to_be_found"), code));
    assert!(image.bytes(code).is_some_and(|bytes| bytes.len() > 4));
    let data = address_of(std::hint::black_box(&DATA_TO_BE_FOUND) as *const _ as usize);
    let found = image.find(data + 8, What::Data).expect("a symbol");
    assert!(found.name.contains("DATA_TO_BE_FOUND"), "{found:?}");
    let lines = Lines::parse(bytes, &|bytes| bytes.leak()).expect("debug information");
    assert!(lines.find(code).is_some_and(|line| line.file.ends_with("symbols/src/tests.rs") && line.line > 0));
}

/// Assembles a source and links it as a library, with the C compiler; `None` without a compiler.
fn library(name: &str, source: &str, options: &[&str]) -> Option<&'static [u8]> {
    use std::process::Command;
    let stem = std::env::temp_dir().join(format!("neap-symbols-{name}-{}", std::process::id()));
    let (from, to) = (stem.with_extension("s"), stem.with_extension("so"));
    std::fs::write(&from, source).expect("a folder for temporary files");
    let made = Command::new("cc").args(["-shared", "-nostdlib", "-o"]).args([&to, &from]).args(options).status();
    let bytes = std::fs::read(&to);
    let _ = (std::fs::remove_file(from), std::fs::remove_file(to));
    let made = made.is_ok_and(|status| status.success());
    if !made {
        eprintln!("SKIPPED: no C compiler");
    }
    made.then(|| &*bytes.expect("what was linked").leak())
}

/// Functions with and without sizes in two sections, some without symbols, and a call through a stub.
#[cfg(target_arch = "x86_64")]
const MIXED: &str = r#"
    .section .first, "ax"
    .globl unsized_first
unsized_first:
    .fill 64, 1, 0x90
    .text
    .fill 64, 1, 0x90
    .globl unsized
    .type unsized, @function
unsized:
    .fill 32, 1, 0x90
    .globl sized
    .type sized, @function
sized:
    .fill 16, 1, 0x90
    .size sized, . - sized
    .fill 64, 1, 0x90
    .globl outer
    .type outer, @function
outer:
    .fill 16, 1, 0x90
    .globl label
label:
    .fill 16, 1, 0x90
    call elsewhere@plt
    .size outer, . - outer
    .fill 16, 1, 0x90
"#;

/// Catches code without a symbol that gets its neighbour's: behind a function with a size, in another section, in the
/// stubs of the linker.
#[cfg(target_arch = "x86_64")]
#[test]
fn code_without_a_symbol() {
    let Some(bytes) = library("mixed", MIXED, &[]) else { return };
    let image = Image::parse(bytes).expect("ELF");
    let address = |name: &str| {
        let file = object::File::parse(bytes).expect("ELF");
        object::Object::symbol_by_name(&file, name).map(|symbol| object::ObjectSymbol::address(&symbol)).expect(name)
    };
    let at = |address: u64| image.find(address, What::Code).map(|found| (found.name, found.stub));
    let is = |name: &'static str| Some((name, false));
    let (unsized_, sized, outer) = (address("unsized"), address("sized"), address("outer"));
    assert_eq!(
        (at(unsized_), at(unsized_ + 31), at(sized), at(sized + 15)),
        (is("unsized"), is("unsized"), is("sized"), is("sized"))
    );
    assert_eq!((at(sized + 16), at(outer - 1)), (None, None), "behind a function that says where it ends");
    // A label within a function is not its end.
    assert_eq!((at(outer + 20), at(outer + 36), at(outer + 37)), (is("outer"), is("outer"), None));
    let first = address("unsized_first");
    assert_eq!((at(first + 63), at(unsized_ - 1)), (is("unsized_first"), None), "another section");
    let file = object::File::parse(bytes).expect("ELF");
    let plt = object::Object::section_by_name(&file, ".plt").expect("stubs");
    let start = object::ObjectSection::address(&plt);
    assert_eq!(
        (at(start), at(start + 16), at(start + 31)),
        (None, Some(("elsewhere", true)), Some(("elsewhere", true)))
    );
    let found = image.find(start + 20, What::Code).expect("a stub");
    assert_eq!((found.address, found.size), (start + 16, 16));
}

/// Catches debug files of another build that are accepted, and wrong checksums of debug links.
#[cfg(target_arch = "x86_64")]
#[test]
fn debug_files_are_those_of_the_object() {
    let with = |name, id: &str| library(name, ".text\n nop\n", &[&format!("-Wl,--build-id={id}")]);
    let (Some(one), Some(two), Some(none)) = (with("one", "0x0102"), with("two", "0x0103"), with("none", "none"))
    else {
        return;
    };
    let [image_one, image_two, image_none] = [one, two, none].map(|bytes| Image::parse(bytes).expect("ELF"));
    assert!(image_one.is_described_by(&image_one, one) && !image_one.is_described_by(&image_two, two));
    // Without a build id and without a link there is no proof.
    assert!(!image_none.is_described_by(&image_one, one));
    assert_eq!(image::checksum(b"123456789"), 0xcbf4_3926);
}

/// Catches fuzzing seeds that the targets reject.
#[test]
fn seeds_of_the_fuzzer() {
    let seed = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for (name, bits) in [("objects/library", Bits::Bits64), ("objects/library-32", Bits::Bits32)] {
        let bytes = seed(name);
        let image = Image::parse(&bytes).expect(name);
        let names: Vec<_> = (0..0x400).filter_map(|address| image.find(address, What::Code)).collect();
        assert!(image.bits() == Some(bits) && names.iter().any(|found| found.name == "load"), "{name}");
        assert!(names.iter().any(|found| found.name == "elsewhere" && found.stub), "{name}");
    }
    assert!(Image::parse(&seed("objects/library")).is_some_and(|image| image.has_lines()));
    assert!(Listing::perf_map(&seed("texts/perf-map")).find(0x1010).is_some());
    assert!(Listing::kallsyms(&seed("texts/kallsyms")).find(0xffff_ffff_8123_45f1).is_some());
    let text = |name: &str| String::from_utf8(seed(name)).expect("a name");
    assert!(demangle(&text("texts/cxx")).is_some() && demangle(&text("texts/rust")).is_some());
    assert_eq!(access(&seed("texts/code"), Bits::Bits64), Some(Access::Write));
}

/// Catches a panic on damaged files: bytes of a real one, cut and changed.
#[test]
fn damaged_files() {
    let bytes = std::fs::read("/proc/self/exe").expect("readable");
    let head = &bytes[..bytes.len().min(1 << 16)];
    for end in (0..head.len()).step_by(997) {
        let _ = Image::parse(&head[..end]);
    }
    for position in 0..64 * 20 {
        let mut damaged = head.to_vec();
        damaged[position] ^= 0xff;
        if let Some(image) = Image::parse(&damaged) {
            let _ = (image.find(u64::MAX, What::Code), image.address(u64::MAX / 2, true, false), image.bytes(1));
        }
    }
}
