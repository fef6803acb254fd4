//! `neap order trace` on programs that are compiled with `-finstrument-functions`.

mod common;
#[path = "order/traced.rs"]
mod traced;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Neap, assert_refused, compile, skip, stderr};
use traced::{Traced, known};

const FLAG: &str = "-finstrument-functions";

/// Traces a program with these arguments.
fn trace(neap: &Neap, program: &Path, options: &[&str], arguments: &[&str]) -> Traced {
    let command: Vec<&OsStr> = [program.as_os_str()].into_iter().chain(arguments.iter().map(OsStr::new)).collect();
    let traced = Traced::new(neap, options, &command);
    assert!(stderr(&traced.output).contains("(source: instrumented)"), "{}", stderr(&traced.output));
    assert_eq!(traced.trace["runs"][0]["source"], "instrumented");
    traced.is_like(Command::new(program).args(arguments));
    traced
}

/// Calls by the names of both.
fn calls(traced: &Traced) -> BTreeMap<(String, String), u64> {
    let name = |place: &serde_json::Value| {
        let function = &traced.trace["functions"][place.as_u64().expect("a place") as usize];
        function["name"].as_str().expect("a name").to_owned()
    };
    let calls = traced.trace["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = calls.iter().map(|call| ((name(&call["from"]), name(&call["to"])), call["count"].as_u64()));
    named.map(|(names, count)| (names, count.expect("a number"))).collect()
}

fn program(neap: &Neap, test: &str, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let flags = [&["-O1", "-pthread", FLAG], flags].concat();
    let program = compile(neap.dir.path(), name, source, &flags).filter(|_| cfg!(target_arch = "x86_64"));
    if program.is_none() {
        skip(test, "needs x86-64 and a C compiler");
    }
    program
}

/// Catches functions that are missing, doubled or out of order, those before `main`, and wrong ends of the program.
#[test]
fn order() {
    for kind in [&["-pie", "-fPIE"][..], &["-no-pie"], &["-Wl,-z,now"]] {
        let neap = Neap::new();
        let Some(program) = known(&neap, "order", &[&[FLAG], kind].concat()) else { continue };
        let traced = trace(&neap, &program, &[], &["plain"]);
        assert_eq!(traced.own(), ["early", "main", "first", "second", "third", "resolved"], "{kind:?}");
        let functions = traced.trace["functions"].as_array().expect("a list");
        let times: Vec<u64> = functions.iter().filter_map(|function| function["first_ns"].as_u64()).collect();
        assert!(times.is_sorted() && times.len() == functions.len() && times[0] < 10_000_000_000, "{times:?}");
        let pair = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), 1);
        let all = [pair("first", "second"), pair("main", "first"), pair("main", "resolved"), pair("second", "third")];
        assert_eq!(calls(&traced), all.into(), "{kind:?}");
    }
}

/// Catches handlers that lose what a program did before a signal ended it, or handlers that are not safe in signals.
#[test]
fn signals() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "signals", &[FLAG]) else { return };
    let traced = trace(&neap, &program, &[], &["signals"]);
    assert_eq!(traced.output.status.signal(), Some(libc::SIGSEGV));
    assert_eq!(traced.own(), ["early", "main", "handler", "first", "second", "third"]);
}

/// Catches children that count in their parent's record, those that do not with `--follow`, and a program that executes
/// itself and is not recorded again.
#[test]
fn processes() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "processes", &[FLAG]) else { return };
    let traced = trace(&neap, &program, &[], &["fork"]);
    assert_eq!(traced.own(), ["early", "main", "ended", "only_after"]);
    let ended = ("main".to_owned(), "ended".to_owned());
    assert_eq!(calls(&traced).get(&ended), Some(&4));
    let mut own: Vec<String> =
        trace(&neap, &program, &["--follow"], &["fork"]).own().into_iter().map(str::to_owned).collect();
    own.sort_unstable();
    let all = ["early", "ended", "first", "main", "only_after", "only_child", "resolved", "second", "third"];
    assert_eq!(own, all);
    let again = trace(&neap, &program, &[], &["again"]);
    assert_eq!(again.own(), ["early", "main", "first", "second", "third", "resolved"]);
    assert_eq!(calls(&again).get(&("main".to_owned(), "first".to_owned())), Some(&2));
    assert_eq!(trace(&neap, &program, &[], &["become"]).own(), ["early", "main", "first", "second", "third"]);

    // The first process that has the binary, not the first process.
    let (binary, script) = (program.to_str().expect("UTF-8"), "\"$0\" plain; \"$0\" become; exit 8");
    let traced = Traced::new(&neap, &["--binary", binary], &["sh", "-c", script, binary]);
    assert_eq!(traced.output.status.code(), Some(8));
    assert_eq!(traced.own(), ["early", "main", "first", "second", "third", "resolved"]);
}

