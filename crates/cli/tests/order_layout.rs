//! `neap order` beyond the trace: what it writes for linkers, draws and compares, on programs whose functions are known.

mod common;
#[path = "order/traced.rs"]
mod traced;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Neap, assert_refused, compile, skip, stderr};
use serde_json::Value;
use traced::{Traced, known};

/// 1,000 functions, of which the program calls each tenth. ALIGN bytes lie between them.
const SPREAD: &str = r#"
#define TEXT(x) #x
#define ALIGNED(x) ".balign " TEXT(x) "\n"
__asm__(".altmacro\n.text\n"
    ".macro each number\n.type f\\number, @function\n" ALIGNED(ALIGN) "f\\number:\nnop\nret\n.size f\\number, .-f\\number\n.endm\n"
    ".macro one number\ncall f\\number\n.endm\n"
    ".set i, 0\n.rept 1000\neach %i\n.set i, i+1\n.endr\n"
    ".globl go\ngo:\n.set i, 0\n.rept 100\none %i\n.set i, i+10\n.endr\nret\n");
void go(void);
int main(void) { go(); return 0; }
"#;

/// Catches a better layout that is not seen, a worse one that is taken for a better one, and programs that do not do the
/// same.
#[test]
fn verify() {
    let neap = Neap::new();
    let build = |name: &str, align: &str| compile(neap.dir.path(), name, SPREAD, &["-O1", &format!("-DALIGN={align}")]);
    let Some((spread, packed)) =
        build("spread", "4096").zip(build("packed", "16")).filter(|_| cfg!(target_arch = "x86_64"))
    else {
        return skip("verify", "needs x86-64 and a C compiler");
    };
    let compare = |before: &Path, after: &Path| {
        let mut command = neap.command(["order", "verify", "--json", "--pairs", "5", "--before"]);
        command.arg(before).arg("--after").arg(after).output().expect("neap starts")
    };
    let better = compare(&spread, &packed);
    assert_eq!(better.status.code(), Some(0), "{}", stderr(&better));
    let report: Value = serde_json::from_slice(&better.stdout).expect("JSON");
    let measure = |name: &str| {
        let all = report["measures"].as_array().expect("a list");
        all.iter().find(|measure| measure["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}")).clone()
    };
    if report["notes"].as_array().is_some_and(|notes| notes.iter().any(|note| note.to_string().contains("count pages")))
    {
        skip("verify: pages", "faults cannot be traced exactly here");
    } else {
        let pages = measure("pages of code touched");
        let [before, after] = ["before", "after"].map(|side| pages[side].as_f64().expect("a number"));
        assert!((100.0..110.0).contains(&before) && after < 10.0 && pages["improved"] == true, "{pages}");
    }
    assert!(measure("faults, warm")["ratio"]["high"].as_f64().is_some_and(|ratio| ratio < 1.0), "{report}");
    assert!(measure("RSS at exit")["improved"] == true, "{report}");
    let cached = &report["conditions"]["cached"][0];
    let [warm, cold] = ["warm", "cold"].map(|kind| cached[kind].as_f64());
    match warm.zip(cold) {
        Some((warm, cold)) => assert!(warm > 0.0 && cold <= warm, "{cached}"),
        None => skip("verify: page cache", "needs Linux 6.5"),
    }
    let worse = compare(&packed, &spread);
    let report: Value = serde_json::from_slice(&worse.stdout).expect("JSON");
    let counts = report["measures"].as_array().expect("a list").iter().filter(|measure| measure["unit"] != "seconds");
    assert!(counts.into_iter().all(|measure| measure["improved"] == false), "{report}");
    // Of times, one may be less by chance, which does not count.
    assert_eq!((worse.status.code(), &report["improved"]), (Some(1), &false.into()), "{report}");

    // The same program with other names: all are lost.
    let renamed = SPREAD.replace("f\\\\number", "g\\\\number").replace("go", "gone");
    let renamed = compile(neap.dir.path(), "renamed", &renamed, &["-O1", "-DALIGN=16"]).expect("as before");
    let trace = neap.path("trace");
    Traced::new(&neap, &[], &[&spread]);
    for (after, status, mark) in [(&packed, 0, " 0 lost\n"), (&renamed, 1, " lost: too few\n")] {
        let mut command = neap.command(["order", "verify", "--pairs", "1", "--trace"]);
        let output = command.arg(&trace).arg("--before").arg(&spread).arg("--after").arg(after).output();
        let output = output.expect("neap starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(status), "{text}{}", stderr(&output));
        assert!(text.contains("functions of the trace: ") && text.contains(mark), "{text}");
        let shown = ["readahead: ", "; fault-around: ", "before warm runs, ", "before cold ones\n"];
        assert!(shown.iter().all(|words| text.contains(words)), "{text}");
    }

    let failing = neap.file("failing", "#!/bin/sh\nexit 3\n", 0o755);
    let unlike = compare(&packed, &failing);
    assert_eq!(unlike.status.code(), Some(125));
    assert!(
        stderr(&unlike).contains("ended with status 0") && stderr(&unlike).contains("hint: "),
        "{}",
        stderr(&unlike)
    );
}

/// 300 functions of some 300 bytes, each with a constant; the program calls each fifteenth.
fn scattered() -> String {
    use std::fmt::Write;
    let mut text = String::from("#include <stdio.h>\n");
    let mut calls = String::new();
    for i in 0..300 {
        let body: String = (0..40).map(|k| format!("x = x * {} + (x >> {});", 2 * (i + k) + 3, k % 7 + 1)).collect();
        let _ = writeln!(text, "static const unsigned long table{i}[32] = {{{}}};", i + 1);
        let _ = writeln!(
            text,
            "__attribute__((noinline)) unsigned long step{i}(unsigned long x) {{ {body} return x + table{i}[x % 32]; }}"
        );
        if i % 15 == 0 {
            let _ = write!(calls, "x = step{i}(x);");
        }
    }
    let all: String = (0..300).map(|i| format!("step{i},")).collect();
    text + &format!(
        "unsigned long (*const all[])(unsigned long) = {{{all}}};\n\
         int main(int n, char **v) {{ unsigned long x = n; {calls} if (n > 5) x = all[n](x); printf(\"%lu\\n\", x); return 0; }}\n"
    )
}

/// The numbers of OS pages of code: now, and packed.
fn code_pages(neap: &Neap, program: &Path) -> (u64, u64) {
    Traced::new(neap, &[], &[program.as_os_str()]).is_like(&mut Command::new(program));
    let trace = neap.path("trace");
    let output = neap.command(["order", "estimate", "--json"]).arg(&trace).arg(program).output().expect("neap starts");
    let estimate: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    assert_eq!(estimate["format"], "neap-order-estimate 1");
    let pages = |layout: &str| estimate["kinds"]["text"][layout]["pages"].as_u64().expect("a number");
    (pages("now"), pages("packed"))
}

/// Catches an order file that the linker does not take or that changes nothing, and an estimate that is not reached.
#[test]
fn four_steps() {
    let neap = Neap::new();
    let flags = ["-O1", "-ffunction-sections", "-fdata-sections"];
    let source = scattered();
    let program = compile(neap.dir.path(), "before", &source, &flags).filter(|_| cfg!(target_arch = "x86_64"));
    let Some(program) = program else { return skip("four_steps", "needs x86-64 and a C compiler") };
    let (now, packed) = code_pages(&neap, &program);
    assert!(now >= 2 * packed, "{now} OS pages, {packed} packed");
    let (trace, order) = (neap.path("trace"), neap.path("order"));
    let emit = |linker: &str| {
        let mut command = neap.command(["order", "emit", "--for", linker, "-o"]);
        let output = command.arg(&order).arg(&trace).arg(&program).output().expect("neap starts");
        assert!(output.status.success() && stderr(&output).contains(" 0 lost"), "{linker}: {}", stderr(&output));
        fs::read_to_string(&order).expect("an order")
    };
    assert!(emit("lld").lines().any(|line| line == "step285"));
    assert!(emit("gold").lines().any(|line| line == ".text.step285"));
    assert!(emit("ld").contains("*(.text.step285 "));
    assert!(emit("ld-script").contains("*(.text.step285 "));
    let script = format!("-Wl,-T,{}", order.display());
    let Some(after) = compile(neap.dir.path(), "after", &source, &[&flags[..], &["-fuse-ld=bfd", &script]].concat())
    else {
        return skip("four_steps", "the script of ld cannot be used here");
    };
    let (now, still_packed) = code_pages(&neap, &after);
    // The C library's start lies in sections of its own.
    assert!(now <= packed + 3 && still_packed.abs_diff(packed) <= 1, "{now} OS pages, {packed} packed");

    let other = neap.command(["order", "estimate"]).arg(&trace).arg(&program).output().expect("neap starts");
    assert_refused(&other, 125, &["not the build that was traced", "hint: "]);
    let none = neap.command(["order", "emit", "--for", "objects"]).arg(&trace).arg(&program).output();
    assert_refused(&none.expect("neap starts"), 125, &["needs their names", "hint: "]);
}

/// The synthetic program of the aim: 2,000 functions of some 1,000 bytes, each with a constant and a variable; those of
/// `used` are called. With `only` it has no others.
fn synthetic(used: &[usize], only: bool) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for i in (0..2000).filter(|i| !only || used.contains(i)) {
        let _ = writeln!(
            text,
            "const unsigned constant_{i}[128] = {{{i}}}; unsigned variable_{i}[128] = {{1}};
            __attribute__((noinline)) unsigned function_{i}(unsigned x) {{
                __asm__ volatile(\"jmp 1f; .skip 960; 1:\");
                return variable_{i}[x % 128] += x + constant_{i}[x % 128];
            }}"
        );
    }
    let calls: String = used.iter().map(|i| format!("x = function_{i}(x);")).collect();
    text + &format!("int main(int n, char **v) {{ unsigned x = n; {calls} return x == 0; }}\n")
}

/// Catches functions and data of a start that the trace does not see or that a linker leaves where they were: with each
/// linker, the program costs hardly more than one that has only what it uses.
#[test]
fn synthetic_program() {
    let neap = Neap::new();
    let used: Vec<usize> = (0..100).map(|n| n * 37 % 100 * 20 + 7).collect();
    let flags = ["-O1", "-ffunction-sections", "-fdata-sections", "-c"];
    let object = |name: &str, only| compile(neap.dir.path(), name, &synthetic(&used, only), &flags);
    let objects = object("all.o", false).zip(object("only.o", true)).filter(|_| cfg!(target_arch = "x86_64"));
    let Some((all, only)) = objects else { return skip("synthetic_program", "needs x86-64 and a C compiler") };
    let link = |name: &str, object: &Path, options: &[String]| {
        let program = neap.path(name);
        let linked = Command::new("cc").args(options).arg(object).arg("-o").arg(&program).output();
        linked.is_ok_and(|output| output.status.success()).then_some(program)
    };
    let before = link("before", &all, &[]).expect("the compiler links");
    let traced = Traced::new(&neap, &["--data"], &[&before]);
    if stderr(&traced.output).contains("so the trace has no data") {
        return skip("synthetic_program", "faults cannot be traced exactly here");
    }
    let named = |list: &str, prefix: &str| {
        let all = traced.trace[list].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter(|one| one["name"].as_str().is_some_and(|name| name.starts_with(prefix))).count()
    };
    let counts = [named("functions", "function_"), named("data", "constant_"), named("data", "variable_")];
    assert_eq!(counts, [100; 3], "functions, constants and variables that are traced");

    let of_rust = Command::new("rustc").args(["--print", "sysroot"]).output().ok();
    let of_rust = of_rust.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let of_rust = of_rust.map(|root| format!("-B{root}/lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld"));
    for (name, format, option, linker) in [
        ("GNU ld", "ld-script", "-Wl,-T,", vec!["-fuse-ld=bfd".to_owned()]),
        ("gold", "gold", "-Wl,--section-ordering-file=", vec!["-fuse-ld=gold".to_owned()]),
        ("lld", "lld", "-Wl,--symbol-ordering-file=", vec!["-fuse-ld=lld".to_owned()]),
        (
            "rust-lld",
            "lld",
            "-Wl,--symbol-ordering-file=",
            of_rust.into_iter().chain(["-fuse-ld=lld".to_owned()]).collect(),
        ),
    ] {
        let Some(only) = link("only", &only, &linker) else {
            skip("synthetic_program", &format!("{name} is not installed"));
            continue;
        };
        let (trace, order) = (neap.path("trace"), neap.path("order"));
        let mut command = neap.command(["order", "emit", "--for", format, "-o"]);
        let output = command.arg(&order).arg(&trace).arg(&before).output().expect("neap starts");
        assert_eq!(stderr(&output).matches(" 0 lost").count(), 2, "{name}: {}", stderr(&output));
        let options = [linker, vec![format!("{option}{}", order.display())]].concat();
        let after = link("after", &all, &options).unwrap_or_else(|| panic!("{name} refuses the order"));
        costs_hardly_more(&neap, name, &only, &after);
    }
}

/// Compares a program that has only what it uses with one in order.
fn costs_hardly_more(neap: &Neap, name: &str, only: &Path, after: &Path) {
    let mut command = neap.command(["order", "verify", "--json", "--pairs", "5", "--before"]);
    let output = command.arg(only).arg("--after").arg(after).output().expect("neap starts");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    let both = |measure: &str| {
        let all = report["measures"].as_array().expect("a list");
        let found = all.iter().find(|one| one["name"] == measure).unwrap_or_else(|| panic!("no {measure}: {report}"));
        ["before", "after"].map(|side| found[side].as_f64().expect("a number"))
    };
    let (code, data) = (both("pages of code touched"), both("pages of data touched"));
    let pages = [0, 1].map(|side| code[side] + data[side]);
    let (faults, around) = (both("faults without fault-around"), both("faults, warm"));
    eprintln!(
        "{name}: alone and in order: code {code:?} data {data:?} faults {faults:?}, with fault-around {around:?}"
    );
    // Fault-around maps windows at addresses that differ from run to run: some more may be needed.
    let limits = [("pages", pages, 0.0), ("faults", faults, 0.0), ("faults with fault-around", around, 3.0)];
    for (what, [alone, ordered], more) in limits {
        assert!(ordered <= 1.1 * alone + more, "{name}: {what}: {ordered}, with what is used alone {alone}");
    }
}

/// Catches object files that are out of order: with mold, which orders nothing smaller, a program of 2,000 functions
/// costs hardly more than one of the 100 that it uses, each of which has a file.
#[test]
fn synthetic_program_by_mold() {
    let neap = Neap::new();
    let works = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    if cfg!(not(target_arch = "x86_64")) || !works("mold") || !works("as") || !works("cc") {
        return skip("synthetic_program_by_mold", "needs x86-64, mold, as and cc");
    }
    let used: Vec<usize> = (0..100).map(|n| n * 37 % 100 * 20).collect();
    let calls: String = used.iter().map(|i| format!("function_{i}();")).collect();
    let declared: String = used.iter().map(|i| format!("void function_{i}(void);")).collect();
    let main = format!("{declared} int main(void) {{ {calls} return 0; }}");
    let main = compile(neap.dir.path(), "main.o", &main, &["-O1", "-c"]).expect("cc works");
    let piece = |i: usize| {
        format!(
            ".text\n.globl function_{i}\n.type function_{i}, @function\nfunction_{i}:\n\
             movl constant_{i}(%rip), %eax\naddl %eax, variable_{i}(%rip)\nret\n.skip 1000, 0xcc\n\
             .size function_{i}, . - function_{i}\n\
             .section .rodata\n.balign 32\n.type constant_{i}, @object\n.size constant_{i}, 512\n\
             constant_{i}:\n.fill 128, 4, 1\n\
             .data\n.balign 32\n.type variable_{i}, @object\n.size variable_{i}, 512\n\
             variable_{i}:\n.fill 128, 4, 1\n.section .note.GNU-stack\n"
        )
    };
    let object = |name: String, text: String| {
        let (source, object) = (neap.path(&format!("{name}.s")), neap.path(&format!("{name}.o")));
        fs::write(&source, text).expect("writable");
        succeeds(Command::new("as").arg("-o").arg(&object).arg(&source));
        object
    };
    // Each that is used, and behind it 19 that are not: these may share a file.
    let twenty = |first: usize| {
        let others: String = (first + 1..first + 20).map(piece).collect();
        [object(format!("used-{first}"), piece(first)), object(format!("others-{first}"), others)]
    };
    let objects: Vec<PathBuf> = (0..2000).step_by(20).flat_map(twenty).chain([main.clone()]).collect();
    let link = |name: &str, objects: &[PathBuf]| {
        let program = neap.path(name);
        succeeds(Command::new("cc").args(["-fuse-ld=mold", "-o"]).arg(&program).args(objects));
        program
    };
    let before = link("before", &objects);
    let only: Vec<PathBuf> = used.iter().map(|i| neap.path(&format!("used-{i}.o"))).chain([main]).collect();
    let only = link("only", &only);
    let traced = Traced::new(&neap, &["--data"], &[&before]);
    if stderr(&traced.output).contains("so the trace has no data") {
        return skip("synthetic_program_by_mold", "faults cannot be traced exactly here");
    }
    let mut command = neap.command(["order", "emit", "--for", "mold"]);
    let output = command.arg(neap.path("trace")).arg(&before).args(&objects).output().expect("neap starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let ordered: Vec<PathBuf> = String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect();
    assert_eq!(ordered.len(), objects.len());
    costs_hardly_more(&neap, "mold", &only, &link("after", &ordered));
}

/// Steps 1, 3 and 4 of the walk-through, with a recipe's own way to link again: `program` is the one that it builds.
fn recipe(neap: &Neap, program: &Path, again: impl FnOnce(&Path) -> Command) {
    let (before, trace, order) = (neap.path("before"), neap.path("trace"), neap.path("order.txt"));
    common::copy_program(program, &before);
    Traced::new(neap, &[], &[&before]).is_like(&mut Command::new(&before));
    let mut emit = neap.command(["order", "emit", "--for", "lld", "-o"]);
    let output = emit.arg(&order).arg(&trace).arg(&before).output().expect("neap starts");
    assert!(output.status.success(), "{}", stderr(&output));
    succeeds(&mut again(&order));
    let mut verify = neap.command(["order", "verify", "--json", "--pairs", "3", "--trace"]);
    let output = verify.arg(&trace).arg("--before").arg(&before).arg("--after").arg(program).output();
    let output = output.expect("neap starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (old, new) = (fs::read(&before).expect("a program"), fs::read(program).expect("a program"));
    assert!(old != new, "the program was not linked again");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["functions"]["lost"], 0, "{report}");
    let code =
        report["measures"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "pages of code touched"));
    let Some(code) = code else { return skip("recipe: pages", "faults cannot be traced exactly here") };
    assert!(code["ratio"]["median"].as_f64().is_some_and(|ratio| ratio < 0.75), "{code}");
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
}

/// Catches a recipe for cargo that no longer links, or with another layout.
#[test]
fn cargo_recipe() {
    use std::fmt::Write;
    let neap = Neap::new();
    let (mut text, mut calls) = (String::new(), String::new());
    for i in 0..300 {
        let body: String =
            (0..40).map(|k| format!("x = x.wrapping_mul({}) ^ (x >> {});", 2 * (i + k) + 3, k % 7 + 1)).collect();
        let _ = writeln!(text, "#[inline(never)] fn step{i}(mut x: u32) -> u32 {{ {body} x }}");
        let _ = write!(
            calls,
            "{}",
            if i % 15 == 0 { format!("x = step{i}(x);") } else { format!("if x == {i} {{ x = step{i}(x); }}") }
        );
    }
    let _ = write!(
        text,
        "fn main() {{ let mut x = std::env::args().count() as u32 + 1000; {calls} println!(\"{{x}}\"); }}"
    );
    fs::create_dir(neap.path("src")).expect("a folder");
    fs::write(neap.path("src/main.rs"), text).expect("writable");
    fs::write(neap.path("Cargo.toml"), "[package]\nname = \"server\"\nedition = \"2024\"\n\n[workspace]\n")
        .expect("writable");
    let cargo = |arguments: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo
            .args(arguments)
            .current_dir(neap.dir.path())
            .env("CARGO_TARGET_DIR", neap.path("target"))
            .env("CARGO_NET_OFFLINE", "true");
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
            cargo.env_remove(name);
        }
        cargo
    };
    if cfg!(not(target_arch = "x86_64")) {
        return skip("cargo_recipe", "needs x86-64");
    }
    succeeds(&mut cargo(&["build", "--release"]));
    recipe(&neap, &neap.path("target/release/server"), |order| {
        let order = format!("link-arg=-Wl,--symbol-ordering-file={},--no-warn-symbol-ordering", order.display());
        cargo(&["rustc", "--release", "--", "-C", "link-arg=-fuse-ld=lld", "-C", &order])
    });
}

