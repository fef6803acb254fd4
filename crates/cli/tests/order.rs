//! `neap order` on programs whose functions are known: what it records, and that they run as without it.

mod common;
#[path = "order/traced.rs"]
mod traced;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, assert_refused, compile, skip, stderr};
use serde_json::Value;
use traced::{Traced, known};

/// Traces `known` with these arguments.
fn trace(neap: &Neap, program: &Path, arguments: &[&str]) -> Traced {
    let command: Vec<&OsStr> = [program.as_os_str()].into_iter().chain(arguments.iter().map(OsStr::new)).collect();
    let traced = Traced::new(neap, &[], &command);
    traced.is_like(Command::new(program).args(arguments));
    traced
}

/// Catches functions that are missing, doubled or out of order, in each kind of program; `chosen` is an indirect function,
/// which is resolved before anything else.
#[test]
fn order() {
    for kind in [&["-pie", "-fPIE"][..], &["-no-pie"], &["-static"], &["-static-pie", "-fPIE"]] {
        let neap = Neap::new();
        let Some(program) = known(&neap, "order", kind) else { continue };
        let traced = trace(&neap, &program, &["plain"]);
        let wanted = ["chosen", "early", "main", "first", "second", "third", "resolved"];
        let own: Vec<&str> = traced.functions().into_iter().filter(|name| wanted.contains(name)).collect();
        assert_eq!(own, wanted, "{kind:?}");
        let functions = traced.trace["functions"].as_array().expect("a list");
        let times: Vec<u64> = functions.iter().filter_map(|function| function["first_ns"].as_u64()).collect();
        assert!(times.is_sorted() && times.len() == functions.len(), "{times:?}");
        let main = functions.iter().find(|function| function["name"] == "main").expect("main");
        assert!(main["section"].as_str().is_some_and(|name| name.starts_with(".text")) && main["runs"] == 1, "{main}");
        assert_eq!((&traced.trace["format"], &traced.trace["runs"][0]["status"]), (&"neap-order 1".into(), &3.into()));
    }
}

/// Catches a thread that executes the rest of an instruction, as another has put its first byte back meanwhile; and a
/// function that counts twice.
#[test]
fn threads() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "threads", &[]) else { return };
    for _ in 0..5 {
        let traced = trace(&neap, &program, &["threads"]);
        let together: Vec<String> = (0..10).map(|number| format!("together_{number}")).collect();
        assert_eq!(traced.own()[4..], together, "{:?}", traced.own());
    }
}

/// Catches threads that begin while others end and are taken for processes: these would take all breakpoints away, or get
/// those of another process.
#[test]
fn threads_that_come_and_go() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "threads_that_come_and_go", &[]) else { return };
    for options in [&[][..], &["--follow"]] {
        for _ in 0..5 {
            let traced = Traced::new(&neap, options, &[program.as_os_str(), OsStr::new("storm")]);
            traced.is_like(Command::new(&program).arg("storm"));
            assert!(traced.own().contains(&"only_after"), "{options:?}: {:?}", traced.own());
        }
    }
}

/// Catches a child that never begins, as the thread that made it was killed by the exec of another one before it said so;
/// of these runs, 14 in 80.
#[test]
fn children_of_killed_threads() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "children_of_killed_threads", &[]) else { return };
    for number in 1..=20 {
        for options in [&[][..], &["--follow"]] {
            let wait = (137 * number).to_string();
            let mut command = neap.command(["order", "trace", "-o", "/dev/null"]);
            command.args(options).arg("--").arg(&program).args(["forks", &wait]);
            let mut child = command.stderr(Stdio::null()).spawn().expect("neap starts");
            let started = Instant::now();
            while child.try_wait().expect("a child").is_none() {
                if started.elapsed() > Duration::from_secs(20) {
                    child.kill().expect("it runs");
                    panic!("a child never began: {options:?}, {wait}");
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(child.wait().expect("it ended").code(), Some(0), "{options:?}, {wait}");
        }
    }
}

/// Catches breakpoints that children inherit, and children that add to the trace of their parent.
#[test]
fn children() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "children", &[]) else { return };
    let traced = trace(&neap, &program, &["fork"]);
    assert_eq!(traced.own(), ["chosen", "early", "main", "ended", "only_after"]);
    let followed = Traced::new(&neap, &["--follow"], &[program.as_os_str(), OsStr::new("fork")]);
    followed.is_like(Command::new(&program).arg("fork"));
    let mut own = followed.own();
    own.sort_unstable();
    let all = ["chosen", "early", "ended", "first", "main", "only_after", "only_child", "resolved", "second", "third"];
    assert_eq!(own, all);
}

