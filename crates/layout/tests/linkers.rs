//! A program with many functions of which it uses few, linked by each linker with the order file for it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use neap_layout::names::Counts;
use neap_layout::{Binary, Estimate, Kind, Order, Trace, TracedBinary, TracedData, TracedFunction, emit};

const ALL: usize = 400;
const USED: usize = 32;

/// The functions that are used, in the order of their first entry: scattered.
fn used() -> impl Iterator<Item = usize> {
    (0..USED).map(|n| n * 7 % USED * (ALL / USED))
}

/// Each function has a constant, a table of addresses, a variable, and one that begins as zero.
fn source() -> String {
    let mut text = String::new();
    for n in 0..ALL {
        let _ = writeln!(
            text,
            "const int constant_{n}[64] = {{{n}}};
            const int *const table_{n}[32] = {{constant_{n}}};
            int variable_{n}[64] = {{1}};
            int zero_{n}[64];
            __attribute__((noinline)) int function_{n}(int x) {{
                __asm__ volatile(\"jmp 1f; .skip 200; 1:\");
                return zero_{n}[x] = variable_{n}[x] += table_{n}[x][0];
            }}"
        );
    }
    let calls: String = used().map(|n| format!("function_{n}(0);")).collect();
    let _ = writeln!(text, "int main(void) {{ {calls} return 0; }}");
    text
}

struct Program {
    folder: PathBuf,
    object: PathBuf,
    trace: Trace,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Program {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("neap-layout-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (file, object) = (folder.join("program.c"), folder.join("program.o"));
        fs::write(&file, source()).expect("written");
        let options = ["-O1", "-fPIE", "-ffunction-sections", "-fdata-sections", "-c", "-o"];
        run(Command::new("gcc").args(options).arg(&object).arg(&file));
        let mut program = Self { folder, object, trace: Trace::new(TracedBinary::default()) };
        let plain = program.link("plain", &["-fuse-ld=bfd"]);
        program.trace = trace(&plain);
        program
    }

    fn link(&self, name: &str, options: &[&str]) -> Binary {
        let output = self.folder.join(name);
        run(Command::new("gcc").arg("-pie").arg(&self.object).arg("-o").arg(&output).args(options));
        run(&mut Command::new(&output));
        Binary::parse(&fs::read(&output).expect("linked")).expect("an ELF file")
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    }

    fn order(&self) -> Order {
        Order::of(&self.trace, &self.link("again", &["-fuse-ld=bfd"]))
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the program uses of a binary.
fn trace(binary: &Binary) -> Trace {
    let find = |name: String| {
        let symbol = binary.symbols.iter().find(|symbol| symbol.name == name).unwrap_or_else(|| panic!("no {name}"));
        (symbol.address, symbol.size, binary.sections[symbol.section].name.clone(), name)
    };
    let mut trace = Trace::new(TracedBinary::default());
    for (rank, n) in (0..).zip(used()) {
        let (address, size, section, name) = find(format!("function_{n}"));
        trace.functions.push(TracedFunction { name, section, address, size, rank, runs: 1, ..Default::default() });
        for (part, write) in [("constant", false), ("table", false), ("variable", true), ("zero", true)] {
            let (address, size, section, name) = find(format!("{part}_{n}"));
            trace.data.push(TracedData { name: Some(name), section, address, size, runs: 1, write });
        }
    }
    trace
}

/// Catches an order file that a linker does not read, and a kind of section that it does not move.
fn check(linker: &str, before: &Trace, after: &Binary) {
    let traced = trace(after);
    let in_order = traced.functions.is_sorted_by(|one, other| one.address < other.address);
    assert!(in_order, "{linker}: functions are not in the order of the trace");
    let estimate = Estimate::of(&traced, after);
    assert_eq!(estimate.outside, 0, "{linker}");
    assert_eq!(estimate.kinds.len(), Kind::ALL.len(), "{linker}");
    for (kind, line) in &estimate.kinds {
        // One more, because they need not begin at an OS page border.
        let (now, packed) = (line.now.pages, line.packed.pages);
        assert!(now <= packed + 1, "{linker}: {} lies on {now} OS pages, {packed} at best", kind.name());
    }
    assert_eq!(before.functions.len(), traced.functions.len());
}

fn there(linker: &str) -> bool {
    let there = Command::new(linker).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        println!("skipped: {linker} is not installed");
    }
    there
}

/// Without an order the pieces lie on most OS pages: otherwise the other tests could not fail.
#[test]
fn without_an_order_they_are_scattered() {
    let program = Program::new("plain");
    let estimate = Estimate::of(&program.trace, &program.link("again", &["-fuse-ld=bfd"]));
    for (kind, line) in &estimate.kinds {
        assert!(line.now.pages > 3 * line.packed.pages, "{}: {line:?}", kind.name());
        assert!(line.now.faults_around <= line.now.faults && line.pieces == USED as u64);
    }
    let order = program.order();
    let count = |same: usize| Counts { same, ..Counts::default() };
    assert_eq!((order.functions, order.data, order.nameless), (count(USED), count(4 * USED), 0));
}

#[test]
fn gnu_ld() {
    let program = Program::new("ld");
    let order = program.order();
    let object = program.object.display().to_string();
    let output = program.folder.join("verbose").display().to_string();
    let verbose = run(Command::new("gcc").args(["-pie", "-fuse-ld=bfd", "-Wl,--verbose", &object, "-o", &output]));
    let script = program.write("script", &emit::ld_script(&order, &verbose).expect("a whole script"));
    let linked = program.link("ld-script", &["-fuse-ld=bfd", &format!("-Wl,-T,{script}")]);
    check("ld with a script", &program.trace, &linked);
    assert!(emit::ld_script(&order, "SECTIONS { }").is_err());

    if !run(Command::new("ld.bfd").arg("--help")).contains("--section-ordering-file") {
        println!("skipped: ld.bfd has no --section-ordering-file, it is older than 2.43");
        return;
    }
    let file = program.write("ordering", &emit::ld(&order));
    let linked = program.link("ld", &["-fuse-ld=bfd", &format!("-Wl,--section-ordering-file={file}")]);
    check("ld", &program.trace, &linked);
}

#[test]
fn gold() {
    if !there("ld.gold") {
        return;
    }
    let program = Program::new("gold");
    let file = program.write("order", &emit::gold(&program.order()));
    let linked = program.link("gold", &["-fuse-ld=gold", &format!("-Wl,--section-ordering-file={file}")]);
    check("gold", &program.trace, &linked);
}

#[test]
fn lld() {
    // The linker of the Rust toolchain, and the system's.
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    let of_rust = fs::read_dir(Path::new(sysroot.trim()).join("lib/rustlib")).expect("a toolchain");
    let of_rust = of_rust.flatten().map(|target| target.path().join("bin/gcc-ld")).find(|path| path.is_dir());
    let program = Program::new("lld");
    let file = program.write("order", &emit::lld(&program.order()));
    let ordering = format!("-Wl,--symbol-ordering-file={file}");
    if let Some(folder) = of_rust {
        let folder = format!("-B{}", folder.display());
        check("rust-lld", &program.trace, &program.link("rust-lld", &[&folder, "-fuse-ld=lld", &ordering]));
    } else {
        println!("skipped: the toolchain has no rust-lld");
    }
    if there("ld.lld") {
        check("lld", &program.trace, &program.link("lld", &["-fuse-ld=lld", &ordering]));
    }
}

/// Catches names that a linker reads as patterns, which would move all that they match.
#[test]
fn names_are_no_patterns() {
    let item = |name: &str| neap_layout::Item { name: name.to_owned(), aliases: Vec::new(), kind: Kind::Text };
    let items = ["main.(*T).run", "*", "a[b", "x?", "two words", "_ZN1a1bE.llvm.1", "$x"].map(item);
    let order = Order { items: items.into(), ..Order::default() };
    let script = emit::ld_script(&order, ".text : { }").expect("a script");
    for text in [emit::gold(&order), emit::ld(&order).replace("*(", ""), script.replace("*(", "")] {
        assert!(!text.contains(['*', '[', '?']) && !text.contains("words"), "{text}");
        assert!(text.contains(".text._ZN1a1bE.llvm.1") && text.contains(".text.$x"), "{text}");
    }
}

/// Catches object files that are not in the order of the trace, and those without traced functions that are lost.
#[test]
fn object_files() {
    let folder = std::env::temp_dir().join(format!("neap-layout-objects-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let mut files = Vec::new();
    for name in ["other", "function_1", "function_0"] {
        let (source, object) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.o")));
        fs::write(&source, format!("int {name}(void) {{ return 1; }}")).expect("written");
        run(Command::new("gcc").arg("-c").arg(&source).arg("-o").arg(&object));
        files.push((name, fs::read(&object).expect("compiled")));
    }
    let _ = fs::remove_dir_all(&folder);
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, data)| (*name, data.as_slice())).collect();
    let item = |name: &str| neap_layout::Item { name: name.to_owned(), aliases: Vec::new(), kind: Kind::Text };
    let order = Order { items: vec![item("function_0"), item("function_1")], ..Order::default() };
    assert_eq!(emit::objects(&order, &files), Ok("function_0\nfunction_1\nother\n".to_owned()));
    assert!(emit::objects(&order, &[("x", b"text")]).is_err_and(|error| error.to_string().contains("x: ")));
}
