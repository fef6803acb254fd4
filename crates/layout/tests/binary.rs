//! A program made by gcc, as it is read; and a trace of it that is used for its next build.

use std::fs;
use std::path::Path;
use std::process::Command;

use neap_layout::binary::NamedBy;
use neap_layout::names::Counts;
use neap_layout::{Binary, Kind, Order, Trace, TracedBinary, TracedData, TracedFunction};

const ONE: &str = "
    static int counter = 1;
    __attribute__((noinline)) static int local(void) { return counter++; }
    int one(void) { return local(); }
    int also_one(void) __attribute__((alias(\"one\")));";
const OTHER: &str = "
    int one(void);
    static int other_zero[100];
    __attribute__((noinline)) static int local(void) { return other_zero[0]++; }
    int gone(void) { return local(); }
    int main(void) { return one() + gone() == 1 ? 0 : 1; }";

fn link(folder: &Path, files: [(&str, &str); 2]) -> Binary {
    let mut gcc = Command::new("gcc");
    gcc.current_dir(folder).args(["-O1", "-Wl,--build-id", "-o", "program"]);
    for (name, source) in files {
        fs::write(folder.join(name), source).expect("written");
        gcc.arg(name);
    }
    assert!(gcc.status().expect("gcc").success());
    Binary::parse(&fs::read(folder.join("program")).expect("linked")).expect("an ELF file")
}

/// Catches names from a debug file of another build, and symbols that get the section at another index.
#[test]
fn names_are_of_the_same_build() {
    let file = fs::read(std::env::current_exe().expect("this program")).expect("readable");
    let own = || Binary::parse(&file).expect("an ELF file");
    let id = |first: u8| Some(format!("{first:02x}02ff"));
    let mut sections = own().sections;
    sections.reverse();
    let stripped = |first| Binary {
        build_id: id(first),
        named_by: NamedBy::None,
        sections: sections.clone(),
        ..Binary::default()
    };
    let debug = || Binary { build_id: id(1), ..own() };
    let (mut same, mut other) = (stripped(1), stripped(7));
    same.take_names(debug());
    other.take_names(debug());
    let main = same.symbols.iter().find(|symbol| symbol.name == "main").expect("main");
    assert!(same.sections[main.section].name == ".text" && same.named_by == NamedBy::All);
    assert!(other.symbols.is_empty() && other.named_by == NamedBy::None);
    assert_eq!(same.debug_name().as_deref(), Some(".build-id/01/02ff.debug"));
    assert_eq!(Binary { build_id: Some("f".to_owned()), ..Binary::default() }.debug_name(), None);
}

/// Catches a panic on damaged files.
#[test]
fn damaged_files_are_refused() {
    let file = fs::read("/bin/sh").expect("every Linux has /bin/sh");
    let binary = Binary::parse(&file).expect("an ELF file");
    let has_functions = binary.symbols.iter().any(|symbol| binary.kind(symbol) == Kind::Text);
    assert_eq!(has_functions, binary.named_by != NamedBy::None);
    for length in [0, 4, 40, 64] {
        assert!(Binary::parse(&file[..length]).is_err(), "{length} bytes");
    }
}

/// Catches a damaged file whose OS pages are counted for ever.
#[test]
fn endless_sections() {
    let mut file = fs::read(std::env::current_exe().expect("this program")).expect("readable");
    let long = |file: &[u8], at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    let bss = Binary::parse(&file).expect("an ELF file").sections;
    let bss = bss.iter().find(|section| section.name == ".bss").expect(".bss").address;
    // `sh_addr` in the section headers, which begin at `e_shoff`; `sh_size` is two words behind it.
    let headers = long(&file, 40) as usize;
    let header =
        (headers..file.len() - 64).step_by(64).find(|header| long(&file, header + 16) == bss).expect("a header");
    for size in [1 << 60, u64::MAX] {
        file[header + 32..header + 40].copy_from_slice(&u64::to_ne_bytes(size));
        assert!(Binary::parse(&file).is_err_and(|error| error.to_string().contains(".bss")), "{size}");
    }
}

/// Catches aliases that are doubled, local symbols of another file, sections of a wrong kind, and functions that are
/// lost or mixed up in the next build.
#[test]
fn this_build_and_the_next() {
    let folder = std::env::temp_dir().join(format!("neap-layout-binary-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let now = link(&folder, [("one.c", ONE), ("other.c", OTHER)]);
    let renamed = OTHER.replace("gone", "new");
    let next = link(&folder, [("other.c", &renamed), ("one.c", ONE)]);
    let _ = fs::remove_dir_all(&folder);

    assert!(now.symbols.is_sorted_by(|one, other| one.address < other.address));
    assert_eq!(now.build_id.as_ref().map(String::len), Some(40));
    let find = |name: &str| now.symbols.iter().filter(|symbol| symbol.name == name).collect::<Vec<_>>();
    let aliased = now.symbols.iter().find(|symbol| symbol.aliases == ["one"]).expect("aliases");
    assert_eq!((aliased.name.as_str(), &aliased.file, now.kind(aliased)), ("also_one", &None, Kind::Text));
    assert_eq!(
        find("local").iter().map(|symbol| symbol.file.as_deref()).collect::<Vec<_>>(),
        [Some("one.c"), Some("other.c")]
    );
    for (section, kind) in [
        (".text", Kind::Text),
        (".rodata", Kind::ReadOnly),
        (".dynamic", Kind::Relro),
        (".data", Kind::Data),
        (".bss", Kind::Bss),
    ] {
        let section = now.sections.iter().find(|known| known.name == section).expect("a section");
        assert_eq!(section.kind, kind, "{}", section.name);
        assert!(section.pages().contains(&(section.address / 4096)));
        assert_eq!(now.section_at(section.address + section.size - 1), Some(section));
    }
    assert_eq!((now.kind(find("counter")[0]), now.kind(find("other_zero")[0])), (Kind::Data, Kind::Bss));

    let mut trace = Trace::new(TracedBinary::default());
    for symbol in [find("local")[1], find("gone")[0], find("local")[0], find("main")[0]] {
        let (name, file, address) = (symbol.name.clone(), symbol.file.clone(), symbol.address);
        trace.functions.push(TracedFunction { name, file, address, ..TracedFunction::default() });
    }
    trace.data.push(TracedData { name: Some("counter.7".to_owned()), ..TracedData::default() });
    trace.data.push(TracedData::default());
    let order = Order::of(&trace, &next);
    assert_eq!(order.functions, Counts { same: 3, lost: 1, changed: 0 });
    assert_eq!((order.data, order.nameless), (Counts { changed: 1, ..Counts::default() }, 1));
    let names: Vec<&str> = order.items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(names, ["local", "local", "main", "counter"]);
    let again = Order::with(&trace, &[3, 0], &next);
    assert_eq!(again.items[..2], [order.items[2].clone(), order.items[0].clone()]);
    assert_eq!(again.functions, Counts { same: 2, ..Counts::default() });
    assert!(Binary::parse(b"text").is_err());
}
