//! `neap huge` on this machine: what it shows, and pools that are as before after a reservation, however it ends.

mod common;

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, assert_refused, compile, copy_program, huge_page_settings, is_root, skip, stderr, stdout};
use serde_json::Value;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
/// A user without rights.
const UNPRIVILEGED: u32 = 65534;

fn number(name: &str) -> u64 {
    let text = fs::read_to_string(format!("{POOL}/{name}")).expect("a pool");
    text.trim().parse().expect("a number")
}

/// The pool as it has to be again: all counts but those of pages that programs use.
fn pool() -> [u64; 4] {
    ["nr_hugepages", "surplus_hugepages", "nr_overcommit_hugepages", "resv_hugepages"].map(number)
}

fn set(name: &str, pages: u64) {
    fs::write(format!("{POOL}/{name}"), pages.to_string()).expect("root may write it");
}

/// The pool is one test's; what a test that fails leaves is put back.
struct Alone {
    _lock: fs::File,
    before: [u64; 4],
}

impl Alone {
    fn new() -> Self {
        let lock = huge_page_settings();
        Self { _lock: lock, before: pool() }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let [total, surplus, overcommit, _] = self.before;
        set("nr_hugepages", total - surplus);
        set("nr_overcommit_hugepages", overcommit);
    }
}