/// Catches counts that are wrong where one thread calls, functions that only one of several threads enters and that are
/// lost, and a function that counts twice.
#[test]
fn threads() {
    let neap = Neap::new();
    let mut source = String::from("#include <pthread.h>\nstatic volatile long n;\n");
    for i in 0..64 {
        let _ = writeln!(source, "__attribute__((noinline)) void f{i}(void) {{ n++; }}");
    }
    let table: String = (0..64).map(|i| format!("f{i},")).collect();
    let _ = writeln!(
        source,
        "static void (*const all[])(void) = {{ {table} }};\n\
         static void *work(void *own) {{\n\
             for (int i = 0; i < 64000; i++) all[i % 64]();\n\
             for (int i = 0; i < 1000; i++) all[(long)own]();\n\
             return 0; }}\n\
         int main(void) {{\n\
             pthread_t t[8];\n\
             for (long i = 0; i < 10; i++) work((void *)1);\n\
             for (long i = 0; i < 8; i++) pthread_create(&t[i], 0, work, (void *)i);\n\
             for (int i = 0; i < 8; i++) pthread_join(t[i], 0);\n\
             _Exit(3); }}"
    );
    let Some(program) = program(&neap, "threads", "threads", &source, &[]) else { return };
    let traced = trace(&neap, &program, &[], &[]);
    assert_eq!(traced.output.status.code(), Some(3));
    let mut own = traced.own();
    assert_eq!((own.len(), own[0], own[1], own[2]), (66, "main", "work", "f0"));
    own.sort_unstable();
    own.dedup();
    assert_eq!(own.len(), 66);
    let calls = calls(&traced);
    let count = |to: &str, from: &str| calls.get(&(from.to_owned(), to.to_owned())).copied().unwrap_or(0);
    assert_eq!(count("work", "main"), 10);
    // Those of the first thread, which is alone at first, are all there; others may be lost.
    for (name, alone, all) in [("f7", 10_000, 19_000), ("f1", 20_000, 29_000)] {
        assert!((alone..=all).contains(&count(name, "work")), "{name}: {}", count(name, "work"));
    }
}

/// Catches libraries that are not found when they are loaded at the start or later, and functions of the program that are
/// taken for theirs.
#[test]
fn libraries() {
    let neap = Neap::new();
    let Some(opener) = known(&neap, "libraries", &[FLAG]) else { return };
    let source = "static volatile int n;
        __attribute__((constructor)) static void library_early(void) { n++; }
        __attribute__((noinline)) static void inner(void) { n++; }
        void library_entry(void) { inner(); inner(); }
        void library_never(void) { n--; }";
    let Some(library) = program(&neap, "libraries", "library.so", source, &["-shared", "-fPIC"]) else { return };
    let binary = library.to_str().expect("UTF-8");
    let wanted = ["library_early", "library_entry", "inner"];
    assert_eq!(trace(&neap, &opener, &["--binary", binary], &["load", binary]).own(), wanted);
    let source = "void library_entry(void); int main(void) { library_entry(); return 0; }";
    let Some(linked) = program(&neap, "libraries", "linked", source, &[binary]) else { return };
    let traced = trace(&neap, &linked, &["--binary", binary], &[]);
    assert_eq!(traced.own(), wanted);
    assert_eq!(calls(&traced).into_values().collect::<Vec<_>>(), [2]);
}

