//! `neap advise` on small C programs.

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, assert_refused, compile, skip, stderr, stdout};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Programs by their first argument: `kept` frees 64 MiB below a live block; `mapped` maps 64 MiB itself; `own` says
/// which libraries it has and fails under neap.
const SOURCE: &str = r#"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void *all[8192];
int main(int count, char **words) {
    if (!strcmp(words[1], "kept")) {
        mallopt(M_MMAP_THRESHOLD, 1 << 30);
        for (int i = 0; i < 8192; i++) memset(all[i] = malloc(8192), 1, 8192);
        void *pin = malloc(64); memset(pin, 1, 64);
        for (int i = 0; i < 8192; i++) free(all[i]);
        puts("this is its output"); fflush(stdout);
        if (count > 2) pause();
        usleep(1500000);
        return 0;
    }
    if (!strcmp(words[1], "mapped")) {
        char *p = mmap(0, 64 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(p, 1, 64 << 20);
        usleep(1500000);
        return 0;
    }
    if (!strcmp(words[1], "fails")) return getenv("LD_PRELOAD") && strstr(getenv("LD_PRELOAD"), "neap") ? 3 : 0;
    return 7;
}
"#;

fn program(neap: &Neap) -> Option<String> {
    let made = compile(neap.dir.path(), "advised", SOURCE, &["-O0", "-w"])?;
    Some(made.to_str().expect("UTF-8").to_owned())
}

fn advise(neap: &Neap, arguments: &[&str]) -> Value {
    let output = neap.command(["advise", "--json"]).args(arguments).output().expect("neap starts");
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("no JSON: {}", stdout(&output)))
}

fn bytes(advice: &Value, run: usize, name: &str) -> u64 {
    advice["runs"][run][name].as_u64().unwrap_or_else(|| panic!("no {name}: {advice:#}"))
}

/// Catches runs under the wrong allocator, memory that is read too early, output of the command in the report, more than
/// five lines, and a difference of time that one run does not show.
#[test]
fn what_neap_gives_back_is_seen() {
    let neap = Neap::new();
    let Some(program) = program(&neap) else { return skip("what_neap_gives_back", "needs a C compiler") };
    let advice = advise(&neap, &["--", &program, "kept"]);
    let (glibc, own) = (bytes(&advice, 0, "resident_bytes"), bytes(&advice, 1, "resident_bytes"));
    assert!(glibc > 60 * MIB && own < 32 * MIB, "{advice:#}");
    assert!(bytes(&advice, 0, "kept_bytes") > 56 * MIB && bytes(&advice, 1, "peak_bytes") > 60 * MIB, "{advice:#}");
    assert!(advice["advice"].as_str().is_some_and(|text| text.contains("less resident at its end")), "{advice:#}");
    assert_eq!(advice["warnings"], Value::Array(vec![]), "{advice:#}");
    let output = neap.output(["advise", "--", &program, "kept"]);
    let text = stdout(&output);
    assert!(text.lines().count() <= 5, "{text}");
    assert!(!text.contains("% more time") && !text.contains("% less time") && text.contains("--runs 3"), "{text}");
    assert!(!text.contains("this is its output") && stderr(&output).contains("this is its output"), "{text}");
}

/// Catches a server that is not ended, or looked at before it has idled, and a load that does not run.
#[test]
fn servers_idle_and_are_ended() {
    let neap = Neap::new();
    let Some(program) = program(&neap) else { return skip("servers_idle", "needs a C compiler") };
    let advice = advise(&neap, &["--for", "1s", "--idle", "1500ms", "--", &program, "kept", "stay"]);
    assert!(advice["runs"][0]["idled"] == true && advice["runs"][0]["status"].is_null(), "{advice:#}");
    let (glibc, own) = (bytes(&advice, 0, "resident_bytes"), bytes(&advice, 1, "resident_bytes"));
    assert!(glibc > 60 * MIB && own < 32 * MIB, "{advice:#}");
    let file = neap.path("loads");
    let load = format!("echo $NEAP_ADVISE_PID >> {}", file.display());
    advise(&neap, &["--load", &load, "--idle", "500ms", "--", &program, "kept", "stay"]);
    assert_eq!(fs::read_to_string(file).expect("the load ran").lines().count(), 2);
    let refused = neap.output(["advise", "--for", "30s", "--", &program, "mapped"]);
    assert_refused(&refused, 125, &["ended before it idled", "leave out --for"]);
    let refused = neap.output(["advise", "--load", "exit 3", "--", &program, "kept", "stay"]);
    let text = stderr(&refused);
    assert!(
        refused.status.code() == Some(125) && text.contains("neap: the load fails: exit status: 3\nneap: hint: "),
        "{text}"
    );
}