fn can_reserve(test: &str) -> bool {
    let can = is_root() && Path::new(POOL).exists();
    if !can {
        skip(test, "needs root, and a kernel with pools of 2 MiB pages");
    }
    can
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `neap huge reserve PAGES -- sh -c SCRIPT`, not started.
fn reserve(neap: &Neap, pages: &str, script: &str) -> Command {
    let mut command = neap.command(["huge", "reserve", pages, "--", "sh", "-c", script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// One that runs until the file is there, and has begun.
fn held(neap: &Neap, pages: &str, name: &str) -> Child {
    let (begun, end) = (neap.path(&format!("{name}.begun")), neap.path(&format!("{name}.end")));
    let script = format!(": > {}; while ! test -e {}; do sleep 0.01; done", begun.display(), end.display());
    let child = reserve(neap, pages, &script).spawn().expect("neap starts");
    wait_until("the command", || begun.exists());
    child
}

/// Has the command of [`held`] end.
fn end(neap: &Neap, name: &str, child: Child) -> Output {
    fs::write(neap.path(&format!("{name}.end")), "").expect("writable");
    child.wait_with_output().expect("neap ends")
}

fn signal(child: &Child, number: i32) {
    let pid = i32::try_from(child.id()).expect("a process id");
    // SAFETY: kill takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0, "the process exists");
}

/// neap for other users, who may not enter the folder of a build.
fn for_all(neap: &Neap) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(neap.dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let copy = neap.path("neap");
    copy_program(env!("CARGO_BIN_EXE_neap"), &copy);
    copy
}

/// Catches figures that are not the kernel's, and JSON that lacks a part.
#[test]
fn the_status_is_that_of_the_machine() {
    let neap = Neap::new();
    let output = neap.output(["huge", "status", "--json"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    let json: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(json["schema"], "neap.huge.status/1");
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").map_or(0, Iterator::count);
    assert_eq!(json["pools"].as_array().map(Vec::len), Some(sizes));
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if let Some(value) = json["transparent"][0]["value"].as_str() {
        assert!(enabled.contains(&format!("[{value}]")), "{value}: {enabled}");
    }
    let text = stdout(&neap.output(["huge", "status"]));
    assert!(text.contains("\nLimits of this process\n") && !text.contains('\x1b'), "{text}");
}

/// Catches a status that needs rights, and a reservation without them that does something or does not say why.
#[test]
fn without_permission() {
    if !can_reserve("without_permission") {
        return;
    }
    let neap = Neap::new();
    let program = for_all(&neap);
    let unprivileged = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).uid(UNPRIVILEGED).gid(UNPRIVILEGED).output().expect("neap starts")
    };
    let output = unprivileged(&["huge", "status"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert!(stdout(&output).contains("  2 MiB "), "{}", stdout(&output));
    let output = unprivileged(&["huge", "reserve", "1", "--", "echo", "ran"]);
    assert_refused(&output, 125, &["nr_hugepages: Permission denied", "hint: only root can reserve huge pages"]);
}

/// Catches a status that ends where there is no sysfs, and a reservation that begins there.
#[test]
fn without_sysfs() {
    let without = |command: &str| {
        let script = format!("mount -t tmpfs none /sys && exec {} {command}", env!("CARGO_BIN_EXE_neap"));
        Command::new("unshare").args(["-m", "sh", "-c", &script]).output()
    };
    let Ok(output) = without("huge status") else { return skip("without_sysfs", "no unshare") };
    if !is_root() {
        return skip("without_sysfs", "needs root");
    }
    let text = stdout(&output);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    for line in ["\nNot known\n", "  pools: /sys/kernel/mm/hugepages: ", "  transparent huge pages: ", "ulimit -l"] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let output = without("huge reserve 1 -- echo ran").expect("unshare");
    assert_refused(&output, 125, &["shows no pools of huge pages", "hint: mount sysfs"]);
}

/// Catches pages that the command does not have, a status that is not the command's, and pages that stay.
#[test]
fn the_command_has_the_pages_and_gives_them_back() {
    if !can_reserve("the_command_has_the_pages_and_gives_them_back") {
        return;
    }
    let alone = Alone::new();
    let (neap, before) = (Neap::new(), alone.before);
    let free = number("free_hugepages");
    let output = reserve(&neap, "3", &format!("cat {POOL}/free_hugepages; exit 3")).output().expect("neap starts");
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), String::new()));
    assert_eq!(stdout(&output).trim(), (free + 3).to_string());
    assert_eq!(pool(), before);

    let output = reserve(&neap, "2", "kill -SEGV $$").output().expect("neap starts");
    assert_eq!((output.status.signal(), pool()), (Some(libc::SIGSEGV), before));

    let output = neap.output(["huge", "reserve", "2", "--", "/no/such/program"]);
    assert_refused(&output, 127, &["/no/such/program"]);
    // Found, and the kernel cannot execute it: after the pages were reserved.
    let broken = neap.file("broken", "#!/no/such/interpreter\n", 0o755);
    let output = neap.output(["huge", "reserve", "2", "--", broken.to_str().expect("UTF-8")]);
    assert_refused(&output, 127, &["its interpreter /no/such/interpreter"]);
    assert_eq!(pool(), before);
}

/// Catches pages that stay in a file, of which nothing is said: neither by the reservation nor by the status.
#[test]
fn pages_that_a_file_keeps_are_named() {
    let name = "pages_that_a_file_keeps_are_named";
    if !can_reserve(name) {
        return;
    }
    let alone = Alone::new();
    let neap = Neap::new();
    let folder = neap.path("huge");
    fs::create_dir(&folder).expect("a folder");
    let script = "mount -t hugetlbfs -o pagesize=2M none \"$0\" || exit 77\n\
                  \"$1\" huge reserve 3 -- fallocate -l 4M \"$0/left\"\n\
                  \"$1\" huge status; sleep 1000 < \"$0/left\" & \"$1\" huge status --json; kill $!; rm \"$0/left\"";
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", script]).arg(&folder).arg(env!("CARGO_BIN_EXE_neap"));
    let output = shell.output().expect("unshare");
    if output.status.code() == Some(77) {
        return skip(name, "mounts are denied");
    }
    let (out, err) = (stdout(&output), stderr(&output));
    assert!(err.contains("neap: 2 pages of 2 MiB are still in use after the command"), "{err}");
    let words = format!("2 pages of 2 MiB: file {}/left, which no process has", folder.display());
    assert!(err.contains(&words), "{err}");
    let (text, json) = out.split_at(out.find("\n{").expect("JSON"));
    assert!(text.contains(&words) && text.contains(&format!("contents: rm {}/left", folder.display())), "{text}");
    let status: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(status["left"], Value::Array(vec![]), "a process has it open: {status:#}");
    assert_eq!(pool(), alone.before);
}

/// Catches pages that stay when neap or the command is ended by a signal.
#[test]
fn signals_give_the_pages_back() {
    if !can_reserve("signals_give_the_pages_back") {
        return;
    }
    let alone = Alone::new();
    let (neap, before) = (Neap::new(), alone.before);
    for (i, number) in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().enumerate() {
        let mut child = held(&neap, "2", &i.to_string());
        assert_eq!(pool()[0], before[0] + 2);
        signal(&child, number);
        assert_eq!(child.wait().expect("neap ends").signal(), Some(number));
        assert_eq!(pool(), before);
    }
}

/// Catches two reservations of which one takes the pages of the other, and pages that were added by hand meanwhile.
#[test]
fn reservations_beside_each_other() {
    if !can_reserve("reservations_beside_each_other") {
        return;
    }
    let alone = Alone::new();
    let (neap, before) = (Neap::new(), alone.before);
    let (first, second) = (held(&neap, "2", "first"), held(&neap, "3", "second"));
    assert_eq!(pool()[0], before[0] + 5);
    let status = stdout(&neap.output(["huge", "status"]));
    assert!(status.contains(&format!("3 pages of 2 MiB are there for a neap huge reserve (process {})", second.id())));
    assert!(end(&neap, "first", first).status.success());
    assert_eq!(pool()[0], before[0] + 3);
    set("nr_hugepages", before[0] + 4);
    assert!(end(&neap, "second", second).status.success());
    assert_eq!(pool()[0], before[0] + 1);
    set("nr_hugepages", before[0]);

    // Many at the same time: none is lost, whatever the order.
    let children: Vec<Child> =
        (0..8).map(|_| reserve(&neap, "1", "sleep 0.0$$").spawn().expect("neap starts")).collect();
    for mut child in children {
        assert!(child.wait().expect("neap ends").success());
    }
    assert_eq!(pool(), before);
}

/// Catches a reservation that ends badly when its pages were taken out of the pool meanwhile, or says nothing.
#[test]
fn pages_taken_away_under_way() {
    if !can_reserve("pages_taken_away_under_way") {
        return;
    }
    let alone = Alone::new();
    let (neap, before) = (Neap::new(), alone.before);
    if before[0] > 0 {
        return skip("pages_taken_away_under_way", "the pool is in use");
    }
    let child = held(&neap, "2", "held");
    set("nr_hugepages", 0);
    let output = end(&neap, "held", child);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("2 pages had been taken out of the pool"), "{}", stderr(&output));
    assert_eq!(pool(), before);
}

/// Catches pages of a neap that was killed: they stay for ever, or the status does not show them.
#[test]
fn the_next_reservation_restores_what_a_killed_one_left() {
    if !can_reserve("the_next_reservation_restores_what_a_killed_one_left") {
        return;
    }
    let alone = Alone::new();
    let (neap, before) = (Neap::new(), alone.before);
    let mut child = held(&neap, "2", "killed");
    signal(&child, libc::SIGKILL);
    child.wait().expect("neap ends");
    assert_eq!(pool()[0], before[0] + 2);
    let status = stdout(&neap.output(["huge", "status"]));
    assert!(status.contains("2 pages of 2 MiB were left by a neap huge reserve that was killed"), "{status}");
    assert!(reserve(&neap, "1", "true").status().expect("neap starts").success());
    assert_eq!(pool(), before);
}

/// Catches more pages than the machine has memory for: asked of the kernel, they would drive out all else.
#[test]
fn more_than_the_machine_has() {
    if !can_reserve("more_than_the_machine_has") {
        return;
    }
    let alone = Alone::new();
    let (neap, before) = (Neap::new(), alone.before);
    let output = neap.output(["huge", "reserve", "100000000", "--", "echo", "ran"]);
    assert_refused(&output, 125, &["of memory available", "hint: reserve fewer pages"]);
    let output = neap.output(["huge", "reserve", "1", "--size", "64K", "--", "echo", "ran"]);
    assert_refused(&output, 125, &["no huge pages of 64 KiB", "2 MiB"]);
    let output = neap.output(["huge", "reserve", "1", "--node", "4000", "--", "echo", "ran"]);
    assert_refused(&output, 125, &["no NUMA node 4000", "hint: its nodes are: 0"]);
    assert_eq!(pool(), before);
}

/// Holds pages of 2 MiB, as many as the first argument says; ends at the end of its standard input.
const HOLDER: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    size_t bytes = strtoul(argv[1], 0, 0) << 21;
    char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (p == MAP_FAILED) return 7;
    memset(p, 1, bytes);
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

/// Catches a pool that is just enough and is not, and pages in use (surplus) that count as new ones.
#[test]
fn pages_that_are_in_use_do_not_count() {
    if !can_reserve("pages_that_are_in_use_do_not_count") {
        return;
    }
    let alone = Alone::new();
    let (neap, before) = (Neap::new(), alone.before);
    if before[0] > 0 {
        return skip("pages_that_are_in_use_do_not_count", "the pool is in use");
    }
    let Some(holder) = compile(neap.dir.path(), "holder", HOLDER, &[]) else {
        return skip("pages_that_are_in_use_do_not_count", "no C compiler");
    };
    let hold = |pages: &str| {
        let output = neap.command(["huge", "reserve", "3", "--"]).arg(&holder).arg(pages).stdin(Stdio::null()).output();
        output.expect("neap starts").status.code()
    };
    assert_eq!((hold("3"), hold("4")), (Some(0), Some(7)), "just enough, and one more");
    set("nr_overcommit_hugepages", before[2] + 2);
    let mut holding = Command::new(&holder);
    holding.arg("2").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holding = holding.spawn().expect("it starts");
    wait_until("pages in use", || number("surplus_hugepages") == 2 && number("free_hugepages") == 0);
    let during = pool();
    set("nr_overcommit_hugepages", before[2]);
    let output = reserve(&neap, "1", &format!("cat {POOL}/free_hugepages")).output().expect("neap starts");
    set("nr_overcommit_hugepages", before[2] + 2);
    assert_eq!(stdout(&output), "1\n", "{}", stderr(&output));
    assert_eq!(pool(), during);
    drop(holding.stdin.take());
    assert!(holding.wait().expect("it ends").success());
    set("nr_overcommit_hugepages", before[2]);
    assert_eq!(pool(), before);
}