/// Catches handlers that allocate, or that call functions that the program has replaced by instrumented ones: both would
/// not end.
#[test]
fn no_call_comes_back() {
    let neap = Neap::new();
    let source = "#include <stddef.h>\n#include <stdlib.h>\n#include <errno.h>
        static char memory[1 << 16]; static size_t used; static volatile int count;
        void *malloc(size_t n) { count++; used += (n + 15) / 16 * 16; return memory + used - (n + 15) / 16 * 16; }
        void *calloc(size_t n, size_t m) { return malloc(n * m); }
        void free(void *p) { (void)p; }
        void *memset(void *p, int c, size_t n) { for (volatile char *q = p; n--; q++) *q = c; return p; }
        void *memmove(void *p, const void *s, size_t n) {
            volatile char *q = p; const volatile char *r = s;
            if (q < r) while (n--) *q++ = *r++; else while (n--) q[n] = r[n];
            return p; }
        int clock_gettime(int clock, void *time) { errno = 4711; (void)clock; ((volatile long *)time)[0] = 1; return 0; }
        __attribute__((noinline)) static void leaf(void) { count++; }
        int main(void) { errno = 5; int before = count; leaf(); free(malloc(10)); return errno == 5 && count == before + 2 ? 0 : 9; }";
    let Some(program) = program(&neap, "no_call_comes_back", "replaced", source, &["-fno-builtin"]) else { return };
    let traced = trace(&neap, &program, &[], &[]);
    assert_eq!(traced.output.status.code(), Some(0), "{}", stderr(&traced.output));
    let own = traced.own();
    assert!(["main", "leaf", "malloc", "free"].iter().all(|name| own.contains(name)), "{own:?}");
}

/// Catches an inlined function that is taken for one that was entered, and one that is counted as a call.
#[test]
fn inlined_functions() {
    let neap = Neap::new();
    let source = "static volatile int n;
        __attribute__((always_inline)) static inline void inlined(void) { n++; }
        void (*volatile address)(void) = inlined;
        __attribute__((noinline)) static void outer(void) { inlined(); inlined(); }
        int main(void) { outer(); return 0; }";
    let Some(program) = program(&neap, "inlined_functions", "inlined", source, &[]) else { return };
    let traced = trace(&neap, &program, &[], &[]);
    assert_eq!(traced.own(), ["main", "outer"]);
    assert_eq!(calls(&traced), [(("main".to_owned(), "outer".to_owned()), 1)].into());
}

/// Catches a program that a signal ends, as there is no room for the record, and neap that one ends.
#[test]
fn no_room_for_the_record() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "no_room_for_the_record", &[FLAG]) else { return };
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_neap")]).arg(neap.dir.path()).arg(&program);
        command.output()
    };
    let traced = "export XDG_RUNTIME_DIR=\"$1\"; exec \"$0\" order trace -o /dev/null -- \"$2\"";
    let tmpfs =
        "mkdir \"$1/small\" && mount -t tmpfs -o size=20k none \"$1/small\" || exit 77; set -- \"$1/small\" \"$2\"";
    for less in [tmpfs, "ulimit -f 20"] {
        let Ok(output) = run(&format!("{less}; {traced}")) else {
            return skip("no_room_for_the_record", "no unshare");
        };
        if output.status.code() == Some(77) || stderr(&output).contains("unshare") {
            skip("no_room_for_the_record", "this user cannot mount");
            continue;
        }
        assert_refused(&output, 125, &["cannot keep a record of calls in", "hint: "]);
    }
}

/// Catches a record that is not made where the file system cannot take room in advance.
#[test]
fn a_record_without_fallocate() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "a_record_without_fallocate", &[FLAG]) else { return };
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-o", "/dev/null", "-e", "trace=fallocate", "-e", "inject=fallocate:error=EOPNOTSUPP"]);
    strace.arg(env!("CARGO_BIN_EXE_neap")).args(["order", "trace", "-o", "/dev/null", "--"]).arg(&program);
    let Ok(output) = strace.output() else { return skip("a_record_without_fallocate", "needs strace") };
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("(source: instrumented)"), "{}", stderr(&output));
}