/// Catches signals that do not arrive, and breakpoints of the program's own that are taken for neap's.
#[test]
fn signals() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "signals", &[]) else { return };
    let traced = trace(&neap, &program, &["signals"]);
    assert_eq!(traced.output.status.signal(), Some(libc::SIGSEGV));
    assert_eq!(traced.own(), ["chosen", "early", "main", "handler", "first", "second", "third"]);
    assert_eq!(traced.trace["runs"][0]["status"], 128 + libc::SIGSEGV);
}

/// Catches a program that is not traced again when it executes itself, or still is when it becomes another one.
#[test]
fn exec() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "exec", &[]) else { return };
    assert_eq!(
        trace(&neap, &program, &["again"]).own(),
        ["chosen", "early", "main", "first", "second", "third", "resolved"]
    );
    let traced = trace(&neap, &program, &["become"]);
    assert_eq!(traced.own(), ["chosen", "early", "main", "first", "second", "third"]);
}

/// Catches bytes that the program wrote, or other memory where a library was, that a child finds changed.
#[test]
fn changed_code() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "changed_code", &[]) else { return };
    trace(&neap, &program, &["patch"]);
    let source = "void library_entry(void) {} void library_never(void) {}";
    let library = compile(neap.dir.path(), "library.so", source, &["-O1", "-shared", "-fPIC"]).expect("a library");
    let binary = library.to_str().expect("UTF-8");
    let command = [program.to_str().expect("UTF-8"), "unload", binary];
    let traced = Traced::new(&neap, &["--binary", binary], &command);
    traced.is_like(Command::new(&program).args(&command[1..]));
}

/// Catches functions of a section that no process has, which breakpoints are planted for, and a program that dies of
/// breakpoints when not all can be planted.
#[test]
fn code_that_is_not_mapped() {
    let neap = Neap::new();
    let unmapped = r#"__asm__(".pushsection .unmapped,\"x\",@progbits\n.type unmapped,@function\n.size unmapped,1\n"
        "unmapped: ret\n.popsection\n");
        int main(void) { return 3; }"#;
    let Some(program) = compile(neap.dir.path(), "unmapped", unmapped, &["-no-pie"]) else {
        return skip("code_that_is_not_mapped", "needs a C compiler for x86-64");
    };
    let traced = trace(&neap, &program, &[]);
    assert_eq!(traced.own(), ["main"], "{}", stderr(&traced.output));
    assert_eq!(traced.output.status.code(), Some(3));
}

/// Catches children that die of breakpoints, as neap has no file descriptor left for them, and a trace that lacks them
/// without a word.
#[test]
fn too_many_processes() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "too_many_processes", &[]) else { return };
    let few = ["sh", "-c", "ulimit -n 20; exec \"$0\" \"$@\""];
    for (options, status) in [(&["--follow"][..], 125), (&[], 0)] {
        let mut command = Command::new(few[0]);
        command.args(&few[1..]).arg(env!("CARGO_BIN_EXE_neap")).args(["order", "trace", "-o"]);
        let output = command.arg(neap.path("trace")).args(options).arg("--").arg(&program).arg("many").output();
        let output = output.expect("sh starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "many 0\n".repeat(40), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("ulimit -n"), status != 0, "{}", stderr(&output));
    }
}

