//! `neap huge show` on this machine: memory in pages of each size, of a command at its end and of a process that runs.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, assert_refused, compile, huge_page_settings, is_root, skip, stderr, stdout};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// Has 4 MiB in huge pages, of which nearly 2 are zero; 3 MiB in OS pages, of which 2 without 8 OS pages are one area;
/// and a byte in each 64 KiB of 2 MiB. Prints the addresses of the three, then ends: at the end of its standard input if
/// there is an argument, and as a second one says.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define MIB ((size_t)1 << 20)
static char *area(size_t bytes, int advice) {
    char *p = mmap(0, bytes + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *start = (char *)(((size_t)p + 2 * MIB - 1) & -(2 * MIB));
    munmap(p, start - p);
    munmap(start + bytes, p + 2 * MIB - start);
    if (advice) madvise(start, bytes, advice);
    return start;
}
int main(int argc, char **argv) {
    char *huge = area(4 * MIB, 0);
    memset(huge, 1, 2 * MIB);
    huge[2 * MIB] = 1;
    int collapsed = madvise(huge, 4 * MIB, 25 /* MADV_COLLAPSE */) == 0;
    char *small = area(4 * MIB, 0);
    memset(small, 1, 2 * MIB - 8 * 4096);
    memset(small + 2 * MIB, 1, MIB);
    char *middle = area(2 * MIB, MADV_HUGEPAGE);
    for (int i = 0; i < 32; i++) middle[i * 65536] = 1;
    printf("%d %lx %lx %lx\n", collapsed, (long)huge, (long)small, (long)middle);
    fflush(stdout);
    if (argc > 1) getchar();
    if (argc > 2) raise(SIGTERM);
    return 3;
}
"#;

/// The program, if it can be made, and the kernel gives 2 MiB pages where they are wanted and nowhere else.
fn program(test: &str, neap: &Neap) -> Option<PathBuf> {
    let enabled = fs::read_to_string(format!("{THP}/enabled")).unwrap_or_default();
    if !enabled.contains("[madvise]") && !enabled.contains("[never]") {
        skip(test, "needs a kernel that uses transparent huge pages only where programs ask");
        return None;
    }
    let program = compile(neap.dir.path(), "pages", PROGRAM, &["-Wall"]);
    if program.is_none() {
        skip(test, "no C compiler");
    }
    let collapses = |program: &PathBuf| {
        let output = Command::new(program).output().expect("it starts");
        stdout(&output).starts_with('1')
    };
    program.filter(|program| {
        let works = collapses(program);
        if !works {
            skip(test, "needs MADV_COLLAPSE (Linux 6.1)");
        }
        works
    })
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The amounts of the mapping that starts at the n-th address that the program printed.
fn mapping<'r>(report: &'r Value, printed: &str, n: usize) -> &'r Value {
    let start = printed.split_whitespace().nth(n + 1).expect("an address");
    let all = report["mappings"].as_array().expect("mappings");
    let found = all.iter().find(|entry| entry["start"] == start);
    &found.unwrap_or_else(|| panic!("no {start} in {report}"))["amounts"]
}

fn check(report: &Value, printed: &str) {
    assert_eq!(report["schema"], "neap.huge.show/1");
    let huge = mapping(report, printed, 0);
    assert_eq!((&huge["resident"], &huge["by_page"]["2097152"]), (&(4 * MIB).into(), &(4 * MIB).into()), "{huge}");
    assert_eq!((&huge["read"], &huge["zero"]), (&(4 * MIB).into(), &(2 * MIB - 4 * KIB).into()), "{huge}");
    assert_eq!(huge["could_be_huge"], 0, "{huge}");
    let small = mapping(report, printed, 1);
    assert_eq!(small["by_page"]["4096"], 3 * MIB - 32 * KIB, "{small}");
    assert_eq!((&small["could_be_huge"], &small["to_add"]), (&(2 * MIB - 32 * KIB).into(), &(32 * KIB).into()));
    assert_eq!(small["zero"], 0);
    let total = &report["total"];
    assert!(
        total["resident"].as_u64() >= Some(7 * MIB) && total["zero"].as_u64() >= Some(2 * MIB - 4 * KIB),
        "{total}"
    );
}

/// `neap huge show ARGUMENTS -- sh -c 'exec PROGRAM ...'`, run.
fn show(neap: &Neap, arguments: &[&str], line: &str) -> Output {
    let mut command = neap.command([&["huge", "show"], arguments, &["--", "sh", "-c", line]].concat());
    command.stdin(Stdio::null()).output().expect("neap starts")
}