/// Catches a full record that ends the program or is not mentioned.
#[test]
fn full() {
    let neap = Neap::new();
    let calls: String = (0..3000).map(|_| "leaf();").collect();
    let source = format!(
        "static volatile int n; __attribute__((noinline)) void leaf(void) {{ n++; }}\n\
         int main(void) {{ {calls} return n == 3000 ? 7 : 8; }}"
    );
    let Some(program) = program(&neap, "full", "full", &source, &[]) else { return };
    let traced = trace(&neap, &program, &[], &[]);
    assert_eq!((traced.own(), traced.output.status.code()), (vec!["main", "leaf"], Some(7)));
    let text = stderr(&traced.output);
    let dropped: u64 = text.split("full: ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect(&text);
    assert!(dropped >= 3000 - 1024, "{text}");
}

/// Catches an order in which functions of one run lie between those of another, and wrong numbers of OS pages.
#[test]
fn emit_by_runs() {
    let neap = Neap::new();
    let mut source = String::from("static volatile int n;\n");
    let mut calls = [String::new(), String::new()];
    for i in 0..40 {
        let _ = writeln!(
            source,
            "__attribute__((noinline)) void f{i}(void) {{ n++; __asm__ volatile(\"jmp 1f; .skip 1000; 1:\"); }}"
        );
        let _ = write!(calls[i % 2], "f{i}();");
    }
    let [even, odd] = calls;
    let _ = writeln!(source, "int main(int c, char **v) {{ if (c > 1) {{ {even} }} else {{ {odd} }} return 0; }}");
    let Some(program) = program(&neap, "emit_by_runs", "runs", &source, &["-ffunction-sections"]) else { return };
    let (one, other) = (neap.path("one"), neap.path("other"));
    trace(&neap, &program, &[], &["x"]);
    fs::rename(neap.path("trace"), &one).expect("a trace");
    trace(&neap, &program, &[], &[]);
    fs::rename(neap.path("trace"), &other).expect("a trace");
    let merged = neap.command(["order", "merge", "-o"]).arg(neap.path("trace")).args([&one, &other]).output();
    assert!(merged.expect("neap starts").status.success());
    let emit = |options: &[&str]| {
        let mut command = neap.command(["order", "emit", "--for", "lld"]);
        let output = command.args(options).arg(neap.path("trace")).arg(&program).output().expect("neap starts");
        let text = stderr(&output);
        let numbers = text.lines().find_map(|line| line.strip_prefix("neap: OS pages of code for each run: "));
        let pages: Vec<u64> = numbers.expect(&text).split(", ").map(|number| number.parse().expect(&text)).collect();
        (common::stdout(&output), pages)
    };
    let (order, pages) = emit(&[]);
    let own = order.lines().skip(1).map(|name| name[1..].parse::<u32>().expect("a number") % 2).collect::<Vec<_>>();
    assert!(own.len() == 40 && own.is_sorted() && order.starts_with("main\n"), "{order}");
    assert!(pages.len() == 2 && pages.iter().all(|&pages| pages <= 8), "{pages:?}");
    let by_entry = emit(&["--by", "entry"]).1;
    assert!(by_entry.iter().all(|&pages| pages >= 10), "{by_entry:?}");
}

/// Catches counts that `emit` does not use.
#[test]
fn emit_by_c3() {
    let neap = Neap::new();
    let source = "static volatile int n;
        __attribute__((noinline)) void cold(void) { n++; }
        __attribute__((noinline)) void hot(void) { n++; }
        int main(void) { cold(); for (int i = 0; i < 100; i++) hot(); return 0; }";
    let Some(program) = program(&neap, "emit_by_c3", "c3", source, &["-ffunction-sections"]) else { return };
    trace(&neap, &program, &[], &[]);
    let order = |by: &str| {
        let mut command = neap.command(["order", "emit", "--for", "lld", "--by", by]);
        let output = command.arg(neap.path("trace")).arg(&program).output().expect("neap starts");
        common::stdout(&output)
    };
    assert_eq!(order("entry"), "main\ncold\nhot\n");
    assert_eq!(order("c3"), "main\nhot\ncold\n");
    // Nothing is left behind.
    assert!(fs::read_dir(neap.dir.path()).expect("a folder").flatten().all(|entry| entry.file_name() != "calls"));
}
