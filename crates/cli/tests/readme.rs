//! The commands of README.md, run as they stand there, in their order. The parser reads those of all other documents in a
//! unit test (`src/documents.rs`). `cargo install`, `cargo xtask install` and the link line are run by
//! `xtask/tests/install.rs`.

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Neap, Running, compile, default_signals, skip, stderr};

/// Commands that are not run here, and where they are.
const ELSEWHERE: &[(&str, &str)] = &[
    ("sudo neap huge reserve 512 -- ./server", "takes 1 GiB of huge pages from the machine: tests/huge.rs, with less"),
    ("neap lab peers build", "compiles for minutes: `cargo xtask peers`, of the long tier"),
    ("neap lab show --open results", "opens a browser: tests/report.rs looks at the page"),
    ("neap lab run all --quick", "minutes: `cargo xtask experiments --ci`, of the long tier"),
];

/// Commands that run until they are ended.
const ENDLESS: [&str; 2] = ["neap why --watch 1234", "neap exporter"];

/// Words that are replaced: a process of the test, less time, less work.
const SHORTER: [(&str, &str); 3] = [
    ("--duration 10s", "--duration 1s"),
    ("service --quick", "service --quick --allocators neap"),
    ("make -j2", "make"),
];

/// A server that does some work, and then ends, or waits to be observed.
const SERVER: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *kept[2000];
static void keep(int number) { kept[number] = malloc(20000); memset(kept[number], number, 20000); }
int main(int count, char **words) {
    for (int i = 0; i < 2000; i++) { keep(i); free(malloc(50000)); }
    if (count > 1 && !strcmp(words[1], "--serve"))
        for (;;) { free(malloc(100000)); usleep(1000); }
    return 0;
}
"#;

/// The commands of neap's in the section with this heading, without what is said about them. An empty heading: above all.
fn commands(heading: &str) -> Vec<String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).expect("readable");
    let sections = readme.split("\n## ");
    let text = sections
        .enumerate()
        .find(|(place, text)| if heading.is_empty() { *place == 0 } else { text.starts_with(heading) });
    let (_, text) = text.unwrap_or_else(|| panic!("the README has no section `{heading}`"));
    let blocks = text.split("```").skip(1).step_by(2);
    let lines = blocks.filter(|block| block.starts_with("sh\n")).flat_map(str::lines);
    let said = |line: &str| line.split(" #").next().unwrap_or_default().trim().to_owned();
    lines.map(said).filter(|line| line.starts_with("neap ") || line.starts_with("sudo neap ")).collect()
}

/// Files that the commands name.
fn prepare(neap: &Neap) -> bool {
    if compile(neap.dir.path(), "server", SERVER, &["-g", "-O1", "-fno-omit-frame-pointer"]).is_none() {
        return false;
    }
    neap.file("service.py", "print('served')\n", 0o644);
    neap.file("Makefile", "all:\n\ttrue\n", 0o644);
    for name in ["before.json", "after.json"] {
        fs::write(neap.path(name), "").expect("writable");
    }
    true
}

/// Runs the commands of a section, of which there are at least `least`.
fn section(heading: &str, least: usize) {
    let neap = Neap::new();
    if !prepare(&neap) {
        return skip(heading, "no C compiler");
    }
    let mut server = neap.command(["run", "--", "./server", "--serve"]);
    let server = Running(server.current_dir(neap.dir.path()).spawn().expect("neap starts"));
    let pid = server.0.id().to_string();
    let all = commands(heading);
    assert!(all.len() >= least, "{all:?}");
    for line in all.iter().filter(|line| ELSEWHERE.iter().all(|(other, _)| other != line)) {
        if line.contains(" diff before.json after.json") {
            let kind = if line.contains("pagein") { "pagein" } else { "profile --heap" };
            for name in ["before.json", "after.json"] {
                run(&neap, &format!("neap {kind} --format json -o {name} -- ./server"), true);
            }
        }
        let shorter = SHORTER.iter().fold(line.replace("1234", &pid), |line, (from, to)| line.replace(from, to));
        run(&neap, &shorter, !ENDLESS.contains(&line.as_str()));
    }
}

/// Catches a command of the first screen that fails.
#[test]
fn first_screen() {
    section("", 1);
}

/// Catches a command for people who run a service that fails, or that does not end.
#[test]
fn services() {
    section("I run a service", 13);
}

/// Catches a command for programmers that fails, or that does not end.
#[test]
fn programmers() {
    section("I write C, C++ or Rust", 18);
}

/// Catches a command of the lab that fails, or that does not end.
#[test]
fn comparisons() {
    section("I compare allocators", 5);
}

/// Catches an exception for a command that is gone.
#[test]
fn exceptions_are_in_the_readme() {
    let all: Vec<String> = ["", "I run a service", "I write C, C++ or Rust", "I compare allocators"]
        .into_iter()
        .flat_map(commands)
        .collect();
    for line in ELSEWHERE.iter().map(|(line, _)| *line).chain(ENDLESS) {
        assert!(all.iter().any(|other| other == line), "the README has no `{line}`");
    }
}

/// Runs a line. One that does not end has a second to fail, and is ended.
fn run(neap: &Neap, line: &str, ends: bool) {
    let begun = Instant::now();
    let words = line.strip_prefix("neap ").expect("a command of neap's").split(' ').filter(|word| !word.is_empty());
    let mut command = neap.command(words);
    default_signals(&mut command);
    command.current_dir(neap.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !ends {
        let mut child = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("neap starts"));
        std::thread::sleep(Duration::from_secs(1));
        assert!(child.0.try_wait().expect("waits").is_none(), "{line} ended");
        return;
    }
    let output = command.output().expect("neap starts");
    println!("{:6.2} s  {line}", begun.elapsed().as_secs_f64());
    assert!(output.status.success(), "{line}: {}\n{}", output.status, stderr(&output));
}
