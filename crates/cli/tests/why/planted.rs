//! Planted causes, one a row: what holds the memory, and the owner, kind, verdict and remedy that the account must have.
//! The rows were written by hand, from what each cause does.

use super::{MIB, Planted, common, of};
use common::{Neap, compile, is_root, skip};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A planted cause, and its account.
struct Row {
    name: &'static str,
    /// Options of the compiler; by them it is another program.
    built: &'static [&'static str],
    kind: &'static str,
    /// A part of the owner's name.
    owner: &'static str,
    /// MiB of it, at least and at most.
    size: (u64, u64),
    /// With `|` between two of which either is right.
    cause: &'static str,
    /// The remedy that gives back most; empty for none with a megabyte or more.
    remedy: &'static str,
    /// A part of the verdict or of a note; with `!` one that must not be there.
    says: &'static str,
}

const PLAIN: &[&str] = &[];
const BSS: &[&str] = &["-DBSS"];
const DATA: &[&str] = &["-DDATA"];
const LOCAL: &[&str] = &["-DLOCAL"];
const FIXED: &[&str] = &["-DBSS", "-no-pie"];
const STATIC: &[&str] = &["-DBSS", "-static"];
const STATIC_PIE: &[&str] = &["-DBSS", "-static-pie"];

const fn row(
    name: &'static str,
    built: &'static [&'static str],
    (kind, owner): (&'static str, &'static str),
    size: (u64, u64),
    cause: &'static str,
    remedy: &'static str,
) -> Row {
    Row { name, built, kind, owner, size, cause, remedy, says: "" }
}

impl Row {
    const fn says(self, says: &'static str) -> Row {
        Row { says, ..self }
    }
}

const NAMELESS: (&str, &str) = ("anonymous", "private memory without a name");

