//! `neap why` and `neap stats` on real processes: planted causes and their remedies, sums, a command, time, errors.

#[path = "why/commands.rs"]
mod commands;
mod common;
#[path = "why/containers.rs"]
mod containers;
#[path = "why/planted.rs"]
mod planted;
#[path = "why/programs.rs"]
mod programs;
#[path = "why/stacks.rs"]
mod stacks;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, assert_refused, compile, is_root, skip, stderr, stdout};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The program that plants causes.
fn plant(neap: &Neap) -> Option<PathBuf> {
    compile(neap.dir.path(), "plant", include_str!("why/plant.c"), &["-O0", "-w", "-pthread"])
}

/// A process that has planted a cause.
struct Planted {
    child: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
    /// The process with the cause, which may be a child of the child.
    pid: u32,
}

impl Planted {
    fn start(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Planted {
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().copied());
        Self::of(command)
    }

    fn of(command: Command) -> Planted {
        Self::try_of(command).unwrap_or_else(|line| panic!("no process: {line:?}"))
    }

    /// The same; fails with what the program says instead of its number.
    fn try_of(mut command: Command) -> Result<Planted, String> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("it says its process");
        match line.trim().parse() {
            Ok(pid) => Ok(Planted { child, input, lines, pid }),
            Err(_) => {
                drop(input);
                let _ = child.wait();
                Err(line)
            }
        }
    }

    /// Has it do something, and waits until that is done.
    fn tell(&mut self, what: u8) {
        let input = self.input.as_mut().expect("it is a pipe");
        input.write_all(&[what]).and_then(|()| input.flush()).expect("it listens");
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it answers");
        assert_eq!(line, "done\n");
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Rss, by the kernel.
fn rss(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// The account of a process.
fn why(neap: &Neap, pid: u32) -> Value {
    let output = neap.output(["why", "--json", &pid.to_string()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    check_sum(&report);
    report
}

/// Accounts add up to Rss, and little of it is not explained.
fn check_sum(report: &Value) {
    let rss = report["rss_bytes"].as_u64().expect("bytes");
    let accounts = report["accounts"].as_array().expect("accounts");
    let sum: u64 = accounts.iter().map(|account| account["bytes"].as_u64().expect("bytes")).sum();
    assert!(sum.abs_diff(rss) * 50 <= rss, "{sum} of {rss}: {report:#}");
    assert!(of(report, "other") * 20 <= rss, "other: {} of {rss}: {report:#}", of(report, "other"));
}

/// The bytes of a kind.
fn of(report: &Value, kind: &str) -> u64 {
    let accounts = report["accounts"].as_array().expect("accounts").iter();
    accounts.filter(|account| account["kind"] == kind).map(|account| account["bytes"].as_u64().unwrap_or(0)).sum()
}

/// What the remedy whose command or text has these words would give back.
fn remedy(report: &Value, words: &str) -> u64 {
    let remedies = report["remedies"].as_array().expect("remedies").iter();
    let has = |name: &str, of: &Value| of[name].as_str().is_some_and(|text| text.contains(words));
    let found = remedies.into_iter().find(|of| has("command", of) || has("text", of));
    found.and_then(|of| of["bytes"].as_u64()).unwrap_or_else(|| panic!("no remedy with {words}: {report:#}"))
}

/// A prediction, and what it turned out to be: within a tenth.
fn assert_near(what: &str, predicted: u64, measured: u64) {
    eprintln!(
        "{what}: predicted {:.1} MiB, measured {:.1}",
        predicted as f64 / MIB as f64,
        measured as f64 / MIB as f64
    );
    assert!(predicted.abs_diff(measured) * 10 <= predicted, "{what}: predicted {predicted}, measured {measured}");
}

/// One account of a planted cause: its name, and the kind that has most of it.
fn assert_cause(report: &Value, cause: &str, kind: &str, least: u64) {
    assert_eq!(report["cause"], cause, "{report:#}");
    assert!(of(report, kind) >= least, "{kind}: {}: {report:#}", of(report, kind));
    assert!(report["verdict"].as_str().is_some_and(|text| text.ends_with('.')), "{report:#}");
}

/// Catches retention that is not seen, or is taken for live memory, and remedies that do not give back what they promise.
#[test]
fn what_glibc_keeps_is_found_and_goes_back() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("what_glibc_keeps", "needs a C compiler") };
    let mut arenas = Planted::start(&program, &["arenas"], &[]);
    let report = why(&neap, arenas.pid);
    assert_cause(&report, "arena-retention", "heap-free", 240 * MIB);
    let before = rss(arenas.pid);
    // It gave nothing back where threads allocate at the same time.
    assert!(!report["remedies"].to_string().contains("MALLOC_ARENA_MAX"), "{report:#}");
    let on_neap = Planted::of({
        let mut command = neap.command(["run", "--"]);
        command.arg(&program).arg("arenas");
        command
    });
    std::thread::sleep(Duration::from_secs(2));
    assert_near("neap run", remedy(&report, "neap run"), before.saturating_sub(rss(on_neap.pid)));
    arenas.tell(b't');
    assert_near("malloc_trim", remedy(&report, "malloc_trim"), before - rss(arenas.pid));

    let mut top = Planted::start(&program, &["top"], &[]);
    let report = why(&neap, top.pid);
    assert_cause(&report, "pinned-top", "heap-free", 60 * MIB);
    let before = rss(top.pid);
    top.tell(b't');
    assert_near("malloc_trim, top", remedy(&report, "malloc_trim"), before - rss(top.pid));
}

/// Catches blocks in caches of threads that are taken for live ones, and fragmentation for retention.
#[test]
fn caches_and_fragmentation_are_told_apart() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("caches_and_fragmentation", "needs a C compiler") };
    let caches = Planted::start(&program, &["tcache"], &[]);
    let report = why(&neap, caches.pid);
    assert_cause(&report, "thread-caches", "heap-free", 60 * MIB);
    let without = Planted::start(&program, &["tcache"], &[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")]);
    assert_near("tcache_count=0", remedy(&report, "tcache_count=0"), rss(caches.pid) - rss(without.pid));

    let mut fragmented = Planted::start(&program, &["fragmentation"], &[]);
    let report = why(&neap, fragmented.pid);
    assert_cause(&report, "fragmentation", "heap-fragmentation", 44 * MIB);
    // Nothing is promised, and nothing comes back.
    let before = rss(fragmented.pid);
    fragmented.tell(b't');
    assert!(before.abs_diff(rss(fragmented.pid)) < MIB, "{}", before.abs_diff(rss(fragmented.pid)));

    let live = Planted::start(&program, &["leak"], &[]);
    assert_cause(&why(&neap, live.pid), "live", "heap-live", 62 * MIB);
}

/// Catches memory outside of heaps that is named wrongly: huge pages, stacks, locked memory, memory since a fork.
#[test]
fn what_is_no_heap_is_named() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("what_is_no_heap", "needs a C compiler") };
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if enabled.contains("[madvise]") || enabled.contains("[always]") {
        let huge = Planted::start(&program, &["huge"], &[]);
        let report = why(&neap, huge.pid);
        assert_cause(&report, "huge-zero", "huge-zero", 55 * MIB);
        let small = Planted::start(&program, &["huge", "off"], &[]);
        assert_near("no huge pages", remedy(&report, "without huge pages"), rss(huge.pid) - rss(small.pid));
        assert!(!report["remedies"].to_string().contains("/sys/kernel"), "{report:#}");
        let zeros = Planted::start(&program, &["zeros", "large"], &[]);
        assert_cause(&why(&neap, zeros.pid), "live", "heap-live", 64 * MIB);
    } else {
        skip("what_is_no_heap: huge", "the kernel gives no huge pages");
    }
    let mut stacks = Planted::start(&program, &["stacks"], &[]);
    let report = why(&neap, stacks.pid);
    assert_cause(&report, "stacks", "stack", 62 * MIB);
    let before = rss(stacks.pid);
    stacks.tell(b's');
    assert_near("stacks", remedy(&report, "MADV_DONTNEED"), before - rss(stacks.pid));

    let forked = Planted::start(&program, &["fork"], &[]);
    let report = why(&neap, forked.pid);
    assert_cause(&report, "copy-on-write", "heap-live", 62 * MIB);
    let own = report["private_bytes"].as_u64().expect("bytes");
    assert!(own < 2 * MIB, "{own}");
    // Nothing was copied because it was looked at.
    let again = why(&neap, forked.pid)["private_bytes"].as_u64().expect("bytes");
    assert!(again < 2 * MIB, "{again}");
    drop(forked);
    let forked = Planted::start(&program, &["fork", "write"], &[]);
    let report = why(&neap, forked.pid);
    assert_cause(&report, "copy-on-write", "heap-live", 62 * MIB);
    let verdict = report["verdict"].as_str().expect("a sentence");
    let copied = verdict.split(" MiB of that copied").next().and_then(|text| text.rsplit(' ').next());
    let copied: f64 = copied.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{verdict}"));
    // A quarter of 64,000 blocks of 1,008 bytes.
    assert!((15.0..17.0).contains(&copied), "{verdict}");
    drop(forked);
    // What it has taken since may be a leak; ending it is no remedy.
    let forked = Planted::start(&program, &["fork", "grow"], &[]);
    let report = why(&neap, forked.pid);
    // 1.9 times 64 MiB of blocks of 1000 bytes.
    assert_cause(&report, "live", "heap-live", 118 * MIB);
    let verdict = report["verdict"].as_str().expect("a sentence");
    assert!(verdict.contains("or a leak") && verdict.contains("since a fork"), "{verdict}");
    assert!(!report.to_string().contains("kill"), "{report:#}");

    if is_root() {
        let locked = Planted::start(&program, &["locked"], &[]);
        let report = why(&neap, locked.pid);
        assert_cause(&report, "locked", "anonymous", 60 * MIB);
        let late = Planted::start(&program, &["locked", "late"], &[]);
        assert_near("MLOCK_ONFAULT", remedy(&report, "MLOCK_ONFAULT"), rss(locked.pid) - rss(late.pid));
    } else {
        skip("what_is_no_heap: locked", "needs root");
    }
}

