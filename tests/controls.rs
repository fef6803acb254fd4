//! glibc's controls, neap's own functions, and other programs that use them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use neap_tests::sys::{Signal, TempDir};
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, expect, judge_case, library, package_dir, program};

const GLIBC: Source = Source::new("controls/glibc.c");
const API: Source = Source::new("controls/api.c");
const STOPPED: Source = Source::new("controls/stopped.c");

/// Program, case, and what the case would catch.
const CASES: &[(Source, &str, &str)] = &[
    (GLIBC, "mallopt_values", "a parameter that is refused, a bad value that is not, or errno changed"),
    (GLIBC, "perturb", "blocks that M_PERTURB does not fill, or calloc blocks that it fills"),
    (GLIBC, "perturb_threads", "another thread whose caches ignore M_PERTURB"),
    (GLIBC, "trim_returns", "malloc_trim that returns 1 although no memory went back, or 0 although some did"),
    (GLIBC, "trim_pad", "malloc_trim that keeps more or less than requested"),
    (
        GLIBC,
        "trim_threads_and_holes",
        "memory that malloc_trim leaves in caches of other threads and between survivors",
    ),
    (GLIBC, "under_load", "trims, reports or switches that corrupt blocks of working threads"),
    (GLIBC, "mallinfo_figures", "figures that do not follow the program, or wrap around"),
    (GLIBC, "info_errors", "malloc_info that takes options, or hides that its stream failed"),
    (GLIBC, "stats_text", "malloc_stats that changes errno"),
    (GLIBC, "state", "malloc_get_state or malloc_set_state that claim to work"),
    (GLIBC, "mmap_threshold", "M_MMAP_THRESHOLD or M_MMAP_MAX without effect"),
    (GLIBC, "trim_threshold", "M_TRIM_THRESHOLD without effect"),
    (GLIBC, "chrooted", "a control that needs /proc or /sys"),
    (API, "options", "options that are read or set wrongly, and errors that are mixed up"),
    (API, "mallopt_brings_back", "a control that forgets what the user chose when it is turned off and on again"),
    (API, "options_reach_what_waits", "a new value that counts only for what is freed later"),
    (API, "figures", "a write beyond a structure of another version"),
    (API, "trims", "a trim that ignores its time, or counts what was not there"),
    (API, "idle_thread", "a thread that keeps its caches although it says that it idles"),
    (
        API,
        "samples",
        "samples that are biased, or whose end is not reported; errno changed; hooks that may not allocate",
    ),
    (
        API,
        "samples_beside_forks",
        "a sample whose end is not reported while a thread forks, or a thread that is never shown again",
    ),
    (API, "sample_all", "a way to allocate or free that breaks when each block is a sample, fork included"),
];

fn main() -> ExitCode {
    let mut cases: Vec<Case> = CASES
        .iter()
        .map(|(source, case, catches)| {
            Case::new(format!("{}::{case}", source.stem()), catches, move || {
                judge_case(Run::new(linked(source)?).arg(case))?.no_complaint()?;
                Ok(())
            })
        })
        .collect();
    cases.extend([
        Case::new("environment::variables", "a variable or tunable of glibc's that does nothing", variables),
        Case::new(
            "environment::malformed",
            "a malformed variable that has an effect or is complained about",
            malformed,
        ),
        Case::new("environment::thresholds", "memory that is kept against glibc's two thresholds", thresholds),
        Case::new("filtered", "a control that makes a system call for which a filter kills", filtered),
        Case::new("archive", "neap's own functions that are not in libneap.a", archive),
        Case::new(
            "report",
            "malloc_info that is not valid XML, or sums that differ from mallinfo2's or the counters page's",
            report,
        ),
        Case::new("python", "ctypes that reaches the C library's unused heap, as in Dask's recipe", python),
        Case::new("jcmd", "System.trim_native_heap that does nothing or harms the JVM", jcmd),
        Case::new("debugger", "malloc_info that cannot be called in a stopped process", debugger),
        Case::new("gdb::attached", "a library in which gdb does not find malloc_info, or cannot call it", gdb),
        Case::new(
            "gdb::names",
            "a breakpoint or a call by the name of a function that leads into the middle of neap",
            names_in_gdb,
        ),
        Case::new(
            "resident",
            "sums of malloc_info that differ by 2 % from the kernel's counts, in real programs",
            resident,
        ),
        Case::new("header", "a header that an old or new C or C++ compiler rejects", header),
        Case::new("table::complete", "a case that is written but never run", || {
            let mut named: Vec<_> = CASES.iter().map(|(source, case, _)| (source.stem(), *case)).collect();
            named.extend(["perturb_by_environment", "no_perturb", "everything", "watched"].map(|case| ("glibc", case)));
            neap_tests::all_cases_named(&[GLIBC], &named)?;
            let list = Run::new(linked(&API)?).arg("--list").run()?.success()?;
            let forgotten: Vec<_> = list.stdout.lines().filter(|case| !named.contains(&("api", *case))).collect();
            if forgotten.is_empty() { Ok(()) } else { Err(Stop::Fail(format!("no table names {forgotten:?}"))) }
        }),
    ]);
    neap_tests::suite::main(cases)
}