/// Catches bytes in pages of the wrong size, an end that is too late to look, and a status that is not the program's.
#[test]
fn a_command_is_shown_at_its_end() {
    let neap = Neap::new();
    let Some(program) = program("a_command_is_shown_at_its_end", &neap) else { return };
    let program = program.display();
    let output = show(&neap, &["--json"], &format!("exec {program}"));
    assert_eq!(output.status.code(), Some(3));
    let report = json(&stderr(&output));
    check(&report, &stdout(&output));
    assert_eq!(report["name"], "pages");

    let output = show(&neap, &["--json", "-o", "/dev/null"], "exit 9");
    assert_eq!((output.status.code(), stderr(&output)), (Some(9), String::new()));

    // A death by a signal is seen too, and other programs start on neap.
    let line = format!("exec {} run -- {program} wait signal", env!("CARGO_BIN_EXE_neap"));
    let output = show(&neap, &["--json"], &line);
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{output:?}");
    check(&json(&stderr(&output)), &stdout(&output));
}

/// Catches a table that is not in order, and small mappings that are lost without a word.
#[test]
fn the_text_has_totals_first() {
    let neap = Neap::new();
    let Some(program) = program("the_text_has_totals_first", &neap) else { return };
    let line = format!("exec {}", program.display());
    let text = stderr(&show(&neap, &[], &line));
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("process ") && lines[0].contains("(pages): ") && lines[0].contains("waste: "),
        "{text}"
    );
    assert!(lines[1].contains("2 MiB") && lines[1].ends_with("zero  could be huge  mapping"), "{text}");
    assert!(lines[2].trim_start().starts_with("4.0 MiB") && lines[3].trim_start().starts_with("3.0 MiB"), "{text}");
    assert!(
        text.contains(" smaller mappings with ") && text.contains(" of huge pages were read for zeros in "),
        "{text}"
    );
    let all = stderr(&show(&neap, &["--all"], &line));
    assert!(all.contains("[stack]") && !all.contains("smaller"), "{all}");
    let unread = stderr(&show(&neap, &["--read", "0"], &line));
    assert!(
        !unread.contains("waste") && unread.contains("not known: zeros in huge pages beyond the first 0 B"),
        "{unread}"
    );
}

/// The program, waiting; and what it printed.
fn waiting(program: &PathBuf) -> (Child, String) {
    let mut command = Command::new(program);
    let mut child = command.arg("wait").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut printed = String::new();
    let out = child.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut printed).expect("a line");
    (child, printed)
}