/// Catches zeros that the program wrote in its blocks and that do not count as live, or whose remedy saves nothing.
#[test]
fn zeros_in_blocks_are_live() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("zeros_in_blocks", "needs a C compiler") };
    let zeros = Planted::of({
        let mut command = neap.command(["run", "--set", "huge=always", "--"]);
        command.arg(&program).arg("zeros");
        command
    });
    let report = why(&neap, zeros.pid);
    assert_cause(&report, "live", "heap-live", 62 * MIB);
    let text = report["remedies"].to_string();
    assert!(!text.contains("/sys/kernel") && !text.contains("NEAP_HUGE"), "{report:#}");
}

/// Catches memory that an allocator has named, as Google's tcmalloc does, and that is no allocator's.
#[test]
fn memory_that_an_allocator_names_is_its() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("memory_that_an_allocator_names", "needs a C compiler") };
    let region = Planted::start(&program, &["region"], &[]);
    let maps = fs::read_to_string(format!("/proc/{}/maps", region.pid)).expect("it runs");
    if !maps.contains("[anon:tcmalloc_region") {
        return skip("memory_that_an_allocator_names", "the kernel keeps no names (CONFIG_ANON_VMA_NAME)");
    }
    let report = why(&neap, region.pid);
    assert!(of(&report, "heap") >= 32 * MIB, "{report:#}");
    assert!(report["allocators"].as_array().is_some_and(|names| names.contains(&"tcmalloc".into())), "{report:#}");
    assert!(report["notes"].to_string().contains("not distinguished"), "{report:#}");
}