/// Links the program with the library, which it finds because the library is preloaded.
fn linked(source: &Source) -> Result<PathBuf, Stop> {
    source.build_with(&[library::require_neap()?], &[])
}

/// Runs a case of glibc.c with these variables.
fn with(variables: &[(&str, &str)], case: &str) -> Result<Finished, Stop> {
    library::require_neap()?;
    let run = Run::new(GLIBC.build()?).arg(case);
    judge_case(variables.iter().fold(run, |run, (name, value)| run.env(name, value)))
}

fn variables() -> Outcome {
    with(&[("MALLOC_PERTURB_", "165")], "perturb_by_environment")?.no_complaint()?;
    with(&[("MALLOC_PERTURB_", "0xA5")], "perturb_by_environment")?;
    let tunables = "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165";
    with(&[("GLIBC_TUNABLES", tunables), ("MALLOC_PERTURB_", "7")], "perturb_by_environment")?.no_complaint()?;
    with(&[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")], "under_load")?.no_complaint()?;
    let ignored = ["MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_CHECK_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"];
    with(&ignored.map(|name| (name, "1")), "no_perturb")?.no_complaint()?;
    Ok(())
}

fn malformed() -> Outcome {
    for value in ["", "x", "12x", "165 ", "0x", "99999999999999999999"] {
        with(&[("MALLOC_PERTURB_", value), ("MALLOC_MMAP_MAX_", value)], "no_perturb")?.no_complaint()?;
        let tunables = format!("::glibc.malloc.perturb={value}:glibc.malloc.perturb:=:glibc.malloc.x=1");
        with(&[("GLIBC_TUNABLES", &tunables)], "no_perturb")?.no_complaint()?;
    }
    Ok(())
}

/// The lab's experiments with glibc's thresholds at 128 KiB: freed memory is gone when it is measured.
fn thresholds() -> Outcome {
    library::require_neap()?;
    /// Limit in MiB, including the program itself. By default glibc keeps 30 to 60 MiB in the one experiment, and
    /// gigabytes in the other.
    const MOST: f64 = 8.0;
    let lab = package_dir().join("../lab/experiments");
    let dir = TempDir::new("thresholds")?;
    for (name, arguments) in
        [("retain-small", &[][..]), ("retain-large", &["--rounds", "6", "--buffers", "64", "--idle-ms", "10"][..])]
    {
        let built = dir.join(name);
        let source = lab.join(format!("{name}.c"));
        Run::new(program("cc")?).args(["-O2", "-o"]).arg(&built).arg(source).plain().run()?.success()?;
        let run = Run::new(&built).args(arguments);
        let run = run.env("MALLOC_TRIM_THRESHOLD_", "131072").env("MALLOC_MMAP_THRESHOLD_", "131072");
        let done = run.run()?.success()?;
        let worst: Option<f64> =
            done.stdout.lines().find_map(|line| line.strip_prefix("metric rss-freed-worst MiB ")?.parse().ok());
        match worst {
            Some(mib) if mib < MOST => {}
            other => return Err(done.fail(&format!("{other:?} MiB after free, {MOST} at most"))),
        }
    }
    Ok(())
}

/// Controls under a filter that the program sets for itself, and that kills for all but the usual calls.
fn filtered() -> Outcome {
    library::require_neap()?;
    judge_case(Run::new(Source::new("controls/filtered.c").build()?).arg("killed"))?.no_complaint()?;
    Ok(())
}

fn archive() -> Outcome {
    let archive = library::require_neap()?.with_file_name("libneap.a");
    for (flags, cases) in
        [(&[][..], &["options", "samples", "trims"][..]), (&["-static"][..], &["figures", "samples"][..])]
    {
        let built = API.build_with(&[&archive], flags)?;
        for case in cases {
            judge_case(Run::new(&built).arg(case).plain())?.no_complaint()?;
        }
    }
    let built = GLIBC.build_with(&[&archive], &["-static"])?;
    for case in ["perturb", "trim_returns", "mallinfo_figures"] {
        judge_case(Run::new(&built).arg(case).plain().env("NEAP_TEST_STRICT", "1"))?.no_complaint()?;
    }
    Ok(())
}

/// How long a program may take to begin, or to end.
const LIMIT: Duration = Duration::from_secs(120);

/// Starts glibc.c's `watched`, and waits until its report lies in `dir`.
fn watched(dir: &TempDir) -> Result<neap_tests::Daemon, Stop> {
    library::require_neap()?;
    let run = Run::new(GLIBC.build()?).arg("watched").env("CONTROLS_DIR", dir.path());
    let mut daemon = run.daemon()?;
    let ready = dir.join("info");
    daemon.wait_until(LIMIT, || ready.exists())?;
    Ok(daemon)
}

const REPORT: &str = r#"
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
assert root.tag == "malloc" and root.attrib == {"version": "1"}, root.attrib
heaps = root.findall("heap")
assert [heap.get("nr") for heap in heaps] == [str(i) for i in range(len(heaps))]
def number(element, kind, what, name):
    found = [e for e in element.findall(kind) if e.get("type") == what]
    assert len(found) == 1, (kind, what, found)
    return int(found[0].get(name))
for kind, what in ("total", "fast"), ("total", "rest"), ("system", "current"), ("system", "max"), ("aspace", "total"):
    whole = number(root, kind, what, "size")
    assert whole == sum(number(heap, kind, what, "size") for heap in heaps), (kind, what)
sizes = root.findall("heap/sizes/size")
assert sizes
for s in sizes:
    low, high, total, count = (int(s.get(name)) for name in ("from", "to", "total", "count"))
    assert 0 < low <= high and count > 0 and count * low <= total <= count * high, s.attrib
count = sum(int(s.get("count")) for s in sizes)
assert count == number(root, "total", "rest", "count")
free = sum(int(s.get("total")) for s in sizes)
rest = number(root, "total", "rest", "size")
# What slabs have behind their last block is free, and in no size.
assert free <= rest <= free * 1.1, (free, rest)
current = number(root, "system", "current", "size")
assert current <= number(root, "system", "max", "size") <= number(root, "aspace", "total", "size")
fast = number(root, "total", "fast", "size")
resident = {e.get("type"): int(e.get("size")) for e in root.findall("resident")}
assert resident["total"] == resident["arenas"] + resident["tables"] + resident["mmap"] > 1 << 20, resident
print(current, count, number(root, "total", "fast", "count"), number(root, "total", "mmap", "count"),
      number(root, "total", "mmap", "size"), fast, current - fast - rest, fast + rest)
"#;

fn report() -> Outcome {
    let python = program("/usr/bin/python3")?;
    let dir = TempDir::new("report")?;
    let daemon = watched(&dir)?;
    let parsed = Run::new(python).args(["-c", REPORT]).arg(dir.join("info.xml")).plain().run()?.success()?;
    let info = std::fs::read_to_string(dir.join("info"))?;
    let numbers = |text: &str| text.split_whitespace().map_while(|n| n.parse::<u64>().ok()).collect::<Vec<_>>();
    let (xml, info) = (numbers(&parsed.stdout), numbers(&info));
    if info.len() != 9 || xml != info[..8] {
        return Err(daemon.fail(&format!("malloc_info says {xml:?}, mallinfo2 {info:?}")));
    }
    let page = neap_observe::read(daemon.pid()).map_err(|e| daemon.fail(&e.to_string()))?.gauges;
    let free = page.cached_bytes + page.slab_free_bytes + page.dirty_bytes + page.lazy_bytes;
    let of_page = [page.huge_blocks, page.huge_bytes, page.cached_bytes, page.live_bytes - page.huge_bytes, free];
    if of_page != info[3..8] || page.dirty_bytes != info[8] {
        return Err(daemon.fail(&format!("the page says {of_page:?} and {page:?}, mallinfo2 {info:?}")));
    }
    daemon.stop(Signal::TERM, LIMIT)?;
    Ok(())
}

const PYTHON: &str = r#"
import ctypes, threading
libc = ctypes.CDLL("libc.so.6")
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc.mallinfo2.restype = Info
whole = ctypes.CDLL(None)
whole.mallinfo2.restype = Info
def rss():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1])
def work():
    data = [bytearray(b"x" * (500 + i % 3000)) for i in range(100000)]
    return libc.mallinfo2().uordblks
