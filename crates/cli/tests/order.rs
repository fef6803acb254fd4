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

/// Catches children of a process whose memory is refused to neap, as it is undumpable and neap is not privileged: they
/// would die of breakpoints, or stay dumpable.
#[test]
fn undumpable_children() {
    let neap = Neap::new();
    let Some(program) = known(&neap, "undumpable_children", &[]) else { return };
    let alone = Command::new(&program).arg("undumpable").output().expect("the program starts");
    let unprivileged = format!(
        "if [ $(id -u) = 0 ]; then set -- setpriv --bounding-set=-all --inh-caps=-all \"$@\"; fi; exec \"$@\"; {}",
        "exit 99"
    );
    for (options, child) in [(&[][..], false), (&["--follow"], true)] {
        let mut command = Command::new("sh");
        command.args(["-c", &unprivileged, "sh", env!("CARGO_BIN_EXE_neap"), "order", "trace", "-o"]);
        let output = command.arg(neap.path("trace")).args(options).arg("--").arg(&program).arg("undumpable").output();
        let output = output.expect("sh starts");
        if [Some(99), Some(127)].contains(&output.status.code()) {
            return skip("undumpable_children", "needs setpriv");
        }
        assert_eq!(output.stdout, alone.stdout, "{options:?}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", stderr(&output));
        let trace = fs::read_to_string(neap.path("trace")).expect("a trace");
        assert_eq!((trace.contains("only_after"), trace.contains("only_child")), (true, child), "{options:?}");
    }
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

/// Catches a program that dies of breakpoints in a copy that it made of its code, as compilers at run time do, and a child
/// that does.
#[test]
fn copied_code() {
    let neap = Neap::new();
    let source = "#include <stdio.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/wait.h>
        #include <unistd.h>
        __attribute__((noinline, aligned(4096))) unsigned first(unsigned x) { return x * 77 + (x >> 3) + 19; }
        __attribute__((noinline, aligned(64))) unsigned second(unsigned x) { return x * 99 + (x >> 5) + 23; }
        __attribute__((aligned(4096))) int main(void) {
            char *copy = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memcpy(copy, first, 4096);
            unsigned (*copies[])(unsigned) = {(void *)copy, (void *)(copy + ((char *)second - (char *)first))};
            printf(\"%u\\n\", copies[0](5));
            fflush(stdout);
            if (fork() == 0) { printf(\"%u\\n\", copies[1](5)); return 4; }
            int status = 0;
            wait(&status);
            printf(\"%u %d\\n\", copies[1](7), status);
            copy[100] = (char)0xcc;
            fflush(stdout);
            ((void (*)(void))(copy + 100))();
            return 5;
        }";
    let program = compile(neap.dir.path(), "copied", source, &["-O1"]).filter(|_| cfg!(target_arch = "x86_64"));
    let Some(program) = program else { return skip("copied_code", "needs x86-64 and a C compiler") };
    let traced = trace(&neap, &program, &[]);
    // The breakpoint of its own.
    assert_eq!(traced.output.status.signal(), Some(libc::SIGTRAP), "{}", stderr(&traced.output));
    assert_eq!(traced.own(), ["main"]);
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

/// Catches a stripped binary whose names are not taken from its debug information, by the trace or by an order.
#[test]
fn debug_information() {
    /// Goes away with this value.
    struct Installed(PathBuf);
    impl Drop for Installed {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
            // Where it is empty.
            let _ = self.0.parent().map(fs::remove_dir);
        }
    }
    let neap = Neap::new();
    let Some(program) = known(&neap, "debug_information", &["-Wl,--build-id"]) else { return };
    let whole = trace(&neap, &program, &["plain"]).trace;
    let (first, rest) = whole["binary"]["build_id"].as_str().expect("a build id").split_at(2);
    let folder = Path::new("/usr/lib/debug/.build-id").join(first);
    let file = Installed(folder.join(format!("{rest}.debug")));
    let objcopy = |arguments: &[&OsStr]| {
        let status = Command::new("objcopy").args(arguments).status();
        status.is_ok_and(|status| status.success())
    };
    let kept = ["--only-keep-debug".as_ref(), program.as_os_str(), file.0.as_os_str()];
    if fs::create_dir_all(&folder).is_err() || !objcopy(&kept) {
        return skip("debug_information", "needs root and objcopy");
    }
    assert!(objcopy(&["--strip-all".as_ref(), program.as_os_str()]));
    let traced = trace(&neap, &program, &["plain"]);
    assert_eq!(traced.own(), ["chosen", "early", "main", "first", "second", "third", "resolved"]);
    let mut emit = neap.command(["order", "emit", "--for", "lld"]);
    let output = emit.arg(neap.path("trace")).arg(&program).output().expect("neap starts");
    assert!(stderr(&output).contains(" 0 lost"), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("second\nthird\n"));
}

/// Catches functions that were only looked at, children that add to the trace, and a program that finds breakpoints, where
/// functions are seen by faults.
#[test]
fn by_faults() {
    let neap = Neap::new();
    let source = "#include <sys/wait.h>
        #include <unistd.h>
        #define ALONE __attribute__((noinline, aligned(4096)))
        static volatile int n;
        ALONE void first(void) { n++; }
        ALONE void never(void) { n--; }
        ALONE void second(void) { n += 2; }
        ALONE void only_child(void) { n += 3; }
        ALONE int main(int argc, char **argv) {
            (void)argv;
            first();
            if (fork() == 0) { only_child(); _exit(0); }
            wait(0);
            second();
            if (argc > 5) never();
            write(1, \"done\\n\", 5);
            return *(volatile unsigned char *)first == 0xcc || *(volatile unsigned char *)never == 0xcc ? 1 : 7;
        }";
    let program = compile(neap.dir.path(), "alone", source, &["-O1"]).filter(|_| cfg!(target_arch = "x86_64"));
    let Some(program) = program else { return skip("by_faults", "needs x86-64 and a C compiler") };
    let found = Traced::new(&neap, &["--source", "breakpoints"], &[&program]);
    assert_eq!(found.output.status.code(), Some(1), "{}", stderr(&found.output));
    for (options, own) in [(&[][..], "main first second"), (&["--follow"], "main first only_child second")] {
        let traced = Traced::new(&neap, &[&["--source", "faults"], options].concat(), &[&program]);
        if stderr(&traced.output).contains("cannot trace faults") {
            return skip("by_faults", "faults cannot be traced exactly here");
        }
        traced.is_like(&mut Command::new(&program));
        assert_eq!((traced.output.status.code(), traced.own().join(" ").as_str()), (Some(7), own));
        let run = &traced.trace["runs"][0];
        assert_eq!((&run["source"], &run["status"]), (&"faults".into(), &7.into()));
        assert!(stderr(&traced.output).contains("(source: faults)"), "{}", stderr(&traced.output));
        let again = neap.command(["order", "merge"]).args([neap.path("trace"), neap.path("trace")]).output();
        let merged: Value = serde_json::from_slice(&again.expect("neap starts").stdout).expect("a trace");
        let main = merged["functions"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "main"));
        assert_eq!(main.expect("main")["runs"], 2, "{merged}");
    }
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