/// Buffers of Java outside its heap.
const DIRECT: &str = "public class Direct {
    static java.util.List<java.nio.ByteBuffer> kept = new java.util.ArrayList<>();
    public static void main(String[] arguments) throws Exception {
        for (int i = 0; i < 1600; i++) kept.add(java.nio.ByteBuffer.allocateDirect(100_000));
        System.out.println(ProcessHandle.current().pid());
        while (System.in.read() >= 0) System.out.println(\"done\");
    }
}";

/// Catches native memory of a JVM that is taken for its heap, or for any program's blocks.
#[test]
fn memory_outside_the_heap_of_java_is_named() {
    let neap = Neap::new();
    let file = neap.file("Direct.java", DIRECT, 0o644);
    let compiled = Command::new("javac").arg("-d").arg(neap.dir.path()).arg(&file).status();
    if !compiled.is_ok_and(|status| status.success()) {
        return skip("memory_outside_the_heap_of_java", "needs javac: tests/setup.sh installs it");
    }
    let mut command = Command::new("java");
    command.args(["-Xmx64m", "-XX:MaxDirectMemorySize=1g", "-XX:NativeMemoryTracking=summary", "-cp"]);
    command.arg(neap.dir.path()).arg("Direct");
    let java = Planted::of(command);
    let report = why(&neap, java.pid);
    assert_cause(&report, "off-heap", "heap-live", 152 * MIB);
    let verdict = report["verdict"].as_str().expect("a sentence");
    let says = format!("`jcmd {} VM.native_memory summary`", java.pid);
    assert!(!report["remedies"].to_string().contains("MALLOC_ARENA_MAX"), "{report:#}");
    assert!(verdict.contains("native memory of the JVM") && verdict.contains(&says), "{verdict}");
    assert_eq!((remedy(&report, "-XX:MaxDirectMemorySize"), remedy(&report, says.trim_matches('`'))), (0, 0));
    // The command that it names knows what they are.
    let jcmd = Command::new("jcmd").args([&java.pid.to_string(), "VM.native_memory", "summary"]).output();
    let text = jcmd.map(|output| stdout(&output)).unwrap_or_default();
    let line = text.lines().find(|line| line.contains("Other (") && line.contains("committed="));
    let kib = line.and_then(|line| line.rsplit_once("committed=")?.1.trim_end_matches("KB)").parse::<u64>().ok());
    assert!(kib.is_some_and(|kib| kib.abs_diff(160_000_000 / 1024) < 2000), "{text}");
}