/// Catches comparisons that mean nothing without a word of it, and commands that fail.
#[test]
fn warnings_and_failures() {
    let neap = Neap::new();
    let Some(program) = program(&neap) else { return skip("warnings_and_failures", "needs a C compiler") };
    let advice = advise(&neap, &["--", &program, "mapped"]);
    assert!(advice["warnings"][0].as_str().is_some_and(|text| text.contains("not malloc's")), "{advice:#}");
    let advice = advise(&neap, &["--", &program, "fails"]);
    assert!(advice["advice"].as_str().is_some_and(|text| text.starts_with("Stay with glibc")), "{advice:#}");
    assert_refused(&neap.output(["advise", "--", &program, "x"]), 125, &["exit status 7", "runs once for each"]);
    let killed = |signal| neap.output(["advise", "--", "sh", "-c", &format!("kill -{signal} $$")]);
    assert_refused(&killed(9), 125, &["the command fails (signal 9)", "runs once for each"]);
    assert_refused(&killed(2), 125, &["the command was ended under glibc (signal 2)"]);
    // A file that the linker ignores, and a library by a link.
    let link = neap.path("link.so");
    std::os::unix::fs::symlink(neap.libraries().first().expect("it has run"), &link).expect("a link");
    let advice =
        advise(&neap, &["--allocators", &format!("x=/etc/passwd,y={}", link.display()), "--", &program, "fails"]);
    let warnings: Vec<&str> =
        advice["warnings"].as_array().expect("warnings").iter().filter_map(Value::as_str).collect();
    assert!(warnings.iter().any(|text| text.starts_with("x was not loaded")), "{advice:#}");
    assert!(!warnings.iter().any(|text| text.starts_with("y was not loaded")), "{advice:#}");
    assert!(advice["advice"].as_str().is_some_and(|text| !text.contains("x has the least")), "{advice:#}");
    assert_eq!(neap.output(["advise", "--", "no-such-program"]).status.code(), Some(127));
    let bad = neap.output(["advise", "--allocators", "x=/no/such/library", "--", &program, "mapped"]);
    assert_refused(&bad, 125, &["there is no file"]);
}

/// Processes that have a word among their arguments.
fn with_argument(word: &str) -> usize {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|&byte| byte == 0).any(|argument| argument == word.as_bytes())).count()
}

/// Catches processes that a run leaves behind, of a server or not, also where they were orphaned before; and processes
/// that are none of the run's and are ended with it.
#[test]
fn nothing_is_left_behind() {
    let neap = Neap::new();
    let number = |kind: u32| format!("60.{}{kind}", std::process::id());
    let (server, orphan, plain, others) = (number(1), number(2), number(3), number(4));
    let script = format!("sleep {server} & (trap '' TERM; sleep {orphan} & ) ; wait");
    advise(&neap, &["--for", "100ms", "--idle", "100ms", "--", "sh", "-c", &script]);
    advise(&neap, &["--", "sh", "-c", &format!("sleep {plain} &")]);
    for word in [&server, &orphan, &plain] {
        assert_eq!(with_argument(word), 0, "{word}");
    }
    // A shell that becomes neap.
    let mut shell = neap.command(["advise", "--", "true"]);
    let number = neap.path("number");
    let script = format!("sleep {others} & echo $! > {}; exec \"$@\"", number.display());
    let mut started = Command::new("sh");
    started.args(["-c", &script, "sh"]).arg(shell.get_program()).args(shell.get_args());
    shell = started;
    let output = shell.stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(output.is_ok_and(|status| status.success()) && with_argument(&others) == 1, "not the run's");
    let pid = fs::read_to_string(number).expect("it is written").trim().parse().expect("a number");
    // SAFETY: kill takes numbers.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Catches a load that goes on when its server has ended, and an error that blames it.
#[test]
fn the_load_ends_with_the_server() {
    let neap = Neap::new();
    let number = format!("60.{}5", std::process::id());
    let began = Instant::now();
    let load = format!("sleep {number}; true");
    let refused = neap.output(["advise", "--load", &load, "--", "sh", "-c", "sleep 1.2"]);
    assert_refused(&refused, 125, &["ended before it idled"]);
    assert!(began.elapsed() < Duration::from_secs(10) && with_argument(&number) == 0);
}
