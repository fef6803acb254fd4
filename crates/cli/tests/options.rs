//! `neap options`: what programs would run with, what a running one runs with, and who chose it.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Neap, assert_refused, skip, stdout};
use serde_json::Value;

/// A program of some size, which sets one option itself, says so, and waits for the end of its input.
const PROGRAM: &str = r#"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    void *block = memset(malloc(20 << 20), 1, 20 << 20);
    free(block);
    malloc_trim(0);
    puts("ready");
    fflush(stdout);
    return getchar() != EOF;
}
"#;

/// `value` and `origin` of an option in the JSON of `neap options`.
fn shown(json: &Value, name: &str) -> (String, String) {
    let options = json["options"].as_array().expect("a list");
    let option = options.iter().find(|option| option["name"] == name).expect("the option");
    let text = |field: &str| option[field].as_str().expect("text").to_owned();
    (text("value"), text("origin"))
}

/// Catches values of a running program that are not those that it was started with, or another origin.
#[test]
fn of_a_running_program() {
    let neap = Neap::new();
    let directory = neap.path("");
    let Some(program) = common::compile(&directory, "program", PROGRAM, &["-O1", "-fno-builtin"]) else {
        return skip("of_a_running_program", "no C compiler");
    };
    let mut command = neap.command(["run", "--set", "purge_delay=1500ms", "--"]);
    command.arg(&program).env("MALLOC_TRIM_THRESHOLD_", "0x20000").env("NEAP_ZERO", "always");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("neap starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let pid = child.id().to_string();
    let output = neap.output(["options", "--json", "--pid", &pid]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    for (name, value, origin) in [
        ("counters", "", "default"),
        ("foreign", "pass", "default"),
        ("purge", "decay", "default"),
        ("purge_delay", "1500ms", "neap run --set"),
        ("purge_bytes", "128K", "glibc's environment"),
        ("zero", "always", "environment"),
        ("mmap_threshold", "1M", "mallopt"),
        ("limit", "auto", "default"),
    ] {
        assert_eq!(shown(&json, name), (value.to_owned(), origin.to_owned()), "{name}");
    }
    let text = stdout(&neap.output(["options", "--pid", &pid]));
    assert!(text.contains("    value        1M (mallopt)\n"), "{text}");
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    assert_refused(&neap.output(["options", "--pid", &pid]), 125, &["process", &pid]);
}

/// Catches an environment that is read otherwise than the library does.
#[test]
fn of_the_environment() {
    let neap = Neap::new();
    let mut command = neap.command(["options", "--json"]);
    command.env("MALLOC_MMAP_THRESHOLD_", "131072").env("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=-1");
    command.env("NEAP_ZERO", "sometimes").env("NEAP_LIMIT", "1G");
    let json: Value = serde_json::from_str(&stdout(&command.output().expect("neap starts"))).expect("JSON");
    for (name, value, origin) in [
        ("purge", "never", "GLIBC_TUNABLES"),
        ("mmap_threshold", "128K", "glibc's environment"),
        ("zero", "resident", "default"),
        ("limit", "1G", "environment"),
    ] {
        assert_eq!(shown(&json, name), (value.to_owned(), origin.to_owned()), "{name}");
    }
    assert!(stdout(&neap.output(["man"])).contains(".SH OPTIONS OF NEAP"));
}

/// Catches a bad value that is shown as if it had not been set, and a misspelt variable that is not.
#[test]
fn bad_values_are_shown_as_such() {
    let neap = Neap::new();
    let with = |command: &mut std::process::Command| {
        command
            .env("NEAP_PURGE", "eagr")
            .env("NEAP_LIMT", "1G")
            .env("NEAP_ZERO", "always")
            .output()
            .expect("neap starts")
    };
    let output = with(&mut neap.command(["options"]));
    let text = stdout(&output);
    assert!(text.contains("    value        decay (default; NEAP_PURGE=eagr is invalid)\n"), "{text}");
    assert!(text.contains("    value        always (environment: NEAP_ZERO)\n"), "{text}");
    assert_eq!(common::stderr(&output), "neap: NEAP_LIMT is no option; did you mean NEAP_LIMIT?\n");
    let json: Value = serde_json::from_str(&stdout(&with(&mut neap.command(["options", "--json"])))).expect("JSON");
    let option =
        |name: &str| json["options"].as_array().expect("a list").iter().find(|one| one["name"] == name).cloned();
    assert_eq!(option("purge").expect("an option")["invalid"], "eagr");
    assert_eq!(option("zero").expect("an option").get("invalid"), None);
}