/// Catches a program that does not stop with its job, or does not go on with it; and one that outlives neap, with
/// breakpoints in it.
#[test]
fn jobs() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "jobs", &[]) else { return };
    let start = |file: &Path| {
        let mut command = neap.command(["order", "trace", "-o"]);
        let mut child = command.arg(file).arg("--").arg(&program).arg("stop").spawn().expect("neap starts");
        let mut status = 0;
        // SAFETY: the pointer is valid for the call.
        let waited = unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WUNTRACED) };
        assert!(waited == child.id() as i32 && libc::WIFSTOPPED(status), "{:?}", child.try_wait());
        child
    };
    let mut child = start(&neap.path("trace"));
    // SAFETY: kill takes numbers.
    unsafe { libc::kill(child.id() as i32, libc::SIGCONT) };
    assert_eq!(child.wait().expect("it ends").code(), Some(4));
    let trace = fs::read(neap.path("trace")).expect("a trace");
    let trace: Value = serde_json::from_slice(&trace).expect("JSON");
    assert!(trace["functions"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "only_after")));

    let mut child = start(&neap.path("killed"));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap_or_default();
    child.kill().expect("it is stopped");
    child.wait().expect("it ends");
    let Ok(pid) = children.trim().parse::<u32>() else {
        return skip("jobs: killed", "needs a kernel that lists children");
    };
    let started = Instant::now();
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    while !state().is_empty() && !state().contains(") Z ") {
        assert!(started.elapsed() < Duration::from_secs(20), "the program is still there: {}", state());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Catches a process that outlives the program and is killed with neap, or runs into a breakpoint that was left.
#[test]
fn what_outlives_the_program() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "what_outlives_the_program", &[]) else { return };
    for options in [&[][..], &[], &[], &["--follow"]] {
        let done = neap.path("done");
        let _ = fs::remove_file(&done);
        let traced = Traced::new(&neap, options, &[program.as_os_str(), OsStr::new("daemon"), done.as_os_str()]);
        assert_eq!(traced.output.status.code(), Some(0), "{}", stderr(&traced.output));
        let started = Instant::now();
        while !fs::read(&done).is_ok_and(|text| text == b"done") {
            assert!(started.elapsed() < Duration::from_secs(20), "the daemon did not end: {options:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Catches a traced process that is killed with neap, as the end of the program, which is no longer traced, is seen in
/// another place: of these, 3 in 8.
#[test]
fn what_outlives_another_program() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "what_outlives_another_program", &[]) else { return };
    let slow = ["-qq", "-o", "/dev/null", "-e", "trace=wait4", "-e", "inject=wait4:delay_enter=40000"];
    let run = |number: u32| {
        let mut command = Command::new("strace");
        command.args(slow).arg(env!("CARGO_BIN_EXE_neap")).args(["order", "trace", "-o", "/dev/null", "--binary"]);
        let script = format!("\"$0\" ticks >\"$1\" & sleep 0.8; exec sleep 0.{}", 20 + 2 * number);
        command.arg(&program).args(["--", "sh", "-c", &script]).arg(&program).arg(neap.path(&number.to_string()));
        command.spawn()
    };
    for (number, started) in (0..8).map(run).enumerate().collect::<Vec<_>>() {
        let Ok(mut child) = started else { return skip("what_outlives_another_program", "needs strace") };
        assert!(child.wait().expect("it ends").success(), "{number}");
    }
    let (started, all) = (Instant::now(), "ticks\n".repeat(8));
    let ends = || (0..8).flat_map(|number| fs::read_to_string(neap.path(&number.to_string()))).collect::<String>();
    while ends() != all {
        assert!(started.elapsed() < Duration::from_secs(20), "{}", ends());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Catches libraries, and programs that another one executes, that are not found; and a library's functions that are
/// entered before the program.
#[test]
fn other_binaries() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "other_binaries", &[]) else { return };
    let source = "static volatile int n;
        __attribute__((constructor)) static void library_early(void) { n++; }
        __attribute__((noinline)) static void inner(void) { n++; }
        void library_entry(void) { inner(); }
        void library_never(void) { n--; }";
    let library = compile(neap.dir.path(), "library.so", source, &["-O1", "-shared", "-fPIC"]).expect("a library");
    let (binary, words) = (library.to_str().expect("UTF-8"), ["load".as_ref(), library.as_os_str()]);
    let traced = Traced::new(&neap, &["--binary", binary], &[&[program.as_os_str()], &words[..]].concat());
    traced.is_like(Command::new(&program).args(words));
    assert_eq!(traced.own(), ["library_early", "library_entry", "inner"]);

    let binary = program.to_str().expect("UTF-8");
    let script = ["sh", "-c", "\"$0\" plain; \"$0\" become; exit 8", binary];
    let traced = Traced::new(&neap, &["--binary", binary], &script);
    traced.is_like(Command::new(script[0]).args(&script[1..]));
    assert_eq!(traced.own(), ["chosen", "early", "main", "first", "second", "third", "resolved"]);
}

/// Catches runs that are not merged, and traces of different builds that are.
#[test]
fn merging() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "merging", &[]) else { return };
    let traced = Traced::new(&neap, &["--runs", "2"], &[program.as_os_str()]);
    let functions = traced.trace["functions"].as_array().expect("a list");
    assert!(functions.iter().all(|function| function["runs"] == 2), "{functions:?}");
    assert_eq!(traced.trace["runs"].as_array().map(Vec::len), Some(2));
    let (one, other) = (neap.path("one"), neap.path("other"));
    fs::copy(neap.path("trace"), &one).expect("a trace");
    Traced::new(&neap, &[], &[program.as_os_str(), OsStr::new("signals")]);
    fs::copy(neap.path("trace"), &other).expect("a trace");
    let merged = neap.command(["order", "merge"]).args([&one, &other]).output().expect("neap starts");
    let merged = Traced { trace: serde_json::from_slice(&merged.stdout).expect("a trace"), output: merged };
    assert_eq!(merged.own(), ["chosen", "early", "main", "first", "second", "third", "handler", "resolved"]);
    assert_eq!(merged.trace["runs"].as_array().map(Vec::len), Some(3));

    fs::remove_file(&program).expect("it is there");
    known(&neap, "merging", &["-DOTHER", "-no-pie"]);
    Traced::new(&neap, &[], &[program.as_os_str()]);
    let refused = neap.command(["order", "merge"]).args([&one, &neap.path("trace")]).output().expect("neap starts");
    assert_refused(&refused, 125, &["different builds", "hint: "]);
    assert_refused(&neap.output(["order", "merge", "/dev/null"]), 125, &["not a trace", "hint: "]);
}