/// A shared library of Debian's; none if it is not installed.
fn library(name: &str) -> Option<String> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    folders.iter().map(|folder| format!("{folder}/{name}")).find(|path| Path::new(path).exists())
}

/// Live bytes of an allocator.
fn live_of(report: &Value, allocator: &str) -> u64 {
    let heaps = report["heaps"].as_array().expect("heaps").iter();
    let is_its = |of: &&Value| of["allocator"].as_str().is_some_and(|name| name.starts_with(allocator));
    heaps.filter(is_its).map(|of| of["live_bytes"].as_u64().unwrap_or(0)).sum()
}

/// Starts several allocators in one process, and compares what each has with what the program took from it, within 2 %.
fn check_several(neap: &Neap, mut command: Command, first: &str, libraries: &[(&str, &str)]) {
    let paths: Vec<String> = libraries.iter().filter_map(|(name, _)| library(name)).collect();
    if paths.len() < libraries.len() {
        return skip("several_allocators", &format!("needs {libraries:?}: tests/setup.sh installs them"));
    }
    let command_name = command.get_program().to_string_lossy().into_owned();
    // Libraries that were not there at the start need room for their thread-local data.
    command.args(&paths).env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536");
    let mut several = Planted::of(command);
    let mut taken: Vec<(String, u64)> = Vec::new();
    loop {
        let mut line = String::new();
        several.lines.read_line(&mut line).expect("it says what it has");
        let Some((name, bytes)) = line.trim().split_once(' ') else { break };
        let known = paths.iter().position(|path| path == name).map_or(first, |at| libraries[at].1);
        taken.push((known.to_owned(), bytes.parse().expect("a number")));
    }
    assert_eq!(taken.len(), libraries.len() + 1);
    let report = why(neap, several.pid);
    let is_on_neap = report["allocators"][0] == "neap";
    assert_eq!(is_on_neap, command_name.ends_with("neap"), "{report:#}");
    for (allocator, bytes) in taken {
        let live = live_of(&report, &allocator);
        eprintln!("{allocator}: {bytes} taken, {live} live");
        assert!(live.abs_diff(bytes) * 50 <= bytes, "{allocator}: {live}, not {bytes}: {report:#}");
        let names = report["allocators"].as_array().expect("names").iter().filter_map(Value::as_str);
        assert!(names.into_iter().any(|name| name.starts_with(&allocator)), "{allocator}: {report:#}");
    }
}

