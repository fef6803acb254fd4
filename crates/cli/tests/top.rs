//! `neap top`: the plain table and JSON. The screen is tested with a terminal in `tests/top.rs`.

mod common;

use common::{Neap, Running, assert_refused, stderr, stdout};
use serde_json::Value;
use std::process::Command;

/// Catches a program that waits for a terminal where there is none, and figures that are not the process's.
#[test]
fn a_table_and_json() {
    let neap = Neap::new();
    let word = format!("1{}.5", std::process::id());
    let child = Running(Command::new("sleep").arg(&word).spawn().expect("sleep(1)"));
    std::thread::sleep(std::time::Duration::from_millis(200));
    let pattern = format!("^sleep {}$", word.replace('.', "\\."));
    let output = neap.output(["top", "--match", &pattern]);
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(output.status.success() && lines.len() == 2, "{text}{}", stderr(&output));
    let words: Vec<&str> = lines[0].split_ascii_whitespace().collect();
    assert_eq!(
        words,
        ["PID", "RSS", "PSS", "BACK", "LIVE", "KEPT", "FRAG", "HUGE", "SWAP", "ALLOC", "CONTAINER", "COMMAND"]
    );
    let words: Vec<&str> = lines[1].split_ascii_whitespace().collect();
    assert!(words[0] == child.0.id().to_string() && words[9] == "glibc" && words[11] == "sleep", "{text}");
    let output = neap.output(["top", "--json", "--match", &pattern]);
    let rows: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let row = &rows[0];
    assert!(row["pss_bytes"].as_u64() <= row["rss_bytes"].as_u64() && row["live_bytes"].as_u64() > Some(0), "{rows:#}");
    assert!(row["verdict"].as_str().is_some_and(|text| text.ends_with('.')), "{rows:#}");
    assert_refused(&neap.output(["top", "--match", "["]), 125, &["not a regular expression"]);
    assert_refused(&neap.output(["top", "--sort", "size"]), 125, &["possible values"]);
}