/// Catches a process that is not shown while it runs, and a watch that does not end with it.
#[test]
fn a_process_is_shown_until_it_ends() {
    let neap = Neap::new();
    let Some(program) = program("a_process_is_shown_until_it_ends", &neap) else { return };
    let (mut child, printed) = waiting(&program);
    let pid = child.id().to_string();
    let output = neap.output(["huge", "show", "--json", &pid]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    check(&json(&stdout(&output)), &printed);

    let mut watch = neap.command(["huge", "show", "--json", "--interval", "50ms", &pid]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("neap starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    for _ in 0..3 {
        check(&json(&lines.next().expect("a line").expect("text")), &printed);
    }
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert!(watch.wait().expect("neap ends").success());
}

/// Catches a command that is not shown while it runs.
#[test]
fn a_command_is_shown_each_interval() {
    let neap = Neap::new();
    let output = show(&neap, &["--json", "--interval", "50ms"], "sleep 0.4");
    assert_eq!(output.status.code(), Some(0));
    let times: Vec<f64> =
        stderr(&output).lines().map(|line| json(line)["at_seconds"].as_f64().expect("a time")).collect();
    assert!(times.len() >= 3 && times.is_sorted(), "{times:?}");
}

/// Catches a job that is not stopped as a whole, or does not go on.
#[test]
fn a_stopped_command_goes_on() {
    let neap = Neap::new();
    let mut command = neap.command(["huge", "show", "-o", "/dev/null", "--", "sh", "-c", "kill -STOP $$; exit 4"]);
    let mut child = command.process_group(0).spawn().expect("neap starts");
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let begun = Instant::now();
    while !state().contains(") T ") {
        assert!(begun.elapsed() < Duration::from_secs(120), "{}", state());
        std::thread::sleep(Duration::from_millis(5));
    }
    let group = -i32::try_from(child.id()).expect("a process id");
    // SAFETY: kill takes no pointers.
    assert_eq!(unsafe { libc::kill(group, libc::SIGCONT) }, 0);
    assert_eq!(child.wait().expect("neap ends").code(), Some(4));
}

/// Sizes of transparent huge pages as a test wants them, and as before when it ends.
struct Sizes {
    _lock: fs::File,
    before: Vec<(String, String)>,
}

impl Sizes {
    fn new(wanted: &[(&str, &str)]) -> Option<Self> {
        let lock = huge_page_settings();
        let mut sizes = Self { _lock: lock, before: Vec::new() };
        for (size, value) in wanted {
            let path = format!("{THP}/hugepages-{size}kB/enabled");
            let old = fs::read_to_string(&path).ok()?;
            let old = old.split_once('[')?.1.split_once(']')?.0.to_owned();
            fs::write(&path, value).ok()?;
            sizes.before.push((path, old));
        }
        Some(sizes)
    }
}

impl Drop for Sizes {
    fn drop(&mut self) {
        self.before.iter().for_each(|(path, old)| fs::write(path, old).expect("root may write it"));
    }
}

/// Has 8 MiB in OS pages with a guard in each area of 2 MiB, and 8 MiB without. Prints the addresses, and what
/// MADV_COLLAPSE says of each.
const GUARDED: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define MIB ((size_t)1 << 20)
int main(int argc, char **argv) {
    char *areas[2];
    for (int i = 0; i < 2; i++) {
        char *p = mmap(0, 11 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        areas[i] = (char *)(((size_t)p + 2 * MIB - 1) & -(2 * MIB));
        munmap(p, areas[i] - p);
        munmap(areas[i] + 8 * MIB, p + 11 * MIB - (areas[i] + 8 * MIB));
        memset(areas[i], 1, 8 * MIB);
    }
    for (int i = 0; i < 4; i++)
        if (madvise(areas[0] + i * 2 * MIB + 12288, 4096, 102 /* MADV_GUARD_INSTALL */)) return 1;
    int guarded = 0, plain = 0;
    if (argc == 1) {
        guarded = madvise(areas[0], 8 * MIB, 25 /* MADV_COLLAPSE */) ? errno : 0;
        plain = madvise(areas[1], 8 * MIB, 25) ? errno : 0;
    }
    printf("%d %lx %lx %d\n", guarded, (long)areas[0], (long)areas[1], plain);
    fflush(stdout);
    if (argc > 1) getchar();
    return 0;
}
"#;

/// Catches memory that "could be huge" although the kernel refuses that: there are guards in it, and EINVAL.
#[test]
fn areas_with_guards_stay_small() {
    let _settings = huge_page_settings();
    let neap = Neap::new();
    if program("areas_with_guards", &neap).is_none() {
        return;
    }
    let Some(guarded) = compile(neap.dir.path(), "guarded", GUARDED, &["-w"]) else {
        return skip("areas_with_guards", "no C compiler");
    };
    let asked = Command::new(&guarded).output().expect("it starts");
    let asked = stdout(&asked);
    let results: Vec<&str> = asked.split_whitespace().collect();
    if results.first() != Some(&"22") || results.last() != Some(&"0") {
        return skip("areas_with_guards", &format!("needs Linux 6.15, which shows guards: {asked}"));
    }
    let (mut child, printed) = waiting(&guarded);
    let output = neap.output(["huge", "show", "--json", "--all", &child.id().to_string()]);
    let report = json(&stdout(&output));
    drop(child.stdin.take());
    let _ = child.wait();
    let (with, without) = (mapping(&report, &printed, 0), mapping(&report, &printed, 1));
    assert_eq!((&with["could_be_huge"], &without["could_be_huge"]), (&0.into(), &(8 * MIB).into()), "{report:#}");
}

/// Catches pages between 4 KiB and 2 MiB that count as OS pages, and their sizes where only root can know them.
#[test]
fn pages_of_64_kib() {
    let neap = Neap::new();
    let Some(program) = program("pages_of_64_kib", &neap) else { return };
    let line = format!("exec {}", program.display());
    let sizes = is_root().then(|| Sizes::new(&[("64", "madvise"), ("2048", "never")])).flatten();
    if sizes.is_none() {
        return skip("pages_of_64_kib", "needs root and a kernel with several sizes of transparent huge pages");
    }
    let output = show(&neap, &["--json"], &line);
    let report = json(&stderr(&output));
    let middle = mapping(&report, &stdout(&output), 2);
    assert_eq!((&middle["resident"], &middle["by_page"]["65536"]), (&(2 * MIB).into(), &(2 * MIB).into()), "{middle}");
    assert_eq!(report["missing"], json("[]"));

    // Without rights these are OS pages, and neap says so.
    let unprivileged = format!("exec setpriv --bounding-set=-all --inh-caps=-all {}", env!("CARGO_BIN_EXE_neap"));
    let output =
        Command::new("sh").args(["-c", &format!("{unprivileged} huge show -- {}", program.display())]).output();
    let text = stderr(&output.expect("a shell"));
    let known = text.contains("64 KiB");
    assert!(!known && text.contains("not known: pages between an OS page and 2 MiB"), "{text}");
}

/// Catches errors that do not say what is wrong.
#[test]
fn what_cannot_be_shown() {
    let neap = Neap::new();
    assert_refused(&neap.output(["huge", "show"]), 125, &["neither a process nor a command"]);
    assert_refused(&neap.output(["huge", "show", "1", "--", "true"]), 125, &["exclude each other"]);
    assert_refused(&neap.output(["huge", "show", "2147483647"]), 125, &["there is no such process", "hint: "]);
    assert_refused(&neap.output(["huge", "show", "--", "/no/such/program"]), 127, &["/no/such/program"]);
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert_refused(&neap.output(["huge", "show", "2"]), 125, &["process 2: ", "a thread of the kernel"]);
    }
    let output = neap.output(["huge", "show", "-o", "/no/such/file", "--", "echo", "ran"]);
    assert_refused(&output, 125, &["/no/such/file", "hint: name another file"]);
}