/// Catches allocators that are not distinguished in one process, and live memory of one that is another's.
#[test]
fn several_allocators_are_told_apart() {
    let neap = Neap::new();
    let source = include_str!("why/several.c");
    let Some(program) = compile(neap.dir.path(), "several", source, &["-O0", "-w", "-pthread"]) else {
        return skip("several_allocators", "needs a C compiler");
    };
    let (jemalloc, others) = (
        ("libjemalloc.so.2", "jemalloc"),
        [("libtcmalloc_minimal.so.4", "tcmalloc"), ("libmimalloc.so.2", "mimalloc")],
    );
    check_several(&neap, Command::new(&program), "glibc", &[jemalloc, others[0], others[1]]);
    // libc.so.6 has its own malloc still; what the program opens is looked at beside it.
    let mut on_neap = neap.command(["run", "--"]);
    on_neap.arg(&program);
    check_several(&neap, on_neap, "glibc", &[jemalloc]);
}

/// Catches figures of neap's own heap that are not its records', and counters that are not shown.
#[test]
fn neap_is_exact() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("neap_is_exact", "needs a C compiler") };
    let planted = Planted::of({
        let mut command = neap.command(["run", "--"]);
        command.arg(&program).arg("leak");
        command
    });
    std::thread::sleep(Duration::from_secs(1));
    let report = why(&neap, planted.pid);
    assert_eq!((&report["cause"], &report["allocators"][0]), (&"live".into(), &"neap".into()), "{report:#}");
    let live = of(&report, "heap-live");
    let output = neap.output(["stats", "--json", &planted.pid.to_string()]);
    let stats: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let counted = stats["gauges"]["live_bytes"].as_u64().expect("a gauge");
    assert!(live.abs_diff(counted) * 50 <= counted && counted >= 62 * MIB, "{live} {counted}");
    let text = stdout(&neap.output(["stats", &planted.pid.to_string()]));
    assert!(text.contains("live_bytes") && text.contains("MiB"), "{text}");
}

/// Catches a command whose exit status, output or peak is lost.
#[test]
fn a_command_is_accounted_for_at_its_peak() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("a_command", "needs a C compiler") };
    let file = neap.path("report.json");
    let script =
        "print(1); x = b'x' * (80 << 20); import time; time.sleep(2); del x; time.sleep(0.3); raise SystemExit(7)";
    let (file_text, command) = (file.display().to_string(), ["python3", "-c", script]);
    let output = neap.output(["why", "--json", "-o", &file_text, "--"].into_iter().chain(command));
    if output.status.code() == Some(127) {
        return skip("a_command", "needs python3");
    }
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(7), "1\n"), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON");
    check_sum(&report);
    assert!(report["moment"].as_str().is_some_and(|text| text.starts_with("at its peak")), "{report:#}");
    assert!(report["rss_bytes"].as_u64() > Some(80 * MIB), "{report:#}");

    let output =
        neap.command(["why", "--"]).arg(&program).arg("top").stdin(Stdio::null()).output().expect("neap starts");
    let text = stderr(&output);
    assert!(output.status.success() && text.contains("at its end") && text.contains("free, kept"), "{text}");
    // The process has ended: its number helps with no other run.
    assert!(text.contains("-p PID ") || !text.contains("gdb -p "), "{text}");
    assert!(text.contains("malloc_trim"), "{text}");
}