libc.mallopt(-1, -1)
libc.malloc_trim(0)
base = rss()
thread = threading.Thread(target=work)
thread.start(); thread.join()
used = work()
assert used > 150 << 20, used
full = rss()
assert libc.malloc_trim(0) == 1
back = full - rss()
assert back > 100 << 10, (base, full, back)
assert libc.malloc_trim(0) in (0, 1)
info = libc.mallinfo2()
assert info.arena == info.uordblks + info.fordblks and info.uordblks < used
assert whole.mallinfo2().arena > 0
assert ctypes.CDLL("libc.so.6").getpid() == __import__("os").getpid()
try:
    libc.no_such_function
    raise SystemExit("found")
except AttributeError:
    print("ok")
"#;

fn python() -> Outcome {
    library::require_neap()?;
    let python = program("/usr/bin/python3")?;
    // Memory goes back only through malloc_trim, however long this takes.
    let run = Run::new(python).args(["-c", PYTHON]).env("PYTHONMALLOC", "malloc").env("NEAP_PURGE", "never");
    run.run()?.success()?.contains("ok")?.no_complaint()?;
    Ok(())
}

/// Allocates 100 MB of native memory, writes to it, and frees it.
const JAVA: &str = "
public class Idle {
    public static void main(String[] args) throws Exception {
        var field = sun.misc.Unsafe.class.getDeclaredField(\"theUnsafe\");
        field.setAccessible(true);
        var unsafe = (sun.misc.Unsafe) field.get(null);
        long[] blocks = new long[200];
        for (int i = 0; i < 200; i++) {
            blocks[i] = unsafe.allocateMemory(500_000);
            unsafe.setMemory(blocks[i], 500_000, (byte) 1);
        }
        for (long block : blocks) unsafe.freeMemory(block);
        java.nio.file.Files.createFile(java.nio.file.Path.of(args[0]));
        while (true) Thread.sleep(1000);
    }
}
";

/// A folder, and the path of a file in it with this text.
fn file(name: &str, text: &str) -> Result<(TempDir, PathBuf), Stop> {
    let dir = TempDir::new("controls")?;
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok((dir, path))
}

/// Megabytes of a text as the JVM writes it: `512K`, `174M`.
fn mega(text: &str) -> Option<f64> {
    let unit = match text.bytes().last()? {
        b'K' => 1024.0,
        b'M' => 1048576.0,
        b'G' => 1073741824.0,
        _ => return Some(text.parse::<f64>().ok()? / 1e6),
    };
    Some(text[..text.len() - 1].parse::<f64>().ok()? * unit / 1e6)
}

fn jcmd() -> Outcome {
    library::require_neap()?;
    let (java, jcmd) = (program("java")?, program("jcmd")?);
    let (dir, source) = file("Idle.java", JAVA)?;
    let ready = dir.join("ready");
    // So that free memory stays until the JVM is asked to trim.
    let mut daemon = Run::new(java).arg(source).arg(&ready).env("NEAP_PURGE", "never").daemon()?;
    daemon.wait_until(LIMIT, || ready.exists())?;
    daemon.check_preloaded()?;
    let pid = daemon.pid().to_string();
    let ask = || Run::new(&jcmd).args([&pid, "System.trim_native_heap"]).plain().run();
    let done = ask()?;
    if done.stdout.contains("Unknown diagnostic command") {
        return Err(Stop::Skip("this JVM has no System.trim_native_heap".into()));
    }
    let done = done.success()?;
    let text = done.stdout.split("Trim native heap: RSS+Swap: ").nth(1).and_then(|text| text.split_whitespace().next());
    let went = text.and_then(|text| text.split_once("->")).and_then(|(a, b)| Some(mega(a)? - mega(b)?));
    if went.is_none_or(|went| went < 80.0) {
        return Err(done.fail(&format!("{went:?} MB went back, of 100 that are free")));
    }
    ask()?.success()?.contains("Trim native heap: ")?;
    Run::new(&jcmd).args([&pid, "VM.version"]).plain().run()?.success()?;
    Ok(())
}

/// Attaches a debugger, which gets the process id, to a waiting process, and has it call functions there; then lets the
/// process end.
fn called(debugger: impl Fn(&str) -> Run) -> Outcome {
    let dir = TempDir::new("called")?;
    let daemon = watched(&dir)?;
    let attached = debugger(&daemon.pid().to_string()).plain().run()?;
    for refusal in ["Operation not permitted", "Couldn't write extended state status"] {
        if attached.stderr.contains(refusal) {
            return Err(Stop::Skip(format!("this debugger can call no function here: {refusal}")));
        }
    }
    for wanted in ["$1 = 0", "$2 = 0", "$3 = 1", "$4 = 22"] {
        if !attached.stdout.contains(wanted) {
            return Err(attached.fail(&format!("`{wanted}` was expected")));
        }
    }
    let done = daemon.stop(Signal::TERM, LIMIT)?;
    if !(done.stdout.starts_with("<malloc version=\"1\">\n") && done.stdout.trim_end().ends_with("</malloc>")) {
        return Err(done.fail("no report on standard output"));
    }
    Ok(())
}

fn debugger() -> Outcome {
    let (python, script) = (program("/usr/bin/python3")?, package_dir().join("controls/debugger.py"));
    let calls = "libneap malloc_info 0 libc:stdout -- libc fflush libc:stdout -- libneap malloc_trim 0 \
        -- libneap malloc_info 1 libc:stdout";
    called(|pid| Run::new(&python).arg(&script).arg(pid).args(calls.split_whitespace()))
}

/// gdb before 14 cannot write the registers of processors with AMX, in any program.
fn gdb() -> Outcome {
    let gdb = program("gdb")?;
    let calls = "print (int)malloc_info(0, stdout)\nprint (int)fflush(stdout)\nprint (int)malloc_trim(0)\n\
        print (int)malloc_info(1, stdout)";
    called(|pid| {
        calls.lines().fold(Run::new(&gdb).args(["-nx", "-batch", "-p", pid]), |run, call| run.args(["-ex", call]))
    })
}

/// In a program that gdb has started, names of functions stand for those that the library exports, and for no others.
fn names_in_gdb() -> Outcome {
    const EXPORTED: [&str; 5] = ["malloc", "free", "calloc", "realloc", "malloc_trim"];
    // Not `write`: the parts of `core` that come compiled have such a function, with debugging information.
    const COMMON: [&str; 8] = ["stop", "start", "end", "read", "open", "close", "abort", "exit"];
    const CALLS: [&str; 5] = [
        "print malloc_usable_size(block) >= 100",
        "call free(block)",
        "set variable block = malloc(1000)",
        "print malloc_usable_size(block) >= 1000",
        "print malloc_trim(0) >= 0",
    ];
    let library = library::require_neap()?;
    let mut commands = vec![
        "set breakpoint pending off".to_string(),
        format!("set environment LD_PRELOAD {}", library.display()),
        "break stopped.c:stop".into(),
        "run".into(),
        "info sharedlibrary libneap".into(),
    ];
    for name in EXPORTED.iter().chain(&COMMON) {
        commands.extend(["delete".into(), format!("echo <{name}>\\n"), format!("break {name}")]);
        commands.push("info breakpoints".into());
    }
    commands.extend(["delete".into(), "echo <calls>\\n".into()]);
    commands.extend(CALLS.map(String::from));
    commands.push("continue".into());
    let run = Run::new(program("gdb")?).args(["-nx", "-batch"]);
    let run = commands.iter().fold(run, |run, command| run.args(["-ex", command]));
    let done = run.arg(STOPPED.build()?).plain().run()?.success()?;

    let address = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let line = done.stdout.lines().find(|line| line.ends_with("libneap.so")).unwrap_or_default();
    let code: Vec<u64> = line.split_whitespace().filter_map(address).collect();
    let [from, to] = code[..] else { return Err(done.fail("gdb does not say where the library is")) };
    let after = |name: &str| done.stdout.split(&format!("<{name}>\n")).nth(1).unwrap_or_default();
    for (name, wanted) in EXPORTED.map(|name| (name, 1)).into_iter().chain(COMMON.map(|name| (name, 0))) {
        let section = after(name).split("\n<").next().unwrap_or_default();
        let mut places: Vec<u64> = section.split_whitespace().filter_map(address).collect();
        places.retain(|place| (from..to).contains(place));
        places.sort_unstable();
        places.dedup();
        if places.len() != wanted {
            return Err(done.fail(&format!("`break {name}` stops at {} places in neap", places.len())));
        }
    }
    if done.stderr.contains("Couldn't write extended state status") {
        return Err(Stop::Skip("the names are right; this gdb can call no function here".into()));
    }
    let calls = after("calls");
    let all = calls.matches(" = 1\n").count() == 3 && calls.contains("exited normally");
    expect(all, &done, "calls from gdb fail, or end the program")
}

/// Compares the sums of malloc_info with what the kernel counts.
fn resident() -> Outcome {
    let library = library::require_neap()?;
    let python = program("/usr/bin/python3")?;
    let script = package_dir().join("controls/resident.py");
    let run = || Run::new(&python).arg(&script).arg(library).plain().timeout(Duration::from_secs(400)).run();
    let mut done = run()?;
    // A program that works on takes memory between the two counts: one of three runs has to agree.
    for _ in 0..2 {
        if done.stdout.contains("TOO FAR") {
            done = run()?;
        }
    }
    if done.stderr.contains("Operation not permitted") {
        return Err(Stop::Skip("no right to attach a debugger".into()));
    }
    let done = done.success()?;
    let programs = done.stdout.lines().filter(|line| line.contains(" | ")).count().saturating_sub(1);
    if programs < 10 {
        let missing = done.stdout.lines().last().unwrap_or_default();
        return Err(Stop::Skip(format!("resident memory agrees in {programs} programs, of 10 at least; {missing}")));
    }
    Ok(())
}

fn header() -> Outcome {
    let include = package_dir().join("../include");
    let (_dir, source) = file("header.c", "#include <neap.h>\nint main(void) { return NEAP_OK; }\n")?;
    let check = |compiler: &str, language: &str, standard: &str, source: &Path| -> Outcome {
        let run =
            Run::new(program(compiler)?).args(["-x", language, standard, "-Wall", "-Wextra", "-pedantic", "-Werror"]);
        run.arg("-I").arg(&include).args(["-fsyntax-only"]).arg(source).plain().run()?.success()?;
        Ok(())
    };
    for standard in ["-std=c99", "-std=c11", "-std=gnu2x"] {
        check("cc", "c", standard, &source)?;
    }
    // C libraries with C23's functions declare them as functions that do not throw.
    let newer = "#undef _GNU_SOURCE\n#define _GNU_SOURCE 1\n#include <features.h>\n#include <stddef.h>\n__BEGIN_DECLS\n\
        extern void free_sized(void *, size_t) __THROW;\nextern void free_aligned_sized(void *, size_t, size_t) __THROW;\n\
        __END_DECLS\n#include <neap.h>\nint main(void) { return NEAP_OK; }\n";
    let (_dir_newer, newer) = file("newer.c", newer)?;
    check("cc", "c", "-std=c11", &newer)?;
    for standard in ["-std=c++98", "-std=c++11", "-std=c++20"] {
        check("c++", "c++", standard, &source)?;
        check("c++", "c++", standard, &newer)?;
    }
    Ok(())
}