/// Catches data that are missing, written data that are taken for read ones, and data that are not touched.
#[test]
fn data() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "data", &[]) else { return };
    let traced = Traced::new(&neap, &["--data"], &[program.as_os_str()]);
    traced.is_like(&mut Command::new(&program));
    if stderr(&traced.output).contains("so the trace has no data") {
        return skip("data", "faults cannot be traced exactly here");
    }
    let data = traced.trace["data"].as_array().expect("a list");
    let datum = |name: &str| {
        let found = data.iter().find(|datum| datum["name"] == name)?;
        Some((found["section"].as_str()?, found["size"].as_u64()?, found["write"].as_bool()?, found["runs"].as_u64()?))
    };
    assert_eq!(datum("written"), Some((".data", 3 * 4096, true, 1)), "{data:?}");
    assert_eq!(datum("read_only"), Some((".rodata", 3 * 4096, false, 1)), "{data:?}");
    assert_eq!(datum("untouched"), None);
    let runs = traced.trace["runs"].as_array().expect("a list");
    let sources: Vec<&str> = runs.iter().filter_map(|run| run["source"].as_str()).collect();
    assert_eq!(sources, ["breakpoints", "faults"]);
    assert_eq!(runs[1]["status"], 3);
}

/// Catches an earlier file that is damaged or lost when the new one cannot be written, a part that is left, and a trace that
/// is lost as the file was removed meanwhile.
#[test]
fn earlier_files_stay() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "earlier_files_stay", &[]) else { return };
    let file = neap.file("trace", "an earlier trace", 0o640);
    let names = || fs::read_dir(neap.dir.path()).expect("it is there").count();
    let before = names();
    let run = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_neap")]).arg(&file).arg(&program);
        command.output().expect("sh starts")
    };
    let full = run("ulimit -f 0; exec \"$0\" order trace -o \"$1\" -- \"$2\"");
    assert_eq!(full.status.code(), Some(3), "{full:?}");
    assert!(stderr(&full).contains("cannot write to") && stderr(&full).contains("hint: "), "{}", stderr(&full));
    assert_eq!((fs::read(&file).expect("it stays").as_slice(), names()), (&b"an earlier trace"[..], before));

    let removed = run("\"$0\" order trace -o \"$1\" --binary \"$2\" -- sh -c \"rm '$1'; '$2'\"");
    assert_eq!((removed.status.code(), names()), (Some(3), before), "{}", stderr(&removed));
    assert!(fs::read(&file).expect("it is there again").starts_with(b"{\"format\""));

    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("chmod");
    let emitted = run("exec \"$0\" order emit --for lld -o \"$1\" \"$1\" \"$2\"");
    assert_eq!((emitted.status.code(), names()), (Some(0), before), "{}", stderr(&emitted));
    assert!(fs::read_to_string(&file).expect("it is there").contains("main\n"));
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o640);
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