/// Catches a recipe for CMake that no longer links, or with another layout.
#[test]
fn cmake_recipe() {
    let neap = Neap::new();
    let there =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if cfg!(not(target_arch = "x86_64")) || !there("cmake") || !there("make") || !there("ld.lld") {
        return skip("cmake_recipe", "needs x86-64, cmake, make and lld");
    }
    fs::write(neap.path("server.c"), scattered()).expect("writable");
    let project = "cmake_minimum_required(VERSION 3.10)\nproject(server C)\n\
                   add_compile_options(-O1 -ffunction-sections -fdata-sections)\nadd_executable(server server.c)\n";
    fs::write(neap.path("CMakeLists.txt"), project).expect("writable");
    let cmake = |arguments: &[&str]| {
        let mut cmake = Command::new("cmake");
        cmake.args(arguments).current_dir(neap.dir.path());
        cmake
    };
    succeeds(&mut cmake(&["-S", ".", "-B", "build", "-G", "Unix Makefiles"]));
    succeeds(&mut cmake(&["--build", "build"]));
    recipe(&neap, &neap.path("build/server"), |order| {
        let flags = format!(
            "-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld -Wl,--symbol-ordering-file={},--no-warn-symbol-ordering",
            order.display()
        );
        succeeds(&mut cmake(&["-B", "build", &flags]));
        cmake(&["--build", "build"])
    });
}