const ROWS: &[Row] = &[
    // Since a fork.
    row("prefork", PLAIN, ("heap-live", "main arena"), (43, 46), "live", "").says("since a fork"),
    row("forkidle", PLAIN, ("heap-live", "main arena"), (23, 26), "copy-on-write", ""),
    row("forkprivate", PLAIN, NAMELESS, (32, 33), "copy-on-write", "").says("MiB of that copied"),
    // Locked.
    row("mlockall_threads", PLAIN, ("stack", "threads named"), (31, 33), "locked", "lock-on-fault")
        .says("but locked in memory"),
    row("mlockall_onfault", PLAIN, ("heap-live", "main arena"), (23, 26), "live", ""),
    row("locked", PLAIN, ("heap-live", "mmapped"), (32, 33), "locked", "lock-on-fault"),
    // Page tables.
    row("sparse", PLAIN, NAMELESS, (16, 17), "page-tables", "").says("16.1 MiB that Rss leaves out are page tables"),
    row("sparseread", PLAIN, ("file", "libc"), (0, 3), "page-tables", "").says("128.3 MiB that Rss leaves out"),
    row("thpsparse", PLAIN, ("huge-zero", "private memory"), (59, 61), "huge-zero", "no-huge"),
    // Files in memory, shared memory.
    row("memfdwrite", PLAIN, ("heap-live", "mmapped"), (1, 2), "open-files", "")
        .says("memfd:cache, a file in memory that it has open"),
    row("memfdmap", PLAIN, ("shared", "memfd:cache"), (32, 32), "shared", ""),
    // The kernel gives the file an OS page of its own when a private copy of it is made.
    row("memfdpriv", PLAIN, ("anonymous", "memfd:cache (changed)"), (32, 32), "open-files", "")
        .says("data of programs"),
    row("memfdhalf", PLAIN, ("shared", "memfd:cache"), (16, 16), "open-files", "").says("16.0 MiB that Rss leaves out"),
    row("tmpdel", PLAIN, ("file", "libc"), (0, 3), "open-files", "").says("/dev/shm/neap-causes"),
    row("tmpdelmap", PLAIN, ("shared", "/dev/shm/neap-causes"), (32, 32), "shared", ""),
    row("tmppriv", PLAIN, ("anonymous", " (changed)"), (32, 33), "open-files", ""),
    row("shmanon", PLAIN, ("shared", "shared anonymous mappings"), (32, 32), "shared", ""),
    row("sysv", PLAIN, ("shared", "System V"), (32, 32), "shared", ""),
    row("secret", PLAIN, ("shared", "secretmem"), (8, 8), "shared", ""),
    row("devzero", PLAIN, ("anonymous", "/dev/zero"), (32, 32), "anonymous", ""),
    // Code.
    row("dual", PLAIN, ("jit", "memfd:cache"), (32, 32), "shared", "").says("counted more than once"),
    row("jit", PLAIN, ("jit", "the program's"), (31, 32), "anonymous", "").says("may be executed"),
    row("execdata", PLAIN, ("jit", "the program's"), (32, 32), "anonymous", "").says("or data beside it"),
    // malloc.
    row("vec", PLAIN, ("heap-live", "mmapped"), (32, 33), "live", ""),
    row("toppad", PLAIN, ("heap-free", "main arena"), (23, 25), "retention", "malloc-trim"),
    row("dynthresh", PLAIN, ("heap-free", "main arena"), (31, 33), "retention", "malloc-trim"),
    row("callocpart", PLAIN, ("heap-live", "mmapped"), (20, 21), "live", ""),
    row("arenaends", PLAIN, ("heap-fragmentation", "arenas of threads"), (24, 40), "fragmentation", ""),
    row("arenaslive", PLAIN, ("heap-live", "arenas of threads"), (24, 28), "live", ""),
    row("aligned", PLAIN, ("heap-live", "mmapped"), (32, 33), "live", ""),
    row("merged", PLAIN, ("heap-live", "main arena"), (23, 26), "live", ""),
    // A megabyte of live blocks is above what is kept: where it begins depends on the place of brk.
    row("brkhole", PLAIN, ("heap-free", "main arena"), (23, 25), "retention|pinned-top", "malloc-trim"),
    row("brkown", PLAIN, ("anonymous", "[heap] (brk)"), (31, 33), "anonymous", ""),
    // Data of files.
    row("bssfull", BSS, ("anonymous", "(.bss)"), (32, 33), "anonymous", "").says("data of programs and libraries"),
    row("bssfull", FIXED, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("bssfull", STATIC, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("bssfull", STATIC_PIE, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("bsssplit", BSS, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("bsssplit", FIXED, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("bssadvised", BSS, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("bssjoined", BSS, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("bssjoined", BSS, NAMELESS, (8, 8), "anonymous", ""),
    row("behind", PLAIN, NAMELESS, (8, 8), "anonymous", ""),
    row("bssdeleted", BSS, ("anonymous", "(deleted) (.bss)"), (32, 33), "anonymous", ""),
    row("relaunched", BSS, ("anonymous", "(.bss)"), (32, 33), "anonymous", ""),
    row("datachanged", DATA, ("anonymous", " (changed)"), (32, 33), "anonymous", "")
        .says("data of programs and libraries"),
    // Stacks.
    row("stackrun", PLAIN, ("stack", "threads named"), (17, 19), "stacks", "").says("is not known"),
    row("stackidle", PLAIN, ("stack", "threads named"), (23, 25), "stacks", "stacks")
        .says("touched once and not in use"),
    row("stackdeep", PLAIN, ("stack", "threads named"), (23, 25), "stacks", ""),
    row("stackkept", PLAIN, ("file", "libc"), (0, 3), "files", ""),
    row("stacklocal", LOCAL, ("stack", "threads named"), (15, 17), "stacks", ""),
    row("stackpool", PLAIN, NAMELESS, (31, 32), "anonymous", ""),
    row("stackguards", PLAIN, ("stack", "threads named"), (31, 34), "stacks", ""),
    row("stackguardsrun", PLAIN, ("stack", "threads named"), (8, 9), "stacks", "").says("is not known"),
    row("stackmalloc", PLAIN, ("heap-live", "mmapped"), (32, 33), "live", "")
        .says("the stacks of 8 threads are blocks of malloc"),
    row("mainstack", PLAIN, ("stack", "thread 1"), (31, 33), "stacks", "stacks").says("stacks of 1 thread, "),
    row("coroutines", PLAIN, NAMELESS, (18, 20), "anonymous", ""),
    row("oncoroutine", PLAIN, ("stack", "thread 1, or private memory"), (1, 2), "stacks", ""),
    // Buffers of the kernel.
    row("perf", PLAIN, ("file", "libc"), (0, 3), "kernel", "").says("16.0 MiB that Rss leaves out"),
    row("bpf", PLAIN, ("file", "libc"), (0, 3), "kernel", "").says("1 BPF map of 16"),
    row("pipes", PLAIN, ("file", "libc"), (0, 3), "kernel", "").says("200 pipes with 12.5 MiB"),
    row("uring", PLAIN, ("shared", "anon_inode:[io_uring]"), (2, 2), "shared", ""),
    // Other private memory.
    row("lazyfree", PLAIN, ("lazy-free", "private memory"), (32, 32), "lazy-free", "").says("MADV_FREE"),
    row("lazyhalf", PLAIN, ("lazy-free", "private memory"), (12, 12), "lazy-free", ""),
    row("cold", PLAIN, NAMELESS, (32, 32), "anonymous", ""),
    row("populated", PLAIN, NAMELESS, (32, 32), "anonymous", ""),
    row("placed", PLAIN, NAMELESS, (32, 32), "anonymous", ""),
    row("reserved", PLAIN, NAMELESS, (32, 32), "anonymous", ""),
    row("manymaps", PLAIN, NAMELESS, (31, 32), "anonymous", ""),
    row("mremapped", PLAIN, NAMELESS, (32, 32), "anonymous", ""),
    row("closed", PLAIN, ("guard", "areas without access"), (32, 32), "anonymous", "").says("PROT_NONE"),
    row("low", PLAIN, NAMELESS, (32, 32), "anonymous", ""),
    row("named", PLAIN, ("anonymous", "cache"), (32, 32), "anonymous", ""),
    row("filepriv", PLAIN, ("anonymous", " (changed)"), (32, 33), "anonymous", ""),
    row("fileshared", PLAIN, ("file", "neap-causes"), (32, 32), "files", "")
        .says("changed, not yet written to the file"),
    row("fileread", PLAIN, ("file", "neap-causes"), (32, 32), "files", "").says("!not yet written"),
    row("pageout", PLAIN, ("file", "libc"), (0, 3), "swap", "").says("32.0 MiB that Rss leaves out are swapped out"),
    row("pool", PLAIN, ("file", "libc"), (0, 3), "hugetlb", "").says("8.0 MiB that Rss leaves out are pages of"),
];

/// The program with the causes, built with these options; none without a compiler or a static C library.
fn program(neap: &Neap, built: &[&str]) -> Option<PathBuf> {
    let name = format!("causes{}", built.concat());
    let path = neap.dir.path().join(&name);
    let options: Vec<&str> = ["-O1", "-fno-builtin", "-w", "-pthread"].iter().chain(built).copied().collect();
    if path.exists() { Some(path) } else { compile(neap.dir.path(), &name, include_str!("causes.c"), &options) }
}

/// Starts a cause; why that cannot be.
fn start(program: &Path, name: &str) -> Result<Planted, String> {
    let copy = program.with_extension("copy");
    // It removes its own file.
    fs::copy(program, &copy).map_err(|error| error.to_string())?;
    let mut command = Command::new(&copy);
    command.arg(name);
    Planted::try_of(command).map_err(|line| line.trim().trim_start_matches("no ").to_owned())
}

/// Waits until all threads sleep: only then the kernel shows their stack pointers.
fn settle(pid: u32) {
    let runs = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| fs::read_to_string(task.path().join("syscall")).ok())
            .any(|text| text.starts_with("running"))
    };
    let began = Instant::now();
    while runs() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What is wrong with an account; empty if nothing is.
fn faults(row: &Row, report: &Value) -> Vec<String> {
    let mut all = Vec::new();
    let accounts = report["accounts"].as_array().expect("accounts").iter();
    let is_its =
        |of: &&Value| of["kind"] == row.kind && of["owner"].as_str().is_some_and(|name| name.contains(row.owner));
    let found: u64 = accounts.filter(is_its).map(|of| of["bytes"].as_u64().unwrap_or(0)).sum();
    // Half a megabyte more: small accounts of the same name.
    if found + MIB / 16 < row.size.0 * MIB || found > row.size.1 * MIB + MIB / 2 {
        all.push(format!("{} of {} ({})", found / 1024, row.kind, row.owner));
    }
    if !row.cause.split('|').any(|cause| report["cause"] == cause) {
        all.push(format!("cause {}", report["cause"]));
    }
    let remedies = report["remedies"].as_array().expect("remedies").iter();
    let large = remedies.filter(|of| of["bytes"].as_u64().is_some_and(|bytes| bytes >= MIB));
    let best = large.max_by_key(|of| of["bytes"].as_u64()).and_then(|of| of["action"].as_str()).unwrap_or("");
    if best != row.remedy && !(row.remedy == "malloc-trim" && best == "neap-run") {
        all.push(format!("remedy {best:?}"));
    }
    let text = report.to_string();
    let is_said = row.says.strip_prefix('!').map_or_else(|| text.contains(row.says), |words| !text.contains(words));
    if !is_said {
        all.push(format!("does not say {:?}", row.says));
    }
    all
}

/// Catches owners, verdicts and remedies that are not those of the planted cause.
#[test]
fn planted_causes_are_named() {
    let (neap, mut failed, mut looked) = (Neap::new(), Vec::new(), 0);
    for row in ROWS {
        let Some(program) = program(&neap, row.built) else {
            skip("planted causes", &format!("{} {:?}: cannot be built", row.name, row.built));
            continue;
        };
        let planted = match start(&program, row.name) {
            Ok(planted) => planted,
            Err(why) => {
                skip("planted causes", &format!("{}: {why}", row.name));
                continue;
            }
        };
        if !row.name.ends_with("run") {
            settle(planted.pid);
        }
        let report = super::why(&neap, planted.pid);
        let all = faults(row, &report);
        looked += 1;
        if !all.is_empty() {
            eprintln!("{} {:?}: {report:#}", row.name, row.built);
            failed.push(format!("{} {:?}: {}", row.name, row.built, all.join(", ")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(looked >= 50 || !is_root(), "{looked} of {}", ROWS.len());
}

/// Catches memory that any program may have at such places and that is surely a runtime's, because of the program's
/// name.
#[test]
fn places_prove_nothing() {
    let neap = Neap::new();
    let Some(program) = program(&neap, PLAIN) else { return skip("places_prove_nothing", "needs a C compiler") };
    for (name, cause) in [("node", "placed"), ("ruby", "placed"), ("php", "placed"), ("beam.smp", "cold")] {
        let path = neap.dir.path().join(name);
        fs::copy(&program, &path).expect("a copy");
        let mut command = Command::new(&path);
        command.arg(cause);
        let planted = Planted::of(command);
        let report = super::why(&neap, planted.pid);
        assert!(of(&report, "runtime-heap") >= 32 * MIB, "{report:#}");
        let accounts = report["accounts"].as_array().expect("accounts").iter();
        let mut heaps = accounts.filter(|of| of["kind"] == "runtime-heap").filter_map(|of| of["owner"].as_str());
        assert!(heaps.all(|owner| owner.ends_with(", or private memory")), "{report:#}");
        assert!(report["verdict"].as_str().is_some_and(|text| text.contains("by its place")), "{report:#}");
        let output = neap.output(["why", "--check", &planted.pid.to_string()]);
        let text = common::stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("Unsure") && text.contains("known by size, alignment or neighbours only"), "{text}");
    }
}