/// Catches growth that is not seen, and a process at rest that is called a leak.
#[test]
fn a_leak_is_seen_over_time() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("a_leak", "needs a C compiler") };
    for (grows, cause) in [(true, "leak"), (false, "plateau")] {
        let mut planted = Planted::start(&program, &["nothing"], &[]);
        let arguments =
            ["why", "--watch", "--json", "--interval", "300ms", "--duration", "8s", &planted.pid.to_string()];
        let mut watching = neap.command(arguments).stdout(Stdio::piped()).spawn().expect("neap starts");
        while watching.try_wait().expect("a child").is_none() {
            if grows {
                planted.tell(b'g');
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let output = watching.wait_with_output().expect("it ends");
        let text = stdout(&output);
        let last: Value = serde_json::from_str(text.lines().last().expect("a look")).expect("JSON");
        assert_eq!((&last["cause"], output.status.code()), (&cause.into(), Some(0)), "{text}");
        assert!(text.lines().count() >= 4, "{text}");
    }
}

/// Catches a page that is not written, and one that goes to the terminal.
#[test]
fn a_page_is_written() {
    let neap = Neap::new();
    let page = neap.path("why.html");
    let output = neap.output(["why", "--html", &page.display().to_string(), &std::process::id().to_string()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    let text = fs::read_to_string(page).expect("a page");
    assert!(text.contains("What would help") || text.contains("Accounts"), "{text}");
    assert!(text.trim_end().ends_with("</html>"), "{text}");
}

/// Catches errors that do not say what is wrong, or what to do.
#[test]
fn errors_name_the_cause() {
    let neap = Neap::new();
    assert_refused(&neap.output(["why", "4194304"]), 125, &["there is no process 4194304", "hint:"]);
    assert_refused(&neap.output(["why"]), 125, &["neither a process nor a command", "hint:"]);
    assert_refused(&neap.output(["why", "--cgroup", "/no/such"]), 125, &["there is no cgroup /no/such", "hint:"]);
    assert_refused(&neap.output(["why", "--", "no-such-program"]), 127, &["not found"]);
    assert_refused(&neap.output(["stats", &std::process::id().to_string()]), 125, &["no counters page", "neap why"]);
    let mut child = Command::new("true").spawn().expect("true starts");
    std::thread::sleep(Duration::from_millis(300));
    assert_refused(&neap.output(["why", &child.id().to_string()]), 125, &["zombie", "has to wait for it"]);
    child.wait().expect("it ended");
    // The first thread of the kernel, where it can be seen.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert_refused(&neap.output(["why", "2"]), 125, &["thread of the kernel", "hint:"]);
    }
}

/// A program that makes processes which are odd.
fn odd(neap: &Neap) -> Option<PathBuf> {
    compile(neap.dir.path(), "odd", include_str!("why/odd.c"), &["-O0", "-w", "-pthread"])
}

/// Catches looks without an end at memory and files that are arranged for that, processes that are not read because of
/// their names or because their first thread has ended, and memory that becomes resident by a look.
#[test]
fn odd_processes_are_read() {
    let neap = Neap::new();
    let Some(program) = odd(&neap) else { return skip("odd_processes", "needs a C compiler") };
    let folder = neap.dir.path().to_str().expect("UTF-8");
    for how in ["leaf", "sparse", "name", "first", "untouched"] {
        let planted = Planted::start(&program, &[how, folder], &[]);
        // By the figure that is there also when the first thread has ended.
        let rss = || {
            let task = fs::read_dir(format!("/proc/{}/task", planted.pid)).expect("threads");
            let last = task.map(|task| task.expect("a thread").path()).max().expect("a thread");
            rss(last.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number"))
        };
        let (before, began) = (rss(), Instant::now());
        let report = why(&neap, planted.pid);
        assert!(began.elapsed() < Duration::from_secs(8), "{how}: {:?}", began.elapsed());
        assert_eq!(rss(), before, "{how}");
        assert_eq!(report["pid"], planted.pid, "{how}");
        assert!(report["allocators"].to_string().contains("glibc"), "{how}: {report:#}");
        if how == "first" {
            assert!(report["rss_bytes"].as_u64() >= Some(40 * MIB), "{report:#}");
        }
    }
}

/// Catches a process that executes programs all the time and is said to have ended.
#[test]
fn a_process_that_executes_has_not_ended() {
    let neap = Neap::new();
    neap.file("loop.sh", "exec sh \"$0\"\n", 0o644);
    let mut command = Command::new("sh");
    let mut looping = command.arg(neap.path("loop.sh")).spawn().expect("sh starts");
    let pid = looping.id().to_string();
    let all: Vec<String> =
        (0..40).map(|_| stderr(&neap.command(["why", &pid]).output().expect("neap starts"))).collect();
    looping.kill().expect("killed");
    looping.wait().expect("waited for");
    for said in all {
        assert!(said.is_empty() || said.contains("executes one program after another"), "{said}");
    }
}

/// Catches memory that counts several times without a word of it, a changed file that is called the process's own, and
/// blocks of malloc that are called stacks as threads run on them.
#[test]
fn what_is_counted_again_and_whose_it_is() {
    let neap = Neap::new();
    let Some(program) = odd(&neap) else { return skip("what_is_counted_again", "needs a C compiler") };
    let folder = neap.dir.path().to_str().expect("UTF-8");
    let note = |report: &Value, owner: &str| {
        let accounts = report["accounts"].as_array().expect("accounts").iter();
        let of = accounts.filter(|of| of["owner"].as_str().is_some_and(|name| name.ends_with(owner)));
        of.filter_map(|of| of["note"].as_str()).collect::<Vec<_>>().join("; ")
    };
    let thrice = Planted::start(&program, &["thrice"], &[]);
    let report = why(&neap, thrice.pid);
    assert_eq!(report["repeated_bytes"], 32 * MIB, "{report:#}");
    assert!(note(&report, "memfd:thrice").starts_with("32.0 MiB of it counted again"), "{report:#}");
    let verdict = report["verdict"].as_str().expect("a sentence");
    assert!(verdict.contains("32.0 MiB are counted more than once"), "{verdict}");

    let dirty = Planted::start(&program, &["dirty", folder], &[]);
    let report = why(&neap, dirty.pid);
    let accounts = report["accounts"].as_array().expect("accounts").iter();
    let mut own = accounts.filter(|of| of["owner"].as_str().is_some_and(|name| name.ends_with("/copied (changed)")));
    assert!(own.next().is_some_and(|of| of["kind"] == "anonymous" && of["bytes"] == MIB), "{report:#}");
    let written = note(&report, "/written");
    assert!(written.ends_with("changed, not yet written to the file") && !written.contains("own"), "{report:#}");

    let child = Planted::start(&program, &["vfork"], &[]);
    let report = why(&neap, child.pid);
    let words = format!("it shares the memory of its parent, process {}", child.child.id());
    assert!(child.pid != child.child.id() && report["notes"].to_string().contains(&words), "{report:#}");

    let stacks = Planted::start(&program, &["stacks"], &[]);
    let report = why(&neap, stacks.pid);
    assert!(report["notes"].to_string().contains("the stacks of 2 threads are blocks of malloc"), "{report:#}");
    let said = report["accounts"].as_array().expect("accounts").iter().find(|of| of["kind"] == "stack");
    assert!(said.is_some_and(|of| !of["note"].to_string().contains("MiB")), "{report:#}");
    assert!(of(&report, "stack") < MIB && of(&report, "heap-live") > 18 * MIB, "{report:#}");
}

/// Catches a watch that goes on with another program, and takes an error for the end of the process.
#[test]
fn a_watch_is_of_one_program() {
    let neap = Neap::new();
    let Some(program) = odd(&neap) else { return skip("a_watch", "needs a C compiler") };
    let mut planted = Planted::start(&program, &["nothing"], &[]);
    let arguments = ["why", "--watch", "--interval", "200ms", "--duration", "20s", &planted.pid.to_string()];
    let mut watching = neap.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("neap");
    let mut lines = BufReader::new(watching.stdout.take().expect("a pipe")).lines();
    while !lines.next().expect("a look").expect("text").contains("s ") {}
    planted.tell(b'e');
    lines.for_each(drop);
    let output = watching.wait_with_output().expect("it ends");
    assert_refused(&output, 125, &["another program", "hint:"]);
}

/// Catches a good file that is emptied before there is anything to write, and rests of a longer one.
#[test]
fn a_report_takes_the_place_of_a_good_one() {
    let neap = Neap::new();
    let good = "good\n".repeat(100_000);
    for option in ["-o", "--html"] {
        let file = neap.file("report", &good, 0o600);
        let path = file.display().to_string();
        assert_refused(&neap.output(["why", option, &path, "4194304"]), 125, &["there is no process"]);
        assert_eq!(fs::read_to_string(&file).expect("a file"), good, "{option}");
        let output = neap.output(["why", option, &path, &std::process::id().to_string()]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!fs::read_to_string(&file).expect("a file").contains("good"), "{option}");
    }
}