/// Catches a picture that lacks a function, or is of another build; `neap-layout` tests what is in it.
#[test]
fn picture() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "picture", &[]) else { return };
    let traced = Traced::new(&neap, &[], &[program.as_os_str()]);
    let (trace, file) = (neap.path("trace"), neap.path("picture.html"));
    let picture = |options: &[&OsStr], binary: &Path| {
        let mut command = neap.command(["order", "picture", "-o"]);
        command.arg(&file).args(options).arg(&trace).arg(binary).output().expect("neap starts")
    };
    let drawn = picture(&[], &program);
    assert!(drawn.status.success(), "{}", stderr(&drawn));
    let html = fs::read_to_string(&file).expect("a page");
    let functions = traced.functions();
    assert!(functions.len() > 5);
    for name in functions {
        assert!(
            html.contains(&format!("&#10;{name}&#10;")) || html.contains(&format!("&#10;{name}\"")),
            "{name}: {html}"
        );
    }
    let touched = html.matches("<i class=\"touched\" title").count();
    assert!((1..=10).contains(&touched) && !html.contains("src=") && !html.contains("http"), "{touched}");
    let both = picture(&["--after".as_ref(), trace.as_os_str(), program.as_os_str()], &program);
    assert!(both.status.success(), "{}", stderr(&both));
    let html = fs::read_to_string(&file).expect("a page");
    assert_eq!(html.matches("<i class=\"touched\" title").count(), 2 * touched);
    assert_refused(&picture(&[], Path::new("/bin/sh")), 125, &["not the build that was traced", "hint: "]);

    // Without an id of the build.
    for (flags, status) in [(&["-Wl,--build-id=none"][..], 0), (&["-Wl,--build-id=none", "-g"], 125)] {
        fs::remove_file(&program).expect("it is there");
        known(&neap, "picture", flags).expect("as before");
        if status == 0 {
            Traced::new(&neap, &[], &[program.as_os_str()]);
        }
        let drawn = picture(&[], &program);
        assert_eq!(drawn.status.code(), Some(status), "{}", stderr(&drawn));
    }
}