/// Catches programs that run on when neap is ended while it sees what they touch.
#[test]
fn ended_by_a_signal() {
    let neap = Neap::new();
    let sleeping = "#include <unistd.h>\nint main(void) { sleep(30); return 0; }";
    let Some(program) = compile(neap.dir.path(), "sleeping", sleeping, &[]) else {
        return skip("ended_by_a_signal", "needs a C compiler");
    };
    let runs = || {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        processes.filter(|process| fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == program)).count()
    };
    let until = |wanted: usize| {
        let started = Instant::now();
        while runs() != wanted {
            assert!(started.elapsed() < Duration::from_secs(20), "{} programs run", runs());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let mut verify = neap.command(["order", "verify", "--before"]);
    verify.arg(&program).arg("--after").arg(&program).env("TMPDIR", neap.dir.path());
    let mut child = verify.spawn().expect("neap starts");
    until(1);
    // SAFETY: kill takes numbers.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    child.wait().expect("it ends");
    until(0);
}

/// Catches errors without a remedy.
#[test]
fn refused() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "refused", &["-s"]) else { return };
    let traced = |command: &[&OsStr]| Traced::new(&neap, &[], command).output;
    assert_refused(&traced(&[program.as_os_str()]), 125, &["has no names of functions", "do not strip it", "-dbgsym"]);
    assert_refused(&traced(&["./no-such-program".as_ref()]), 127, &["no-such-program"]);
    fs::remove_file(&program).expect("it is there");
    let broken = known(&neap, "refused", &["-Wl,--dynamic-linker=/no/such/linker"]).expect("as before");
    fs::write(neap.path("trace"), "an earlier trace").expect("writable");
    assert_refused(&traced(&[broken.as_os_str()]), 127, &["/no/such/linker"]);
    assert_eq!(fs::read(neap.path("trace")).ok().as_deref(), Some(&b"an earlier trace"[..]));
    let script = neap.file("script", "#!/bin/sh\nexit 1\n", 0o755);
    assert_refused(&traced(&[script.as_os_str()]), 125, &["not an ELF file", "--binary"]);
    let other = known(&neap, "refused", &[]).expect("as before");
    let unseen = Traced::new(&neap, &["--binary", other.to_str().expect("UTF-8")], &["true"]).output;
    assert_refused(&unseen, 125, &["no process executed or loaded", "hint: "]);
}

/// 50,000 functions, of which the program enters 5,000.
const MANY: &str = r#"
__asm__(".altmacro\n.text\n"
    ".macro each number\n.globl f\\number\n.type f\\number, @function\n.balign 16\nf\\number:\nnop\nret\n.size f\\number, .-f\\number\n.endm\n"
    ".macro entry number\n.quad f\\number\n.endm\n"
    ".set i, 0\n.rept 50000\neach %i\n.set i, i+1\n.endr\n"
    ".section .data.rel.ro, \"aw\"\n.balign 8\ntable:\n"
    ".set i, 0\n.rept 5000\nentry %i\n.set i, i+10\n.endr\n.text\n");
extern void (*const table[5000])(void) __attribute__((visibility("hidden")));
int main(void) { for (int i = 0; i < 5000; i++) table[i](); return 0; }
"#;

/// Catches planting or hits that have become slow: 0.2 s is usual.
#[test]
fn many_functions() {
    let neap = Neap::new();
    let program = compile(neap.dir.path(), "many", MANY, &["-O1"]).filter(|_| cfg!(target_arch = "x86_64"));
    let Some(program) = program else { return skip("many_functions", "needs x86-64 and a C compiler") };
    let started = Instant::now();
    let traced = Traced::new(&neap, &[], &[program.as_os_str()]);
    let took = started.elapsed();
    assert_eq!(traced.own().iter().filter(|name| name.starts_with('f')).count(), 5000, "{}", stderr(&traced.output));
    eprintln!("50,000 functions, 5,000 entered: {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

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
    let worse = compare(&packed, &spread);
    let report: Value = serde_json::from_slice(&worse.stdout).expect("JSON");
    let counts = report["measures"].as_array().expect("a list").iter().filter(|measure| measure["unit"] != "seconds");
    assert!(counts.into_iter().all(|measure| measure["improved"] == false), "{report}");

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
        let mut command = neap.command(["order", "verify", "--json", "--pairs", "5", "--before"]);
        let output = command.arg(&only).arg("--after").arg(&after).output().expect("neap starts");
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
        let both = |measure: &str| {
            let all = report["measures"].as_array().expect("a list");
            let found =
                all.iter().find(|one| one["name"] == measure).unwrap_or_else(|| panic!("no {measure}: {report}"));
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