/// Catches commands that end before they have written their file, as standard error takes no lines.
#[test]
fn a_full_standard_error() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "a_full_standard_error", &[]) else { return };
    let (trace, order) = (neap.path("trace"), neap.path("order"));
    let full = || fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let command = |words: &[&OsStr]| {
        neap.command(words).stdout(Stdio::null()).stderr(full()).status().expect("neap starts").code()
    };
    let [trace, order, program] = [&trace, &order, &program].map(|path| path.as_os_str());
    let words = |text: &'static str| text.split(' ').map(OsStr::new);
    let traced: Vec<&OsStr> = words("order trace -o").chain([trace, program]).collect();
    assert_eq!(command(&traced), Some(3));
    let emitted: Vec<&OsStr> = words("order emit --for lld -o").chain([order, trace, program]).collect();
    assert_eq!(command(&emitted), Some(0));
    assert!(fs::read_to_string(order).is_ok_and(|text| text.contains("main\n")));
    let paged: Vec<&OsStr> = words("pagein --format json -o").chain([order, program]).collect();
    assert_eq!(command(&paged), Some(3));
}

/// Catches object files that are left out, in the wrong order, or reached by nothing.
#[test]
fn closure() {
    let neap = Neap::new();
    let sources = [
        ("unused.o", "int unused(void) { return 1; }"),
        ("needed.o", "int needed(void) { return 2; }"),
        ("main.o", "int needed(void); int main(void) { return needed(); }"),
    ];
    let objects: Vec<PathBuf> =
        sources.iter().filter_map(|(name, source)| compile(neap.dir.path(), name, source, &["-c"])).collect();
    if objects.len() < sources.len() {
        return skip("closure", "needs a C compiler");
    }
    let run = |options: &[&str]| {
        neap.command(["order", "closure"]).args(options).args(&objects).output().expect("neap starts")
    };
    let output = run(&["--entry", "main"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<&str> = text.lines().filter_map(|line| line.rsplit('/').next()).collect();
    assert_eq!(names, ["main.o", "needed.o"], "{}", stderr(&output));
    let all = run(&["--entry", "main", "--all"]);
    assert_eq!(String::from_utf8_lossy(&all.stdout).lines().count(), 3);
    assert_refused(&run(&["--entry", "nothing"]), 125, &["no file defines nothing", "hint: "]);
}
